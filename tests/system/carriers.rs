//! Where an assignment comes from when it is not `spec.configSource`, where the status goes when
//! `status.config` is dropped, and when a change that reaches many nodes begins on this one.

use serde_json::{Value, json};

use testkit::api_server::{FaultKind, Verb};
use testkit::rig::{NODE, Rig, Version, configuration, is};

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
    rig.label(&[("name", Some("Pool_A"))]);
    let said = rig.wait_condition("False", "SyncFailed");
    assert!(said.contains("kubelet-config.node-restriction.kubernetes.io/name: \"Pool_A\" cannot be"), "{said}");
    rig.wait_running(43);
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
