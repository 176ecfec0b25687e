//! The API object `KubeletConfigPool`, as the API server keeps it.

use std::collections::BTreeMap;

use clap::ValueEnum;
use kube::CustomResource;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use super::status::{
    BadRevision, BadRevisionNode, FailureKind, KubeletConfigPoolStatus, NamedNodes, NodeFailure, PoolCondition,
    RolloutPhase, RolloutStatus,
};
use kubelet_config::assignment::DEFAULT_KEY;

/// What a pool of Nodes is to have, and how a change of it gets there.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[kube(
    group = "kubelet-supervisor.io",
    version = "v1alpha1",
    kind = "KubeletConfigPool",
    shortname = "kcpool",
    category = "kubelet",
    status = "KubeletConfigPoolStatus",
    derive = "PartialEq",
    doc = "The kubelet configuration of a pool of Nodes.",
    printcolumn(name = "Nodes", type_ = "integer", json_path = ".status.nodes"),
    printcolumn(name = "Updated", type_ = "integer", json_path = ".status.updated"),
    printcolumn(name = "Proven", type_ = "integer", json_path = ".status.proven"),
    printcolumn(name = "Unavailable", type_ = "integer", json_path = ".status.unavailable"),
    printcolumn(name = "Failed", type_ = "integer", json_path = ".status.failed"),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].reason"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Current", type_ = "string", json_path = ".status.currentRevision", priority = 1),
    printcolumn(name = "Update", type_ = "string", json_path = ".status.updateRevision", priority = 1),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].message",
        priority = 1
    ),
    validation = kube::core::Rule::new("has(self.spec.kubeletConfiguration) != has(self.spec.configMap)")
        .message("set exactly one of spec.kubeletConfiguration and spec.configMap"),
    validation = kube::core::Rule::new("has(self.spec.kubeletConfiguration) || !has(self.spec.flags)")
        .message("spec.flags goes with spec.kubeletConfiguration; a ConfigMap brings its own in KEY.flags"),
    validation = kube::core::Rule::new("has(self.spec.kubeletConfiguration) || !has(self.spec.onLeave) || self.spec.onLeave == 'Keep'")
        .message("spec.onLeave Reset goes with spec.kubeletConfiguration; others may assign a ConfigMap too"),
)]
#[serde(rename_all = "camelCase")]
pub struct KubeletConfigPoolSpec {
    /// The pool's Nodes. {} selects all of the cluster.
    pub node_selector: NodeSelector,
    /// A KubeletConfiguration, without apiVersion and kind. Strings may hold expressions such as ${node.cpu}.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "any_object")]
    pub kubelet_configuration: Option<Map<String, Value>>,
    /// Instead of kubeletConfiguration: an immutable ConfigMap in the controller's namespace, assigned as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "PoolConfigMap")]
    pub config_map: Option<PoolConfigMap>,
    /// Flag overrides: --name=value, or !--name to take a flag of the unit out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub flags: Vec<String>,
    /// Whether kubeletConfiguration takes the place of each Node's local file, or is laid over it.
    #[serde(default)]
    pub merge: MergeMode,
    /// Hazards that the change may bring, such as pods; goes with kubeletConfiguration.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "set"))]
    pub acknowledge: Vec<String>,
    /// How a change comes to the Nodes.
    #[serde(default)]
    pub rollout: RolloutStrategy,
    /// Key of a taint that Nodes register with (kubelet's --register-with-taints). It is taken away once a Node runs a revision
    /// of the pool, so that no pod comes to one that does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(min = 1, max = 317))]
    pub startup_taint: Option<String>,
    /// What becomes of a Node that no pool selects any more and that is assigned a revision of this one. Keep: nothing. Reset:
    /// the assignment is withdrawn, and it runs its own configuration.
    #[serde(default)]
    pub on_leave: OnLeave,
    /// Stops the rollout: no Node is assigned another revision. Nodes that join still get currentRevision.
    #[serde(default)]
    pub paused: bool,
}

impl KubeletConfigPoolSpec {
    /// Whose ConfigMap is assigned by others too, cannot say which Nodes were its own.
    pub(crate) fn on_leave_fault(&self) -> Option<String> {
        (self.on_leave == OnLeave::Reset && self.config_map.is_some()).then(|| {
            "spec.onLeave Reset goes with spec.kubeletConfiguration: others may assign the ConfigMap of spec.configMap too; \
             set Keep, and use `kubectl kubelet-config reset NODE`"
                .to_owned()
        })
    }

