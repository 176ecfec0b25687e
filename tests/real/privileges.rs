//! What the ServiceAccount of the controller of pools and a node's credential may do, and what they may not: tried, one by one, on the real
//! API server. docs/security.md says what RBAC cannot hold; here it is held to that.

use serde_json::{Value, json};

use crate::assignment::Carrier;
use crate::cluster::until;
use crate::supervisor::Case;
use crate::versions;

const MANIFESTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/packaging/manifests");
const CONTROLLER: &str = "kubelet-config-controller";
const NAMESPACE: &str = "kubelet-config";
const LABEL: &str = "kubelet-config.node-restriction.kubernetes.io/name";

/// Method, path, body.
type Attempt = (&'static str, String, Option<Value>);

fn attempt(method: &'static str, path: impl Into<String>, body: Value) -> Attempt {
    (method, path.into(), Some(body).filter(|body| !body.is_null()))
}

fn map(namespace: &str, name: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/configmaps/{name}")
}

fn named(name: &str) -> Value {
    json!({"metadata": {"name": name}})
}

fn pod(name: &str, node: &str, map: Option<&str>) -> Value {
    let volumes = map.map(|map| json!([{"name": "m", "configMap": {"name": map}}]));
    json!({"metadata": {"name": name}, "spec": {
        "nodeName": node, "automountServiceAccountToken": false, "volumes": volumes,
        "containers": [{"name": "c", "image": "registry.example/none"}]}})
}

/// Each is refused by the authorizer or by admission, with 403.
fn all_refused(case: &Case, credential: &[String], attempts: Vec<Attempt>) {
    for (method, path, body) in attempts {
        let said = case.api_with(credential, method, &path, body.as_ref());
        let said = said.err().unwrap_or_else(|| panic!("{method} {path} {body:?} was done"));
        assert!(said.contains(": 403 "), "{said}");
    }
}

fn all_done(case: &Case, credential: &[String], attempts: Vec<Attempt>) {
    for (method, path, body) in attempts {
        case.api_with(credential, method, &path, body.as_ref()).unwrap_or_else(|error| panic!("{error}"));
    }
}

/// What nobody who assigns configurations or runs a kubelet has to do with.
fn of_others() -> Vec<Attempt> {
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    let admin = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"});
    let all = json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]);
    let binding = json!({"metadata": {"name": "evil"}, "roleRef": admin,
        "subjects": [{"kind": "ServiceAccount", "name": CONTROLLER, "namespace": NAMESPACE}]});
    let mut attempts: Vec<Attempt> = ["default", "kube-system", NAMESPACE]
        .iter()
        .map(|namespace| attempt("GET", format!("/api/v1/namespaces/{namespace}/secrets"), Value::Null))
        .collect();
    attempts.extend([
        attempt("GET", "/api/v1/secrets", Value::Null),
        attempt("GET", "/api/v1/configmaps", Value::Null),
        attempt("GET", "/api/v1/namespaces/default/configmaps", Value::Null),
        attempt("GET", map("kube-system", "extension-apiserver-authentication"), Value::Null),
        attempt("PUT", map("kubelet-config", "payload"), named("payload")),
        attempt("PATCH", map("kubelet-config", "payload"), json!({"data": {"kubelet": "evil"}})),
        attempt("POST", format!("{rbac}/clusterroles"), json!({"metadata": {"name": "evil"}, "rules": all})),
        attempt("POST", format!("{rbac}/clusterrolebindings"), binding.clone()),
        attempt("POST", format!("{rbac}/namespaces/{NAMESPACE}/rolebindings"), binding),
        attempt("PATCH", format!("{rbac}/clusterroles/{CONTROLLER}"), json!({"rules": all})),
        attempt(
            "PATCH",
            format!("{rbac}/namespaces/kubelet-config/roles/kubelet-config-reader"),
            json!({"rules": all}),
        ),
        attempt("GET", format!("{rbac}/clusterroles"), Value::Null),
        attempt("DELETE", "/api/v1/nodes/other", Value::Null),
        attempt("PATCH", "/api/v1/nodes/other/status", json!({"status": {"phase": "Pending"}})),
        attempt("GET", "/api/v1/nodes/other/proxy/configz", Value::Null),
        attempt("POST", "/api/v1/namespaces", named("evil")),
        attempt("PATCH", "/api/v1/namespaces/kubelet-config", json!({"metadata": {"labels": {"x": "y"}}})),
        attempt("POST", "/apis/batch/v1/namespaces/default/jobs", named("evil")),
        attempt("POST", "/api/v1/namespaces/kube-system/serviceaccounts/default/token", json!({"spec": {}})),
        attempt("POST", "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations", named("evil")),
    ]);
    attempts
}

