//! Changes that succeed.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::cluster::{pause, until};
use crate::supervisor::Case;

const LOCAL: Value = Value::Null;

/// A source becomes assigned, runs, and earns its title.
pub fn assign(case: &Case) {
    let supervisor = case.supervisor_with("10s");
    let map = case.good(&case.id("a"), "maxPods: 42");
    let (source, before) = (map.source(), supervisor.kubelet());
    case.assign(&map);
    case.await_config(&source, &source, &LOCAL, "");
    supervisor.await_status(&[
        ("/assigned", source.clone()),
        ("/active", source.clone()),
        ("/lastKnownGood", LOCAL),
        ("/error", json!("")),
        ("/trial/state", json!("running")),
        ("/kubelet/restarts", json!(1)),
    ]);
    assert_ne!(supervisor.kubelet(), before);
    case.await_event("KubeletConfigChanged", &[&format!("Kubelet restarting to use {}", map.event_text())]);
    case.await_configz("maxPods", &json!(42));

    case.await_config(&source, &source, &source, "");
    supervisor.await_status(&[
        ("/lastKnownGood", source),
        ("/trial/state", json!("passed")),
        ("/kubelet/restarts", json!(1)),
    ]);
    case.await_event("KubeletConfigProven", &[&map.event_text()]);
    for role in ["assigned", "active", "last_known_good"] {
        let labels = format!("node_config_uid=\"{}\"", map.uid);
        supervisor.await_metric(&format!("kubelet_node_config_{role}"), &labels, 1.0);
    }
    supervisor.await_metric("kubelet_node_config_error", "", 0.0);
    supervisor.await_metric("kubelet_supervisor_kubelet_restarts_total", "cause=\"config\"", 1.0);
    supervisor.await_metric("kubelet_supervisor_rollbacks_total", "", 0.0);
    supervisor.await_metric("kubelet_supervisor_config_apply_duration_seconds_count", "", 1.0);
    supervisor.await_metric("kubelet_supervisor_trial_remaining_seconds", "", 0.0);
    assert!(supervisor.stop().success());
}

/// An edit that leaves the content alone is adopted: no restart, and the standing is kept.
pub fn label_edit(case: &Case) {
    let (supervisor, map) = case.proven();
    let before = supervisor.process();
    let edited = case.edit_map(&map, &json!({ "metadata": { "labels": { "edited": "yes" } } }));
    assert_ne!(edited.version, map.version);
    case.await_proven(&edited);
    case.await_event("KubeletConfigAdopted", &[&edited.event_text()]);
    assert_eq!(supervisor.process(), before);
    assert_eq!(
        case.events("KubeletConfigChanged").unwrap().len(),
        1,
        "only the first assignment restarted the kubelet"
    );
}

/// Two edits of a label within the time of a trial, where everything is to be confirmed: what is confirmed already is
/// asked for no second time.
pub fn label_edits_with_confirm(case: &Case) {
    const WITHIN: &str = "15s";
    let supervisor = case.supervisor_options(WITHIN, &["--confirm-within", WITHIN]);
    let map = case.assign_new(&case.id("map"), "maxPods: 41");
    case.await_event("KubeletConfigAwaitsConfirmation", &[&map.event_text()]);
    supervisor.verb(&["confirm"]).unwrap();
    case.await_proven(&map);
    let before = supervisor.process();

    let edit = |value: &str| {
        let edited = case.edit_map(&map, &json!({ "metadata": { "labels": { "edited": value } } }));
        case.await_event("KubeletConfigAdopted", &[&edited.event_text()]);
        edited.source()
    };
    edit("once");
    let source = edit("twice");
    // The time of a trial, the time to confirm, and some.
    supervisor.assert_steady(45);
    assert_eq!(supervisor.process(), before);
    case.await_config(&source, &source, &source, "");
    assert_eq!(case.events("KubeletConfigAwaitsConfirmation").unwrap().len(), 1);
    assert_eq!(case.events("KubeletConfigRolledBack").unwrap(), Vec::<String>::new());
    supervisor.await_status(&[("/badVersions", json!([]))]);
}

/// When an edit takes its turn, by the status of the node.
fn turn(status: &Value) -> Option<Timestamp> {
    status.pointer("/scheduled/at")?.as_str()?.parse().ok()
}

