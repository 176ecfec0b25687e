//! What is said: status, error strings, events. Native's words where native had them.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::evidence::Excuse;
use super::machine::{Kubelet, ReloadStage, State, TrialEnd};
use super::model::Source;
use super::payload::duration::GoDuration;
use super::record::REJECTED;

/// Native's error strings (pkg/kubelet/kubeletconfig/status/status.go:32-47, v1.20.2).
pub const LOAD_ERROR: &str = "failed to load config, see Kubelet log for details";
/// See [`LOAD_ERROR`].
pub const VALIDATE_ERROR: &str = "failed to validate config, see Kubelet log for details";
/// See [`LOAD_ERROR`].
pub const INTERNAL_ERROR: &str = "internal failure, see Kubelet log for details";

/// The supervisor's own.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Errors of synchronisation; native prefixes them with "failed to sync: ".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
    /// When the trial is passed if all stays well (RFC 3339); in the annotation alone. It is a moment and not what is
    /// left of it, so that it costs a write only when what was promised changes.
    #[serde(skip)]
    pub trial_ends: Option<String>,
    /// Until when what runs is to be confirmed; in the annotation alone.
    #[serde(skip)]
    pub confirm_by: Option<String>,
    /// The Node condition beside it: what native had no words for.
    #[serde(skip)]
    pub condition: Condition,
    /// Fields that flags of the kubelet win over.
    #[serde(skip)]
    pub shadowed: Vec<String>,
}

/// The Node condition `KubeletConfigOk`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// `True`: what is assigned runs and is proven. `False`: it does not run. `Unknown`: on trial,
    /// or held by an operator.
    pub status: &'static str,
    /// Machine word.
    pub reason: &'static str,
    /// For people, with the kubelet's own words.
    pub message: String,
}

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
pub struct Shown {
    /// `status.config`; null if there is none.
    pub config: Value,
    /// Our condition.
    pub condition: Option<Value>,
    /// [`STATUS_ANNOTATION`].
    pub annotation: Option<String>,
    /// [`ABOUT_ANNOTATION`].
    pub about: Option<String>,
}

/// Its type.
pub const CONDITION: &str = "KubeletConfigOk";

impl Default for Condition {
    fn default() -> Self {
        Self { status: "True", reason: "Local", message: "The node's own configuration runs".to_owned() }
    }
}

impl Condition {
    fn of(state: &State) -> Self {
        let ledger = &state.saved.ledger;
        let active = name(state.active.as_ref());
        let (status, reason, message) = if let Some((error, why)) = &state.sync_error {
            ("False", "SyncFailed", format!("{}: {why}", error.text()))
        } else if let Some((_, why)) = &state.error {
            let mark = ledger.bad.iter().rev().find(|bad| Some(&bad.source) == state.saved.assigned.as_ref());
            let reason = match mark {
                Some(bad) if bad.reason == REJECTED => "Rejected",
                Some(_) => "RolledBack",
                None if ledger.pardon.is_some() => "NotToBlame",
                None => "Failed",
            };
            ("False", reason, why.clone())
        } else if ledger.pin.is_some() {
            ("Unknown", "Pinned", format!("An operator holds {active} until unpin"))
        } else if let Some(excuse) = state.suspended.filter(|_| state.trial.is_some()) {
            ("Unknown", "TrialSuspended", format!("On trial, nobody is blamed for now: {}", excuse.words()))
        } else if state.confirm_left().is_some() {
            let at = confirm_by(state).map(|time| format!(" at {time}")).unwrap_or_default();
            ("Unknown", "AwaitsConfirmation", format!("Healthy, and rolled back{at} unless somebody confirms {active}"))
        } else if state.trial.is_some() {
            let until = trial_ends(state).map(|time| format!(" until {time}")).unwrap_or_default();
            ("Unknown", "OnTrial", format!("On trial{until}: {active}"))
        } else if let Some((source, at)) = state.scheduled() {
            ("Unknown", "Scheduled", format!("Takes effect at {}: {source}", timestamp(at.wall_nanos)))
        } else if ledger.frozen {
            ("Unknown", "Frozen", format!("An operator lets no change in until thaw; {active} runs"))
        } else if state.active.is_some() {
            ("True", "LastKnownGood", format!("Proven: {active}"))
        } else {
            return Self::default();
        };
        Self { status, reason, message: cut(message) }
    }

