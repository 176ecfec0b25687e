//! What a change would do to the pods of this node, foreseen from outside the kubelet.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::acknowledge::Acknowledged;
use super::effective::effective;
use super::message::bounded;
use super::quantity;
use super::table::HazardClass;
use crate::pods::{PodInventory, PodSummary};

/// Pods named in a message.
const NAMED: usize = 10;

/// A foreseeable loss.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Impact {
    /// The top-level field that brings it about, and acknowledges it.
    pub field: &'static str,
    /// What would happen.
    pub message: String,
    /// `namespace/name` of the pods that would go; empty if that is the kubelet's choice.
    pub pods: Vec<String>,
}

/// What going from one effective configuration to another would cost; empty where one of them, or
/// the node, is not known.
#[must_use]
pub fn preview(
    old: &Value,
    new: &Value,
    inventory: Option<&PodInventory>,
    supplies: &BTreeMap<String, Supply>,
) -> Vec<Impact> {
    if !old.is_object() || !new.is_object() {
        return Vec::new();
    }
    let mut impacts = Vec::new();
    if let Some(inventory) = inventory {
        let pods = by_age(inventory);
        impacts.extend(too_many(old, new, inventory, &pods));
        impacts.extend(too_large(old, new, inventory, &pods));
    }
    impacts.extend(too_little_left(old, new, supplies));
    impacts
}

/// The live pods in the order in which a restarted kubelet admits them: oldest first
/// (HandlePodAdditions, pkg/kubelet/kubelet.go, v1.20.2).
fn by_age(inventory: &PodInventory) -> Vec<&PodSummary> {
    let mut pods: Vec<&PodSummary> = inventory.pods.iter().filter(|pod| pod.is_live()).collect();
    pods.sort_by_key(|pod| (&pod.created, &pod.name));
    pods
}

fn names(pods: &[&PodSummary]) -> Vec<String> {
    pods.iter().map(|pod| pod.name.clone()).collect()
}

fn too_many(old: &Value, new: &Value, inventory: &PodInventory, pods: &[&PodSummary]) -> Option<Impact> {
    let ((before, _), (after, field)) = (pod_capacity(old, inventory), pod_capacity(new, inventory));
    let pod_capacity = usize::try_from(after).ok()?;
    if after >= before || pods.len() <= pod_capacity {
        return None;
    }
    let gone = pods.get(pod_capacity..).unwrap_or_default();
    Some(Impact {
        field,
        message: format!("{} pods run here and {after} places would be left", pods.len()),
        pods: names(gone),
    })
}

/// Places for pods, and the field that limits them (MachineInfo, pkg/kubelet/nodestatus/setters.go,
/// v1.20.2).
fn pod_capacity(config: &Value, inventory: &PodInventory) -> (u64, &'static str) {
    // A negative number keeps the kubelet from starting; the preflight sees to that.
    let number = |field| effective(config, field).as_u64();
    let most = number("maxPods").unwrap_or(u64::MAX);
    let cores = inventory.capacity.get("cpu").and_then(|cpu| quantity::millis(cpu)).map(|millis| millis / 1000);
    match (number("podsPerCore").filter(|per_core| *per_core > 0), cores) {
        (Some(per_core), Some(cores)) if per_core.saturating_mul(cores) < most => {
            (per_core.saturating_mul(cores), "podsPerCore")
        }
        _ => (most, "maxPods"),
    }
}

/// What pods may request: millicores and bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Allocatable {
    cpu: u64,
    memory: u64,
}

fn allocatable(config: &Value, inventory: &PodInventory) -> Option<Allocatable> {
    let all = Allocatable {
        cpu: quantity::millis(inventory.capacity.get("cpu")?)?,
        memory: quantity::whole(inventory.capacity.get("memory")?)?,
    };
    let cpu = |field| reserved(config, field, "cpu", quantity::millis);
    let memory = |field| reserved(config, field, "memory", quantity::whole);
    let threshold = threshold(config, "memory.available", all.memory).unwrap_or_default();
    Some(Allocatable {
        cpu: all.cpu.saturating_sub(cpu("kubeReserved")).saturating_sub(cpu("systemReserved")),
        memory: all
            .memory
            .saturating_sub(memory("kubeReserved"))
            .saturating_sub(memory("systemReserved"))
            .saturating_sub(threshold),
    })
}

fn reserved(config: &Value, field: &str, resource: &str, read: fn(&str) -> Option<u64>) -> u64 {
    effective(config, field).get(resource).and_then(Value::as_str).and_then(read).unwrap_or_default()
}

