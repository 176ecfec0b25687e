//! What a Node object says of its configuration.

use std::collections::BTreeMap;

use serde_json::Value;

use kubelet_config::assignment::{self, Assignment, reference_fault};
use kubelet_config::preflight::{PreflightStatus, REQUEST_ANNOTATION};
use kubelet_config::reported::{self, ReportedCondition, ReportedStatus, ReportedSupervisor};
use kubelet_config::schema::is_within;
use kubelet_config::source::{ConfigMapRef, Source};

/// An administrator's annotation on a Node: a version to try again.
pub(crate) const RETRY: &str = "kubelet-supervisor.io/retry";

/// An administrator's annotation on a Node: a version to confirm.
pub(crate) const CONFIRM: &str = "kubelet-supervisor.io/confirm";

kubelet_config::named! {
    /// Where a Node's assignment is written; named for tables, `-o json` and `--carrier`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum Carrier by label {
        /// `spec.configSource`.
        Native = "native",
        /// Labels.
        Labels = "labels",
    }
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

kubelet_config::named! {
    /// How far the assigned configuration is; named for tables and `-o json`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Stage by label {
        /// Nothing is assigned and the node's own configuration runs.
        Local = "local",
        /// Assigned, and the node did not say anything of it yet.
        Pending = "pending",
        /// Accepted; it waits for its turn.
        Scheduled = "scheduled",
        /// It runs, and must prove itself.
        OnTrial = "on trial",
        /// It runs, is healthy, and somebody must confirm it.
        AwaitsConfirmation = "to confirm",
        /// It runs and is last known good.
        Proven = "proven",
        /// It does not run: refused, rolled back, or not to be had.
        Failed = "failed",
        /// An operator on the node holds another configuration, or lets none in.
        Held = "held",
    }
}

/// A Node, as far as its configuration goes. What only pools go by is in their `PoolNode`. Reads what may be odd without
/// failing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeRow {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) created: String,
    /// The assignment is at least as old as this: the last write of whoever owns its fields (`managedFields`).
    /// Empty if nobody is known to.
    pub(crate) assignment_written_at: String,
    /// `status.nodeInfo.kubeletVersion`.
    pub(crate) kubelet: String,
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
    pub(crate) condition: Option<ReportedCondition>,
    /// The Node's condition Ready is True.
    pub(crate) ready: bool,
    pub(crate) manager: Option<ConfigManager>,
    /// What it answered when it was last asked to judge a configuration; of most Nodes at most times: nothing.
    pub(crate) preflight: Option<Box<PreflightStatus>>,
    /// The annotation `kubelet-supervisor.io/preflight`.
    pub(crate) preflight_request: Option<String>,
}

impl NodeRow {
    /// Reads a Node. `namespace`: of labels that name none, the supervisors' `--config-namespace`.
    pub(crate) fn from_node(node: &Value, namespace: &str) -> Self {
        let text = |pointer: &str| reported::text(node.pointer(pointer).and_then(Value::as_str).unwrap_or_default());
        let labels = strings(node.pointer("/metadata/labels"));
        let reported = ReportedStatus::from_node(node);
        let manager = if reported.condition.is_some() || reported.annotated {
            ConfigManager::Supervisor
        } else if reported.native {
            ConfigManager::Native
        } else {
            ConfigManager::Nobody
        };
        let ready = ReportedCondition::from_node(node, "Ready");
        let mut row = Self {
            name: text("/metadata/name"),
            version: text("/metadata/resourceVersion"),
            created: text("/metadata/creationTimestamp"),
            assignment_written_at: assignment_written_at(node),
            kubelet: text("/status/nodeInfo/kubeletVersion"),
            assigned: reported.assigned,
            active: reported.active,
            last_known_good: reported.last_known_good,
            error: reported.error,
            retry: annotation(node, RETRY),
            trial_ends: reported.trial_ends,
            confirm_by: reported.confirm_by,
            condition: reported.condition,
            ready: ready.is_some_and(|ready| ready.status == "True"),
            manager: Some(manager),
            preflight: PreflightStatus::from_node(node).map(Box::new),
            preflight_request: annotation(node, REQUEST_ANNOTATION),
            ..Self::default()
        };
        let native = node.pointer("/spec/configSource").filter(|source| !source.is_null());
        if let Some(native) = native {
            row.carrier = Some(Carrier::Native);
            let named = native.get("configMap").and_then(|map| serde_json::from_value(map.clone()).ok());
            let named: Result<ConfigMapRef, _> = named.ok_or("spec.configSource names no ConfigMap".to_owned());
            match named.and_then(|named| match reference_fault(&named) {
                Some((part, why)) => Err(format!("spec.configSource: {part}: {why}")),
                None => Ok(named),
            }) {
                Ok(named) => row.desired = Some(named),
                Err(why) => row.invalid = Some(why),
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

    /// The reason of the condition `KubeletConfigOk`; empty if there is none.
    pub(crate) fn reason(&self) -> &str {
        self.condition.as_ref().map_or("", |condition| condition.reason.as_str())
    }

    /// How far it is. What the node says of another ConfigMap than the one asked for is old.
    pub(crate) fn stage(&self) -> Stage {
        let reason = self.reason();
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

pub(crate) fn annotation(node: &Value, name: &str) -> Option<String> {
    node.pointer("/metadata/annotations")?.get(name)?.as_str().map(reported::text)
}

fn strings(map: Option<&Value>) -> BTreeMap<String, String> {
    let map = map.and_then(Value::as_object).into_iter().flatten();
    map.filter_map(|(name, value)| Some((name.clone(), reported::text(value.as_str()?)))).collect()
}

/// The flag that wins over a field, without dashes, if the node says so.
pub(crate) fn winning_flag<'a>(supervisor: &'a ReportedSupervisor, field: &str) -> Option<&'a str> {
    supervisor.shadowed.iter().find_map(|shadow| {
        let (shadowed, flag) = shadow.strip_suffix(')')?.split_once(" (--")?;
        let is_flag = flag.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
        (is_flag && is_within(field, shadowed)).then_some(flag)
    })
}

/// The newest write of a manager that owns a field of the assignment: it was there by then.
fn assignment_written_at(node: &Value) -> String {
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
    use kubelet_config::status::{CONDITION, STATUS_ANNOTATION};

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
