//! Hard eviction thresholds that are crossed already. The eviction manager is asked first at admission (`Admit`,
//! pkg/kubelet/eviction/eviction_manager.go, v1.20.2 and v1.36). Its conditions are lost with the process, and its first
//! pass sets them again at once.

use serde_json::Value;

use super::allocatable::{reserved, threshold};
use super::kubelet::{Kubelet, Supplies, Supply};
use super::refusal::Certainty;
use super::taints::is_tolerated;
use crate::hazard::effective;
use crate::pods::PodSummary;

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
pub(crate) fn unmeasured<'a>(old: &Value, new: &'a Value, supplies: &Supplies) -> Vec<&'a str> {
    let (before, after) = (effective(old, "evictionHard"), new.get("evictionHard").and_then(Value::as_object));
    let is_new = |signal: &&'a String, text: &Value| before.get(signal.as_str()) != Some(text);
    let signals = after.into_iter().flatten().filter(|(signal, text)| is_new(signal, text));
    signals.map(|(signal, _)| signal.as_str()).filter(|signal| !supplies.contains_key(*signal)).collect()
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

/// Whether the pod is refused as `Evicted`.
pub(crate) fn refuses(pod: &PodSummary, kubelet: &Kubelet<'_>) -> Option<Certainty> {
    let tolerates = || is_tolerated(&pod.tolerations, MEMORY_PRESSURE, "", "NoSchedule");
    let refused = match pressure(&crossed(kubelet)) {
        Pressure::None => false,
        Pressure::Memory => pod.is_best_effort && tolerates() != Some(true),
        Pressure::Any => true,
    };
    let certainty = match kubelet.minor {
        Some(PASS_COMES_FIRST..) => Certainty::Refused,
        _ => Certainty::Unknown,
    };
    (refused && !pod.is_critical).then_some(certainty)
}
