//! What is odd is left out, and what is too long is cut.

use super::*;
use serde_json::json;

fn node(node: Value) -> NodeView {
    serde_json::from_value(node).unwrap()
}

/// As a v1.20.2 kubelet fills it in, shortened.
#[test]
fn a_node_as_a_kubelet_reports_it() {
    let node = node(json!({
        "metadata": {"name": "n1", "annotations": {"kubelet-supervisor.io/retry": "222", "other": "x"}, "labels": {"a": "b"}},
        "status": {
            "capacity": {"cpu": "2", "memory": "8010444Ki", "pods": "110", "odd": 7},
            "allocatable": {"cpu": "1900m"},
            "conditions": [
                {"type": "MemoryPressure", "status": "False", "lastHeartbeatTime": "2026-01-01T00:00:00Z"},
                {"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-01T00:00:01Z",
                 "reason": "KubeletReady", "message": "kubelet is posting ready status"}
            ],
            "images": [{"names": ["a"], "sizeBytes": 1}]
        }
    }));
    let summary = node_readiness(&node).unwrap();
    assert!(summary.ready);
    assert_eq!(summary.heartbeat, "2026-01-01T00:00:01Z");
    assert_eq!(summary.message, "KubeletReady: kubelet is posting ready status");
    assert!(summary.pressure.is_empty());
    let summary = node_summary(&node);
    assert_eq!((summary.name.as_str(), summary.capacity.len(), summary.allocatable.len()), ("n1", 3, 1));
    assert_eq!(summary.labels.unwrap()["a"], "b");
    assert_eq!(node_annotations(&node), Input::NodeAnnotations { retry: Some("222".to_owned()), confirm: None });
    assert_eq!(assignment(&node, "ns"), Assignment::Local);
}

#[test]
fn pressure_by_conditions_that_are_true() {
    let of = |memory: &str, disk: &str, pid: &str| {
        let condition = |kind: &str, status: &str| json!({"type": kind, "status": status});
        let conditions = [("MemoryPressure", memory), ("DiskPressure", disk), ("PIDPressure", pid), ("Ready", "True")];
        let conditions = conditions.map(|(kind, status)| condition(kind, status));
        let found = node_readiness(&node(json!({"metadata": {}, "status": {"conditions": conditions}})));
        found.unwrap().pressure.into_iter().collect::<Vec<_>>()
    };
    assert_eq!(of("True", "False", "True"), [NodePressure::Memory, NodePressure::Pid]);
    assert_eq!(of("Unknown", "True", "x"), [NodePressure::Disk]);
}

#[test]
fn config_source_wins_over_labels() {
    let label = |part: &str| format!("{}{part}", assignment::LABELS);
    let reference = |namespace: &str, name: &str| {
        Assignment::Map(ConfigMapRef {
            namespace: namespace.into(),
            name: name.into(),
            kubelet_config_key: "kubelet".into(),
        })
    };
    let metadata = json!({"name": "n1", "labels": {label("name"): "a"}});
    assert_eq!(assignment(&node(json!({"metadata": metadata})), "ns"), reference("ns", "a"));
    let source = json!({"configMap": {"namespace": "n", "name": "b", "kubeletConfigKey": "kubelet"}});
    let both = node(json!({"metadata": metadata, "spec": {"configSource": source}}));
    assert_eq!(assignment(&both, "ns"), reference("n", "b"));
    let nil = node(json!({"metadata": metadata, "spec": {"configSource": null}}));
    assert_eq!(assignment(&nil, "ns"), reference("ns", "a"), "null is absent");
}

#[test]
fn a_malformed_source_is_not_taken_for_none() {
    for map in [json!({}), json!([]), json!("x"), json!({"namespace": "n", "name": 7, "kubeletConfigKey": "k"})] {
        let node = node(json!({"metadata": {}, "spec": {"configSource": {"configMap": map}}}));
        let Assignment::Invalid(why) = assignment(&node, "ns") else { panic!("{map}") };
        assert!(why.contains("spec.configSource.configMap"), "{why}");
    }
    let nil = node(json!({"metadata": {}, "spec": {"configSource": {"configMap": null}}}));
    assert_eq!(assignment(&nil, "ns"), Assignment::AllNil);
}

#[test]
fn odd_fields_fail_nothing() {
    for status in [
        json!({}),
        json!({"conditions": null, "capacity": null}),
        json!({"conditions": "x", "capacity": []}),
        json!({"conditions": [1, {}, {"type": 3}], "config": 7}),
    ] {
        let node = node(json!({"metadata": {"name": "n1"}, "spec": {"configSource": 5}, "status": status}));
        assert_eq!(node_readiness(&node), None);
        assert!(node_summary(&node).capacity.is_empty());
        assert_eq!(assignment(&node, "ns"), Assignment::AllNil);
    }
    let node = node(
        json!({"metadata": {}, "status": {"conditions": [{"type": "Ready", "status": "Unknown", "lastHeartbeatTime": 1}]}}),
    );
    assert_eq!(node_readiness(&node), Some(NodeReadiness::default()));
}

