//! What a node has for its pods, by resource: CPU in millicores, anything else in its own unit.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::hazard::{cpus, effective, quantity};
use crate::pods::{NodeSummary, amount};
use crate::readmission::Kubelet;

/// Amounts by resource; empty if nothing is known.
pub(crate) type Amounts = BTreeMap<String, u64>;

/// The resources that a reservation may name (validateReservedResources, pkg/kubelet/apis/config/validation, v1.20.2), and
/// the hard eviction threshold that is kept beside it.
const RESERVABLE: [(&str, Option<&str>); 3] =
    [("cpu", None), ("memory", Some("memory.available")), ("ephemeral-storage", Some("nodefs.available"))];

/// As the Node has it now.
pub(crate) fn of_node(node: &NodeSummary) -> Amounts {
    amounts(&node.allocatable)
}

/// As this kubelet would set it: capacity without reservations and hard eviction thresholds, memory
/// without huge pages too (GetNodeAllocatableReservation, pkg/kubelet/cm/node_container_manager_linux.go; `MachineInfo`,
/// pkg/kubelet/nodestatus/setters.go, v1.20.2 and v1.36). What device plugins and others offer is not the configuration's.
pub(crate) fn of_kubelet(kubelet: &Kubelet<'_>, node: &NodeSummary) -> Amounts {
    let config = kubelet.config;
    let capacity = amounts(&node.capacity);
    let mut left = capacity.clone();
    for (name, amount) in amounts(&node.allocatable).into_iter().filter(|(name, _)| name.contains('/')) {
        left.insert(name, amount);
    }
    for (resource, signal) in RESERVABLE {
        let Some(all) = left.get_mut(resource) else { continue };
        let kept = signal.map(|signal| kept_for_eviction(kubelet, signal, *all)).unwrap_or_default();
        *all = all.saturating_sub(reserved(config, resource)).saturating_sub(kept);
    }
    let huge: u64 = capacity
        .iter()
        .filter(|(name, _)| name.starts_with("hugepages-"))
        .fold(0, |sum, (_, size)| sum.saturating_add(*size));
    if let Some(memory) = left.get_mut("memory") {
        *memory = memory.saturating_sub(huge);
    }
    left.insert("pods".to_owned(), places(config, node).0);
    left
}

fn amounts(texts: &BTreeMap<String, String>) -> Amounts {
    texts.iter().filter_map(|(name, text)| Some((name.clone(), amount(name, text)?))).collect()
}

/// Places for pods, and the field that limits them (MachineInfo, pkg/kubelet/nodestatus/setters.go, v1.20.2).
pub(crate) fn places(config: &Value, node: &NodeSummary) -> (u64, &'static str) {
    // A negative number keeps the kubelet from starting; the preflight sees to that.
    let number = |field| effective(config, field).as_u64();
    let most = number("maxPods").unwrap_or(u64::MAX);
    let cores = node.capacity.get("cpu").and_then(|cpu| quantity::millis(cpu)).map(|millis| millis / 1000);
    match (number("podsPerCore").filter(|per_core| *per_core > 0), cores) {
        (Some(per_core), Some(cores)) if per_core.saturating_mul(cores) < most => {
            (per_core.saturating_mul(cores), "podsPerCore")
        }
        _ => (most, "maxPods"),
    }
}

/// What is kept from pods by reservations; `reservedSystemCPUs` stands for both of CPU (NewKubeletServer's run,
/// cmd/kubelet/app/server.go, v1.20.2).
pub(crate) fn reserved(config: &Value, resource: &str) -> u64 {
    let pinned = effective(config, "reservedSystemCPUs").as_str().and_then(cpus).filter(|cpus| !cpus.is_empty());
    match pinned {
        Some(cpus) if resource == "cpu" => u64::try_from(cpus.len()).unwrap_or(u64::MAX).saturating_mul(1000),
        _ => ["kubeReserved", "systemReserved"]
            .map(|field| reserved_by(config, field, resource))
            .into_iter()
            .fold(0, u64::saturating_add),
    }
}

/// What one of the two fields says.
pub(crate) fn reserved_by(config: &Value, field: &str, resource: &str) -> u64 {
    let list = effective(config, field);
    list.get(resource).and_then(Value::as_str).and_then(|text| amount(resource, text)).unwrap_or_default()
}

/// What is kept from pods by a hard eviction threshold, of this capacity (cmd/kubelet/app/server.go, v1.20.2 and v1.36).
pub(crate) fn kept_for_eviction(kubelet: &Kubelet<'_>, signal: &str, capacity: u64) -> u64 {
    let kept = threshold(kubelet.config, signal, capacity).filter(|_| !kubelet.ignores_eviction);
    kept.unwrap_or_default()
}

/// A hard eviction threshold, of this capacity.
pub(crate) fn threshold(config: &Value, signal: &str, capacity: u64) -> Option<u64> {
    let thresholds = effective(config, "evictionHard");
    let text = thresholds.get(signal)?.as_str()?;
    let Some(percent) = text.strip_suffix('%') else { return quantity::whole(text) };
    if percent == "100" {
        return None; // off, as 0% (parseThresholdStatement, pkg/kubelet/eviction/helpers.go, v1.20.2)
    }
    let tenths_of_permille = quantity::millis(percent)?; // thousandths of a percent
    let share = u128::from(capacity) * u128::from(tenths_of_permille) / 100_000;
    u64::try_from(share).ok()
}