/// An edit waits for its turn, the turn comes, and the API server is away: the edit waits on.
pub fn edit_while_api_away(case: &Case) {
    let supervisor = case.supervisor_options("4s", &["--spread", "60s"]);
    case.await_node_ready();
    let map = case.assign_new(&case.id("map"), "maxPods: 42");
    case.await_proven(&map);
    // The turn follows from the version: until there is one that leaves time for what follows, and not much more.
    let mut pods = 43;
    let (edited, at) = until("an edit that waits for some seconds", || {
        pods += 1;
        let payload = case.payload(&format!("maxPods: {pods}"));
        let edited = case.edit_map(&map, &json!({ "data": { "kubelet": payload } }));
        let at = until("its turn", || {
            let status = supervisor.status()?;
            let is_it = status["scheduled"]["source"] == edited.source() || status["active"] == edited.source();
            if is_it { Ok(turn(&status)) } else { Err(format!("{status:#}")) }
        });
        let at = at.ok_or("it is there")?;
        let left = at.as_second() - Timestamp::now().as_second();
        if (8..40).contains(&left) { Ok((edited, at)) } else { Err(format!("{left} s")) }
    });
    case.script("stop", Some("apiserver"));
    let before = supervisor.process();
    let active = supervisor.status().unwrap()["active"].clone();
    assert_ne!(active, edited.source());
    while Timestamp::now().as_second() < at.as_second() + 20 {
        let status = supervisor.status().unwrap();
        assert_eq!((&status["active"], supervisor.process()), (&active, before), "{status:#}");
        pause(250);
    }
    case.script("start", Some("apiserver"));
    case.await_proven(&edited);
    case.await_configz("maxPods", &json!(pods));
    assert_eq!(supervisor.restarts(), before.1 + 1);
}

/// A payload that only says what differs.
pub fn overlay(case: &Case) {
    let supervisor = case.supervisor();
    let body = json!({
        "metadata": { "annotations": { "kubelet-supervisor.io/merge": "overlay" } },
        "data": { "kubelet": "maxPods: 33\nevictionHard: {nodefs.available: 1%}\n" },
    });
    let map = case.map(&case.id("small"), &body);
    case.prove(&map);
    case.await_configz("maxPods", &json!(33));
    let eviction = json!({
        "memory.available": "10Mi", "nodefs.available": "1%", "nodefs.inodesFree": "0.1%", "imagefs.available": "0.1%",
    });
    case.await_configz("evictionHard", &eviction);
    supervisor.await_status(&[("/kubelet/restarts", json!(1))]);

    // Spelt out, it is the same: no restart.
    let whole = case.good(&case.id("whole"), "maxPods: 33").name;
    let spelt = case.payload("maxPods: 33").replace("nodefs.available: 0.1%", "nodefs.available: 1%");
    let whole = case.edit_map(&case.get_map(&whole), &json!({ "data": { "kubelet": spelt } }));
    case.prove(&whole);
    supervisor.await_status(&[("/kubelet/restarts", json!(1))]);
}

/// A path that names a key of the payload itself.
pub fn relative_path(case: &Case) {
    let supervisor = case.supervisor();
    let ca = std::fs::read_to_string(case.var("CA_CERT")).unwrap();
    let payload = case.payload("maxPods: 45").replace(case.var("CA_CERT"), "ca.crt");
    assert!(payload.contains("clientCAFile: ca.crt"), "{payload}");
    let map = case.map(&case.id("ca"), &json!({ "data": { "kubelet": payload, "ca.crt": ca } }));
    case.prove(&map);
    // The API server could not get in, did the kubelet not know its CA.
    case.await_configz("maxPods", &json!(45));

    // The same text with another CA is another content.
    let before = supervisor.restarts();
    let edited = case.edit_map(&map, &json!({ "data": { "ca.crt": ca.clone() + "\n# a remark\n" } }));
    case.await_proven(&edited);
    assert_eq!(supervisor.restarts(), before + 1, "another CA file needs a restart");
    case.await_configz("maxPods", &json!(45));
}

/// Another assignment, a rejected one and a reset while a trial runs.
pub fn while_on_trial(case: &Case) {
    let supervisor = case.supervisor_with("10m");
    let (first, second) = (case.good(&case.id("a"), "maxPods: 61"), case.good(&case.id("b"), "maxPods: 62"));
    let running = |source: Value| {
        case.await_config(&source, &source, &LOCAL, "");
        supervisor.await_status(&[
            ("/active", source),
            ("/trial/state", json!("running")),
            ("/kubelet/ready", json!(true)),
        ]);
    };
    case.assign(&first);
    running(first.source());
    case.assign(&second);
    running(second.source());
    case.await_configz("maxPods", &json!(62));
    supervisor.await_status(&[("/kubelet/restarts", json!(2))]);

    // What runs is neither assigned any more nor last known good.
    let bad = case.assign_new(&case.id("bad"), "kubeAPIQPS: -1");
    case.await_config(&bad.source(), &LOCAL, &LOCAL, "failed to validate config, see Kubelet log for details");
    supervisor.await_status(&[("/kubelet/restarts", json!(3)), ("/kubelet/ready", json!(true))]);

    case.assign(&first);
    running(first.source());
    case.reset();
    case.await_config(&LOCAL, &LOCAL, &LOCAL, "");
    supervisor.await_status(&[
        ("/trial/state", json!("none")),
        ("/kubelet/restarts", json!(5)),
        ("/kubelet/ready", json!(true)),
    ]);
    until("no event that it proved itself", || match case.events("KubeletConfigProven")? {
        events if events.is_empty() => Ok(()),
        events => Err(format!("{events:?}")),
    });
}