/// A hard eviction threshold, of this capacity.
fn threshold(config: &Value, signal: &str, capacity: u64) -> Option<u64> {
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

fn too_large(old: &Value, new: &Value, inventory: &PodInventory, pods: &[&PodSummary]) -> Option<Impact> {
    let (before, after) = (allocatable(old, inventory)?, allocatable(new, inventory)?);
    if after.cpu >= before.cpu && after.memory >= before.memory {
        return None;
    }
    let stayed_out: BTreeSet<&str> = turned_away(pods, before).iter().map(|pod| pod.name.as_str()).collect();
    let gone: Vec<&PodSummary> =
        turned_away(pods, after).into_iter().filter(|pod| !stayed_out.contains(pod.name.as_str())).collect();
    if gone.is_empty() {
        return None;
    }
    let mut message = format!(
        "what is left for pods would go down from {}m CPU and {} memory to {}m and {}",
        before.cpu,
        quantity::bytes(before.memory),
        after.cpu,
        quantity::bytes(after.memory)
    );
    let fields = raised(old, new, inventory);
    if fields.len() > 1 {
        message = format!("{message} ({})", fields.join(", "));
    }
    Some(Impact { field: fields.first().copied().unwrap_or("kubeReserved"), message, pods: names(&gone) })
}

/// The fields that take more than before.
fn raised(old: &Value, new: &Value, inventory: &PodInventory) -> Vec<&'static str> {
    let takes = |config: &Value, field: &str| {
        if field == "evictionHard" {
            let capacity =
                inventory.capacity.get("memory").and_then(|memory| quantity::whole(memory)).unwrap_or_default();
            return (0, threshold(config, "memory.available", capacity).unwrap_or_default());
        }
        (reserved(config, field, "cpu", quantity::millis), reserved(config, field, "memory", quantity::whole))
    };
    let more = |field: &&str| {
        let ((old_cpu, old_memory), (new_cpu, new_memory)) = (takes(old, field), takes(new, field));
        new_cpu > old_cpu || new_memory > old_memory
    };
    ["kubeReserved", "systemReserved", "evictionHard"].into_iter().filter(more).collect()
}

/// Admits the pods in order, each where it fits beside those before it.
fn turned_away<'a>(pods: &[&'a PodSummary], allocatable: Allocatable) -> Vec<&'a PodSummary> {
    let mut left = allocatable;
    let mut away = Vec::new();
    for pod in pods {
        if pod.cpu_millis <= left.cpu && pod.memory <= left.memory {
            left = Allocatable { cpu: left.cpu - pod.cpu_millis, memory: left.memory - pod.memory };
        } else {
            away.push(*pod);
        }
    }
    away
}

fn too_little_left(old: &Value, new: &Value, supplies: &BTreeMap<String, Supply>) -> Vec<Impact> {
    let crossed = |(signal, supply): (&String, &Supply)| {
        let after = threshold(new, signal, supply.capacity)?;
        let before = threshold(old, signal, supply.capacity).unwrap_or_default();
        if after <= before || supply.available >= after || supply.available < before {
            return None;
        }
        let amount = |count: u64| {
            let is_bytes = signal.ends_with(".available") && signal != "pid.available";
            if is_bytes { quantity::bytes(count) } else { count.to_string() }
        };
        let (available, after) = (amount(supply.available), amount(after));
        Some(Impact {
            field: "evictionHard",
            message: format!("would evict pods at once: {signal} is {available}, the new threshold {after}"),
            pods: Vec::new(),
        })
    };
    supplies.iter().filter_map(crossed).collect()
}

/// Why this must not be done yet, unless the annotation's text acknowledges it.
#[must_use]
pub fn refused_impact(impacts: &[Impact], acknowledged: Option<&str>) -> Option<String> {
    let acknowledged = Acknowledged::parse(acknowledged);
    let open: Vec<&Impact> =
        impacts.iter().filter(|impact| !acknowledged.covers(impact.field, HazardClass::Pods)).collect();
    if open.is_empty() {
        return None;
    }
    let fields: BTreeSet<&str> = open.iter().map(|impact| impact.field).collect();
    let advice = acknowledged.advice(&fields, &BTreeSet::from([HazardClass::Pods.label()]), &|_| false);
    let move_away = if open.iter().any(|impact| !impact.pods.is_empty()) {
        "move these pods away (drain them)"
    } else {
        "make room (drain the node)"
    };
    let items = open.iter().map(|impact| describe(impact));
    Some(bounded(items, &format!("; {move_away}, then run kubelet-supervisor retry on the node, or {advice}")))
}

fn describe(impact: &Impact) -> String {
    let mut text = format!("{}: {}", impact.field, impact.message);
    let mut pods = impact.pods.iter().take(NAMED).peekable();
    if pods.peek().is_some() {
        // A pod's name may have 253 characters, its namespace 63; ten of them are too much.
        let mut named: Vec<&str> = Vec::new();
        let mut length = 0;
        for pod in pods {
            length += pod.len() + 2;
            if length > 360 && !named.is_empty() {
                break;
            }
            named.push(pod);
        }
        text = format!("{text}; these pods would be turned away: {}", named.join(", "));
        let more = impact.pods.len().saturating_sub(named.len());
        if more > 0 {
            text = format!("{text} and {more} more");
        }
    }
    text
}

/// An amount of something that runs out, as eviction thresholds name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Supply {
    /// What is left.
    pub available: u64,
    /// What there is in all.
    pub capacity: u64,
}

#[cfg(test)]
mod tests;
