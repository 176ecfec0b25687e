//! The way back: what failed is remembered as bad, and last known good is put to the control test.

use crate::machine::evidence::Failure;
use crate::machine::model::ConfigError;
use crate::machine::records::{Attempt, BadReason, Phase, Records, Version};
use crate::machine::{Counter, State, events};

impl State {
    /// Remembers the version on trial as bad: last known good is desired from now on. This counts before it is
    /// written: a node must not stay on what fails because its disk does.
    pub(in crate::machine) fn roll_back(&mut self, failure: Failure, detail: &str) {
        let Some((records, version)) = self.rolled_back(failure, detail) else { return };
        self.apply_now(records);
        self.report_rollback(&version, failure, detail);
    }

    /// This counts from now on. The store serves one request after the other: what is told of it afterwards is told once it is
    /// durable.
    pub(in crate::machine) fn apply_now(&mut self, records: Records) {
        self.writer.apply_before_write(records);
        self.write();
    }

    /// The records after a rollback, and what failed.
    pub(in crate::machine) fn rolled_back(&self, failure: Failure, detail: &str) -> Option<(Records, Version)> {
        let attempt = self.records().phase.trial().filter(|attempt| self.judgement().can_fail(&attempt.version))?;
        let attempt = Attempt { progress: None, ..attempt.clone() };
        let version = attempt.version.clone();
        let bad = self.bad(&version, BadReason::Failed(failure), ConfigError::Load, detail);
        let mut records = self.records().clone();
        records.bad.add(bad);
        records.phase = match failure.family() {
            Some(_) => Phase::ControlTest(attempt, failure),
            None => Phase::Settled,
        };
        Some((records, version))
    }

    /// Reports a rollback: the metric, the event; the way back must not wait.
    pub(in crate::machine) fn report_rollback(&mut self, version: &Version, failure: Failure, detail: &str) {
        self.new_decision();
        self.process.start_at_once(self.clock.now);
        self.count(Counter::Rollback(failure));
        let to = self.desired().map(|version| version.source);
        self.emit_with_log(events::rolled_back(Some(&version.source), to.as_ref(), detail));
    }

    /// The kubelet refuses a version when it is to be started, being another binary than before.
    pub(in crate::machine) fn refuse_at_start(&mut self, version: &Version, error: ConfigError, detail: &str) {
        let mut records = self.records().clone();
        records.bad.add(self.bad(version, BadReason::Rejected, error, detail));
        if records.phase.trial().is_some_and(|attempt| attempt.version == *version) {
            records.phase = Phase::Settled;
        }
        self.writer.apply_before_write(records);
        self.new_decision();
    }

    /// A trial is over without a verdict. The version is looked at anew: it comes back like any change, in contact and with a
    /// baseline of then.
    pub(in crate::machine) fn end_trial_without_verdict(&mut self) {
        self.writer.apply_before_write(Records { phase: Phase::Settled, ..self.records().clone() });
        self.sync.reconsider();
    }
}
