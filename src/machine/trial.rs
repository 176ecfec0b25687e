//! The trial: when it is passed, and when it has failed.

use std::time::Duration;

use super::evidence::{Failure, Query};
use super::io::log;
use super::model::{Exit, Moment, later};
use super::{Effect, Kubelet, Level, PendingFailure, RecordReason, Run, State, TrialEnd};
use super::{events, limits};
use crate::kubelet_log;

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
            return self.resolve_failure(fx);
        }
        let Kubelet::Running(run) = &self.kubelet else { return };
        if !self.is_observing() || self.pending_failure.is_some() {
            return;
        }
        let run = run.clone();
        let judged = self.trial.as_ref().is_none_or(|trial| !trial.adopted);
        if judged && let Some((failure, detail)) = self.failing(&run) {
            if self.trial.is_some() || self.records().local_state.control_test.is_some() {
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
        let local_state = &self.records().local_state;
        if local_state.control_test.is_some() {
            due.push(later(healthy, limits::CONTROL_TEST));
        }
        due.extend(local_state.retry_later.as_ref().map(|retry_later| later(healthy, retry_later.wait())));
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
    pub(super) fn resolve_failure(&mut self, fx: &mut Vec<Effect>) {
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
        if let Some(control_test) = self.records().local_state.control_test.clone()
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
    pub(super) fn note_exit(&mut self, run: &Run, exit: Exit, fx: &mut Vec<Effect>) -> bool {
        let adopted = match &mut self.trial {
            Some(trial) => {
                trial.exits += u32::from(trial.adopted);
                trial.adopted
            }
            None => self.records().local_state.control_test.is_none(),
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
        let watched = self.running.healthz.is_none() || run.is_watched(self.now);
        let earned = run.healthy_since.map(|since| trial.health_before_pause + self.now.since(since));
        let proven = watched && earned.is_some_and(|earned| earned >= self.settings.trial_duration);
        let attempt = self.records().local_state.attempt.clone();
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
        records.local_state.attempt = None;
        records.local_state.retry_later = None;
        let proven = &mut records.local_state.proven;
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
        // An adopted content was last known good before, under another source: no event.
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
        state.running.healthz = Some(HealthzTarget { host: "127.0.0.1".into(), port: 10248 });
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
