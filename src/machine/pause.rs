//! What is tried again, and when. Nothing in the core repeats but by a [`Growth`] of `limits`, so each repetition has a bound.
//!
//! | what was tried | the next try |
//! |---|---|
//! | came to nothing | after a pause, twice as long each time, up to the longest |
//! | worked, or somebody wants it at once | at once; the pauses begin anew |

use std::time::Duration;

use super::clock::Clock;
use super::model::Moment;
use kubelet_config::duration::backoff;

/// Pauses that double.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Growth {
    /// The first one.
    pub first: Duration,
    /// The longest one.
    pub most: Duration,
}

impl Growth {
    /// The pause after so many pauses before it.
    #[must_use]
    pub fn after(self, pauses: u32) -> Duration {
        backoff(self.first, self.most, pauses)
    }
}

/// When one thing is tried next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Pause {
    /// None: nothing is put off, and nothing is due.
    until: Option<Moment>,
    /// Tries in a row that came to nothing.
    failures: u32,
}

impl Pause {
    /// It is tried then, as if nothing had failed before.
    pub(super) fn until(at: Moment) -> Self {
        Self { until: Some(at), failures: 0 }
    }

    /// The try came to nothing.
    pub(super) fn grow(&mut self, growth: Growth, clock: &Clock) {
        self.put_off(clock.after(growth.after(self.failures)));
    }

    /// The same, for a reason that lasts until then.
    pub(super) fn put_off(&mut self, until: Moment) {
        self.until = Some(until);
        self.failures = self.failures.saturating_add(1);
    }

    /// It is tried then; what failed before still counts.
    pub(super) fn set(&mut self, at: Moment) {
        self.until = Some(at);
    }

    /// It is tried then at the latest.
    pub(super) fn set_latest(&mut self, at: Moment) {
        self.until = Some(self.until.map_or(at, |before| before.min(at)));
    }

    /// It is being tried.
    pub(super) fn begin(&mut self) {
        self.until = None;
    }

    /// It worked: the next pause is a first one.
    pub(super) fn settle(&mut self) {
        self.failures = 0;
    }

    pub(super) fn at(&self) -> Option<Moment> {
        self.until
    }

    pub(super) fn failures(&self) -> u32 {
        self.failures
    }

    /// True while it must not be tried.
    pub(super) fn lasts(&self, clock: &Clock) -> bool {
        self.until.is_some_and(|until| !clock.reached(until))
    }

    /// True once it is to be tried.
    pub(super) fn is_due(&self, clock: &Clock) -> bool {
        self.until.is_some_and(|until| clock.reached(until))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Clock {
        Clock::at(Moment { boot: Duration::from_secs(seconds), wall_nanos: 0 })
    }

    #[test]
    fn pauses_double_up_to_the_longest_and_begin_anew() {
        let growth = Growth { first: Duration::from_secs(2), most: Duration::from_secs(7) };
        let mut pause = Pause::default();
        assert!(!pause.lasts(&at(0)) && !pause.is_due(&at(0)), "nothing was tried");
        let ends = |pause: &mut Pause| {
            pause.grow(growth, &at(100));
            pause.at().unwrap().boot.as_secs() - 100
        };
        assert_eq!([ends(&mut pause), ends(&mut pause), ends(&mut pause), ends(&mut pause)], [2, 4, 7, 7]);
        assert!(pause.lasts(&at(106)) && pause.is_due(&at(107)));
        pause.settle();
        assert_eq!(ends(&mut pause), 2);
        pause.set_latest(at(101).now);
        assert!(pause.is_due(&at(101)) && pause.failures() == 1, "sooner, and no try");
        pause.begin();
        assert!(!pause.is_due(&at(500)) && pause.failures() == 1);
    }
}
