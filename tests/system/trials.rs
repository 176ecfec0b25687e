//! Trials that fail, and what outlives the supervisor.

use testkit::rig::{LOAD, NODE, Rig, configuration, eventually, is};

/// A configuration that fails its trial: the reason in the metric, the words in the event, and its starts.
fn fails(payload: &str, start_timeout: &str, reason: &str, words: &str, starts: usize) {
    let mut rig = Rig::new();
    rig.option("--start-timeout", start_timeout);
    rig.up();
    let good = rig.prove("good", &configuration("maxPods: 42"));
    let bad = rig.put("bad", &configuration(payload));
    rig.assign("bad");
    let message = rig.wait_event("KubeletConfigRolledBack", &bad);
    assert!(message.contains(words), "{message}");
    rig.wait_error(&bad, LOAD);
    let config = rig.wait_active(&good);
    assert!(is(&config, "lastKnownGood", &good), "{config:#}");
    rig.wait_starts(3 + starts);
    assert_eq!(rig.starts(), 3 + starts);
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
    fails("standIn: {exitBeforeReady: 3}", "10s", "exit-before-ready", "before it was ready: exit code 3", 1);
}

#[test]
fn never_ready() {
    fails("standIn: {neverReady: true}", "1s", "start-timeout", "gave no READY=1 within 1 s", 1);
}

#[test]
fn never_healthy() {
    fails("standIn: {healthz: fail}", "1s", "start-timeout", "gave no healthz within 1 s", 1);
}

#[test]
fn two_exits_within_the_trial() {
    fails(
        "standIn: {exitAfterReady: 100ms, exitCode: 7}",
        "10s",
        "exits",
        "ended 2 times within the trial, last with exit code 7",
        2,
    );
}

#[test]
fn one_exit_may_be_an_accident() {
    let mut rig = Rig::with(testkit::kubelet::Style::V1_20, "2s");
    rig.up();
    let version = rig.apply("a", &configuration("maxPods: 42"));
    rig.wait_status("it is healthy", |status| status["trial"]["since"].is_string());
    let pid = i32::try_from(rig.last_pid()).unwrap();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL).unwrap();
    rig.wait_config("proven", |config| is(config, "lastKnownGood", &version));
    assert_eq!(rig.starts(), 3);
    assert!(rig.log().contains("signal 9"));
}

#[test]
fn the_checkpoint_serves_while_the_api_server_is_away() {
    let mut rig = Rig::new();
    rig.up();
    let version = rig.prove("a", &configuration("maxPods: 42"));
    rig.stop();
    rig.server.stop();
    rig.up();
    assert_eq!(rig.last_config()["maxPods"], 42);
    assert_eq!(rig.starts(), 3);
    let status = rig.status();
    assert_eq!(status["active"]["configMap"]["resourceVersion"], version.1, "{status}");
    assert_eq!(status["error"], "", "being alone is no error");
    // Back, with a change.
    rig.server.restart();
    let next = rig.put("a", &configuration("maxPods: 43"));
    rig.wait_active(&next);
}

#[test]
fn supervisor_and_kubelet_are_killed_and_go_on_where_they_were() {
    let mut rig = Rig::new();
    rig.up();
    let version = rig.prove("a", &configuration("maxPods: 42"));
    rig.kill();
    rig.up();
    assert_eq!(rig.last_config()["maxPods"], 42);
    let config = rig.wait_active(&version);
    assert!(is(&config, "lastKnownGood", &version) && config["error"].is_null(), "{config:#}");
}

#[test]
fn a_node_that_dies_again_and_again_in_a_trial_comes_up_on_last_known_good() {
    let mut rig = Rig::long_trial();
    rig.up();
    let version = rig.apply("a", &configuration("maxPods: 42"));
    for _ in 0..2 {
        rig.kill();
        rig.up();
        assert_eq!(rig.last_config()["maxPods"], 42);
    }
    rig.kill();
    rig.up();
    assert_eq!(rig.last_config()["maxPods"], 110);
    let message = rig.wait_event("KubeletConfigRolledBack", &version);
    assert!(message.contains("3 starts of the supervisor passed without proof"), "{message}");
    rig.wait_error(&version, LOAD);
    rig.wait_config("local", |config| config["active"].is_null());
    assert_eq!(rig.metric("kubelet_supervisor_rollbacks_total{reason=\"boots\"}"), Some(1.0));
    let starts = rig.starts();
    rig.stop();
    rig.up();
    assert_eq!((rig.starts(), rig.last_config()["maxPods"].as_u64()), (starts + 1, Some(110)), "it stays there");
}

#[test]
fn clean_restarts_in_a_trial_do_not_count() {
    let mut rig = Rig::long_trial();
    rig.up();
    let version = rig.apply("a", &configuration("maxPods: 42"));
    for _ in 0..4 {
        rig.stop();
        rig.up();
        assert_eq!(rig.last_config()["maxPods"], 42);
    }
    assert!(rig.wait_active(&version)["error"].is_null());
}

#[test]
fn a_switch_kills_a_kubelet_that_does_not_stop() {
    let mut rig = Rig::long_trial();
    rig.local("standIn: {ignoreSigterm: true}");
    rig.up();
    let first = rig.last_pid();
    // 15 s of patience.
    rig.apply("a", &configuration("maxPods: 42"));
    assert!(rig.log().contains("the kubelet does not stop, killing it"));
    eventually("it is gone", || testkit::rig::is_gone(first).then_some(()));
    rig.server.node(NODE);
}

#[test]
fn another_kubelet_binary_gives_a_bad_version_another_try() {
    let mut rig = Rig::new();
    rig.up();
    let bad = rig.put("a", &configuration("featureGates: {SidecarContainers: true}"));
    rig.assign("a");
    rig.wait_error(&bad, testkit::rig::VALIDATE);
    rig.stop();
    // An upgrade: another file, of another version, that knows the gate.
    rig.kubelet.replace();
    rig.kubelet.set_style(testkit::kubelet::Style::V1_36);
    rig.up();
    rig.wait_active(&bad);
    rig.wait_error(&bad, "");
}
