//! `docs/usage/tutorial.md`, as written: all its boxes marked `sh` as one script.

use std::path::Path;
use std::process::Command;
use testkit::built::program;

use serde_json::{Value, json};

use crate::cluster::run;
use crate::supervisor::Case;
use crate::versions;

/// What is in the boxes marked `sh`.
pub fn boxes(text: &str) -> Vec<&str> {
    text.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect()
}

fn script() -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/usage/tutorial.md");
    let text = std::fs::read_to_string(file).unwrap();
    let boxes = boxes(&text);
    assert!(boxes.len() >= 10, "{}", boxes.len());
    boxes.concat()
}

pub fn as_written(case: &Case) {
    let supervisor = case.supervisor();
    case.await_configz("eventRecordQPS", &versions::default_of("eventRecordQPS"));
    case.await_node_ready();
    let work = case.cluster.dir.join("plugin-tutorial");
    std::fs::create_dir_all(&work).unwrap();
    let _ = std::fs::remove_file(work.join("kubectl"));
    std::os::unix::fs::symlink(case.var("KUBECTL"), work.join("kubectl")).unwrap();
    // kubectl finds the plugin in the PATH.
    let plugin = program("kubectl-kubelet_config");
    let plugin = plugin.parent().unwrap();
    let path = format!("{}:{}:{}", work.display(), plugin.display(), std::env::var("PATH").unwrap());
    let mut command = Command::new("timeout");
    command.args(["200", "bash", "-euo", "pipefail", "-c", &script()]).current_dir(&work).envs(case.vars());
    let node = case.node_path();
    let said = run(command.env("PATH", &path).env("NODE", node.rsplit('/').next().unwrap())).unwrap();
    println!("{said}");

    // A change, a refusal that cost nothing, the way back to what runs, an overlay, a reset.
    for words in ["eventRecordQPS", "configmap/my-node-config-", "refused", "proven", "KubeletConfigProven", "local"] {
        assert!(said.contains(words), "{words:?} in {said}");
    }
    case.await_config(&Value::Null, &Value::Null, &Value::Null, "");
    case.await_configz("eventRecordQPS", &versions::default_of("eventRecordQPS"));
    supervisor.await_status(&[("/kubelet/restarts", json!(3)), ("/error", json!(""))]);
}
