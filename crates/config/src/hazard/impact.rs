//! What a change would do to the pods of this node, foreseen from outside the kubelet.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::acknowledge::Acknowledged;
use super::message::bounded;
use super::table::HazardClass;
use super::{effective, quantity};
use crate::pods::{NodeSummary, PodInventory};
use crate::readmission::allocatable::{of_config, places, reserved, reserved_by, threshold};
use crate::readmission::{Certainty, Reason, Refusal, refusals};

/// Pods named in a message.
const NAMED: usize = 10;

/// Of a loss that this change does not bring about, but any restart would.
const ANY_RESTART: &str = "pods";

/// A foreseeable loss.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Impact {
    /// The top-level field that brings it about, and acknowledges it; `pods` if any restart of the kubelet would: nothing is
    /// refused for that.
    pub field: &'static str,
    /// What would happen.
    pub message: String,
    /// The pods that would go; empty if that is the kubelet's choice.
    pub pods: Vec<Refusal>,
}

impl Impact {
    /// `namespace/name` of the pods that would go for all that is known.
    #[must_use]
    pub fn lost(&self) -> Vec<&str> {
        let lost = self.pods.iter().filter(|refusal| refusal.certainty == Certainty::Refused);
        lost.map(|refusal| refusal.pod.as_str()).collect()
    }

    /// False if nobody can say whether any pod would go.
    #[must_use]
    pub fn is_certain(&self) -> bool {
        self.pods.is_empty() || !self.lost().is_empty()
    }

    /// It is this change's doing, for all that is known. What any restart would cost is the node's trouble: a change that was
    /// refused for it on one Node would be bad for a whole pool, and so would the way back.
    fn refuses(&self) -> bool {
        self.field != ANY_RESTART && self.is_certain()
    }
}

/// What a restart of the kubelet from one effective configuration into another would cost; empty where one of them, or
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
    let mut impacts = inventory.map(|inventory| turned_away(old, new, inventory)).unwrap_or_default();
    impacts.extend(too_little_left(old, new, supplies));
    impacts
}

/// The pods that would not be admitted again, by what is to blame.
fn turned_away(old: &Value, new: &Value, inventory: &PodInventory) -> Vec<Impact> {
    let (mut misplaced, mut too_many, mut too_large) = (Vec::new(), Vec::new(), Vec::new());
    for refusal in refusals(new, inventory) {
        match &refusal.reason {
            Reason::NodeAffinity => misplaced.push(refusal),
            Reason::OutOf(resource) | Reason::Preempting(resource) if resource == "pods" => too_many.push(refusal),
            Reason::OutOf(_) | Reason::Preempting(_) => too_large.push(refusal),
        }
    }
    let (left, limit) = places(new, &inventory.node);
    let fewer = places(old, &inventory.node).0 > left;
    let field = if fewer { limit } else { ANY_RESTART };
    let live = inventory.pods.iter().filter(|pod| pod.is_live()).count();
    let (larger, shrinks) = left_for_pods(old, new, &inventory.node);
    let too_many_message = format!("{live} pods run here and {left} places would be left");
    let misplaced_message =
        "their nodeSelector or node affinity does not match the labels that the node has now".to_owned();
    let impacts = [
        (field, too_many_message, too_many),
        (larger, shrinks, too_large),
        (ANY_RESTART, misplaced_message, misplaced),
    ];
    let impacts = impacts.into_iter().filter(|(_, _, pods)| !pods.is_empty());
    impacts.map(|(field, message, pods)| Impact { field, message, pods }).collect()
}

/// What becomes of the room for pods, and the field to blame for it.
fn left_for_pods(old: &Value, new: &Value, node: &NodeSummary) -> (&'static str, String) {
    let fields = raised(old, new, node);
    let Some(field) = fields.first() else {
        return (ANY_RESTART, "they request more than the node has for pods".to_owned());
    };
    let (before, after) = (of_config(old, node), of_config(new, node));
    let amounts = ["cpu", "memory", "ephemeral-storage"].into_iter().filter_map(|resource| {
        let (before, after) = (*before.get(resource)?, *after.get(resource)?);
        let shown = |amount| if resource == "cpu" { format!("{amount}m") } else { quantity::bytes(amount) };
        (before > after).then(|| format!("{resource} from {} to {}", shown(before), shown(after)))
    });
    let mut message = format!("what is left for pods would go down: {}", amounts.collect::<Vec<_>>().join(", "));
    if fields.len() > 1 {
        message = format!("{message} ({})", fields.join(", "));
    }
    (field, message)
}

/// The fields that take more than before.
fn raised(old: &Value, new: &Value, node: &NodeSummary) -> Vec<&'static str> {
    let capacity =
        |resource: &str| node.capacity.get(resource).and_then(|text| quantity::whole(text)).unwrap_or_default();
    let takes = |config: &Value, field: &str| match field {
        // With it the other two say nothing of CPU.
        "reservedSystemCPUs" => vec![reserved(config, "cpu")],
        "evictionHard" => [("memory.available", "memory"), ("nodefs.available", "ephemeral-storage")]
            .map(|(signal, resource)| threshold(config, signal, capacity(resource)).unwrap_or_default())
            .to_vec(),
        _ => ["cpu", "memory", "ephemeral-storage"].map(|resource| reserved_by(config, field, resource)).to_vec(),
    };
    let more =
        |field: &&str| takes(old, field).into_iter().zip(takes(new, field)).any(|(before, after)| after > before);
    let changes = |field: &&str| effective(old, field) != effective(new, field);
    let fields = ["reservedSystemCPUs", "kubeReserved", "systemReserved", "evictionHard"];
    fields.into_iter().filter(changes).filter(more).collect()
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
    let is_open = |impact: &&Impact| impact.refuses() && !acknowledged.covers(impact.field, HazardClass::Pods);
    let open: Vec<&Impact> = impacts.iter().filter(is_open).collect();
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

/// What is told and refuses nothing: what may be lost and may not, and what any restart would cost.
#[must_use]
pub fn told_impact(impacts: &[Impact]) -> Option<String> {
    let open: Vec<&Impact> = impacts.iter().filter(|impact| !impact.refuses()).collect();
    (!open.is_empty()).then(|| bounded(open.into_iter().map(describe), ""))
}

fn describe(impact: &Impact) -> String {
    let text = format!("{}: {}", impact.field, impact.message);
    if impact.pods.is_empty() {
        return text;
    }
    // A pod's name may have 253 characters, its namespace 63; ten of them are too much.
    let mut named: Vec<String> = Vec::new();
    let mut length = 0;
    // Those that are sure first.
    let (sure, unsure): (Vec<_>, Vec<_>) =
        impact.pods.iter().partition(|refusal| refusal.certainty == Certainty::Refused);
    for refusal in sure.into_iter().chain(unsure).take(NAMED) {
        let refusal = refusal.to_string();
        length += refusal.len() + 2;
        if length > 360 && !named.is_empty() {
            break;
        }
        named.push(refusal);
    }
    let more = impact.pods.len().saturating_sub(named.len());
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let would = if impact.is_certain() { "would" } else { "may" };
    format!("{text}; these pods {would} be turned away: {}{more}", named.join(", "))
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