    /// A taint that others set and take away, by what it says of the Node.
    pub(crate) fn startup_taint_fault(&self) -> Option<String> {
        const OF_OTHERS: [&str; 3] =
            ["node.kubernetes.io/", "node-role.kubernetes.io/", "node.cloudprovider.kubernetes.io/"];
        let taint = self.startup_taint.as_ref()?;
        OF_OTHERS.iter().any(|prefix| taint.starts_with(prefix)).then(|| {
            format!(
                "spec.startupTaint {taint}: Kubernetes keeps this taint; use one of your own, which nodes register with"
            )
        })
    }
}

/// What becomes of a Node that leaves a pool.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub enum OnLeave {
    /// It keeps what it has.
    #[default]
    Keep,
    /// Its assignment is withdrawn.
    Reset,
}

/// As in a Deployment, for Nodes.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeSelector {
    /// Labels that a Node must have, with these values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub match_labels: BTreeMap<String, String>,
    /// Requirements on labels, all of which must hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub match_expressions: Vec<NodeSelectorRequirement>,
}

/// One requirement on a label.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeSelectorRequirement {
    /// The label.
    pub key: String,
    /// In, NotIn, Exists or DoesNotExist.
    pub operator: SelectorOperator,
    /// The values, for In and NotIn.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
}

/// metav1.LabelSelectorOperator.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub enum SelectorOperator {
    /// It has one of the values.
    In,
    /// It has none of the values, or is not there.
    NotIn,
    /// It is there.
    Exists,
    /// It is not there.
    DoesNotExist,
}

/// A ConfigMap of the controller's namespace.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolConfigMap {
    /// The name of the ConfigMap, as `kubectl kubelet-config push` prints it.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// The key in data that holds the KubeletConfiguration.
    #[serde(default = "default_key")]
    #[schemars(length(min = 1, max = 63))]
    pub key: String,
}

/// Where a configuration comes to lie.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum MergeMode {
    /// It takes the place of the Node's local file.
    #[default]
    Replace,
    /// It is laid over the Node's local file (RFC 7396).
    Overlay,
}

/// When a Node has finished a revision.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize, ValueEnum)]
pub enum Proof {
    /// It runs, and the Node is Ready.
    Active,
    /// It is last known good.
    #[default]
    Proven,
}

/// What happens to Nodes that have a bad revision.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize, ValueEnum)]
pub enum OnFailure {
    /// No further Node gets it.
    Stop,
    /// Nodes get the pool's current revision again.
    #[default]
    Revert,
}

/// Whether a Node's Pods leave before it is assigned another revision.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize, ValueEnum)]
pub enum DrainMode {
    /// They stay.
    #[default]
    Never,
    /// They leave, but for those that nobody would start again, or whose emptyDir would be lost: those refuse.
    Careful,
    /// Those too.
    Force,
}

