//! One step: an input changes the state, then whatever is due is started.

use std::time::Duration;

use super::io::{Effect, Input, Purpose, RecordReason};
use super::limits;
use super::model::{Moment, later};
use super::state::State;
use super::state_parts::{Change, ConfigMapState, Kubelet, Stage};

impl State {
    /// Takes one step.
    pub fn step(&mut self, input: Input, now: Moment) -> Vec<Effect> {
        self.advance(now);
        let mut fx = Vec::new();
        match input {
            Input::Boot(stored, id) => self.boot(*stored, id, &mut fx),
            Input::NodeName(name) => self.node_name = name,
            Input::Resume(handover) => self.resume(*handover, &mut fx),
            Input::Reload => drop(self.request_reload()),
            Input::ReloadProven(result) => self.reload_proven(result, &mut fx),
            Input::ReloadFailed(why) => self.reload_failed(&why, &mut fx),
            Input::Node(assignment) => self.node_assignment(assignment, &mut fx),
            Input::ConfigMap(payload) => self.config_map_seen(payload),
            Input::ConfigMapFailed { why, definite } => self.config_map_failed(why, definite),
            Input::Saved(source, result) => self.saved_checkpoint(&source, result, &mut fx),
            Input::Rendered(Purpose::Launch, source, id, result) => self.launch_rendered(source, id, result, &mut fx),
            Input::Rendered(Purpose::Change, source, id, result) => {
                self.change_rendered(source.as_ref(), id, result, &mut fx);
            }
            Input::Judged(ticket, verdict) => self.verdict(ticket, verdict, &mut fx),
            Input::Recorded(because, result) => self.recorded(because, result, &mut fx),
            Input::Started(result) => self.started(result, &mut fx),
            Input::Ready => self.ready(&mut fx),
            Input::Exited(exit) => self.exited(exit, &mut fx),
            Input::Probed(ok) => self.probed(ok),
            Input::Watchdog => {
                self.watchdog_pinged();
                self.relay_ping(&mut fx);
            }
            Input::NodeObserved(readiness) => self.node_observed(readiness),
            Input::NodeAnnotations { retry, confirm } => {
                self.node_annotations(retry.as_deref(), confirm.as_deref(), &mut fx);
            }
            Input::LeaseObserved(lease) => self.lease_observed(&lease),
            Input::PodsObserved(inventory) => self.pods_observed(inventory),
            Input::EnvironmentObserved(environment) => self.environment_observed(environment, &mut fx),
            Input::LogTail(lines) => self.log_tail_read(&lines),
            Input::Operator(ticket, command) => self.operate(ticket, &command, &mut fx),
            Input::Version(version) => self.version = Some(version),
            Input::Reported(number) => fx.push(Effect::Reported(number)),
            Input::Shutdown => self.shutdown(&mut fx),
            Input::Tick => {}
        }
        self.settle(&mut fx);
        self.tick_reload(&mut fx);
        self.tick_watchdog(&mut fx);
        fx
    }

    /// A clock that stands still or runs back must not undo what was decided.
    pub(super) fn advance(&mut self, now: Moment) {
        let before = self.now;
        let quiet = now.since(before) > limits::QUERY_VALID;
        let due = if quiet { self.deadline() } else { None };
        self.now = Moment { boot: now.boot.max(before.boot), wall_nanos: now.wall_nanos };
        if due.is_some_and(|due| self.now.boot.saturating_sub(due) > limits::QUERY_VALID) {
            self.woke_up();
        }
    }

    /// Starts whatever is due in the state as it is now.
    fn settle(&mut self, fx: &mut Vec<Effect>) {
        self.tick_process(fx);
        if fx.iter().any(|effect| matches!(effect, Effect::Record(..))) {
            return; // its answer settles the rest: two records from one state would undo each other
        }
        self.tick_trial(fx);
        if fx.iter().any(|effect| matches!(effect, Effect::Record(..))) {
            return;
        }
        if self.retry.is_none_or(|(_, at)| self.now >= at) {
            if let Some(unsaved) = self.unsaved.clone() {
                self.back_off();
                fx.push(Effect::Record(RecordReason::Memory, unsaved));
            } else {
                self.tick_change(fx);
            }
        }
    }

    /// When the next [`Input::Tick`] is needed; `None` if only an input can change anything.
    ///
    /// What is due now was done by the step that made it due, or waits for an answer or for
    /// `retry`; so only later moments count, and the loop cannot spin.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        let mut due = Vec::new();
        match &self.kubelet {
            Kubelet::Stopping { kill_at } => due.extend(*kill_at),
            Kubelet::Waiting { until } => due.push(*until),
            Kubelet::Running(run) => self.trial_deadlines(run, &mut due),
            Kubelet::Down | Kubelet::Launching | Kubelet::Starting | Kubelet::Gone => {}
        }
        if let Some((_, at)) = self.retry {
            due.push(at);
        }
        due.extend(
            self.pending_failure.as_ref().map(|pending_failure| later(pending_failure.at, limits::QUERY_DEADLINE)),
        );
        self.confirm_deadlines(&mut due);
        due.extend(self.watchdog_deadline());
        if let Some(Change { stage: Stage::Baseline(_), baseline_until, .. }) = &self.change {
            due.push(*baseline_until);
        }
        due.extend(self.pending_start());
        if let (ConfigMapState::Failed { since, .. }, None) = (&self.config_map, &self.sync_error) {
            due.push(later(*since, limits::DOWNLOAD_PATIENCE));
        }
        due.into_iter().map(|at| at.boot).filter(|at| *at > self.now.boot).min()
    }
}
