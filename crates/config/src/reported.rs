//! What a Node object says of its kubelet's configuration, decoded. The node writes it, so it is not trusted: each text
//! is bounded and steers no terminal, each list is short, and a source is one that can exist. Whoever prints, records or
//! acts on what a node says takes it from here.

use serde_json::Value;

use crate::assignment::reference_fault;
pub use crate::bounds::{MAX_EVENT, MAX_LIST, MAX_TEXT, bounded, error_chain, plain, text, with_causes};
use crate::source::{Source, is_safe_component};
use crate::status::{ABOUT_ANNOTATION, CONDITION, CONFIRM_BY, STATUS_ANNOTATION, TRIAL_ENDS};

/// `Node.status.config` as a node reports it: the annotation, which each of our patches writes, or the field, which may be
/// of former days.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReportedStatus {
    /// The annotation is there.
    pub annotated: bool,
    /// `status.config` is there.
    pub native: bool,
    /// The resolved version; none also where it names nothing that can be.
    pub assigned: Option<Source>,
    /// What runs; none is the node's own.
    pub active: Option<Source>,
    /// What to fall back to; none is the node's own.
    pub last_known_good: Option<Source>,
    /// Native's error string; empty if there is none.
    pub error: String,
    /// When the trial is passed if all stays well (RFC 3339).
    pub trial_ends: Option<String>,
    /// Until when what runs is to be confirmed (RFC 3339).
    pub confirm_by: Option<String>,
    /// The condition `KubeletConfigOk`.
    pub condition: Option<ReportedCondition>,
}

/// A Node condition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReportedCondition {
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// One word, for programs.
    pub reason: String,
    /// For people.
    pub message: String,
    /// Has this status since (RFC 3339).
    pub since: String,
    /// These words were said then (RFC 3339).
    pub reported_at: String,
}

/// What a Node's supervisor says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReportedSupervisor {
    /// Its version; none where it does not tell.
    pub version: Option<String>,
    /// Fields that flags win over, as in `maxPods (--max-pods)`.
    pub shadowed: Vec<String>,
    /// Whether the node has a policy: absent, in-force, unreadable, violated; none where it does not tell.
    pub policy: Option<String>,
    /// Why no kubelet starts with its own files, as far as it knows.
    pub own_files: Option<String>,
}

impl ReportedStatus {
    /// Reads a Node, however odd it is.
    #[must_use]
    pub fn from_node(node: &Value) -> Self {
        let annotated = annotation(node, STATUS_ANNOTATION);
        let native = node.pointer("/status/config").filter(|config| !config.is_null());
        let reported = annotated.as_ref().or(native).unwrap_or(&Value::Null);
        let optional = |field: &str| reported.get(field).and_then(Value::as_str).map(text);
        Self {
            annotated: annotated.is_some(),
            native: native.is_some(),
            assigned: source(reported, "assigned"),
            active: source(reported, "active"),
            last_known_good: source(reported, "lastKnownGood"),
            error: optional("error").unwrap_or_default(),
            trial_ends: optional(TRIAL_ENDS),
            confirm_by: optional(CONFIRM_BY),
            condition: ReportedCondition::from_node(node, CONDITION),
        }
    }
}

impl ReportedCondition {
    /// The condition of this type.
    #[must_use]
    pub fn from_node(node: &Value, of: &str) -> Option<Self> {
        let conditions = node.pointer("/status/conditions")?.as_array()?;
        let found = conditions.iter().find(|condition| condition.get("type").and_then(Value::as_str) == Some(of))?;
        let field = |field: &str| text(found.get(field).and_then(Value::as_str).unwrap_or_default());
        Some(Self {
            status: field("status"),
            reason: field("reason"),
            message: field("message"),
            since: field("lastTransitionTime"),
            reported_at: field("lastHeartbeatTime"),
        })
    }
}

impl ReportedSupervisor {
    /// Reads a Node, however odd it is.
    #[must_use]
    pub fn from_node(node: &Value) -> Self {
        let about = annotation(node, ABOUT_ANNOTATION).unwrap_or_default();
        let field = |name: &str| about.get(name).and_then(Value::as_str).map(text);
        let (version, policy, own_files) = (field("version"), field("policy"), field("ownFiles"));
        let shadowed = about.get("shadowedByFlags").and_then(Value::as_array).into_iter().flatten();
        let shadowed = shadowed.filter_map(Value::as_str).take(MAX_LIST).map(text).collect();
        Self { version, shadowed, policy, own_files }
    }
}

/// An annotation that holds JSON.
fn annotation(node: &Value, name: &str) -> Option<Value> {
    let text = node.pointer("/metadata/annotations")?.get(name)?.as_str()?;
    serde_json::from_str(text).ok()
}

fn source(reported: &Value, field: &str) -> Option<Source> {
    let source: Source = serde_json::from_value(reported.get(field)?.get("configMap")?.clone()).ok()?;
    let names_a_version = is_safe_component(&source.uid) && is_safe_component(&source.resource_version);
    (names_a_version && reference_fault(&source.reference).is_none()).then_some(source)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_lying_node_is_read_within_bounds() {
        let long = "\u{1b}]0;x\u{7}".repeat(20_000);
        let map = |namespace: &str, name: &str, version: &str| {
            json!({"configMap": {"namespace": namespace, "name": name, "kubeletConfigKey": "kubelet", "uid": "u",
                "resourceVersion": version}})
        };
        let said = json!({"assigned": map("kube-system/secrets", "m", "1"), "active": map("n", "../x", "1"),
            "lastKnownGood": map("n", "m", &long), "error": long, "trialEnds": long, "confirmBy": long});
        let about = json!({"version": long, "shadowedByFlags": vec![long.as_str(); 1000]});
        let condition = json!({"type": CONDITION, "status": long, "reason": long, "message": long,
            "lastTransitionTime": long, "lastHeartbeatTime": long});
        let annotations = json!({STATUS_ANNOTATION: said.to_string(), ABOUT_ANNOTATION: about.to_string()});
        let node = json!({"metadata": {"annotations": annotations}, "status": {"conditions": [condition]}});
        let read = ReportedStatus::from_node(&node);
        assert_eq!((&read.assigned, &read.active, &read.last_known_good), (&None, &None, &None));
        let ReportedCondition { status, reason, message, since, reported_at } = read.condition.unwrap();
        let supervisor = ReportedSupervisor::from_node(&node);
        assert_eq!(supervisor.shadowed.len(), MAX_LIST);
        let texts = [read.error, read.trial_ends.unwrap(), read.confirm_by.unwrap(), status, reason, message, since];
        let texts = texts.into_iter().chain([reported_at, supervisor.version.unwrap()]).chain(supervisor.shadowed);
        for text in texts {
            assert!(text.len() <= MAX_TEXT && !text.chars().any(char::is_control), "{text}");
        }
    }

    #[test]
    fn odd_nodes_are_read() {
        for odd in [json!(null), json!({"metadata": 1, "status": {"conditions": {}}}), json!([1])] {
            assert_eq!(ReportedStatus::from_node(&odd), ReportedStatus::default());
            assert_eq!(ReportedSupervisor::from_node(&odd), ReportedSupervisor::default());
        }
    }
}