/// How a change comes to the Nodes.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RolloutStrategy {
    /// Number of Nodes, spread over zones, that must finish a revision before other Nodes get it.
    #[schemars(with = "i32", range(min = 0, max = 1000))]
    pub canaries: u32,
    /// Which Nodes of the pool may be canaries; all, if there is none. If it matches fewer than canaries, those are all; if it
    /// matches none, no Node gets a new revision.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "NodeSelector")]
    pub canary_selector: Option<NodeSelector>,
    /// Nodes of the pool that may be unavailable at once: a number from 1, or a percentage such as 10% (rounded down, at
    /// least 1). Unavailable: not Ready, being drained, or not finished with what is assigned.
    #[schemars(schema_with = "count_or_share")]
    pub max_unavailable: Value,
    /// The label that says where a Node is.
    #[schemars(length(min = 1, max = 317))]
    pub zone_key: String,
    /// When a Node has finished a revision. Proven: it is the Node's last known good. Active: it runs and the Node is Ready.
    pub proof: Proof,
    /// So many Nodes that reject a revision or roll it back mark it bad, and so many that fail in any way, those that are not
    /// Ready for a minute or time out with it among them, stop it. Default: one while the canaries are not done, later two or
    /// 2 % of the pool's Nodes, whichever is more.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "i32", range(min = 1, max = 1000))]
    pub max_failures: Option<u32>,
    /// What happens to Nodes that have a bad revision. Revert: they get currentRevision again. Stop: they are left alone.
    pub on_failure: OnFailure,
    /// A Node that has not finished a revision after this many seconds is silent, and waited for no longer. A drain before may
    /// take as long.
    #[schemars(with = "i32", range(min = 60, max = 86400))]
    pub node_timeout_seconds: u32,
    /// A pool that is on its way, and gave no Node anything for this many seconds, says that it is Stalled. It goes on all the
    /// same. Being paused, and waiting for an approval or a window, are not counted.
    #[schemars(with = "i32", range(min = 60, max = 604_800))]
    pub progress_deadline_seconds: u32,
    /// The shortest --trial-duration of the pool's supervisors, in seconds. A Node that says sooner after its assignment that it
    /// has proven a revision is believed only then.
    #[schemars(with = "i32", range(min = 1, max = 86400))]
    pub min_trial_seconds: u32,
    /// Wait, once the canaries have finished, for the annotation kubelet-supervisor.io/approved-revision with the revision's name.
    pub pause_after_canaries: bool,
    /// Whether a Node is cordoned and its Pods are evicted before it is assigned another revision, as kubectl drain
    /// --ignore-daemonsets does. Careful: a Pod without a controller or with an emptyDir keeps the Node from being drained.
    /// Force: these are evicted too.
    pub drain: DrainMode,
    /// When Nodes may be given a new revision; always, if there is none. Nodes that join, and the way back to
    /// currentRevision, wait for no window.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 50))]
    pub windows: Vec<MaintenanceWindow>,
}

/// A time that comes back each week.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MaintenanceWindow {
    /// The days on which it begins; each day, if there is none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub days: Vec<Day>,
    /// When it begins, HH:MM by the clocks of the zone. What they skip begins an hour later; what comes twice, the first time.
    #[schemars(regex(pattern = "^([01][0-9]|2[0-3]):[0-5][0-9]$"))]
    pub start: String,
    /// For how many hours it lasts.
    #[schemars(with = "i32", range(min = 1, max = 168))]
    pub hours: u32,
    /// A time zone of the IANA database, such as Europe/Rome.
    #[serde(default = "utc")]
    #[schemars(length(min = 1, max = 63))]
    pub time_zone: String,
}

/// A day of the week.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[expect(missing_docs, reason = "the names of days")]
pub enum Day {
    Mon,
    Tue,
    Wed,
    Thu,
    Fri,
    Sat,
    Sun,
}

impl Default for RolloutStrategy {
    fn default() -> Self {
        Self {
            canaries: 1,
            canary_selector: None,
            max_unavailable: Value::from("10%"),
            zone_key: "topology.kubernetes.io/zone".to_owned(),
            proof: Proof::default(),
            max_failures: None,
            on_failure: OnFailure::default(),
            node_timeout_seconds: 3600,
            progress_deadline_seconds: 7200,
            min_trial_seconds: 600,
            pause_after_canaries: false,
            drain: DrainMode::default(),
            windows: Vec::new(),
        }
    }
}

fn default_key() -> String {
    DEFAULT_KEY.to_owned()
}

fn utc() -> String {
    "UTC".to_owned()
}

fn any_object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "x-kubernetes-preserve-unknown-fields": true,
    })
}

fn count_or_share(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "x-kubernetes-int-or-string": true,
        "minimum": 1,
        "pattern": "^([1-9][0-9]?|100)%$",
    })
}

/// A number, or a share of so many Nodes, rounded down; at least one.
///
/// # Errors
/// What it should be.
pub(crate) fn max_unavailable(value: &serde_json::Value, nodes: usize) -> Result<usize, String> {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let number = match text.strip_suffix('%') {
        // Rounded down: what is asked for is a limit.
        Some(share) => {
            let share = share.parse().ok().filter(|share| (1..=100).contains(share));
            share.map(|share: usize| (nodes * share / 100).max(1))
        }
        None => text.parse().ok().filter(|number| *number > 0),
    };
    number.ok_or_else(|| format!("spec.rollout.maxUnavailable {value}: a number from 1, or a share such as 10%"))
}
