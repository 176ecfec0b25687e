//! A configuration that somebody has to confirm: what is proven and not confirmed in time goes back.

use std::time::Duration;

use crate::machine::evidence::Failure;
use crate::machine::model::Moment;
use crate::machine::proposal::Proposal;
use crate::machine::records::{Attempt, ConfirmationWait, Phase, Records};
use crate::machine::{State, events, limits};
use kubelet_config::duration::GoDuration;
use kubelet_config::source::ConfigAnnotations;

impl State {
    /// Seconds within which this ConfigMap must be confirmed; `None` if it need not.
    pub(in crate::machine) fn confirm_within(&self, annotations: &ConfigAnnotations) -> Result<Option<u64>, String> {
        let within = match &annotations.confirm_within {
            Some(text) => {
                let parsed: Result<GoDuration, _> = text.parse();
                parsed.map_err(|why| format!("annotation kubelet-supervisor.io/confirm-within: {why}"))?.0
            }
            None => self.settings.confirm_within.unwrap_or_default(),
        };
        Ok(Some(within.as_secs()).filter(|seconds| *seconds > 0))
    }

    pub(super) fn await_confirmation(&mut self, mut attempt: Attempt) {
        (attempt.exits, attempt.breaks) = (0, 0); // they were the trial's, which it passed
        let wait = ConfirmationWait::within(attempt.confirm_seconds(), self.clock.now, self.settings.boot_id());
        let records = Records { phase: Phase::AwaitingConfirmation(attempt, wait), ..self.records().clone() };
        self.propose(records, Proposal::AwaitConfirmation);
    }

    /// Somebody is to confirm it, durably.
    pub(in crate::machine) fn awaits_confirmation(&mut self) {
        if let Some(attempt) = self.writer.attempt_mut() {
            (attempt.exits, attempt.breaks) = (0, 0);
        }
        if let Phase::AwaitingConfirmation(attempt, _) = &self.records().phase {
            let within = Duration::from_secs(attempt.confirm_seconds());
            self.emit(events::awaits_confirmation(&attempt.version.source, within));
        }
    }

    /// The wait for a confirmation: it ends, or what is left of it is noted now and then.
    pub(super) fn tick_confirmation(&mut self, wait: &ConfirmationWait) {
        let boot_id = self.settings.boot_id();
        if wait.boot_id != boot_id {
            return; // it was not begun anew in this boot: its clock stands still
        }
        let now = self.clock.now;
        let is_over = |seconds| self.clock.reached(Moment { boot: Duration::from_secs(seconds), ..now });
        let noted_until = wait.until.saturating_sub(wait.left) + limits::CONFIRM_RECORD_INTERVAL.as_secs();
        if is_over(wait.until) {
            if self.writer.is_writing() {
                return; // it may be the confirmation that is on its way to the disk
            }
            return self.roll_back(Failure::Unconfirmed, "nobody confirmed it in time");
        }
        if is_over(noted_until) && self.writer.is_idle() {
            let mut records = self.records().clone();
            if let Phase::AwaitingConfirmation(_, wait) = &mut records.phase {
                let renewed = ConfirmationWait::within(wait.left_at(now, &boot_id), now, boot_id);
                // What people were promised stays, to the second, unless the machine was started anew.
                let wall = if wait.boot_id == renewed.boot_id { wait.wall } else { renewed.wall };
                *wait = ConfirmationWait { wall, ..renewed };
            }
            self.propose(records, Proposal::Note);
        }
    }

    fn confirmation(&self) -> Option<&ConfirmationWait> {
        match &self.records().phase {
            Phase::AwaitingConfirmation(attempt, wait) if attempt.needs_confirmation() => Some(wait),
            _ => None,
        }
    }

    /// Seconds left to confirm what runs, if it waits for that.
    #[must_use]
    pub fn confirm_left(&self) -> Option<u64> {
        self.confirmation().map(|wait| wait.left_at(self.clock.now, &self.settings.boot_id()))
    }

    /// The wall clock when that wait ends, as it was promised.
    #[must_use]
    pub fn confirm_by(&self) -> Option<u64> {
        self.confirmation().map(|wait| wait.wall).filter(|wall| *wall != 0)
    }
}
