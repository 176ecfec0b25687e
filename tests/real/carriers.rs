//! Where an assignment is written, who may write and read it, and what the API server keeps of it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use serde_json::{Value, json};

use crate::assignment::{Carrier, ConfigMap, LABEL, STATUS};
use crate::cluster::{Cluster, pause, until, until_within};
use crate::plugin_snapshots::doctor_finds;
use crate::supervisor::{Case, signal};

const CONDITION: &str = "KubeletConfigOk";
const LOCAL: Value = Value::Null;
const DOWNLOAD: &str = "failed to sync: failed to download config, see Kubelet log for details";
const MANIFESTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/packaging/manifests");

/// Lets every node read the ConfigMaps of the namespace `kubelet-config`.
pub fn grant(cluster: &Cluster) {
    cluster.kubectl(&["apply", "-k", &format!("{MANIFESTS}/base")]);
}

/// Puts right what a case changed, also while it fails: a second panic would leave both clusters behind.
fn in_the_end(work: impl FnOnce()) {
    let _ = catch_unwind(AssertUnwindSafe(work));
}

/// A node may read no ConfigMap of that namespace; until this goes out of scope.
struct NoRights<'a>(&'a Cluster);

impl<'a> NoRights<'a> {
    fn new(cluster: &'a Cluster) -> Self {
        let rights = Self(cluster);
        cluster.kubectl(&["-n", "kubelet-config", "delete", "roles,rolebindings", "--all"]);
        rights
    }
}

impl Drop for NoRights<'_> {
    fn drop(&mut self) {
        in_the_end(|| grant(self.0));
    }
}

/// Waits until our condition on the Node is of this status and has these words.
fn await_condition(case: &Case, status: &str, words: &[&str]) -> Value {
    until(&format!("the condition {CONDITION} to be {status}: {words:?}"), || {
        let condition = condition(&case.api("GET", &case.node_path(), None)?, CONDITION);
        let message = condition["message"].as_str().unwrap_or_default();
        let reached = condition["status"] == status && words.iter().all(|word| message.contains(word));
        if reached { Ok(condition) } else { Err(format!("{condition:#}")) }
    })
}

fn condition(node: &Value, name: &str) -> Value {
    let conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions.into_iter().find(|condition| condition["type"] == name).unwrap_or_default()
}

/// This API server drops native's assignment and native's status without a word; a label does what they did.
pub fn server_drops(case: &Case) {
    let supervisor = case.supervisor();
    let before = supervisor.process();
    let map = case.good(&case.id("map"), "maxPods: 42");
    case.assign_by_source(&map);
    let config = json!({ "status": { "config": { "error": "by hand" } } });
    case.ask("PATCH", &format!("{}/status", case.node_path()), Some(&config));
    let node = case.ask("GET", &case.node_path(), None);
    assert_eq!((&node["spec"]["configSource"], &node["status"]["config"]), (&LOCAL, &LOCAL));
    supervisor.assert_steady(1);

    case.prove(&map);
    await_condition(case, "True", &[&map.name, &map.uid]);
    case.await_configz("maxPods", &json!(42));
    assert_eq!(supervisor.restarts(), before.1 + 1);
    case.reset();
    case.await_config(&LOCAL, &LOCAL, &LOCAL, "");
    case.await_configz("maxPods", &json!(110));
}

