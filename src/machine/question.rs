//! A question of the outside that has no answer yet: nobody waits for one without an end.

use std::time::Duration;

use super::io::Ticket;
use super::model::Moment;

/// What its answer brings back, and when it is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) ticket: Ticket,
    pub(super) until: Moment,
}

impl Asked {
    pub(super) fn is_given_up(self, now: Moment) -> bool {
        now >= self.until
    }
}

/// What is told of one that was given up.
pub(super) fn no_answer(within: Duration) -> String {
    format!("no answer within {} s", within.as_secs())
}
