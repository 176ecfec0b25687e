//! A change's life when all goes well, and what does not cost a restart.

use std::time::Duration;

use serde_json::json;

use testkit::rig::{LOAD, NAMESPACE, NODE, Rig, SOON, configuration, eventually, is, killer};

#[test]
fn a_change_is_applied_and_proves_itself() {
    let mut rig = Rig::new();
    rig.up();
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
fn an_update_in_place_is_followed_and_old_checkpoints_go() {
    let mut rig = Rig::new();
    rig.up();
    let versions: Vec<_> = (1..=5).map(|pods| rig.prove("a", &configuration(&format!("maxPods: {pods}")))).collect();
    let last = versions.last().unwrap();
    let dir = rig.at("dynamic/store/checkpoints").join(&last.0);
    // What runs, and three to go back to with `rollback --to`.
    eventually("four checkpoints are left", || {
        let mut names: Vec<_> = std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        let mut kept: Vec<_> = versions[1..].iter().map(|version| version.1.clone()).collect();
        kept.sort();
        (names == kept.iter().map(String::as_str).collect::<Vec<_>>()).then_some(())
    });
    assert_eq!(rig.starts(), 6);
}

#[test]
fn equal_content_is_adopted_without_a_restart() {
    let mut rig = Rig::new();
    rig.up();
    rig.prove("a", &configuration("maxPods: 42"));
    // A label, a comment, another name, and the local configuration's own content.
    let label = rig.server.label_config_map(NAMESPACE, "a", "team", "x");
    rig.wait_config("label", |config| is(config, "active", &label) && is(config, "lastKnownGood", &label));
    rig.wait_event("KubeletConfigAdopted", &label);
    let comment = rig.put("a", &format!("# said again\n{}", configuration("maxPods: 42")));
    rig.wait_config("comment", |config| is(config, "lastKnownGood", &comment));
    let other = rig.put("b", &configuration("maxPods: 42"));
    rig.assign("b");
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
    for (fields, words) in [
        ("maxPods: 43\nevictionhard: {memory.available: 1Gi}", "evictionhard: did you mean evictionHard?"),
        ("maxPods: 43\nmaxParallelImagePulls: 3", "maxParallelImagePulls: since 1.27, this kubelet is 1.20"),
        ("maxPods: 41\nmaxPods: 43", "duplicate field in the payload, the last one wins"),
    ] {
        let bad = rig.put("a", &configuration(fields));
        let message = rig.wait_event("KubeletConfigRejected", &bad);
        assert!(message.contains(words) && message.contains("(refused by --unknown-fields)"), "{message}");
        let config = rig.wait_error(&bad, LOAD);
        assert!(is(&config, "active", &good) && is(&config, "lastKnownGood", &good), "{config}");
    }
    assert_eq!(rig.starts(), 2);
    // The same content, without its duplicate, is another matter.
    rig.prove("a", &configuration("maxPods: 43"));
    assert_eq!(rig.starts(), 3);
}

#[test]
fn the_local_configurations_own_content_is_adopted_and_reset_without_a_restart() {
    let mut rig = Rig::new();
    rig.up();
    let version = rig.put("a", &configuration("maxPods: 110"));
    rig.assign("a");
    rig.wait_config("proven", |config| is(config, "lastKnownGood", &version));
    rig.server.unassign(NODE);
    rig.wait_config("local", |config| config["active"].is_null() && config["lastKnownGood"].is_null());
    assert_eq!(rig.starts(), 1);
}

#[test]
fn reset_goes_back_to_the_local_configuration() {
    let mut rig = Rig::new();
    rig.up();
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
    let mut rig = Rig::new();
    rig.up();
    let mut last = rig.put("a", &configuration("maxPods: 1"));
    rig.assign("a");
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
    let mut rig = Rig::long_trial();
    rig.up();
    rig.put("slow", &configuration("standIn: {preflight: hang}"));
    rig.assign("slow");
    let hangs = |all: &[serde_json::Value]| {
        all.iter().any(|entry| entry["preflight"] == true && entry["configJson"]["standIn"]["preflight"] == "hang")
    };
    rig.kubelet.wait(SOON, |all| hangs(all).then_some(())).unwrap();
    rig.apply("good", &configuration("maxPods: 42"));
    assert_eq!(rig.starts(), 2, "the one that hangs never ran");
}

#[test]
fn an_assignment_that_changes_during_a_trial_begins_another() {
    let mut rig = Rig::long_trial();
    rig.up();
    rig.apply("a", &configuration("maxPods: 1"));
    rig.wait_status("trial", |status| {
        status["trial"]["state"] == "running" && status["trial"]["remainingSeconds"].as_u64() > Some(500)
    });
    let second = rig.apply("b", &configuration("maxPods: 2"));
    let config = rig.wait_active(&second);
    assert!(config["lastKnownGood"].is_null(), "{config:#}");
    assert_eq!(rig.starts(), 3);
}

#[test]
fn rejected_while_what_runs_is_unproven_falls_back_to_last_known_good() {
    let mut rig = Rig::long_trial();
    rig.up();
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

#[test]
fn healed_from_what_kills_the_kubelet_and_not_tried_again() {
    let mut rig = Rig::new();
    rig.up();
    let good = rig.prove("a", &configuration("maxPods: 42"));
    let bad = rig.put("a", &killer());
    let config = rig.wait_error(&bad, LOAD);
    assert!(is(&config, "lastKnownGood", &good), "untouched: {config:#}");
    rig.wait_config("healed", |config| is(config, "active", &good));
    rig.wait_starts(5);
    let seen: Vec<bool> =
        rig.kubelet.starts().iter().map(|s| !s["configJson"]["systemReservedCgroup"].is_null()).collect();
    assert_eq!(seen, [false, false, true, true, false], "two starts, and back");
    let message = rig.wait_event("KubeletConfigRolledBack", &bad);
    assert!(message.contains("the kubelet ended 2 times within the trial, last with exit code 255"), "{message}");
    assert_eq!(rig.metric("kubelet_supervisor_rollbacks_total{reason=\"exits\"}"), Some(1.0));
    assert_eq!(rig.metric("kubelet_node_config_error"), Some(1.0));

    // An edit that changes nothing for the kubelet changes nothing here.
    rig.wait_ready(5);
    let label = rig.server.label_config_map(NAMESPACE, "a", "team", "x");
    rig.wait_error(&label, LOAD);
    assert_eq!(rig.starts(), 5);
    // Nor does a restart of the supervisor.
    rig.stop();
    rig.up();
    assert_eq!(rig.last_config()["maxPods"], 42);
    rig.wait_error(&label, LOAD);
    assert_eq!(rig.starts(), 6);
    // Content does.
    let mended = rig.put("a", &configuration("maxPods: 43"));
    rig.wait_error(&mended, "");
    rig.wait_config("mended", |config| is(config, "lastKnownGood", &mended));
}

#[test]
fn healing_takes_about_as_long_as_the_kubelet_needs_to_die_twice() {
    let mut rig = Rig::new();
    rig.up();
    let good = rig.prove("a", &configuration("maxPods: 42"));
    rig.put("a", &killer());
    rig.wait_ready(5);
    let entries = rig.kubelet.entries();
    assert_eq!(entries.last().unwrap()["event"], "ready");
    rig.wait_active(&good);
    let took = rig.server.requests().iter().rev().find(|r| r.method == "PATCH").map(|r| r.at.elapsed());
    assert!(took.is_some_and(|took| took < Duration::from_secs(20)));
}
