//! An API server that gives other bytes under a uid and resourceVersion that the node knows: nobody believes it, over restarts
//! and in a trial's time too. What runs and what is last known good are untouched, and it is told.

use serde_json::{Value, json};
use testkit::api_server::{Answer, Fault, FaultKind, Then, Verb};
use testkit::rig::{DOWNLOAD, NAMESPACE, NODE, Rig, Version, configuration, eventually, is};

/// Whoever asks for ConfigMaps gets this one, and hears nothing more.
pub fn lie(rig: &Rig, map: &Value) {
    let version = &map["metadata"]["resourceVersion"];
    let list = json!({"metadata": {"resourceVersion": version}, "items": [map]}).to_string();
    let event = json!({"type": "MODIFIED", "object": map}).to_string() + "\n";
    let answer = |text: String, then| FaultKind::Answer(Answer::new(200, text, then));
    let faults = rig.server.faults();
    faults.clear();
    faults.push(Fault::new(Verb::Get, "configmaps", answer(map.to_string(), Then::End)));
    faults.push(Fault::new(Verb::List, "configmaps", answer(list, Then::End)));
    faults.push(Fault::new(Verb::Watch, "configmaps", answer(event, Then::Silence)));
    rig.server.end_watches();
}

/// The ConfigMap as this version, with other data.
pub fn forged(rig: &Rig, name: &str, version: &Version, data: &[(&str, &str)]) -> Value {
    let mut map = rig.server.config_map(NAMESPACE, name);
    assert_eq!(map["metadata"]["uid"], version.0.as_str());
    map["metadata"]["resourceVersion"] = version.1.as_str().into();
    map["data"] = data.iter().map(|(key, text)| ((*key).to_owned(), Value::from(*text))).collect();
    map
}

/// It is told of, with what it is about and what to do; nothing else has changed.
pub fn is_told(rig: &Rig, good: &Version, starts: usize, what: &str) {
    let told = |text: &str| {
        [good.0.as_str(), good.1.as_str(), "configmaps/a", "write the ConfigMap anew"]
            .iter()
            .all(|part| text.contains(part))
    };
    rig.wait_status(what, |status| told(status["errorDetail"].as_str().unwrap_or_default()));
    rig.wait_config(what, |config| config["error"].as_str() == Some(DOWNLOAD));
    assert!(told(&rig.wait_event("KubeletConfigRejected", good)), "{what}");
    let status = rig.status();
    assert!(is(&status, "lastKnownGood", good) && is(&status, "active", good), "{what}: {status}");
    assert_eq!((rig.starts(), &rig.last_config()["maxPods"]), (starts, &json!(42)), "{what}");
    let checkpoint = rig.at("dynamic/store/checkpoints").join(&good.0).join(&good.1).join("kubelet");
    assert_eq!(std::fs::read_to_string(checkpoint).unwrap(), configuration("maxPods: 42"), "{what}");
}

fn truth(rig: &mut Rig, good: &Version) {
    rig.server.faults().clear();
    rig.server.restart();
    rig.wait_config("the truth again", |config| config["error"].is_null() && is(config, "active", good));
    rig.prove("a", &configuration("maxPods: 43"));
}

#[test]
fn other_bytes_of_last_known_good_are_refused_and_told() {
    let other = configuration("maxPods: 1");
    let flags = [("kubelet", configuration("maxPods: 42")), ("kubelet.flags", "--v=2".to_owned())];
    let flags: Vec<(&str, &str)> = flags.iter().map(|(key, text)| (*key, text.as_str())).collect();
    for (what, data) in [
        ("other fields", vec![("kubelet", other.as_str())]),
        ("garbage", vec![("kubelet", "\u{1}not: [yaml")]),
        ("nothing", vec![]),
        ("flags beside it", flags),
    ] {
        let mut rig = Rig::new().running();
        let good = rig.prove("a", &configuration("maxPods: 42"));
        let forged = forged(&rig, "a", &good, &data);
        let starts = rig.starts();
        lie(&rig, &forged);
        is_told(&rig, &good, starts, what);
        // The next supervisor hears nothing but the lie.
        rig.restart();
        is_told(&rig, &good, starts + 1, what);
        rig.kill();
        rig.up();
        is_told(&rig, &good, starts + 2, what);
        truth(&mut rig, &good);
    }
}

