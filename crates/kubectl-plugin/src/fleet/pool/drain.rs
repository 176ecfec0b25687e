//! What has to leave a node before it gets another configuration, and what may not be made to leave: as `kubectl drain
//! --ignore-daemonsets` judges it (Kubernetes 1.20, `pkg/drain/filters.go`).

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use super::types::DrainMode;
use kubelet_config::pods::MIRROR;

/// Annotation of a Node that was cordoned for a pool: `pool/` and the pool's name. It comes and goes in the same patch as
/// `spec.unschedulable`, so that whoever takes over knows whose cordon it is. A value of another form is not a pool's.
pub const CORDONED_BY: &str = "kubelet-supervisor.io/cordoned-by-rollout";

/// What stands in [`CORDONED_BY`] before the pool's name. A pool that was deleted is told from what is no pool by it.
const PREFIX: &str = "pool/";

/// An eviction that was granted shows within moments; if it does not, its answer was meant for somebody else.
const SHOWS: Duration = Duration::from_secs(10);
/// A disruption budget that says no is asked again after this (kubectl: 5 s), then after twice as long, up to
const PAUSE_FIRST: Duration = Duration::from_secs(5);
/// this.
const PAUSE_MAX: Duration = Duration::from_secs(40);

/// Who cordoned a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Cordon {
    /// Nobody: Pods may come.
    #[default]
    No,
    /// Nobody any more; the pool's annotation was left.
    Stale,
    /// This pool.
    Ours,
    /// Another pool, which has the node no more.
    Former,
    /// An administrator. It is for him to end it.
    Theirs,
}

impl Cordon {
    /// `by`: what stands in [`CORDONED_BY`].
    pub(crate) fn new(unschedulable: bool, by: Option<&str>, pool: &str) -> Self {
        match (unschedulable, by.and_then(cordoning_pool)) {
            (true, Some(by)) if by == pool => Self::Ours,
            (true, Some(_)) => Self::Former,
            (true, None) => Self::Theirs,
            (false, Some(by)) if by == pool => Self::Stale,
            (false, _) => Self::No,
        }
    }

    /// No Pods come, and it will stay so until the pool or an administrator ends it.
    pub(crate) fn holds(self) -> bool {
        matches!(self, Self::Ours | Self::Theirs)
    }

    /// The patch of a Node of this resourceVersion that cordons it for a pool; without one, that ends it.
    pub(crate) fn patch(pool: Option<&str>, version: &str) -> Value {
        let by = pool.map(|pool| format!("{PREFIX}{pool}"));
        json!({
            "metadata": {"resourceVersion": version, "annotations": {CORDONED_BY: by}},
            "spec": {"unschedulable": pool.map(|_| true)},
        })
    }
}

/// The pool that is named by a value of [`CORDONED_BY`]; none: it names no pool.
pub(crate) fn cordoning_pool(by: &str) -> Option<&str> {
    by.strip_prefix(PREFIX)
}

/// How far a node's drain is, as this client sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Drain {
    /// Its Pods are not followed.
    #[default]
    Idle,
    /// They are being listed.
    Listing,
    /// Pods have to leave.
    Going {
        /// How many Pods.
        left: usize,
        /// Until one of them is to be evicted; zero: now. None: all were, and have to end.
        next: Option<Duration>,
        /// One of them, and why it is still there.
        such: String,
    },
    /// Nothing is left that would have to leave.
    Empty,
    /// A Pod must not be evicted; which, and why.
    Refused(String),
    /// It was tried for too long, or cannot be done; it is tried again later.
    GaveUp(String),
}

/// A node's drain, and for how long its Pods are made to leave.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeDrain {
    pub(crate) state: Drain,
    pub(crate) lasts: Duration,
}

/// Whether a Pod is evicted.
#[derive(Clone, Debug, PartialEq, Eq)]
enum EvictionDecision {
    /// It may stay.
    Stays,
    /// It has to leave.
    Leaves,
    /// It would have to leave, and must not be made to.
    Refuses(&'static str),
}

fn eviction_decision(pod: &Value, mode: DrainMode) -> EvictionDecision {
    let text = |pointer: &str| pod.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let list = |pointer: &str| pod.pointer(pointer).and_then(Value::as_array).into_iter().flatten();
    let is_mirror = pod.pointer("/metadata/annotations").and_then(|all| all.get(MIRROR)).is_some();
    let is_controller = |owner: &&Value| owner.get("controller").and_then(Value::as_bool) == Some(true);
    let controller = list("/metadata/ownerReferences").find(is_controller);
    let is_daemon = controller.and_then(|owner| owner.get("kind")).and_then(Value::as_str) == Some("DaemonSet");
    if is_mirror || is_daemon || matches!(text("/status/phase"), "Succeeded" | "Failed") {
        return EvictionDecision::Stays;
    }
    // It leaves already, whoever wanted that.
    if mode == DrainMode::Force || !text("/metadata/deletionTimestamp").is_empty() {
        return EvictionDecision::Leaves;
    }
    if list("/spec/volumes").any(|volume| volume.get("emptyDir").is_some()) {
        return EvictionDecision::Refuses("has an emptyDir, whose data would be lost");
    }
    if controller.is_none() {
        return EvictionDecision::Refuses("has no controller: nobody would start it again");
    }
    EvictionDecision::Leaves
}

/// A Pod that has to leave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pod {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
}

