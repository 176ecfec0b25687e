//! Devices of plugins. A plugin registers again only after the kubelet has begun to admit pods; which devices were handed
//! out before is in a checkpoint of the kubelet's (devicesToAllocate, pkg/kubelet/cm/devicemanager/manager.go).

use super::kubelet::Kubelet;
use super::refusal::Certainty;
use crate::pods::{NodeSummary, PodSummary};

/// Before this version what stands in the checkpoint is enough (v1.20.2).
const STRICT_SINCE: u64 = 25;
/// From this version on containers that run are let through (PR 118635, with backports to patch versions of 1.25 to 1.27).
/// What does not run is not, be it an init container that is done (v1.36; issues 124345, 138446).
const RUNNING_SINCE: u64 = 28;

/// Whether the pod may be refused as `UnexpectedAdmissionError`: that depends on whether the plugin is back by then.
pub(super) fn refuses(pod: &PodSummary, kubelet: &Kubelet<'_>, node: &NodeSummary) -> Option<Certainty> {
    let is_device = |name: &String| name.contains('/') && node.capacity.contains_key(name);
    let waits = match kubelet.minor {
        Some(..STRICT_SINCE) => false,
        Some(RUNNING_SINCE..) => pod.idle_devices.iter().any(is_device),
        _ => pod.requests.keys().any(is_device),
    };
    waits.then_some(Certainty::Unknown)
}
