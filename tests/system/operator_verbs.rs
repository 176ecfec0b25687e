//! What an operator does to a node: acknowledges, goes back, pins, freezes; on the node, while no supervisor runs, and
//! through the Node's annotations.

use serde_json::{Value, json};

use testkit::kubelet::Style;
use testkit::rig::{LOAD, Rig, configuration, eventually, id, is};

/// Pods that the latest start allows, once its kubelet is ready.
fn wait_pods(rig: &Rig, pods: u64) {
    eventually(&format!("{pods} pods"), || (rig.last_config()["maxPods"] == pods).then_some(()));
    rig.wait_last_ready();
}

/// An event with this reason that says this.
fn wait_event_with(rig: &Rig, reason: &str, part: &str) {
    let told = |event: &Value| event["reason"] == reason && event["message"].as_str().unwrap().contains(part);
    rig.server.wait_event(testkit::rig::SOON, told).unwrap_or_else(|error| panic!("{reason} {part}: {error}"));
}

#[test]
fn what_is_confirmed_on_the_node_is_last_known_good() {
    let rig = Rig::new().running();
    let good = rig.prove("a", &configuration("maxPods: 42"));
    let version = rig.offer_with("b", &configuration("maxPods: 43"), ("confirm-within", "1m0s"));
    let message = rig.wait_event("KubeletConfigAwaitsConfirmation", &version);
    assert!(message.starts_with("Healthy; rolled back unless confirmed within 1m0s: "), "{message}");
    let status = rig.wait_status("it says so", |status| status["trial"]["confirmWithinSeconds"].is_u64());
    assert!(status["trial"]["state"] == "running" && is(&status, "lastKnownGood", &good), "{status}");
    let text = rig.verb(&["status"]).1;
    assert!(
        text.contains("rolled back unless confirmed within") && text.contains("kubelet-supervisor confirm"),
        "{text}"
    );
    // Neither Lease nor Ready was there before, so neither is asked for.
    assert!(text.contains("api-server good, healthz good, pods good"), "{text}");
    rig.done(&["confirm", "--extend=1h"]);
    rig.wait_status("there is more time", |status| status["trial"]["confirmWithinSeconds"].as_u64() > Some(3500));
    assert!(rig.done(&["confirm"]).ends_with("is confirmed"));
    rig.wait_config("proven", |config| is(config, "lastKnownGood", &version));
    wait_event_with(&rig, "KubeletConfigConfirmed", "By an operator: ");
    // Both happen in one step.
    rig.wait_event("KubeletConfigProven", &version);
    let (code, _, stderr) = rig.verb(&["confirm"]);
    assert!(code == 1 && stderr.contains("nothing waits for a confirmation"), "{stderr}");
    assert_eq!(rig.starts(), 3);
}

#[test]
fn rollback_leaves_what_runs_and_retry_tries_it_again() {
    let rig = Rig::long_trial().running();
    let version = rig.apply("a", &configuration("maxPods: 42"));
    assert_eq!(rig.done(&["rollback"]), "going back to the local configuration");
    wait_pods(&rig, 110);
    rig.wait_told("KubeletConfigRolledBack", &version, "an operator asked for it");
    rig.wait_error(&version, LOAD);
    assert_eq!(rig.metric("kubelet_supervisor_rollbacks_total{reason=\"operator\"}"), Some(1.0));
    let (code, _, stderr) = rig.verb(&["rollback"]);
    assert!(code == 1 && stderr.contains("refused: what runs is last known good already"), "{stderr}");
    assert!(rig.done(&["retry"]).ends_with("is tried again"));
    wait_pods(&rig, 42);
    wait_event_with(&rig, "KubeletConfigRetried", "By an operator: ");
    rig.wait_error(&version, "");
    // Nothing is held against it now.
    assert_eq!(rig.verb(&["retry"]).0, 1);
}

#[test]
fn a_version_is_tried_again_through_the_node() {
    let mut rig = Rig::long_trial().running();
    let version = rig.apply("a", &configuration("maxPods: 42"));
    rig.done(&["rollback"]);
    wait_pods(&rig, 110);
    rig.wait_error(&version, LOAD);
    let starts = rig.starts();
    // The word for another version is heard, and counts for nothing.
    rig.annotate_node("retry", "another/1");
    let memory = rig.at("dynamic/supervisor/state.json");
    eventually("it is heard", || std::fs::read_to_string(&memory).unwrap().contains("another/1").then_some(()));
    rig.annotate_node("retry", &id(&version));
    wait_pods(&rig, 42);
    wait_event_with(&rig, "KubeletConfigRetried", "By annotation: ");
    assert_eq!(rig.starts(), starts + 1);
    // A wish is fulfilled once: it does not undo the next rollback, nor does a restart read it again.
    rig.done(&["rollback"]);
    wait_pods(&rig, 110);
    rig.stop();
    let starts = rig.starts();
    rig.up();
    // The ConfigMap is watched once the Node was seen, with what stands on it; what comes next is heard after that.
    rig.server.wait_until(testkit::rig::SOON, |state| (state.watches() == 2).then_some(())).unwrap();
    rig.annotate_node("retry", "another/2");
    eventually("it is heard", || std::fs::read_to_string(&memory).unwrap().contains("another/2").then_some(()));
    rig.wait_error(&version, LOAD);
    assert_eq!((rig.starts(), rig.last_config()["maxPods"].clone()), (starts + 1, json!(110)));
}

