//! CPU, memory and topology managers. Containers in a state file keep what they have, but are judged again, by what only the
//! kubelet knows: the machine's cores, and who sits on which.

use serde_json::Value;

use super::allocatable::reserved;
use super::kubelet::Kubelet;
use super::refusal::Certainty;
use crate::hazard::{effective, quantity};
use crate::pods::{PodInventory, PodSummary};

/// The first minor version with `cpuManagerPolicyOptions`.
const OPTIONS_SINCE: u64 = 22;

/// Hardware threads of a core. How many there are is not in the API; with one, an odd number of CPUs is said to be at risk
/// though it is not.
const THREADS: u64 = 2;

/// CPUs that are free for sure under this configuration while all pods run.
fn free_cpus(config: &Value, inventory: &PodInventory) -> u64 {
    let all = inventory.node.capacity.get("cpu").and_then(|cpu| quantity::whole(cpu)).unwrap_or_default();
    let live = inventory.pods.iter().filter(|pod| pod.is_live());
    let taken = live.flat_map(|pod| &pod.exclusive_cpus).fold(0, |sum: u64, cpus| sum.saturating_add(*cpus));
    // Threads beside a reserved CPU are nobody's.
    let kept = reserved(config, "cpu").div_ceil(1000).saturating_mul(THREADS);
    all.saturating_sub(taken).saturating_sub(kept)
}

/// Whether the pod may be refused as `SMTAlignmentError`. Whole cores are asked for before the kubelet looks what the
/// container has (`Allocate`, pkg/kubelet/cm/cpumanager/policy_static.go, v1.36; issue 129078): as many as it has must be free
/// beside them.
pub(super) fn misaligns(pod: &PodSummary, kubelet: &Kubelet<'_>, inventory: &PodInventory) -> Option<Certainty> {
    let options = effective(kubelet.config, "cpuManagerPolicyOptions");
    let option = options.get("full-pcpus-only").and_then(Value::as_str).unwrap_or_default();
    let wants_cores = matches!(option, "1" | "t" | "T" | "TRUE" | "true" | "True"); // strconv.ParseBool
    let is_asked = pins_cpus(kubelet) && wants_cores && kubelet.minor.is_none_or(|minor| minor >= OPTIONS_SINCE);
    if !is_asked {
        return None;
    }
    let free = free_cpus(kubelet.config, inventory);
    let may_lack = |cpus: &u64| *cpus > free || !cpus.is_multiple_of(THREADS);
    pod.exclusive_cpus.iter().any(may_lack).then_some(Certainty::Unknown)
}

/// Whether the pod may be refused as `TopologyAffinityError`: where its CPUs and memory are is held against the policy
/// (`Merge`, pkg/kubelet/cm/topologymanager/policy_restricted.go and policy_single_numa_node.go, v1.20.2 and v1.36).
pub(super) fn is_spread(pod: &PodSummary, kubelet: &Kubelet<'_>) -> Option<Certainty> {
    let policy = effective(kubelet.config, "topologyManagerPolicy");
    let is_strict = policy == "restricted" || policy == "single-numa-node";
    let has_own_cpus = pins_cpus(kubelet) && !pod.exclusive_cpus.is_empty();
    let has_own_memory = effective(kubelet.config, "memoryManagerPolicy") == "Static" && pod.is_guaranteed;
    (is_strict && (has_own_cpus || has_own_memory)).then_some(Certainty::Unknown)
}

fn pins_cpus(kubelet: &Kubelet<'_>) -> bool {
    effective(kubelet.config, "cpuManagerPolicy") == "static"
}
