//! The state as others see it: the Node's status and condition, `status`, and systemd's STATUS.

use std::time::Duration;

use serde_json::{Value, json};

use super::evidence::{Signal, Suspension};
use super::model::LocalFilesDifference;
use super::records::{BadReason, Phase, Version};
use super::versions::is_same;
use super::{Kubelet, State};
use kubelet_config::duration::GoDuration;
use kubelet_config::policy::PolicyState;
use kubelet_config::status::{
    Condition, ConditionReason, ConditionStatus, NodeConfigStatus, VERSION, WAITS_WHILE, config_source, cut, name,
    timestamp,
};

/// What the state amounts to.
#[must_use]
pub fn node_status(state: &State) -> NodeConfigStatus {
    NodeConfigStatus {
        assigned: state.assigned_in_status(),
        active: state.active_in_status().map(|version| version.source.clone()),
        last_known_good: state.saved().last_known_good.as_ref().map(|version| version.source.clone()),
        error: state.error().map(|(text, _)| text.to_owned()),
        trial_ends: trial_ends(state),
        confirm_by: confirm_by(state),
        condition: condition(state),
        shadowed: state.running().shadowed.clone(),
        policy: policy(state),
        own_files: state.local_files_difference().and_then(LocalFilesDifference::unusable).map(str::to_owned),
        preflight: state.on_request.preflight_answer(),
    }
}

/// Whether the node has a policy, in one word.
fn policy(state: &State) -> &'static str {
    match state.policy() {
        PolicyState::Unreadable(_) => "unreadable",
        PolicyState::InForce if state.policy.violation().is_some() => "violated",
        PolicyState::InForce => "in-force",
        PolicyState::Absent | PolicyState::AbsentUnguarded(_) => "absent",
    }
}

fn condition(state: &State) -> Condition {
    let records = state.records();
    let active = Version::name(state.active());
    let (status, reason, message) = if let Some((error, why)) = state.sync_error() {
        (ConditionStatus::False, ConditionReason::SyncFailed, format!("{}: {why}", error.text()))
    } else if let Some((_, why)) = state.config_error() {
        let shown = records.assigned.as_ref().filter(|_| state.shows_recorded());
        let reason = match shown.and_then(|version| state.bad_version(version)) {
            _ if shown.is_some() && matches!(records.phase, Phase::RetryLater(..)) => ConditionReason::NotToBlame,
            Some(bad) if bad.reason == BadReason::Rejected => ConditionReason::Rejected,
            Some(_) => ConditionReason::RolledBack,
            None => ConditionReason::Failed,
        };
        (ConditionStatus::False, reason, why)
    } else if let Some(violation) = state.policy.violation() {
        let message = format!("{}; {active} {}", violation.why, violation.then());
        (ConditionStatus::False, ConditionReason::ForbiddenByPolicy, message)
    } else if records.pin.is_some() {
        (ConditionStatus::Unknown, ConditionReason::Pinned, format!("An operator holds {active} until unpin"))
    } else if let Some(suspension) = state.suspended().filter(|_| state.judgement().is_on_trial()) {
        let message = format!("On trial, nobody is blamed for now: {}", suspension.message());
        (ConditionStatus::Unknown, ConditionReason::TrialSuspended, message)
    } else if state.confirm_left().is_some() {
        let at = confirm_by(state).map(|time| format!(" at {time}")).unwrap_or_default();
        let message = format!("Healthy, and rolled back{at} unless somebody confirms {active}");
        (ConditionStatus::Unknown, ConditionReason::AwaitsConfirmation, message)
    } else if state.judgement().is_on_trial() {
        let until = trial_ends(state).map(|time| format!(" until {time}")).unwrap_or_default();
        let lacks: Vec<&str> = state.judgement().trial_lacks().into_iter().map(Signal::label).collect();
        let lacks =
            if lacks.is_empty() { String::new() } else { format!(", not healthy for want of {}", lacks.join(", ")) };
        (ConditionStatus::Unknown, ConditionReason::OnTrial, format!("On trial{until}{lacks}: {active}"))
    } else if let Some((source, at)) = state.scheduled() {
        let message = format!("Takes effect at {}: {source}", timestamp(at.wall_nanos));
        (ConditionStatus::Unknown, ConditionReason::Scheduled, message)
    } else if let Some(waiting) = state.waiting() {
        let (source, why) = (name(waiting.source), waiting.hold);
        let message = match waiting.until {
            Some(at) => {
                format!("Takes effect at {} at the latest: {source}; it waits, {why}", timestamp(at.wall_nanos))
            }
            None => format!("{WAITS_WHILE}{why}: {source}"),
        };
        (ConditionStatus::Unknown, ConditionReason::Scheduled, message)
    } else if records.frozen {
        let message = format!("An operator lets no change in until thaw; {active} runs");
        (ConditionStatus::Unknown, ConditionReason::Frozen, message)
    } else if state.active().is_some() {
        (ConditionStatus::True, ConditionReason::LastKnownGood, format!("Proven: {active}"))
    } else {
        return Condition::default();
    };
    Condition { status, reason, message: cut(message) }
}

