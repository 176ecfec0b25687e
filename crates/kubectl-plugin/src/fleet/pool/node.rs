//! A Node, as pools see it.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::drain::{CORDONED_BY, Cordon, cordoning_pool};
use super::types::Proof;
use crate::fleet::assign::{ASSIGNED, WrittenAssignment};
use crate::fleet::node::{ConfigManager, NodeRow, Stage, annotation};
use crate::fleet::{MAX_CLOCK_SKEW, YOUNG};
use kubelet_config::hazard::quantity;
use kubelet_config::pods::MIRROR;
use kubelet_config::preflight::{PreflightRequest, PreflightResult};
use kubelet_config::reported::{ReportedCondition, text};
use kubelet_config::source::ConfigMapRef;
use kubelet_config::status::WAITS_WHILE;

/// Labels of control-plane Nodes; `master` up to 1.24.
const CONTROL_PLANE: [&str; 2] = ["node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"];

/// Labels that hold a Node's zone, the newer one first.
const ZONE: [&str; 2] = ["topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"];

/// The reason of the condition of a Node that cannot sync.
const SYNC_FAILED: &str = "SyncFailed";

/// What a kubelet finds as memory varies by a few MiB from boot to boot and from kernel to kernel; of no interest to pools.
const MEMORY_STEP: u64 = 64 << 20;

/// The text that asks a Node for its preflight of a revision. Its name tells its content, so no version of it is named.
pub(crate) fn request(of: &ConfigMapRef) -> String {
    PreflightRequest { reference: of.clone(), version: None, token: None }.to_string()
}

/// What a Node was asked to judge, and what it says of that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodePreflight {
    pub(crate) request: String,
    pub(crate) answer: Option<PreflightAnswer>,
}

/// What it says of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PreflightAnswer {
    Valid,
    Refused(String),
    Inconclusive,
}

impl NodePreflight {
    pub(crate) fn from_row(row: &NodeRow) -> Option<Self> {
        let request = row.preflight_request.clone()?;
        let answer =
            row.preflight.as_ref().filter(|status| status.answers(&request)).map(|status| match status.result {
                PreflightResult::Valid => PreflightAnswer::Valid,
                PreflightResult::Inconclusive => PreflightAnswer::Inconclusive,
                refused => PreflightAnswer::Refused(format!("{}: {}", refused.as_str(), status.message)),
            });
        Some(Self { request, answer })
    }
}

/// How far a Node is with what it is assigned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// It did not say, or is on its way.
    Updating,
    /// It runs, and its kubelet is healthy.
    Active,
    /// It is last known good.
    Proven,
    /// It refused it or went back, in its words.
    Bad(String),
}

/// As what a Node was given its assignment, as its label says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Given {
    /// Before others.
    Canary,
    /// In its turn.
    Wave,
    /// It had just joined.
    Joined,
    /// To come back: from what is bad, or from not being Ready.
    Back,
}

const GIVEN: [(char, Given); 4] = [('c', Given::Canary), ('w', Given::Wave), ('j', Given::Joined), ('r', Given::Back)];

impl Given {
    /// The value of the label [`ASSIGNED`].
    pub(crate) fn label(self, at: Timestamp) -> String {
        let letter = GIVEN.iter().find(|(_, given)| *given == self).map_or('w', |(letter, _)| *letter);
        format!("{}.{letter}", at.as_second())
    }

    fn from_label(label: &str) -> Option<(Timestamp, Self)> {
        let (at, letter) = label.split_once('.')?;
        let given = GIVEN.iter().find(|(of, _)| letter.chars().eq([*of]))?.1;
        Some((Timestamp::from_second(at.parse().ok()?).ok()?, given))
    }
}

/// Keys of taints of a Node that goes, and takes what it says with it: the cluster autoscaler's and Karpenter's.
const LEAVES: [&str; 4] = [
    "ToBeDeletedByClusterAutoscaler",
    "DeletionCandidateOfClusterAutoscaler",
    "karpenter.sh/disrupted",
    "karpenter.sh/disruption",
];

