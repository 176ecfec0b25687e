//! What a Node object says of its configuration.

use std::collections::BTreeMap;

use serde_json::Value;

use super::field_paths::is_within;
use kubelet_config::assignment::{self, Assignment};
use kubelet_config::source::{ConfigMapRef, Source};
use kubelet_config::status::{ABOUT_ANNOTATION, CONDITION, CONFIRM_BY, STATUS_ANNOTATION, TRIAL_ENDS};

/// An administrator's annotation on a Node: a version to try again.
pub(crate) const RETRY: &str = "kubelet-supervisor.io/retry";

/// An administrator's annotation on a Node: a version to confirm.
pub(crate) const CONFIRM: &str = "kubelet-supervisor.io/confirm";

/// Where a Node's assignment is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carrier {
    /// `spec.configSource`.
    Native,
    /// Labels.
    Labels,
}

/// Who manages the Node's configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConfigManager {
    /// A supervisor: its condition or its annotation is there.
    Supervisor,
    /// Native dynamic configuration: `status.config`, and nothing of ours.
    Native,
    /// Nobody said anything.
    Nobody,
}

/// How far the assigned configuration is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Nothing is assigned and the node's own configuration runs.
    Local,
    /// Assigned, and the node did not say anything of it yet.
    Pending,
    /// Accepted; it waits for its turn.
    Scheduled,
    /// It runs, and must prove itself.
    OnTrial,
    /// It runs, is healthy, and somebody must confirm it.
    AwaitsConfirmation,
    /// It runs and is last known good.
    Proven,
    /// It does not run: refused, rolled back, or not to be had.
    Failed,
    /// An operator on the node holds another configuration, or lets none in.
    Held,
}

/// What a Node's supervisor says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SupervisorInfo {
    /// Its version; none where it is of before it told.
    pub(crate) version: Option<String>,
    /// Fields that flags win over, as in `maxPods (--max-pods)`.
    pub(crate) shadowed: Vec<String>,
    /// Whether the node has a policy: absent, in-force, unreadable, violated; none where it does not tell.
    pub(crate) policy: Option<String>,
}

impl SupervisorInfo {
    pub(crate) fn from_node(node: &Value) -> Self {
        let about = node.pointer("/metadata/annotations").and_then(|all| all.get(ABOUT_ANNOTATION)?.as_str());
        let about: Value = about.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
        let version = about.get("version").and_then(Value::as_str).map(str::to_owned);
        let shadowed = about.get("shadowedByFlags").and_then(Value::as_array).into_iter().flatten();
        let policy = about.get("policy").and_then(Value::as_str).map(str::to_owned);
        Self { policy, version, shadowed: shadowed.filter_map(Value::as_str).map(str::to_owned).collect() }
    }

    /// The flag that wins over a field, without dashes.
    pub(crate) fn flag(&self, field: &str) -> Option<&str> {
        self.shadowed.iter().find_map(|shadow| {
            let (shadowed, flag) = shadow.strip_suffix(')')?.split_once(" (--")?;
            let is_flag = flag.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
            (is_flag && is_within(field, shadowed)).then_some(flag)
        })
    }
}

/// A Node, as far as its configuration goes. Reads what may be odd without failing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeRow {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) created: String,
    /// The assignment is at least as old as this: the last write of whoever owns its fields (`managedFields`).
    /// Empty if nobody is known to.
    pub(crate) assigned_by: String,
    /// `status.nodeInfo.kubeletVersion`.
    pub(crate) kubelet: String,
    /// `topology.kubernetes.io/zone`, or the older label.
    pub(crate) zone: String,
    /// All labels.
    pub(crate) labels: BTreeMap<String, String>,
    /// Where the assignment is written, if there is one.
    pub(crate) carrier: Option<Carrier>,
    /// What was asked for.
    pub(crate) desired: Option<ConfigMapRef>,
    /// Why what is asked for cannot be.
    pub(crate) invalid: Option<String>,
    /// The resolved version.
    pub(crate) assigned: Option<Source>,
    /// What runs; none is the node's own.
    pub(crate) active: Option<Source>,
    /// What to fall back to.
    pub(crate) last_known_good: Option<Source>,
    /// Native's error string.
    pub(crate) error: String,
    /// The annotation `kubelet-supervisor.io/retry`.
    pub(crate) retry: Option<String>,
    /// When the trial is passed if all stays well (RFC 3339).
    pub(crate) trial_ends: Option<String>,
    /// Until when what runs is to be confirmed (RFC 3339).
    pub(crate) confirm_by: Option<String>,
    /// The condition `KubeletConfigOk`: status, reason, message, since (RFC 3339).
    pub(crate) condition: Option<Condition>,
    /// The Node's condition Ready is True.
    pub(crate) ready: bool,
    /// `spec.unschedulable`.
    pub(crate) cordoned: bool,
    /// The annotation `kubelet-supervisor.io/cordoned-by-rollout`.
    pub(crate) cordoned_by: Option<String>,
    pub(crate) manager: Option<ConfigManager>,
}

