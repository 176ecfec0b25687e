//! The control test: what failed is remembered as bad, and last known good runs in its place. Does it fail alike?
//!
//! | what failed | the version is to blame once last known good | it is not, and is tried again later, if last known good |
//! |---|---|---|
//! | the process: exits, start, healthz, pings | lived well for 30 s, and for as long as the version lived, in contact or not | fails by its process as well |
//! | the same while the API server was away, for the version and at first for last known good, too | lived for as long while that was away | fails by its process; or the server is back sooner: nobody can tell |
//! | contact with the API server | was in contact from the first question on, and healthy for 30 s | was cut off at any time |
//! | the container runtime | had one from the first look on, and was healthy for 30 s | had none at any time |
//!
//! Before a loss of contact is held against a version the API server is asked once more: an outage may just have ended.
//!
//! Like is compared with like: kubelets do end for want of an API server, after 23 s (v1.20) to 140 s (v1.36). A version that is
//! tried again waits until last known good was healthy for a while, each time for longer. That wait ends, too, where last known
//! good does not get well, unless the node is known to be ill.

use std::time::Duration;

use crate::machine::clock::Clock;
use crate::machine::evidence::{FailedRun, Failure, FailureFamily, Signal};
use crate::machine::model::{Moment, later};
use crate::machine::proposal::Proposal;
use crate::machine::records::{Phase, Records, Version};
use crate::machine::versions::is_same;
use crate::machine::{Level, Run, State, events, limits};

/// What the control test has found.
enum Finding {
    /// Last known good lives in what the version died of.
    ToBlame,
    /// It does not; or nobody can tell.
    NotToBlame(&'static str),
}

/// The table above, but for last known good failing in the same way.
fn finding(failure: Failure, failed: FailedRun, run: &Run, trial: Duration, clock: &Clock) -> Option<Finding> {
    let lived = |since: Option<Moment>| since.is_some_and(|since| clock.lasted(since, needed(failure, failed, trial)));
    if failure.family() == Some(FailureFamily::Process) {
        let in_outage = failed.in_outage || failed.lacked_contact && failed.control_lacked_it;
        if in_outage && run.is_good(Signal::ApiServer) {
            return Some(Finding::NotToBlame(
                "the API server was away, and is back: nobody can tell what it would have done",
            ));
        }
        let since = if in_outage { run.ready_at } else { run.well_since };
        let is_alike = !in_outage || run.bad.contains_key(&Signal::ApiServer);
        return (is_alike && lived(since)).then_some(Finding::ToBlame);
    }
    if !lived(run.healthy_since) {
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
    /// True if the control test cleared it, and last known good has not been healthy for long enough since.
    pub(in crate::machine) fn awaits_retry(&self, version: &Version) -> bool {
        match &self.records().phase {
            Phase::RetryLater(attempt, _) => {
                is_same(Some(&attempt.version), Some(version)) && !self.trial.has_recovered()
            }
            _ => false,
        }
    }

    /// Compares last known good with what failed, or waits until that may be tried again.
    pub(super) fn tick_control_test(&mut self, run: &Run) {
        match self.records().phase.clone() {
            Phase::ControlTest(attempt, failure) if self.writer.is_idle() => {
                let trial = self.settings.trial_duration;
                match finding(failure, attempt.failed, run, trial, &self.clock) {
                    Some(Finding::ToBlame) => {
                        let active = Version::name(self.active());
                        self.log(Level::Info, format!("{active} lives: the fault was with {}", attempt.version));
                        let records = Records { phase: Phase::Settled, ..self.records().clone() };
                        self.propose(records, Proposal::Note);
                    }
                    Some(Finding::NotToBlame(why)) => self.not_to_blame(why),
                    None if self.is_waited_for(needed(failure, attempt.failed, trial)) => {
                        self.not_to_blame("what runs does not get well either: nobody can tell");
                    }
                    None => {}
                }
            }
            Phase::RetryLater(attempt, _) if !self.trial.has_recovered() => {
                let is_waited_for = self.is_waited_for(attempt.retry_wait());
                let is_healthy = run.healthy_since.is_some_and(|at| self.clock.lasted(at, attempt.retry_wait()));
                if is_healthy || is_waited_for {
                    let how = if is_healthy { "is healthy again" } else { "does not get well either" };
                    self.log(Level::Info, format!("what runs {how}: the cleared version is tried once more"));
                    self.trial.recovered = true;
                    self.sync.reconsider();
                }
            }
            _ => {}
        }
    }

    /// What runs could have been well for so long by now, and nothing was known to be wrong with the node meanwhile.
    fn is_waited_for(&mut self, time: Duration) -> bool {
        let since = *self.trial.waiting_since.get_or_insert(self.clock.now);
        if self.suspended().is_some() || self.is_runtime_away() {
            self.trial.ill_since.get_or_insert(self.clock.now);
            return false;
        }
        let ill = self.trial.ill_since.take().map_or(Duration::ZERO, |ill| self.clock.now.since(ill));
        let since = later(since, ill);
        self.trial.waiting_since = Some(since);
        self.clock.lasted(since, time + limits::NOT_RECOVERING)
    }

    /// What this family of failures lacks was looked for while last known good is tested, and was not there.
    pub(in crate::machine) fn note_control_lacked(&mut self, family: FailureFamily) {
        let tested = match self.records().phase {
            Phase::ControlTest(ref attempt, failure) => {
                // Of a process that ended in an outage: was it over when last known good came up?
                let heard = self.process.run().is_some_and(|run| run.good.contains_key(&Signal::ApiServer));
                let in_outage = family == FailureFamily::Contact && attempt.failed.lacked_contact && !heard;
                (failure.family() == Some(family) || in_outage) && self.is_observing()
            }
            _ => false,
        };
        if let Some(attempt) = self.writer.attempt_mut().filter(|_| tested)
            && !std::mem::replace(&mut attempt.failed.control_lacked_it, true)
        {
            self.writer.write_soon();
        }
    }

    /// It is not the version's fault: it is tried again, each time later.
    pub(in crate::machine) fn not_to_blame(&mut self, why: &str) {
        let Some(mut attempt) = self.records().phase.attempt().cloned() else { return };
        let version = attempt.version.clone();
        let mut records = self.records().clone();
        records.bad.forget_latest(&version);
        self.versions.judge_anew(version.digest.as_ref());
        attempt.clearances = attempt.clearances.saturating_add(1);
        attempt.runtime_tested |= self.is_tested_for_runtime();
        (attempt.exits, attempt.breaks, attempt.earned, attempt.progress) = (0, 0, Duration::ZERO, None);
        // Something else may have been assigned while last known good was tested.
        let is_assigned = is_same(records.assigned.as_ref(), Some(&version));
        records.phase = if is_assigned { Phase::RetryLater(attempt, why.to_owned()) } else { Phase::Settled };
        self.apply_now(records);
        self.new_decision();
        self.emit_with_log(events::not_blamed(&version.source, why, is_assigned));
    }
}
