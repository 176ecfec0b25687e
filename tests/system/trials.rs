//! Trials that fail, and what outlives the supervisor.

use testkit::rig::{LOAD, Rig, configuration, is};

/// A configuration that fails its trial at its first start: the reason in the metric, the words in the event.
fn fails(payload: &str, start_timeout: &str, reason: &str, words: &str) {
    let mut rig = Rig::new();
    rig.option("--start-timeout", start_timeout);
    rig.up();
    let good = rig.prove("good", &configuration("maxPods: 42"));
    let bad = rig.offer("bad", &configuration(payload));
    rig.wait_told("KubeletConfigRolledBack", &bad, words);
    rig.wait_error(&bad, LOAD);
    let config = rig.wait_active(&good);
    assert!(is(&config, "lastKnownGood", &good), "{config:#}");
    rig.wait_starts(4);
    assert_eq!(rig.starts(), 4);
    assert_eq!(rig.last_config()["maxPods"], 42);
    assert_eq!(rig.metric(&format!("kubelet_supervisor_rollbacks_total{{reason=\"{reason}\"}}")), Some(1.0));
    let status = rig.status();
    assert!(
        status["trial"]["state"] == "failed" && status["errorDetail"].as_str().unwrap().contains(words),
        "{status}"
    );
    // Fixed under the same name.
    let mended = rig.put("bad", &configuration("maxPods: 43"));
    rig.wait_config("mended", |config| is(config, "lastKnownGood", &mended) && config["error"].is_null());
}

#[test]
fn an_exit_before_ready() {
    fails("standIn: {exitBeforeReady: 3}", "10s", "exit-before-ready", "before it was ready: exit code 3");
}

#[test]
fn never_ready() {
    fails("standIn: {neverReady: true}", "1s", "start-timeout", "gave no READY=1 within 1 s");
}

#[test]
fn never_healthy() {
    fails("standIn: {healthz: fail}", "1s", "start-timeout", "gave no healthz within 1 s");
}

#[test]
fn a_node_that_dies_again_and_again_in_a_trial_comes_up_on_last_known_good() {
    let mut rig = Rig::long_trial().running();
    let version = rig.apply("a", &configuration("maxPods: 42"));
    for _ in 0..2 {
        rig.kill();
        rig.up();
        assert_eq!(rig.last_config()["maxPods"], 42);
    }
    rig.kill();
    rig.up();
    assert_eq!(rig.last_config()["maxPods"], 110);
    rig.wait_told("KubeletConfigRolledBack", &version, "3 starts of the supervisor passed without proof");
    rig.wait_error(&version, LOAD);
    rig.wait_config("local", |config| config["active"].is_null());
    assert_eq!(rig.metric("kubelet_supervisor_rollbacks_total{reason=\"boots\"}"), Some(1.0));
    let starts = rig.starts();
    rig.restart();
    assert_eq!((rig.starts(), rig.last_config()["maxPods"].as_u64()), (starts + 1, Some(110)), "it stays there");
}

#[test]
fn clean_restarts_in_a_trial_do_not_count() {
    let mut rig = Rig::long_trial().running();
    let version = rig.apply("a", &configuration("maxPods: 42"));
    for _ in 0..4 {
        rig.restart();
        assert_eq!(rig.last_config()["maxPods"], 42);
    }
    assert!(rig.wait_active(&version)["error"].is_null());
}
