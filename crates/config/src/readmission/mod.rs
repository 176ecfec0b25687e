//! Which pods of a node its kubelet would refuse once it is restarted. A kubelet keeps no list of the pods it has
//! admitted: at its start it admits every one anew (HandlePodAdditions, pkg/kubelet/kubelet.go, v1.20.2 and v1.36), by
//! the Node object as it is then.
//!
//! One file a family of rules. What is not covered: ports, taints, devices, resource managers, sysctls, feature gates.

use serde_json::Value;

use crate::pods::{PodInventory, PodSummary};

pub(crate) mod allocatable;
mod node_affinity;
mod refusal;
mod resources;

pub use refusal::{Certainty, Reason, Refusal};
use resources::Room;

/// The pods that a kubelet started with this configuration would refuse, in the order in which it admits them.
///
/// Room is judged by what the configuration leaves and by what the Node has now: admission may see either (the new
/// status has to come back from the API server first). Too little by the former is a loss, at this restart or the next.
#[must_use]
pub fn refusals(config: &Value, inventory: &PodInventory) -> Vec<Refusal> {
    let mut left = Room::new(allocatable::of_config(config, &inventory.node));
    let mut now = Room::new(allocatable::of_node(&inventory.node));
    let judge = |pod: &&PodSummary| {
        let affinity = match node_affinity::matches(pod, &inventory.node) {
            Some(true) => None,
            Some(false) => Some((Reason::NodeAffinity, Certainty::Refused)),
            None => Some((Reason::NodeAffinity, Certainty::Unknown)),
        };
        let is_misplaced = matches!(affinity, Some((_, Certainty::Refused)));
        let lack = left.lacks(pod).or_else(|| Some((now.lacks(pod)?.0, Certainty::Unknown)));
        if !is_misplaced {
            left.admit(pod);
            now.admit(pod);
        }
        // Others are evicted only for a pod that has nothing else against it.
        let lack = lack.filter(|_| !(is_misplaced && pod.is_critical));
        let (reason, certainty) = [lack, affinity].into_iter().flatten().min_by_key(|(_, certainty)| *certainty)?;
        // It goes anyway, and may have gone before it is looked at; until then it takes its room.
        let certainty = if pod.is_terminating { Certainty::Unknown } else { certainty };
        Some(Refusal { pod: pod.name.clone(), reason, certainty })
    };
    in_order(inventory).iter().filter_map(judge).collect()
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
