//! `kubectl kubelet-config doctor` on a real API server: what it asks for by dry runs, reviews and impersonation.

use std::process::Command;

use serde_json::{Value, json};

use crate::assignment::Carrier;
use crate::carriers;
use crate::supervisor::Case;

/// Exit code and the JSON it prints.
fn doctor(case: &Case) -> (i32, Value) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kubectl-kubelet_config"));
    command.args(["doctor", "-o", "json", "-n", case.carrier.namespace()]).env("KUBECONFIG", case.var("KUBECONFIG"));
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let report = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {output:#?}"));
    (output.status.code().unwrap(), report)
}

fn checks(report: &Value) -> Vec<&str> {
    report["findings"].as_array().unwrap().iter().map(|finding| finding["check"].as_str().unwrap()).collect()
}

pub fn doctor_finds(case: &Case) {
    let _supervisor = case.supervisor();
    let map = case.good(&case.id("map"), "maxPods: 42");
    case.assign(&map);
    let source = map.source();
    case.await_config(&source, &source, &source, "");
    case.await_node_ready();
    let node = case.ask("GET", &case.node_path(), None);

    // What its supervisor is, and that no flag wins over its configuration, it tells itself.
    let about = node["metadata"]["annotations"]["kubelet-supervisor.io/supervisor"].as_str().unwrap_or_default();
    let about: Value = serde_json::from_str(about).unwrap_or_else(|error| panic!("{error}: {node:#}"));
    assert_eq!(about["version"], env!("CARGO_PKG_VERSION"));

    // Well: the carrier told by a dry run, the labels guarded, the node allowed to read.
    let (code, report) = doctor(case);
    assert_eq!((code, &report["findings"], &report["couldNotLook"]), (0, &json!([]), &json!([])), "{report:#}");
    let carrier = if case.carrier == Carrier::Native { "spec.configSource" } else { "labels" };
    assert_eq!(report["carrier"], carrier);
    let after = case.ask("GET", &case.node_path(), None);
    assert_eq!((&node["spec"], &node["metadata"]["labels"]), (&after["spec"], &after["metadata"]["labels"]));

    if case.carrier == Carrier::Labels {
        case.kubectl(&["-n", "kubelet-config", "delete", "roles,rolebindings", "--all"]);
        let (code, report) = doctor(case);
        carriers::grant(case.cluster);
        assert_eq!((code, checks(&report)), (1, vec!["nodes-may-not-read"]), "{report:#}");
        // What it says is what mends it, in a namespace of its own.
        let mend = &report["findings"][0]["mend"];
        assert!(mend[0].as_str().unwrap().contains(&format!("--resource-name={}", map.name)), "{mend}");
    }
    case.delete_map(&map);
    let (code, report) = doctor(case);
    assert_eq!(code, 1);
    assert!(checks(&report).contains(&"no-config-map"), "{report:#}");
    case.reset();
    case.await_config(&Value::Null, &Value::Null, &Value::Null, "");
}
