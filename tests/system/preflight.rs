//! Preflight on request: an annotation of the Node asks, another answers, and the kubelet goes on.

use std::time::Duration;

use kubelet_config::preflight::{MAX_ANSWER, PreflightResult, PreflightStatus};
use serde_json::{Value, json};
use testkit::rig::{NAMESPACE, NODE, Rig, SOON, configuration, id, is};

const REQUEST: &str = "kubelet-supervisor.io/preflight";
const ANSWER: &str = "kubelet-supervisor.io/preflight-status";

fn asks(rig: &Rig, request: Option<&str>) {
    rig.server.patch_node(NODE, json!({"metadata": {"annotations": {REQUEST: request}}}));
}

/// Longer than the pause between two of them.
const PACED: Duration = Duration::from_secs(60);

fn answer(rig: &Rig, request: &str) -> PreflightStatus {
    let said = |node: &Value| PreflightStatus::from_node(node).filter(|answer| answer.answers(request));
    let node = rig.server.wait_node(NODE, PACED, |node| said(node).is_some());
    let node = node.unwrap_or_else(|error| panic!("{request}: {error}\n{}", rig.log()));
    let text = node["metadata"]["annotations"][ANSWER].as_str().unwrap();
    assert!(text.len() <= MAX_ANSWER, "{text}");
    said(&node).unwrap()
}

fn asked(rig: &Rig, request: &str) -> PreflightStatus {
    asks(rig, Some(request));
    answer(rig, request)
}

#[test]
fn each_finding_is_told_and_nothing_changes() {
    let rig = Rig::new().running();
    let good = rig.prove("good", &configuration("maxPods: 42"));
    let (starts, pid, history) = (rig.starts(), rig.last_pid(), rig.history().len());
    let config = rig.wait_config("as before", |_| true);
    let listing = |name: &str| {
        let mut names: Vec<_> =
            std::fs::read_dir(rig.at(name)).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let record = std::fs::read(rig.at("dynamic/supervisor/state.json")).unwrap();
    let configs = listing("dynamic/supervisor/configs");

    let version = rig.put("a", &configuration("maxPods: 43"));
    let exact = format!("{NAMESPACE}/a/kubelet@{}", id(&version));
    let valid = asked(&rig, &exact);
    assert_eq!((valid.result, valid.version.as_str()), (PreflightResult::Valid, id(&version).as_str()), "{valid:?}");
    assert_eq!((valid.kubelet_version.as_str(), valid.digest.len()), ("v1.20.2", 64));

    rig.put("bad", &configuration("maxPods: -1"));
    let bad = asked(&rig, &format!("{NAMESPACE}/bad"));
    assert_eq!(bad.result, PreflightResult::Invalid);
    assert!(bad.message.contains("MaxPods"), "{}", bad.message);

    rig.put("hazard", &configuration("cgroupDriver: systemd"));
    let hazard = asked(&rig, &format!("{NAMESPACE}/hazard"));
    assert_eq!((hazard.result, hazard.hazards), (PreflightResult::Hazard, vec!["reboot".to_owned()]));
    assert_eq!(asked(&rig, "no such thing").result, PreflightResult::Inconclusive);

    let unchanged = rig.wait_config("as before", |_| true);
    assert_eq!((rig.starts(), rig.last_pid(), rig.history().len()), (starts, pid, history));
    assert_eq!(unchanged, config);
    assert!(is(&unchanged, "lastKnownGood", &good));
    assert_eq!(std::fs::read(rig.at("dynamic/supervisor/state.json")).unwrap(), record);
    testkit::rig::eventually("what was judged is removed", || {
        (listing("dynamic/supervisor/configs") == configs).then_some(())
    });

    asks(&rig, None);
    let gone = rig.server.wait_node(NODE, SOON, |node| node["metadata"]["annotations"].get(ANSWER).is_none());
    gone.expect("the answer goes with the request");
}
