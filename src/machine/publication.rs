//! When the status is published: at rest. What lasts for milliseconds on the way from one state to the next is no news.

use super::model::{Moment, later};
use super::{Kubelet, State, limits};

impl State {
    /// True if the status is one that lasts.
    #[must_use]
    pub fn is_status_due(&self) -> bool {
        self.status_due_at().is_none_or(|at| self.now >= at)
    }

    /// When the status is published although something is still under way.
    pub(super) fn status_due_at(&self) -> Option<Moment> {
        self.moving_since.map(|since| later(since, limits::STATUS_DELAY))
    }

    pub(super) fn note_motion(&mut self) {
        let moving = self.writer.is_writing()
            || self.is_change_brief()
            || !self.launch.is_idle()
            || matches!(self.process.kubelet(), Kubelet::Starting | Kubelet::Stopping { .. });
        self.moving_since = moving.then(|| self.moving_since.unwrap_or(self.now));
    }
}
