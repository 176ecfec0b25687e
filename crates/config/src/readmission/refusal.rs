//! What is said of a pod that would be refused.

use std::fmt;

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
    /// It has a sysctl that is neither safe nor in `allowedUnsafeSysctls`.
    SysctlForbidden,
    /// Its CPUs may not be whole cores.
    SMTAlignmentError,
    /// Its CPUs and memory may be spread over NUMA nodes more than the topology manager's policy allows.
    TopologyAffinityError,
    /// It asks for devices whose plugin may not be back in time.
    UnexpectedAdmissionError,
    /// Its label [`crate::pods::OS_LABEL`] is of another operating system.
    PodOSSelectorNodeLabelDoesNotMatch,
    /// `spec.os.name` is.
    PodOSNotSupported,
    /// It wants its supplemental groups strictly, which the node cannot do.
    SupplementalGroupsPolicyNotSupported,
    /// The gate of resources of a pod as a whole is off.
    PodLevelResourcesNotSupported,
    /// Another feature that it needs is off.
    PodFeatureUnsupported,
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
            Self::SysctlForbidden => f.write_str("SysctlForbidden"),
            Self::SMTAlignmentError => f.write_str("SMTAlignmentError"),
            Self::TopologyAffinityError => f.write_str("TopologyAffinityError"),
            Self::UnexpectedAdmissionError => f.write_str("UnexpectedAdmissionError"),
            Self::PodOSSelectorNodeLabelDoesNotMatch => f.write_str("PodOSSelectorNodeLabelDoesNotMatch"),
            Self::PodOSNotSupported => f.write_str("PodOSNotSupported"),
            Self::SupplementalGroupsPolicyNotSupported => f.write_str("SupplementalGroupsPolicyNotSupported"),
            Self::PodLevelResourcesNotSupported => f.write_str("PodLevelResourcesNotSupported"),
            Self::PodFeatureUnsupported => f.write_str("PodFeatureUnsupported"),
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