/// A Node that is no kubelet's, a payload, and what the controller's manifests give.
fn prepare(case: &Case) {
    case.kubectl(&["apply", "-k", &format!("{MANIFESTS}/base")]);
    case.kubectl(&["apply", "-f", &format!("{MANIFESTS}/pools/rbac.yaml")]);
    let made = |path: &str, object: Value| {
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        if case.api("GET", &format!("{path}/{name}"), None).is_err() {
            case.api("POST", path, Some(&object)).unwrap();
        }
    };
    made("/api/v1/nodes", named("other"));
    for (namespace, name) in [("kubelet-config", "payload"), ("default", "tenant"), ("default", "private")] {
        made(&format!("/api/v1/namespaces/{namespace}/configmaps"), named(name));
    }
    for (name, node) in [("theirs", "other"), ("ours", case.var("NODE_NAME"))] {
        made("/api/v1/namespaces/default/pods", pod(name, node, None));
    }
}

/// Other cases count Nodes.
fn tidy_up(case: &Case) {
    let made = ["node/other", "pod/theirs", "pod/ours"];
    let words = ["delete", "--ignore-not-found", "--force", "--grace-period=0"];
    case.kubectl(&[&words[..], &made[..]].concat());
    case.kubectl(&["delete", "-f", &format!("{MANIFESTS}/pools/rbac.yaml")]);
}

fn eviction(name: &str) -> Attempt {
    let body = json!({"apiVersion": versions::policy(), "kind": "Eviction", "metadata": {"name": name, "namespace": "default"}});
    attempt("POST", format!("/api/v1/namespaces/default/pods/{name}/eviction"), body)
}