#[derive(Debug)]
struct Leaving {
    pod: Pod,
    /// Why it must not be evicted.
    refuses: Option<String>,
    /// It has a `deletionTimestamp`.
    ends: bool,
    /// Not to be evicted before.
    not_before: Duration,
    /// The last pause after a refused eviction.
    pause: Duration,
    /// Why it is still there.
    reason: String,
    /// The list it was last in.
    listed: u64,
}

/// The Pods of a node that is drained. Times are measured from any one moment.
#[derive(Debug)]
pub(crate) struct Pods {
    mode: DrainMode,
    leaving: BTreeMap<(String, String), Leaving>,
    list: u64,
    known: bool,
    /// The node was cordoned before the list, and is so.
    cordoned: bool,
}

fn key(pod: &Value) -> (String, String) {
    let text = |pointer: &str| pod.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
    (text("/metadata/namespace"), text("/metadata/name"))
}

impl Pods {
    /// None is known. `cordoned`: the node's cordon holds.
    pub(crate) fn new(mode: DrainMode, cordoned: bool) -> Self {
        Self { mode, leaving: BTreeMap::new(), list: 0, known: false, cordoned }
    }

    /// Whether the node's cordon holds. True: it did not all the time, so that a Pod may have come meanwhile of which
    /// the watch did not tell yet. Only a list that is begun now has all of them.
    pub(crate) fn is_outdated(&mut self, cordoned: bool) -> bool {
        self.cordoned &= cordoned;
        cordoned && !self.cordoned
    }

    /// A list begins.
    pub(crate) fn begin(&mut self) {
        self.list += 1;
    }

    /// What was not in the list is gone.
    pub(crate) fn listed(&mut self) {
        self.leaving.retain(|_, pod| pod.listed == self.list);
        self.known = true;
    }

    /// A Pod as it is now.
    pub(crate) fn observe(&mut self, pod: &Value) {
        let key = key(pod);
        let refuses = match eviction_decision(pod, self.mode) {
            EvictionDecision::Stays => {
                self.leaving.remove(&key);
                return;
            }
            EvictionDecision::Leaves => None,
            EvictionDecision::Refuses(why) => Some(why.to_owned()),
        };
        let text = |pointer: &str| pod.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        let uid = text("/metadata/uid");
        let ends = !text("/metadata/deletionTimestamp").is_empty();
        if self.leaving.get(&key).is_some_and(|known| known.pod.uid != uid) {
            self.leaving.remove(&key);
        }
        let (namespace, name) = key.clone();
        let entry = self.leaving.entry(key).or_insert_with(|| Leaving {
            pod: Pod { namespace, name, uid },
            refuses: None,
            ends,
            not_before: Duration::ZERO,
            pause: Duration::ZERO,
            reason: String::new(),
            listed: 0,
        });
        entry.listed = self.list;
        entry.ends = ends;
        if ends {
            "it is ending".clone_into(&mut entry.reason);
            entry.refuses = None;
        } else if refuses.is_some() {
            entry.refuses = refuses;
        }
    }

    /// A Pod is gone.
    pub(crate) fn remove(&mut self, pod: &Value) {
        self.leaving.remove(&key(pod));
    }

    /// The next one to be evicted; none while one refuses, or before all are known.
    pub(crate) fn due(&self, now: Duration) -> Option<&Pod> {
        if !self.known || self.leaving.values().any(|it| it.refuses.is_some()) {
            return None;
        }
        self.leaving.values().find(|it| !it.ends && it.not_before <= now).map(|it| &it.pod)
    }

    fn entry(&mut self, pod: &Pod) -> Option<&mut Leaving> {
        self.leaving.get_mut(&(pod.namespace.clone(), pod.name.clone())).filter(|it| it.pod.uid == pod.uid)
    }

    /// Its eviction was granted.
    pub(crate) fn granted(&mut self, pod: &Pod, now: Duration) {
        if let Some(entry) = self.entry(pod) {
            entry.not_before = now + SHOWS;
            "it was evicted".clone_into(&mut entry.reason);
        }
    }

    /// Not now: a disruption budget, or an API server in trouble.
    pub(crate) fn denied(&mut self, pod: &Pod, why: &str, now: Duration) {
        if let Some(entry) = self.entry(pod) {
            entry.pause = (entry.pause * 2).clamp(PAUSE_FIRST, PAUSE_MAX);
            entry.not_before = now + entry.pause;
            why.clone_into(&mut entry.reason);
        }
    }

    pub(crate) fn state(&self, now: Duration) -> Drain {
        if !self.known {
            return Drain::Listing;
        }
        let name = |it: &Leaving| format!("Pod {}/{}", it.pod.namespace, it.pod.name);
        let refused = self.leaving.values().find_map(|it| Some(format!("{} {}", name(it), it.refuses.as_ref()?)));
        if let Some(refused) = refused {
            return Drain::Refused(refused);
        }
        let waits = |it: &&Leaving| !it.reason.is_empty();
        let Some(such) = self.leaving.values().find(waits).or_else(|| self.leaving.values().next()) else {
            return Drain::Empty;
        };
        let reason = if such.reason.is_empty() { String::new() } else { format!(": {}", such.reason) };
        let due = self.leaving.values().filter(|it| !it.ends).map(|it| it.not_before.saturating_sub(now));
        Drain::Going { left: self.leaving.len(), next: due.min(), such: format!("{}{reason}", name(such)) }
    }
}

#[cfg(test)]
mod tests;
