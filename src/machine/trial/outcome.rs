//! How trials end, and how long they take: for the metrics. Whatever ended one, it is seen by comparing the records.

use crate::machine::model::TrialResult;
use crate::machine::records::{BadReason, Version};
use crate::machine::versions::is_same;
use crate::machine::{Counter, State};

impl State {
    /// Counts the trial that has ended since this was called last, if one has.
    pub(in crate::machine) fn count_trial(&mut self) {
        let tried = self.records().phase.trial().map(|attempt| attempt.version.clone());
        let before = self.trial.under_way.take();
        let goes_on = before.is_some() && is_same(before.as_ref().map(|(version, _)| version), tried.as_ref());
        if let Some((version, since)) = before.as_ref().filter(|_| !goes_on) {
            let counter = Counter::Trial(self.trial_result(version), self.clock.now.since(*since));
            self.count(counter);
        }
        let since = before.filter(|_| goes_on).map_or(self.clock.now, |(_, since)| since);
        self.trial.under_way = tried.map(|version| (version, since));
    }

    fn trial_result(&self, version: &Version) -> TrialResult {
        if is_same(self.records().last_known_good.as_ref(), Some(version)) {
            return TrialResult::Proven;
        }
        match self.bad_version(version).map(|bad| bad.reason) {
            Some(BadReason::Failed(_)) => TrialResult::RolledBack,
            Some(BadReason::Rejected) | None => TrialResult::NoVerdict,
        }
    }
}
