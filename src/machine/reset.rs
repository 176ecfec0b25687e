//! A reset is tried, too: the assignment is withdrawn, and the node's own files have yet to show that a kubelet lives with them.
//!
//! - As native's, it empties the assignment and last known good at once. What was last known good stays one rung below local.
//! - The kubelet ends or hangs twice with the local files, or does not get ready in time: that rung is used. Nothing is assigned all the
//!   same, and error, event and condition name what runs.
//! - The rung goes once a kubelet has lived with the local files for a trial's time, or another version is proven.
//! - The local files are tried again once somebody writes them, asks for it, or starts the unit; and if the kubelet ends with
//!   what runs in their place as well, twice, and twice as often each time that they fail.

use serde::{Deserialize, Serialize};

use super::evidence::{Failure, Signal};
use super::model::{Moment, later};
use super::proposal::Proposal;
use super::records::{Phase, Records, RunningConfig, Version};
use super::versions::is_same;
use super::{Counter, Level, State, events, limits};

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
        let runs = is_same(self.active(), Some(&reset.before));
        let failed = reset.failed.as_ref()?;
        Some(match self.desired() {
            _ if runs => format!("the local configuration: {failed}; {} runs in its place", reset.before),
            Some(_) => format!("the local configuration: {failed}; {} is to run in its place", reset.before),
            None => format!("the local configuration: {failed}; nothing else can run in its place"),
        })
    }

    /// What runs, as the status has it: after a reset nothing, as native's. What runs in the place of the local files stands in the
    /// error, unless another error hides that.
    pub(super) fn active_in_status(&self) -> Option<&Version> {
        let is_told =
            self.sync_error().is_none() && self.assigned_in_status().is_none() && self.local_failure().is_some();
        let before = self.records().reset.as_ref().map(|reset| &reset.before);
        self.active().filter(|active| !is_told || !is_same(Some(active), before))
    }

    /// The kubelet ended by itself, or while no worker watched it; the local files are tried, or this runs in their place.
    pub(super) fn count_exit_after_reset(&mut self, ran: &RunningConfig, how: &str) {
        let is_local = self.fallback.is_local(ran);
        let Some(reset) = self.records().reset.clone().filter(|_| self.records().pin.is_none()) else { return };
        let in_place = self.records().in_place_of_local();
        if is_local == in_place.is_some() || !is_local && !is_same(ran.version.as_ref(), in_place) {
            return; // what runs says nothing of what is tried
        }
        let exits = reset.exits.saturating_add(1);
        // Where nothing lives they would take turns without an end.
        let rounds = if is_local { 0 } else { reset.failures.saturating_sub(1).min(limits::RESET_ROUNDS) };
        let is_over = exits >= limits::TRIAL_EXITS << rounds;
        match (is_over, is_local) {
            (true, true) => {
                let why = format!("the kubelet ended {exits} times with it, last: {how}");
                self.local_failed(Failure::Exits, why);
            }
            (true, false) => self.try_local_again(),
            (false, _) => self.note_reset_exits(exits),
        }
    }

    /// The process has been well for a trial's time: exits that were counted before are older than that.
    pub(super) fn forget_reset_exits(&mut self) {
        if self.records().reset.as_ref().is_some_and(|reset| reset.exits > 0) {
            self.note_reset_exits(0);
        }
    }

    /// The next worker has to know of it.
    fn note_reset_exits(&mut self, exits: u32) {
        self.writer.learn(|records| records.reset.iter_mut().for_each(|reset| reset.exits = exits));
        self.writer.write_soon();
    }

    fn local_failed(&mut self, failure: Failure, why: String) {
        let Some(reset) = self.records().reset.clone() else { return };
        self.count(Counter::Rollback(failure));
        self.emit(events::rolled_back(None, Some(&reset.before.source), &why));
        let failures = reset.failures.saturating_add(1);
        let reset = Some(Reset { exits: 0, failures, failed: Some(why), ..reset });
        self.apply_now(Records { reset, ..self.records().clone() });
        self.sync.reconsider();
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
        let Some((up, _)) = self.reset_until().filter(|(_, until)| self.clock.reached(*until)) else { return };
        if !up {
            let seconds = self.settings.start_timeout.as_secs();
            self.local_failed(Failure::StartTimeout, format!("the kubelet gave no READY=1 within {seconds} s"));
        } else if self.writer.is_idle() {
            self.log(Level::Info, "the kubelet lives with its local configuration");
            self.propose(Records { reset: None, ..self.records().clone() }, Proposal::Note);
        }
    }

    /// Until when the local files have to show what they are worth: to be proven once the kubelet is up, to have failed before. `None`
    /// while they are not tried, the node is at fault, or the kubelet that was healthy is not. One that never answered healthz, which may
    /// be out of reach, is judged by its process.
    fn reset_until(&self) -> Option<(bool, Moment)> {
        let is_judged = self.suspended().is_none() || self.health.is_runtime_gone(self.clock.now);
        let run = self.process.run().filter(|_| self.judgement().is_reset_tried() && is_judged)?;
        let Some(ready) = run.ready_at else {
            return Some((false, later(run.start_timeout_from, self.settings.start_timeout)));
        };
        let by_process = Some(ready.max(run.start_timeout_from)).filter(|_| !run.good.contains_key(&Signal::Healthz));
        let since = run.healthy_since.or(by_process).filter(|_| self.active().is_none())?;
        Some((true, later(since, self.settings.trial_duration)))
    }
}
