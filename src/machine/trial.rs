//! The trial: when it is passed, when it has failed, and the control test after that.

use std::time::Duration;

use super::evidence::{Failure, Query};
use super::io::log;
use super::model::{Exit, Moment, RestartCause, later};
use super::record::{ControlTest, RetryLater};
use super::{Effect, Kubelet, Level, PendingFailure, RecordReason, Run, State, TrialEnd};
use super::{events, limits};
use crate::kubelet_log;
use kubelet_config::{duration, status};

impl State {
    pub(super) fn tick_trial(&mut self, fx: &mut Vec<Effect>) {
        self.update_suspension(fx);
        self.update_health();
        self.tick_queries(fx);
        if self
            .pending_failure
            .as_ref()
            .is_some_and(|pending_failure| self.now >= later(pending_failure.at, limits::QUERY_DEADLINE))
        {
            return self.judge_failure(fx);
        }
        let Kubelet::Running(run) = &self.kubelet else { return };
        if !self.is_observing() || self.pending_failure.is_some() {
            return;
        }
        let run = run.clone();
        let judged = self.trial.as_ref().is_none_or(|trial| !trial.adopted);
        if judged && let Some((failure, detail)) = self.failing(&run) {
            if self.trial.is_some() || self.records().ledger.control_test.is_some() {
                self.note_failure(failure, detail, fx);
            }
            return;
        }
        if self.trial.is_some() {
            self.tick_proof(&run, fx);
        } else {
            self.tick_control_test(&run, fx);
        }
    }

    pub(super) fn trial_deadlines(&self, run: &Run, due: &mut Vec<Moment>) {
        if run.switched && !run.ready {
            due.push(later(run.started, limits::SETTLE));
        }
        self.query_deadlines(run, due);
        let Some(healthy) = run.healthy_since else { return };
        if let Some(trial) = &self.trial {
            due.push(later(healthy, self.settings.trial_duration.saturating_sub(trial.health_before_pause)));
        }
        let ledger = &self.records().ledger;
        if ledger.control_test.is_some() {
            due.push(later(healthy, limits::CONTROL_TEST));
        }
        due.extend(ledger.retry_later.as_ref().map(|retry_later| later(healthy, patience(retry_later))));
    }

    /// Notes a failure, and has the node observed before it is judged.
    pub(super) fn note_failure(&mut self, failure: Failure, detail: String, fx: &mut Vec<Effect>) {
        if self.pending_failure.is_none() {
            self.pending_failure = Some(PendingFailure { failure, detail, at: self.now });
            fx.push(Effect::ReadLogTail);
            fx.push(Effect::Query(Query::Environment(self.runtime.clone())));
        }
    }

    /// Judges the pending failure by what is known now.
    pub(super) fn judge_failure(&mut self, fx: &mut Vec<Effect>) {
        let Some(PendingFailure { failure, detail, .. }) = self.pending_failure.take() else { return };
        let dead = matches!(self.kubelet, Kubelet::Waiting { .. });
        if let Some(suspension) = self.suspended {
            log(fx, Level::Warn, format!("{detail}; not held against the configuration: {}", suspension.message()));
            if dead {
                self.wait_for_restart(fx);
            }
            return;
        }
        match &self.kubelet {
            Kubelet::Running(run) if self.failing(run).is_none() => return, // it has recovered
            Kubelet::Running(_) | Kubelet::Waiting { .. } => {}
            _ => return,
        }
        if let Some(trial) = &mut self.trial {
            trial.exits += u32::from(dead);
            if dead && failure == Failure::Exits && trial.exits < limits::TRIAL_EXITS {
                return self.wait_for_restart(fx);
            }
            let exits = trial.exits;
            let detail = if failure == Failure::Exits {
                format!("the kubelet ended {exits} times within the trial, last with {detail}")
            } else {
                detail
            };
            return self.roll_back(failure, &detail, fx);
        }
        if let Some(control_test) = self.records().ledger.control_test.clone()
            && control_test.failure.family() == failure.family()
            && failure.family().is_some()
        {
            self.clear_version(&control_test, &detail, fx);
        }
        if dead {
            self.wait_for_restart(fx);
        }
    }

    /// What the kubelet wrote last: kept for the verdict.
    pub(super) fn log_tail_read(&mut self, lines: &[String]) {
        let shown =
            lines.iter().filter(|line| !kubelet_log::is_stack_frame(line)).map(|line| kubelet_log::redact(line));
        self.log_tail = shown.filter(|line| !line.is_empty()).collect();
        let (Some(pending_failure), Some(line)) = (&mut self.pending_failure, kubelet_log::fatal(lines)) else {
            return;
        };
        if matches!(pending_failure.failure, Failure::ExitBeforeReady | Failure::Exits) {
            pending_failure.detail = format!("{}: {line}", pending_failure.detail);
        } else if lines.iter().any(|line| line.starts_with('E')) {
            // It lives, so this need not be why; but it is where people would look next.
            pending_failure.detail = format!("{} (the kubelet's last error: {line})", pending_failure.detail);
        }
    }