/// With the credential that supervisor and kubelet have, nobody can choose this node's configuration.
pub fn node_cannot_label(case: &Case) {
    let supervisor = case.supervisor();
    let (map, other) = (case.good(&case.id("map"), "maxPods: 42"), case.good(&case.id("other"), "maxPods: 43"));
    case.assign(&map);
    let source = map.source();
    case.await_config(&source, &source, &source, "");
    let before = supervisor.process();
    let labels = |node: &Value| node["metadata"]["labels"].clone();
    let node = case.ask("GET", &case.node_path(), None);

    // It works for what a node may do, by the object and by its subresource.
    let (path, status) = (case.node_path(), format!("{}/status", case.node_path()));
    for path in [&path, &status] {
        let harmless = json!({ "metadata": { "annotations": { "kubelet-supervisor.test/harmless": "yes" } } });
        case.api_as("NODE", "PATCH", path, Some(&harmless)).unwrap();
        for (label, value) in [
            ("key", json!("other")),
            ("name", json!(other.name)),
            ("name", LOCAL),
            ("namespace", json!("kube-system")),
            ("namespace", LOCAL),
            ("anything", json!("else")),
        ] {
            let choice = json!({ "metadata": { "labels": { format!("{LABEL}/{label}"): value } } });
            let said = case.api_as("NODE", "PATCH", path, Some(&choice)).unwrap_err();
            assert!(said.contains(": 403 ") && said.contains("is not allowed to modify labels"), "{said}");
        }
        let mut whole = case.ask("GET", &case.node_path(), None);
        whole["metadata"]["labels"][format!("{LABEL}/name")] = json!(other.name);
        let said = case.api_as("NODE", "PUT", path, Some(&whole)).unwrap_err();
        assert!(said.contains(": 403 ") && said.contains("is not allowed to modify labels"), "{said}");
    }
    // Nor by a new Node object, which it could not bring about either.
    let mut anew = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "labels": labels(&node) } });
    anew["metadata"]["name"] = json!(case.var("NODE_NAME"));
    let said = case.api_as("NODE", "POST", "/api/v1/nodes", Some(&anew)).unwrap_err();
    assert!(said.contains(": 403 ") && said.contains(LABEL), "{said}");
    let said = case.api_as("NODE", "DELETE", &path, None).unwrap_err();
    assert!(said.contains(": 403 "), "{said}");

    assert_eq!(labels(&case.ask("GET", &path, None)), labels(&node));
    case.await_config(&source, &source, &source, "");
    assert_eq!(supervisor.process(), before);
}

/// Without the right to read it, an assignment says which rule is missing and where it is to be had; the rule is enough.
pub fn without_rights(case: &Case) {
    let (supervisor, lkg) = case.proven();
    let before = supervisor.process();
    let rights = NoRights::new(case);
    let map = case.assign_new(&case.id("map"), "maxPods: 42");
    case.await_config(&lkg.source(), &lkg.source(), &lkg.source(), DOWNLOAD);
    let place = format!("kubelet-config/{}", map.name);
    let words = [
        &place,
        "get, list and watch",
        "namespace kubelet-config",
        "system:nodes",
        "packaging/manifests/base/rbac.yaml",
    ];
    await_condition(case, "False", &words);
    supervisor.await_status(&[("/error", json!(DOWNLOAD))]);
    assert_eq!(supervisor.process(), before);

    drop(rights);
    case.await_proven(&map);
    await_condition(case, "True", &[&map.name]);
    assert_eq!(supervisor.restarts(), before.1 + 1);
}

/// The narrow manifest, for a namespace with other things in it: the ConfigMaps that it names, and no other.
pub fn narrow_rights(case: &Case) {
    let manifests = format!("{MANIFESTS}/narrow");
    let supervisor = case.supervisor();
    let named = case.good_in("kube-system", "kubelet-config-pool-a", "maxPods: 42");
    let other = case.good_in("kube-system", &case.id("other"), "maxPods: 43");
    case.kubectl(&["apply", "-k", &manifests]);
    let finds = || doctor_finds(case, "kube-system");
    case.await_node_ready();
    until("nothing to find: what may be read is there, though nothing is assigned", || {
        let found = finds();
        if found.is_empty() { Ok(()) } else { Err(format!("{found:?}")) }
    });
    case.prove(&named);
    assert!(finds().is_empty(), "{:?}", finds());
    // Watched, too: asking again and again would take a minute at least.
    let edited = case.edit_map(&named, &json!({ "data": { "kubelet": case.payload("maxPods: 44") } }));
    let source = edited.source();
    case.await_config(&source, &source, &source, "");
    case.await_configz("maxPods", &json!(44));

    let before = supervisor.process();
    case.assign(&other);
    case.await_config(&source, &source, &source, DOWNLOAD);
    let place = format!("kube-system/{}", other.name);
    await_condition(case, "False", &[&place, "packaging/manifests/narrow/rbac.yaml"]);
    assert!(finds().contains(&"nodes-may-not-read".to_owned()));
    case.assign(&edited);
    case.await_config(&source, &source, &source, "");
    assert_eq!(supervisor.process(), before);
    case.kubectl(&["delete", "-k", &manifests]);
}

