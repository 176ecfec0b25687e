//! The wait for an operator's confirmation of what has proven healthy (`confirm-within`).

use std::time::Duration;

use super::evidence::Failure;
use super::model::Moment;
use super::record::ConfirmationWait;
use super::{Effect, State, events, limits};
use kubelet_config::duration::GoDuration;
use kubelet_config::source::ConfigAnnotations;

impl State {
    /// Seconds within which this ConfigMap must be acknowledged; `None` if it need not.
    pub(super) fn confirm_within(&self, annotations: &ConfigAnnotations) -> Result<Option<u64>, String> {
        let within = match &annotations.confirm_within {
            Some(text) => {
                let parsed: Result<GoDuration, _> = text.parse();
                parsed.map_err(|why| format!("annotation kubelet-supervisor.io/confirm-within: {why}"))?.0
            }
            None => self.settings.confirm_within.unwrap_or_default(),
        };
        Ok(Some(within.as_secs()).filter(|seconds| *seconds > 0))
    }

    pub(super) fn await_confirmation(&mut self, within: u64, fx: &mut Vec<Effect>) {
        let mut records = self.records().clone();
        let Some(attempt) = &mut records.local_state.attempt else { return };
        attempt.confirm = Some(ConfirmationWait::within(within, self.now, self.settings.boot_id()));
        let source = attempt.source.clone();
        self.remember(records, fx);
        fx.push(Effect::Emit(events::awaits_confirmation(&source, Duration::from_secs(within))));
    }

    /// The wait for an acknowledgement: it ends, or what is left of it is noted now and then.
    pub(super) fn tick_confirm(&mut self, confirm: &ConfirmationWait, fx: &mut Vec<Effect>) {
        let now = self.now.boot.as_secs();
        let left = if confirm.boot_id == self.settings.boot_id() {
            confirm.until.saturating_sub(now)
        } else {
            confirm.left // another boot's clock: go on with what was noted
        };
        if left == 0 {
            return self.roll_back(Failure::Unconfirmed, "nobody confirmed it in time", fx);
        }
        let noted = confirm.left.saturating_sub(left) >= limits::CONFIRM_RECORD_INTERVAL.as_secs();
        if noted || confirm.boot_id != self.settings.boot_id() {
            let mut records = self.records().clone();
            if let Some(attempt) = &mut records.local_state.attempt {
                let renewed = ConfirmationWait::within(left, self.now, self.settings.boot_id());
                // What people were promised stays, to the second, unless the machine was started anew.
                let wall = if confirm.boot_id == renewed.boot_id { confirm.wall } else { renewed.wall };
                attempt.confirm = Some(ConfirmationWait { wall, ..renewed });
            }
            self.remember(records, fx);
        }
    }

    /// Seconds left to acknowledge what runs, if it waits for that.
    #[must_use]
    pub fn confirm_left(&self) -> Option<u64> {
        let attempt = self.saved.local_state.attempt.as_ref().filter(|attempt| !attempt.confirmed)?;
        Some(attempt.confirm.as_ref()?.until.saturating_sub(self.now.boot.as_secs()))
    }

    /// The wall clock when that wait ends, as it was promised.
    #[must_use]
    pub fn confirm_by(&self) -> Option<u64> {
        let attempt = self.saved.local_state.attempt.as_ref().filter(|attempt| !attempt.confirmed)?;
        attempt.confirm.as_ref().map(|confirm| confirm.wall).filter(|wall| *wall != 0)
    }

    /// When the wait for an acknowledgement wants attention.
    pub(super) fn confirm_deadlines(&self, due: &mut Vec<Moment>) {
        let confirm = self.records().local_state.attempt.as_ref().and_then(|attempt| attempt.confirm.as_ref());
        if let (Some(confirm), Some(_)) = (confirm, &self.trial) {
            let noted = confirm.until.saturating_sub(confirm.left) + limits::CONFIRM_RECORD_INTERVAL.as_secs();
            for seconds in [confirm.until, noted] {
                due.push(Moment { boot: Duration::from_secs(seconds), ..self.now });
            }
        }
    }
}