/// A Node condition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Condition {
    /// `True`, `False` or `Unknown`.
    pub(crate) status: String,
    pub(crate) reason: String,
    pub(crate) message: String,
    /// Has this status since (RFC 3339).
    pub(crate) since: String,
    /// These words were said then (RFC 3339).
    pub(crate) reported_at: String,
}

impl NodeRow {
    /// Reads a Node. `namespace`: of labels that name none, the supervisors' `--config-namespace`.
    pub(crate) fn from_node(node: &Value, namespace: &str) -> Self {
        let text = |pointer: &str| node.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        let labels = strings(node.pointer("/metadata/labels"));
        let annotation = node.pointer("/metadata/annotations").and_then(|all| all.get(STATUS_ANNOTATION));
        let annotated: Option<Value> =
            annotation.and_then(Value::as_str).and_then(|text| serde_json::from_str(text).ok());
        let kept = node.pointer("/status/config").filter(|config| !config.is_null()).cloned();
        // Ours is written with each of our patches; `status.config` may be of former days.
        let reported = annotated.clone().or_else(|| kept.clone()).unwrap_or_default();
        let source = |field: &str| {
            let map = reported.get(field)?.get("configMap")?;
            serde_json::from_value::<Source>(map.clone()).ok()
        };
        let condition = condition(node, CONDITION);
        let manager = if condition.is_some() || annotated.is_some() {
            ConfigManager::Supervisor
        } else if kept.is_some() {
            ConfigManager::Native
        } else {
            ConfigManager::Nobody
        };
        let zone = ["topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"];
        let mut row = Self {
            name: text("/metadata/name"),
            version: text("/metadata/resourceVersion"),
            created: text("/metadata/creationTimestamp"),
            assigned_by: assigned_by(node),
            kubelet: text("/status/nodeInfo/kubeletVersion"),
            zone: zone.iter().find_map(|label| labels.get(*label)).cloned().unwrap_or_default(),
            assigned: source("assigned"),
            active: source("active"),
            last_known_good: source("lastKnownGood"),
            error: reported.get("error").and_then(Value::as_str).unwrap_or_default().to_owned(),
            retry: node.pointer("/metadata/annotations").and_then(|all| all.get(RETRY)?.as_str()).map(str::to_owned),
            trial_ends: reported.get(TRIAL_ENDS).and_then(Value::as_str).map(str::to_owned),
            confirm_by: reported.get(CONFIRM_BY).and_then(Value::as_str).map(str::to_owned),
            condition,
            ready: self::condition(node, "Ready").is_some_and(|ready| ready.status == "True"),
            cordoned_by: strings(node.pointer("/metadata/annotations")).remove(super::rollout::drain::CORDONED_BY),
            cordoned: node.pointer("/spec/unschedulable").and_then(Value::as_bool).unwrap_or_default(),
            manager: Some(manager),
            ..Self::default()
        };
        let native = node.pointer("/spec/configSource").filter(|source| !source.is_null());
        if let Some(native) = native {
            row.carrier = Some(Carrier::Native);
            row.desired = native.get("configMap").and_then(|map| serde_json::from_value(map.clone()).ok());
            if row.desired.is_none() {
                row.invalid = Some("spec.configSource names no ConfigMap".to_owned());
            }
        } else {
            match assignment::from_labels(&labels, namespace) {
                Assignment::Map(reference) => (row.carrier, row.desired) = (Some(Carrier::Labels), Some(reference)),
                Assignment::Invalid(why) => (row.carrier, row.invalid) = (Some(Carrier::Labels), Some(why)),
                _ => {}
            }
        }
        row.labels = labels;
        row
    }

    /// Its kubelet was seen to be healthy with what is active: the trial's clock runs, or the wait for somebody to
    /// confirm. A kubelet that keeps its status itself says nothing of that.
    pub(crate) fn is_well(&self) -> bool {
        self.trial_ends.is_some() || self.confirm_by.is_some() || self.manager != Some(ConfigManager::Supervisor)
    }

