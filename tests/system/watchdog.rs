//! systemd's watchdog: a kubelet that pings is relayed, one that hangs is not covered for.

use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};

use testkit::kubelet::Style;
use testkit::rig::{Rig, SOON, configuration};

/// What the unit's WatchdogSec would be; the stand-in, like the real one, pings at half of it.
const INTERVAL: Duration = Duration::from_secs(2);

fn rig(style: Style, local: &str) -> (Rig, UnixDatagram) {
    let mut rig = Rig::with(style, "10m");
    rig.local(local);
    let path = rig.at("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    rig.env = vec![
        ("NOTIFY_SOCKET".to_owned(), path.display().to_string()),
        ("WATCHDOG_USEC".to_owned(), INTERVAL.as_micros().to_string()),
    ];
    (rig, socket)
}

/// Waits for a ping, so long; true if there was one.
fn pinged(socket: &UnixDatagram, limit: Duration) -> bool {
    let begun = Instant::now();
    let mut buffer = [0; 4096];
    while let Some(left) = limit.checked_sub(begun.elapsed()).filter(|left| !left.is_zero()) {
        socket.set_read_timeout(Some(left)).unwrap();
        if let Ok(length) = socket.recv(&mut buffer)
            && buffer[..length].split(|byte| *byte == b'\n').any(|line| line == b"WATCHDOG=1")
        {
            return true;
        }
    }
    false
}

#[test]
fn a_kubelet_that_does_not_know_of_it_is_covered() {
    let (mut rig, socket) = rig(Style::V1_20, "maxPods: 110");
    rig.up();
    for _ in 0..4 {
        assert!(pinged(&socket, SOON));
    }
    rig.stop();
}

#[test]
fn a_kubelet_that_hangs_is_missed() {
    let (mut rig, socket) = rig(Style::V1_36, "standIn: {watchdogStopsAfter: 5s}");
    rig.up();
    let begun = Instant::now();
    while pinged(&socket, INTERVAL) {
        assert!(begun.elapsed() < SOON, "systemd would never restart it");
    }
    assert!(!pinged(&socket, INTERVAL), "and so it stays");
    // A change restarts it, and is covered until the new one pings.
    rig.apply("a", &configuration("maxPods: 42"));
    assert!(pinged(&socket, SOON));
    rig.stop();
}
