//! What is said: status, error strings, events. Native's words where native had them.

use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};

use super::machine::{Kubelet, State, TrialEnd};
use super::model::Source;
use super::payload::duration::GoDuration;

/// Native's error strings (pkg/kubelet/kubeletconfig/status/status.go:32-47, v1.20.2).
pub const LOAD_ERROR: &str = "failed to load config, see Kubelet log for details";
/// See [`LOAD_ERROR`].
pub const VALIDATE_ERROR: &str = "failed to validate config, see Kubelet log for details";
/// See [`LOAD_ERROR`].
pub const INTERNAL_ERROR: &str = "internal failure, see Kubelet log for details";

/// Errors of synchronisation; native prefixes them with "failed to sync: ".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncError {
    /// `configSource` without a subfield.
    AllNil,
    /// The ConfigMap cannot be had.
    Download,
    /// Our own trouble.
    Internal,
}

impl SyncError {
    /// The text for `status.config.error`.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Self::AllNil => {
                "failed to sync: invalid NodeConfigSource, exactly one subfield must be non-nil, but all were nil"
            }
            Self::Download => "failed to sync: failed to download config, see Kubelet log for details",
            Self::Internal => "failed to sync: internal failure, see Kubelet log for details",
        }
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

impl NodeConfigStatus {
    /// What the state amounts to.
    #[must_use]
    pub fn of(state: &State) -> Self {
        Self {
            assigned: state.saved.assigned.clone(),
            active: state.active.clone(),
            last_known_good: state.saved.last_known_good.clone(),
            error: state
                .sync_error
                .as_ref()
                .map(|(error, _)| error.text().to_owned())
                .or_else(|| state.error.as_ref().map(|(error, _)| error.clone())),
        }
    }