    /// How far it is. What the node says of another ConfigMap than the one asked for is old.
    pub(crate) fn stage(&self) -> Stage {
        let condition = self.condition.as_ref();
        let reason = condition.map_or("", |condition| condition.reason.as_str());
        if matches!(reason, "Pinned" | "Frozen") {
            return Stage::Held;
        }
        if self.invalid.is_some() || reason == "SyncFailed" {
            return Stage::Failed;
        }
        let same = self.desired.as_ref() == self.assigned.as_ref().map(|source| &source.reference);
        if self.desired.is_some() && !same {
            return if reason == "Scheduled" { Stage::Scheduled } else { Stage::Pending };
        }
        if !self.error.is_empty() {
            return Stage::Failed;
        }
        match reason {
            "Scheduled" => Stage::Scheduled,
            "OnTrial" | "TrialSuspended" => Stage::OnTrial,
            "AwaitsConfirmation" => Stage::AwaitsConfirmation,
            _ if self.assigned.is_none() => Stage::Local,
            _ if self.assigned != self.active => Stage::Pending,
            _ if self.assigned == self.last_known_good => Stage::Proven,
            _ => Stage::OnTrial,
        }
    }
}

fn strings(map: Option<&Value>) -> BTreeMap<String, String> {
    let map = map.and_then(Value::as_object).into_iter().flatten();
    map.filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned()))).collect()
}

fn condition(node: &Value, of: &str) -> Option<Condition> {
    let conditions = node.pointer("/status/conditions")?.as_array()?;
    let found = conditions.iter().find(|condition| condition.get("type").and_then(Value::as_str) == Some(of))?;
    let text = |field: &str| found.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
    Some(Condition {
        status: text("status"),
        reason: text("reason"),
        message: text("message"),
        since: text("lastTransitionTime"),
        reported_at: text("lastHeartbeatTime"),
    })
}

/// The newest write of a manager that owns a field of the assignment: it was there by then.
fn assigned_by(node: &Value) -> String {
    let owns = |entry: &&Value| {
        let source = entry.pointer("/fieldsV1/f:spec/f:configSource").is_some();
        let labels = entry.pointer("/fieldsV1/f:metadata/f:labels").and_then(Value::as_object);
        source || labels.is_some_and(|labels| labels.contains_key(&format!("f:{}name", assignment::LABELS)))
    };
    let entries = node.pointer("/metadata/managedFields").and_then(Value::as_array).into_iter().flatten();
    let times = entries.filter(owns).filter_map(|entry| entry.get("time")?.as_str());
    times.max().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn map(version: &str) -> Value {
        json!({"configMap": {"namespace": "n", "name": "m", "kubeletConfigKey": "k", "uid": "u", "resourceVersion": version}})
    }

    fn node(config: &Value, reason: &str, desired: &str) -> NodeRow {
        let condition = json!({"type": CONDITION, "status": "Unknown", "reason": reason, "message": "words"});
        let node = json!({
            "metadata": {"name": "n1", "annotations": {STATUS_ANNOTATION: config.to_string()}},
            "spec": {"configSource": {"configMap": {"namespace": "n", "name": desired, "kubeletConfigKey": "k"}}},
            "status": {"conditions": [condition, {"type": "Ready", "status": "True"}], "nodeInfo": {"kubeletVersion": "v1.20.2"}},
        });
        NodeRow::from_node(&node, "kube-system")
    }

    #[test]
    fn stages() {
        let running = json!({"assigned": map("2"), "active": map("2"), "lastKnownGood": map("1")});
        let proven = json!({"assigned": map("2"), "active": map("2"), "lastKnownGood": map("2")});
        let failed = json!({"assigned": map("2"), "active": map("1"), "error": "failed"});
        let of = |config: &Value, reason: &str| node(config, reason, "m").stage();
        assert_eq!(of(&running, "OnTrial"), Stage::OnTrial);
        assert_eq!(of(&running, "AwaitsConfirmation"), Stage::AwaitsConfirmation);
        assert_eq!(of(&proven, "LastKnownGood"), Stage::Proven);
        assert_eq!(of(&failed, "RolledBack"), Stage::Failed);
        assert_eq!(of(&running, "Pinned"), Stage::Held);
        assert_eq!(node(&proven, "LastKnownGood", "other").stage(), Stage::Pending, "said of another");
        assert_eq!(node(&failed, "RolledBack", "other").stage(), Stage::Pending, "old news");
    }

    #[test]
    fn odd_nodes_are_read() {
        for odd in
            [json!(null), json!({"metadata": 1, "status": {"conditions": {}}}), json!({"spec": {"configSource": {}}})]
        {
            let row = NodeRow::from_node(&odd, "n");
            assert_eq!(row.manager, Some(ConfigManager::Nobody));
        }
        let labelled = json!({"metadata": {"labels": {format!("{}name", assignment::LABELS): "m"}}});
        let row = NodeRow::from_node(&labelled, "n");
        assert_eq!((row.carrier, row.stage()), (Some(Carrier::Labels), Stage::Pending));
        assert_eq!(row.desired.unwrap().namespace, "n");
    }
}
