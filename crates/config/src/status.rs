//! The status document: what a node says of its configuration, on the Node and to people.

use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::bounds::bounded;
use crate::preflight::{ANSWER_ANNOTATION, PreflightStatus};
use crate::source::Source;

/// Native's error strings (pkg/kubelet/kubeletconfig/status/status.go:32-47, v1.20.2).
pub const LOAD_ERROR: &str = "failed to load config, see Kubelet log for details";

/// The same where the kubelet refuses the configuration.
pub const VALIDATE_ERROR: &str = "failed to validate config, see Kubelet log for details";

/// The same where the store or the node is at fault.
pub const INTERNAL_ERROR: &str = "internal failure, see Kubelet log for details";

/// The version of this build.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

crate::named! {
    /// Errors of synchronisation, with the text for `status.config.error`; native prefixes them with "failed to sync: ".
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum SyncError by text {
        /// `configSource` without a subfield.
        AllNil = "failed to sync: invalid NodeConfigSource, exactly one subfield must be non-nil, but all were nil",
        /// The ConfigMap cannot be had.
        Download = "failed to sync: failed to download config, see Kubelet log for details",
        /// The store or the node is at fault.
        Internal = "failed to sync: internal failure, see Kubelet log for details",
    }
}

/// `Node.status.config`: absent fields are the local configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeConfigStatus {
    /// The version resolved from the assignment.
    #[serde(serialize_with = "as_config_source")]
    pub assigned: Option<Source>,
    /// The version the kubelet runs with.
    #[serde(serialize_with = "as_config_source")]
    pub active: Option<Source>,
    /// The version to fall back to.
    #[serde(serialize_with = "as_config_source")]
    pub last_known_good: Option<Source>,
    /// Native's error string.
    pub error: Option<String>,
    /// When the trial is passed if all stays well (RFC 3339); in the annotation alone. It is a moment and not what is
    /// left of it, so that it costs a write only when what was promised changes.
    #[serde(skip)]
    pub trial_ends: Option<String>,
    /// Until when what runs is to be confirmed; in the annotation alone.
    #[serde(skip)]
    pub confirm_by: Option<String>,
    /// The Node condition beside it: what native had no field for.
    #[serde(skip)]
    pub condition: Condition,
    /// Fields that flags of the kubelet win over.
    #[serde(skip)]
    pub shadowed: Vec<String>,
    /// `absent`, `in-force`, `unreadable`, or `violated` by what runs.
    #[serde(skip)]
    pub policy: &'static str,
    /// Why no kubelet starts with the node's own files, as far as that is known.
    #[serde(skip)]
    pub own_files: Option<String>,
    /// The answer to what the Node is asked to judge; in an annotation of its own.
    #[serde(skip)]
    pub preflight: PreflightAnswer,
}

/// What the Node is to say of what it is asked to judge ([`crate::preflight`]).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PreflightAnswer {
    /// What it says, until more is known.
    #[default]
    AsItIs,
    /// Nothing: it is not asked.
    None,
    /// This, as long as it is asked for that.
    Said(Box<PreflightStatus>),
}

impl PreflightAnswer {
    /// What the annotation is to be, where it is another than is shown; null takes it away.
    fn unsaid(&self, shown: &PublishedStatus) -> Option<Value> {
        match (self, &shown.preflight_request) {
            (Self::None, None) => shown.preflight.as_ref().map(|_| Value::Null),
            (Self::Said(answer), Some(request)) if answer.answers(request) => {
                let text = answer.annotation();
                (shown.preflight.as_ref() != Some(&text)).then(|| json!(text))
            }
            // The Node is asked for something else by now, which the machine has yet to hear of.
            _ => None,
        }
    }
}

/// The Node condition `KubeletConfigOk`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// `True`: what is assigned runs and is proven. `False`: it does not run. `Unknown`: on trial,
    /// or held by an operator.
    pub status: ConditionStatus,
    /// Its `reason`.
    pub reason: ConditionReason,
    /// For people, with the kubelet's own message.
    pub message: String,
}

crate::named! {
    /// A condition's `status` (core/v1 `ConditionStatus`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum ConditionStatus by as_str {
        /// What is assigned runs and is proven.
        True = "True",
        /// What is assigned does not run.
        False = "False",
        /// On trial, held by an operator, or still to come.
        Unknown = "Unknown",
    }
}

