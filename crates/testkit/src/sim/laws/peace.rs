//! What a node must come to, once it is left in peace with a working disk and API server.

use std::time::Duration;

use kubelet_config::assignment::Assignment;
use kubelet_config::source::Source;
use kubelet_supervisor::machine::State;

use crate::sim::account::SLACK;
use crate::sim::behaviour::Outcome;
use crate::sim::kubelet::Process;
use crate::sim::laws::Law;
use crate::sim::world::Outside;

impl Outside {
    /// Everything works, and what is wanted is there, or why not is said.
    pub fn check_converged(&mut self, state: &State) {
        self.check_local_file_is_followed(state);
        let wrong = self.what_is_wrong();
        self.account.check(Law::Converges, false, wrong.is_none(), || wrong.unwrap_or_default().to_owned());
    }

    fn what_is_wrong(&self) -> Option<&'static str> {
        let status = &self.status;
        let says = |wrong: bool, what: &'static str| wrong.then_some(what);
        let desired = self.desired_source();
        let young = self.process.as_ref().is_none_or(|process| self.now < process.started + SLACK);
        if young && self.is_dying() {
            return None;
        }
        if self.process.is_none() {
            return Some("no kubelet runs");
        }
        if self.process.as_ref().is_some_and(|it| it.cuts_off && self.account.is_lkg(it.content)) {
            return None; // proven when nobody could tell, and out of reach since
        }
        match &self.desired {
            Assignment::Unknown => None,
            Assignment::Local => {
                let all = [&status.assigned, &status.active, &status.last_known_good];
                let fails = status.error.is_some() && !self.says_local_failed();
                says(all.iter().any(|it| it.is_some()) || fails, "it is not reset")
            }
            _ if desired.is_none() => {
                let said = status.error.as_ref().is_some_and(|error| error.starts_with("failed to sync"));
                says(!said, "no word of what cannot be synced")
            }
            // What may not be read is not told as assigned. What was taken up from there before goes on.
            _ if status.assigned != desired && self.is_forbidden_lately() => {
                let reference = |source: &Option<Source>| source.as_ref().map(|source| source.reference.clone());
                let goes_on = reference(&status.assigned) == reference(&desired);
                says(status.error.is_none() && !goes_on, "no word of what may not be read")
            }
            _ if status.assigned != desired => Some("another one is assigned"),
            _ => self.is_not_applied(),
        }
    }

    fn is_not_applied(&self) -> Option<&'static str> {
        let status = &self.status;
        let content = self.content_of_version(status.assigned.as_ref()?)?;
        let process = self.process.as_ref()?;
        if self.content_of(None) == Some(content) || content.behaviour == crate::sim::world::Behaviour::LosesPods {
            return None; // what we would fall back to is the same; good or bad, it runs
        }
        if status.active == status.assigned {
            let proven = self.account.is_lkg(content);
            let outcome = content.behaviour.outcome(self.account.baseline(content));
            let known = proven && content.behaviour.is_seen_from_afar(); // by what was seen then
            let waits = status.assigned.as_ref().is_some_and(|source| self.confirm_within(source).is_some());
            return match outcome {
                Outcome::Stays | Outcome::Either => None,
                Outcome::Fails if known => None,
                // Nobody was to blame, so it is tried once more.
                Outcome::Fails if self.is_being_retried(process) => None,
                Outcome::Fails => Some("what fails still runs"),
                Outcome::Passes if waits => None,
                Outcome::Passes if !content.behaviour.works() => None,
                Outcome::Passes if !proven => Some("what works is not last known good"),
                Outcome::Passes => status.error.is_some().then_some("an error where all is well"),
            };
        }
        let cleared = status.assigned.as_ref().is_some_and(|source| self.account.is_cleared(source));
        // Refused, or unlucky in its trial; either way it is said.
        let lkg_runs = self.account.is_lkg(process.content) || self.account.lkg.is_none() && process.path.is_none();
        if !lkg_runs && !self.lost_last_known_good() {
            Some("neither assigned nor last known good runs")
        } else if status.error.is_none() {
            Some("it is not applied, and no error says so")
        } else {
            let unclear = status.assigned.as_ref().is_some_and(|source| self.is_unclear(source));
            let refused = unclear || self.is_refused_lately(content);
            let failed =
                refused || self.account.has_failed(content) || self.account.unlucky.contains(&content) || cleared;
            let absent = status.assigned.as_ref().is_some_and(|it| it.reference.kubelet_config_key == "absent");
            (content.behaviour.works() && !failed && !absent).then_some("it is not applied, and it never failed")
        }
    }

    /// It was cleared, and started a short while ago: no longer than a verdict takes.
    fn is_being_retried(&self, process: &Process) -> bool {
        let cleared = self.status.assigned.as_ref().is_some_and(|source| self.account.is_cleared(source));
        cleared && self.now < process.started + Duration::from_secs(300)
    }

    /// Last known good cannot run: its content rotted, or another kubelet binary may refuse it.
    fn lost_last_known_good(&self) -> bool {
        self.account.lkg.as_ref().is_none_or(|lkg| {
            self.is_forbidden_lately()
                || lkg.kubelet != self.kubelet_id
                || !lkg.file.as_ref().is_some_and(|file| self.is_whole(file))
        })
    }
}
