//! The control test: what follows from its [`Verdict`], and the wait until what was cleared is tried again.
//!
//! Before a loss of contact is held against a version the API server is asked once more: an outage may just have ended. A version that is
//! tried again waits until last known good was healthy for a while, each time for longer. That wait ends, too, where last known good
//! does not get well, unless the node is known to be ill.

use std::time::Duration;

use crate::machine::evidence::{Failure, FailureFamily, Signal};
use crate::machine::model::later;
use crate::machine::proposal::Proposal;
use crate::machine::records::{Attempt, Phase, Records, RunningConfig, Version};
use crate::machine::verdict::{Verdict, needed};
use crate::machine::versions::is_same;
use crate::machine::{Level, State, events, limits};

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

    /// Last known good was compared with what failed.
    pub(super) fn tick_control_test(&mut self, verdict: &Verdict) {
        let Phase::ControlTest(attempt, failure) = self.records().phase.clone() else { return };
        if !self.writer.is_idle() {
            return;
        }
        match verdict {
            Verdict::ToBlame => {
                let active = Version::name(self.active());
                self.log(Level::Info, format!("{active} lives: the fault was with {}", attempt.version));
                let records = Records { phase: Phase::Settled, ..self.records().clone() };
                self.propose(records, Proposal::Note);
            }
            Verdict::NotToBlame(why) => self.not_to_blame(why),
            _ if self.is_waited_for(needed(failure, attempt.failed, self.settings.trial_duration)) => {
                self.not_to_blame("what runs does not get well either: nobody can tell");
            }
            _ => {}
        }
    }

    /// What was cleared is tried again once what runs is well, or does not get well.
    pub(super) fn tick_recovery(&mut self, verdict: &Verdict) {
        let Some(wait) = self.records().phase.attempt().map(Attempt::retry_wait) else { return };
        let is_waited_for = self.is_waited_for(wait);
        let is_healthy = matches!(verdict, Verdict::Recovered);
        if is_healthy || is_waited_for {
            let how = if is_healthy { "is healthy again" } else { "does not get well either" };
            self.log(Level::Info, format!("what runs {how}: the cleared version is tried once more"));
            self.trial.recovered = true;
            self.sync.reconsider();
        }
    }

    /// What runs could have been well for so long by now, and nothing was known to be wrong with the node meanwhile.
    fn is_waited_for(&mut self, time: Duration) -> bool {
        let since = *self.trial.waiting_since.get_or_insert(self.clock.now);
        if self.suspended().is_some() || self.judgement().is_runtime_away() {
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
                (failure.family() == Some(family) || in_outage) && self.judgement().is_observing()
            }
            _ => false,
        };
        if let Some(attempt) = self.writer.attempt_mut().filter(|_| tested)
            && !std::mem::replace(&mut attempt.failed.control_lacked_it, true)
        {
            self.writer.write_soon();
        }
    }

    /// Last known good ended while nobody watched it: it fails in the same way as a version whose process did.
    pub(in crate::machine) fn note_exit_in_test(&mut self, ran: &RunningConfig, how: &str) {
        let Phase::ControlTest(attempt, before) = &self.records().phase else { return };
        let is_other = ran.digest.is_some() && ran.digest != attempt.version.digest;
        if is_other && Failure::Exits.is_like(*before) {
            let name = Version::name(ran.version.as_ref());
            self.not_to_blame(&format!("{name} fails in the same way ({how})"));
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
        attempt.runtime_tested |= self.judgement().is_tested_for_runtime();
        (attempt.exits, attempt.breaks, attempt.earned, attempt.progress) = (0, 0, Duration::ZERO, None);
        // Something else may have been assigned while last known good was tested.
        let is_assigned = is_same(records.assigned.as_ref(), Some(&version));
        records.phase = if is_assigned { Phase::RetryLater(attempt, why.to_owned()) } else { Phase::Settled };
        self.apply_now(records);
        self.new_decision();
        self.emit_with_log(events::not_blamed(&version.source, why, is_assigned));
    }
}
