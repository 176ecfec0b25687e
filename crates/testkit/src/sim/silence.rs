//! Who does not answer: the store, the judge, and those who are asked about the node.

use std::time::Duration;

/// How one side of the network is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OneSide {
    /// Watches go on, and what is asked is not answered.
    Queries,
    /// What is asked is answered, and watches bring nothing.
    Watches,
}

/// Who does not answer.
#[derive(Clone, Debug, Default)]
pub struct Silence {
    /// The disk stalls until then: requests wait, and are served in order when it ends.
    stalled_until: Option<Duration>,
    /// That stall began then.
    stalled_since: Duration,
    /// Each request to the store takes so long.
    pub slow: Duration,
    /// Requests wait since then.
    waiting_since: Option<Duration>,
    /// Requests waited until then.
    pub(super) waited_until: Option<Duration>,
    /// No preflight comes to an end.
    pub judge: bool,
    /// Nobody answers a question about the node.
    pub queries: bool,
    /// One side of the network is lost.
    pub one_side: Option<OneSide>,
    /// Questions that will never be answered were asked then.
    pub unanswered: Option<Duration>,
}

impl Silence {
    pub fn stall(&mut self, now: Duration, until: Duration) {
        if !self.is_stalled(now) {
            self.stalled_since = now;
        }
        self.stalled_until = Some(until);
    }

    /// Everybody answers again.
    pub fn end(&mut self, now: Duration) {
        let (waiting_since, waited_until) = (self.waiting_since, self.waited_until);
        *self = Self { waiting_since, waited_until, ..Self::default() };
        self.stalled_until = Some(now);
    }

    /// When a request is served that was the next in line then.
    pub fn serves_at(&self, next_since: Duration) -> Duration {
        (next_since + self.slow).max(self.stalled_until.unwrap_or_default())
    }

    /// Requests wait, or none does.
    pub fn note_waiting(&mut self, waiting: bool, now: Duration) {
        if waiting {
            self.waiting_since.get_or_insert(now);
        } else if self.waiting_since.take().is_some() {
            self.waited_until = Some(now);
        }
    }

    /// The store has left a request without an answer for so long.
    pub fn waits_for(&self, now: Duration) -> Option<Duration> {
        self.waiting_since.map(|since| now.saturating_sub(since))
    }

    /// No write comes to an end.
    pub fn is_stalled(&self, now: Duration) -> bool {
        self.stalled_until.is_some_and(|until| now < until)
    }

    /// No write has come to an end for so long.
    pub fn is_stalled_for(&self, time: Duration, now: Duration) -> bool {
        self.is_stalled(now) && now.saturating_sub(self.stalled_since) > time
    }

    pub fn waited_within(&self, within: Duration, now: Duration) -> bool {
        self.waiting_since.is_some() || self.waited_until.is_some_and(|until| now.saturating_sub(until) <= within)
    }

    pub fn is_one_sided(&self) -> bool {
        self.one_side.is_some() || self.queries
    }

    pub fn forget_life(&mut self) {
        self.waiting_since = None;
        self.unanswered = None;
    }
}
