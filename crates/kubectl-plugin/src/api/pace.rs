//! How patient the clients of one rollout are with each other, and with the API server.

use std::time::Duration;

/// These belong together: all clients of a rollout must have the same. Tests that kill fifty of them have their own.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// A client whose beat stands still for so long is dead.
    pub lock: Duration,
    /// It beats this often, ...
    pub beat: Duration,
    /// ... and without a beat for so long, twice that, it does nothing: what it sent before has arrived by then, or never
    /// will.
    pub stale: Duration,
    /// How often a client that waits for the lock looks.
    pub look: Duration,
    /// One answer takes no longer. A request that is older than the lock must not arrive any more.
    pub answer: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self { lock: seconds(30), beat: seconds(8), stale: seconds(16), look: seconds(2), answer: seconds(8) }
    }
}
