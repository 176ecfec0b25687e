//! The TCP port of the metrics.

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
