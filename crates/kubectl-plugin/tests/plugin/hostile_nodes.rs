//! Nodes that lie to whoever looks at them.

use serde_json::{Value, json};

use super::read::configz;
use super::status::{from_now, version};
use super::{Bench, NODE};

const LABELS: &str = "kubelet-config.node-restriction.kubernetes.io/";
const STATUS: &str = "kubelet-supervisor.io/config-status";

/// What would set a terminal's title and clear its screen, 90 KB of it.
fn lies() -> String {
    "\u{1b}]0;lies\u{7}\u{1b}[2J\u{9b}31m\u{202e}".repeat(6_000)
}

/// Each text that a node may write holds lies.
fn lying_node(bench: &Bench) {
    let said =
        json!({"assigned": version("pool-a", &lies()), "error": lies(), "trialEnds": lies(), "confirmBy": lies()});
    let about = json!({"version": lies(), "shadowedByFlags": vec![format!("{} (--{})", lies(), lies()); 40]});
    let condition = json!({"type": "KubeletConfigOk", "status": "False", "reason": lies(), "message": lies(),
        "lastHeartbeatTime": from_now(-5), "lastTransitionTime": from_now(-5)});
    let ready = json!({"type": "Ready", "status": "True", "lastHeartbeatTime": from_now(-5)});
    bench.server.patch_node(
        NODE,
        json!({
            "metadata": {
                "labels": {format!("{LABELS}name"): "pool-a", format!("{LABELS}namespace"): "kubelet-config"},
                "annotations": {STATUS: said.to_string(), "kubelet-supervisor.io/supervisor": about.to_string()},
            },
            "status": {"nodeInfo": {"kubeletVersion": lies()}, "conditions": [ready, condition]},
        }),
    );
    bench.server.set_configz(NODE, configz());
    bench.server.put_event(
        "lies",
        json!({"involvedObject": {"kind": "Node", "name": NODE}, "reason": format!("KubeletConfig{}", lies()),
            "message": lies(), "type": "Warning", "firstTimestamp": lies(), "lastTimestamp": lies(), "count": 1}),
    );
    bench.server.put_config_map("kubelet-config", "pool-a", &[("kubelet", "maxPods: 1")]);
}

#[test]
fn nothing_that_a_node_says_is_long_or_steers_a_terminal() {
    let bench = Bench::new();
    lying_node(&bench);
    for command in [
        "status",
        "status -o wide",
        "status -o json",
        "status -o yaml",
        "explain n1",
        "history n1",
        "doctor",
        "history n1 -o json",
        "doctor -o json",
        "retry n1",
        "confirm n1",
        "rollback n1",
        "diff n1 cm/pool-a",
    ] {
        let args: Vec<&str> = command.split(' ').collect();
        let ran = bench.run(&args);
        for text in [&ran.out, &ran.err] {
            let steers = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
            assert!(!text.contains(steers), "{command}: {text:?}");
            // doctor lists what flags win over, which is a list of texts.
            assert!(text.len() < 48 * 1024, "{command}: {} bytes", text.len());
        }
    }
    let rows: Value = bench.run(&["status", "-o", "json"]).json();
    assert!(rows[0]["message"].as_str().unwrap().len() <= 512, "{rows}");
}
