use super::*;
use serde_json::json;

const SOURCE: &str = "LastKnownGood";

fn node(name: &str, map: &str, reason: &str, ready: &str) -> PoolNode {
    let source = |map: &str| json!({"configMap": {"namespace": "ns", "name": map, "kubeletConfigKey": "kubelet", "uid": "u", "resourceVersion": "1"}});
    let active = if reason == SOURCE || reason == "OnTrial" { map } else { "old" };
    let good = if reason == SOURCE { map } else { "old" };
    let error = if reason == "RolledBack" { "failed to run" } else { "" };
    let said =
        json!({"assigned": source(map), "active": source(active), "lastKnownGood": source(good), "error": error});
    let said = said.to_string();
    let label = |part: &str| format!("{}{part}", kubelet_config::assignment::LABELS);
    let status = match reason {
        SOURCE => "True",
        "OnTrial" => "Unknown",
        _ => "False",
    };
    let node = json!({
        "metadata": {"name": name, "labels": {label("name"): map}, "annotations": {"kubelet-supervisor.io/config-status": said}},
        "status": {"conditions": [{"type": "Ready", "status": ready}, {"type": "KubeletConfigOk", "status": status, "reason": reason,
            "message": format!("{reason}: so")}]},
    });
    PoolNode::from_node(&node, "ns")
}

#[test]
fn those_that_are_not_done_and_why() {
    let nodes = [
        node("done", "b", SOURCE, "True"),
        node("trial", "b", "OnTrial", "True"),
        node("bad", "b", "RolledBack", "True"),
        node("old", "a", SOURCE, "True"),
        node("away", "a", SOURCE, "False"),
    ];
    let object = json!({
        "apiVersion": "kubelet-supervisor.io/v1alpha1", "kind": "KubeletConfigPool", "metadata": {"name": "p"},
        "spec": {"nodeSelector": {}, "configMap": {"name": "b"}},
    });
    let pool: KubeletConfigPool = serde_json::from_value(object).unwrap();
    let found = remaining(&pool, "p", "ns", &nodes);
    let found: Vec<(&str, &str, &str)> =
        found.iter().map(|it| (it.node.as_str(), it.state, it.message.as_str())).collect();
    assert_eq!(
        found,
        [
            ("trial", "updating", "OnTrial: so"),
            ("bad", "failed", "RolledBack: so"),
            ("old", "waiting", ""),
            ("away", "not ready", "the Node is NotReady"),
        ]
    );
    assert_eq!(refusing(&update(&pool, "p", "ns").unwrap(), &pool, &nodes), ["bad"]);
}
