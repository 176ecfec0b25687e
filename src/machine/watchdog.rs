//! systemd's watchdog (`WatchdogSec=`), as it would be without us: the monitor passes a kubelet's pings on, so that one that
//! hangs is restarted by systemd. What pings on its own is this loop: while there is no kubelet, before its first ping
//! (kubelets before v1.32 never send one), and in a trial, which comes to its own verdict on a kubelet that hangs.

use super::model::Moment;

mod step;

/// Our own pings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Watchdog {
    /// The next one is due.
    ping_at: Option<Moment>,
}

impl Watchdog {
    pub(super) fn deadline(&self) -> Option<Moment> {
        self.ping_at
    }
}
