//! How many things may be in a time.

use std::time::Duration;

use tokio::time::Instant;

/// A token bucket: a burst, and then one in each interval.
#[derive(Debug)]
pub(super) struct RateLimiter {
    interval: Duration,
    burst: Duration,
    /// The burst is whole again then.
    full_at: Instant,
}

impl RateLimiter {
    pub(super) fn new(interval: Duration, burst: u32) -> Self {
        Self { interval, burst: interval * burst, full_at: Instant::now() }
    }

    /// When the next one may be.
    pub(super) fn next_at(&self) -> Instant {
        self.full_at.checked_sub(self.burst).unwrap_or(self.full_at)
    }

    /// There was one.
    pub(super) fn consume(&mut self) {
        self.full_at = self.full_at.max(Instant::now()) + self.interval;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_burst_and_then_one_in_each_interval() {
        let mut limiter = RateLimiter::new(Duration::from_secs(1), 3);
        let began = Instant::now();
        let mut at = Vec::new();
        for _ in 0..6 {
            tokio::time::sleep_until(limiter.next_at()).await;
            limiter.consume();
            at.push(began.elapsed().as_secs());
        }
        assert_eq!(at, [0, 0, 0, 0, 1, 2], "the burst, and the one that is due");
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(limiter.next_at() <= Instant::now() - Duration::from_secs(3), "a rest gives it back, and no more");
        limiter.consume();
        assert_eq!(limiter.next_at(), Instant::now() - Duration::from_secs(2));
    }
}
