//! A change, from being seen to the switch: checkpoint, render, compare, judge, wait at the gate, record.

use std::collections::BTreeSet;

use super::io::Ticket;
use super::model::{Moment, Rendered};
use kubelet_config::hazard::HazardClass;
use kubelet_config::source::Source;

use wait::Wait;
pub use wait::Waiting;

mod baseline;
mod candidate;
mod gate;
pub(super) mod impact;
mod spread;
mod step;
mod wait;

/// A change on its way, up to the switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Change {
    /// The assigned version; none: the assignment is withdrawn, and the local configuration is to run.
    pub(super) source: Option<Source>,
    stage: Stage,
    /// When this node starts the change, if many nodes have the same one; `None`: now.
    starts_at: Option<Moment>,
    /// The question for the kubelet's verdict: an answer that comes after its time counts as long as nothing is decided.
    judged_by: Option<Ticket>,
    /// It is refused for hazards of these classes.
    hazards: BTreeSet<HazardClass>,
}

/// Stages of a [`Change`].
#[derive(Clone, Debug, PartialEq, Eq)]
enum Stage {
    Saving,
    Loading,
    Preflight(Box<Rendered>),
    /// Accepted; it waits.
    Gate(Box<Rendered>),
    /// The decision is being recorded.
    Recording,
}

/// What outlives a change that is begun anew.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ChangeTimes {
    /// The wait of the latest version.
    wait: Option<Wait>,
    /// When the version that is being applied was first seen.
    applying_since: Option<Moment>,
}

impl Change {
    fn new(source: Option<Source>, stage: Stage, starts_at: Option<Moment>) -> Self {
        Self { source, stage, starts_at, judged_by: None, hazards: BTreeSet::new() }
    }

    /// The accepted configuration, before its switch is recorded.
    fn accepted_rendering(&self) -> Option<&Rendered> {
        match &self.stage {
            Stage::Gate(rendered) => Some(rendered),
            _ => None,
        }
    }
}
