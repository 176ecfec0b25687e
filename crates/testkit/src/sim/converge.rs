//! What a node must come to, once it is left in peace with a working disk and API server.

use std::path::Path;

use kubelet_config::assignment::Assignment;
use kubelet_config::source::Source;
use kubelet_supervisor::adapters::store::FsStore;
use kubelet_supervisor::machine::State;
use kubelet_supervisor::ports::Store as _;

use super::behaviour::Outcome;
use super::harness::Node;
use super::laws::Law;
use super::rules;
use super::world::{Outside, ROOT};

impl Node {
    /// The last point: everything works, and what is wanted is there, or why not is said.
    pub fn check_converged(&self) {
        let wrong = self.what_is_wrong(&self.outside.borrow());
        self.must(Law::Converges, wrong.is_none(), || wrong.unwrap_or_default().to_owned());
    }

    /// All that matters, short enough to be read.
    pub fn explain(&self) -> String {
        let outside = self.outside.borrow();
        let state = &self.executor.state;
        let name = |source: Option<&Source>| {
            let content = outside.content_of(source);
            source.map_or(format!("local ({content:?})"), |source| {
                let reference = &source.reference;
                let version = &source.resource_version;
                format!("{}[{}]@{version} ({content:?})", reference.name, reference.kubelet_config_key)
            })
        };
        let mut lines = vec![
            format!("desired:         {:?}, known {:?}", outside.desired, outside.known_assignment),
            format!("assigned:        {}", name(state.saved.assigned.as_ref())),
            format!("last known good: {}", name(state.saved.last_known_good.as_ref())),
            format!("active:          {}, target {}", name(state.active.as_ref()), name(state.target.as_ref())),
            format!("attempt:         {:?}, {:?}", state.saved.local_state.attempt, state.trial),
            format!("suspended:       {:?}, pending_failure {:?}", state.suspended, state.pending_failure),
            format!(
                "control_test:           {:?}, retry later {:?}",
                state.saved.local_state.control_test, state.saved.local_state.retry_later
            ),
            format!("observations:    {:?}", outside.observations),
            format!(
                "held:            pin {:?}, frozen {}",
                state.saved.local_state.pin, state.saved.local_state.frozen
            ),
            format!("unsaved:         {}, ailing disk: {}", state.unsaved.is_some(), outside.disk_is_ailing()),
            format!("errors:          {:?} {:?}", state.error, state.sync_error),
            format!("process:         {:?}", outside.process),
            format!("machine:         {:?} {:?} {:?}", state.kubelet, state.change, state.retry),
            format!("kubelet:         {}, known {}", outside.kubelet_id, outside.account.known_kubelet),
        ];
        for bad in state.saved.local_state.bad.iter().rev().take(8) {
            let digest = bad.digest.as_ref().map(ToString::to_string);
            lines.push(format!(
                "bad:             {} {digest:?} {}: {}",
                name(Some(&bad.source)),
                bad.kubelet.0,
                bad.detail
            ));
        }
        lines.join("\n  ")
    }

    fn what_is_wrong(&self, outside: &Outside) -> Option<&'static str> {
        let status = &outside.status;
        let stored = self.stored();
        let says = |wrong: bool, what: &'static str| wrong.then_some(what);
        let records = (&stored.assigned, &stored.last_known_good);
        if records != (&Ok(status.assigned.clone()), &Ok(status.last_known_good.clone())) {
            return Some("the records differ from the status");
        }
        let desired = outside.desired_source();
        if outside.process.as_ref().is_some_and(|it| it.cuts_off) && state_is_settled(&self.executor.state) {
            return None; // proven when nobody could tell, and out of reach since
        }
        match &outside.desired {
            Assignment::Unknown => None,
            Assignment::Local => {
                let all = [&status.assigned, &status.active, &status.last_known_good];
                says(all.iter().any(|it| it.is_some()) || status.error.is_some(), "it is not reset")
            }
            _ if desired.is_none() => {
                let said = status.error.as_ref().is_some_and(|error| error.starts_with("failed to sync"));
                says(!said, "no word of what cannot be synced")
            }
            _ if status.assigned != desired => Some("another one is assigned"),
            _ => self.is_not_applied(outside),
        }
    }

    fn is_not_applied(&self, outside: &Outside) -> Option<&'static str> {
        let (status, state) = (&outside.status, &self.executor.state);
        let content = outside.content_of(status.assigned.as_ref())?;
        if outside.content_of(None) == Some(content) {
            return None; // what we would fall back to is the same; good or bad, it runs
        }
        if status.active == status.assigned {
            let proven = status.last_known_good == status.assigned;
            let outcome = content.behaviour.outcome(outside.account.baseline(content));
            let known = proven && content.behaviour.is_seen_from_afar(); // by what was seen then
            let waits = state.saved.local_state.attempt.as_ref().is_some_and(|it| it.confirm.is_some());
            return match outcome {
                Outcome::Stays | Outcome::Either => None,
                Outcome::Fails if known => None,
                Outcome::Fails => Some("what fails still runs"),
                Outcome::Passes if waits => None,
                Outcome::Passes if !proven => Some("what works is not last known good"),
                Outcome::Passes => status.error.is_some().then_some("an error where all is well"),
            };
        }
        let cleared = status.assigned.as_ref().is_some_and(|source| outside.account.is_cleared(source));
        // Refused, or unlucky in its trial; either way it is said.
        if status.active != status.last_known_good && !(status.active.is_none() && self.lost_last_known_good()) {
            Some("neither assigned nor last known good runs")
        } else if status.error.is_none() {
            Some("it is not applied, and no error says so")
        } else {
            let nothing = state.saved.local_state.bad.is_empty() && !cleared;
            nothing.then_some("it is not applied, and no version is bad")
        }
    }

    /// Last known good cannot run: its checkpoint rotted, or another kubelet binary refuses it.
    fn lost_last_known_good(&self) -> bool {
        let state = &self.executor.state;
        let Some(source) = &state.saved.last_known_good else { return false };
        let outside = self.outside.borrow();
        let content = outside.content_of(Some(source));
        let is_bad = state.saved.local_state.bad.iter().any(|bad| {
            bad.source == *source || (!rules::PROVEN_CONTENT && outside.content_of(Some(&bad.source)) == content)
        });
        let passed = !rules::PASSING_ERRORS && outside.disk.failures() != outside.account.failures_before;
        passed || is_bad || FsStore::new(outside.disk.seen(), Path::new(ROOT)).open(source).is_err()
    }
}

fn state_is_settled(state: &State) -> bool {
    state.saved.local_state.attempt.is_none() && state.active == state.saved.last_known_good
}
