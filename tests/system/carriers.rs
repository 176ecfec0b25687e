//! Where an assignment comes from when it is not `spec.configSource`, where the status goes when
//! `status.config` is dropped, and when a change that reaches many nodes begins on this one.

use serde_json::{Value, json};

use testkit::api_server::{FaultKind, Verb};
use testkit::rig::{NAMESPACE, NODE, Rig, Version, configuration, exit_and_output, is};

const ANNOTATION: &str = "kubelet-supervisor.io/config-status";

fn has(field: &'static str, version: &Version) -> impl Fn(&Value) -> bool {
    move |status| is(status, field, version)
}

#[test]
fn labels_carry_what_the_server_drops() {
    let mut rig = Rig::modern();
    let version = rig.put("a", &configuration("maxPods: 42"));
    rig.up();
    rig.wait_annotation("a node that says that it is local", |status| *status == json!({}));
    rig.label(&[("name", Some("a"))]);
    rig.wait_annotation("active", has("active", &version));
    let status = rig.wait_annotation("proven", has("lastKnownGood", &version));
    rig.wait_running(42);
    assert_eq!(status.as_object().unwrap().len(), 3, "nothing is there that is unset: {status}");
    rig.wait_condition("True", "LastKnownGood");
    assert_eq!(rig.server.node(NODE)["status"]["config"], Value::Null, "the server drops it");
    assert_eq!(rig.starts(), 2);

    // Removing the label is the reset.
    rig.label(&[("name", None)]);
    rig.wait_annotation("reset", |status| *status == json!({}));
    rig.wait_running(110);
    rig.wait_condition("True", "Local");
}

#[test]
fn what_is_left_of_a_trial_costs_one_patch() {
    let mut rig = Rig::modern();
    let version = rig.put("a", &configuration("maxPods: 42"));
    rig.up();
    rig.wait_annotation("a node that says that it is local", |status| *status == json!({}));
    let before = rig.server.requests().len();
    rig.label(&[("name", Some("a"))]);
    rig.wait_annotation("proven", has("lastKnownGood", &version));
    rig.wait_condition("True", "LastKnownGood");
    let patches = rig.server.requests().into_iter().skip(before).filter(|request| request.method == "PATCH");
    let ends: Vec<Value> = patches
        .map(|patch| serde_json::from_str(patch.body["metadata"]["annotations"][ANNOTATION].as_str().unwrap()).unwrap())
        .filter(|said: &Value| said["assigned"].is_object()) // what was under way of the time before is none of it
        .map(|said| said["trialEnds"].clone())
        .collect();
    // Recorded, started, promised when the kubelet is healthy, proven. A slow machine may see health begin twice.
    let promised = ends.iter().filter(|end| end.is_string()).count();
    assert!(promised >= 1 && ends.len() <= 2 + 2 * promised, "{ends:?}");
    assert_eq!((&ends[0], &ends[ends.len() - 1]), (&Value::Null, &Value::Null), "{ends:?}");
}

#[test]
fn labels_name_namespace_and_key() {
    let mut rig = Rig::modern();
    rig.option("--config-namespace", "pools");
    let text = configuration("maxPods: 43");
    let version = rig.server.put_config_map("pools", "a", &[("kubelet", &configuration("maxPods: 41"))]);
    let other = rig.server.put_config_map("elsewhere", "a", &[("kubelet.yaml", &text)]);
    rig.label(&[("name", Some("a"))]);
    rig.up();
    rig.wait_annotation("the option's namespace", has("active", &version));
    rig.label(&[("namespace", Some("elsewhere")), ("key", Some("kubelet.yaml"))]);
    let status = rig.wait_annotation("the labels'", has("active", &other));
    assert_eq!(status["active"]["configMap"]["kubeletConfigKey"], "kubelet.yaml");
    rig.wait_running(43);
}

#[test]
fn labels_that_name_nothing_are_said_and_nothing_changes() {
    let mut rig = Rig::modern();
    rig.put("a", &configuration("maxPods: 42"));
    rig.label(&[("name", Some("a"))]);
    rig.up();
    rig.wait_running(42);
    rig.label(&[("name", Some("Pool_A"))]);
    let said = rig.wait_condition("False", "SyncFailed");
    assert!(said.contains("kubelet-config.node-restriction.kubernetes.io/name: \"Pool_A\" cannot be"), "{said}");
    rig.label(&[("name", Some("a"))]);
    rig.wait_condition("True", "LastKnownGood");
    assert_eq!(rig.starts(), 2);
}

#[test]
fn config_source_wins_and_labels_take_over() {
    let mut rig = Rig::new();
    let (a, b) = (rig.put("a", &configuration("maxPods: 1")), rig.put("b", &configuration("maxPods: 2")));
    rig.label(&[("name", Some("b"))]);
    rig.assign("a");
    rig.up();
    rig.wait_active(&a);
    let both = |status: &Value| is(status, "active", &a);
    rig.wait_annotation("the annotation stands beside status.config", both);
    rig.server.unassign(NODE);
    rig.wait_active(&b);
    rig.wait_annotation("and follows it", has("active", &b));
    rig.assign("a");
    rig.wait_active(&a);
    rig.wait_running(1);
}