/// The kubelet reports twice a second, and dies once: neither takes from the other what it says on the Node, and we are quiet.
pub fn peace(case: &Case) {
    const OF_KUBELET: [&str; 4] = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"];
    let supervisor = case.supervisor();
    let often = "nodeStatusUpdateFrequency: 500ms\nnodeStatusReportFrequency: 500ms";
    let map = case.assign_new(&case.id("map"), often);
    case.await_proven(&map);
    let ours = await_condition(case, "True", &[&map.name]);
    let annotation = |node: &Value| node["metadata"]["annotations"][STATUS].clone();
    let said = annotation(&case.ask("GET", &case.node_path(), None));
    let look = || {
        let node = case.ask("GET", &case.node_path(), None);
        assert_eq!(condition(&node, CONDITION), ours);
        assert_eq!(annotation(&node), said);
        for name in OF_KUBELET {
            assert!(condition(&node, name)["lastHeartbeatTime"].is_string(), "{name} is gone: {node:#}");
        }
        condition(&node, "Ready")["lastHeartbeatTime"].as_str().unwrap().to_owned()
    };
    let requests = |labels: &str| supervisor.metric("kubelet_supervisor_api_requests_total", labels);
    let patches = || requests("verb=\"patch\"");
    let (sent, all) = (patches(), requests(""));
    assert!(sent >= 1.0, "no verb is called patch");
    let mut beats: Vec<String> = (0..120).map(|_| (look(), pause(500)).0).collect();
    beats.dedup();
    assert!(beats.len() >= 20, "the kubelet did not report: {beats:?}");
    assert!(patches() < sent + 1.0, "nothing was to be said");
    // Two watches are renewed every two minutes.
    let all = requests("") - all;
    assert!(all <= 10.0, "{all} requests in a minute");

    signal(supervisor.kubelet(), "KILL");
    supervisor.await_status(&[("/kubelet/restarts", json!(2)), ("/kubelet/ready", json!(true))]);
    let last = look();
    until("the new kubelet to report", || if look() == last { Err(last.clone()) } else { Ok(()) });
    case.cluster.await_node_ready();
    assert!(patches() < sent + 1.0, "nothing was to be said");
}

/// kubeadm's ConfigMap and the right it gives nodes: to get it, not to watch it.
pub fn default_source(case: &Case) {
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": { "name": "kubeadm:kubelet-config" },
        "rules": [{ "apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["kubelet-config"], "verbs": ["get"] }],
    });
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": { "name": "kubeadm:kubelet-config" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "kubeadm:kubelet-config" },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:nodes" }],
    });
    for (kind, object) in [("roles", role), ("rolebindings", binding)] {
        let path = format!("/apis/rbac.authorization.k8s.io/v1/namespaces/kube-system/{kind}");
        case.ask("POST", &path, Some(&object));
    }
    let map = case.good_in("kube-system", "kubelet-config", "maxPods: 42");
    until("the right to get it", || case.api_as("NODE", "GET", &map.path(), None));
    let list = "/api/v1/namespaces/kube-system/configmaps?fieldSelector=metadata.name=kubelet-config";
    let said = case.api_as("NODE", "GET", list, None).unwrap_err();
    assert!(said.contains(": 403 "), "{said}");
    let supervisor = case.supervisor_options("4s", &["--default-source", "kube-system/kubelet-config"]);
    let source = map.source();
    case.await_config(&source, &source, &source, "");
    case.await_configz("maxPods", &json!(42));
    let restarts = supervisor.restarts();

    // An assignment wins, and what is assigned no more gives way to the default again.
    let own = case.assign_new(&case.id("own"), "maxPods: 43");
    case.await_proven(&own);
    case.reset();
    case.await_config(&source, &source, &source, "");
    assert_eq!(supervisor.restarts(), restarts + 2);

    // The next look is in two minutes at the latest.
    let edited = case.edit_map(&map, &json!({ "data": { "kubelet": case.payload("maxPods: 44") } }));
    until_within(Duration::from_secs(300), "the edited default", || {
        let seen = case.config_status()?;
        if seen["lastKnownGood"] == edited.source() { Ok(()) } else { Err(format!("{seen:#}")) }
    });
    case.await_configz("maxPods", &json!(44));
    assert!(supervisor.stop().success());
    case.delete_map(&edited);
}