fn refusal(code: u16) -> Result<LeaseView, Error> {
    let status: kube::core::Status = serde_json::from_value(json!({"code": code, "message": "scripted"})).unwrap();
    Err(Error::Api(status.boxed()))
}

#[test]
fn only_an_answer_about_the_lease_counts() {
    let lease = |spec: Value| Ok(serde_json::from_value(json!({"metadata": {"name": "n1"}, "spec": spec})).unwrap());
    let time = "2026-01-01T00:00:01.123456Z";
    assert_eq!(lease_observation(lease(json!({"renewTime": time}))), LeaseObservation::Renewed(time.to_owned()));
    assert_eq!(lease_observation(lease(json!({}))), LeaseObservation::Absent);
    assert_eq!(lease_observation(lease(json!({"renewTime": null}))), LeaseObservation::Absent);
    assert_eq!(lease_observation(lease(Value::Null)), LeaseObservation::Absent);
    for code in [403, 404] {
        assert_eq!(lease_observation(refusal(code)), LeaseObservation::Absent, "{code}");
    }
    for code in [408, 429, 500, 503] {
        assert_eq!(lease_observation(refusal(code)), LeaseObservation::Busy("scripted".into()), "{code}");
    }
    assert!(matches!(lease_observation(refusal(401)), LeaseObservation::Unreachable(why) if why.contains("scripted")));
}

fn requests(spec: &Value) -> (u64, u64) {
    let pod = json!({"metadata": {"name": "p", "namespace": "d", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": spec, "status": {"phase": "Failed", "reason": "OutOfpods"}});
    let summary = pod_summary(serde_json::from_value(pod).unwrap());
    assert_eq!((summary.name.as_str(), summary.created.as_str()), ("d/p", "2026-01-01T00:00:00Z"));
    assert_eq!((summary.phase.as_str(), summary.reason.as_str(), summary.is_live()), ("Failed", "OutOfpods", false));
    let amount = |resource: &str| summary.requests.get(resource).copied().unwrap_or_default();
    (amount("cpu"), amount("memory"))
}

#[test]
fn what_a_pod_asks_for() {
    let asks = |cpu: &str, memory: &str| json!({"name": "c", "resources": {"requests": {"cpu": cpu, "memory": memory}, "limits": {"cpu": "9"}}});
    let containers = json!([asks("250m", "64Mi"), asks("1", "1Mi"), {"name": "none"}]);
    assert_eq!(requests(&json!({"containers": containers})), (1250, 65 << 20));
    let init = json!([asks("2", "1Mi"), asks("100m", "1Mi")]);
    assert_eq!(requests(&json!({"containers": containers, "initContainers": init})), (2000, 65 << 20));
    let mut sidecar = asks("500m", "1Mi");
    sidecar["restartPolicy"] = json!("Always");
    let init = json!([sidecar, asks("2", "1Mi")]);
    assert_eq!(requests(&json!({"containers": containers, "initContainers": init})), (2500, 66 << 20));
    let whole = json!({"containers": containers, "resources": {"requests": {"cpu": "3"}}, "overhead": {"cpu": "10m"}});
    assert_eq!(requests(&whole), (3010, 65 << 20));
    assert_eq!(requests(&json!({})), (0, 0));
    assert_eq!(requests(&json!({"containers": [{"resources": {"requests": {"cpu": 1, "memory": "much"}}}]})), (0, 0));
}

#[test]
fn a_config_map_with_its_wishes() {
    let map = json!({"metadata": {"name": "m", "namespace": "n", "uid": "u", "resourceVersion": "7",
        "annotations": {"kubelet-supervisor.io/acknowledge": "reboot", "other": "x"}}, "data": {"kubelet": "x"}, "binaryData": {"a": "AA=="}});
    let payload = payload(serde_json::from_value(map).unwrap());
    assert_eq!((payload.uid.as_str(), payload.resource_version.as_str(), payload.data.len()), ("u", "7", 1));
    assert_eq!(
        payload.annotations,
        ConfigAnnotations { acknowledge: Some("reboot".to_owned()), ..ConfigAnnotations::default() }
    );
}

/// What the policy lets pass as root's own is named by a uid that no API server gives.
#[test]
fn no_config_map_passes_for_files_of_the_node() {
    let fault = |uid: &str| {
        let map =
            json!({"metadata": {"namespace": "local", "name": "local-files", "uid": uid, "resourceVersion": "7"}});
        fault_of(&serde_json::from_value(map).unwrap())
    };
    for uid in ["local-files", "../x", ""] {
        let text = format!("ConfigMap local/local-files: metadata.uid {uid:?} is not a uid; not taken up");
        assert_eq!(fault(uid), Some(text));
    }
    assert_eq!(fault("5eed0000-0000-4000-8000-000000000002"), None);
}