    /// An exit that nobody asked for. True if it waits for judgement.
    pub(super) fn exit_is_judged(&mut self, run: &Run, exit: Exit, fx: &mut Vec<Effect>) -> bool {
        let adopted = match &mut self.trial {
            Some(trial) => {
                trial.exits += u32::from(trial.adopted);
                trial.adopted
            }
            None => self.records().ledger.control_test.is_none(),
        };
        if adopted {
            return false;
        }
        self.pending_failure = None; // whatever was pending while it ran
        if run.was_up {
            self.note_failure(Failure::Exits, exit.to_string(), fx);
        } else {
            self.note_failure(Failure::ExitBeforeReady, format!("the kubelet ended before it was ready: {exit}"), fx);
        }
        true
    }

    fn tick_proof(&mut self, run: &Run, fx: &mut Vec<Effect>) {
        let Some(trial) = &self.trial else { return };
        let watched = self.in_force.healthz.is_none() || run.is_watched(self.now);
        let earned = run.healthy_since.map(|since| trial.health_before_pause + self.now.since(since));
        let proven = watched && earned.is_some_and(|earned| earned >= self.settings.trial_duration);
        let attempt = self.records().ledger.attempt.clone();
        let Some(attempt) = attempt.filter(|attempt| attempt.confirm_within.is_some() && !attempt.confirmed) else {
            if proven {
                self.prove(fx);
            }
            return;
        };
        match attempt.confirm {
            Some(confirm) => self.tick_confirm(&confirm, fx),
            None if proven => self.await_confirmation(attempt.confirm_within.unwrap_or_default(), fx),
            None => {}
        }
    }

    fn prove(&mut self, fx: &mut Vec<Effect>) {
        if self.retry.is_some_and(|(_, at)| self.now < at) {
            return; // the record could not be written a moment ago
        }
        self.back_off(); // until the answer: a failed write must not be repeated at once
        let mut records = self.records().clone();
        let before = std::mem::replace(&mut records.last_known_good, self.active.clone());
        records.ledger.attempt = None;
        records.ledger.retry_later = None;
        let proven = &mut records.ledger.proven;
        proven.retain(|known| Some(known) != before.as_ref() && Some(known) != self.active.as_ref());
        // Equal content under another name is nothing to go back to.
        proven.extend(before.filter(|_| self.trial.as_ref().is_some_and(|trial| !trial.adopted)));
        let excess = proven.len().saturating_sub(limits::PROVEN_KEPT);
        proven.drain(..excess);
        fx.push(Effect::Record(RecordReason::Proven, records));
    }

    pub(super) fn proven(&mut self, fx: &mut Vec<Effect>) {
        let adopted = self.trial.take().is_some_and(|trial| trial.adopted);
        self.trial_end = TrialEnd::Passed;
        if let Kubelet::Running(run) = &mut self.kubelet {
            run.probe_at = None;
        }
        // An adopted content was last known good before, under another source: no news.
        if let Some(source) = self.active.clone().filter(|_| !adopted) {
            fx.push(Effect::Emit(events::proven(&source, self.settings.trial_duration)));
        }
        self.collect(fx);
    }

    /// What `status` and the metrics say of the trial.
    #[must_use]
    pub(crate) fn trial_remaining(&self) -> Option<Duration> {
        let trial = self.trial.as_ref()?;
        let healthy = match &self.kubelet {
            Kubelet::Running(run) => run.healthy_since.map_or(Duration::ZERO, |since| self.now.since(since)),
            _ => Duration::ZERO,
        };
        Some(self.settings.trial_duration.saturating_sub(trial.health_before_pause + healthy))
    }

    /// When the trial is passed if nothing goes wrong; `None` while its clock stands still. It is another moment
    /// only when that clock was stopped, or begins anew.
    #[must_use]
    pub fn trial_ends(&self) -> Option<Moment> {
        let trial = self.trial.as_ref()?;
        let Kubelet::Running(run) = &self.kubelet else { return None };
        run.healthy_since
            .map(|since| later(since, self.settings.trial_duration.saturating_sub(trial.health_before_pause)))
    }

