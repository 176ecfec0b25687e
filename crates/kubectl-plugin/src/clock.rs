//! Time of day, by the runtime's clock, so that tests may have a simulated one.

use std::sync::OnceLock;

use jiff::Timestamp;
use tokio::time::Instant;

/// One for the process: a controller compares with times that another wrote into Nodes, and with a start of its own each
/// would begin simulated time anew.
static BEGAN: OnceLock<(Timestamp, Instant)> = OnceLock::new();

/// What time it is, from when it was when the first of these was made.
#[derive(Clone, Copy)]
pub(crate) struct Clock {
    began: (Timestamp, Instant),
}

impl Clock {
    pub(crate) fn new() -> Self {
        Self { began: *BEGAN.get_or_init(|| (Timestamp::now(), Instant::now())) }
    }

    pub(crate) fn now(&self) -> Timestamp {
        let (time, instant) = self.began;
        time.checked_add(instant.elapsed()).unwrap_or(time)
    }
}
