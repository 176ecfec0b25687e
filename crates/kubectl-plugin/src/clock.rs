//! Time of day, which tests may simulate.

use std::sync::OnceLock;
use std::time::Instant as RealInstant;

use jiff::Timestamp;
use tokio::time::Instant;

/// One for the process: a controller compares with times that another wrote into Nodes, and with a start of its own each
/// would begin simulated time anew.
static BEGAN: OnceLock<(RealInstant, Instant)> = OnceLock::new();

/// What time it is: the machine's, which may be set, and by as much more as simulated time is ahead of what has passed.
#[derive(Clone, Copy)]
pub(crate) struct Clock {
    began: (RealInstant, Instant),
}

impl Clock {
    pub(crate) fn new() -> Self {
        Self { began: *BEGAN.get_or_init(|| (RealInstant::now(), Instant::now())) }
    }

    pub(crate) fn now(&self) -> Timestamp {
        let (real, simulated) = self.began;
        let (now, ahead) = (Timestamp::now(), simulated.elapsed().saturating_sub(real.elapsed()));
        now.checked_add(ahead).unwrap_or(now)
    }
}