#[test]
fn a_pin_holds_until_unpin() {
    let mut rig = Rig::new().running();
    let first = rig.prove("a", &configuration("maxPods: 1"));
    rig.prove("a", &configuration("maxPods: 2"));
    rig.done(&["pin", &id(&first)]);
    wait_pods(&rig, 1);
    wait_event_with(&rig, "KubeletConfigPinned", "is pinned until unpin");
    assert!(rig.verb(&["status"]).1.contains("pinned, until kubelet-supervisor unpin"));
    rig.wait_active(&first);
    // What is assigned meanwhile waits, a restart included.
    let last = rig.put("a", &configuration("maxPods: 3"));
    rig.restart();
    assert_eq!(rig.last_config()["maxPods"], 1);
    rig.server.wait_until(testkit::rig::SOON, |state| (state.watches() == 2).then_some(())).unwrap();
    rig.done(&["rollback", "--to=local"]);
    wait_pods(&rig, 110);
    assert!(rig.kubelet.starts().iter().all(|start| start["configJson"]["maxPods"] != 3));
    assert_eq!(rig.done(&["unpin"]), "the assignment is followed again");
    rig.wait_config("followed", |config| is(config, "lastKnownGood", &last));
    wait_event_with(&rig, "KubeletConfigUnpinned", "By an operator: ");
    assert_eq!(rig.verb(&["unpin"]).0, 1);
}

/// Without a supervisor, and without the API server: the next start obeys.
#[test]
fn what_is_asked_of_nobody_is_done_by_the_next_start() {
    let mut rig = Rig::with(Style::V1_20, "1s").running();
    let first = rig.prove("a", &configuration("maxPods: 1"));
    rig.stop();
    rig.option("--trial-duration", "10m");
    rig.up();
    let second = rig.apply("a", &configuration("maxPods: 2"));
    let next_start = |rig: &mut Rig, args: &[&str], pods: u64| {
        rig.stop();
        rig.server.stop();
        let (code, stdout, stderr) = rig.verb(args);
        assert_eq!(code, 0, "{args:?}: {stderr}");
        assert!(stderr.contains("no supervisor is running; the next one to start obeys") && !stdout.is_empty());
        rig.up();
        assert_eq!(rig.last_config()["maxPods"], pods, "{args:?}");
        rig.server.restart();
        rig.server.wait_until(testkit::rig::SOON, |state| (state.watches() == 2).then_some(())).unwrap();
    };
    next_start(&mut rig, &["rollback"], 1);
    // What may be tried again is looked at as any change, once the API server is there.
    next_start(&mut rig, &["retry"], 1);
    rig.wait_active(&second);
    next_start(&mut rig, &["pin", "local"], 110);
    next_start(&mut rig, &["pin", &id(&first)], 1);
    // What was on trial is taken up like any change, once the API server is there.
    next_start(&mut rig, &["unpin"], 1);
    rig.wait_config("taken up again", |config| is(config, "active", &second));
    next_start(&mut rig, &["freeze"], 2);
    let third = rig.put("a", &configuration("maxPods: 3"));
    rig.wait_status("frozen", |status| status["frozen"] == true && is(status, "active", &second));
    rig.stop();
    rig.done(&["thaw"]);
    rig.up();
    rig.wait_active(&third);
    wait_pods(&rig, 3);
}

/// Every event once, in order, however late, whoever sends it.
#[test]
fn events_wait_for_the_api_server_and_outlive_the_supervisor() {
    let mut rig = Rig::long_trial().running();
    rig.apply("a", &configuration("maxPods: 42"));
    rig.server.stop();
    rig.done(&["freeze"]);
    rig.done(&["thaw"]);
    rig.restart();
    rig.done(&["rollback"]);
    // A command is answered once its record is durable; the event goes to the history right after.
    let told = || rig.history().iter().any(|entry| entry["reason"] == "KubeletConfigRolledBack");
    eventually("it is in the history", || told().then_some(()));
    rig.kill();
    rig.up();
    rig.server.restart();
    let expected = ["Changed", "Frozen", "Thawed", "RolledBack"].map(|word| format!("KubeletConfig{word}"));
    eventually("all of them", || (rig.reasons().len() >= expected.len()).then_some(()));
    // One more, after a restart: whatever is sent again comes before it.
    rig.restart();
    rig.done(&["freeze"]);
    let again = || rig.reasons().iter().filter(|reason| *reason == "KubeletConfigFrozen").count();
    eventually("the last one", || (again() == 2).then_some(()));
    assert_eq!(rig.reasons(), [&expected[..], &["KubeletConfigFrozen".to_owned()]].concat());
    // When it happened, not when it was sent.
    let times = |events: Vec<Value>, field: &str| {
        events.iter().map(|event| event[field].as_str().unwrap_or_default().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(times(rig.server.events(), "firstTimestamp"), times(rig.history(), "time"));
    assert_eq!(times(rig.server.events(), "message"), times(rig.history(), "message"));
}
