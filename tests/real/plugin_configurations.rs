//! `kubectl kubelet-config` capture, push, diff, explain and history, on a node that lives.

use std::path::Path;
use std::process::{Command, Stdio};

use kubelet_supervisor::core::flags::KubeletArgs;
use serde_json::{Value, json};

use crate::supervisor::Case;

const PLUGIN: &str = env!("CARGO_BIN_EXE_kubectl-kubelet_config");

/// Exit code and standard output; what it says beside goes to the log of the suite.
fn plugin(case: &Case, dir: &Path, args: &[&str]) -> (i32, String) {
    let namespace = case.carrier.namespace();
    let output = Command::new(PLUGIN)
        .args(["-n", namespace])
        .args(args)
        .current_dir(dir)
        .env("KUBECONFIG", case.var("KUBECONFIG"))
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap())
}

fn json_of((code, text): (i32, String)) -> (i32, Value) {
    (code, serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {code} {text}")))
}

fn fields(changes: &Value) -> Vec<&str> {
    changes["changes"].as_array().unwrap().iter().map(|change| change["field"].as_str().unwrap()).collect()
}

/// From a captured configuration to one that runs, and what can be said of it on the way.
pub fn from_capture_to_history(case: &Case) {
    let supervisor = case.supervisor();
    case.await_node_ready();
    // What the command line says stands below every ConfigMap; beside the node's own configuration nobody can tell.
    let flags = KubeletArgs::parse(&case.kubelet_args()).overlay(&json!({}));
    let is_flag = |field: &str| flags.get(field.split('.').next().unwrap_or_default()).is_some();
    let dir = tempfile::tempdir().unwrap();
    let node = case.var("NODE_NAME").to_owned();
    let plugin = |args: &[&str]| plugin(case, dir.path(), args);

    case.say("capture, and it is what runs");
    assert_eq!(plugin(&["capture", &node, "-o", "now.yaml"]).0, 0);
    let (code, same) = json_of(plugin(&["diff", &node, "now.yaml", "-o", "json"]));
    assert_eq!((code, &same["changes"]), (0, &json!([])), "{same:#}");

    case.say("the file of the node, pushed under the name kubectl gives it");
    let text = case.payload("maxPods: 42");
    std::fs::write(dir.path().join("next.yaml"), &text).unwrap();
    let base = case.id("next");
    let (code, said) = plugin(&["push", "next.yaml", "--name", &base, "--kubelet", "1.20"]);
    let kubectl = ["create", "configmap", &base, &format!("--from-file=kubelet={}/next.yaml", dir.path().display())];
    let kubectl = case.kubectl(&[kubectl.as_slice(), &["--append-hash", "--dry-run=client", "-o", "name"]].concat());
    assert_eq!((code, said), (0, format!("{} created\n", kubectl.trim())));
    let name = kubectl.trim().trim_start_matches("configmap/").to_owned();
    assert_eq!(plugin(&["push", "next.yaml", "--name", &base]).1, format!("configmap/{name} unchanged\n"));

    case.say("what it would change, against the node's own configuration");
    let place = format!("{}/{name}", case.carrier.namespace());
    let (code, changes) = json_of(plugin(&["diff", &node, &place, "-o", "json"]));
    let mut fields = fields(&changes);
    fields.retain(|field| !is_flag(field));
    assert_eq!((code, fields), (1, vec!["maxPods"]), "{changes:#}");

    case.say("it runs, and each value tells where it comes from");
    let object = case.ask("GET", &format!("/api/v1/namespaces/{}/configmaps/{name}", case.carrier.namespace()), None);
    assert_eq!(object["immutable"], true);
    let map = case.get_map(&name);
    case.assign(&map);
    case.await_config(&map.source(), &map.source(), &map.source(), "");
    case.await_configz("maxPods", &json!(42));
    let (code, explained) = json_of(plugin(&["explain", &node, "-o", "json"]));
    assert_eq!((code, &explained["configMap"]), (0, &json!(place)));
    let from = |field: &str| {
        let origins = explained["fields"].as_array().unwrap();
        let found = origins.iter().find(|origin| origin["field"] == field);
        found.unwrap_or_else(|| panic!("{field}: {explained:#}"))["from"].clone()
    };
    assert_eq!(from("maxPods"), "configMap");
    assert_eq!(from("nodeStatusMaxImages"), "default");
    // Nothing is laid at a flag's door that is no flag's: the defaults are this kubelet's.
    let origins = explained["fields"].as_array().unwrap();
    for origin in origins.iter().filter(|origin| origin["from"] == "flagOrDropIn") {
        assert!(is_flag(origin["field"].as_str().unwrap()), "{origin:#}; flags {flags:#}");
    }
    // The suite's kubelets have this gate by flag.
    assert_eq!(from("featureGates.DevicePlugins"), "node");
    // What runs is what was pushed, but for what flags hold.
    let (_, changes) = json_of(plugin(&["diff", &node, &place, "-o", "json"]));
    let held = changes["changes"].as_array().unwrap().iter().all(|change| change["heldByFlagOrDropIn"] == true);
    assert!(held && changes["podsLost"] == json!([]), "{changes:#}");

    case.say("and the API server's events tell how it came about");
    let (code, events) = json_of(plugin(&["history", &node, "-o", "json"]));
    let reasons: Vec<&str> = events.as_array().unwrap().iter().map(|event| event["reason"].as_str().unwrap()).collect();
    assert_eq!(code, 0);
    for reason in ["KubeletConfigChanged", "KubeletConfigProven"] {
        assert!(reasons.contains(&reason), "{events:#}");
    }
    let (code, said) = plugin(&["diff", &node, "cm/is-not-there"]);
    assert_eq!((code, said.as_str()), (2, ""));
    drop(supervisor);
}
