//! The law of the local file, which changes while a kubelet runs.

use std::time::Duration;

use kubelet_supervisor::machine::State;

use crate::sim::laws::Law;
use crate::sim::records::checkpoint;
use crate::sim::world::{Content, Outside};

/// It is read two seconds after it was written, and again each minute while the store does not give it.
const PATIENCE: Duration = Duration::from_secs(150);

impl Outside {
    /// What the file makes of what runs under its present name; `None` if nothing can be made of it, or nobody knows.
    fn local_file_makes(&self, state: &State) -> Option<(Option<Content>, bool)> {
        let source = state.active().map(|version| &version.source);
        let overlay = source.is_some_and(|source| self.version_of(source).is_some_and(|version| version.overlay));
        let concerns = overlay || source.is_none();
        let torn = concerns && self.torn_local.is_some();
        let content = self.content_of(source).filter(|_| !torn);
        (torn || content.is_some()).then_some((content, overlay))
    }

    /// What it says otherwise than what runs is told.
    pub(super) fn check_local_file(&mut self, state: &State) {
        let now = self.now;
        let Some(process) = self.process.as_ref().filter(|process| process.stopping.is_none()) else { return };
        let Some((content, _)) = self.local_file_makes(state) else { return };
        let differs = content != Some(process.content);
        let told = state.local_files_difference();
        let since = process.started.max(self.local_edited.unwrap_or_default()).max(self.account.began);
        let whole = state.active().is_none_or(|version| !self.disk.is_rotten(&checkpoint(&version.source)));
        let excused = now <= since + PATIENCE
            || process.unread
            || self.account.told_last.is_some_and(|at| now <= at + PATIENCE)
            || !whole
            || self.disk_is_ailing()
            || self.store_lags()
            || self.silence.waited_within(PATIENCE, now)
            || self.account.failed_last.1 + PATIENCE >= now
            || self.account.read_failed_last.1.is_some_and(|at| now <= at + PATIENCE);
        let fine = told.is_some() == differs;
        let (runs, edited) = (process.content, self.local_edited);
        self.account.check(Law::LocalFiles, excused, fine, || {
            format!("{runs:?} runs, the file of {edited:?} makes {content:?} of it, and told is {told:?}")
        });
    }

    /// Where it is followed, a node in peace runs what it makes of the assigned version, or has found that this fails.
    pub(super) fn check_local_file_is_followed(&mut self, state: &State) {
        let Some(process) = &self.process else { return };
        let followed = state.settings.follow_local && self.status.active == self.status.assigned;
        let Some((Some(content), true)) = self.local_file_makes(state).filter(|_| followed) else { return };
        let account = &self.account;
        // Where the Node wants what is not there, nothing is taken up.
        let excused = self.desired_source().is_none()
            || account.has_failed(content)
            || account.unlucky.contains(&content)
            || !content.behaviour.works();
        let (runs, fine) = (process.content, process.content == content);
        self.account
            .check(Law::LocalFiles, excused, fine, || format!("{runs:?} runs where the file is followed: {content:?}"));
    }
}
