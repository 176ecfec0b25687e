//! What a node has for its pods, and who finds none of it: requests against what is allocatable, and hard eviction thresholds
//! that are crossed already.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::placement::is_tolerated;
use super::types::{Certainty, Kubelet, Reason, Supplies, Supply};
use crate::hazard::{cpus, effective, quantity};
use crate::pods::{NodeSummary, PodSummary, amount};
use crate::types::Type;

/// Amounts by resource, CPU in millicores, anything else in its own unit; empty if nothing is known.
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

/// What the kubelet looks at first; the first that is short is the reason it gives.
const FIRST: [&str; 4] = ["pods", "cpu", "memory", "ephemeral-storage"];

/// From this version on a kubelet has looked at its runtime, and so knows what is kept back of ephemeral storage, before it says
/// what its Node has (PR 124430; `Run`, pkg/kubelet/kubelet.go, v1.36).
const STORAGE_IS_KNOWN: u64 = 31;

/// What is left while pods are admitted one by one: requests against what the node has (`fitsRequest`,
/// pkg/scheduler/framework/plugins/noderesources/fit.go, by way of GeneralPredicates in v1.20.2 and AdmissionCheck in v1.36).
pub(super) struct Room {
    left: Amounts,
    keeps_storage: bool,
    /// Others were evicted for a critical pod, nobody knows which.
    preempted: bool,
}

impl Room {
    pub(super) fn new(left: Amounts, minor: Option<u64>) -> Self {
        Self { left, keeps_storage: minor.is_some_and(|minor| minor >= STORAGE_IS_KNOWN), preempted: false }
    }

    /// What the pod lacks here.
    pub(super) fn lacks(&self, pod: &PodSummary) -> Option<(Reason, Certainty)> {
        let (resource, certainty) = self.first_short(pod)?;
        if pod.is_critical {
            return Some((Reason::Preempting(resource.to_owned()), certainty));
        }
        let certainty = if self.preempted { Certainty::Unknown } else { certainty };
        Some((Reason::OutOf(resource.to_owned()), certainty))
    }

    /// Takes what the pod requests, if it is admitted.
    pub(super) fn admit(&mut self, pod: &PodSummary) {
        match self.first_short(pod) {
            Some((_, Certainty::Refused)) if !pod.is_critical => return,
            Some((_, Certainty::Refused)) => self.preempted = true,
            _ => {}
        }
        for (resource, amount) in requests(pod) {
            if let Some(left) = self.left.get_mut(resource) {
                *left = left.saturating_sub(amount);
            }
        }
    }

    fn first_short<'a>(&self, pod: &'a PodSummary) -> Option<(&'a str, Certainty)> {
        let short = |(resource, amount): (&'a str, u64)| Some((resource, self.is_short(resource, amount)?));
        requests(pod).filter_map(short).min_by_key(|(_, certainty)| *certainty)
    }

    /// `None` if there is enough.
    fn is_short(&self, resource: &str, amount: u64) -> Option<Certainty> {
        let is_extended = resource.contains('/');
        match self.left.get(resource) {
            Some(left) if amount <= *left => None,
            // Where devices were handed out the kubelet counts these as there (sanitizeNodeAllocatable,
            // pkg/kubelet/cm/devicemanager/manager.go, v1.20.2). Whether they were is not in the API.
            Some(_) if is_extended => Some(Certainty::Unknown),
            // What is kept back of it counts only once the container manager has started; before, the Node says that nothing is
            // (`GetNodeAllocatableReservation`, pkg/kubelet/cm/node_container_manager_linux.go, v1.20.2 and v1.36).
            Some(_) if resource == "ephemeral-storage" && !self.keeps_storage => Some(Certainty::Unknown),
            Some(_) => Some(Certainty::Refused),
            // What no Node has is no matter (removeMissingExtendedResources, pkg/kubelet/lifecycle/predicate.go, v1.20.2).
            // Of a Node that was not seen yet nothing but its places is known.
            None if is_extended || !self.left.contains_key("cpu") => None,
            None => Some(Certainty::Unknown),
        }
    }
}

/// From this version on what a pod does not ask for is no matter (PR 116408). Before, one that asks for anything is refused
/// for each of these that was promised beyond what there is (v1.20.2).
const ZERO_IS_NOTHING: u64 = 28;

/// Resources of which pods may hold more than the Node has: some were admitted by its old allocatable, and the new one came while
/// others were admitted. An old kubelet then refuses even pods that ask for none of it.
pub(super) struct Overcommitted {
    is_refused_for: bool,
    resources: BTreeSet<String>,
}

impl Overcommitted {
    pub(super) fn of(minor: Option<u64>) -> Self {
        let is_refused_for = minor.is_none_or(|minor| minor < ZERO_IS_NOTHING);
        Self { is_refused_for, resources: BTreeSet::new() }
    }

    /// What the pod lacks, of what it asks for or, maybe, does not.
    pub(super) fn note(&mut self, pod: &PodSummary, lack: Option<(Reason, Certainty)>) -> Option<(Reason, Certainty)> {
        if let Some((Reason::OutOf(resource) | Reason::Preempting(resource), _)) = &lack {
            self.resources.extend((self.is_refused_for && resource != "pods").then(|| resource.clone()));
            return lack;
        }
        let is_unasked =
            |resource: &&String| !pod.requests.contains_key(*resource) && FIRST.contains(&resource.as_str());
        let resource = self.resources.iter().find(is_unasked).filter(|_| !pod.requests.is_empty())?;
        Some((Reason::OutOf(resource.clone()), Certainty::Unknown))
    }
}

