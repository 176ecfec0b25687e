//! A reset is tried, too: the assignment is withdrawn, and the node's own files have yet to show that a kubelet lives with them.
//!
//! - As native's, it empties the assignment and last known good at once. What was last known good stays one rung below local.
//! - The kubelet ends or hangs twice with the local files, or does not get ready in time: that rung is used. Nothing is assigned all the
//!   same, and error, event and condition name what runs.
//! - The rung goes once a kubelet has lived with the local files for a trial's time, or another version is proven.
//! - The local files are tried again once somebody writes them, asks for it, or starts the unit; and if the kubelet ends with
//!   what runs in their place as well, twice, and twice as often each time that they fail.

use serde::{Deserialize, Serialize};

use super::evidence::Failure;
use super::model::{Moment, later};
use super::proposal::Proposal;
use super::records::{Phase, Records, Version};
use super::{Counter, Level, Run, State, events, limits};

/// The way back from a reset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Reset {
    /// Last known good before it.
    pub before: Version,
    /// Exits of the kubelet with the local files; or, once they have failed, with what runs in their place.
    #[serde(default)]
    pub exits: u32,
    /// How often the local files have failed: what runs in their place must end the oftener before they are tried again.
    #[serde(default)]
    pub failures: u32,
    /// Why the local files are not run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

impl Records {
    /// After the assignment was withdrawn.
    pub(super) fn after_reset(&self) -> Self {
        let before = self.last_known_good.clone().map(|before| Reset { before, exits: 0, failures: 0, failed: None });
        let reset = before.or_else(|| self.reset.clone());
        Self { assigned: None, last_known_good: None, phase: Phase::Settled, reset, ..self.clone() }
    }

    /// Nothing is held against the local files any more; false if nothing was.
    pub(super) fn try_local_again(&mut self) -> bool {
        let failed = self.reset.as_mut().filter(|reset| reset.failed.is_some());
        failed.map(|reset| (reset.exits, reset.failed) = (0, None)).is_some()
    }

    /// What runs in the place of the local files, while it is known that these do not.
    pub(super) fn in_place_of_local(&self) -> Option<&Version> {
        self.reset.as_ref().filter(|reset| reset.failed.is_some()).map(|reset| &reset.before)
    }
}

impl State {
    /// Why the local files are not run although nothing else is to be.
    pub(super) fn local_failure(&self) -> Option<String> {
        let records = self.records();
        let reset = records.reset.as_ref().filter(|_| records.assigned.is_none() && records.pin.is_none())?;
        Some(format!("the local configuration: {}; {} runs in its place", reset.failed.as_ref()?, reset.before))
    }

    /// What runs, as the status has it: after a reset nothing, as native's. What runs in the place of the local files stands in the
    /// error, unless another error hides that.
    pub(super) fn active_in_status(&self) -> Option<&Version> {
        let is_told =
            self.sync_error().is_none() && self.assigned_in_status().is_none() && self.local_failure().is_some();
        self.active().filter(|_| !is_told)
    }

    /// The kubelet ended by itself, or while no worker watched it; the local files are tried, or this runs in their place.
    pub(super) fn count_exit_after_reset(&mut self, ran: Option<&Version>, how: &str) {
        let is_local = ran.is_none();
        let Some(reset) = self.records().reset.clone().filter(|_| self.records().pin.is_none()) else { return };
        let in_place = self.records().in_place_of_local();
        if is_local == in_place.is_some() || !is_local && ran != in_place {
            return; // what runs says nothing of what is tried
        }
        let exits = reset.exits.saturating_add(1);
        // Where nothing lives they would take turns without an end.
        let rounds = if is_local { 0 } else { reset.failures.saturating_sub(1).min(limits::RESET_ROUNDS) };
        let is_over = exits >= limits::TRIAL_EXITS << rounds;
        match (is_over, is_local) {
            (true, true) => {
                let why = format!("the kubelet ended {exits} times with it, last {how}");
                self.local_failed(Failure::Exits, why);
            }
            (true, false) => self.try_local_again(),
            (false, _) => {
                self.writer.learn(|records| records.reset.iter_mut().for_each(|reset| reset.exits = exits));
                self.writer.write_soon(); // the next worker has to know of it
            }
        }
    }

    fn local_failed(&mut self, failure: Failure, why: String) {
        let Some(reset) = self.records().reset.clone() else { return };
        self.count(Counter::Rollback(failure));
        self.emit(events::rolled_back(None, Some(&reset.before.source), &why));
        let failures = reset.failures.saturating_add(1);
        let reset = Some(Reset { exits: 0, failures, failed: Some(why), ..reset });
        self.apply_now(Records { reset, ..self.records().clone() });
        self.reconsider();
    }

    /// They may be others by now.
    pub(super) fn try_local_again(&mut self) {
        let mut records = self.records().clone();
        if records.try_local_again() {
            self.writer.apply_before_write(records);
        }
    }

    /// The local files have failed, or are proven.
    pub(super) fn tick_reset(&mut self) {
        let Some(run) = self.run_after_reset() else { return };
        let (ready, started) = (run.ready_at, run.started);
        let is_open = self.records().in_place_of_local().is_none();
        if is_open && ready.is_none() && self.now.since(started) >= self.settings.start_timeout {
            let seconds = self.settings.start_timeout.as_secs();
            self.local_failed(Failure::StartTimeout, format!("the kubelet gave no READY=1 within {seconds} s"));
        } else if ready.is_some_and(|at| self.now.since(at) >= self.settings.trial_duration)
            && self.lives()
            && self.writer.is_idle()
        {
            self.log(Level::Info, "the kubelet lives with its local configuration");
            self.propose(Records { reset: None, ..self.records().clone() }, Proposal::Note);
        }
    }

    pub(super) fn reset_deadlines(&self, due: &mut Vec<Moment>) {
        let Some(run) = self.run_after_reset() else { return };
        due.push(match run.ready_at {
            Some(ready) => later(ready, self.settings.trial_duration),
            None => later(run.started, self.settings.start_timeout),
        });
    }

    /// The kubelet with which the local files are tried.
    fn run_after_reset(&self) -> Option<&Run> {
        let records = self.records();
        let is_tried = records.reset.is_some() && records.pin.is_none() && self.active().is_none();
        self.process.run().filter(|_| is_tried)
    }
}
