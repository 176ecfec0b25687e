//! The trial: evidence of health, and what follows from it.

use super::{Because, Counter, Effect, Kubelet, Level, Run, State, TrialEnd, later, say};
use crate::core::model::{Digest, Exit, Moment, Source};
use crate::core::policy;
use crate::core::record::BadVersion;
use crate::core::report;

impl State {
    pub(super) fn probed(&mut self, ok: bool) {
        let now = self.now;
        let Kubelet::Running(run) = &mut self.kubelet else { return };
        if ok && run.ready {
            run.was_healthy = true;
            let watched = run.is_watched(now);
            run.healthy_since = run.healthy_since.filter(|_| watched).or(Some(now));
            run.answered = Some(now);
            run.failing_since = None;
        } else if !ok {
            run.healthy_since = None;
            run.answered = None;
            run.failing_since.get_or_insert(now);
        }
        let pause = if run.healthy_since.is_some() { policy::PROBE_TRIAL } else { policy::PROBE_STARTING };
        run.probe_at = self.trial.is_some().then(|| later(now, pause));
    }

    pub(super) fn tick_trial(&mut self, fx: &mut Vec<Effect>) {
        let (Some(trial), Kubelet::Running(run)) = (&self.trial, &mut self.kubelet) else { return };
        if run.probe_at.is_some_and(|at| self.now >= at) {
            run.probe_at = None; // set again by its answer
            if let Some(target) = &self.in_force.healthz {
                fx.push(Effect::Probe(target.clone()));
            }
        }
        let (run, adopted) = (run.clone(), trial.adopted);
        let watched = self.in_force.healthz.is_none() || run.is_watched(self.now);
        if watched && run.healthy_since.is_some_and(|since| self.now.since(since) >= self.settings.trial_duration) {
            return self.prove(fx);
        }
        if adopted {
            return;
        }
        if !run.was_healthy && self.now.since(run.started) >= self.settings.start_timeout {
            let waited_for = if run.ready { "healthz" } else { "READY=1" };
            let detail = format!("the kubelet gave no {waited_for} within {} s", self.settings.start_timeout.as_secs());
            self.roll_back("start-timeout", &detail, fx);
        } else if run.was_healthy
            && run.failing_since.is_some_and(|since| self.now.since(since) >= policy::HEALTHZ_PATIENCE)
        {
            let detail = format!("healthz failed for {} s without a break", policy::HEALTHZ_PATIENCE.as_secs());
            self.roll_back("healthz", &detail, fx);
        }
    }

    pub(super) fn trial_deadlines(&self, run: &Run, due: &mut Vec<Moment>) {
        if run.switched && !run.ready {
            due.push(later(run.started, policy::SETTLE));
        }
        if self.trial.is_none() {
            return;
        }
        due.extend(run.probe_at);
        due.extend(run.healthy_since.map(|since| later(since, self.settings.trial_duration)));
        due.extend(run.failing_since.map(|since| later(since, policy::HEALTHZ_PATIENCE)));
        if !run.was_healthy {
            due.push(later(run.started, self.settings.start_timeout));
        }
    }

    fn prove(&mut self, fx: &mut Vec<Effect>) {
        if self.retry.is_some_and(|(_, at)| self.now < at) {
            return; // the record could not be written a moment ago
        }
        self.back_off(); // until the answer: a failed write must not be repeated at once
        let mut records = self.records().clone();
        records.last_known_good.clone_from(&self.active);
        records.ledger.attempt = None;
        fx.push(Effect::Record(Because::Proven, records));
    }

    pub(super) fn proven(&mut self, fx: &mut Vec<Effect>) {
        let adopted = self.trial.take().is_some_and(|trial| trial.adopted);
        self.trial_end = TrialEnd::Passed;
        if let Kubelet::Running(run) = &mut self.kubelet {
            run.probe_at = None;
        }
        // An adopted content was last known good before, under another source: no news.
        if let Some(source) = self.active.clone().filter(|_| !adopted) {
            fx.push(Effect::Emit(report::proven(&source, self.settings.trial_duration)));
        }
        self.collect(fx);
    }

