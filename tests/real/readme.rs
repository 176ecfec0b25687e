//! The kubectl commands of `README.md`, as they stand there but for the Node's name and where the plugin is put.

use std::path::Path;
use std::process::Command;
use testkit::built::program;

use serde_json::{Value, json};

use crate::cluster::run;
use crate::plugin_pools::CRD;
use crate::plugin_tutorial::boxes;
use crate::supervisor::Case;
use crate::versions;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// Runs each of these lines whatever the one before said; which of them failed, and all they said.
fn walk(case: &Case, heading: &str) -> (Vec<String>, String) {
    let text = std::fs::read_to_string(Path::new(ROOT).join("README.md")).unwrap();
    let section = text.split(&format!("\n{heading}\n")).nth(1).unwrap().split("\n## ").next().unwrap().to_owned();
    let work = case.cluster.dir.join("readme");
    let bin = work.join("bin");
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let node = case.node_path();
    let lines = boxes(&section).concat();
    let lines = lines
        .replace("NODE", node.rsplit('/').next().unwrap())
        .replace("/usr/local/bin/", &format!("{}/", bin.display()));
    // What goes on in the background ends with the last line.
    let begin = "trap 'echo \"FAILED: $BASH_COMMAND\"' ERR";
    let script = format!("{begin}\n{lines}\ntrap - ERR; kill $(jobs -p) 2>/dev/null; true\n");
    let mut command = Command::new("timeout");
    command.args(["240", "bash", "-uc", &script]).current_dir(&work).envs(case.vars()).env("PATH", &path);
    let said = run(&mut command).unwrap();
    println!("{said}");
    let failed = said.lines().filter_map(|line| line.strip_prefix("FAILED: ")).map(str::to_owned).collect();
    (failed, said)
}

/// One configuration by label and back, then a pool.
pub fn as_written(case: &Case) {
    let supervisor = case.supervisor();
    let default = versions::default_of("eventRecordQPS");
    case.await_configz("eventRecordQPS", &default);
    case.await_node_ready();
    let work = case.cluster.dir.join("readme");
    std::fs::create_dir_all(work.join("bin")).unwrap();
    std::fs::create_dir_all(work.join("target/release")).unwrap();
    for (link, target) in
        [("packaging", Path::new(ROOT).join("packaging")), ("bin/kubectl", Path::new(case.var("KUBECTL")).to_owned())]
    {
        let _ = std::fs::remove_file(work.join(link));
        std::os::unix::fs::symlink(target, work.join(link)).unwrap();
    }
    // The suite's trials last seconds, and a new pool believes no Node before ten minutes.
    let plugin = program("kubectl-kubelet_config");
    let hurried =
        format!("#!/bin/sh\n[ \"$1\" != rollout ] || set -- \"$@\" --min-trial 1s\nexec {} \"$@\"\n", plugin.display());
    std::fs::write(work.join("target/release/kubectl-kubelet_config"), hurried).unwrap();
    std::fs::write(work.join("kubelet.yaml"), case.payload("eventRecordQPS: 7")).unwrap();

    let (failed, said) = walk(case, "## Assign a configuration");
    assert!(failed.is_empty() && said.contains("condition met"), "{failed:?}: {said}");
    case.await_config(&Value::Null, &Value::Null, &Value::Null, "");
    case.await_configz("eventRecordQPS", &default);
    supervisor.await_status(&[("/error", json!(""))]);
    case.await_node_ready();

    let (failed, said) = walk(case, "## Roll it out to a pool of nodes");
    // It has something to say of every cluster; what it says is no failure of the walk.
    let failed: Vec<String> = failed.into_iter().filter(|line| !line.contains(" doctor")).collect();
    assert!(failed.is_empty() && said.contains("proven"), "{failed:?}: {said}");
    case.kubectl(&["delete", CRD]);
    case.kubectl(&["label", "node", case.var("NODE_NAME"), "pool-"]);
}