crate::named! {
    /// The `reason` of [`Condition`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum ConditionReason by as_str {
        /// The node's own configuration runs.
        Local = "Local",
        /// Proven.
        LastKnownGood = "LastKnownGood",
        /// On trial.
        OnTrial = "OnTrial",
        /// On trial, while the node around the kubelet is at fault.
        TrialSuspended = "TrialSuspended",
        /// Healthy, and to be confirmed by somebody.
        AwaitsConfirmation = "AwaitsConfirmation",
        /// Accepted; begins at this node's own time.
        Scheduled = "Scheduled",
        /// An operator holds what runs.
        Pinned = "Pinned",
        /// An operator lets no change in.
        Frozen = "Frozen",
        /// What is assigned cannot be had.
        SyncFailed = "SyncFailed",
        /// Refused before it ran.
        Rejected = "Rejected",
        /// Failed its trial.
        RolledBack = "RolledBack",
        /// Failed, as last known good did: it is tried again.
        NotToBlame = "NotToBlame",
        /// It cannot be used for another reason.
        Failed = "Failed",
        /// What runs is forbidden by the node's policy.
        ForbiddenByPolicy = "ForbiddenByPolicy",
    }
}

/// How the message of a condition begins whose change waits for as long as it takes: for the end of a pressure, or until any
/// restart would cost no pod.
pub const WAITS_WHILE: &str = "Waits while ";

/// The Node annotation that holds the status where `status.config` is not kept, and beside it
/// where it is: the same JSON.
pub const STATUS_ANNOTATION: &str = "kubelet-supervisor.io/config-status";

/// The Node annotation that tells who looks after it: the supervisor's version, and the fields that flags win over.
/// What `kubectl kubelet-config doctor` cannot see from afar.
pub const ABOUT_ANNOTATION: &str = "kubelet-supervisor.io/supervisor";

/// The annotation's field for [`NodeConfigStatus::trial_ends`].
pub const TRIAL_ENDS: &str = "trialEnds";

/// The annotation's field for [`NodeConfigStatus::confirm_by`].
pub const CONFIRM_BY: &str = "confirmBy";

/// What the Node says of us, as the API server last showed it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PublishedStatus {
    /// `status.config`; null if there is none.
    pub config: Value,
    /// The condition [`CONDITION`], as JSON.
    pub condition: Option<Value>,
    /// The value of [`STATUS_ANNOTATION`].
    pub annotation: Option<String>,
    /// The value of [`ABOUT_ANNOTATION`].
    pub about: Option<String>,
    /// The value of [`ANSWER_ANNOTATION`].
    pub preflight: Option<String>,
    /// The value of [`crate::preflight::REQUEST_ANNOTATION`].
    pub preflight_request: Option<String>,
}

/// The condition's `type`.
pub const CONDITION: &str = "KubeletConfigOk";

impl Default for Condition {
    fn default() -> Self {
        Self {
            status: ConditionStatus::True,
            reason: ConditionReason::Local,
            message: "The node's own configuration runs".to_owned(),
        }
    }
}

impl Condition {
    /// As it is written; a status that stays keeps the time of its beginning.
    fn to_json(&self, shown: Option<&Value>, now: &str) -> Value {
        let Self { status, reason, message } = self;
        let (status, reason) = (status.as_str(), reason.as_str());
        let same = shown.filter(|shown| shown.get("status").and_then(Value::as_str) == Some(status));
        let since = same.and_then(|shown| shown.get("lastTransitionTime")).cloned().unwrap_or_else(|| json!(now));
        json!({
            "type": CONDITION, "status": status, "reason": reason, "message": message,
            "lastHeartbeatTime": now, "lastTransitionTime": since,
        })
    }

    /// True if the Node's list of conditions says so already. A node that never had anything but
    /// its own configuration need not say so.
    #[must_use]
    pub fn is_published(&self, shown: Option<&Value>) -> bool {
        let Some(shown) = shown else { return *self == Self::default() };
        let same = |field: &str, ours: &str| shown.get(field).and_then(Value::as_str) == Some(ours);
        same("status", self.status.as_str()) && same("reason", self.reason.as_str()) && same("message", &self.message)
    }
}

