//! The first decision: what the records say, and whether the assigned version has a try left.

use super::evidence::Failure;
use super::model::Moment;

mod step;

/// The reading of the records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Reading {
    /// It is given up, or done once more, at that time.
    at: Option<Moment>,
    failures: u32,
    /// What the version on trial failed by before this one began, and what to say of it.
    verdict: Option<(Failure, String)>,
}

impl Reading {
    pub(super) fn deadline(&self) -> Option<Moment> {
        self.at
    }
}
