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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_machines_time_and_what_is_simulated_of_it() {
        let clock = Clock { began: (RealInstant::now(), Instant::now()) };
        let ahead = || Duration::try_from(clock.now().duration_since(Timestamp::now())).unwrap_or_default();
        assert!(ahead() < Duration::from_secs(60));
        tokio::time::advance(Duration::from_secs(3600)).await;
        assert!((Duration::from_secs(3540)..=Duration::from_secs(3600)).contains(&ahead()));
    }
}
