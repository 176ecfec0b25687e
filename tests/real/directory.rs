//! A source directory with the real kubelet: beside the API server, and on a node that knows none.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::cluster::until;
use crate::supervisor::{Case, Supervisor};

const LOCAL: Value = Value::Null;
const VALIDATE: &str = "failed to validate config, see Kubelet log for details";
const LOAD: &str = "failed to load config, see Kubelet log for details";

/// A configuration that is valid, and fatal.
const KILLER: &str = "enforceNodeAllocatable: [pods, system-reserved]\nsystemReservedCgroup: /no-such-cgroup";

fn source(case: &Case) -> PathBuf {
    let dir = case.cluster.dir.join(format!("source-{}", case.name));
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

/// Beside, and by one rename.
fn place(dir: &Path, name: &str, text: &str) {
    std::fs::write(dir.join(".new"), text).unwrap();
    std::fs::rename(dir.join(".new"), dir.join(name)).unwrap();
}

/// Waits until what is assigned is last known good, and another than `before`; gives it.
fn proven(supervisor: &Supervisor, before: &Value) -> Value {
    until("it is proven", || {
        let status = supervisor.status()?;
        let seen = &status["assigned"];
        let good = seen["configMap"]["uid"] == "source-dir" && *seen != *before && *seen == status["lastKnownGood"];
        if good { Ok(seen.clone()) } else { Err(format!("{status:#}")) }
    })
}

/// The Node's own assignment is ignored, and the API server takes what is said of the directory.
pub fn source_dir(case: &Case) {
    let dir = source(case);
    place(&dir, "kubelet", &case.payload("maxPods: 61"));
    let supervisor = case.supervisor_options("4s", &["--source-dir", dir.to_str().unwrap()]);
    case.await_node_ready();
    case.assign(&case.good(&case.id("ignored"), "maxPods: 62"));
    let first = proven(&supervisor, &LOCAL);
    case.await_config(&first, &first, &first, "");
    case.await_configz("maxPods", &json!(61));
    case.await_event("KubeletConfigProven", &["the source directory, UID: source-dir"]);
    let restarts = supervisor.restarts();

    place(&dir, "kubelet", &case.payload("maxPods: -1"));
    supervisor.await_status(&[("/error", json!(VALIDATE)), ("/active", first.clone())]);
    assert_eq!(supervisor.restarts(), restarts, "a rejection costs no restart");
    place(&dir, "kubelet", &case.payload("maxPods: 63"));
    let second = proven(&supervisor, &first);
    case.await_config(&second, &second, &second, "");
    case.await_configz("maxPods", &json!(63));

    std::fs::remove_file(dir.join("kubelet")).unwrap();
    case.await_config(&LOCAL, &LOCAL, &LOCAL, "");
    case.await_configz("maxPods", &json!(110));
    assert!(supervisor.stop().success());
}

/// Static pods and a directory: rejection, rollback and proof without any API server.
pub fn standalone(case: &Case) {
    let dir = source(case);
    // Without an API server nobody can be asked who a client is.
    let alone = |text: String| {
        text.replace("webhook: {enabled: true}", "webhook: {enabled: false}")
            .replace("mode: Webhook", "mode: AlwaysAllow")
    };
    let local = case.cluster.dir.join("standalone.yaml");
    std::fs::write(&local, alone(case.payload("maxPods: 60"))).unwrap();
    let mut args = case.kubelet_args();
    args.retain(|arg| !arg.starts_with("--kubeconfig=") && !arg.starts_with("--config="));
    args.push(format!("--config={}", local.display()));
    let supervisor = case.launch_with("4s", &["--source-dir", dir.to_str().unwrap()], &case.dir(), args);
    supervisor.await_ready();
    supervisor.await_status(&[("/active", LOCAL)]);

    place(&dir, "kubelet", &alone(case.payload("maxPods: 61")));
    let first = proven(&supervisor, &LOCAL);
    supervisor.await_status(&[("/kubelet/restarts", json!(1)), ("/kubelet/ready", json!(true))]);
    place(&dir, "kubelet", &alone(case.payload("maxPods: -1")));
    supervisor.await_status(&[
        ("/error", json!(VALIDATE)),
        ("/active", first.clone()),
        ("/kubelet/restarts", json!(1)),
    ]);

    place(&dir, ".acknowledge", "all\n");
    place(&dir, "kubelet", &alone(case.payload(KILLER)));
    supervisor.await_status(&[
        ("/error", json!(LOAD)),
        ("/active", first.clone()),
        ("/lastKnownGood", first),
        ("/trial/state", json!("failed")),
        ("/kubelet/ready", json!(true)),
    ]);
    let status = supervisor.status().unwrap();
    assert!(
        status["errorDetail"].as_str().unwrap().contains("Failed to enforce System Reserved Cgroup Limits"),
        "{status:#}"
    );
    assert!(supervisor.stop().success());
}