    /// As it is written; a status that stays keeps the time of its beginning.
    fn written(&self, shown: Option<&Value>, now: &str) -> Value {
        let Self { status, reason, message } = self;
        let same = shown.filter(|shown| shown.get("status").and_then(Value::as_str) == Some(*status));
        let since = same.and_then(|shown| shown.get("lastTransitionTime")).cloned().unwrap_or_else(|| json!(now));
        json!({
            "type": CONDITION, "status": status, "reason": reason, "message": message,
            "lastHeartbeatTime": now, "lastTransitionTime": since,
        })
    }

    /// True if the Node's list of conditions says so already. A node that never had anything but
    /// its own configuration need not say so.
    #[must_use]
    pub fn is_shown(&self, shown: Option<&Value>) -> bool {
        let Some(shown) = shown else { return *self == Self::default() };
        let same = |field: &str, ours: &str| shown.get(field).and_then(Value::as_str) == Some(ours);
        same("status", self.status) && same("reason", self.reason) && same("message", &self.message)
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
            trial_ends: trial_ends(state),
            confirm_by: confirm_by(state),
            condition: Condition::of(state),
            shadowed: state.in_force.shadowed.clone(),
        }
    }

    /// The body of a strategic merge patch on `nodes/NAME/status`; null deletes, and other
    /// conditions stay. The subresource takes annotations too (nodeStatusStrategy,
    /// pkg/registry/core/node/strategy.go, v1.20.2 and v1.36.2; kubelets rely on it). `now` is the
    /// time in RFC 3339.
    #[must_use]
    pub fn patch(&self, shown: &Shown, now: &str) -> Value {
        let mut status = Map::from_iter([("config".to_owned(), json!(self))]);
        if !self.condition.is_shown(shown.condition.as_ref()) {
            let conditions = json!([self.condition.written(shown.condition.as_ref(), now)]);
            status.insert("conditions".to_owned(), conditions);
        }
        let mut patch = Map::from_iter([("status".to_owned(), status.into())]);
        let status = (STATUS_ANNOTATION, self.annotation(), &shown.annotation);
        let about = (ABOUT_ANNOTATION, self.about(), &shown.about);
        let unsaid = [status, about].into_iter().filter(|(_, text, shown)| shown.as_ref() != Some(text));
        let annotations: Map<String, Value> = unsaid.map(|(name, text, _)| (name.to_owned(), text.into())).collect();
        if !annotations.is_empty() {
            patch.insert("metadata".to_owned(), json!({ "annotations": annotations }));
        }
        patch.into()
    }

    /// The text of [`ABOUT_ANNOTATION`].
    #[must_use]
    pub fn about(&self) -> String {
        json!({ "version": VERSION, "shadowedByFlags": self.shadowed }).to_string()
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
    pub fn is_annotated(&self, shown: &Shown) -> bool {
        shown.annotation.as_ref().is_some_and(|shown| *shown == self.annotation())
            && shown.about.as_ref().is_some_and(|shown| *shown == self.about())
    }

    /// True if both say the same in `status.config`.
    #[must_use]
    pub fn same_config(&self, other: &Self) -> bool {
        json!(self) == json!(other)
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

/// The API server refuses messages of events over 1024 bytes.
fn cut(message: String) -> String {
    if message.len() <= 1000 {
        return message;
    }
    let end = message.char_indices().map(|(at, _)| at).take_while(|at| *at <= 1000).last().unwrap_or(0);
    format!("{}…", message.get(..end).unwrap_or_default())
}

fn event(reason: &'static str, warning: bool, source: Option<&Source>, message: String) -> Event {
    Event { reason, warning, message: cut(message), source: source.cloned(), words: Vec::new(), local: false }
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

/// Judgement waits for the surroundings; for the history alone.
#[must_use]
pub fn suspended(source: &Source, excuse: Excuse) -> Event {
    let message = format!("Judgement of {source} is suspended: {}", excuse.words());
    Event { local: true, ..event("KubeletConfigTrialSuspended", true, Some(source), message) }
}

/// Last known good failed in the same way.
#[must_use]
pub fn not_blamed(source: &Source, why: &str) -> Event {
    event("KubeletConfigNotBlamed", false, Some(source), format!("Not to blame, {why}: {source} will be tried again"))
}

/// The evidence is good; somebody must say so.
#[must_use]
pub fn awaits_confirmation(source: &Source, within: Duration) -> Event {
    event(
        "KubeletConfigAwaitsConfirmation",
        false,
        Some(source),
        format!("Healthy; rolled back unless confirmed within {}: {source}", GoDuration(within)),
    )
}

/// An operator did something on the node.
#[must_use]
pub fn operated(reason: &'static str, source: Option<&Source>, message: String) -> Event {
    event(reason, false, source, message)
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
        "trial": {
            "state": trial,
            "since": since,
            "remainingSeconds": remaining,
            "suspended": state.suspended.map(Excuse::words),
            "confirmWithinSeconds": state.confirm_left(),
            "signals": signals(state),
        },
        "kubelet": {
            "pid": state.pid(),
            "version": version,
            "ready": state.is_ready(),
            "restarts": state.starts.saturating_sub(1),
        },
        "scheduled": state.scheduled().map(|(source, at)| json!({
            "source": config_source(Some(source)),
            "at": timestamp(at.wall_nanos),
        })),
        "supervisor": {
            "version": VERSION,
            "reloads": state.reload.count,
            "reloading": state.reload.stage != ReloadStage::None,
            "reloadError": state.reload.error,
        },
        "shadowedByFlags": state.in_force.shadowed,
        "pinned": state.saved.ledger.pin.is_some(),
        "frozen": state.saved.ledger.frozen,
        "badVersions": state.saved.ledger.bad,
    })
}

/// Each signal the trial judges by: good, bad, or not heard of yet.
fn signals(state: &State) -> Value {
    let judged = state.judged_signals().into_iter();
    judged.map(|(signal, good)| (signal.label(), if good { "good" } else { "bad" })).collect()
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

/// While its clock runs, and nobody is asked to confirm what it has found.
fn trial_ends(state: &State) -> Option<String> {
    state.trial_ends().filter(|_| state.confirm_left().is_none()).map(|end| timestamp(end.wall_nanos))
}

fn confirm_by(state: &State) -> Option<String> {
    state.trial.as_ref()?;
    state.confirm_by().map(|wall| timestamp(wall.saturating_mul(1_000_000_000)))
}

/// Seconds between an RFC 3339 time and the wall clock, whichever is earlier.
#[must_use]
pub fn seconds_between(time: &str, wall_nanos: u64) -> Option<u64> {
    let time: jiff::Timestamp = time.parse().ok()?;
    let now = i64::try_from(wall_nanos / 1_000_000_000).ok()?;
    Some(time.as_second().abs_diff(now))
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
    let suspended = state.suspended.map(|excuse| format!(" (suspended: {})", excuse.words()));
    let confirm =
        state.confirm_left().map(|left| format!(", to be confirmed within {}", GoDuration(Duration::from_secs(left))));
    let scheduled =
        state.scheduled().map(|(source, at)| format!(", {source} takes effect at {}", timestamp(at.wall_nanos)));
    let pinned = if state.saved.ledger.pin.is_some() { ", pinned" } else { "" };
    let frozen = if state.saved.ledger.frozen { ", frozen" } else { "" };
    let error = NodeConfigStatus::of(state).error.map(|error| format!("; {error}"));
    let parts = [trial, suspended, confirm, scheduled].map(Option::unwrap_or_default).concat();
    format!("kubelet {kubelet} with {active}{parts}{pinned}{frozen}{}", error.unwrap_or_default())
}

#[cfg(test)]
#[path = "report_tests.rs"]
mod tests;
