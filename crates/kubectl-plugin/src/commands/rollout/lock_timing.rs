//! How long the clients of one rollout wait for each other.

use std::time::Duration;

/// These belong together: all clients of a rollout must have the same. Names as in Kubernetes' leader election.
#[derive(Clone, Copy, Debug)]
pub struct LockTiming {
    /// A client that has not renewed its lock for so long is dead.
    pub lease_duration: Duration,
    /// It renews it this often, ...
    pub renew_interval: Duration,
    /// ... and without that for so long, twice that, it does nothing: what it sent before has arrived by then, or never
    /// will.
    pub renew_deadline: Duration,
    /// How often a client that waits for the lock reads it.
    pub retry_period: Duration,
    /// One answer takes no longer. A request that is older than the lock must not arrive any more.
    pub answer_timeout: Duration,
}

impl Default for LockTiming {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self {
            lease_duration: seconds(30),
            renew_interval: seconds(8),
            renew_deadline: seconds(16),
            retry_period: seconds(2),
            answer_timeout: seconds(8),
        }
    }
}
