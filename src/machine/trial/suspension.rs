//! Suspension: while the node around the kubelet is at fault, no configuration is judged. What the change itself may have
//! caused is not the node's fault: it is judged, and put to the control test.

use std::time::Duration;

use crate::machine::evidence::{Failure, Signal, Suspension};
use crate::machine::model::later;
use crate::machine::records::Phase;
use crate::machine::{Counter, Level, State, events, limits};

impl State {
    /// What is at fault for the kubelet's troubles, if it is not the configuration.
    fn suspension(&self) -> Option<Suspension> {
        if let Some(environment) = self.health.environment(&self.clock) {
            if environment.shutting_down {
                return Some(Suspension::ShuttingDown);
            }
            if environment.disk_full {
                return Some(Suspension::DiskFull);
            }
        }
        if self.is_runtime_away() && !self.is_attributable(Signal::Runtime) && !self.is_tested_for_runtime() {
            return Some(Suspension::Runtime);
        }
        let Some(run) = self.process.run() else {
            // Nobody asks while no kubelet runs: it is as it was when that ended.
            return self.suspended().filter(|it| *it == Suspension::ApiServer);
        };
        run.bad.get(&Signal::ApiServer)?;
        // A node that got an answer, and be it that the server is overloaded, is not cut off.
        let elsewhere = self.is_required_signal(Signal::ApiServer)
            && (run.was_answered || !self.is_attributable(Signal::ApiServer));
        elsewhere.then_some(Suspension::ApiServer)
    }

    /// True if the container runtime did not answer a moment ago. A socket that never answered may be a wrong guess of ours.
    pub(in crate::machine) fn is_runtime_away(&self) -> bool {
        let seen = self.health.environment(&self.clock);
        seen.is_some_and(|seen| seen.runtime == Some(false)) && self.runtime_has_answered()
    }

    /// True while last known good shows whether it has a runtime.
    pub(super) fn is_tested_for_runtime(&self) -> bool {
        matches!(self.records().phase, Phase::ControlTest(_, Failure::Signal(Signal::Runtime)))
    }

    /// The runtime has been gone for so long that the version on trial is put to a control test for it, once.
    pub(super) fn runtime_given_up(&self) -> Option<(Failure, String)> {
        let first = self.records().phase.trial().is_some_and(|attempt| !attempt.runtime_tested);
        let is_given_up = first && self.is_judged() && self.health.is_runtime_gone(self.clock.now);
        is_given_up.then(|| (Failure::Signal(Signal::Runtime), "the container runtime does not come back".to_owned()))
    }

    /// True if the loss of this can come of the change: the version was not yet seen to live with it for a while.
    fn is_attributable(&self, signal: Signal) -> bool {
        let boot_id = self.settings.boot_id();
        let settled = self.records().phase.attempt().is_none_or(|attempt| attempt.contact_boot == boot_id);
        if settled || !self.is_required_signal(signal) {
            return false;
        }
        let Some(run) = self.process.run() else { return true };
        let lost = run.bad.get(&signal).copied().unwrap_or(self.clock.now);
        let seen = signal == Signal::Runtime
            || run.good.contains_key(&Signal::Lease)
            || run.good.contains_key(&Signal::NodeReady);
        !(seen && run.is_past_attribution(lost))
    }

    /// Stops or resumes judgement by what was last observed.
    pub(in crate::machine) fn update_suspension(&mut self) {
        let suspension = self.suspension().filter(|_| self.is_observing());
        let before = self.health.set_suspended(suspension, self.clock.now);
        if let Some(reason) = suspension.filter(|_| suspension != before) {
            self.count(Counter::Suspension(reason));
        }
        match (suspension, before) {
            (Some(suspension), None) => {
                self.log(Level::Warn, format!("{}: judgement is suspended, nobody is blamed", suspension.message()));
                if let Some(version) = self.active().filter(|_| self.is_on_trial()) {
                    self.emit(events::suspended(&version.source, suspension));
                }
            }
            (None, Some(suspension)) => {
                self.log(Level::Info, format!("no longer true that {}: judgement goes on", suspension.message()));
                // What was bad meanwhile gets its whole time again, and the kubelet some to notice.
                let from = self.clock.after(limits::SUSPENSION_GRACE);
                if let Some(run) = self.process.run_mut() {
                    run.begin_anew(from);
                }
            }
            _ => {}
        }
    }

    /// Nothing was observed for a while: the machine was suspended, or we were stopped. The kubelet may have been as
    /// well, so that nothing is known of that time, neither good nor bad; and health is continuous, or begins anew.
    pub(in crate::machine) fn woke_up(&mut self, unwatched: Duration) {
        let now = self.clock.now;
        let waited = self.trial.waiting_since;
        self.trial.waiting_since = waited.map(|since| later(since, unwatched)); // nobody saw whether what runs was well
        if !self.is_observing() {
            return;
        }
        if let Some(run) = self.process.run_mut() {
            run.woke_up(now);
        }
        if let Some(attempt) = self.writer.attempt_mut() {
            attempt.earned = Duration::ZERO;
        }
    }
}
