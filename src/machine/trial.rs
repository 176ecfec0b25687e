//! The trial: what follows from a verdict.

use std::time::Duration;

use super::asks::{Asker, Observation};
use super::evidence::{Baseline, FailedRun, Failure, FailureFamily, Signal, Suspension};
use super::io::Effect;
use super::judgement::Role;
use super::model::{Moment, later};
use super::proposal::Proposal;
use super::records::{Attempt, Phase, Records, Version};
use super::verdict::Verdict;
use super::versions::is_same;
use super::{Kubelet, Level, Run, State, events, limits};
use crate::kubelet_log;

mod confirm;
mod control_test;
mod outcome;
mod progress;
mod rollback;

/// What is seen on the way to a verdict, and need not outlive a reboot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Trial {
    /// The cleared version waits since then to be tried again.
    waiting_since: Option<Moment>,
    /// The node has been ill since then: that time is not waited.
    ill_since: Option<Moment>,
    /// A failure that waits for an observation of the node.
    pending: Option<PendingFailure>,
    /// Last known good has been healthy for long enough to try a cleared version again.
    recovered: bool,
    /// The version on trial, and since when: for the metrics.
    under_way: Option<(Version, Moment)>,
    /// Last known good runs under another name since then.
    adopted_at: Option<Moment>,
    /// What is seen of the kubelet is compared then with what is on record of it.
    note_at: Option<Moment>,
    /// The kubelet's last lines, when they were last asked for; without secrets.
    log_tail: Vec<String>,
}

/// A failure that was seen, before it is known whether the node around the kubelet is at fault.
#[derive(Clone, Debug, PartialEq, Eq)]
struct PendingFailure {
    failure: Failure,
    /// The observation, for people.
    detail: String,
    /// The kubelet that it was seen of.
    run: FailedRun,
    /// The observation of the node that was asked for then is waited for until this.
    until: Moment,
}

impl Trial {
    pub(super) fn forget_failure(&mut self) {
        self.pending = None;
    }

    pub(super) fn has_recovered(&self) -> bool {
        self.recovered
    }

    pub(super) fn is_failure_pending(&self) -> bool {
        self.pending.is_some()
    }

    /// The kubelet's last lines, the newest.
    pub(super) fn last_log_lines(&self, count: usize) -> Vec<String> {
        let lines = &self.log_tail;
        lines.get(lines.len().saturating_sub(count)..).unwrap_or_default().to_vec()
    }

    /// What the kubelet wrote last: kept for the verdict. One that was killed wrote no reason: it is another program's words, or an
    /// error of before.
    pub(super) fn log_tail_read(&mut self, lines: &[String], was_killed: bool) {
        self.log_tail = kubelet_log::shown(lines);
        let Some(pending) = &mut self.pending else { return };
        if matches!(pending.failure, Failure::ExitBeforeReady | Failure::Exits) {
            if let Some(reason) = kubelet_log::fatal(lines).filter(|_| !was_killed) {
                pending.detail = format!("{}: {reason}", pending.detail);
            }
        } else if let Some(error) = kubelet_log::last_error(lines) {
            // It lives, so this need not be why; but it is where people would look next.
            pending.detail = format!("{} (the kubelet's last error: {error})", pending.detail);
        }
    }
}

impl State {
    /// Another decision: what was seen of the one before does not count.
    pub(super) fn new_decision(&mut self) {
        (self.trial.recovered, self.trial.waiting_since, self.trial.ill_since) = (false, None, None);
        self.trial.pending = None;
        self.health.observe_anew();
    }

    pub(super) fn tick_trial(&mut self) {
        self.update_suspension();
        self.update_observing();
        self.update_health();
        self.miss_pings();
        self.tick_queries();
        if self.trial.pending.as_ref().is_some_and(|pending| self.clock.reached(pending.until)) {
            return self.resolve_failure();
        }
        let Some(run) = self.process.run().filter(|_| self.trial.pending.is_none()).cloned() else { return };
        let (role, verdict) = (self.judgement().role(), self.judgement().verdict(&run));
        match (role, verdict) {
            (_, Verdict::Failing(failure, detail)) => return self.note_failure(failure, detail, Some(&run)),
            (Role::Trial { .. }, verdict) => {
                self.tick_progress();
                self.tick_proof(&verdict);
            }
            (Role::ControlTest, verdict) => self.tick_control_test(&verdict),
            (Role::Recovery, verdict) => self.tick_recovery(&verdict),
            (Role::Reset | Role::Nothing, _) => {}
        }
        self.tick_adopted();
    }

