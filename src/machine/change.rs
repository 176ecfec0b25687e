//! A change, from being seen to the switch: checkpoint, render, compare, judge, wait for its turn, for a good moment
//! and for the baseline, record.

use std::collections::BTreeSet;

use super::evidence::{Baseline, Signal};
use super::model::{Moment, Rendered};
use kubelet_config::hazard::HazardClass;
use kubelet_config::pods::PodInventory;
use kubelet_config::source::Source;

pub use good_moment::Waiting;
use good_moment::{Inquiry, MomentTimes};

mod baseline;
mod candidate;
mod good_moment;
pub(super) mod impact;
mod spread;
mod step;

/// A change on its way, up to the switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Change {
    /// The assigned version; none: the assignment is withdrawn, and the local configuration is to run.
    pub(super) source: Option<Source>,
    stage: Stage,
    /// When this node starts the change, if many nodes have the same one; `None`: now.
    starts_at: Option<Moment>,
    /// Signals found good so far.
    baseline: Baseline,
    /// Signals that were asked for and have not answered.
    unanswered: Baseline,
    /// They are waited for until then.
    baseline_until: Moment,
    /// The API server was away; it is asked again at `baseline_until`.
    baseline_waits: bool,
    /// How often it was.
    waits: u32,
    /// It gave no answer in the time for the baseline, maybe not even that it is away.
    awaits_contact: bool,
    /// It was away when this node's turn came: the turn is counted anew once it is back.
    missed_turn: bool,
    /// The pods before the change.
    inventory: Option<PodInventory>,
    /// It is refused for hazards of these classes.
    hazards: BTreeSet<HazardClass>,
}

/// Stages of a [`Change`].
#[derive(Clone, Debug, PartialEq, Eq)]
enum Stage {
    Saving,
    Loading,
    Preflight(Box<Rendered>),
    /// Accepted; it waits for its turn.
    Spread(Box<Rendered>),
    /// Its turn has come; it waits for a good moment.
    GoodMoment(Box<Rendered>, Inquiry),
    /// Accepted; the baseline is waited for.
    Baseline(Box<Rendered>),
    /// The decision is being recorded.
    Recording,
}

/// What outlives a change that is begun anew.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ChangeTimes {
    /// The version whose start is spread, and when it was first seen.
    first_seen: Option<(Source, Moment)>,
    /// The version that waits for a good moment.
    good_moment: Option<MomentTimes>,
    /// When the version that is being applied was first seen.
    applying_since: Option<Moment>,
}

impl Change {
    fn new(source: Option<Source>, stage: Stage, starts_at: Option<Moment>, now: Moment) -> Self {
        Self {
            source,
            stage,
            starts_at,
            baseline: Baseline::new(),
            unanswered: Baseline::new(),
            baseline_until: now,
            baseline_waits: false,
            waits: 0,
            awaits_contact: false,
            missed_turn: false,
            inventory: None,
            hazards: BTreeSet::new(),
        }
    }

    pub(super) fn deadlines(&self, now: Moment, due: &mut Vec<Moment>) {
        match &self.stage {
            Stage::Baseline(_) => due.push(self.baseline_until),
            Stage::GoodMoment(_, inquiry) => inquiry.deadlines(due),
            _ => {}
        }
        due.extend(self.starts_at.filter(|at| *at > now));
    }

    /// An answer, if it is one that the change waits for.
    pub(super) fn note_baseline(&mut self, signal: Signal, good: bool) {
        if self.unanswered.remove(&signal) && good {
            self.baseline.insert(signal);
        }
    }

    pub(super) fn note_pods(&mut self, inventory: Option<PodInventory>) {
        if let Stage::GoodMoment(_, inquiry) = &mut self.stage {
            inquiry.pods_answered();
            if inventory.is_none() && inquiry.is_for_pods() {
                return; // a list that fails does not say that they are gone
            }
        }
        self.inventory = inventory;
    }

    /// The accepted configuration, before its switch is recorded.
    fn accepted_rendering(&self) -> Option<&Rendered> {
        match &self.stage {
            Stage::Spread(rendered) | Stage::GoodMoment(rendered, _) | Stage::Baseline(rendered) => Some(rendered),
            Stage::Saving | Stage::Loading | Stage::Preflight(_) | Stage::Recording => None,
        }
    }

    /// True while it waits for its turn, a good moment or the API server, which may take long.
    fn is_held_back(&self) -> bool {
        match &self.stage {
            Stage::Spread(_) => true,
            Stage::GoodMoment(_, inquiry) => inquiry.is_holding(),
            Stage::Baseline(_) => self.baseline_waits,
            Stage::Saving | Stage::Loading | Stage::Preflight(_) | Stage::Recording => false,
        }
    }
}
