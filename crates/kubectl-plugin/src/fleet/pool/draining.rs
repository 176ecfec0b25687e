//! What is decided of drains.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::drain::Cordon;
use super::node::PoolNode;
use super::renderings::NodeAssignment;
use super::report::PoolState;
use super::types::Proof;

/// What the drains of a pool's Nodes need.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DrainDecision {
    /// Nodes whose Pods are followed, and whether they are evicted; those of no other Node of this pool are.
    pub(crate) follow: BTreeMap<String, bool>,
    /// Nodes that are let be for a while, and why.
    pub(crate) give_up: BTreeMap<String, String>,
    pub(crate) cordon: Vec<String>,
    pub(crate) uncordon: Vec<String>,
}

impl DrainDecision {
    /// Nothing but that these cordons end.
    pub(super) fn ending(uncordon: Vec<String>) -> Self {
        Self { uncordon, ..Self::default() }
    }
}

/// What is left of a plan until drains are done.
pub(super) struct Drained {
    pub(super) state: PoolState,
    /// To Nodes that need no drain, or are empty.
    pub(super) assign: Vec<NodeAssignment>,
    pub(super) decision: DrainDecision,
    /// When a drain's time is over.
    pub(super) next: Option<Duration>,
}

/// Of these, Nodes that have the pool's cordon without need: they are not to get anything now, and are well with what they have, or
/// went back from it.
pub(super) fn uncordon<'a>(
    nodes: impl Iterator<Item = &'a PoolNode>,
    pool: &str,
    keep: &BTreeSet<&str>,
    proof: Proof,
) -> Vec<String> {
    let is_free = |node: &PoolNode| match node.cordon(pool) {
        _ if keep.contains(node.name.as_str()) => false,
        Cordon::Ours => node.ready && !node.is_in_flight(proof),
        Cordon::Stale => true,
        _ => false,
    };
    nodes.filter(|node| is_free(node)).map(|node| node.name.clone()).collect()
}
