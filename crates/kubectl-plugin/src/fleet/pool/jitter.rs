//! The way back from a bad revision, of many Nodes that are well with it: not all at once.

use std::time::Duration;

use jiff::Timestamp;
use sha2::{Digest as _, Sha256};

use super::types::BadRevision;

/// For each Node of the pool. A kubelet that starts sends some dozens of requests and reports all its pods anew: one a second
/// is what an API server does not notice, with any `maxUnavailable`.
const SECONDS_PER_NODE: u64 = 1;
/// In a large pool more start at once, but none keeps what is bad for longer: half a trial of ten minutes.
const MAX_SECONDS: u64 = 300;

/// How long a Node still waits, of so many that the pool has. By its name, so that any controller says the same; in whole
/// seconds, so that none is asked oftener.
pub(crate) fn wait(bad: &BadRevision, node: &str, nodes: usize, now: Timestamp) -> Duration {
    // Of a time that is not known, or to come by this controller's clock, nobody can say how long ago it was.
    let since = bad.time.as_deref().and_then(|time| time.parse::<Timestamp>().ok());
    let Some(since) = since.and_then(|since| Duration::try_from(now.duration_since(since)).ok()) else {
        return Duration::ZERO;
    };
    Duration::from_secs(delay(&bad.revision, node, nodes)).saturating_sub(since)
}

/// Spread evenly over a window that grows with the pool.
fn delay(revision: &str, node: &str, nodes: usize) -> u64 {
    let window = (nodes as u64).saturating_mul(SECONDS_PER_NODE).min(MAX_SECONDS);
    let draw = Sha256::digest(format!("{revision}\n{node}"));
    let draw = draw.iter().take(4).fold(0, |draw, byte| draw << 8 | u64::from(*byte));
    (draw * window) >> 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_are_spread_over_a_window_that_grows_with_the_pool() {
        for (nodes, window) in [(1, 1), (60, 60), (300, 300), (5000, 300)] {
            let delays: Vec<u64> = (0..nodes).map(|node| delay("pool-a-x", &format!("n{node}"), nodes)).collect();
            assert!(delays.iter().all(|delay| *delay < window), "{nodes}");
            for half in [0..window / 2, window / 2..window] {
                let share = delays.iter().filter(|delay| half.contains(*delay)).count() * 100 / nodes;
                assert!(nodes == 1 || (30..=70).contains(&share), "{nodes}: {share} % in {half:?}");
            }
        }
    }

    #[test]
    fn who_cannot_know_the_time_does_not_wait() {
        let bad = |time: Option<&str>| BadRevision { time: time.map(str::to_owned), ..BadRevision::default() };
        let now = "2026-01-10T00:00:00Z".parse().unwrap();
        let waits = |time| (0..50).filter(|node| !wait(&bad(time), &format!("n{node}"), 1000, now).is_zero()).count();
        assert!(waits(Some("2026-01-10T00:00:00Z")) > 40);
        assert_eq!(waits(Some("2026-01-09T23:55:00Z")), 0, "the window is over");
        assert_eq!((waits(None), waits(Some("soon")), waits(Some("2026-01-10T00:00:01Z"))), (0, 0, 0));
    }
}