    /// The body of a merge patch on `nodes/NAME/status`; null deletes.
    #[must_use]
    pub fn patch(&self) -> Value {
        json!({ "status": { "config": self } })
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

/// A core/v1 Event about the own Node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Machine word.
    pub reason: &'static str,
    /// Warning instead of Normal.
    pub warning: bool,
    /// For people.
    pub message: String,
    /// The version it is about.
    pub source: Option<Source>,
    /// The kubelet's last lines, for the history.
    pub words: Vec<String>,
    /// For the history alone, not for the API server.
    pub local: bool,
}

fn event(reason: &'static str, warning: bool, source: Option<&Source>, message: String) -> Event {
    // The API server refuses messages over 1024 bytes.
    let cut = message.char_indices().map(|(at, _)| at).take_while(|at| *at <= 1000).last().unwrap_or(0);
    let message = if message.len() > 1000 { format!("{}…", message.get(..cut).unwrap_or_default()) } else { message };
    Event { reason, warning, message, source: source.cloned(), words: Vec::new(), local: false }
}

/// Native's only event (configsync.go:38-45), sent when a restart really happens for a change.
#[must_use]
pub fn changed(source: Option<&Source>) -> Event {
    let to = source.map_or_else(|| "local config".to_owned(), Source::to_string);
    event("KubeletConfigChanged", false, source, format!("Kubelet restarting to use {to}"))
}

/// A new source with equal content.
#[must_use]
pub fn adopted(source: &Source) -> Event {
    event("KubeletConfigAdopted", false, Some(source), format!("Equal content, no restart: {source}"))
}

/// The kubelet, or we, refused it.
#[must_use]
pub fn rejected(source: &Source, why: &str) -> Event {
    event("KubeletConfigRejected", true, Some(source), format!("Rejected {source}: {why}"))
}

/// A trial failed. The reason goes first: messages are cut at their end.
#[must_use]
pub fn rolled_back(source: &Source, to: Option<&Source>, why: &str) -> Event {
    event("KubeletConfigRolledBack", true, Some(source), format!("Rolled back, {why}: from {source} to {}", name(to)))
}

/// A trial was passed.
#[must_use]
pub fn proven(source: &Source, after: Duration) -> Event {
    event(
        "KubeletConfigProven",
        false,
        Some(source),
        format!("Last known good after {} of continuous health: {source}", GoDuration(after)),
    )
}

/// The document of `status -o json`.
#[must_use]
pub fn status_document(state: &State, version: Option<&str>) -> Value {
    let config = NodeConfigStatus::of(state);
    let (trial, since) = trial_words(state);
    let remaining = state.trial_remaining().map(|left| left.as_secs());
    json!({
        "assigned": config_source(config.assigned.as_ref()),
        "active": config_source(config.active.as_ref()),
        "lastKnownGood": config_source(config.last_known_good.as_ref()),
        "error": config.error.unwrap_or_default(),
        "errorDetail": error_detail(state).unwrap_or_default(),
        "trial": { "state": trial, "since": since, "remainingSeconds": remaining },
        "kubelet": {
            "pid": state.pid(),
            "version": version,
            "ready": state.is_ready(),
            "restarts": state.starts.saturating_sub(1),
        },
        "shadowedByFlags": state.in_force.shadowed,
    })
}

/// The words behind the error string.
#[must_use]
pub fn error_detail(state: &State) -> Option<String> {
    let sync = state.sync_error.as_ref().map(|(_, why)| why);
    sync.or_else(|| state.error.as_ref().map(|(_, why)| why)).cloned()
}

fn trial_words(state: &State) -> (&'static str, Option<String>) {
    if state.trial.is_none() {
        return match state.trial_end {
            TrialEnd::None => ("none", None),
            TrialEnd::Passed => ("passed", None),
            TrialEnd::Failed => ("failed", None),
        };
    }
    let since = match &state.kubelet {
        Kubelet::Running(run) => run.healthy_since,
        _ => None,
    };
    ("running", since.map(|moment| timestamp(moment.wall_nanos)))
}

/// RFC 3339 in UTC, whole seconds.
#[must_use]
pub fn timestamp(wall_nanos: u64) -> String {
    let seconds = i64::try_from(wall_nanos / 1_000_000_000).unwrap_or(0);
    jiff::Timestamp::from_second(seconds).map_or_else(|_| String::new(), |time| time.to_string())
}

/// One line for systemd's STATUS and for people.
#[must_use]
pub fn summary(state: &State) -> String {
    let active = name(state.active.as_ref());
    let kubelet = match &state.kubelet {
        Kubelet::Running(run) if run.ready => "ready",
        Kubelet::Running(_) => "starting",
        Kubelet::Waiting { .. } => "waiting to restart",
        Kubelet::Stopping { .. } => "stopping",
        _ => "down",
    };
    let trial = state
        .trial_remaining()
        .map(|left| format!(", on trial for another {}", GoDuration(Duration::from_secs(left.as_secs()))));
    let error = NodeConfigStatus::of(state).error.map(|error| format!("; {error}"));
    format!("kubelet {kubelet} with {active}{}{}", trial.unwrap_or_default(), error.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::model::ConfigMapRef;

    fn source() -> Source {
        Source {
            reference: ConfigMapRef { namespace: "n".into(), name: "m".into(), kubelet_config_key: "k".into() },
            resource_version: "7".into(),
            uid: "u".into(),
        }
    }

    #[test]
    fn native_event_texts() {
        assert_eq!(
            changed(Some(&source())).message,
            "Kubelet restarting to use /api/v1/namespaces/n/configmaps/m, UID: u, ResourceVersion: 7, KubeletConfigKey: k"
        );
        assert_eq!(changed(None).message, "Kubelet restarting to use local config");
    }

    #[test]
    fn status_has_native_shape() {
        let status =
            NodeConfigStatus { assigned: Some(source()), error: Some(LOAD_ERROR.into()), ..Default::default() };
        assert_eq!(
            status.patch(),
            json!({"status": {"config": {
                "assigned": {"configMap": {"namespace": "n", "name": "m", "kubeletConfigKey": "k", "resourceVersion": "7", "uid": "u"}},
                "active": null, "lastKnownGood": null, "error": LOAD_ERROR,
            }}})
        );
        assert!(status.matches(&json!({"assigned": {"configMap": source()}, "error": LOAD_ERROR})));
        assert!(!status.matches(&json!({"assigned": {"configMap": source()}})));
        assert!(NodeConfigStatus::default().matches(&Value::Null));
    }

    #[test]
    fn long_messages_are_cut_at_a_character() {
        let event = rejected(&source(), &"é".repeat(2000));
        assert!(event.message.len() <= 1010 && event.message.ends_with('…'));
    }
}
