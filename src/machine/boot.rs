//! The first decision: what the records say, and whether the assigned version has a try left.

use super::io::Ticket;
use super::model::Moment;

mod step;

/// The reading of the records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Reading {
    ticket: Option<Ticket>,
    /// It is given up, or done once more, at that time.
    at: Option<Moment>,
    failures: u32,
    /// Starts of the supervisor without proof, if these were too many for this one to be another.
    tries: Option<u32>,
}

impl Reading {
    pub(super) fn deadline(&self) -> Option<Moment> {
        self.at
    }
}