    /// Decides whether an exit ends the trial; if so, the rollback is under way.
    pub(super) fn exit_fails_trial(&mut self, run: &Run, exit: Exit, fx: &mut Vec<Effect>) -> bool {
        let Some(trial) = &mut self.trial else { return false };
        trial.exits += 1;
        if trial.adopted {
            return false;
        }
        if !run.was_healthy {
            self.roll_back("exit-before-ready", &format!("the kubelet ended before it was ready: {exit}"), fx);
            true
        } else if trial.exits >= policy::TRIAL_EXITS {
            let detail = format!("the kubelet ended {} times within the trial, last with {exit}", trial.exits);
            self.roll_back("exits", &detail, fx);
            true
        } else {
            false
        }
    }

    fn roll_back(&mut self, reason: &'static str, detail: &str, fx: &mut Vec<Effect>) {
        let Some(source) = self.active.clone() else { return };
        let digest = self.in_force.digest.clone();
        self.mark_bad(&source, digest.as_ref(), report::LOAD_ERROR, detail, fx);
        self.say_rolled_back(&source, reason, detail, fx);
        self.trial = None;
        self.switch(self.fallback(), "rollback", fx);
    }

    pub(super) fn say_rolled_back(
        &mut self,
        source: &Source,
        reason: &'static str,
        detail: &str,
        fx: &mut Vec<Effect>,
    ) {
        self.trial_end = TrialEnd::Failed;
        fx.push(Effect::Count(Counter::Rollback(reason)));
        fx.push(Effect::Emit(report::rolled_back(source, self.fallback().as_ref(), detail)));
    }

    /// Remembers that a version failed, in the status and durably.
    pub(super) fn mark_bad(
        &mut self,
        source: &Source,
        digest: Option<&Digest>,
        error: &str,
        detail: &str,
        fx: &mut Vec<Effect>,
    ) {
        self.error = Some((error.to_owned(), detail.to_owned()));
        let records = self.with_mark(source, digest, error, detail);
        self.remember(records, fx);
    }

    /// The records with a further bad version in them.
    pub(super) fn with_mark(
        &self,
        source: &Source,
        digest: Option<&Digest>,
        error: &str,
        detail: &str,
    ) -> super::Durable {
        let mut records = self.records().clone();
        let bad = &mut records.ledger.bad;
        bad.retain(|bad| bad.source != *source || bad.digest.as_ref() != digest);
        bad.push(BadVersion {
            source: source.clone(),
            digest: digest.cloned(),
            kubelet: self.kubelet_id.clone(),
            error: error.to_owned(),
            detail: detail.to_owned(),
        });
        let excess = bad.len().saturating_sub(policy::BAD_VERSIONS);
        bad.drain(..excess);
        if records.ledger.attempt.as_ref().is_some_and(|attempt| attempt.source == *source) {
            records.ledger.attempt = None;
        }
        records
    }

    /// Has records written that nothing waits for; if it fails they are written later.
    pub(super) fn remember(&mut self, records: super::Durable, fx: &mut Vec<Effect>) {
        self.unsaved = Some(records.clone());
        fx.push(Effect::Record(Because::Memory, records));
    }

    pub(super) fn record_failed(&mut self, why: &str, fx: &mut Vec<Effect>) {
        fx.push(Effect::Count(Counter::StoreError));
        say(fx, Level::Warn, format!("the store cannot be written: {why}"));
        self.back_off();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::{Input, Settings, Trial};
    use super::*;
    use crate::core::model::{ConfigMapRef, HealthzTarget};

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
        state.trial = Some(Trial { exits: 0, adopted: false });
        state.kubelet = Kubelet::Running(Run {
            pid: 1,
            started: at(0),
            ready: true,
            healthy_since: None,
            answered: None,
            was_healthy: false,
            failing_since: None,
            probe_at: None,
            switched: false,
        });
        state
    }

    fn proves(effects: &[Effect]) -> bool {
        effects.iter().any(|effect| matches!(effect, Effect::Record(Because::Proven, _)))
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
