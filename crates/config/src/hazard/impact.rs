//! What a change would do to the pods of this node, foreseen from outside the kubelet.

use std::collections::BTreeSet;

use serde_json::Value;

use super::acknowledge::Acknowledged;
use super::message::bounded;
use super::table::HazardClass;
use super::{effective, quantity};
use crate::bounds::first_of;
use crate::pods::{NodeSummary, PodInventory};
use crate::readmission::room::{
    ALLOCATABLE_MEMORY, Crossed, crossed, evicts, kept_for_eviction, of_kubelet, places, reserved, reserved_by,
    unmeasured,
};
use crate::readmission::{Certainty, Kubelet, Reason, Refusal, refusals};

/// Pods named in a message.
const NAMED: usize = 10;

/// Of a loss that this change does not bring about, but any restart would.
const ANY_RESTART: &str = "pods";

/// A foreseeable loss.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Impact {
    /// The top-level field that brings it about, and acknowledges it; `pods` if any restart of the kubelet would: nothing is
    /// refused for that, and only what has changed about the Node since (labels, taints) is waited for.
    pub field: &'static str,
    /// What would happen.
    pub message: String,
    /// The pods that would go; the kubelet may choose others beside them.
    pub pods: Vec<Refusal>,
    /// False if nobody can say whether any pod would go.
    pub is_certain: bool,
}

impl Impact {
    /// `namespace/name` of the pods that would go for all that is known.
    #[must_use]
    pub fn lost(&self) -> Vec<&str> {
        let lost = self.pods.iter().filter(|refusal| refusal.certainty == Certainty::Refused);
        lost.map(|refusal| refusal.pod.as_str()).collect()
    }

    /// Any restart of the kubelet would cost these.
    #[must_use]
    pub fn is_of_any_restart(&self) -> bool {
        self.field == ANY_RESTART
    }

    /// It is this change's doing, for all that is known. What any restart would cost is the node's trouble: a change that was
    /// refused for it on one Node would be bad for a whole pool, and so would the way back.
    fn refuses(&self) -> bool {
        !self.is_of_any_restart() && self.is_certain
    }
}

/// What it would cost to restart the kubelet `old` as `new`; empty where the configuration of one of them, or the node,
/// is not known.
#[must_use]
pub fn preview(old: &Kubelet<'_>, new: &Kubelet<'_>, inventory: Option<&PodInventory>) -> Vec<Impact> {
    if !old.config.is_object() || !new.config.is_object() {
        return Vec::new();
    }
    let refused = inventory.map(|inventory| refusals(new, inventory)).unwrap_or_default();
    let evicted: Vec<Refusal> = refused.iter().filter(|refusal| refusal.reason == Reason::Evicted).cloned().collect();
    let refused_today = inventory.map(|inventory| refusals(old, inventory)).unwrap_or_default();
    // Those that the kubelet of today would not refuse for the same. What the Node has against a pod is the same for both.
    let is_new = |refusal: &Refusal| match refusal.reason {
        Reason::OutOf(_) | Reason::Preempting(_) => !refused_today.contains(refusal),
        Reason::Evicted => {
            let pod = inventory.and_then(|inventory| inventory.pods.iter().find(|pod| pod.name == refusal.pod));
            pod.is_some_and(|pod| evicts(pod, old).is_none())
        }
        Reason::NodeAffinity | Reason::TaintToleration => false,
    };
    let mut impacts = inventory.map(|known| turned_away(old, new, known, refused, &is_new)).unwrap_or_default();
    impacts.extend(under_pressure(old, new, evicted.into_iter().partition(is_new)));
    impacts.extend(not_measured(old, new));
    impacts
}

fn impact(field: &'static str, message: String, pods: Vec<Refusal>) -> Impact {
    let is_certain = pods.iter().any(|refusal| refusal.certainty == Certainty::Refused);
    Impact { field, message, pods, is_certain }
}

/// The pods that would not be admitted again, by what is to blame.
fn turned_away(
    old: &Kubelet<'_>,
    new: &Kubelet<'_>,
    inventory: &PodInventory,
    refused: Vec<Refusal>,
    is_new: &impl Fn(&Refusal) -> bool,
) -> Vec<Impact> {
    let mut impacts: Vec<Impact> = Vec::new();
    for refusal in refused {
        let Some((field, message)) = blame(old, new, inventory, &refusal, is_new) else { continue };
        match impacts.iter_mut().find(|impact| impact.field == field && impact.message == message) {
            Some(impact) => impact.pods.push(refusal),
            None => impacts.push(Impact { field, message, pods: vec![refusal], is_certain: false }),
        }
    }
    impacts.into_iter().map(|impact| self::impact(impact.field, impact.message, impact.pods)).collect()
}

