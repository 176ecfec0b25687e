//! A question of the outside that has no answer yet: nobody waits for one without an end.

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
