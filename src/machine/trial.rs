//! The trial: when it is passed, and when it has failed.

use super::evidence::{FailedRun, Failure};
use super::model::Moment;
use super::records::Version;

mod bad_versions;
mod confirm;
mod control_test;
mod failing;
mod outcome;
mod progress;
mod rollback;
mod step;
mod suspension;

/// What is seen on the way to a verdict, and need not outlive a reboot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Trial {
    /// The cleared version waits since then to be tried again.
    waiting_since: Option<Moment>,
    /// A failure that waits for an observation of the node.
    pending: Option<PendingFailure>,
    /// Last known good has been healthy for long enough to try a cleared version again.
    recovered: bool,
    /// The version on trial, and since when: for the metrics.
    under_way: Option<(Version, Moment)>,
    /// Last known good runs under another name since then.
    adopted_at: Option<Moment>,
    /// What was seen of the kubelet was compared then with what is on record of it.
    noted_at: Option<Moment>,
    /// The kubelet's last lines, when they were last asked for; without secrets.
    log_tail: Vec<String>,
}

/// A failure that was seen, before it is known whether the node around the kubelet is at fault.
#[derive(Clone, Debug, PartialEq, Eq)]
struct PendingFailure {
    failure: Failure,
    /// The observation, for people.
    detail: String,
    /// The kubelet that it was seen of.
    run: FailedRun,
    /// The observation of the node that was asked for then is waited for until this.
    until: Moment,
}
