//! A kubelet that would start, what its node has left, and the pods that it would refuse.

use std::collections::BTreeMap;
use std::fmt;

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

/// How sure it is that a pod is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Certainty {
    /// By all that is known it is.
    Refused,
    /// It may be: that depends on what cannot be seen from outside the kubelet, or on which of two comes first.
    Unknown,
}

/// Why a pod is refused: the kubelet's own `status.reason`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// An eviction threshold is crossed already.
    Evicted,
    /// It does not tolerate a NoExecute taint of the node.
    TaintToleration,
    /// Its nodeSelector or required node affinity does not match the labels of the node.
    NodeAffinity,
    /// There is not enough of this resource; `pods` for places.
    OutOf(String),
    /// The same for a critical pod: the kubelet evicts others for it, and refuses it only where that does not
    /// suffice (HandleAdmissionFailure, pkg/kubelet/preemption/preemption.go, v1.20.2 and v1.36).
    Preempting(String),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOf(resource) => write!(f, "OutOf{resource}"),
            Self::Preempting(resource) => write!(f, "OutOf{resource}, critical: others are evicted for it"),
            Self::Evicted => f.write_str("Evicted"),
            Self::TaintToleration => f.write_str("TaintToleration"),
            Self::NodeAffinity => f.write_str("NodeAffinity"),
        }
    }
}

/// A pod that the kubelet would refuse.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// `namespace/name`.
    pub pod: String,
    /// Why.
    pub reason: Reason,
    /// How sure that is.
    pub certainty: Certainty,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pod, reason, certainty } = self;
        match certainty {
            Certainty::Refused => write!(f, "{pod} ({reason})"),
            Certainty::Unknown => write!(f, "{pod} (perhaps {reason})"),
        }
    }
}