/// The document of `status -o json`.
#[must_use]
pub(crate) fn status_document(state: &State, version: Option<&str>) -> Value {
    let config = node_status(state);
    let (trial, since) = trial_state(state);
    let remaining = state.trial_remaining().map(|left| left.as_secs());
    json!({
        "assigned": config_source(config.assigned.as_ref()),
        "active": config_source(config.active.as_ref()),
        "lastKnownGood": config_source(config.last_known_good.as_ref()),
        "error": config.error.unwrap_or_default(),
        "errorDetail": state.error().map(|(_, why)| why).unwrap_or_default(),
        "trial": {
            "state": trial,
            "since": since,
            "remainingSeconds": remaining,
            "suspended": state.suspended().map(Suspension::message),
            "confirmWithinSeconds": state.confirm_left(),
            "signals": signals(state),
        },
        "kubelet": {
            "pid": state.pid(),
            "version": version,
            "ready": state.is_ready(),
            "restarts": state.starts().saturating_sub(1),
        },
        "scheduled": state.scheduled().map(|(source, at)| json!({
            "source": config_source(Some(source)),
            "at": timestamp(at.wall_nanos),
        })),
        "waiting": state.waiting().map(|waiting| json!({
            "source": config_source(waiting.source),
            "for": [waiting.hold.to_string()],
            "until": waiting.until.map(|at| timestamp(at.wall_nanos)),
        })),
        "supervisor": {
            "version": VERSION,
        },
        "worker": state.worker(),
        "shadowedByFlags": state.running().shadowed,
        "flagOverrides": state.running().overrides,
        "policy": {
            "state": config.policy,
            "error": match state.policy() {
                PolicyState::Unreadable(why) | PolicyState::AbsentUnguarded(why) => why.as_str(),
                _ => "",
            },
            "forbids": state.policy.violation().map_or("", |violation| &violation.why),
        },
        "signedBy": state.running().signed,
        "localFiles": state.local_files_difference().map(ToString::to_string),
        "drift": state.damage().collect::<Vec<_>>(),
        "pinned": state.saved().pin.is_some(),
        "frozen": state.saved().frozen,
        "badVersions": state.records().bad,
    })
}

/// Each signal the trial judges by, good or bad.
fn signals(state: &State) -> Value {
    let signals = state.judgement().trial_signals().into_iter();
    signals.map(|(signal, good)| (signal.label(), if good { "good" } else { "bad" })).collect()
}

/// The trial of what is assigned: whether it runs, how it ended, and since when it has been healthy.
fn trial_state(state: &State) -> (&'static str, Option<String>) {
    if !state.judgement().is_on_trial() {
        let records = state.records();
        let assigned = records.assigned.as_ref().filter(|_| state.shows_recorded());
        let bad = assigned.and_then(|assigned| state.bad_version(assigned));
        let tested = assigned.is_some() && matches!(records.phase, Phase::ControlTest(..) | Phase::RetryLater(..));
        return if tested || bad.is_some_and(|bad| bad.reason != BadReason::Rejected) {
            ("failed", None)
        } else if assigned.is_some() && is_same(assigned, records.last_known_good.as_ref()) {
            ("passed", None)
        } else {
            ("none", None)
        };
    }
    let since = state.process.run().and_then(|run| run.healthy_since);
    ("running", since.map(|moment| timestamp(moment.wall_nanos)))
}

/// While its clock runs, and nobody is asked to confirm what it has found.
fn trial_ends(state: &State) -> Option<String> {
    state.trial_ends().filter(|_| state.confirm_left().is_none()).map(|end| timestamp(end.wall_nanos))
}

fn confirm_by(state: &State) -> Option<String> {
    state.confirm_by().map(|wall| timestamp(wall.saturating_mul(1_000_000_000)))
}

/// One line for systemd's STATUS and for people.
#[must_use]
pub fn summary(state: &State) -> String {
    let active = Version::name(state.active());
    let kubelet = match state.kubelet() {
        Kubelet::Running(run) if run.is_ready() => "ready",
        Kubelet::Running(_) => "starting",
        Kubelet::Waiting { .. } => "waiting to restart",
        Kubelet::Stopping => "stopping",
        _ => "down",
    };
    let time = |seconds| GoDuration(Duration::from_secs(seconds));
    let trial = state.trial_remaining().map(|left| format!(", on trial for another {}", time(left.as_secs())));
    let suspended = state.suspended().map(|suspension| format!(" (suspended: {})", suspension.message()));
    let confirm = state.confirm_left().map(|left| format!(", to be confirmed within {}", time(left)));
    let scheduled =
        state.scheduled().map(|(source, at)| format!(", {source} takes effect at {}", timestamp(at.wall_nanos)));
    let waiting = state.waiting().map(|waiting| format!(", {} waits while {}", name(waiting.source), waiting.hold));
    let pinned = if state.saved().pin.is_some() { ", pinned" } else { "" };
    let frozen = if state.saved().frozen { ", frozen" } else { "" };
    let error = node_status(state).error.map(|error| format!("; {error}"));
    let parts = [trial, suspended, confirm, scheduled, waiting].map(Option::unwrap_or_default).concat();
    format!("kubelet {kubelet} with {active}{parts}{pinned}{frozen}{}", error.unwrap_or_default())
}

#[cfg(test)]
mod tests;
