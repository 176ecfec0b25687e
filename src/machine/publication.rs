//! When the status is published: at rest. What lasts for milliseconds on the way from one state to the next is no news.
//! And the promise of its error's text, that the log has more.

use super::{Kubelet, Level, State, limits};

impl State {
    /// True if the status is one that lasts.
    #[must_use]
    pub fn is_status_due(&self) -> bool {
        self.moving_since.is_none_or(|since| self.clock.lasted(since, limits::STATUS_DELAY))
    }

    /// The text of `status.config.error`, and the reason behind it.
    pub(super) fn error(&self) -> Option<(&'static str, String)> {
        let sync = self.sync_error().map(|(error, why)| (error.text(), why.to_owned()));
        sync.or_else(|| self.config_error().map(|(error, why)| (error.text(), why)))
    }

    /// "See Kubelet log for details": the identical text is in the journal, with the details, as native's was in the kubelet's log
    /// (website, reconfigure-kubelet.md, v1.11 to v1.23).
    pub(super) fn log_error(&mut self) {
        if !self.is_status_due() {
            return; // no news, as for the status
        }
        let error = self.error();
        if error == self.logged_error {
            return;
        }
        if let Some((text, why)) = &error {
            self.log(Level::Warn, format!("{text}: {why}"));
        }
        self.logged_error = error;
    }

    pub(super) fn note_motion(&mut self) {
        let moving = self.writer.is_writing()
            || self.is_change_brief()
            || !self.launch.is_idle()
            || self.is_policy_awaited()
            || matches!(self.kubelet(), Kubelet::Starting | Kubelet::Stopping);
        self.moving_since = moving.then(|| self.moving_since.unwrap_or(self.clock.now));
    }
}