/// An annotation is no byte of the data, and decides as much.
#[test]
fn other_annotations_of_last_known_good_are_refused_too() {
    let mut rig = Rig::new().running();
    let good = rig.prove("a", &configuration("maxPods: 42"));
    let mut forged = forged(&rig, "a", &good, &[("kubelet", &configuration("maxPods: 42"))]);
    forged["metadata"]["annotations"] = json!({"kubelet-supervisor.io/acknowledge": "all"});
    let starts = rig.starts();
    lie(&rig, &forged);
    is_told(&rig, &good, starts, "acknowledged");
    rig.restart();
    is_told(&rig, &good, starts + 1, "acknowledged");
    truth(&mut rig, &good);
}

/// What is on trial is judged by the bytes that it began with.
#[test]
fn other_bytes_in_a_trials_time_change_nothing() {
    let mut rig = Rig::with(testkit::kubelet::Style::V1_20, "4s");
    rig.up();
    let good = rig.apply("a", &configuration("maxPods: 42"));
    let forged = forged(&rig, "a", &good, &[("kubelet", &configuration("maxPods: 1"))]);
    lie(&rig, &forged);
    let starts = rig.starts();
    rig.restart();
    rig.wait_status("it is proven all the same", |status| is(status, "lastKnownGood", &good));
    is_told(&rig, &good, starts + 1, "on trial");
    truth(&mut rig, &good);
}

/// A node that lost its checkpoints asks for them again: what it gets must be what it had.
#[test]
fn a_store_that_was_wiped_takes_no_other_bytes() {
    for lost in [&["store/checkpoints"][..], &["store/checkpoints", "supervisor/seals"]] {
        let mut rig = Rig::new().running();
        let good = rig.prove("a", &configuration("maxPods: 42"));
        rig.stop();
        for place in lost {
            std::fs::remove_dir_all(rig.at("dynamic").join(place)).unwrap();
        }
        let forged = forged(&rig, "a", &good, &[("kubelet", &configuration("maxPods: 1"))]);
        lie(&rig, &forged);
        rig.up();
        rig.wait_config("it is told", |config| config["error"].as_str() == Some(DOWNLOAD));
        assert_eq!(rig.last_config()["maxPods"], 42, "what was proven runs: {lost:?}");
        assert!(is(&rig.status(), "lastKnownGood", &good));
        truth(&mut rig, &good);
    }
}

/// Whoever edits a checkpoint on the disk is root, or a fault: the true bytes take its place again.
#[test]
fn an_edited_checkpoint_is_mended_by_the_true_bytes_alone() {
    for also_the_seal in [false, true] {
        let mut rig = Rig::new().running();
        let good = rig.prove("a", &configuration("maxPods: 42"));
        rig.stop();
        let checkpoint = rig.at("dynamic/store/checkpoints").join(&good.0).join(&good.1).join("kubelet");
        std::fs::write(&checkpoint, configuration("maxPods: 7")).unwrap();
        if also_the_seal {
            std::fs::remove_dir_all(rig.at("dynamic/supervisor/seals")).unwrap();
        }
        rig.up();
        eventually("it is as it was", || {
            (std::fs::read_to_string(&checkpoint).ok()? == configuration("maxPods: 42")).then_some(())
        });
        assert_eq!(rig.last_config()["maxPods"], 42);
        rig.prove("a", &configuration("maxPods: 43"));
    }
}

/// A version that is assigned once more is the one that it was.
#[test]
fn an_earlier_version_is_not_taken_up_with_other_bytes() {
    let rig = Rig::new().running();
    let first = rig.prove("b", &configuration("maxPods: 41"));
    let good = rig.prove("a", &configuration("maxPods: 42"));
    let forged = forged(&rig, "b", &first, &[("kubelet", &configuration("maxPods: 1"))]);
    let starts = rig.starts();
    lie(&rig, &forged);
    rig.server.assign(NODE, NAMESPACE, "b", "kubelet");
    rig.wait_config("it is told", |config| config["error"].as_str() == Some(DOWNLOAD));
    rig.wait_event("KubeletConfigRejected", &first);
    assert!(is(&rig.status(), "lastKnownGood", &good));
    assert_eq!((rig.starts(), &rig.last_config()["maxPods"]), (starts, &json!(42)));
}