/// The field to blame, and how; `None` for what is told with its threshold.
fn blame(
    old: &Kubelet<'_>,
    new: &Kubelet<'_>,
    inventory: &PodInventory,
    refusal: &Refusal,
    is_new: &impl Fn(&Refusal) -> bool,
) -> Option<(&'static str, String)> {
    let anyway = |message: &str| Some((ANY_RESTART, message.to_owned()));
    match &refusal.reason {
        Reason::OutOf(resource) | Reason::Preempting(resource) if resource == "pods" => {
            let (field, message) = too_many(old, new, inventory);
            Some((if is_new(refusal) { field } else { ANY_RESTART }, message))
        }
        Reason::OutOf(_) | Reason::Preempting(_) if !is_new(refusal) => anyway(TOO_LITTLE),
        Reason::OutOf(resource) | Reason::Preempting(resource) => {
            Some(left_for_pods(old, new, &inventory.node, resource))
        }
        Reason::Evicted => None,
        Reason::NodeAffinity => {
            anyway("their nodeSelector or node affinity does not match the labels that the node has now")
        }
        Reason::TaintToleration => anyway("they do not tolerate a NoExecute taint that the node has now"),
    }
}

const TOO_LITTLE: &str = "they request more than the node has for pods";

/// More pods than places.
fn too_many(old: &Kubelet<'_>, new: &Kubelet<'_>, inventory: &PodInventory) -> (&'static str, String) {
    let (left, limit) = places(new.config, &inventory.node);
    let is_fewer = places(old.config, &inventory.node).0 > left;
    let live = inventory.pods.iter().filter(|pod| pod.is_live()).count();
    (if is_fewer { limit } else { ANY_RESTART }, format!("{live} pods run here and {left} places would be left"))
}

/// What becomes of the room for pods, and the field to blame for what is lacking of this resource.
fn left_for_pods(old: &Kubelet<'_>, new: &Kubelet<'_>, node: &NodeSummary, resource: &str) -> (&'static str, String) {
    let fields = raised(old, new, node, resource);
    let Some(field) = fields.first() else {
        return (ANY_RESTART, TOO_LITTLE.to_owned());
    };
    let (before, after) = (of_kubelet(old, node), of_kubelet(new, node));
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

/// The fields that take more of this resource than before.
fn raised(old: &Kubelet<'_>, new: &Kubelet<'_>, node: &NodeSummary, resource: &str) -> Vec<&'static str> {
    let capacity = node.capacity.get(resource).and_then(|text| quantity::whole(text)).unwrap_or_default();
    let signal = match resource {
        "memory" => "memory.available",
        "ephemeral-storage" => "nodefs.available",
        _ => "",
    };
    let takes = |kubelet: &Kubelet<'_>, field: &str| match field {
        // With it the other two say nothing of CPU.
        "reservedSystemCPUs" if resource == "cpu" => reserved(kubelet.config, "cpu"),
        "reservedSystemCPUs" => 0,
        "evictionHard" => kept_for_eviction(kubelet, signal, capacity),
        _ => reserved_by(kubelet.config, field, resource),
    };
    let more = |field: &&str| takes(new, field) > takes(old, field);
    // A threshold is kept for the first time where a flag goes that had it ignored.
    let is_heeded = |field: &str| field == "evictionHard" && old.ignores_eviction;
    let changes = |field: &&str| is_heeded(field) || effective(old.config, field) != effective(new.config, field);
    let fields = ["reservedSystemCPUs", "kubeReserved", "systemReserved", "evictionHard"];
    fields.into_iter().filter(changes).filter(more).collect()
}

/// Thresholds that are crossed already: the new ones with the pods that go for them, and those that any restart meets.
fn under_pressure(
    old: &Kubelet<'_>,
    new: &Kubelet<'_>,
    (mut lost, lost_anyway): (Vec<Refusal>, Vec<Refusal>),
) -> Vec<Impact> {
    let before = crossed(old);
    let was_crossed = |one: &Crossed<'_>| before.iter().any(|known| known.signal == one.signal);
    let (standing, newly_crossed): (Vec<_>, Vec<_>) = crossed(new).into_iter().partition(was_crossed);
    let mut by_field: Vec<(&'static str, Vec<Crossed<'_>>)> = Vec::new();
    for one in newly_crossed {
        let field = to_blame(&one, old.config, new.config);
        match by_field.iter_mut().find(|(known, _)| *known == field) {
            Some((_, all)) => all.push(one),
            None => by_field.push((field, vec![one])),
        }
    }
    let mut impacts = Vec::new();
    for (field, all) in by_field {
        let message = format!("would evict pods at once: {}", told(&all, "the new threshold"));
        // It evicts, be it not known whom.
        impacts.push(Impact { field, message, pods: std::mem::take(&mut lost), is_certain: true });
    }
    if !lost_anyway.is_empty() {
        let message = format!("the node is under pressure: {}", told(&standing, "the threshold"));
        impacts.push(impact(ANY_RESTART, message, lost_anyway));
    }
    impacts
}