    /// Notes a failure, and has the node observed before it is judged.
    fn note_failure(&mut self, failure: Failure, detail: String, run: Option<&Run>) {
        let in_outage = self.suspended() == Some(Suspension::ApiServer);
        // No kubelet ends at once for want of an API server.
        let is_long = |since: &Moment| self.clock.now.since(*since) >= limits::QUERY_INTERVAL;
        let lacked_contact = run.and_then(|run| run.bad.get(&Signal::ApiServer)).is_some_and(is_long);
        let lived = run.map_or(Duration::ZERO, |run| self.clock.now.since(run.started));
        let run = FailedRun { lived, unstarted: run.is_none(), in_outage, lacked_contact, control_lacked_it: false };
        self.effects.push(Effect::ReadLogTail);
        self.observe(Observation::Environment);
        if failure.family() == Some(FailureFamily::Contact) {
            self.observe(Observation::Lease); // it may be back since it was asked for last
        }
        let until = self.clock.after(limits::QUERY_DEADLINE);
        self.trial.pending = Some(PendingFailure { failure, detail, run, until });
    }

    /// Judges the pending failure once all has been answered that was asked for it.
    pub(super) fn resolve_observed_failure(&mut self) {
        let Some(pending) = &self.trial.pending else { return };
        let is_open = |observation| self.asks.is_open(Asker::Observed(observation));
        let is_of_contact = pending.failure.family() == Some(FailureFamily::Contact);
        let waits = is_open(Observation::Environment) || is_of_contact && is_open(Observation::Lease);
        if !waits {
            self.resolve_failure();
        }
    }

    /// Judges the pending failure by what is known now.
    fn resolve_failure(&mut self) {
        let Some(PendingFailure { failure, detail, run: failed, .. }) = self.trial.pending.take() else { return };
        let dead = matches!(self.kubelet(), Kubelet::Waiting { .. });
        let (failure, detail) = self.judgement().runtime_given_up().unwrap_or((failure, detail));
        // An exit is put to the control test in an outage of the API server as well: last known good then ends alike, or not.
        let is_tested = |suspension| match suspension {
            Suspension::ApiServer => dead,
            // After a reset the local files may be what takes it away.
            Suspension::Runtime if self.judgement().is_reset_tried() => self.health.is_runtime_gone(self.clock.now),
            Suspension::Runtime => failure == Failure::Signal(Signal::Runtime),
            Suspension::DiskFull | Suspension::ShuttingDown => false,
        };
        if let Some(suspension) = self.suspended().filter(|suspension| !is_tested(*suspension)) {
            self.log(Level::Warn, format!("{detail}; not held against the configuration: {}", suspension.message()));
            if dead {
                self.wait_for_restart();
            }
            return;
        }
        match self.process.run() {
            Some(run) if self.judgement().failing(run).is_none() => return, // it has recovered
            None if !dead => return,
            _ => {}
        }
        // Whatever it was, it was the configuration's: health begins anew.
        self.lose_health();
        let is_control_test = self.judgement().role() == Role::ControlTest;
        match self.records().phase.clone() {
            Phase::Trial(_) | Phase::AwaitingConfirmation(..) if self.judgement().is_judged() => {
                let exits = self.count_exit(dead);
                if let Some(attempt) = self.writer.attempt_mut() {
                    let lacked_contact = failed.lacked_contact || attempt.failed.lacked_contact;
                    attempt.failed = FailedRun { lacked_contact, ..failed };
                }
                if dead && failure == Failure::Exits && exits < limits::TRIAL_EXITS {
                    return self.wait_for_restart();
                }
                let detail = match failure {
                    Failure::Exits => format!("the kubelet ended {exits} times within the trial, last with {detail}"),
                    _ => detail,
                };
                return self.roll_back(failure, &detail);
            }
            // Without a runtime a kubelet ends, or fails in whatever way.
            Phase::ControlTest(_, before)
                if is_control_test && (failure.is_like(before) || self.judgement().is_runtime_away()) =>
            {
                let name = Version::name(self.active());
                self.not_to_blame(&format!("{name} fails in the same way ({detail})"));
            }
            _ if dead && self.judgement().is_reset_tried() => {
                self.count_exit_after_reset(&self.running().clone(), &detail);
            }
            _ => {}
        }
        if dead {
            self.wait_for_restart();
        }
    }

    /// Nothing was observed for a while: the machine was suspended, or we were stopped. The kubelet may have been as
    /// well, so that nothing is known of that time, neither good nor bad; and health is continuous, or begins anew.
    pub(super) fn woke_up(&mut self, unwatched: Duration) {
        let now = self.clock.now;
        let waited = self.trial.waiting_since;
        self.trial.waiting_since = waited.map(|since| later(since, unwatched)); // nobody saw whether what runs was well
        if !self.judgement().is_observing() {
            return;
        }
        if let Some(run) = self.process.run_mut() {
            run.woke_up(now);
        }
        if let Some(attempt) = self.writer.attempt_mut() {
            attempt.earned = Duration::ZERO;
        }
    }

    fn count_exit(&mut self, dead: bool) -> u32 {
        let Some(attempt) = self.writer.attempt_mut() else { return 0 };
        attempt.exits += u32::from(dead);
        attempt.exits
    }

