//! Which pods of a node its kubelet would refuse once it is restarted. A kubelet keeps no list of the pods it has
//! admitted: at its start it admits every one anew (HandlePodAdditions, pkg/kubelet/kubelet.go, v1.20.2 and v1.36), by
//! the Node object as it is then.
//!
//! One file a family of rules. What is not covered: devices, resource managers, feature gates, and ports, which no configuration changes.

use crate::pods::{PodInventory, PodSummary};

pub(crate) mod allocatable;
pub(crate) mod eviction;
mod kubelet;
mod node_affinity;
mod refusal;
mod resources;
mod sysctls;
mod taints;

pub use kubelet::{Kubelet, Supplies, Supply};
pub use refusal::{Certainty, Reason, Refusal};
use resources::Room;

/// The pods that this kubelet would refuse, in the order in which it admits them.
///
/// Room is judged by what the configuration leaves and by what the Node has now: admission may see either (the new
/// status has to come back from the API server first). Too little by the former is a loss, at this restart or the next.
#[must_use]
pub fn refusals(kubelet: &Kubelet<'_>, inventory: &PodInventory) -> Vec<Refusal> {
    let mut left = Room::new(allocatable::of_config(kubelet.config, &inventory.node));
    let mut now = Room::new(allocatable::of_node(&inventory.node));
    let judge = |pod: &&PodSummary| {
        let before = before_room(pod, kubelet);
        let after = after_room(pod, kubelet, inventory);
        let is_out = before.iter().chain(&after).any(|(_, certainty)| *certainty == Certainty::Refused);
        let lack = left.lacks(pod).or_else(|| Some((now.lacks(pod)?.0, Certainty::Unknown)));
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

/// What the kubelet asks before it looks at the room for the pod, by its configuration, in its order.
fn before_room(pod: &PodSummary, kubelet: &Kubelet<'_>) -> Vec<(Reason, Certainty)> {
    let all =
        [(Reason::Evicted, eviction::refuses(pod, kubelet)), (Reason::SysctlForbidden, sysctls::refuses(pod, kubelet))];
    all.into_iter().filter_map(|(reason, certainty)| Some((reason, certainty?))).collect()
}

/// What it asks after that, by the Node, in its order.
fn after_room(pod: &PodSummary, kubelet: &Kubelet<'_>, inventory: &PodInventory) -> Vec<(Reason, Certainty)> {
    let unless = |reason: Reason, holds: Option<bool>| match holds {
        Some(true) => None,
        Some(false) => Some((reason, Certainty::Refused)),
        None => Some((reason, Certainty::Unknown)),
    };
    let all = [
        unless(Reason::NodeAffinity, node_affinity::matches(pod, &inventory.node)),
        unless(Reason::TaintToleration, taints::are_tolerated(pod, &inventory.node, kubelet.minor)),
    ];
    all.into_iter().flatten().collect()
}

/// True if this kubelet would refuse the pod for this, which does not depend on other pods.
pub(crate) fn refuses_for(reason: &Reason, pod: &PodSummary, kubelet: &Kubelet<'_>) -> bool {
    before_room(pod, kubelet).iter().any(|(known, _)| known == reason)
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
