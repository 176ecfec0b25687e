//! The TCP port of the metrics.

use testkit::rig::{Rig, eventually};

use crate::strangers::{Stranger, is_root};

/// Between two supervisors nobody listens in their place: a scraper would send that one its token.
#[test]
fn a_reload_leaves_the_port_to_nobody() {
    if !is_root() {
        return;
    }
    let mut rig = Rig::long_trial();
    rig.up();
    let answers = |rig: &Rig| rig.get("/metrics").0.contains(" 200 ");
    eventually("it listens", || answers(&rig).then_some(()));
    let _stranger = Stranger::new(&["take-port", &rig.metrics.address().to_string()]);
    let kubelet = rig.last_pid();
    for number in 1..=10 {
        rig.done(&["reload"]);
        assert_eq!(rig.status()["supervisor"]["reloads"], number);
        assert!(answers(&rig), "after reload {number} somebody else has the port");
    }
    assert_eq!((rig.starts(), rig.last_pid()), (1, kubelet));
    rig.stop();
}

/// Who has the port at the start costs the metrics until it is free, and nothing else.
#[test]
fn a_port_that_is_taken_is_had_later() {
    if !is_root() {
        return;
    }
    let mut rig = Rig::long_trial();
    let mut stranger = Stranger::new(&["take-port", &rig.metrics.address().to_string()]);
    assert_eq!(stranger.done(), "taken");
    rig.up();
    rig.wait_log("choose another --metrics-bind-address");
    drop(stranger);
    rig.wait_log("metrics are served on");
    rig.done(&["reload"]);
    assert!(rig.get("/metrics").0.contains(" 200 "));
    rig.stop();
}
