//! When a node has what it was told to have, and when it never will.

use clap::ValueEnum;
use serde_json::Value;

use super::node::{NodeRow, Stage};
use super::view::View;
use kubelet_config::source::ConfigMapRef;

/// `--wait`: what is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Goal {
    /// It runs.
    Active,
    /// It is last known good.
    Proven,
}

/// What a node was told, and how far it is to get.
#[derive(Clone, Debug)]
pub(crate) struct Expectation {
    /// The ConfigMap; none is the node's own configuration.
    pub(crate) target: Option<ConfigMapRef>,
    /// Its uid and resourceVersion, if known: what a node says of other versions is old.
    pub(crate) version: Option<(String, String)>,
    pub(crate) goal: Goal,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WaitStatus {
    /// There.
    Reached,
    /// Not there yet; the message says why.
    Waiting(String),
    /// It will not get there by itself; the kubelet's message says why.
    Failed(String),
}

impl Expectation {
    /// What the node, seen at `now` (seconds since 1970), answers.
    pub(crate) fn status(&self, row: &NodeRow, now: i64) -> WaitStatus {
        let view = View::new(row, now);
        let stage = row.stage();
        let waiting = || {
            let messages = [view.state().1, view.message()].into_iter().filter(|message| !message.is_empty());
            WaitStatus::Waiting(messages.collect::<Vec<_>>().join(": "))
        };
        if row.desired != self.target || row.invalid.is_some() {
            return WaitStatus::Failed("its assignment was changed by somebody else".to_owned());
        }
        let Some(target) = &self.target else {
            let local = row.assigned.is_none() && row.active.is_none();
            return match stage {
                Stage::Held => WaitStatus::Failed(view.message()),
                _ if local && row.manager.is_some() => WaitStatus::Reached,
                // What its state says is of a version that it is to leave.
                _ => match (&row.active, stage) {
                    (Some(active), Stage::Proven | Stage::OnTrial | Stage::AwaitsConfirmation) if row.ready => {
                        WaitStatus::Waiting(format!("still runs {}", active.reference))
                    }
                    _ => waiting(),
                },
            };
        };
        let about = row.assigned.as_ref().filter(|assigned| assigned.reference == *target);
        let current = about.is_some_and(|assigned| {
            let now = (&assigned.uid, &assigned.resource_version);
            self.version.as_ref().is_none_or(|(uid, version)| now == (uid, version))
        });
        // Rights, and ConfigMaps, may yet come; a node tries on.
        let tries_on = matches!(row.reason(), "SyncFailed" | "NotToBlame");
        match stage {
            Stage::Held => WaitStatus::Failed(view.message()),
            Stage::Failed if current && !tries_on => WaitStatus::Failed(view.message()),
            Stage::Proven if current => WaitStatus::Reached,
            Stage::OnTrial | Stage::AwaitsConfirmation
                if current && self.goal == Goal::Active && row.active == row.assigned && row.is_well() =>
            {
                WaitStatus::Reached
            }
            _ => waiting(),
        }
    }

    /// A wish for a ConfigMap as the API server has it.
    pub(crate) fn new(target: Option<ConfigMapRef>, map: Option<&Value>, goal: Goal) -> Self {
        Self { target, version: map.and_then(version_of), goal }
    }
}

/// The uid and the resourceVersion of an object as the API server has it.
pub(crate) fn version_of(object: &Value) -> Option<(String, String)> {
    let field = |name: &str| Some(object.pointer(&format!("/metadata/{name}"))?.as_str()?.to_owned());
    field("uid").zip(field("resourceVersion"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::node::ConfigManager;
    use super::*;
    use kubelet_config::reported::ReportedCondition as Condition;
    use kubelet_config::source::Source;

    fn source(version: &str) -> Source {
        let reference = ConfigMapRef { namespace: "n".into(), name: "m".into(), kubelet_config_key: "k".into() };
        Source { reference, resource_version: version.into(), uid: "u".into() }
    }

    fn row(reason: &str, good: Option<Source>) -> NodeRow {
        NodeRow {
            desired: Some(source("2").reference),
            assigned: Some(source("2")),
            active: Some(source("2")),
            last_known_good: good,
            condition: Some(Condition { reason: reason.into(), message: "words".into(), ..Condition::default() }),
            ready: true,
            manager: Some(ConfigManager::Supervisor),
            ..NodeRow::default()
        }
    }

    fn ask(row: &NodeRow, goal: Goal) -> WaitStatus {
        let map = json!({"metadata": {"uid": "u", "resourceVersion": "2"}});
        Expectation::new(Some(source("2").reference), Some(&map), goal).status(row, 0)
    }

    #[test]
    fn active_and_proven() {
        let starts = row("OnTrial", Some(source("1")));
        assert_eq!(ask(&starts, Goal::Active), WaitStatus::Waiting("on trial".into()), "nobody has seen it well");
        let trial = NodeRow { trial_ends: Some("2026-01-01T00:10:00Z".into()), ..starts };
        assert_eq!(ask(&trial, Goal::Active), WaitStatus::Reached);
        assert!(matches!(ask(&trial, Goal::Proven), WaitStatus::Waiting(messages) if messages.starts_with("on trial")));
        let proven = row("LastKnownGood", Some(source("2")));
        assert_eq!(
            (ask(&proven, Goal::Active), ask(&proven, Goal::Proven)),
            (WaitStatus::Reached, WaitStatus::Reached)
        );
    }

    #[test]
    fn failures_end_it_with_a_message_and_old_conditions_do_not() {
        let failed = NodeRow { error: "e".into(), active: Some(source("1")), ..row("RolledBack", Some(source("1"))) };
        assert_eq!(ask(&failed, Goal::Active), WaitStatus::Failed("words".into()));
        let old = NodeRow { assigned: Some(source("1")), ..failed.clone() };
        assert!(matches!(ask(&old, Goal::Active), WaitStatus::Waiting(_)), "of the version before the edit");
        let sync = NodeRow { error: "e".into(), ..row("SyncFailed", None) };
        assert!(matches!(ask(&sync, Goal::Active), WaitStatus::Waiting(messages) if messages.contains("words")));
        assert_eq!(ask(&row("Frozen", None), Goal::Active), WaitStatus::Failed("words".into()));
        let moved = NodeRow { desired: None, ..failed };
        assert!(matches!(ask(&moved, Goal::Active), WaitStatus::Failed(why) if why.contains("somebody else")));
    }

    #[test]
    fn a_reset_is_over_when_the_nodes_own_runs() {
        let expectation = Expectation::new(None, None, Goal::Active);
        let still = NodeRow { desired: None, ..row("LastKnownGood", None) };
        assert_eq!(expectation.status(&still, 0), WaitStatus::Waiting("still runs n/m[k]".into()));
        let local = NodeRow { assigned: None, active: None, ..still };
        assert_eq!(expectation.status(&local, 0), WaitStatus::Reached);
    }
}
