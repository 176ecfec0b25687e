//! The kubelet process, the API server and the Node, coming and going.

use serde_json::{Value, json};

use crate::cluster::until;
use crate::supervisor::{Case, signal};
use crate::versions;

const LOCAL: Value = Value::Null;

/// An empty store, no assignment: the node as it was without us.
pub fn first_start(case: &Case) {
    let supervisor = case.supervisor();
    case.await_node_ready();
    case.await_config(&LOCAL, &LOCAL, &LOCAL, "");
    supervisor.await_status(&[
        ("/assigned", LOCAL),
        ("/active", LOCAL),
        ("/lastKnownGood", LOCAL),
        ("/error", json!("")),
        ("/trial/state", json!("none")),
        ("/kubelet/version", json!(versions::kubelet())),
        ("/kubelet/restarts", json!(0)),
    ]);
    assert_eq!(case.kubelets(), [supervisor.kubelet()]);
    supervisor.await_metric("kubelet_node_config_active", "node_config_source=\"local\"", 1.0);
    for page in ["/healthz", "/readyz"] {
        until(page, || supervisor.page(page));
    }
    case.await_configz("maxPods", &json!(110));
}

/// The API server is away while supervisor and kubelet start.
pub fn api_server_away(case: &Case) {
    let (supervisor, map) = case.proven();
    let source = map.source();
    case.script("stop", Some("apiserver"));
    supervisor.assert_steady(3);
    assert!(supervisor.stop().success());

    let supervisor = case.supervisor();
    supervisor.await_status(&[
        ("/assigned", source.clone()),
        ("/active", source.clone()),
        ("/lastKnownGood", source),
        ("/error", json!("")),
        ("/kubelet/restarts", json!(0)),
    ]);
    signal(supervisor.kubelet(), "KILL");
    supervisor.await_status(&[("/kubelet/restarts", json!(1)), ("/kubelet/ready", json!(true))]);

    case.script("start", Some("apiserver"));
    let before = supervisor.process();
    let edited = case.edit_map(&map, &json!({ "metadata": { "labels": { "edited": "yes" } } }));
    case.await_proven(&edited);
    case.await_configz("maxPods", &json!(41));
    assert_eq!(supervisor.process(), before);
    let other = case.assign_new(&case.id("other"), "maxPods: 47");
    case.await_proven(&other);
    case.await_node_ready();
}

/// SIGKILL to the kubelet, and to the supervisor.
pub fn kill(case: &Case) {
    let (mut supervisor, map) = case.proven();
    let source = map.source();
    let first = supervisor.kubelet();
    signal(first, "KILL");
    supervisor.await_status(&[
        ("/kubelet/restarts", json!(2)),
        ("/kubelet/ready", json!(true)),
        ("/active", source.clone()),
    ]);
    let second = supervisor.kubelet();
    assert_ne!(first, second);
    supervisor.await_metric("kubelet_supervisor_kubelet_restarts_total", "cause=\"exit\"", 1.0);

    supervisor.signal("KILL");
    assert!(!supervisor.ended().success()); // and no kubelet is left
    let supervisor = case.supervisor();
    supervisor.await_status(&[
        ("/assigned", source.clone()),
        ("/active", source.clone()),
        ("/kubelet/restarts", json!(0)),
    ]);
    case.await_config(&source, &source, &source, "");
    case.await_configz("maxPods", &json!(41));
    supervisor.assert_steady(2);
}

/// The Node object is deleted; the kubelet that starts then registers one that asks for nothing.
pub fn node_deleted(case: &Case) {
    let (supervisor, _) = case.proven();
    let before = supervisor.process();
    case.ask("DELETE", &case.node_path(), None);
    supervisor.assert_steady(2); // a Node that is gone asks for nothing
    signal(before.0, "KILL");
    until("another Node object", || case.api("GET", &case.node_path(), None));
    case.await_config(&LOCAL, &LOCAL, &LOCAL, "");
    supervisor.await_status(&[("/active", LOCAL), ("/lastKnownGood", LOCAL), ("/kubelet/ready", json!(true))]);
    case.await_node_ready();
    case.await_configz("maxPods", &json!(110));
}

/// SIGTERM: one graceful stop of the kubelet, exit code 0. SIGTERM to the kubelet alone is an exit like others.
pub fn terminate(case: &Case) {
    let supervisor = case.supervisor();
    signal(supervisor.kubelet(), "TERM");
    supervisor.await_status(&[("/kubelet/restarts", json!(1)), ("/kubelet/ready", json!(true))]);
    let status = supervisor.stop();
    assert_eq!(status.code(), Some(0), "{status}");

    // While the kubelet is still starting, too.
    let supervisor = case.launch("4s", &case.dir(), case.kubelet_args());
    until("a kubelet", || case.kubelets().first().copied().ok_or_else(|| "none".to_owned()));
    let status = supervisor.stop();
    assert_eq!(status.code(), Some(0), "{status}");
}
