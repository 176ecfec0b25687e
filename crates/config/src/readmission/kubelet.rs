//! The kubelet that would start, as its admission depends on it beside the pods.

use std::collections::BTreeMap;

use serde_json::Value;

/// A kubelet that would start.
#[derive(Clone, Copy, Debug)]
pub struct Kubelet<'a> {
    /// Its effective configuration.
    pub config: &'a Value,
    /// Its minor version, if that is known.
    pub minor: Option<u64>,
    /// What the node has left for it.
    pub supplies: &'a Supplies,
    /// Its hard eviction thresholds are not kept from pods: [`KubeletArgs::ignores_eviction`](crate::flags::KubeletArgs::ignores_eviction).
    pub ignores_eviction: bool,
}

/// An amount of something that runs out, as eviction thresholds name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Supply {
    /// What is left.
    pub available: u64,
    /// What there is in all.
    pub capacity: u64,
}

/// What a node has left, by eviction signal: bytes, inodes or process ids, as the kubelet measures them. Of
/// `allocatableMemory.available` the capacity is the node's memory, and only what pods use is taken off.
pub type Supplies = BTreeMap<String, Supply>;
