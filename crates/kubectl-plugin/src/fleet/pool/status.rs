//! The status of a `KubeletConfigPool`: what the controller knows, and all that it must not forget.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What the controller knows of a pool. All counts are of the Nodes that the selector selects.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct KubeletConfigPoolStatus {
    /// The generation of the spec that this speaks of; -1 before the controller saw the pool.
    pub observed_generation: i64,
    /// The last revision that all Nodes of the pool finished; Nodes that join get it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current_revision: Option<String>,
    /// The revision that the spec describes now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub update_revision: Option<String>,
    /// Nodes that spec.nodeSelector selects.
    #[schemars(with = "i32")]
    pub nodes: u32,
    /// Nodes of the pool that are assigned updateRevision.
    #[schemars(with = "i32")]
    pub updated: u32,
    /// Nodes of the pool whose last known good is updateRevision.
    #[schemars(with = "i32")]
    pub proven: u32,
    /// Nodes of the pool that have not finished what they are assigned.
    #[schemars(with = "i32")]
    pub updating: u32,
    /// Nodes of the pool that are not Ready, are cordoned for it, or have not finished what they are assigned; with those that have just joined, which maxUnavailable does not count.
    #[schemars(with = "i32")]
    pub unavailable: u32,
    /// Nodes of the pool that rejected updateRevision or rolled it back.
    #[schemars(with = "i32")]
    pub failed: u32,
    /// Nodes of the pool that have not finished updateRevision, and that nothing waits for: held on the Node, failed, or silent.
    #[serde(skip_serializing_if = "NamedNodes::is_empty")]
    pub stragglers: NamedNodes,
    /// Nodes of the pool that say nothing of their configuration.
    #[serde(skip_serializing_if = "NamedNodes::is_empty")]
    pub unsupervised: NamedNodes,
    /// Nodes of the pool that refused the last write.
    #[serde(skip_serializing_if = "NamedNodes::is_empty")]
    pub unwritable: NamedNodes,
    /// How updateRevision is going.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "RolloutStatus")]
    pub rollout: Option<RolloutStatus>,
    /// Revisions that are not tried again, the latest last; at most 10.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 10), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["revision"]))]
    pub bad_revisions: Vec<BadRevision>,
    /// Revisions that were currentRevision before, the latest last; at most 10.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 10), extend("x-kubernetes-list-type" = "set"))]
    pub history: Vec<String>,
    /// Ready, Reconciling and Stalled, as kstatus reads them, and Conflicting.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<PoolCondition>,
}

impl KubeletConfigPoolStatus {
    /// All that it names: current, update, former and bad ones.
    pub(crate) fn revisions(&self) -> impl Iterator<Item = &String> {
        let bad = self.bad_revisions.iter().map(|bad| &bad.revision);
        self.current_revision.iter().chain(&self.update_revision).chain(&self.history).chain(bad)
    }
}

/// Nodes, counted and named.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NamedNodes {
    /// How many there are.
    #[schemars(with = "i32")]
    pub count: u32,
    /// The names of some; at most 10.
    #[schemars(length(max = 10))]
    pub nodes: Vec<String>,
}

impl NamedNodes {
    fn is_empty(&self) -> bool {
        self.count == 0
    }
}

/// How a revision is going. Another revision, and one that is tried again, has another.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RolloutStatus {
    /// The revision, as in updateRevision.
    pub revision: String,
    /// Since when it is tried, RFC 3339.
    pub started_at: String,
    /// How far it is.
    pub phase: RolloutPhase,
    /// Since when it is so far, RFC 3339.
    pub phase_since: String,
    /// When all Nodes had been asked what they would make of it, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub asked_at: Option<String>,
    /// Nodes that failed with it, each once; only when that Node has finished it, it is none any more. At most 1000.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1000), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["uid"]))]
    pub failures: Vec<NodeFailure>,
}

/// How far a revision is.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub enum RolloutPhase {
    /// Nodes judge it.
    #[default]
    Preflight,
    /// The first Nodes have it.
    Canaries,
    /// The others get it.
    Waves,
    /// It waits for people, or for a window.
    Waiting,
    /// Nothing is to be done.
    Ended,
}

/// A Node that failed with a revision.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeFailure {
    /// The Node's uid: one that is made anew under its name is another.
    pub uid: String,
    /// The Node's name.
    pub name: String,
    /// Whether it said so.
    pub kind: FailureKind,
    /// When it was seen, RFC 3339.
    pub time: String,
    /// What the Node reported, of the first ten.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// How a Node failed.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, PartialOrd, Serialize)]
pub enum FailureKind {
    /// It is not Ready for a minute, or has not finished in time.
    #[default]
    Silent,
    /// It rejected the revision, or rolled it back.
    Bad,
}

/// A revision that the pool does not try again.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BadRevision {
    /// The name of its ConfigMap, and /KEY if the key is not kubelet.
    pub revision: String,
    /// When it was found to be bad, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub time: Option<String>,
    /// Nodes that rejected it or rolled it back; at most 10.
    #[schemars(length(max = 10))]
    pub nodes: Vec<BadRevisionNode>,
}

/// What a Node said of a revision.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BadRevisionNode {
    /// The Node's name.
    pub name: String,
    /// What the Node reported, cut to 512 bytes.
    pub message: String,
}

/// metav1.Condition.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolCondition {
    /// Ready, Reconciling, Stalled or Conflicting.
    #[serde(rename = "type")]
    pub type_: String,
    /// True, False or Unknown.
    pub status: String,
    /// The generation of the spec that this speaks of.
    pub observed_generation: i64,
    /// When status changed last, RFC 3339.
    pub last_transition_time: String,
    /// Why it is so, in one word for programs.
    pub reason: String,
    /// Why it is so, for people.
    pub message: String,
}
