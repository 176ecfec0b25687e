//! The law at the moment of a SIGTERM to the kubelet.

use std::time::Duration;

use kubelet_config::assignment::Assignment;

use crate::sim::laws::Law;
use crate::sim::world::Outside;

/// What was decided on a wrong word when the right one came is carried out within this time.
const MISLED: Duration = Duration::from_secs(2);

impl Outside {
    /// Law 5: what is assigned and works is not stopped.
    pub fn check_stop(&mut self) {
        self.note_moment_at_stop();
        let Some(process) = &self.process else { return };
        self.account.good_at_stop = Some(self.good_now(Some(process)));
        let content = process.content;
        let assigned = match &self.known_assignment {
            Assignment::Map(_) if self.known_assignment == self.desired => self.desired_source(),
            _ => None,
        };
        let wanted = match (&self.known_assignment, &assigned) {
            (Assignment::Local, _) => self.content_of(None),
            (_, Some(source)) => self.content_of(Some(source)),
            _ => None,
        };
        let account = &self.account;
        // A decision about another one was carried out; by now this one is assigned again.
        let recorded = self.records(&self.disk.durable()).and_then(|records| records.assigned.clone());
        let overtaken = assigned.is_some() && recorded.map(|version| version.source) != assigned;
        let misled = account.misled || account.set_right.is_some_and(|at| self.now <= at + MISLED);
        // A working one may be stopped for what the node did to it.
        let excused = !content.behaviour.works()
            || process.unread
            || process.hindered
            || self.is_refused_lately(content)
            || self.was_in_trouble()
            || self.disk_is_ailing()
            || self.store_lags()
            || account.leaving
            || misled
            || overtaken
            || account.is_commanded(self.now)
            || account.pinned.is_some()
            || account.deaths.is_some()
            || account.awaits.is_some()
            || account.has_failed(content)
            || account.unlucky.contains(&content)
            || account.cleared.as_ref().is_some_and(|cleared| self.is_content_of(&cleared.source, content))
            || self.mood != crate::sim::api::Mood::default();
        self.account.check(Law::StoppedForAReason, excused, wanted != Some(content), || {
            format!("{content:?} was stopped, which is assigned and works")
        });
    }
}