/// A place, and what the pod asks for, in the kubelet's order.
fn requests(pod: &PodSummary) -> impl Iterator<Item = (&str, u64)> {
    let amount = |name: &'static str| if name == "pods" { Some(1) } else { pod.requests.get(name).copied() };
    let first = FIRST.into_iter().filter_map(move |name| Some((name, amount(name)?)));
    let rest = pod.requests.iter().map(|(name, amount)| (name.as_str(), *amount));
    first.chain(rest.filter(|(name, _)| !FIRST.contains(name)))
}

/// The signal that a kubelet adds by itself: what pods use of the memory that is theirs (addAllocatableThresholds,
/// pkg/kubelet/eviction/helpers.go, v1.20.2 and v1.36).
pub(crate) const ALLOCATABLE_MEMORY: &str = "allocatableMemory.available";

/// The taint of [`Pressure::Memory`], which a pod may tolerate.
const MEMORY_PRESSURE: &str = "node.kubernetes.io/memory-pressure";

/// Since this version a kubelet waits for its Node before it lists its pods (pkg/kubelet/config/apiserver.go, v1.21), a
/// second during which the first pass is made; before, one of both comes first.
const PASS_COMES_FIRST: u64 = 21;

/// A threshold that is crossed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Crossed<'a> {
    /// Its signal.
    pub(crate) signal: &'a str,
    /// What is left.
    pub(crate) available: u64,
    /// What there must be.
    pub(crate) threshold: u64,
}

/// The conditions that the crossed thresholds set, as far as admission tells them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pressure {
    None,
    /// Of memory alone.
    Memory,
    /// Of disks or process ids.
    Any,
}

/// What is crossed for this kubelet.
pub(crate) fn crossed<'a>(kubelet: &Kubelet<'a>) -> Vec<Crossed<'a>> {
    let of = |(signal, supply): (&'a String, &Supply)| {
        let threshold = needed(kubelet, signal, supply.capacity)?;
        let is_crossed = supply.available < threshold;
        is_crossed.then_some(Crossed { signal, available: supply.available, threshold })
    };
    kubelet.supplies.iter().filter_map(of).collect()
}

/// How much of it its threshold asks for.
fn needed(kubelet: &Kubelet<'_>, signal: &str, capacity: u64) -> Option<u64> {
    let config = kubelet.config;
    if signal != ALLOCATABLE_MEMORY {
        return threshold(config, signal, capacity);
    }
    let enforced = effective(config, "enforceNodeAllocatable");
    let is_enforced = enforced.as_array().is_some_and(|all| all.iter().any(|it| it == "pods"));
    // Elsewhere the pods' cgroup is another one than was measured.
    let is_enforced = is_enforced && !kubelet.ignores_eviction && effective(config, "cgroupRoot") == "/";
    let kept = reserved(config, "memory");
    let hard = threshold(config, "memory.available", capacity.saturating_sub(kept));
    hard.filter(|_| is_enforced).map(|hard| hard.saturating_add(kept))
}

/// Signals that this configuration asks more of than the other, and that could not be measured.
pub(crate) fn unmeasured(old: &Value, new: &Value, supplies: &Supplies) -> Vec<String> {
    let (before, after) = (effective(old, "evictionHard"), effective(new, "evictionHard"));
    let nothing = Value::Null;
    let is_new = |signal: &str, text: &Value| !Type::Threshold.is_same(before.get(signal).unwrap_or(&nothing), text);
    let signals = after.as_object().into_iter().flatten().filter(|(signal, text)| is_new(signal, text));
    signals.map(|(signal, _)| signal.clone()).filter(|signal| !supplies.contains_key(signal)).collect()
}

fn pressure(crossed: &[Crossed<'_>]) -> Pressure {
    match crossed {
        [] => Pressure::None,
        all if all.iter().all(|one| one.signal == "memory.available" || one.signal == ALLOCATABLE_MEMORY) => {
            Pressure::Memory
        }
        _ => Pressure::Any,
    }
}

/// Whether the pod is refused as `Evicted`. The eviction manager is asked first at admission (`Admit`,
/// pkg/kubelet/eviction/eviction_manager.go, v1.20.2 and v1.36). Its conditions are lost with the process, and its first
/// pass sets them again at once.
pub(crate) fn evicts(pod: &PodSummary, kubelet: &Kubelet<'_>) -> Option<Certainty> {
    let tolerates = || is_tolerated(&pod.tolerations, MEMORY_PRESSURE, "", "NoSchedule");
    let refused = match pressure(&crossed(kubelet)) {
        Pressure::None => false,
        Pressure::Memory => pod.is_best_effort && tolerates() != Some(true),
        Pressure::Any => true,
    };
    let is_sure = kubelet.minor.is_some_and(|minor| minor >= PASS_COMES_FIRST);
    (refused && !pod.is_critical).then_some(if is_sure { Certainty::Refused } else { Certainty::Unknown })
}
