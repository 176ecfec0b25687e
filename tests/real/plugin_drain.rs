//! `kubectl kubelet-config rollout --drain` on the real API server, whose evictions are `policy/v1beta1`: two Node objects
//! without a kubelet, Pods that this test lets end, and a disruption budget that it counts as the controller would.

use std::process::{Child, Command, Stdio};
use testkit::built::program;

use kubectl_plugin::fleet::rollout::drain::CORDONED_BY;
use kubelet_config::assignment::LABELS;
use serde_json::{Value, json};

use crate::cluster::until;
use crate::supervisor::Case;

const NAMESPACE: &str = "kubelet-config";
const MAP: &str = "drained";
const PODS: &str = "/api/v1/namespaces/default/pods";
const BUDGETS: &str = "/apis/policy/v1beta1/namespaces/default/poddisruptionbudgets";

struct Drain<'a> {
    case: &'a Case<'a>,
    source: Value,
}

fn node_path(number: usize) -> String {
    format!("/api/v1/nodes/drained-{number}")
}

impl<'a> Drain<'a> {
    fn new(case: &'a Case<'a>) -> Self {
        let body = json!({"metadata": {"name": MAP}, "immutable": true,
            "data": {"kubelet": "kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\n"}});
        let map = case.ask("POST", &format!("/api/v1/namespaces/{NAMESPACE}/configmaps"), Some(&body));
        let source = json!({"configMap": {"namespace": NAMESPACE, "name": MAP, "kubeletConfigKey": "kubelet",
            "uid": map["metadata"]["uid"], "resourceVersion": map["metadata"]["resourceVersion"]}});
        let drain = Self { case, source };
        for number in 0..2 {
            let body = json!({"metadata": {"name": format!("drained-{number}"), "labels": {"drained": "yes"}}});
            case.ask("POST", "/api/v1/nodes", Some(&body));
            drain.says(number, "Local");
            drain.pod(number, "web", Some("ReplicaSet"));
            drain.pod(number, "daemon", Some("DaemonSet"));
        }
        drain
    }

    /// As a supervisor would: its own configuration runs, or the target is proven.
    fn says(&self, number: usize, reason: &str) {
        let proven = json!({"assigned": self.source, "active": self.source, "lastKnownGood": self.source});
        let said = if reason == "Local" { json!({}) } else { proven }.to_string();
        let annotation = json!({"metadata": {"annotations": {"kubelet-supervisor.io/config-status": said}}});
        self.case.ask("PATCH", &node_path(number), Some(&annotation));
        let conditions = json!([{"type": "Ready", "status": "True"},
            {"type": "KubeletConfigOk", "status": "True", "reason": reason, "message": "in my words"}]);
        let status = json!({"status": {"conditions": conditions}});
        self.case.ask("PATCH", &format!("{}/status", node_path(number)), Some(&status));
    }

    fn pod(&self, number: usize, app: &str, owner: Option<&str>) {
        let owner = owner
            .map(|kind| json!([{"apiVersion": "apps/v1", "kind": kind, "name": app, "uid": "1", "controller": true}]));
        let name = format!("{app}-{number}");
        let body = json!({"metadata": {"name": name, "labels": {"app": app}, "ownerReferences": owner},
            "spec": {"nodeName": format!("drained-{number}"), "containers": [{"name": "c", "image": "none"}]}});
        self.case.ask("POST", PODS, Some(&body));
        // A Pod that is pending is protected by no budget.
        let runs = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
        self.case.ask("PATCH", &format!("{PODS}/{name}/status"), Some(&runs));
    }

    fn budget(&self, allowed: u32) {
        let status = json!({"status": {"disruptionsAllowed": allowed, "observedGeneration": 1, "currentHealthy": 2,
            "desiredHealthy": 1, "expectedPods": 2}});
        self.case.ask("PATCH", &format!("{BUDGETS}/web/status"), Some(&status));
    }

    fn node(&self, number: usize) -> Value {
        self.case.ask("GET", &node_path(number), None)
    }

    fn client(&self, args: &[&str]) -> Child {
        let log = self.case.cluster.dir.join("logs").join(format!("{}.log", self.case.name));
        let file = std::fs::File::options().create(true).append(true).open(log).unwrap();
        Command::new(program("kubectl-kubelet_config"))
            .args(["--kubeconfig", self.case.var("KUBECONFIG"), "rollout"])
            .args(args)
            .stdin(Stdio::null())
            .stdout(file.try_clone().unwrap())
            .stderr(file)
            .spawn()
            .unwrap()
    }

