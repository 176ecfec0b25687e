//! An API server that misbehaves.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use testkit::api_server::{Fault, FaultKind, Request, State, Verb};
use testkit::kubelet::Style;
use testkit::rig::{DOWNLOAD, NODE, Rig, SOON, Version, configuration, eventually, eventually_within, is};

/// Applies a configuration; no error is ever written to the status.
fn applies_silently(rig: &Rig) -> Version {
    let version = rig.apply("a", &configuration("maxPods: 42"));
    assert_eq!(rig.errors_written(), Vec::<String>::new());
    version
}

/// Faults that pass are passed over in silence, and what was to be done is done.
#[test]
fn faults_that_pass_are_no_errors() {
    for (verb, path, kind, times) in [
        (Verb::Any, "configmaps", FaultKind::Status(403), 6), // as the node authorizer answers for a moment
        (Verb::List, "configmaps", FaultKind::Status(500), 3),
        (Verb::List, "configmaps", FaultKind::Garbage, 2),
        (Verb::List, "configmaps", FaultKind::CutMidLine, 2),
        (Verb::Any, "", FaultKind::Slow(Duration::from_millis(500)), 4),
        (Verb::Patch, "status", FaultKind::Status(500), 4),
        (Verb::Patch, "status", FaultKind::Status(409), 2),
        (Verb::Patch, "status", FaultKind::CutMidLine, 2),
        (Verb::Patch, "status", FaultKind::Garbage, 1),
        (Verb::Watch, "", FaultKind::CutMidLine, 2),
        (Verb::Watch, "", FaultKind::Garbage, 2),
    ] {
        let rig = Rig::new().running();
        rig.server.wait_until(SOON, |state| (state.watches() == 1).then_some(())).unwrap();
        let what = format!("{kind:?} of {path:?} is played to its end");
        rig.fault(verb, path, kind, times);
        if verb == Verb::Watch {
            rig.server.end_watches();
        }
        applies_silently(&rig);
        eventually(&what, || (rig.server.faults().left() == 0).then_some(()));
    }
}

#[test]
fn what_lasts_is_an_error_until_it_goes() {
    for code in [403, 404, 500] {
        let rig = Rig::new().running();
        rig.server.faults().push(Fault::new(Verb::Any, "configmaps", FaultKind::Status(code)));
        let version = rig.offer("a", &configuration("maxPods: 42"));
        rig.wait_config("the error", |config| config["error"] == DOWNLOAD);
        assert_eq!(rig.starts(), 1);
        rig.server.faults().clear();
        rig.wait_active(&version);
        rig.wait_error(&version, "");
    }
}

#[test]
fn a_node_that_may_not_be_seen_for_a_while() {
    let mut rig = Rig::new();
    rig.fault(Verb::List, "nodes", FaultKind::Status(403), 4);
    rig.up();
    applies_silently(&rig);
    assert!(rig.log().contains("the Node cannot be watched") && rig.log().contains("the API server is back"));
}

/// Only the list: a PATCH or POST may have been sent twice before its answer came.
#[test]
fn retry_after_is_heeded() {
    let rig = Rig::long_trial().running();
    rig.fault(Verb::List, "configmaps", FaultKind::Throttle(2), 1);
    rig.apply("a", &configuration("maxPods: 42"));
    let requests = rig.server.requests();
    let lists: Vec<&Request> = requests.iter().filter(|r| r.path.contains("configmaps") && !r.is_watch()).collect();
    assert_eq!(lists.iter().map(|list| list.status).collect::<Vec<_>>(), [429, 200]);
    let pause = lists[1].at - lists[0].at;
    assert!(pause >= Duration::from_millis(1950), "{pause:?}");
}