/// A Node, as it was last observed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PoolNode {
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) resource_version: String,
    pub(crate) labels: BTreeMap<String, String>,
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
    /// What it says it has: resolved, running, last known good.
    pub(crate) reported: Vec<ConfigMapRef>,
    /// How far it is with that.
    pub(crate) progress: Progress,
    /// The message of its condition `KubeletConfigOk`.
    pub(crate) message: String,
    pub(crate) ready: bool,
    /// Keys of its taints.
    pub(crate) taints: Vec<String>,
    /// `spec.unschedulable`.
    pub(crate) unschedulable: bool,
    /// Its annotation `kubelet-supervisor.io/cordoned-by-rollout`.
    pub(crate) cordoned_by: Option<String>,
    /// An operator on the Node lets no change in.
    pub(crate) held: bool,
    /// It waits for as long as it takes, for the end of a pressure or until no pod would be lost: that is held against no revision.
    pub(crate) waits: bool,
    /// It cannot get or keep what it is to have: its disk is full, or it may not read the ConfigMap.
    pub(crate) cannot_sync: bool,
    /// It is deleted, or about to be.
    pub(crate) leaving: bool,
    /// Somebody is there who answers.
    pub(crate) has_supervisor: bool,
    /// It says something of its configuration, be it by a kubelet that keeps its status itself.
    pub(crate) is_managed: bool,
    /// What it was asked to judge last.
    pub(crate) preflight: Option<NodePreflight>,
    /// Until when it is on trial.
    pub(crate) trial_ends: Option<Timestamp>,
    /// When it was given what it is assigned.
    pub(crate) assigned_at: Option<Timestamp>,
    pub(crate) given: Option<Given>,
    unready_since: Option<Timestamp>,
    created: Option<Timestamp>,
    /// The last write into it was refused, a moment ago.
    pub(crate) unwritable: bool,
    /// As its clocks say it at the time of day of a decision.
    pub(crate) lasts: Lasting,
}

/// For how long something is so with a Node. All of it follows from what stands in the Node and from the time of day.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lasting {
    /// It is still not believed to have proven what it is assigned.
    pub(crate) proof_waits: Duration,
    /// It is not Ready.
    pub(crate) unready: Duration,
    /// It is assigned what it is assigned, or was reset.
    pub(crate) updating: Duration,
}

impl PoolNode {
    /// Reads a Node, as [`NodeRow::from_node`] does.
    pub(crate) fn from_node(node: &Value, namespace: &str) -> Self {
        let row = NodeRow::from_node(node, namespace);
        let capacity = |name: &str| node.pointer("/status/capacity").and_then(|all| all.get(name)?.as_str());
        let taints = node.pointer("/spec/taints").and_then(Value::as_array).into_iter().flatten();
        let message = row.condition.as_ref().map(|condition| condition.message.clone()).unwrap_or_default();
        let text_at = |pointer: &str| text(node.pointer(pointer).and_then(Value::as_str).unwrap_or_default());
        let taints: Vec<String> = taints.filter_map(|taint| Some(text(taint.get("key")?.as_str()?))).collect();
        let label = row.labels.get(ASSIGNED).and_then(|label| Given::from_label(label));
        let reported = [&row.assigned, &row.active, &row.last_known_good].into_iter().flatten();
        Self {
            reported: reported.map(|source| source.reference.clone()).collect(),
            written: WrittenAssignment::from_row(&row),
            progress: progress(&row, &message),
            held: row.stage() == Stage::Held,
            waits: row.stage() == Stage::Scheduled && message.starts_with(WAITS_WHILE),
            cannot_sync: row.reason() == SYNC_FAILED,
            leaving: node.pointer("/metadata/deletionTimestamp").is_some_and(Value::is_string)
                || taints.iter().any(|taint| LEAVES.contains(&taint.as_str())),
            has_supervisor: row.manager == Some(ConfigManager::Supervisor),
            is_managed: row.manager != Some(ConfigManager::Nobody),
            trial_ends: row.trial_ends.as_ref().and_then(|at| at.parse().ok()),
            assigned_at: label.map(|(at, _)| at).or_else(|| row.assignment_written_at.parse().ok()),
            given: label.map(|(_, given)| given),
            unready_since: ReportedCondition::from_node(node, "Ready").and_then(|ready| ready.since.parse().ok()),
            unwritable: false,
            uid: text_at("/metadata/uid"),
            preflight: NodePreflight::from_row(&row),
            unschedulable: node.pointer("/spec/unschedulable").and_then(Value::as_bool).unwrap_or_default(),
            cordoned_by: annotation(node, CORDONED_BY),
            created: row.created.parse().ok(),
            message,
            name: row.name,
            resource_version: row.version,
            labels: row.labels,
            cpu: capacity("cpu").and_then(quantity::millis).map(|millicores| millicores / 1000),
            memory: capacity("memory").and_then(quantity::whole).map(|bytes| bytes - bytes % MEMORY_STEP),
            pods: capacity("pods").and_then(quantity::whole),
            kubelet: row.kubelet,
            desired: row.desired,
            ready: row.ready,
            taints,
            lasts: Lasting::default(),
        }
    }

    /// Where it is; empty if it does not say.
    pub(crate) fn zone(&self, key: &str) -> &str {
        let others = ZONE.iter().filter(|_| key.ends_with("kubernetes.io/zone"));
        [key].iter().chain(others).find_map(|label| self.labels.get(*label)).map_or("", String::as_str)
    }

    /// Whose cordon it has, as this pool sees it.
    pub(crate) fn cordon(&self, pool: &str) -> Cordon {
        Cordon::new(self.unschedulable, self.cordoned_by.as_deref(), pool)
    }

