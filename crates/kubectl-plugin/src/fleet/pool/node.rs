//! A Node, as pools see it.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::types::Proof;
use crate::fleet::assign::WrittenAssignment;
use crate::fleet::node::{NodeRow, Stage};
use crate::fleet::rollout::drain::MIRROR;
use crate::fleet::rollout::observed::Progress;
use kubelet_config::reported::{ReportedCondition, text};
use kubelet_config::source::ConfigMapRef;

/// Labels of control-plane Nodes; `master` up to 1.24.
const CONTROL_PLANE: [&str; 2] = ["node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"];

/// A Node that is younger has no pods that a change could hurt: it gets what it is to have at once.
const YOUNG: Duration = Duration::from_secs(600);

/// What a kubelet finds as memory varies by a few MiB from boot to boot and from kernel to kernel; of no interest to pools.
const MEMORY_STEP: u64 = 64 << 20;

/// A Node, as it was last observed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PoolNode {
    pub(crate) name: String,
    pub(crate) resource_version: String,
    pub(crate) labels: BTreeMap<String, String>,
    /// `topology.kubernetes.io/zone`, or the older label.
    zone: String,
    /// Cores.
    pub(crate) cpu: Option<u64>,
    /// Bytes, in steps.
    pub(crate) memory: Option<u64>,
    /// As many as its kubelet lets in now.
    pub(crate) pods: Option<u64>,
    /// The version of its kubelet; empty before there was one.
    pub(crate) kubelet: String,
    pub(crate) written: WrittenAssignment,
    /// What it is assigned.
    pub(crate) desired: Option<ConfigMapRef>,
    /// How far it is with that.
    pub(crate) progress: Progress,
    /// The message of its condition `KubeletConfigOk`.
    pub(crate) message: String,
    pub(crate) ready: bool,
    /// Keys of its taints.
    pub(crate) taints: Vec<String>,
    /// An operator on the Node lets no change in.
    pub(crate) held: bool,
    created: Option<Timestamp>,
    /// For how long it is not Ready, as this controller observed it.
    pub(crate) unready_for: Duration,
    /// For how long it is not done with what it is assigned, as this controller observed it.
    pub(crate) updating_for: Duration,
}

impl PoolNode {
    pub(crate) fn from_row(row: NodeRow) -> Self {
        let message = row.condition.as_ref().map(|condition| condition.message.clone()).unwrap_or_default();
        Self {
            written: WrittenAssignment::from_row(&row),
            progress: progress(&row, &message),
            held: row.stage() == Stage::Held,
            created: row.created.parse().ok(),
            message,
            name: row.name,
            resource_version: row.version,
            labels: row.labels,
            zone: row.zone,
            cpu: row.cpu,
            memory: row.memory.map(|bytes| bytes - bytes % MEMORY_STEP),
            pods: row.pods,
            kubelet: row.kubelet,
            desired: row.desired,
            ready: row.ready,
            taints: row.taints,
            unready_for: Duration::ZERO,
            updating_for: Duration::ZERO,
        }
    }

    /// Where it is; empty if it does not say.
    pub(crate) fn zone(&self, key: &str) -> &str {
        match self.labels.get(key) {
            Some(zone) => zone,
            None if key.ends_with("kubernetes.io/zone") => &self.zone,
            None => "",
        }
    }

    pub(crate) fn is_control_plane(&self) -> bool {
        CONTROL_PLANE.iter().any(|label| self.labels.contains_key(*label))
    }

    /// It joined a moment ago.
    pub(crate) fn is_young(&self, now: Timestamp) -> bool {
        self.young_for(now).is_some()
    }

    /// For how long it will be young; none: it is not.
    pub(crate) fn young_for(&self, now: Timestamp) -> Option<Duration> {
        let age = Duration::try_from(now.duration_since(self.created?)).unwrap_or_default();
        YOUNG.checked_sub(age).filter(|left| !left.is_zero())
    }

    /// The other one is another version of the same Node, in which nothing is new that pools go by.
    pub(crate) fn differs_only_in_version(&self, other: &Self) -> bool {
        let Self { resource_version, unready_for, updating_for, .. } = other.clone();
        Self { resource_version, unready_for, updating_for, ..self.clone() } == *other
    }

    /// It has finished what it is assigned, well.
    pub(crate) fn is_done(&self, proof: Proof) -> bool {
        match self.progress {
            Progress::Proven => true,
            Progress::Active => proof == Proof::Active && self.ready,
            Progress::Updating | Progress::Bad(_) => false,
        }
    }

    /// It is assigned something, by whomever, and has not finished it. One for which that is bad runs its last known good.
    pub(crate) fn is_in_flight(&self, proof: Proof) -> bool {
        self.desired.is_some() && !self.is_done(proof) && !matches!(self.progress, Progress::Bad(_))
    }
}

/// A merge patch that takes this taint away; none: the Node does not have it.
pub(crate) fn without_taint(node: &Value, key: &str) -> Option<Value> {
    let taints = node.pointer("/spec/taints")?.as_array()?;
    let others: Vec<&Value> =
        taints.iter().filter(|taint| taint.get("key").and_then(Value::as_str) != Some(key)).collect();
    let version = node.pointer("/metadata/resourceVersion")?;
    (others.len() < taints.len()).then(|| json!({"metadata": {"resourceVersion": version}, "spec": {"taints": others}}))
}

/// The name of a static pod that is not Ready. Only its mirror is in the API, so that is what is asked.
pub(crate) fn unready_static_pod(pod: &Value) -> Option<String> {
    let is_static = pod.pointer("/metadata/annotations").and_then(|all| all.get(MIRROR)).is_some();
    let is_ready = ReportedCondition::from_node(pod, "Ready").is_some_and(|ready| ready.status == "True");
    (is_static && !is_ready).then(|| text(pod.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default()))
}

/// How far a Node is with what it is assigned, whatever that is. What it says of something else is old news.
fn progress(row: &NodeRow, message: &str) -> Progress {
    let bad = || {
        let messages = [message, row.invalid.as_deref().unwrap_or_default(), row.error.as_str()];
        Progress::Bad(
            messages.into_iter().find(|message| !message.is_empty()).unwrap_or("it does not say why").to_owned(),
        )
    };
    let reason = row.condition.as_ref().map_or("", |condition| condition.reason.as_str());
    let speaks_of_it = row.assigned.as_ref().map(|source| &source.reference) == row.desired.as_ref();
    if row.invalid.is_some() {
        return bad();
    }
    if !speaks_of_it {
        return Progress::Updating;
    }
    match row.stage() {
        // The Node had troubles of its own, and says itself that the version is not to blame.
        Stage::Failed if reason == "NotToBlame" => Progress::Updating,
        Stage::Failed => bad(),
        Stage::Proven => Progress::Proven,
        // Held on the Node, with this very version: nothing is outstanding.
        Stage::Held if row.active == row.assigned && row.last_known_good == row.assigned => Progress::Proven,
        Stage::OnTrial | Stage::AwaitsConfirmation if row.is_well() => Progress::Active,
        _ => Progress::Updating,
    }
}
