//! A pool with `spec.rollout.drain` on the real API server, whose evictions are `policy/v1beta1` up to 1.21: two Node objects without a
//! kubelet, Pods that this test lets end, and a disruption budget that it counts as the disruption controller would.

use kubectl_plugin::fleet::pool::drain::CORDONED_BY;
use kubelet_config::assignment::LABELS;
use kubelet_config::preflight::{ANSWER_ANNOTATION, PreflightResult, PreflightStatus, REQUEST_ANNOTATION};
use serde_json::{Value, json};

use crate::assignment::Carrier;
use crate::cluster::until;
use crate::plugin_pools::{Controller, MANIFESTS, POOLS, install, uninstall};
use crate::supervisor::Case;
use crate::versions;

const NAMESPACE: &str = "/api/v1/namespaces/kubelet-config/configmaps";
const BEFORE: &str = "drained-before";
const PODS: &str = "/api/v1/namespaces/default/pods";
const POOL: &str = "drained";

struct Drain<'a> {
    case: &'a Case<'a>,
}

fn budgets() -> String {
    format!("/apis/{}/namespaces/default/poddisruptionbudgets", versions::policy())
}

fn node_path(number: usize) -> String {
    format!("/api/v1/nodes/drained-{number}")
}

impl<'a> Drain<'a> {
    fn new(case: &'a Case<'a>) -> Self {
        let drain = Self { case };
        let body = json!({"metadata": {"name": BEFORE}, "immutable": true,
            "data": {"kubelet": "kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\n"}});
        case.ask("POST", NAMESPACE, Some(&body));
        for number in 0..2 {
            let body = json!({"metadata": {"name": format!("drained-{number}"), "labels": {"drained": "yes"}}});
            case.ask("POST", "/api/v1/nodes", Some(&body));
            // Without an assignment it would be one that joins.
            let source =
                json!({"configMap": {"namespace": "kubelet-config", "name": BEFORE, "kubeletConfigKey": "kubelet"}});
            let patch = match case.carrier {
                Carrier::Native => json!({"spec": {"configSource": source}}),
                Carrier::Labels => json!({"metadata": {"labels": {format!("{LABELS}name"): BEFORE}}}),
            };
            case.ask("PATCH", &node_path(number), Some(&patch));
            drain.proves(number);
            drain.pod(number, "web", Some("ReplicaSet"));
            drain.pod(number, "daemon", Some("DaemonSet"));
        }
        drain
    }

    /// As a supervisor would, of what it is assigned.
    fn proves(&self, number: usize) {
        let name = wanted(&self.node(number)).to_owned();
        let map = self.case.ask("GET", &format!("{NAMESPACE}/{name}"), None);
        let source = json!({"configMap": {"namespace": "kubelet-config", "name": name, "kubeletConfigKey": "kubelet",
            "uid": map["metadata"]["uid"], "resourceVersion": map["metadata"]["resourceVersion"]}});
        let said = json!({"assigned": source, "active": source, "lastKnownGood": source}).to_string();
        let annotation = json!({"metadata": {"annotations": {"kubelet-supervisor.io/config-status": said}}});
        self.case.ask("PATCH", &node_path(number), Some(&annotation));
        let conditions = json!([{"type": "Ready", "status": "True"},
            {"type": "KubeletConfigOk", "status": "True", "reason": "LastKnownGood", "message": "in my words"}]);
        let status = json!({"status": {"conditions": conditions}});
        self.case.ask("PATCH", &format!("{}/status", node_path(number)), Some(&status));
    }

    /// Its answer when it is asked what it would make of a revision.
    fn answers(&self, number: usize) {
        let request = until("the question", || {
            let node = self.node(number);
            let request = node["metadata"]["annotations"][REQUEST_ANNOTATION].as_str().map(str::to_owned);
            request.ok_or_else(|| format!("{node:#}"))
        });
        let answer = PreflightStatus::new(&request, PreflightResult::Valid, "").annotation();
        let annotation = json!({"metadata": {"annotations": {ANSWER_ANNOTATION: answer}}});
        self.case.ask("PATCH", &node_path(number), Some(&annotation));
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
        self.case.ask("PATCH", &format!("{}/web/status", budgets()), Some(&status));
    }

    fn node(&self, number: usize) -> Value {
        self.case.ask("GET", &node_path(number), None)
    }

    /// Until the pool says this of its condition Ready; its message.
    fn says(&self, words: &[&str]) {
        until(&format!("{words:?}"), || {
            let pool = self.case.api("GET", &format!("{POOLS}/{POOL}"), None)?;
            let conditions = pool["status"]["conditions"].as_array().cloned().unwrap_or_default();
            let ready = conditions.into_iter().find(|it| it["type"] == "Ready").unwrap_or_default().to_string();
            if words.iter().all(|word| ready.contains(word)) { Ok(()) } else { Err(pool["status"].to_string()) }
        });
    }