#[test]
fn a_410_asks_for_a_new_list() {
    for http in [false, true] {
        let rig = Rig::long_trial().running();
        rig.apply("a", &configuration("maxPods: 1"));
        rig.server.gone_as_http(http);
        rig.server.end_watches();
        rig.server.compact();
        rig.apply("a", &configuration("maxPods: 2"));
        rig.fault(Verb::Watch, "", FaultKind::GoneInStream, 2);
        rig.server.end_watches();
        let version = rig.apply("b", &configuration("maxPods: 3"));
        assert!(rig.wait_active(&version)["error"].is_null(), "http: {http}");
        assert_eq!(rig.errors_written(), Vec::<String>::new());
    }
}

#[test]
fn a_status_and_an_event_that_hang() {
    let rig = Rig::long_trial().running();
    rig.fault(Verb::Patch, "status", FaultKind::Hang, 1);
    rig.fault(Verb::Post, "events", FaultKind::Hang, 1);
    let version = rig.offer("a", &configuration("maxPods: 42"));
    // The kubelet does not wait for it.
    let begin = Instant::now();
    rig.wait_ready(2);
    assert!(begin.elapsed() < Duration::from_secs(14));
    let active = |node: &serde_json::Value| is(&node["status"]["config"], "active", &version);
    rig.server.wait_node(NODE, Duration::from_secs(40), active).unwrap_or_else(|error| panic!("{error}"));
    rig.wait_event("KubeletConfigChanged", &version);
}

#[test]
fn credentials_refused_and_then_good_again() {
    let mut rig = Rig::long_trial();
    rig.server.require_token(Some("another"));
    rig.up();
    rig.wait_log("does not accept the credentials of");
    let asked = rig.server.requests().len();
    let version = rig.offer("a", &configuration("maxPods: 42"));
    rig.server.require_token(None);
    // The same credentials are tried again after 15 s.
    let active = |node: &serde_json::Value| is(&node["status"]["config"], "active", &version);
    rig.server.wait_node(NODE, Duration::from_secs(40), active).unwrap_or_else(|error| panic!("{error}"));
    assert!(asked <= 3, "{asked} requests with credentials that are refused");
    assert_eq!(rig.errors_written(), Vec::<String>::new());
}

#[test]
fn an_api_server_that_goes_away_with_the_change_and_comes_back() {
    let mut rig = Rig::with(Style::V1_20, "5s");
    rig.option("--isolation-timeout", "2s");
    rig.up();
    let version = rig.apply("a", &configuration("maxPods: 42"));
    // For all the node knows the change has cut it off; then the local configuration does no better.
    rig.server.stop();
    rig.wait_status("rolled back", |status| status["active"].is_null() && status["trial"]["state"] == "failed");
    let cleared = |status: &Value| status["errorDetail"].as_str().unwrap_or_default().starts_with("not to blame");
    let status = rig.wait_status("not to blame", cleared);
    assert_eq!(status["badVersions"], json!([]), "the version is cleared");
    rig.server.restart();
    // Better times: the version is tried again after half a minute of health.
    eventually_within(Duration::from_secs(120), "proven", || {
        let status = rig.status();
        is(&status, "lastKnownGood", &version).then_some(())
    });
    for reason in ["KubeletConfigRolledBack", "KubeletConfigNotBlamed", "KubeletConfigProven"] {
        rig.wait_event(reason, &version);
    }
}

#[test]
fn a_server_that_drops_the_status_is_not_pestered() {
    let rig = Rig::new().running();
    rig.apply("a", &configuration("maxPods: 1"));
    let patches = || rig.server.requests().iter().filter(|request| request.method == "PATCH").count();
    // As after an upgrade of the control plane: whatever writes the Node next, loses the assignment.
    rig.server.drop_dynamic_config(true);
    let before = patches();
    rig.put("a", &configuration("maxPods: 2"));
    eventually("it is back on its own", || (rig.last_config()["maxPods"] == 110).then_some(()));
    let more = |state: &State| {
        (state.requests().iter().filter(|request| request.method == "PATCH").count() > before + 6).then_some(())
    };
    assert!(rig.server.wait_until(Duration::from_secs(3), more).is_err(), "{} PATCHes", patches() - before);
}
