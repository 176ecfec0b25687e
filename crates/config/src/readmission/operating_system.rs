//! Pods for another operating system (rejectPodAdmissionBasedOnOSSelector and rejectPodAdmissionBasedOnOSField,
//! pkg/kubelet/lifecycle/predicate.go, v1.36). The label is the pod's own, which anybody may set who may edit the pod; it is
//! held against what the kubelet was built for, whatever the Node's label says.

use super::kubelet::Kubelet;
use super::refusal::{Certainty, Reason};
use crate::pods::PodSummary;

/// What this kubelet runs on.
const OS: &str = "linux";

/// The first minor version that looks at the label (PR 105292; not in v1.20.2).
const LABEL_SINCE: u64 = 23;
/// The first that looks at the field by default (gate IdentifyPodOS, beta in v1.24).
const FIELD_SINCE: u64 = 24;

/// Whether the pod is refused for that, and why.
pub(super) fn refuses(pod: &PodSummary, kubelet: &Kubelet<'_>) -> Option<(Reason, Certainty)> {
    let checks = [
        (&pod.os_label, LABEL_SINCE, Reason::PodOSSelectorNodeLabelDoesNotMatch),
        (&pod.os, FIELD_SINCE, Reason::PodOSNotSupported),
    ];
    let refused = checks.into_iter().filter(|(os, ..)| !os.is_empty() && *os != OS);
    refused.into_iter().find_map(|(_, since, reason)| match kubelet.minor {
        Some(minor) if minor < since => None,
        Some(_) => Some((reason, Certainty::Refused)),
        None => Some((reason, Certainty::Unknown)),
    })
}
