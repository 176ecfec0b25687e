//! Time of day, by the runtime's clock, so that tests may have a simulated one.

use jiff::Timestamp;
use tokio::time::Instant;

/// What time it is, from when it was when this was made.
#[derive(Clone, Copy)]
pub(crate) struct Clock {
    began: (Timestamp, Instant),
}

impl Clock {
    pub(crate) fn new() -> Self {
        Self { began: (Timestamp::now(), Instant::now()) }
    }

    pub(crate) fn now(&self) -> Timestamp {
        let (time, instant) = self.began;
        time.checked_add(instant.elapsed()).unwrap_or(time)
    }
}
