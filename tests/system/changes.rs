//! A change's life when all goes well, and what does not cost a restart.

use serde_json::json;

use testkit::rig::{LOAD, NAMESPACE, NODE, Rig, SOON, configuration, is};

#[test]
fn a_change_is_applied_and_proves_itself() {
    let rig = Rig::new().running();
    let version = rig.apply("a", &configuration("maxPods: 42"));
    assert_eq!(rig.last_config()["maxPods"], 42);
    assert_eq!(
        rig.wait_event("KubeletConfigChanged", &version),
        format!(
            "Kubelet restarting to use /api/v1/namespaces/{NAMESPACE}/configmaps/a, UID: {}, ResourceVersion: {}, KubeletConfigKey: kubelet",
            version.0, version.1
        )
    );
    let config = rig.wait_config("proven", |config| is(config, "lastKnownGood", &version));
    let source = json!({"configMap": {"namespace": NAMESPACE, "name": "a", "kubeletConfigKey": "kubelet",
        "uid": version.0, "resourceVersion": version.1}});
    assert_eq!(config, json!({"assigned": source, "active": source, "lastKnownGood": source}));
    let proven = rig.wait_event("KubeletConfigProven", &version);
    assert!(proven.starts_with("Last known good after 1s of continuous health: "), "{proven}");
    let event = rig.server.events().remove(0);
    assert_eq!(event["involvedObject"], json!({"kind": "Node", "name": NODE, "uid": NODE}));
    assert!(event["metadata"]["namespace"] == "default" && event["type"] == "Normal", "{event:#}");

    let status = rig.status();
    assert_eq!(status["trial"]["state"], "passed");
    let kubelet = json!({"pid": rig.last_pid(), "version": "v1.20.2", "ready": true, "restarts": 1});
    assert_eq!(status["kubelet"], kubelet);
    for start in ["assigned", "active", "last_known_good"] {
        let labels = format!(
            "{{node_config_source=\"/api/v1/namespaces/{NAMESPACE}/configmaps/a\",node_config_uid=\"{}\",node_config_resource_version=\"{}\",node_config_kubelet_key=\"kubelet\"}}",
            version.0, version.1
        );
        assert_eq!(rig.metric(&format!("kubelet_node_config_{start}{labels}")), Some(1.0));
    }
    assert_eq!(rig.metric("kubelet_supervisor_kubelet_restarts_total{cause=\"config\"}"), Some(1.0));
    assert_eq!(rig.metric("kubelet_supervisor_preflight_total{result=\"valid\"}"), Some(1.0));
    assert_eq!(rig.metric("kubelet_supervisor_config_apply_duration_seconds_count"), Some(1.0));
    assert_eq!(rig.metric("kubelet_supervisor_trial_remaining_seconds"), Some(0.0));
    let checkpoint = rig.at("dynamic/store/checkpoints").join(&version.0).join(&version.1).join("kubelet");
    assert_eq!(std::fs::read_to_string(checkpoint).unwrap(), configuration("maxPods: 42"));
    assert_eq!(rig.starts(), 2);
}

#[test]
fn equal_content_is_adopted_without_a_restart() {
    let rig = Rig::new().running();
    rig.prove("a", &configuration("maxPods: 42"));
    // A label, a comment, another name, and the local configuration's own content.
    let label = rig.server.label_config_map(NAMESPACE, "a", "team", "x");
    rig.wait_config("label", |config| is(config, "active", &label) && is(config, "lastKnownGood", &label));
    rig.wait_event("KubeletConfigAdopted", &label);
    let comment = rig.put("a", &format!("# said again\n{}", configuration("maxPods: 42")));
    rig.wait_config("comment", |config| is(config, "lastKnownGood", &comment));
    let other = rig.offer("b", &configuration("maxPods: 42"));
    rig.wait_config("name", |config| is(config, "lastKnownGood", &other) && is(config, "active", &other));
    assert_eq!(rig.starts(), 2);
    assert_eq!(rig.metric("kubelet_supervisor_kubelet_restarts_total{cause=\"config\"}"), Some(1.0));
    assert_eq!(rig.reasons().iter().filter(|reason| *reason == "KubeletConfigChanged").count(), 1);
}

