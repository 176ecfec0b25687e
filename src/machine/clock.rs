//! Time: what it is now, and when the machine is woken.
//!
//! | asked for | the machine is woken |
//! |---|---|
//! | is that moment reached? has it lasted so long? | then, if not |
//! | a moment to come | then |
//! | how long ago was that? (`Moment::since`) | no: what only ages, such as an observation, is asked for anew by somebody else |
//!
//! A step asks all this anew, as it looks at the whole state: what it does not ask for can change nothing. So nobody has to list the waits.
//! Whoever compares with `now` by hand is not woken.

use std::cell::Cell;
use std::time::Duration;

use super::model::{Moment, later};

/// The clock of one step.
#[derive(Clone, Debug, Default)]
pub(super) struct Clock {
    /// The moment of the step.
    pub(super) now: Moment,
    /// The first moment to come that was asked for.
    wake: Cell<Option<Duration>>,
}

// When it wakes is computed from the rest of the state, and no part of it.
impl PartialEq for Clock {
    fn eq(&self, other: &Self) -> bool {
        self.now == other.now
    }
}

impl Eq for Clock {}

impl Clock {
    pub(super) fn at(now: Moment) -> Self {
        Self { now, wake: Cell::default() }
    }

    /// True once it is so late.
    pub(super) fn reached(&self, at: Moment) -> bool {
        self.wake_at(at);
        self.now >= at
    }

    /// True once it has lasted so long.
    pub(super) fn lasted(&self, since: Moment, time: Duration) -> bool {
        self.reached(later(since, time))
    }

    /// So much later than now.
    pub(super) fn after(&self, time: Duration) -> Moment {
        let at = later(self.now, time);
        self.wake_at(at);
        at
    }

    fn wake_at(&self, at: Moment) {
        let is_first = self.wake.get().is_none_or(|known| at.boot < known);
        if at > self.now && is_first {
            self.wake.set(Some(at.boot));
        }
    }

    /// When the next step is needed; `None` if only an input can change anything.
    pub(super) fn wake(&self) -> Option<Duration> {
        self.wake.get()
    }
}
