//! Pauses after failures.

use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBackoff, ExponentialBuilder};
use tokio::time::Instant;

use super::client_layer::RETRY_AFTER_MAX;

/// Pauses after failures: 50 ms at first, because right after an assignment the Node authorizer
/// needs a moment; 15 s at most.
const PAUSE_FIRST: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(15);

/// A failure so long ago is no reason to wait after the next one. One success is not enough: a list may be answered and each watch
/// after it fail.
const FAILURE_FORGOTTEN: Duration = Duration::from_secs(30);

/// Pauses that double up to the longest, without an end. Half of each is chance, so that nodes do not come back in step.
pub(super) fn pauses(first: Duration, longest: Duration) -> ExponentialBackoff {
    let half = ExponentialBuilder::new().with_min_delay(first / 2).with_max_delay(longest / 2);
    half.without_max_times().with_jitter().build()
}

/// Failures in a row, and until when to pause for them.
#[derive(Debug)]
pub(super) struct Backoff {
    pub(super) failures: u32,
    pauses: ExponentialBackoff,
    last: Option<Instant>,
    until: Option<Instant>,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { failures: 0, pauses: pauses(PAUSE_FIRST, PAUSE_MAX), last: None, until: None }
    }
}

impl Backoff {
    pub(super) fn failed(&mut self, retry_after: Option<u64>) {
        self.settle();
        let pause = self.pauses.next().unwrap_or(PAUSE_MAX);
        let asked = Duration::from_secs(retry_after.unwrap_or_default()).min(RETRY_AFTER_MAX);
        self.failures = self.failures.saturating_add(1);
        self.last = Some(Instant::now());
        self.until = Some(Instant::now() + pause.max(asked));
    }

    pub(super) fn succeeded(&mut self) {
        *self = Self::default();
    }

    /// Forgets failures that are long ago.
    pub(super) fn settle(&mut self) {
        if self.last.is_some_and(|last| last.elapsed() >= FAILURE_FORGOTTEN) {
            self.succeeded();
        }
    }

    /// Cancel-safe: an interrupted pause is taken up again.
    pub(super) async fn elapsed(&mut self) {
        if let Some(until) = self.until {
            tokio::time::sleep_until(until).await;
            self.until = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn failures_that_are_long_ago_do_not_add_up() {
        let mut backoff = Backoff::default();
        for _ in 0..8 {
            backoff.failed(None);
        }
        assert_eq!(backoff.failures, 8);
        tokio::time::sleep(FAILURE_FORGOTTEN).await;
        backoff.failed(None);
        assert_eq!(backoff.failures, 1);
    }
}