#[test]
fn fields_of_no_effect_are_refused_on_demand() {
    let mut rig = Rig::new();
    rig.option("--unknown-fields", "refuse");
    rig.up();
    let good = rig.prove("a", &configuration("maxPods: 42"));
    rig.wait_status("the version is known", |status| status["kubelet"]["version"] == "v1.20.2");
    let bad = rig.put("a", &configuration("maxPods: 41\nmaxPods: 43"));
    let message = rig.wait_event("KubeletConfigRejected", &bad);
    assert!(message.contains("duplicate field") && message.contains("(refused by --unknown-fields)"), "{message}");
    let config = rig.wait_error(&bad, LOAD);
    assert!(is(&config, "active", &good) && is(&config, "lastKnownGood", &good), "{config}");
    assert_eq!(rig.starts(), 2);
    // The same content, without its duplicate, is another matter.
    rig.prove("a", &configuration("maxPods: 43"));
    assert_eq!(rig.starts(), 3);
}

#[test]
fn reset_goes_back_to_the_local_configuration() {
    let rig = Rig::new().running();
    rig.prove("a", &configuration("maxPods: 42"));
    rig.server.unassign(NODE);
    rig.wait_starts(3);
    assert_eq!(rig.last_config()["maxPods"], 110);
    rig.wait_config("nothing is left", |config| {
        ["assigned", "active", "lastKnownGood", "error"].iter().all(|field| config[field].is_null())
    });
    rig.server
        .wait_event(SOON, |event| event["message"] == "Kubelet restarting to use local config")
        .unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(rig.metric("kubelet_supervisor_kubelet_restarts_total{cause=\"reset\"}"), Some(1.0));
    for name in ["assigned", "last-known-good"] {
        assert_eq!(std::fs::read_to_string(rig.at("dynamic/store/meta").join(name)).unwrap(), "", "{name}");
    }
}

#[test]
fn of_a_burst_the_last_one_wins() {
    let rig = Rig::new().running();
    let mut last = rig.offer("a", &configuration("maxPods: 1"));
    for pods in 2..=20 {
        last = rig.put("a", &configuration(&format!("maxPods: {pods}")));
    }
    rig.wait_config("the last one", |config| is(config, "lastKnownGood", &last));
    assert_eq!(rig.last_config()["maxPods"], 20);
    // The local one, at most one on the way, the last one.
    assert!(rig.starts() <= 4, "{} starts", rig.starts());
}

#[test]
fn an_assignment_that_changes_during_a_preflight_overtakes_it() {
    let rig = Rig::long_trial().running();
    rig.offer("slow", &configuration("standIn: {preflight: hang}"));
    let hangs = |all: &[serde_json::Value]| {
        all.iter().any(|entry| entry["preflight"] == true && entry["configJson"]["standIn"]["preflight"] == "hang")
    };
    rig.kubelet.wait(SOON, |all| hangs(all).then_some(())).unwrap();
    rig.apply("good", &configuration("maxPods: 42"));
    assert_eq!(rig.starts(), 2, "the one that hangs never ran");
}

#[test]
fn rejected_while_what_runs_is_unproven_falls_back_to_last_known_good() {
    let rig = Rig::long_trial().running();
    rig.apply("a", &configuration("maxPods: 1"));
    let bad = rig.put("a", &configuration("maxPods: ten"));
    rig.wait_error(&bad, LOAD);
    rig.wait_starts(3);
    assert_eq!(rig.last_config()["maxPods"], 110);
    rig.wait_config("local", |config| config["active"].is_null() && is(config, "assigned", &bad));
    // Mended, it is tried.
    let good = rig.put("a", &configuration("maxPods: 2"));
    rig.wait_error(&good, "");
    rig.wait_active(&good);
}