/// The field that a threshold is crossed for.
fn to_blame(crossed: &Crossed<'_>, old: &Value, new: &Value) -> &'static str {
    let more = |field: &&str| reserved_by(new, field, "memory") > reserved_by(old, field, "memory");
    let reserved = ["kubeReserved", "systemReserved"].into_iter().find(more);
    reserved.filter(|_| crossed.signal == ALLOCATABLE_MEMORY).unwrap_or("evictionHard")
}

fn told(crossed: &[Crossed<'_>], threshold: &str) -> String {
    let told = |one: &Crossed<'_>| {
        let is_bytes = one.signal.ends_with(".available") && one.signal != "pid.available";
        let amount = |count: u64| if is_bytes { quantity::bytes(count) } else { count.to_string() };
        format!("{} is {}, {threshold} {}", one.signal, amount(one.available), amount(one.threshold))
    };
    crossed.iter().map(told).collect::<Vec<_>>().join("; ")
}

/// Thresholds that are new and that nobody can judge. Where nothing is measured at all that is known.
fn not_measured(old: &Kubelet<'_>, new: &Kubelet<'_>) -> Vec<Impact> {
    if new.supplies.is_empty() {
        return Vec::new();
    }
    let of = |signal: &str| {
        let message = format!("whether its threshold of {signal} is crossed cannot be measured here");
        impact("evictionHard", message, Vec::new())
    };
    unmeasured(old.config, new.config, new.supplies).iter().map(|signal| of(signal)).collect()
}

/// Why this must not be done yet, unless it is acknowledged.
#[must_use]
pub fn refused_impact(impacts: &[Impact], acknowledged: &Acknowledged<'_>) -> Option<String> {
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

/// The pods that any restart would cost for what has changed about the Node since they were admitted. Left out is what a pod
/// that runs speaks against (its kubelet has let it in with the same configuration), room, which we only compute, and what a
/// threshold turns away, which is the Node's pressure.
#[must_use]
pub fn lost_to_any_restart(impacts: &[Impact]) -> Vec<&Refusal> {
    let is_of_node = |reason: &Reason| matches!(reason, Reason::NodeAffinity | Reason::TaintToleration);
    let is_sure = |refusal: &&Refusal| refusal.certainty == Certainty::Refused && is_of_node(&refusal.reason);
    impacts.iter().filter(|impact| impact.is_of_any_restart()).flat_map(|impact| &impact.pods).filter(is_sure).collect()
}

/// True if this annotation accepts such a loss.
#[must_use]
pub fn accepts_any_restart(acknowledged: Option<&str>) -> bool {
    Acknowledged::parse(acknowledged).covers(ANY_RESTART, HazardClass::Pods)
}

/// What is told and refuses nothing: what may be lost and may not, and what any restart would cost.
#[must_use]
pub fn told_impact(impacts: &[Impact]) -> Option<String> {
    describe_all(impacts.iter().filter(|impact| !impact.refuses()).collect())
}

/// All that may be lost, where nothing is refused.
#[must_use]
pub fn whole_impact(impacts: &[Impact]) -> Option<String> {
    describe_all(impacts.iter().collect())
}

fn describe_all(impacts: Vec<&Impact>) -> Option<String> {
    (!impacts.is_empty()).then(|| bounded(impacts.into_iter().map(describe), ""))
}

fn describe(impact: &Impact) -> String {
    let text = format!("{}: {}", impact.field, impact.message);
    if impact.pods.is_empty() {
        return text;
    }
    // Those that are sure first.
    let (sure, unsure): (Vec<_>, Vec<_>) =
        impact.pods.iter().partition(|refusal| refusal.certainty == Certainty::Refused);
    let pods: Vec<String> = sure.into_iter().chain(unsure).map(ToString::to_string).collect();
    // A pod's name may have 253 characters, its namespace 63; ten of them are too much.
    let lengths = pods.iter().take(NAMED).scan(0, |length, pod| {
        *length += pod.len() + 2;
        Some(*length)
    });
    let fit = lengths.take_while(|length| *length <= 360).count().max(1);
    let would = if impact.is_certain { "would" } else { "may" };
    format!("{text}; these pods {would} be turned away: {}", first_of(&pods, fit))
}

#[cfg(test)]
mod tests;
