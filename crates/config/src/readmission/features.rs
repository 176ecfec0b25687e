//! What a pod needs that is switched off: feature gates, and what the container runtime can do.

use super::gates::{
    Gate, NODE_DECLARED_FEATURES, POD_LEVEL_RESOURCES, RESTART_ALL_CONTAINERS, USER_NAMESPACES_HOST_NETWORK,
};
use super::kubelet::Kubelet;
use super::refusal::Certainty;
use crate::pods::{NodeSummary, PodFeature, PodSummary};

/// Since this version a kubelet refuses the strict policy where it is not to be had
/// (rejectPodAdmissionBasedOnSupplementalGroupsPolicy, pkg/kubelet/lifecycle/predicate.go, v1.36; PR 130210 for v1.33).
const STRICT_GROUPS_SINCE: u64 = 33;
/// Since this version it knows resources of a pod as a whole, and refuses them while their gate is off
/// (isPodLevelResourcesSupported, pkg/kubelet/lifecycle/features_linux.go, v1.36; PR 128407 for v1.32).
const POD_LEVEL_RESOURCES_SINCE: u64 = 32;
/// Since this version a node declares features, and refuses pods that need another (declaredFeaturesAdmitHandler,
/// pkg/kubelet/lifecycle/handlers.go, v1.36; the gate is of v1.35).
const DECLARED_SINCE: u64 = 35;

/// Whether the pod is refused as `SupplementalGroupsPolicyNotSupported`.
pub(super) fn strict_groups(pod: &PodSummary, kubelet: &Kubelet<'_>, node: &NodeSummary) -> Option<Certainty> {
    if !needs(pod, PodFeature::StrictSupplementalGroups, kubelet, STRICT_GROUPS_SINCE) {
        return None;
    }
    // It goes by the Node alone. The runtime is asked anew at the start; what the Node says stays while the gate is off
    // (`NodeFeatures`, pkg/kubelet/nodestatus/setters.go, v1.36).
    (!node.has_supplemental_groups_policy).then_some(Certainty::Unknown)
}

/// Whether the pod is refused as `PodLevelResourcesNotSupported`.
pub(super) fn pod_level_resources(pod: &PodSummary, kubelet: &Kubelet<'_>) -> Option<Certainty> {
    needs(pod, PodFeature::PodLevelResources, kubelet, POD_LEVEL_RESOURCES_SINCE)
        .then(|| off(&POD_LEVEL_RESOURCES, kubelet))?
}

/// Whether the pod is refused as `PodFeatureUnsupported`. Only these two features are looked for in a pod that is there
/// (`InferForScheduling`, staging/src/k8s.io/component-helpers/nodedeclaredfeatures/features, v1.36). What the runtime
/// has to do for them it did when the pod came.
pub(super) fn declared(pod: &PodSummary, kubelet: &Kubelet<'_>) -> Option<Certainty> {
    let needed = [
        (PodFeature::RestartAllContainers, &RESTART_ALL_CONTAINERS),
        (PodFeature::UserNamespaceOnHostNetwork, &USER_NAMESPACES_HOST_NETWORK),
    ];
    let needed = needed.into_iter().filter(|(feature, _)| needs(pod, *feature, kubelet, DECLARED_SINCE));
    let missing = needed.filter_map(|(_, gate)| off(gate, kubelet)).min()?;
    match NODE_DECLARED_FEATURES.is_on(kubelet.config, kubelet.minor) {
        Some(true) => Some(missing),
        Some(false) => None, // nobody asks
        None => Some(Certainty::Unknown),
    }
}

/// A kubelet whose version is not known may refuse for it.
fn needs(pod: &PodSummary, feature: PodFeature, kubelet: &Kubelet<'_>, since: u64) -> bool {
    pod.features.contains(&feature) && kubelet.minor.is_none_or(|minor| minor >= since)
}

fn off(gate: &Gate, kubelet: &Kubelet<'_>) -> Option<Certainty> {
    match gate.is_on(kubelet.config, kubelet.minor) {
        Some(true) => None,
        Some(false) if kubelet.minor.is_some() => Some(Certainty::Refused),
        _ => Some(Certainty::Unknown),
    }
}
