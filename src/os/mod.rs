//! What monitor and worker both need of the operating system: forks, the kubelet's standard error and notify socket, the
//! standby's lock, systemd, who may change a file. Nothing here knows tokio.

pub(crate) mod fork;
pub mod notify_socket;
pub(crate) mod ownership;
pub(crate) mod standby_lock;
pub mod stderr_relay;
pub(crate) mod systemd;

use std::time::Duration;

use nix::sys::signal::SigSet;
use nix::time::{ClockId, clock_gettime};

/// CLOCK_BOOTTIME: it goes on while the machine sleeps, and nobody sets it.
pub(crate) fn boot_time() -> Duration {
    // Cannot fail on Linux; a clock at zero would only keep deadlines from passing.
    clock_gettime(ClockId::CLOCK_BOOTTIME).map(Duration::from).unwrap_or_default()
}

/// For threads beside the main one: signals come to that, and interrupt no write.
pub(crate) fn block_all_signals() {
    let _ = SigSet::all().thread_block();
}
