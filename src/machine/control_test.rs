//! The control test: last known good runs after a rollback. If it fails alike, the version is not bad and is tried
//! again later.

use kubelet_config::status;

use super::io::log;
use super::record::{ControlTest, RetryLater};
use super::{Effect, Level, Run, State, events, limits};

impl State {
    /// Last known good is healthy, or has been for long enough to try a cleared version again.
    pub(super) fn tick_control_test(&mut self, run: &Run, fx: &mut Vec<Effect>) {
        let Some(healthy) = run.healthy_since.map(|since| self.now.since(since)) else { return };
        let local_state = &self.records().local_state;
        if let Some(control_test) = local_state.control_test.clone().filter(|_| healthy >= limits::CONTROL_TEST) {
            let mut records = self.records().clone();
            records.local_state.control_test = None;
            // The version failed by its own fault this time: an earlier cleared failure no longer counts.
            records.local_state.retry_later.take_if(|retry_later| retry_later.source == control_test.source);
            self.remember(records, fx);
            let active = status::name(self.active.as_ref());
            log(fx, Level::Info, format!("{active} is healthy: the fault was with {}", control_test.source));
        } else if local_state.retry_later.as_ref().is_some_and(|retry_later| healthy >= retry_later.wait())
            && !self.recovered
        {
            self.recovered = true;
            log(fx, Level::Info, "what runs is healthy again, the pardoned version is tried once more");
        }
    }

    /// Last known good fails in the same way: the version is cleared.
    pub(super) fn clear_version(&mut self, control_test: &ControlTest, detail: &str, fx: &mut Vec<Effect>) {
        let why = format!("{} fails in the same way ({detail})", status::name(self.active.as_ref()));
        let mut records = self.records().clone();
        let local_state = &mut records.local_state;
        local_state.bad.retain(|bad| bad.source != control_test.source);
        local_state.control_test = None;
        let before = local_state.retry_later.take().filter(|retry_later| retry_later.source == control_test.source);
        let times = before.map_or(0, |retry_later| retry_later.times.saturating_add(1));
        local_state.retry_later = Some(RetryLater { source: control_test.source.clone(), times, why: why.clone() });
        self.error = Some((status::LOAD_ERROR.to_owned(), format!("not to blame, will be tried again: {why}")));
        self.recovered = false;
        self.remember(records, fx);
        let mut event = events::not_blamed(&control_test.source, &why);
        event.log_tail.clone_from(&self.log_tail);
        fx.push(Effect::Emit(event));
    }
}
