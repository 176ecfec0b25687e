//! `kubectl kubelet-config` status, assign, reset, retry, confirm and rollback, called by kubectl itself.

use std::process::Command;

use serde_json::{Value, json};

use crate::assignment::{Carrier, LABEL};
use crate::cluster::until;
use crate::supervisor::Case;

const PLUGIN: &str = env!("CARGO_BIN_EXE_kubectl-kubelet_config");
const COMPLETE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/packaging/plugin/kubectl_complete-kubelet_config");

struct Kubectl<'a> {
    case: &'a Case<'a>,
    path: String,
}

impl<'a> Kubectl<'a> {
    fn new(case: &'a Case<'a>) -> Self {
        let dir = |file: &str| std::path::Path::new(file).parent().unwrap().display().to_string();
        let path = format!("{}:{}:{}", dir(PLUGIN), dir(COMPLETE), std::env::var("PATH").unwrap());
        Self { case, path }
    }

    /// Exit code, standard output, standard error.
    fn run(&self, args: &[&str]) -> (i32, String, String) {
        let mut command = Command::new(self.case.var("KUBECTL"));
        command.args(args).env("PATH", &self.path).env("KUBECONFIG", self.case.var("KUBECONFIG"));
        let output = command.output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
    }

    /// The plugin, with the namespace that this cluster's ConfigMaps are in.
    fn plugin(&self, args: &[&str]) -> (i32, String, String) {
        self.run(&[&["kubelet-config", "-n", self.case.carrier.namespace()], args].concat())
    }

    fn ok(&self, args: &[&str]) -> String {
        let (code, out, err) = self.plugin(args);
        assert_eq!(code, 0, "{args:?}: {out}{err}");
        out
    }

    /// The node's row of `status -o json`.
    fn status(&self) -> Value {
        let rows: Value =
            serde_json::from_str(&self.ok(&["status", self.case.var("NODE_NAME"), "-o", "json"])).unwrap();
        rows[0].clone()
    }
}

/// From nothing to an assignment that is proven, through one that is refused, and back to nothing.
pub fn from_assign_to_reset(case: &Case) {
    let supervisor = case.supervisor_with("15s");
    case.await_node_ready(); // the first case of a cluster comes before there is a Node
    let kubectl = Kubectl::new(case);
    let node = case.var("NODE_NAME").to_owned();
    until("a row without an assignment", || {
        let row = kubectl.status();
        let local = row["state"] == "local" && row["keeper"] == "supervisor";
        if local { Ok(()) } else { Err(format!("{row:#}")) }
    });

    case.say("assign, by what this API server keeps");
    let first = case.good(&case.id("first"), "maxPods: 42");
    let (_, dry, _) = kubectl.plugin(&["assign", &first.name, &node, "--dry-run=server"]);
    let out = kubectl.ok(&["assign", &first.name, &node, "--wait"]);
    let place = match case.carrier {
        Carrier::Native => format!("spec.configSource {}/{}[kubelet]", first.namespace, first.name),
        Carrier::Labels => format!("labels {LABEL}/{{name={},namespace={}}}", first.name, first.namespace),
    };
    assert!(out.starts_with(&format!("node/{node} assigned: {place}\n")), "{out}");
    assert!(out.ends_with(&format!("node/{node} active\n")), "{out}");
    assert_eq!(dry, format!("node/{node} assigned: {place} (server dry run)\n"));

    case.say("its trial, and what is left of it");
    let row = until("the end of the trial", || {
        let row = kubectl.status();
        if row["trial"]["ends"].is_string() { Ok(row) } else { Err(format!("{row:#}")) }
    });
    assert_eq!((&row["state"], &row["carrier"]), (&json!("on trial"), &json!(case.carrier.name())), "{row:#}");
    assert!(row["trial"]["secondsLeft"].as_u64().unwrap() <= 15, "{row:#}");
    let out = kubectl.ok(&["assign", &first.name, &node, "--wait=proven"]);
    assert!(out.starts_with(&format!("node/{node} unchanged: {place}\n")), "{out}");
    assert!(out.ends_with(&format!("node/{node} proven\n")), "{out}");
    assert_eq!(kubectl.status()["trial"]["ends"], Value::Null);

    case.say("one that the kubelet refuses ends the wait, with its words");
    let bad = case.map(&case.id("bad"), &json!({"data": {"kubelet": case.payload("maxPods: -1")}}));
    let (code, out, err) = kubectl.plugin(&["assign", &bad.name, &node, "--wait=proven"]);
    assert_eq!(code, 1, "{out}{err}");
    assert!(err.contains(&format!("error: node/{node}: ")) && err.to_lowercase().contains("maxpods"), "{out}{err}");
    assert_eq!(kubectl.status()["state"], "failed");
    kubectl.ok(&["retry", &node]);
    case.await_event("KubeletConfigRetried", &[&bad.words()]);

    case.say("back to last known good, by the assignment");
    let out = kubectl.ok(&["rollback", &node, "--wait=proven"]);
    assert!(out.starts_with(&format!("node/{node} rolled back: {place}\n")), "{out}");
    case.await_config(&first.source(), &first.source(), &first.source(), "");

    case.say("one that somebody must confirm");
    let annotations = json!({"kubelet-supervisor.io/confirm-within": "10m"});
    let body = json!({"metadata": {"annotations": annotations}, "data": {"kubelet": case.payload("maxPods: 43")}});
    let asked = case.map(&case.id("asked"), &body);
    kubectl.ok(&["assign", &asked.name, &node, "--wait"]);
    let row = until("the question", || {
        let row = kubectl.status();
        if row["state"] == "to confirm" { Ok(row) } else { Err(format!("{row:#}")) }
    });
    assert!((1..=600).contains(&row["trial"]["secondsLeft"].as_u64().unwrap()), "{row:#}");
    kubectl.ok(&["confirm", &node]);
    kubectl.ok(&["assign", &asked.name, &node, "--wait=proven"]);

    case.say("reset, and completion by kubectl");
    let out = kubectl.ok(&["reset", &node, "--wait"]);
    assert!(out.ends_with(&format!("node/{node} runs its own configuration\n")), "{out}");
    case.await_config(&Value::Null, &Value::Null, &Value::Null, "");
    // What was asked of this node is not to be asked of the next case's supervisor, which has another store.
    let nothing = json!({"metadata": {"annotations": {"kubelet-supervisor.io/retry": null, "kubelet-supervisor.io/confirm": null}}});
    case.api("PATCH", &format!("/api/v1/nodes/{node}"), Some(&nothing)).unwrap();
    // kubectl asks plugins since v1.26; the one of this suite's own build is older.
    let (_, version, _) = kubectl.run(&["version", "--client", "-o", "json"]);
    let version: Value = serde_json::from_str(&version).unwrap();
    let minor = version["clientVersion"]["minor"].as_str().unwrap().trim_end_matches('+').parse::<u32>().unwrap();
    let (_, out, err) = kubectl.run(&["__complete", "kubelet-config", "status", ""]);
    assert!(minor < 26 || out.lines().any(|line| line == node), "{version:#}: {out}{err}");
    assert!(supervisor.stop().success());
}
