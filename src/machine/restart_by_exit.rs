//! `--restart-by exit`: the supervisor ends where it would start a second kubelet, so that systemd
//! starts both anew, and whatever the unit does before a start (`ExecStartPre`) is done.
//!
//! Such an exit costs no try, and what the trial has observed is kept in the records. While records
//! cannot be written the kubelet is restarted in place: a supervisor that exits then loses its decisions.
//! The same is done after a crash in the supervisor's first 30 s, or while a change is on its way: if the
//! local configuration kills the kubelet at once, no supervisor would live long enough to read the
//! assigned one from the API server.

use super::io::log;
use super::record::TrialSnapshot;
use super::{Effect, ExitForRestart, Kubelet, Level, RestartBy, State};

/// EX_TEMPFAIL of sysexits(3): not 0, so that `Restart=on-failure` goes by it as `Restart=always` does.
pub const EXIT_FOR_RESTART: u8 = 75;

impl State {
    /// The supervisor's exit code after [`Effect::Quit`].
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        if self.exit_stage == ExitForRestart::Done { EXIT_FOR_RESTART } else { 0 }
    }

    /// True if the next start is not ours to do, as far as the records allow.
    pub(super) fn exits_for_restarts(&self) -> bool {
        self.settings.restart_by == RestartBy::Exit && self.starts > 0 && !self.leaving
    }

    /// The same for a restart that nothing but the kubelet's own end asks for.
    pub(super) fn exits_on_crash(&self) -> bool {
        self.exits_for_restarts() && !self.in_place
    }

    /// Exits instead of starting the kubelet. False if the kubelet has to be started in place.
    pub(super) fn exit_for_restart(&mut self, fx: &mut Vec<Effect>) -> bool {
        if self.unsaved.is_some() {
            if self.retry.is_none() || fx.iter().any(|effect| matches!(effect, Effect::Record(..))) {
                // On its way to the disk; its answer comes back here.
                self.kubelet = Kubelet::Waiting { until: self.now };
                return true;
            }
            if std::mem::take(&mut self.exit_stage) == ExitForRestart::Recording
                && let Some(attempt) = self.unsaved.as_mut().and_then(|records| records.local_state.attempt.as_mut())
            {
                attempt.tries += 1;
            }
            log(fx, Level::Warn, "the records cannot be written: the kubelet is restarted in place");
            return false;
        }
        if self.exit_stage == ExitForRestart::None {
            let records = self.records_for_next_supervisor();
            if records != self.saved {
                self.exit_stage = ExitForRestart::Recording;
                self.kubelet = Kubelet::Waiting { until: self.now };
                self.remember(records, fx);
                return true;
            }
        }
        self.exit_stage = ExitForRestart::Done;
        log(fx, Level::Info, "the kubelet's restart is left to systemd (--restart-by exit)");
        self.leave(fx);
        true
    }

    /// The records with what the next supervisor must know of a trial, and with the try given back.
    fn records_for_next_supervisor(&self) -> super::Records {
        let mut records = self.saved.clone();
        if let Some(attempt) = &mut records.local_state.attempt {
            attempt.tries = attempt.tries.saturating_sub(1);
            attempt.snapshot = Some(TrialSnapshot {
                exits: self.trial.as_ref().map_or(0, |trial| trial.exits),
                pods: self.pods_before.clone(),
                runtime: self.runtime.clone(),
                runtime_answered: self.runtime_answered,
                node: self.node.clone(),
                lease: self.lease.clone(),
            });
        }
        records
    }

    /// Takes over what the last supervisor recorded of the trial.
    pub(super) fn restore_snapshot(&mut self, snapshot: TrialSnapshot) {
        self.pods_before = snapshot.pods;
        self.runtime = snapshot.runtime;
        self.runtime_answered = snapshot.runtime_answered;
        self.node = snapshot.node;
        self.lease = snapshot.lease;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::{Input, Run, Settings};
    use super::*;
    use crate::machine::model::{Exit, Moment};

    /// What becomes of a kubelet without a trial that ends by itself so many seconds after the supervisor's start.
    fn crash_at(second: u64) -> State {
        let at = |second| Moment { boot: Duration::from_secs(second), wall_nanos: 0 };
        let mut state = State::new(Settings { restart_by: RestartBy::Exit, ..Settings::default() });
        state.starts = 1;
        state.kubelet = Kubelet::Running(Run { pid: 1, ..Run::default() });
        state.step(Input::Exited(Exit::Code(1)), at(second));
        state.step(Input::Tick, at(second + 11));
        state
    }

    #[test]
    fn a_young_supervisor_stays_to_hear_of_something_better() {
        let state = crash_at(5);
        assert_eq!((&state.kubelet, state.exit_code()), (&Kubelet::Launching, 0));
        let state = crash_at(90);
        assert_eq!((&state.kubelet, state.exit_code()), (&Kubelet::Gone, EXIT_FOR_RESTART));
    }
}
