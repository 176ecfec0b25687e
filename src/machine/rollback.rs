//! The way back: what failed is remembered as bad, and last known good is put to the control test.

use kubelet_config::source::Source;
use kubelet_config::status;

use super::evidence::Failure;
use super::model::RestartCause;
use super::record::ControlTest;
use super::{Counter, Effect, State, TrialEnd, events};

impl State {
    /// Remembers what runs as bad and goes back to last known good, which is then the control test.
    pub(super) fn roll_back(&mut self, failure: Failure, detail: &str, fx: &mut Vec<Effect>) {
        let Some(source) = self.active.clone() else { return };
        let digest = self.running.digest.clone();
        let baseline = self.records().local_state.attempt.as_ref().and_then(|attempt| attempt.baseline.clone());
        self.error = Some((status::LOAD_ERROR.to_owned(), detail.to_owned()));
        let mut records = self.with_bad_version(&source, digest.as_ref(), failure.label(), status::LOAD_ERROR, detail);
        records.local_state.control_test =
            failure.family().map(|_| ControlTest { source: source.clone(), failure, baseline });
        self.remember(records, fx);
        self.report_rollback(&source, failure, detail, fx);
        self.trial = None;
        self.pending_failure = None;
        self.switch(self.fallback(), RestartCause::Rollback, fx);
    }

    /// Reports a rollback: the status, the metric, the event.
    pub(super) fn report_rollback(&mut self, source: &Source, failure: Failure, detail: &str, fx: &mut Vec<Effect>) {
        self.trial_end = TrialEnd::Failed;
        fx.push(Effect::Count(Counter::Rollback(failure)));
        let mut event = events::rolled_back(source, self.fallback().as_ref(), detail);
        event.log_tail.clone_from(&self.log_tail);
        fx.push(Effect::Emit(event));
    }
}