    /// The pool for which it is or was cordoned, whether there is one of that name or not.
    pub(crate) fn cordoned_for(&self) -> Option<&str> {
        cordoning_pool(self.cordoned_by.as_deref()?)
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
        let age = now.duration_since(self.created?);
        // One that is yet to be made says that a clock is wrong, and might be young for very long.
        let age = if age < -MAX_CLOCK_SKEW { return None } else { Duration::try_from(age).unwrap_or_default() };
        YOUNG.checked_sub(age).filter(|left| !left.is_zero())
    }

    /// The other one is another version of the same Node, in which nothing is new that pools go by.
    pub(crate) fn differs_only_in_version(&self, other: &Self) -> bool {
        let Self { resource_version, unwritable, lasts, .. } = other.clone();
        let as_other = Self { resource_version, unwritable, lasts, ..self.clone() };
        as_other == *other
    }

    /// It has finished what it is assigned, well.
    pub(crate) fn is_done(&self, proof: Proof) -> bool {
        match self.progress {
            Progress::Proven if self.lasts.proof_waits.is_zero() => true,
            Progress::Active | Progress::Proven => proof == Proof::Active && self.ready,
            Progress::Updating | Progress::Bad(_) => false,
        }
    }

    /// For how long all that is so at this time of day. `is_believed`: what it is assigned is what all have finished. A clock of
    /// whoever assigned it that is ahead of this one says nothing.
    pub(crate) fn lasting_at(&self, now: Timestamp, min_trial: Duration, is_believed: bool) -> Lasting {
        let passed = |since: Timestamp| Duration::try_from(now.duration_since(since)).unwrap_or_default();
        let is_sane = |at: &Timestamp| at.duration_since(now) <= MAX_CLOCK_SKEW;
        let updating = self.assigned_at.filter(is_sane).map(passed);
        // The second in which it was written is not over.
        let proven_after = min_trial + Duration::from_secs(1);
        let waits = updating.filter(|_| self.given.is_some() && !is_believed);
        Lasting {
            proof_waits: waits.map(|passed| proven_after.saturating_sub(passed)).unwrap_or_default(),
            unready: self.unready_since.filter(|_| !self.ready).map(passed).unwrap_or_default(),
            updating: updating.unwrap_or_default(),
        }
    }

    /// It is assigned nothing any more, and still has what it was assigned.
    pub(crate) fn is_returning(&self) -> bool {
        self.desired.is_none() && !self.reported.is_empty()
    }

    /// The same, and somebody is there who says how far it is; or may be, for it joined a moment ago.
    pub(crate) fn is_on_its_way(&self, proof: Proof, now: Timestamp) -> bool {
        self.is_in_flight(proof) && (self.is_managed || self.is_young(now))
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

/// A static pod, by its mirror, which alone is in the API.
pub(crate) struct StaticPod {
    pub(crate) name: String,
    pub(crate) is_ready: bool,
}

/// None: it is another pod.
pub(crate) fn static_pod(pod: &Value) -> Option<StaticPod> {
    pod.pointer("/metadata/annotations")?.get(MIRROR)?;
    let is_ready = ReportedCondition::from_node(pod, "Ready").is_some_and(|ready| ready.status == "True");
    Some(StaticPod { name: text(pod.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default()), is_ready })
}

/// How far a Node is with what it is assigned, whatever that is. What it says of something else is old news.
fn progress(row: &NodeRow, message: &str) -> Progress {
    let bad = || {
        let messages = [message, row.invalid.as_deref().unwrap_or_default(), row.error.as_str()];
        Progress::Bad(
            messages.into_iter().find(|message| !message.is_empty()).unwrap_or("it does not say why").to_owned(),
        )
    };
    let is_proven = row.assigned.is_some() && row.active == row.assigned && row.last_known_good == row.assigned;
    let has_proven = |or: Progress| if is_proven { Progress::Proven } else { or };
    let speaks_of_it = row.assigned.as_ref().map(|source| &source.reference) == row.desired.as_ref();
    if row.invalid.is_some() {
        return bad();
    }
    if !speaks_of_it {
        return Progress::Updating;
    }
    match row.stage() {
        // The Node had troubles of its own, and says itself that the version is not to blame.
        Stage::Failed if row.reason() == "NotToBlame" => Progress::Updating,
        // Its disk, or its right to the ConfigMap: no version is to blame, and what it has proven stays proven.
        Stage::Failed if row.reason() == SYNC_FAILED && row.invalid.is_none() => has_proven(Progress::Updating),
        Stage::Failed => bad(),
        Stage::Proven => Progress::Proven,
        // Held on the Node, with this very version: nothing is outstanding.
        Stage::Held => has_proven(Progress::Updating),
        Stage::OnTrial | Stage::AwaitsConfirmation if row.is_well() => Progress::Active,
        _ => Progress::Updating,
    }
}