    /// Until the Node is cordoned for the pool, and its Pod is marked to end.
    fn until_ending(&self, number: usize) {
        until("the eviction", || {
            let pod = self.case.api("GET", &format!("{PODS}/web-{number}"), None)?;
            let ends = pod["metadata"]["deletionTimestamp"].is_string();
            if ends { Ok(()) } else { Err(format!("{pod:#}")) }
        });
        let node = self.node(number);
        assert!(is_ours(&node) && wanted(&node) == BEFORE, "not before its Pods are gone: {node:#}");
    }

    /// What its kubelet would do in the end.
    fn end(&self, number: usize) {
        self.case.ask("DELETE", &format!("{PODS}/web-{number}?gracePeriodSeconds=0"), None);
    }

    /// Until it is assigned, which it then has proven; and until it is open again.
    fn until_proven(&self, number: usize) {
        until("the assignment", || {
            let node = self.node(number);
            if wanted(&node) == BEFORE { Err(format!("{node:#}")) } else { Ok(()) }
        });
        assert!(is_ours(&self.node(number)), "not before it is proven");
        self.proves(number);
        until("an open node", || {
            let node = self.node(number);
            let open =
                node["spec"]["unschedulable"].is_null() && node["metadata"]["annotations"][CORDONED_BY].is_null();
            if open { Ok(()) } else { Err(format!("{node:#}")) }
        });
    }
}

fn is_ours(node: &Value) -> bool {
    node["spec"]["unschedulable"] == true && node["metadata"]["annotations"][CORDONED_BY] == format!("pool/{POOL}")
}

fn wanted(node: &Value) -> &str {
    let native = node["spec"]["configSource"]["configMap"]["name"].as_str();
    native.or(node["metadata"]["labels"][format!("{LABELS}name")].as_str()).unwrap_or_default()
}

impl Drop for Drain<'_> {
    fn drop(&mut self) {
        for path in ["/api/v1/nodes?labelSelector=drained%3Dyes", &budgets(), &format!("{NAMESPACE}/{BEFORE}")] {
            let _ = self.case.api("DELETE", path, None);
        }
        for pod in ["web-0", "web-1", "daemon-0", "daemon-1", "bare-0", "bare-1"] {
            let _ = self.case.api("DELETE", &format!("{PODS}/{pod}?gracePeriodSeconds=0"), None);
        }
    }
}

/// A budget that says no at first, a Pod that nobody would start again, a controller that is killed while it drains.
pub fn drain(case: &Case) {
    install(case);
    case.kubectl(&["apply", "-k", &format!("{MANIFESTS}/pools-drain")]);
    let drain = Drain::new(case);
    let budget =
        json!({"metadata": {"name": "web"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}}});
    case.ask("POST", &budgets(), Some(&budget));
    drain.budget(0);
    let mut controller = Controller::start(case);
    let pool = json!({"apiVersion": "kubelet-supervisor.io/v1alpha1", "kind": "KubeletConfigPool",
        "metadata": {"name": POOL}, "spec": {
            "nodeSelector": {"matchLabels": {"drained": "yes"}}, "kubeletConfiguration": {"maxPods": 51},
            "rollout": {"maxUnavailable": 1, "drain": "Careful", "minTrialSeconds": 1}}});
    case.ask("POST", POOLS, Some(&pool));
    (0..2).for_each(|number| drain.answers(number));

    case.say("a budget that says no is waited for");
    drain.says(&["Canaries", "being drained: drained-", "disruption budget"]);
    let first = usize::from(!is_ours(&drain.node(0)));
    assert!(is_ours(&drain.node(first)) && !is_ours(&drain.node(1 - first)), "one at a time");
    let pod = case.ask("GET", &format!("{PODS}/web-{first}"), None);
    assert!(pod["metadata"]["deletionTimestamp"].is_null(), "{pod:#}");
    drain.pod(1 - first, "bare", None);
    drain.budget(1);
    drain.until_ending(first);
    drain.end(first);
    drain.until_proven(first);

    case.say("a Pod without a controller keeps a node back, and is named");
    let second = 1 - first;
    let why = format!("drained-{second}: Pod default/bare-{second} has no controller: nobody would start it again");
    drain.says(&["DrainBlocked", &why]);
    let node = drain.node(second);
    assert!(node["spec"]["unschedulable"].is_null() && wanted(&node) == BEFORE, "{node:#}");

    case.say("killed while it drains; the next controller goes on");
    drain.budget(1);
    case.ask("DELETE", &format!("{PODS}/bare-{second}?gracePeriodSeconds=0"), None);
    drain.until_ending(second);
    drop(controller);
    assert!(is_ours(&drain.node(second)));
    controller = Controller::start(case);
    drain.end(second);
    drain.until_proven(second);
    drain.says(&["Complete"]);
    let pods = case.ask("GET", PODS, None);
    let names = pods["items"].as_array().unwrap().iter().map(|pod| pod["metadata"]["name"].as_str().unwrap());
    let left: Vec<&str> = names.filter(|name| name.ends_with("-0") || name.ends_with("-1")).collect();
    assert_eq!(left, ["daemon-0", "daemon-1"], "a DaemonSet's stay");
    drop(controller);
    case.kubectl(&["delete", "-k", &format!("{MANIFESTS}/pools-drain")]);
    uninstall(case);
}
