//! The eleven flaws of native dynamic configuration, one test each: what native did is in the line above it.

use std::time::{Duration, Instant};

use serde_json::Value;

use testkit::api_server::{FaultKind, Verb};
use testkit::kubelet::Style;
use testkit::rig::{
    DOWNLOAD, LOAD, NAMESPACE, NODE, Rig, SOON, VALIDATE, Version, configuration, eventually, is, killer,
};

/// True if the Node's status ever named this version as last known good.
fn was_ever_good(rig: &Rig, version: &Version) -> bool {
    let patches = rig.server.requests().into_iter().filter(|request| request.method == "PATCH");
    patches.into_iter().any(|request| is(&request.body["status"]["config"], "lastKnownGood", version))
}

/// How often the kubelet was started with this many pods.
fn starts_with(rig: &Rig, pods: u64) -> usize {
    rig.kubelet.starts().iter().filter(|start| start["configJson"]["maxPods"] == pods).count()
}

// Native restarts it for ever, and after ten minutes of that calls it last known good.
#[test]
fn flaw_01_a_configuration_that_kills_the_kubelet_is_never_last_known_good() {
    let mut rig = Rig::with(Style::V1_20, "3s").running();
    let good = rig.prove("a", &configuration("maxPods: 42"));
    // Two lives of it are longer than the trial; no clock alone may call it good.
    let bad = rig.put("a", &configuration("maxPods: 43\nstandIn: {exitAfterReady: 1800ms}"));
    rig.wait_event("KubeletConfigRolledBack", &bad);
    rig.wait_error(&bad, LOAD);
    rig.wait_ready(5);
    assert!(is(&rig.wait_active(&good), "lastKnownGood", &good));
    // Not now and not at the next start, whose first word about it is the old error.
    rig.restart();
    rig.wait_status("as before", |status| status["error"] == LOAD && is(status, "active", &good));
    assert_eq!(starts_with(&rig, 43), 2, "not for ever");
    assert!(!was_ever_good(&rig, &bad) && was_ever_good(&rig, &good));
}

// Native looks at the API server from within the kubelet, ten seconds after its start at the earliest.
#[test]
fn flaw_02_a_kubelet_that_dies_at_once_can_be_repaired_remotely() {
    let mut rig = Rig::new();
    // Where the change is decided while no kubelet is up, the new one has to come into contact.
    rig.kubelet.set("STAND_IN_REPORTS=1");
    rig.local("standIn: {exitAfterReady: 50ms}");
    rig.up();
    rig.wait_starts(2);
    let version = rig.offer("a", &configuration("maxPods: 42"));
    rig.wait_config("repaired", |config| is(config, "lastKnownGood", &version));
    assert!(rig.status()["kubelet"]["ready"] == true && starts_with(&rig, 42) == 1);
}

// Native ends when it cannot read the record, at every start.
#[test]
fn flaw_03_a_torn_record_of_the_assignment_does_not_keep_the_kubelet_down() {
    let mut rig = Rig::new().running();
    let version = rig.prove("a", &configuration("maxPods: 42"));
    rig.stop();
    let record = rig.at("dynamic/store/meta/assigned");
    let whole = std::fs::read(&record).unwrap();
    std::fs::write(&record, &whole[..whole.len() / 2]).unwrap();
    rig.server.stop();
    rig.up();
    assert_eq!(rig.last_config()["maxPods"], 42, "last known good, with nobody to ask");
    rig.server.restart();
    rig.wait_status("mended", |status| is(status, "assigned", &version) && status["error"] == "");
    assert_eq!(std::fs::read(&record).unwrap(), whole);
}

// Native ends if last known good cannot be used either, at every start.
#[test]
fn flaw_04_a_bad_last_known_good_after_a_bad_assigned_is_not_fatal() {
    let mut rig = Rig::new().running();
    // Gates that only the old kubelet knows.
    rig.prove("a", &configuration("maxPods: 42\nfeatureGates: {CSIMigration: true}"));
    rig.stop();
    rig.option("--trial-duration", "10m");
    rig.up();
    let assigned = rig.apply("a", &configuration("maxPods: 43\nfeatureGates: {CSIMigration: true}"));
    rig.stop();
    rig.kubelet.replace();
    rig.kubelet.set_style(Style::V1_36);
    let before = rig.starts();
    rig.up();
    assert_eq!((rig.last_config()["maxPods"].as_u64(), rig.starts()), (Some(110), before + 1), "the node's own");
    let config = rig.wait_error(&assigned, VALIDATE);
    assert!(config["active"].is_null(), "{config:#}");
    assert!(rig.status()["errorDetail"].as_str().unwrap().contains("unrecognized feature gate: CSIMigration"));
}

// Native takes it for valid, restarts into it and crash-loops.
#[test]
fn flaw_05_a_missing_ca_file_does_not_crash_loop() {
    // The old kubelet tells when it is asked, the new one only by dying: no start, or one.
    for (style, starts) in [(Style::V1_20, 0), (Style::V1_36, 1)] {
        let rig = Rig::with(style, "1s").running();
        let good = rig.prove("a", &configuration("maxPods: 42"));
        let text = "maxPods: 43\nauthentication: {x509: {clientCAFile: /no/such/ca.crt}}";
        let bad = rig.put("a", &configuration(text));
        rig.wait_config("the error", |config| {
            is(config, "assigned", &bad) && is(config, "active", &good) && config["error"].is_string()
        });
        rig.wait_status("running", |status| status["kubelet"]["ready"] == true);
        assert_eq!(starts_with(&rig, 43), starts, "{style:?}");
        assert!(rig.status()["errorDetail"].as_str().unwrap().contains("/no/such/ca.crt"), "{}", rig.status());
        assert!(!was_ever_good(&rig, &bad));
    }
}