/// A source in the shape of `NodeConfigSource`, as the status shows it.
fn as_config_source<S: serde::Serializer>(source: &Option<Source>, serializer: S) -> Result<S::Ok, S::Error> {
    config_source(source.as_ref()).serialize(serializer)
}

/// `{"configMap": {…}}`, or null for local.
#[must_use]
pub fn config_source(source: Option<&Source>) -> Value {
    source.map_or(Value::Null, |source| json!({ "configMap": source }))
}

/// Bytes of what is said of the node's own files in an annotation.
const OWN_FILES: usize = 512;

impl NodeConfigStatus {
    /// The body of a strategic merge patch on `nodes/NAME/status`; null deletes, and other
    /// conditions stay. The subresource takes annotations too (nodeStatusStrategy,
    /// pkg/registry/core/node/strategy.go, v1.20.2 and v1.36.2; kubelets rely on it). `now` is the
    /// time in RFC 3339.
    #[must_use]
    pub fn patch(&self, shown: &PublishedStatus, now: &str) -> Value {
        let mut status = Map::from_iter([("config".to_owned(), json!(self))]);
        if !self.condition.is_published(shown.condition.as_ref()) {
            let conditions = json!([self.condition.to_json(shown.condition.as_ref(), now)]);
            status.insert("conditions".to_owned(), conditions);
        }
        let mut patch = Map::from_iter([("status".to_owned(), status.into())]);
        let status = (STATUS_ANNOTATION, self.annotation(), &shown.annotation);
        let about = (ABOUT_ANNOTATION, self.about(), &shown.about);
        let unsaid = [status, about].into_iter().filter(|(_, text, shown)| shown.as_ref() != Some(text));
        let mut annotations: Map<String, Value> =
            unsaid.map(|(name, text, _)| (name.to_owned(), text.into())).collect();
        let answer = self.preflight.unsaid(shown);
        annotations.extend(answer.map(|answer| (ANSWER_ANNOTATION.to_owned(), answer)));
        if !annotations.is_empty() {
            patch.insert("metadata".to_owned(), json!({ "annotations": annotations }));
        }
        patch.into()
    }

    /// The text of [`ABOUT_ANNOTATION`].
    #[must_use]
    pub fn about(&self) -> String {
        let mut about = json!({ "version": VERSION, "shadowedByFlags": self.shadowed, "policy": self.policy });
        if let (Some(why), Some(fields)) = (&self.own_files, about.as_object_mut()) {
            fields.insert("ownFiles".to_owned(), bounded(why, OWN_FILES).into());
        }
        about.to_string()
    }

    /// The text of [`STATUS_ANNOTATION`]: what is unset is left out, as in `status.config`, and what native had no
    /// field for is added.
    #[must_use]
    pub fn annotation(&self) -> String {
        let mut config = json!(self);
        if let Some(fields) = config.as_object_mut() {
            fields.insert(TRIAL_ENDS.to_owned(), json!(self.trial_ends));
            fields.insert(CONFIRM_BY.to_owned(), json!(self.confirm_by));
            fields.retain(|_, value| !value.is_null());
        }
        config.to_string()
    }

    /// True if the Node's annotations say the same.
    #[must_use]
    pub fn is_annotated(&self, shown: &PublishedStatus) -> bool {
        shown.annotation.as_ref().is_some_and(|shown| *shown == self.annotation())
            && shown.about.as_ref().is_some_and(|shown| *shown == self.about())
            && self.preflight.unsaid(shown).is_none()
    }

    /// True if a `status.config` read from the API server says the same.
    #[must_use]
    pub fn matches(&self, seen: &Value) -> bool {
        let ours = json!(self);
        ["assigned", "active", "lastKnownGood", "error"].iter().all(|field| {
            let read = |value: &Value| value.get(*field).filter(|value| !value.is_null() && *value != "").cloned();
            read(&ours) == read(seen)
        })
    }
}

/// A short name for a source or the local configuration.
#[must_use]
pub fn name(source: Option<&Source>) -> String {
    source.map_or_else(|| "the local configuration".to_owned(), Source::to_string)
}

