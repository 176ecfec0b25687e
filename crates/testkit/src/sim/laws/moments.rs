//! What a change waits for, and for how long.

use std::time::Duration;

use kubelet_config::source::Source;

use super::Law;
use crate::sim::account::{SLACK, UNSEEN};
use crate::sim::moments::COURTESY;
use crate::sim::world::{Content, Outside};

impl Outside {
    /// The kubelet is stopped. What was decided right before the supervisor was told of a pressure goes on.
    pub(super) fn note_moment_at_stop(&mut self) {
        let was_told = self.moments.told.is_some_and(|since| self.now >= since + 2 * UNSEEN);
        let is_prompt = !self.store_lags() && !self.disk_is_ailing();
        self.moments.stopped_under_pressure = was_told && is_prompt;
        self.moments.stopped_for_a_loss = self.moments.asked_for_pods.is_some_and(|(_, told)| told && is_prompt);
    }

    /// Law 5: a change waits for the end of a pressure, and so does a reset, but for the way back, and if what runs is unproven.
    /// A change alone waits for pods that any restart would cost.
    pub(super) fn check_moment(&mut self, path: Option<&str>, content: Content) {
        let under_pressure = std::mem::take(&mut self.moments.stopped_under_pressure);
        let costs_pods = std::mem::take(&mut self.moments.stopped_for_a_loss);
        let has_known_of_loss = std::mem::take(&mut self.moments.has_known_of_loss);
        let own = self.own();
        let is_own = path.is_none() || own == content;
        let account = &mut self.account;
        let left = account.reset_from.take();
        let was_local = account.lkg.is_none() && account.last.as_ref().is_some_and(|last| last.path.is_none());
        let was_lkg = |ran: Content| was_local || account.is_lkg(ran) || left == Some(ran);
        let is_of_proven = account.ran.is_some_and(was_lkg);
        // What runs is not known where the local file could not be read at its start, or is another by now.
        let local = account.last.as_ref().filter(|last| last.path.is_none());
        let is_unknown = local.is_some_and(|last| {
            let lasts = self.now.saturating_sub(last.started) + Duration::from_secs(60);
            // What is on trial in its place is another content by now.
            let torn = self.torn_local.is_some() && account.on_trial.is_some();
            last.unread || torn || account.ran != Some(own) || self.silence.waited_within(lasts, self.now)
        });
        let is_excused = account.stopped.is_none()
            || is_unknown
            || account.ran.is_none_or(|ran| ran == content)
            || account.last.as_ref().is_none_or(|last| last.ready_at.is_none())
            || account.was_proven(content)
            || account.pinned.is_some()
            || account.is_commanded(self.now);
        account.check(Law::CostsNoPods, is_excused || is_own || !has_known_of_loss, !costs_pods, || {
            format!("{content:?} is switched to, and that costs a pod that is known")
        });
        account.check(Law::NotUnderPressure, is_excused || !is_of_proven, !under_pressure, || {
            format!("{content:?} is switched to, and the Node is under pressure")
        });
    }

    /// Law 5: what waits, by the supervisor's own account, waits no longer than the courtesy.
    pub fn check_courtesy(&mut self, waits: Option<&Source>) {
        let Some(source) = waits else {
            self.moments.waits = None;
            return;
        };
        let before = self.moments.waits.take().filter(|(before, _)| before == source);
        let since = before.map_or(self.now, |(_, since)| since);
        self.moments.waits = Some((source.clone(), since));
        let waited = self.now.saturating_sub(since);
        let in_time = waited <= COURTESY + SLACK;
        self.account.check(Law::Courtesy, false, in_time, || format!("{source} has waited for {waited:?}"));
    }
}
