//! systemd, if it started us (sd_notify(3)).

use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// Sends lines such as `READY=1`, and waits for nobody: systemd's queue is long, and a lost ping is followed by another.
pub(crate) fn notify(lines: &str) {
    let Ok(name) = std::env::var("NOTIFY_SOCKET") else { return };
    let send = || -> io::Result<()> {
        let address = match name.strip_prefix('@') {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None => SocketAddr::from_pathname(&name)?,
        };
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        socket.send_to_addr(lines.as_bytes(), &address).map(drop)
    };
    if let Err(error) = send() {
        tracing::debug!("systemd cannot be told: {error}");
    }
}

/// The interval in which systemd wants to be pinged (`WatchdogSec=`), if this process or its parent is who it means.
pub(crate) fn watchdog() -> Option<Duration> {
    let number = |name| std::env::var(name).ok()?.parse::<u64>().ok();
    let is_ours = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
    number("WATCHDOG_USEC").filter(|micros| *micros > 0 && is_ours).map(Duration::from_micros)
}