/// The API server refuses messages of events over 1024 bytes.
#[must_use]
pub fn cut(message: String) -> String {
    if message.len() <= 1000 {
        return message;
    }
    let end = message.char_indices().map(|(at, _)| at).take_while(|at| *at <= 1000).last().unwrap_or(0);
    format!("{}…", message.get(..end).unwrap_or_default())
}

/// RFC 3339 in UTC, whole seconds.
#[must_use]
pub fn timestamp(wall_nanos: u64) -> String {
    let seconds = i64::try_from(wall_nanos / 1_000_000_000).unwrap_or(0);
    jiff::Timestamp::from_second(seconds).map_or_else(|_| String::new(), |time| time.to_string())
}

/// Seconds between an RFC 3339 time and the wall clock, whichever is earlier.
#[must_use]
pub fn seconds_between(time: &str, wall_nanos: u64) -> Option<u64> {
    let time: jiff::Timestamp = time.parse().ok()?;
    let now = i64::try_from(wall_nanos / 1_000_000_000).ok()?;
    Some(time.as_second().abs_diff(now))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::preflight::PreflightResult;
    use crate::source::ConfigMapRef;

    fn source() -> Source {
        Source {
            reference: ConfigMapRef { namespace: "n".into(), name: "m".into(), kubelet_config_key: "k".into() },
            resource_version: "7".into(),
            uid: "u".into(),
        }
    }

    #[test]
    fn status_has_native_shape() {
        let status =
            NodeConfigStatus { assigned: Some(source()), error: Some(LOAD_ERROR.into()), ..Default::default() };
        let shown = PublishedStatus {
            annotation: Some(status.annotation()),
            about: Some(status.about()),
            ..PublishedStatus::default()
        };
        assert_eq!(
            status.patch(&shown, "2026-01-01T00:00:00Z"),
            json!({"status": {"config": {
                "assigned": {"configMap": {"namespace": "n", "name": "m", "kubeletConfigKey": "k", "resourceVersion": "7", "uid": "u"}},
                "active": null, "lastKnownGood": null, "error": LOAD_ERROR,
            }}})
        );
        let older = PublishedStatus { about: Some(r#"{"version":"0.0.1"}"#.into()), ..shown };
        let annotations =
            json!({ABOUT_ANNOTATION: format!(r#"{{"policy":"","shadowedByFlags":[],"version":"{VERSION}"}}"#)});
        assert!(!status.is_annotated(&older), "another supervisor wrote it");
        assert_eq!(status.patch(&older, "2026-01-01T00:00:00Z")["metadata"]["annotations"], annotations);
        let answer = PreflightStatus::new("n/m", PreflightResult::Valid, "");
        let (said, text) = (PreflightAnswer::Said(Box::new(answer.clone())), answer.annotation());
        for (answer, request, shown_answer, says) in [
            (PreflightAnswer::AsItIs, None, Some("a"), None),
            (PreflightAnswer::None, None, None, None),
            (PreflightAnswer::None, None, Some("a"), Some(Value::Null)),
            (PreflightAnswer::None, Some("n/m"), Some("a"), None),
            (said.clone(), Some("n/m"), Some(text.as_str()), None),
            (said.clone(), Some("n/m"), None, Some(json!(text))),
            (said.clone(), Some("n/m#2"), None, None),
            (said, None, None, None),
        ] {
            let status = NodeConfigStatus { preflight: answer, ..status.clone() };
            let shown = PublishedStatus {
                annotation: Some(status.annotation()),
                about: Some(status.about()),
                preflight: shown_answer.map(str::to_owned),
                preflight_request: request.map(str::to_owned),
                ..PublishedStatus::default()
            };
            assert_eq!(status.is_annotated(&shown), says.is_none());
            let patch = status.patch(&shown, "2026-01-01T00:00:00Z");
            assert_eq!(patch.pointer("/metadata/annotations").map(|all| all[ANSWER_ANNOTATION].clone()), says);
        }
        assert!(status.matches(&json!({"assigned": {"configMap": source()}, "error": LOAD_ERROR})));
        assert!(!status.matches(&json!({"assigned": {"configMap": source()}})));
        assert!(NodeConfigStatus::default().matches(&Value::Null));
    }
}
