//! The supervisor leaves a restart to systemd.

use super::{EXIT_FOR_RESTART, ExitForRestart};
use crate::machine::io::{Effect, log};
use crate::machine::proposal::Proposal;
use crate::machine::records::{Phase, Records};
use crate::machine::{Level, RestartBy, State};

impl State {
    /// The supervisor's exit code after [`Effect::Quit`].
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        if self.exit_stage == ExitForRestart::Done { EXIT_FOR_RESTART } else { 0 }
    }

    /// True if the next start is left to systemd; it is, once what the next supervisor must know is durable.
    pub(in crate::machine) fn leave_restart_to_systemd(&mut self, fx: &mut Vec<Effect>) -> bool {
        if !self.leaves_restarts() || self.process.is_in_place() || self.exit_stage == ExitForRestart::Failed {
            return false;
        }
        if !self.writer.is_idle() {
            let writer = &self.writer;
            let due = !writer.is_writing() && writer.failure().is_none() && writer.read_only().is_none();
            if due || writer.holds_start(self.now) {
                return true; // on its way to the disk; its answer comes back here
            }
            log(fx, Level::Warn, "the records cannot be written: the kubelet is restarted in place");
            self.exit_stage = ExitForRestart::Failed; // the next attempt to write does not hold up this start again
            return false;
        }
        let records = self.records_for_next_supervisor();
        if records == *self.saved() {
            self.exit_for_restart(fx);
        } else {
            self.propose(records, Proposal::ExitForRestart, fx);
        }
        true
    }

    /// What the next supervisor must know is durable, or could not be recorded.
    pub(in crate::machine) fn exit_recorded(&mut self, result: &Result<(), String>, fx: &mut Vec<Effect>) {
        // An answer may come so late that the kubelet was restarted in place meanwhile.
        let waits = self.exit_stage == ExitForRestart::None && self.process.run().is_none();
        if result.is_ok() && waits {
            self.exit_for_restart(fx);
        } else {
            self.exit_stage = ExitForRestart::Failed;
        }
    }

    /// The next restart is left to systemd again.
    pub(in crate::machine) fn restarted_in_place(&mut self) {
        self.exit_stage = ExitForRestart::None;
    }

    fn exit_for_restart(&mut self, fx: &mut Vec<Effect>) {
        self.exit_stage = ExitForRestart::Done;
        log(fx, Level::Info, "the kubelet's restart is left to systemd (--restart-by exit)");
        self.leave(fx);
    }

    /// True if restarts are not ours to do.
    fn leaves_restarts(&self) -> bool {
        self.settings.restart_by == RestartBy::Exit && self.process.starts() > 0 && !self.process.is_leaving()
    }

    /// The same for a restart that nothing but the kubelet's own end asks for.
    pub(in crate::machine) fn exits_on_exit(&self) -> bool {
        self.leaves_restarts() && !self.process.is_in_place()
    }

    /// The records with what the next supervisor must know of a trial, and with the try given back.
    fn records_for_next_supervisor(&self) -> Records {
        let mut records = self.records().clone();
        let waits = matches!(records.phase, Phase::RetryLater(..));
        let spent = u32::from(records.pin.is_none());
        if let Some(attempt) = records.phase.attempt_mut().filter(|_| !waits) {
            attempt.tries = attempt.tries.saturating_sub(spent);
            attempt.node = self.health.before_start();
        }
        records.hung_restarts = if self.settings.standalone { 0 } else { self.hung.restarts() };
        records
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::machine::model::{Exit, KubeletId, Moment};
    use crate::machine::process::{Process, RunningConfig};
    use crate::machine::{Input, Kubelet, Run, Settings};

    /// What becomes of a kubelet without a trial that ends by itself so many seconds after the supervisor's start.
    fn crash_at(second: u64) -> State {
        let at = |second| Moment { boot: Duration::from_secs(second), wall_nanos: 0 };
        let mut state = State::new(Settings { restart_by: RestartBy::Exit, ..Settings::default() });
        let run = Run { pid: 1, ..Run::default() };
        state.process = Process::resumed(run, RunningConfig::default(), KubeletId::default(), 1, at(0));
        state.step(Input::Exited(Exit::Code(1)), at(second));
        state.step(Input::Tick, at(second + 11));
        state
    }

    #[test]
    fn a_young_supervisor_stays_to_hear_of_something_better() {
        let state = crash_at(5);
        assert!(matches!(state.kubelet(), Kubelet::Waiting { .. }) && state.exit_code() == 0, "{:?}", state.kubelet());
        let state = crash_at(90);
        assert_eq!((state.kubelet(), state.exit_code()), (&Kubelet::Gone, EXIT_FOR_RESTART));
    }
}
