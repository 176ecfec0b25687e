//! The TCP port of the metrics.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use testkit::rig::Rig;

use crate::strangers::{Stranger, as_root};

/// Who has the port at the start costs the metrics until it is free, and nothing else.
#[test]
fn a_port_that_is_taken_is_had_later() {
    let Some(mut rig) = as_root(Rig::long_trial) else { return };
    let mut stranger = Stranger::new(&["take-port", &rig.metrics.address().to_string()]);
    assert_eq!(stranger.done(), "taken");
    rig.up();
    rig.wait_log("choose another --metrics-bind-address");
    drop(stranger);
    rig.wait_log("metrics are served on");
    assert!(rig.get("/metrics").0.contains(" 200 "));
    rig.stop();
}

/// Connections that ask for nothing, more than there are slots, by one that has not left since.
#[test]
fn idle_connections_shut_nobody_out() {
    let rig = Rig::long_trial().running();
    let connect = || TcpStream::connect(rig.metrics.address()).unwrap();
    let mut idle: Vec<TcpStream> = (0..200).map(|_| connect()).collect();
    for _ in 0..5 {
        assert!(rig.get("/metrics").0.contains(" 200 "));
        assert!(rig.get("/healthz").0.contains(" 200 "));
        idle.extend((0..50).map(|_| connect()));
    }
    // Half a request is none, and who was first has made room.
    for stream in &mut idle {
        let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\n");
    }
    assert!(rig.get("/metrics").0.contains(" 200 "));
    let mut answer = Vec::new();
    let mut first = idle.swap_remove(0);
    first.set_read_timeout(Some(testkit::rig::SOON)).unwrap();
    assert!(matches!(first.read_to_end(&mut answer), Ok(0) | Err(_)) && answer.is_empty(), "{answer:?}");
    assert!(!testkit::rig::is_gone(rig.last_pid()));
}
