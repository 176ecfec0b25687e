//! `--restart-by exit`: where a second kubelet would be started the supervisor ends, and whoever started it starts both
//! anew. Here that is the test.

use testkit::rig::{LOAD, Rig, configuration, eventually, is, is_gone, killer};

/// EX_TEMPFAIL.
const RESTART: i32 = 75;

fn rig(trial: &str) -> Rig {
    let mut rig = Rig::new();
    rig.option("--trial-duration", trial);
    rig.option("--restart-by", "exit");
    rig.env = vec![("INVOCATION_ID".to_owned(), "x".to_owned())];
    rig
}

/// As systemd would.
fn again(rig: &mut Rig) {
    assert_eq!(rig.wait_exit().code(), Some(RESTART), "{}", rig.log());
    assert!(is_gone(rig.last_pid()), "it ended before its kubelet");
    rig.start();
}

fn attempt(rig: &Rig) -> serde_json::Value {
    let state = std::fs::read_to_string(rig.at("dynamic/supervisor/state.json")).unwrap();
    serde_json::from_str::<serde_json::Value>(&state).unwrap()["phase"]["trial"].clone()
}

#[test]
fn a_switch_ends_the_supervisor_and_costs_no_try() {
    let mut rig = rig("1s");
    rig.up();
    let version = rig.put("a", &configuration("maxPods: 42"));
    rig.assign("a");
    again(&mut rig);
    rig.wait_status("proven", |status| is(status, "lastKnownGood", &version));
    assert_eq!(rig.starts(), 2);
    // Each change costs one such end, however many there are.
    for pods in 43..47 {
        let version = rig.put("a", &configuration(&format!("maxPods: {pods}")));
        again(&mut rig);
        // What is started is on record by then.
        let status = rig
            .wait_status("the change", |status| is(status, "active", &version) && status["kubelet"]["ready"] == true);
        assert_eq!(status["error"], "", "{status}");
        assert_eq!(attempt(&rig)["tries"], 1, "given back, and spent once");
    }
    assert!(!rig.log().contains("nobody will start the kubelet again"));
    rig.stop();
}

#[test]
fn two_exits_fail_a_trial_and_one_does_not() {
    let mut rig = rig("10m");
    rig.up();
    let version = rig.put("a", &configuration("standIn: {exitAfterReady: 300ms}"));
    rig.assign("a");
    again(&mut rig); // the switch
    // The first exit is this young supervisor's to mend.
    again(&mut rig); // the second
    let status = rig.wait_status("a rollback", |status| {
        status["active"].is_null() && status["error"] == LOAD && status["kubelet"]["ready"] == true
    });
    assert!(is(&status, "assigned", &version), "{status}");
    let detail = status["errorDetail"].as_str().unwrap();
    assert!(detail.contains("ended 2 times within the trial"), "{detail}");
    assert_eq!(rig.starts(), 4);
    rig.stop();
}

#[test]
fn what_kills_the_kubelet_is_rolled_back() {
    let mut rig = rig("10m");
    rig.up();
    rig.put("a", &killer());
    rig.assign("a");
    let mut ends = 0;
    eventually("the rollback", || {
        if rig.child.as_mut().unwrap().try_wait().unwrap().is_some() {
            again(&mut rig);
            ends += 1;
        }
        (ends == 2).then_some(()) // the switch and the rollback
    });
    rig.wait_status("local, and no further end", |status| {
        status["active"].is_null() && status["error"] == LOAD && status["kubelet"]["ready"] == true
    });
    assert!((3..=4).contains(&rig.starts()), "local, the killer once or twice, local");
    rig.stop();
}

/// It waits for half a minute, as that is how long there may be better to hear of.
#[test]
fn a_crash_outside_a_trial_is_systemds_to_mend_in_the_end() {
    let mut rig = rig("10m");
    rig.env.clear();
    rig.local("standIn: {exitAfterReady: 200ms, exitCode: 0}");
    let begun = std::time::Instant::now();
    rig.start();
    assert_eq!(rig.wait_exit().code(), Some(RESTART), "{}", rig.log());
    assert!(begun.elapsed().as_secs() >= 30);
    // Long enough to be there when the change is decided: one that ends meanwhile is followed in place.
    rig.local("standIn: {exitAfterReady: 10s, exitCode: 0}");
    rig.start();
    let log = rig.log();
    assert!(log.contains("ended by itself after") && log.contains("left to systemd"), "{log}");
    assert!(log.contains("INVOCATION_ID is not set"), "{log}");
    assert!(rig.starts() > 2, "in place at first");
    // What the API server has comes up, however bad the local one is.
    let version = rig.put("a", &configuration("maxPods: 42"));
    rig.assign("a");
    again(&mut rig);
    rig.wait_status("the way out", |status| is(status, "active", &version) && status["kubelet"]["ready"] == true);
    rig.stop();
}