    /// Remembers what runs as bad and goes back to last known good, which is then the control test.
    pub(super) fn roll_back(&mut self, failure: Failure, detail: &str, fx: &mut Vec<Effect>) {
        let Some(source) = self.active.clone() else { return };
        let digest = self.in_force.digest.clone();
        let baseline = self.records().ledger.attempt.as_ref().and_then(|attempt| attempt.baseline.clone());
        self.error = Some((status::LOAD_ERROR.to_owned(), detail.to_owned()));
        let mut records = self.with_bad_version(&source, digest.as_ref(), failure.label(), status::LOAD_ERROR, detail);
        records.ledger.control_test =
            failure.family().map(|_| ControlTest { source: source.clone(), failure, baseline });
        self.remember(records, fx);
        self.report_rollback(&source, failure, detail, fx);
        self.trial = None;
        self.pending_failure = None;
        self.switch(self.fallback(), RestartCause::Rollback, fx);
    }

    /// Last known good is healthy, or has been for long enough to try a cleared version again.
    fn tick_control_test(&mut self, run: &Run, fx: &mut Vec<Effect>) {
        let Some(healthy) = run.healthy_since.map(|since| self.now.since(since)) else { return };
        let ledger = &self.records().ledger;
        if let Some(control_test) = ledger.control_test.clone().filter(|_| healthy >= limits::CONTROL_TEST) {
            let mut records = self.records().clone();
            records.ledger.control_test = None;
            // Whatever was thought of it before: this time it was its own fault.
            records.ledger.retry_later.take_if(|retry_later| retry_later.source == control_test.source);
            self.remember(records, fx);
            let active = status::name(self.active.as_ref());
            log(fx, Level::Info, format!("{active} is healthy: the fault was with {}", control_test.source));
        } else if ledger.retry_later.as_ref().is_some_and(|retry_later| healthy >= patience(retry_later))
            && !self.recovered
        {
            self.recovered = true;
            log(fx, Level::Info, "what runs is healthy again, the pardoned version is tried once more");
        }
    }

    /// Last known good fails in the same way: the version is cleared.
    fn clear_version(&mut self, control_test: &ControlTest, detail: &str, fx: &mut Vec<Effect>) {
        let why = format!("{} fails in the same way ({detail})", status::name(self.active.as_ref()));
        let mut records = self.records().clone();
        let ledger = &mut records.ledger;
        ledger.bad.retain(|bad| bad.source != control_test.source);
        ledger.control_test = None;
        let before = ledger.retry_later.take().filter(|retry_later| retry_later.source == control_test.source);
        let times = before.map_or(0, |retry_later| retry_later.times.saturating_add(1));
        ledger.retry_later = Some(RetryLater { source: control_test.source.clone(), times, why: why.clone() });
        self.error = Some((status::LOAD_ERROR.to_owned(), format!("not to blame, will be tried again: {why}")));
        self.recovered = false;
        self.remember(records, fx);
        let mut event = events::not_blamed(&control_test.source, &why);
        event.log_tail.clone_from(&self.log_tail);
        fx.push(Effect::Emit(event));
    }
}

/// How long last known good must be healthy before a cleared version is tried again.
fn patience(retry_later: &RetryLater) -> Duration {
    duration::backoff(limits::RETRY_LATER_FIRST, limits::RETRY_LATER_MAX, retry_later.times)
}

#[cfg(test)]
mod tests {

    use super::super::{Input, Settings, Trial};
    use super::*;
    use kubelet_config::rendering::HealthzTarget;
    use kubelet_config::source::{ConfigMapRef, Source};

    fn at(seconds: u64) -> Moment {
        Moment { boot: Duration::from_secs(seconds), wall_nanos: 0 }
    }

    fn on_trial() -> State {
        let mut state = State::new(Settings::default());
        state.active = Some(Source {
            reference: ConfigMapRef { namespace: "n".into(), name: "m".into(), kubelet_config_key: "k".into() },
            resource_version: "1".into(),
            uid: "u".into(),
        });
        state.in_force.healthz = Some(HealthzTarget { host: "127.0.0.1".into(), port: 10248 });
        state.trial = Some(Trial::default());
        state.kubelet = Kubelet::Running(Run { pid: 1, ready: true, ..Run::default() });
        state
    }

    fn proves(effects: &[Effect]) -> bool {
        effects.iter().any(|effect| matches!(effect, Effect::Record(RecordReason::Proven, _)))
    }

    #[test]
    fn ten_watched_minutes_prove_and_not_a_second_less() {
        let mut state = on_trial();
        for second in (1..=600).step_by(5) {
            assert!(!proves(&state.step(Input::Probed(true), at(second))), "after {second} s");
        }
        assert!(!proves(&state.step(Input::Tick, at(600))));
        assert!(proves(&state.step(Input::Tick, at(601))));
    }

    #[test]
    fn a_suspended_machine_earns_nothing_while_it_sleeps() {
        let mut state = on_trial();
        state.step(Input::Probed(true), at(1));
        assert!(!proves(&state.step(Input::Tick, at(5000))), "a clock alone");
        assert!(!proves(&state.step(Input::Probed(true), at(5001))), "one answer after a gap");
        assert_eq!(state.trial_remaining(), Some(Duration::from_secs(600)));
    }
}