// Native compares resourceVersions: a label restarts every kubelet of the pool.
#[test]
fn flaw_06_a_metadata_edit_restarts_nothing() {
    let rig = Rig::new().running();
    rig.prove("a", &configuration("maxPods: 42"));
    let label = rig.server.label_config_map(NAMESPACE, "a", "team", "x");
    rig.wait_active(&label);
    let note = rig.server.annotate_config_map(NAMESPACE, "a", "note", "y");
    rig.wait_config("proven as before", |config| is(config, "active", &note) && is(config, "lastKnownGood", &note));
    assert_eq!(rig.starts(), 2);
    assert_eq!(rig.metric("kubelet_supervisor_kubelet_restarts_total{cause=\"config\"}"), Some(1.0));
}

// Native writes the time of the assignment anew whenever it syncs, and a trial ends ten minutes after that.
#[test]
fn flaw_07_a_sync_does_not_reset_the_trial_clock() {
    let rig = Rig::with(Style::V1_20, "3s").running();
    rig.apply("a", &configuration("maxPods: 42"));
    let since = |status: &Value| status["trial"]["since"].as_str().map(str::to_owned);
    let begun = since(&rig.wait_status("on trial", |status| since(status).is_some())).unwrap();
    let mut round = 0;
    eventually("proven, however often it is synced", || {
        round += 1;
        let label = rig.server.label_config_map(NAMESPACE, "a", "round", &round.to_string());
        rig.server.end_watches();
        rig.wait_active(&label);
        let status = rig.status();
        // Once it is proven, the next sync is the adoption of what is last known good.
        if !status["lastKnownGood"].is_null() {
            return Some(());
        }
        assert_eq!(since(&status).as_ref(), Some(&begun), "after {round} syncs");
        None
    });
    assert!(round > 3, "{round} syncs within the trial");
    assert_eq!(rig.starts(), 2);
}

// Native logs the failure and forgets the status until the next change.
#[test]
fn flaw_08_a_failed_status_patch_is_not_dropped() {
    let rig = Rig::new().running();
    rig.fault(Verb::Patch, "status", FaultKind::Status(500), 3);
    rig.fault(Verb::Patch, "status", FaultKind::Status(409), 1);
    let bad = rig.offer("a", &configuration("maxPods: ten"));
    rig.wait_error(&bad, LOAD);
    assert_eq!(rig.server.faults().left(), 0, "all of them were met");
}

// Native clears it only by the next successful sync of a ConfigMap, which after a reset never comes.
#[test]
fn flaw_09_the_sync_error_goes_with_a_reset() {
    let rig = Rig::new().running();
    rig.assign("never-there");
    rig.wait_config("the error", |config| config["error"] == DOWNLOAD);
    assert_eq!(rig.metric("kubelet_node_config_error"), Some(1.0));
    rig.server.unassign(NODE);
    rig.wait_config("no error", |config| config["error"].is_null());
    assert_eq!((rig.status()["error"].as_str(), rig.starts()), (Some(""), 1));
    assert_eq!(rig.metric("kubelet_node_config_error"), Some(0.0));
}

// Native trusts what is on disk, never asks for it again, and never removes any.
#[test]
fn flaw_10_checkpoints_are_verified_downloaded_again_and_collected() {
    let mut rig = Rig::new().running();
    let versions: Vec<Version> =
        (1..=5).map(|pods| rig.prove("a", &configuration(&format!("maxPods: {pods}")))).collect();
    let checkpoint = |version: &Version| rig.at("dynamic/store/checkpoints").join(&version.0).join(&version.1);
    let (first, last) = (checkpoint(&versions[0]), checkpoint(&versions[4]).join("kubelet"));
    eventually("the oldest is collected", || (!first.exists()).then_some(()));
    rig.stop();
    // Still a valid configuration; only the checksum tells.
    std::fs::write(&last, configuration("maxPods: 999")).unwrap();
    rig.up();
    let whole = || std::fs::read_to_string(&last).is_ok_and(|text| text == configuration("maxPods: 5"));
    eventually("it is downloaded again", || whole().then_some(()));
    rig.wait_status("all is well", |status| is(status, "active", &versions[4]) && status["error"] == "");
    assert_eq!(starts_with(&rig, 999), 0, "what is damaged never runs");
}

// Native polls every 10 to 12 s, ends, and waits for RestartSec, which is 10 s.
#[test]
fn flaw_11_a_change_waits_neither_for_a_poll_nor_for_restart_sec() {
    let rig = Rig::long_trial().running();
    rig.server.wait_until(SOON, |state| (state.watches() == 1).then_some(())).unwrap();
    // There, on to what dies twice, and back, in less time than native's first look.
    let begun = Instant::now();
    rig.apply("a", &configuration("maxPods: 42"));
    let bad = rig.put("a", &killer());
    rig.wait_event("KubeletConfigRolledBack", &bad);
    rig.wait_ready(5);
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    let seen: Vec<Value> = rig.kubelet.starts().iter().map(|start| start["configJson"]["maxPods"].clone()).collect();
    assert_eq!(seen, [Value::from(110), Value::from(42), Value::Null, Value::Null, Value::from(110)]);
}
