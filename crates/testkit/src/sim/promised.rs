//! The numbers by which the laws judge, as the documents promise them. They are not the machine's: where one of `limits` goes beyond
//! what is promised, a law is broken.

use std::time::Duration;

use kubelet_config::duration::backoff;

const fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// So many starts of the supervisor a version on trial survives without proof, ...
pub(super) const BOOTS: u32 = 3;
/// ... and so many ends of its kubelet are one too many.
pub(super) const EXITS: u32 = 2;
/// Healthz may fail for so long without a break.
pub(super) const HEALTHZ: Duration = seconds(30);
/// A kubelet is told to ping twice in this time.
pub(super) const WATCHDOG: Duration = seconds(30);
/// A kubelet that was in contact for so long after READY=1 is not what cut the node off later.
pub(super) const ATTRIBUTION: Duration = seconds(45);
/// After trouble of the node its kubelet has so much time to be well again.
pub(super) const GRACE: Duration = seconds(30);
/// The node is asked so often while its kubelet is judged.
pub(super) const QUERIES: Duration = seconds(10);
/// From SIGTERM to SIGKILL.
pub(super) const STOP_GRACE: Duration = seconds(15);
/// A start waits for the store so long, ...
pub(super) const START_LOADS: Duration = seconds(5);
/// ... and for its kubelet's verdict so long.
pub(super) const START_JUDGES: Duration = seconds(45);
/// Anybody else waits for the store so long, ...
pub(super) const STORE: Duration = seconds(30);
/// ... and for a verdict so long.
pub(super) const VERDICT: Duration = seconds(120);
/// What the disk refused is tried again within this time.
pub(super) const WRITTEN_AGAIN: Duration = seconds(30);
/// What is seen of a trial is written down so often.
pub(super) const PROGRESS: Duration = seconds(60);
/// A restart of a kubelet that hangs doubles the time of the next, up to this; so much life undoes it.
pub(super) const HUNG_MOST: Duration = seconds(3600);
/// So many versions that failed are remembered.
pub(super) const BAD_VERSIONS: usize = 32;

/// How long a kubelet hangs, after so many restarts for that.
pub(super) fn hung_after(first: Duration, restarts: u32) -> Duration {
    backoff(first, HUNG_MOST.max(first), restarts)
}

/// A version that was cleared so often before is tried again after last known good was healthy for so long.
pub(super) fn retried_after(cleared: u32) -> Duration {
    backoff(seconds(30), seconds(8 * 3600), cleared)
}
