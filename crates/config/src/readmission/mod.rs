//! Which pods of a node its kubelet would refuse once it is restarted. A kubelet keeps no list of the pods it has
//! admitted: at its start it admits every one anew (HandlePodAdditions, pkg/kubelet/kubelet.go, v1.20.2 and v1.36), by
//! the Node object as it is then.
//!
//! One file a family of rules. What is not covered: claims of devices (DRA), and ports, which no configuration changes.

use crate::pods::{PodInventory, PodSummary};

pub(crate) mod allocatable;
mod devices;
pub(crate) mod eviction;
mod features;
mod gates;
mod kubelet;
mod node_affinity;
mod operating_system;
mod refusal;
mod resource_managers;
mod resources;
mod sysctls;
mod taints;

pub use kubelet::{Kubelet, Supplies, Supply};
pub use refusal::{Certainty, Reason, Refusal};
use resources::{Overcommitted, Room};

/// The pods that this kubelet would refuse, in the order in which it admits them.
///
/// Room is judged by what the configuration leaves and by what the Node has now: admission may see either (the new
/// status has to come back from the API server first). Too little by the former is a loss, at this restart or the next.
#[must_use]
pub fn refusals(kubelet: &Kubelet<'_>, inventory: &PodInventory) -> Vec<Refusal> {
    let mut left = Room::new(allocatable::of_kubelet(kubelet, &inventory.node), kubelet.minor);
    let mut now = Room::new(allocatable::of_node(&inventory.node), kubelet.minor);
    let mut overcommitted = Overcommitted::of(kubelet.minor);
    let judge = |pod: &&PodSummary| {
        let before = before_room(pod, kubelet, inventory);
        let after = after_room(pod, kubelet, inventory);
        let is_out = before.iter().chain(&after).any(|(_, certainty)| *certainty == Certainty::Refused);
        let lack = left.lacks(pod).or_else(|| Some((now.lacks(pod)?.0, Certainty::Unknown)));
        let lack = overcommitted.note(pod, lack);
        if !is_out {
            left.admit(pod);
            now.admit(pod);
        }
        // Others are evicted only for a pod that has nothing else against it.
        let lack = lack.filter(|_| !(is_out && pod.is_critical));
        let all = before.into_iter().chain(lack).chain(after);
        let (reason, certainty) = all.min_by_key(|(_, certainty)| *certainty)?;
        // It goes anyway, and may have gone before it is looked at; until then it takes its room.
        let certainty = if pod.is_terminating { Certainty::Unknown } else { certainty };
        Some(Refusal { pod: pod.name.clone(), reason, certainty })
    };
    in_order(inventory).iter().filter_map(judge).collect()
}

/// What the kubelet asks before it looks at the room for the pod, in its order.
fn before_room(pod: &PodSummary, kubelet: &Kubelet<'_>, inventory: &PodInventory) -> Vec<(Reason, Certainty)> {
    let all = [
        named(Reason::Evicted, eviction::refuses(pod, kubelet)),
        named(Reason::SysctlForbidden, sysctls::refuses(pod, kubelet)),
        named(Reason::TopologyAffinityError, resource_managers::is_spread(pod, kubelet)),
        named(Reason::UnexpectedAdmissionError, devices::refuses(pod, kubelet, &inventory.node)),
        named(Reason::SMTAlignmentError, resource_managers::misaligns(pod, kubelet, inventory)),
        operating_system::refuses(pod, kubelet),
        named(Reason::SupplementalGroupsPolicyNotSupported, features::strict_groups(pod, kubelet, &inventory.node)),
    ];
    all.into_iter().flatten().collect()
}

/// What it asks after that, in its order.
fn after_room(pod: &PodSummary, kubelet: &Kubelet<'_>, inventory: &PodInventory) -> Vec<(Reason, Certainty)> {
    let unless = |holds: Option<bool>| match holds {
        Some(true) => None,
        Some(false) => Some(Certainty::Refused),
        None => Some(Certainty::Unknown),
    };
    let all = [
        named(Reason::NodeAffinity, unless(node_affinity::matches(pod, &inventory.node))),
        named(Reason::TaintToleration, unless(taints::are_tolerated(pod, &inventory.node, kubelet.minor))),
        named(Reason::PodLevelResourcesNotSupported, features::pod_level_resources(pod, kubelet)),
        named(Reason::PodFeatureUnsupported, features::declared(pod, kubelet)),
    ];
    all.into_iter().flatten().collect()
}

fn named(reason: Reason, certainty: Option<Certainty>) -> Option<(Reason, Certainty)> {
    certainty.map(|certainty| (reason, certainty))
}

/// True if this kubelet would refuse the pod for this, which does not depend on what others take.
pub(crate) fn refuses_for(reason: &Reason, pod: &PodSummary, kubelet: &Kubelet<'_>, inventory: &PodInventory) -> bool {
    let before = before_room(pod, kubelet, inventory);
    before.iter().chain(&after_room(pod, kubelet, inventory)).any(|(known, _)| known == reason)
}

/// The live pods in the order in which a kubelet that starts admits them: static pods, whose files are read before the
/// API server has answered, then the others, oldest first. Which of two of the same second comes first is anybody's
/// guess; here it is their name.
fn in_order(inventory: &PodInventory) -> Vec<&PodSummary> {
    let mut pods: Vec<&PodSummary> = inventory.pods.iter().filter(|pod| pod.is_live()).collect();
    pods.sort_by_key(|pod| (!pod.is_static, &pod.created, &pod.name));
    pods
}

#[cfg(test)]
mod tests;