/// Both carriers at once: `spec.configSource` wins; what one leaves, the other takes up without the node's own between.
pub fn both_carriers(case: &Case) {
    let supervisor = case.supervisor();
    let first = case.good(&case.id("first"), "maxPods: 41");
    // The Node authorizer knows nothing of labels; the manifests' namespace is for both kinds of cluster.
    let labelled = |suffix: &str, pods: u32| {
        case.good_in(Carrier::Labels.namespace(), &case.id(suffix), &format!("maxPods: {pods}"))
    };
    let (twin, other) = (labelled("twin", 41), labelled("other", 42));
    let runs = |map: &ConfigMap, restarts: u64| {
        case.await_proven(map);
        supervisor.await_status(&[("/kubelet/restarts", json!(restarts)), ("/kubelet/ready", json!(true))]);
    };
    case.assign_by_labels(&twin);
    case.assign_by_source(&first);
    until("spec.configSource to win", || {
        let seen = case.config_status()?;
        if seen["lastKnownGood"] == first.source() { Ok(()) } else { Err(format!("{seen:#}")) }
    });
    supervisor.await_ready();
    let restarts = supervisor.restarts();

    // Equal content: the process stays.
    let before = supervisor.process();
    case.clear_source();
    runs(&twin, restarts);
    case.assign_by_source(&first);
    runs(&first, restarts);
    // Labels change below it, and nothing happens.
    case.assign_by_labels(&other);
    supervisor.assert_steady(2);
    runs(&first, restarts);
    assert_eq!(supervisor.process(), before);
    // Other content: one restart, not one more for the node's own.
    case.clear_source();
    runs(&other, restarts + 1);
    case.await_configz("maxPods", &json!(42));
    case.assign_by_source(&first);
    runs(&first, restarts + 2);
    case.clear_labels();
    supervisor.assert_steady(1);
    case.clear_source();
    case.await_config(&LOCAL, &LOCAL, &LOCAL, "");
    case.await_configz("maxPods", &json!(110));
    assert_eq!(supervisor.restarts(), restarts + 3);
}

/// The cluster is upgraded: a server with the gate off keeps a source that is there, and takes no new one.
pub fn still_in_use(case: &Case) {
    struct GateOff<'a>(&'a Cluster);
    impl Drop for GateOff<'_> {
        fn drop(&mut self) {
            in_the_end(|| self.0.restart_server(Carrier::Native.server_flags()));
        }
    }
    let supervisor = case.supervisor();
    // That server has no Node authorizer for it either, so the rights are those of the manifests.
    let in_place =
        |suffix: &str, pods: u32| case.good_in("kubelet-config", &case.id(suffix), &format!("maxPods: {pods}"));
    let (map, other, late) = (in_place("map", 42), in_place("other", 44), in_place("late", 45));
    case.assign_by_source(&map);
    case.await_proven(&map);
    let before = supervisor.process();
    let gate = GateOff(case);
    case.restart_server(Carrier::Labels.server_flags());
    let edited = case.edit_map(&map, &json!({ "data": { "kubelet": case.payload("maxPods: 43") } }));
    // status.config is in use as well: this asserts that it is kept.
    case.await_proven(&edited);
    case.assign_by_source(&other);
    case.await_proven(&other);
    assert_eq!(supervisor.restarts(), before.1 + 2);
    case.clear_source();
    case.await_config(&LOCAL, &LOCAL, &LOCAL, "");

    // The last one is gone for good; labels go on where it ended.
    case.assign_by_source(&late);
    assert_eq!(case.ask("GET", &case.node_path(), None)["spec"]["configSource"], LOCAL);
    case.assign_by_labels(&late);
    let source = late.source();
    until("the labels to take over", || {
        let node = case.api("GET", &case.node_path(), None)?;
        let text = node["metadata"]["annotations"][STATUS].as_str().unwrap_or("{}");
        let seen: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        if seen["lastKnownGood"] == source { Ok(()) } else { Err(format!("{seen:#}")) }
    });
    case.await_configz("maxPods", &json!(45));
    drop(gate);
    // The gate is on again, and the next word goes to both places.
    let edited = case.edit_map(&late, &json!({ "metadata": { "labels": { "edited": "yes" } } }));
    case.await_proven(&edited);
}
