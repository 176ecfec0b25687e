//! Which pods of a node its kubelet would refuse once it is restarted. A kubelet keeps no list of the pods it has
//! admitted: at its start it admits every one anew (HandlePodAdditions, pkg/kubelet/kubelet.go, v1.20.2 and v1.36), by
//! the Node object as it is then.
//!
//! Foreseen are places, requests, hard eviction thresholds, the labels that a pod asks of its node and NoExecute taints.
//! Kubelets refuse for more than that, each version for something else. The trial sees what was refused.

use crate::pods::{PodInventory, PodSummary};
use room::{Overcommitted, Room};
pub use types::{Certainty, Kubelet, Reason, Refusal, Supplies, Supply};

mod placement;
pub(crate) mod room;
mod types;

/// The pods that this kubelet would refuse, in the order in which it admits them.
///
/// Room is judged by what the configuration leaves and by what the Node has now: admission may see either (the new
/// status has to come back from the API server first). Too little by the former is a loss, at this restart or the next.
#[must_use]
pub fn refusals(kubelet: &Kubelet<'_>, inventory: &PodInventory) -> Vec<Refusal> {
    let mut left = Room::new(room::of_kubelet(kubelet, &inventory.node), kubelet.minor);
    let mut now = Room::new(room::of_node(&inventory.node), kubelet.minor);
    let mut overcommitted = Overcommitted::of(kubelet.minor);
    let judge = |pod: &&PodSummary| {
        let evicted = named(Reason::Evicted, room::evicts(pod, kubelet));
        let misplaced = [
            named(Reason::NodeAffinity, unless(placement::matches(pod, &inventory.node))),
            named(Reason::TaintToleration, unless(placement::tolerates_taints(pod, &inventory.node, kubelet.minor))),
        ];
        let beside_room = evicted.iter().chain(misplaced.iter().flatten());
        let is_out = beside_room.into_iter().any(|(_, certainty)| *certainty == Certainty::Refused);
        let lack = left.lacks(pod).or_else(|| Some((now.lacks(pod)?.0, Certainty::Unknown)));
        let lack = overcommitted.note(pod, lack);
        if !is_out {
            left.admit(pod);
            now.admit(pod);
        }
        // Others are evicted only for a pod that has nothing else against it.
        let lack = lack.filter(|_| !(is_out && pod.is_critical));
        // In the order in which the kubelet asks.
        let all = evicted.into_iter().chain(lack).chain(misplaced.into_iter().flatten());
        let (reason, certainty) = all.min_by_key(|(_, certainty)| *certainty)?;
        // It goes anyway, and may have gone before it is looked at; until then it takes its room.
        let certainty = if pod.is_terminating { Certainty::Unknown } else { certainty };
        Some(Refusal { pod: pod.name.clone(), reason, certainty })
    };
    in_order(inventory).iter().filter_map(judge).collect()
}

/// Refused unless this holds.
fn unless(holds: Option<bool>) -> Option<Certainty> {
    match holds {
        Some(true) => None,
        Some(false) => Some(Certainty::Refused),
        None => Some(Certainty::Unknown),
    }
}

fn named(reason: Reason, certainty: Option<Certainty>) -> Option<(Reason, Certainty)> {
    certainty.map(|certainty| (reason, certainty))
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