    /// Until the Node is cordoned by the rollout, and its Pod is marked to end.
    fn until_ending(&self, number: usize) {
        until("the eviction", || {
            let pod = self.case.api("GET", &format!("{PODS}/web-{number}"), None)?;
            let ends = pod["metadata"]["deletionTimestamp"].is_string();
            if ends { Ok(()) } else { Err(format!("{pod:#}")) }
        });
        let node = self.node(number);
        assert!(is_ours(&node) && wanted(&node).is_empty(), "not before its Pods are gone: {node:#}");
    }

    /// What its kubelet would do in the end.
    fn end(&self, number: usize) {
        self.case.ask("DELETE", &format!("{PODS}/web-{number}?gracePeriodSeconds=0"), None);
    }

    /// Until it is assigned, which it then has proven; and until it is open again.
    fn prove(&self, number: usize) {
        until("the assignment", || {
            let node = self.node(number);
            if wanted(&node) == MAP { Ok(()) } else { Err(format!("{node:#}")) }
        });
        assert!(is_ours(&self.node(number)), "not before it is proven");
        self.says(number, "LastKnownGood");
        until("an open node", || {
            let node = self.node(number);
            let open =
                node["spec"]["unschedulable"].is_null() && node["metadata"]["annotations"][CORDONED_BY].is_null();
            if open { Ok(()) } else { Err(format!("{node:#}")) }
        });
    }
}

fn is_ours(node: &Value) -> bool {
    node["spec"]["unschedulable"] == true && node["metadata"]["annotations"][CORDONED_BY] == MAP
}

fn wanted(node: &Value) -> &str {
    let native = node["spec"]["configSource"]["configMap"]["name"].as_str();
    native.or(node["metadata"]["labels"][format!("{LABELS}name")].as_str()).unwrap_or_default()
}

impl Drop for Drain<'_> {
    fn drop(&mut self) {
        for path in ["/api/v1/nodes?labelSelector=drained%3Dyes", BUDGETS] {
            let _ = self.case.api("DELETE", path, None);
        }
        for pod in ["web-0", "web-1", "daemon-0", "daemon-1", "bare-1"] {
            let _ = self.case.api("DELETE", &format!("{PODS}/{pod}?gracePeriodSeconds=0"), None);
        }
    }
}

/// One node whose Pod has a budget that says no at first, and one with a Pod that nobody would start again.
pub fn drain(case: &Case) {
    let drain = Drain::new(case);
    let budget =
        json!({"metadata": {"name": "web"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}}});
    case.ask("POST", BUDGETS, Some(&budget));
    drain.budget(0);
    drain.pod(1, "bare", None);

    case.say("a budget that says no is waited for");
    let mut client = drain.client(&[MAP, "-l", "drained=yes", "--drain", "--timeout-per-node", "5m"]);
    until("a cordoned node", || if is_ours(&drain.node(0)) { Ok(()) } else { Err(String::new()) });
    until("a no", || {
        let metrics = case.cluster.kubectl(&["get", "--raw", "/metrics"]);
        let no = |line: &&str| line.contains(r#"code="429""#) && line.contains(r#"subresource="eviction""#);
        metrics.lines().find(no).map(drop).ok_or_else(|| "none".to_owned())
    });
    let pod = case.ask("GET", &format!("{PODS}/web-0"), None);
    assert!(pod["metadata"]["deletionTimestamp"].is_null(), "{pod:#}");
    drain.budget(1);
    drain.until_ending(0);
    drain.end(0);
    drain.prove(0);

    case.say("a Pod without a controller stops it before the node is touched");
    assert_eq!(client.wait().unwrap().code(), Some(1));
    let node = drain.node(1);
    assert!(node["spec"]["unschedulable"].is_null() && wanted(&node).is_empty(), "{node:#}");
    let log = case.cluster.dir.join("logs").join(format!("{}.log", case.name));
    let said = std::fs::read_to_string(log).unwrap();
    let line = "node drained-1 cannot be drained: Pod default/bare-1 has no controller: nobody would start it again";
    assert!(said.contains(line), "{said}");

    case.say("killed while it drains; the next client goes on");
    case.ask("DELETE", &format!("{PODS}/bare-1?gracePeriodSeconds=0"), None);
    drain.budget(1);
    let mut client = drain.client(&["resume", MAP]);
    drain.until_ending(1);
    client.kill().unwrap();
    client.wait().unwrap();
    assert!(is_ours(&drain.node(1)));
    let mut client = drain.client(&["resume", MAP]);
    drain.end(1);
    drain.prove(1);
    assert_eq!(client.wait().unwrap().code(), Some(0));
    let pods = case.ask("GET", PODS, None);
    let names = pods["items"].as_array().unwrap().iter().map(|pod| pod["metadata"]["name"].as_str().unwrap());
    let left: Vec<&str> = names.filter(|name| name.ends_with("-0") || name.ends_with("-1")).collect();
    assert_eq!(left, ["daemon-0", "daemon-1"], "a DaemonSet's stay");
}