#[test]
fn an_annotation_that_somebody_edits_is_written_again() {
    let mut rig = Rig::modern();
    let version = rig.put("a", &configuration("maxPods: 42"));
    rig.label(&[("name", Some("a"))]);
    rig.up();
    rig.wait_annotation("proven", has("lastKnownGood", &version));
    rig.server.patch_node(NODE, json!({"metadata": {"annotations": {ANNOTATION: "{\"error\":\"a lie\"}"}}}));
    rig.wait_annotation("mended", has("lastKnownGood", &version));
    rig.server.patch_node(NODE, json!({"metadata": {"annotations": {ANNOTATION: null, "other": "x"}}}));
    rig.wait_annotation("back", has("lastKnownGood", &version));
    assert_eq!(rig.server.node(NODE)["metadata"]["annotations"]["other"], "x", "others' are left alone");
}

#[test]
fn get_alone_is_enough() {
    let mut rig = Rig::modern();
    for verb in [Verb::List, Verb::Watch] {
        rig.fault(verb, "configmaps", FaultKind::Status(403), u32::MAX);
    }
    let version = rig.put("a", &configuration("maxPods: 42"));
    rig.label(&[("name", Some("a"))]);
    rig.up();
    rig.wait_annotation("active", has("active", &version));
    rig.wait_running(42);
    // The right to watch is found within seconds of the first refusal.
    rig.server.faults().clear();
    let edited = rig.put("a", &configuration("maxPods: 43"));
    rig.wait_annotation("the edit", has("active", &edited));
}

#[test]
fn a_missing_right_is_named_with_the_file_that_grants_it() {
    let mut rig = Rig::modern();
    rig.fault(Verb::Any, "configmaps", FaultKind::Status(403), u32::MAX);
    let version = rig.put("a", &configuration("maxPods: 42"));
    rig.label(&[("name", Some("a"))]);
    rig.up();
    let said = rig.wait_condition("False", "SyncFailed");
    for part in [
        "get, list and watch on configmaps",
        "namespace kube-system",
        "system:nodes",
        "packaging/manifests/base/rbac.yaml",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    rig.server.faults().clear();
    rig.wait_annotation("granted", has("active", &version));
}

#[test]
fn a_default_source_runs_where_nothing_is_assigned() {
    let mut rig = Rig::modern();
    rig.option("--default-source", "kube-system/kubelet-config");
    let default = rig.put("kubelet-config", &configuration("maxPods: 50"));
    let special = rig.put("special", &configuration("maxPods: 60"));
    rig.up();
    rig.wait_annotation("the default", has("active", &default));
    rig.label(&[("name", Some("special"))]);
    rig.wait_annotation("the assignment", has("active", &special));
    rig.label(&[("name", None)]);
    rig.wait_annotation("the default again", has("active", &default));
    rig.wait_running(50);
    rig.option("--default-source", "kubelet-config");
    let (code, _, said) = exit_and_output(&rig.command().output().unwrap());
    assert_eq!(code, 64);
    assert!(said.contains("--default-source") && said.contains("NAMESPACE/NAME"), "{said}");
}

#[test]
fn edits_are_checked_at_once_and_take_effect_one_by_one() {
    let mut rig = Rig::modern();
    rig.option("--spread", "100h");
    let first = rig.put("a", &configuration("maxPods: 42"));
    rig.label(&[("name", Some("a"))]);
    rig.up();
    rig.wait_annotation("an assignment does not wait", has("lastKnownGood", &first));
    let edited = rig.put("a", &configuration("maxPods: 43"));
    let said = rig.wait_condition("Unknown", "Scheduled");
    assert!(said.starts_with("Takes effect at 20") && said.contains(&edited.0), "{said}");
    let status = rig.status();
    assert_eq!(status["scheduled"]["source"]["configMap"]["resourceVersion"], edited.1, "{status}");
    assert_eq!(rig.last_config()["maxPods"], 42);
    // A bad edit is refused everywhere, while it has cost nothing.
    let bad = rig.put("a", &configuration("maxPods: -1"));
    rig.wait_annotation("rejected", has("assigned", &bad));
    rig.wait_condition("False", "Rejected");
    // What somebody assigns by name takes effect at once.
    let other = rig.put("b", &configuration("maxPods: 44"));
    rig.label(&[("name", Some("b"))]);
    rig.wait_annotation("the assignment", has("active", &other));
    rig.wait_running(44);
    assert_eq!(rig.starts(), 3);
}

#[test]
fn its_start_comes() {
    let mut rig = Rig::modern();
    rig.option("--spread", "3s");
    rig.option("--spread-assignment", "3s");
    let first = rig.put("a", &configuration("maxPods: 42"));
    rig.label(&[("name", Some("a"))]);
    rig.up();
    rig.wait_annotation("an assignment, in time", has("lastKnownGood", &first));
    let edited = rig.put("a", &configuration("maxPods: 43"));
    rig.wait_annotation("an edit, in time", has("lastKnownGood", &edited));
    // Equal content costs no restart, and so need not wait.
    rig.option("--spread", "100h");
    rig.stop();
    rig.up();
    let labelled = rig.server.label_config_map(NAMESPACE, "a", "x", "y");
    rig.wait_annotation("adopted", has("active", &labelled));
    rig.stop();
    assert_eq!(rig.starts(), 4);
}