/// The token of its ServiceAccount can patch Nodes and make revisions, which is as much as to configure Nodes, and nothing beside.
pub fn controller(case: &Case) {
    prepare(case);
    let path = format!("/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{CONTROLLER}/token");
    let token = case.api("POST", &path, Some(&json!({"spec": {"expirationSeconds": 3600}}))).unwrap();
    let token = token["status"]["token"].as_str().expect("a token").to_owned();
    let credential = ["-H".to_owned(), format!("Authorization: Bearer {token}")];
    until("its rights are known", || case.api_with(&credential, "GET", "/api/v1/nodes/other", None));

    all_refused(case, &credential, of_others());
    let node = case.var("NODE_NAME");
    let maps = format!("/api/v1/namespaces/{NAMESPACE}/configmaps");
    all_refused(
        case,
        &credential,
        vec![
            attempt("GET", map("default", "tenant"), Value::Null),
            attempt("POST", "/api/v1/namespaces/default/configmaps", named("evil")),
            attempt("POST", "/api/v1/nodes", named("evil")),
            attempt("PUT", "/api/v1/nodes/other", named("other")),
            attempt("GET", "/api/v1/pods", Value::Null),
            attempt("POST", "/api/v1/namespaces/default/pods", pod("evil", node, None)),
            attempt("POST", format!("/api/v1/namespaces/{NAMESPACE}/pods"), pod("evil", node, None)),
            attempt("DELETE", "/api/v1/namespaces/default/pods/theirs", Value::Null),
            attempt(
                "PATCH",
                format!("/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/other"),
                json!({"spec": {"holderIdentity": "evil"}}),
            ),
            eviction("theirs"),
        ],
    );
    // What it is for.
    all_done(
        case,
        &credential,
        vec![
            attempt("GET", map(NAMESPACE, "payload"), Value::Null),
            attempt("POST", maps.as_str(), named("revision")),
            // Revisions that nobody needs go; RBAC cannot tell them from others.
            attempt("GET", maps.as_str(), Value::Null),
            attempt("DELETE", map(NAMESPACE, "revision"), Value::Null),
            attempt("GET", "/api/v1/namespaces/kube-system/pods", Value::Null),
            attempt("PATCH", "/api/v1/nodes/other", json!({"metadata": {"labels": {LABEL: "payload"}}})),
            attempt("PATCH", "/api/v1/nodes/other", json!({"spec": {"unschedulable": true}})),
        ],
    );
    // What RBAC cannot hold: all of a Node, or nothing. ../../packaging/manifests/pools-policy does, since 1.30.
    let taint = json!([{"key": "evil", "effect": "NoExecute"}]);
    all_done(
        case,
        &credential,
        vec![
            attempt("PATCH", "/api/v1/nodes/other", json!({"spec": {"taints": taint}})),
            attempt(
                "PATCH",
                "/api/v1/nodes/other",
                json!({"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}}),
            ),
            attempt("PATCH", "/api/v1/nodes/other", json!({"metadata": {"annotations": {"evil": "x"}}})),
            attempt("PATCH", "/api/v1/nodes/other", json!({"metadata": {"labels": {LABEL: null}}})),
        ],
    );
    // Pods are its own business with the overlay alone, and then by evictions alone.
    let overlay = format!("{MANIFESTS}/pools-drain");
    case.kubectl(&["apply", "-k", &overlay]);
    until("the overlay gives it", || case.api_with(&credential, "GET", "/api/v1/pods", None));
    all_refused(
        case,
        &credential,
        vec![
            attempt("GET", "/api/v1/namespaces/default/pods/theirs", Value::Null),
            attempt("DELETE", "/api/v1/namespaces/default/pods/theirs", Value::Null),
            attempt("POST", "/api/v1/namespaces/default/pods", pod("evil", node, None)),
            attempt("PATCH", "/api/v1/namespaces/default/pods/theirs", json!({"metadata": {"labels": {"x": "y"}}})),
        ],
    );
    all_done(case, &credential, vec![eviction("theirs")]);
    case.kubectl(&["delete", "-k", &overlay]);
    tidy_up(case);
}

/// A node reads what it is assigned and what its pods name, writes its own Node, and assigns nothing, to itself neither.
pub fn node(case: &Case) {
    let _supervisor = case.supervisor(); // there is a Node
    case.await_node_ready();
    prepare(case);
    let own = case.node_path();
    let credential = [("--cert", "CERT"), ("--key", "KEY")]
        .map(|(option, name)| [option.to_owned(), case.var(&format!("NODE_{name}")).to_owned()]);
    let credential = credential.concat();
    all_refused(case, &credential, of_others());
    let source = json!({"configMap": {"namespace": "default", "name": "tenant", "kubeletConfigKey": "kubelet"}});
    all_refused(
        case,
        &credential,
        vec![
            attempt("POST", "/api/v1/namespaces/kubelet-config/configmaps", named("evil")),
            attempt("DELETE", map("kubelet-config", "payload"), Value::Null),
            attempt("GET", map("default", "tenant"), Value::Null),
            attempt("GET", map("default", "private"), Value::Null),
            attempt("PATCH", "/api/v1/nodes/other", json!({"metadata": {"annotations": {"evil": "x"}}})),
            attempt("PATCH", "/api/v1/nodes/other", json!({"metadata": {"labels": {LABEL: "payload"}}})),
            attempt("PATCH", own.as_str(), json!({"metadata": {"labels": {LABEL: "payload"}}})),
            attempt(
                "PATCH",
                own.as_str(),
                json!({"metadata": {"labels": {"node-restriction.kubernetes.io/evil": "x"}}}),
            ),
            attempt(
                "PATCH",
                own.as_str(),
                json!({"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}}),
            ),
            attempt("PATCH", own.as_str(), json!({"spec": {"taints": [{"key": "evil", "effect": "NoExecute"}]}})),
            attempt("POST", "/api/v1/namespaces/default/pods", pod("evil", case.var("NODE_NAME"), None)),
            attempt("DELETE", "/api/v1/namespaces/default/pods/theirs", Value::Null),
            eviction("theirs"),
            attempt(
                "PATCH",
                "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/other",
                json!({"spec": {"holderIdentity": "evil"}}),
            ),
        ],
    );
    // An API server that keeps it has NodeRestriction refuse it; one that drops it has nothing to refuse.
    let body = json!({"metadata": {"annotations": {"beside": "x"}}, "spec": {"configSource": source}});
    match (case.api_with(&credential, "PATCH", &own, Some(&body)), case.carrier) {
        (Err(said), _) => assert!(said.contains(": 403 "), "{said}"),
        (Ok(kept), Carrier::Labels) => {
            let beside = &kept["metadata"]["annotations"]["beside"];
            assert!(beside == "x" && kept["spec"]["configSource"].is_null(), "{kept:#}");
        }
        (Ok(kept), Carrier::Native) => panic!("a node assigned itself a configuration: {kept:#}"),
    }

    // What is its own: what it is to read, and its Node.
    all_done(
        case,
        &credential,
        vec![
            attempt("GET", "/api/v1/namespaces/kubelet-config/configmaps", Value::Null),
            attempt("PATCH", own.as_str(), json!({"metadata": {"annotations": {"evil": "x"}}})),
            attempt("PATCH", own.as_str(), json!({"spec": {"unschedulable": true}})),
            attempt("PATCH", own.as_str(), json!({"spec": {"unschedulable": null}})),
            eviction("ours"),
        ],
    );
    // What RBAC cannot hold: a tenant's pod is enough for the node to read what it names, and that alone.
    let pods = "/api/v1/namespaces/default/pods";
    case.api("POST", pods, Some(&pod("tenant", case.var("NODE_NAME"), Some("tenant")))).unwrap();
    until("the node may read it", || case.api_with(&credential, "GET", &map("default", "tenant"), None));
    all_refused(case, &credential, vec![attempt("GET", map("default", "private"), Value::Null)]);
    case.ask("DELETE", &format!("{pods}/tenant?gracePeriodSeconds=0"), None);
    tidy_up(case);
}
