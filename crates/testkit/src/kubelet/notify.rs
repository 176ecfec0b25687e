//! What the kubelet tells its service manager.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

use super::life::Knobs;

/// Sends one datagram to `NOTIFY_SOCKET`, a path or, after `@`, an abstract name. False: nobody is there.
pub fn notify(message: &str) -> bool {
    let Ok(name) = std::env::var("NOTIFY_SOCKET") else { return false };
    let address = match name.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&name),
    };
    address
        .and_then(|address| UnixDatagram::unbound()?.send_to_addr(message.as_bytes(), &address))
        .is_ok_and(|sent| sent == message.len())
}

/// As since 1.32: `WATCHDOG=1` at once, so before READY and even in a preflight, and then twice per period.
pub fn start_watchdog(knobs: &Knobs) -> Result<(), String> {
    let ours = std::env::var("WATCHDOG_PID").ok().is_none_or(|pid| pid == std::process::id().to_string());
    let period = std::env::var("WATCHDOG_USEC").ok().filter(|period| ours && !period.is_empty());
    let Some(period) = period else { return Ok(()) };
    let period: u64 = period.parse().map_err(|_| format!("error converting WATCHDOG_USEC: {period:?}"))?;
    let period = Duration::from_micros(period);
    if period <= Duration::from_secs(1) {
        return Err("timeout is too small".into());
    }
    let last = knobs.watchdog_stops_after.map(|time| Instant::now() + time);
    std::thread::spawn(move || {
        while last.is_none_or(|last| Instant::now() < last) && notify("WATCHDOG=1") {
            std::thread::sleep(period / 2);
        }
    });
    Ok(())
}