    /// An exit that nobody asked for; or a start that failed, of which there is no run. True if it waits for judgement.
    pub(super) fn note_exit(&mut self, run: Option<&Run>, failure: Failure, detail: String) -> bool {
        self.forget_progress();
        self.writer.learn(|records| records.started = None); // the next worker does not miss it
        self.asks.forget_process();
        self.trial.pending = None; // whatever was pending while it ran
        if !self.judgement().is_on_test() {
            if self.judgement().is_on_trial() {
                self.count_exit(true);
                self.lose_health();
            }
            if !self.judgement().is_reset_tried() {
                self.count_exit_after_reset(&self.running().clone(), &detail);
                return false;
            }
        }
        self.note_failure(failure, detail, run);
        true
    }

    fn tick_proof(&mut self, verdict: &Verdict) {
        let passed = matches!(verdict, Verdict::Passed) && self.writer.is_idle();
        let unconfirmed = |attempt: &Attempt| self.judgement().must_be_confirmed(attempt);
        match self.records().phase.clone() {
            Phase::AwaitingConfirmation(attempt, wait) if unconfirmed(&attempt) => self.tick_confirmation(&wait),
            Phase::Trial(attempt) if passed && unconfirmed(&attempt) => self.await_confirmation(attempt),
            Phase::Trial(_) | Phase::AwaitingConfirmation(..) if passed => self.prove(),
            _ => {}
        }
    }

    /// What runs is last known good from now on.
    fn prove(&mut self) {
        let mut records = self.records().clone();
        self.promote(&mut records);
        self.propose(records, Proposal::Prove);
    }

    /// What passed its trial becomes last known good.
    pub(super) fn promote(&self, records: &mut Records) {
        let Some(attempt) = records.phase.trial().cloned() else { return };
        let before_reset = records.reset.take().map(|reset| reset.before);
        let before = records.last_known_good.replace(attempt.version.clone()).or(before_reset);
        records.phase = Phase::Settled;
        records.raise_sequence(attempt.signed.as_ref());
        records.good_signals = self.good_signals(attempt.baseline.as_ref());
        records.bad.forget_proven(&attempt.version, self.process.started_kubelet());
        if let Some(content) = &attempt.version.digest {
            records.note_accepted(content, self.process.started_kubelet()); // there is no stronger verdict
        }
        keep_proven(&mut records.proven, before, &attempt.version);
    }

    /// What is good on this node now.
    fn good_signals(&self, baseline: Option<&Baseline>) -> Baseline {
        let run = self.process.run();
        let good = |signal: &Signal| run.is_some_and(|run| run.is_good(*signal));
        Signal::ALL.into_iter().filter(good).chain(baseline.into_iter().flatten().copied()).collect()
    }

    /// Last known good under another name is told so after a trial's time, as native's would be.
    fn tick_adopted(&mut self) {
        let records = self.records();
        let renamed = records.phase == Phase::Settled
            && records.pin.is_none()
            && records.assigned != records.last_known_good
            && is_same(records.assigned.as_ref(), records.last_known_good.as_ref())
            && is_same(records.assigned.as_ref(), self.active())
            && self.is_ready();
        if !renamed {
            self.trial.adopted_at = None;
            return;
        }
        let records = Records { last_known_good: records.assigned.clone(), ..records.clone() };
        let since = *self.trial.adopted_at.get_or_insert(self.clock.now);
        if self.clock.lasted(since, self.settings.trial_duration) && self.writer.is_idle() {
            self.propose(records, Proposal::Note);
        }
    }

    /// The trial was passed, durably.
    pub(super) fn proven(&mut self) {
        if let Some(version) = self.records().last_known_good.clone() {
            self.versions.judge_anew(version.digest.as_ref());
            self.emit(events::proven(&version.source, self.settings.trial_duration));
        }
        self.collect();
    }

    /// What `status` and the metrics say of the trial.
    #[must_use]
    pub(crate) fn trial_remaining(&self) -> Option<Duration> {
        let attempt = self.records().phase.trial().filter(|_| self.judgement().is_on_trial())?;
        let healthy = self.process.run().and_then(|run| run.healthy_since);
        let healthy = healthy.map_or(Duration::ZERO, |since| self.clock.now.since(since));
        Some(self.settings.trial_duration.saturating_sub(attempt.earned + healthy))
    }

    /// When the trial is passed if nothing goes wrong; `None` while its clock stands still. It is another moment
    /// only when that clock was stopped, or begins anew.
    #[must_use]
    pub fn trial_ends(&self) -> Option<Moment> {
        let attempt = self.records().phase.trial().filter(|_| self.judgement().is_on_trial())?;
        let since = self.process.run()?.healthy_since?;
        Some(later(since, self.settings.trial_duration.saturating_sub(attempt.earned)))
    }
}

/// For `rollback --to`; equal content under another name is nothing to go back to.
fn keep_proven(proven: &mut Vec<Version>, before: Option<Version>, now: &Version) {
    proven.retain(|known| !is_same(Some(known), before.as_ref()) && !is_same(Some(known), Some(now)));
    proven.extend(before.filter(|before| !is_same(Some(before), Some(now))));
    let excess = proven.len().saturating_sub(limits::PROVEN_KEPT);
    proven.drain(..excess);
}
