//! The control test: what failed is remembered as bad, and last known good runs in its place. Does it fail alike?
//!
//! | what failed | the version is to blame once last known good | it is not, and is tried again later, if last known good |
//! |---|---|---|
//! | the process: exits, start, healthz, pings | was healthy for 30 s, and for as long as the version lived | fails by its process as well |
//! | the same while the API server was away | lived for as long while that was away | fails by its process; or the server is back sooner: nobody can tell |
//! | contact with the API server | was in contact from the first question on, and healthy for 30 s | was cut off at any time |
//! | the container runtime | had one from the first look on, and was healthy for 30 s | had none at any time |
//!
//! Before a loss of contact is held against a version the API server is asked once more: an outage may just have ended.
//!
//! Like is compared with like: kubelets do end for want of an API server, after 23 s (v1.20) to 140 s (v1.36). A version that is
//! tried again waits until last known good was healthy for a while, each time for longer. That wait ends, too, where last known
//! good does not get well, unless the node is known to be ill.

use std::time::Duration;

use crate::machine::evidence::{FailedRun, Failure, FailureFamily, Signal};
use crate::machine::model::{Moment, later};
use crate::machine::proposal::Proposal;
use crate::machine::records::{Phase, Records, Version};
use crate::machine::{Level, Run, State, events, limits};

/// What the control test has found.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Finding {
    /// Last known good lives in what the version died of.
    ToBlame,
    /// It does not; or nobody can tell.
    NotToBlame(&'static str),
}

/// The table above, but for last known good failing in the same way.
fn finding(failure: Failure, failed: FailedRun, run: &Run, trial: Duration, now: Moment) -> Option<Finding> {
    let lived = |since: Option<Moment>, least: Duration| since.is_some_and(|since| now.since(since) >= least);
    let is_of_process = failure.family() == Some(FailureFamily::Process);
    if is_of_process && failed.in_outage {
        if run.is_good(Signal::ApiServer) {
            return Some(Finding::NotToBlame(
                "the API server was away, and is back: nobody can tell what it would have done",
            ));
        }
        let is_away = run.bad.contains_key(&Signal::ApiServer);
        return (is_away && lived(run.ready_at, needed(failure, failed, trial))).then_some(Finding::ToBlame);
    }
    if !lived(run.healthy_since, needed(failure, failed, trial)) {
        return None;
    }
    Some(match failure.family() {
        Some(FailureFamily::Contact) if failed.control_lacked_it => {
            Finding::NotToBlame("the API server could not be reached with last known good either")
        }
        Some(FailureFamily::Runtime) if failed.control_lacked_it => {
            Finding::NotToBlame("the container runtime did not answer with last known good either")
        }
        _ => Finding::ToBlame,
    })
}

/// Last known good must live so long.
fn needed(failure: Failure, failed: FailedRun, trial: Duration) -> Duration {
    let lived =
        if matches!(failure, Failure::Exits | Failure::ExitBeforeReady) { failed.lived } else { Duration::ZERO };
    (lived + limits::CONTROL_TEST).min(trial.max(limits::CONTROL_TEST))
}

impl State {
    /// Compares last known good with what failed, or waits until that may be tried again.
    pub(super) fn tick_control_test(&mut self, run: &Run) {
        match self.records().phase.clone() {
            Phase::ControlTest(attempt, failure) if self.writer.is_idle() => {
                match finding(failure, attempt.failed, run, self.settings.trial_duration, self.now) {
                    Some(Finding::ToBlame) => {
                        let active = Version::name(self.active());
                        self.log(Level::Info, format!("{active} lives: the fault was with {}", attempt.version));
                        let records = Records { phase: Phase::Settled, ..self.records().clone() };
                        self.propose(records, Proposal::Note);
                    }
                    Some(Finding::NotToBlame(why)) => self.not_to_blame(why),
                    None if self.is_waited_for(needed(failure, attempt.failed, self.settings.trial_duration)) => {
                        self.not_to_blame("what runs does not get well either: nobody can tell");
                    }
                    None => {}
                }
            }
            Phase::RetryLater(attempt, _) if !self.has_recovered() => {
                let is_waited_for = self.is_waited_for(attempt.retry_wait());
                let is_healthy = run.healthy_since.is_some_and(|at| self.now.since(at) >= attempt.retry_wait());
                if is_healthy || is_waited_for {
                    let how = if is_healthy { "is healthy again" } else { "does not get well either" };
                    self.log(Level::Info, format!("what runs {how}: the cleared version is tried once more"));
                    self.note_recovery();
                }
            }
            _ => {}
        }
    }

    /// What runs could have been well for so long by now, and nothing is known to be wrong with the node.
    fn is_waited_for(&mut self, time: Duration) -> bool {
        let since = *self.trial.waiting_since.get_or_insert(self.now);
        let is_ill = self.suspended().is_some() || self.is_runtime_away();
        !is_ill && self.now.since(since) >= time + limits::NOT_RECOVERING
    }

    /// When that wants attention.
    pub(super) fn control_test_deadlines(&self, due: &mut Vec<Moment>) {
        let run = self.process.run();
        let healthy = run.and_then(|run| run.healthy_since);
        match &self.records().phase {
            Phase::ControlTest(attempt, failure) => {
                let needed = needed(*failure, attempt.failed, self.settings.trial_duration);
                let ready = run.and_then(|run| run.ready_at);
                due.extend(healthy.into_iter().chain(ready).map(|since| later(since, needed)));
                due.extend(self.trial.waiting_since.map(|since| later(since, needed + limits::NOT_RECOVERING)));
            }
            Phase::RetryLater(attempt, _) if !self.has_recovered() => {
                due.extend(healthy.map(|since| later(since, attempt.retry_wait())));
                let ends = |since| later(since, attempt.retry_wait() + limits::NOT_RECOVERING);
                due.extend(self.trial.waiting_since.map(ends));
            }
            _ => {}
        }
    }

    /// What this family of failures lacks was looked for while last known good is tested, and was not there.
    pub(in crate::machine) fn note_control_lacked(&mut self, family: FailureFamily) {
        let tested = match self.records().phase {
            Phase::ControlTest(_, failure) => failure.family() == Some(family) && self.is_observing(),
            _ => false,
        };
        let Some(attempt) = self.writer.attempt_mut().filter(|attempt| tested && !attempt.failed.control_lacked_it)
        else {
            return;
        };
        attempt.failed.control_lacked_it = true;
        self.writer.write_soon();
    }

    /// It is not the version's fault: it is tried again, each time later.
    pub(in crate::machine) fn not_to_blame(&mut self, why: &str) {
        let Some(mut attempt) = self.records().phase.attempt().cloned() else { return };
        let version = attempt.version.clone();
        let mut records = self.records().clone();
        // With another binary it may have failed for itself.
        let failed = records.bad.iter().rev().find(|bad| bad.is_about(&version)).map(|bad| bad.kubelet.clone());
        records.bad.retain(|bad| !bad.is_about(&version) || Some(&bad.kubelet) != failed.as_ref());
        attempt.clearances = attempt.clearances.saturating_add(1);
        (attempt.exits, attempt.breaks, attempt.earned, attempt.progress) = (0, 0, Duration::ZERO, None);
        records.phase = Phase::RetryLater(attempt, why.to_owned());
        self.apply_now(records);
        self.new_decision();
        let mut event = events::not_blamed(&version.source, why);
        event.log_tail = self.last_log_lines(usize::MAX);
        self.emit(event);
    }
}
