//! Who may label Nodes and has a namespace of their own: a pod there is enough for a node to read their ConfigMap.

use testkit::api_server::Request;
use testkit::rig::modern::condition;
use testkit::rig::{NAMESPACE, NODE, Rig, configuration, is};

const TENANT: &str = "tenant";

/// A node whose policy, if there is one, says this; it may read the tenant's ConfigMap.
fn node(policy: Option<&str>) -> Rig {
    let mut rig = Rig::new();
    if let Some(fields) = policy {
        std::fs::create_dir(rig.at("etc")).unwrap();
        let text = format!("apiVersion: kubelet-supervisor.io/v1alpha1\nkind: NodePolicy\n{fields}\n");
        std::fs::write(rig.at("etc/policy.yaml"), text).unwrap();
        let path = rig.at("etc/policy.yaml").display().to_string();
        rig.option("--policy", &path);
    }
    rig.option("--config-namespace", NAMESPACE);
    rig.up();
    rig.server.put_config_map(TENANT, "evil", &[("kubelet", &configuration("maxPods: 1"))]);
    let good = rig.put("good", &configuration("maxPods: 42"));
    rig.label(&[("name", Some("good")), ("namespace", None)]);
    rig.wait_config("it is proven", |config| is(config, "lastKnownGood", &good));
    rig
}

/// It is said why not, and nothing is started for it.
fn is_refused(rig: &Rig, why: &str) {
    let starts = rig.starts();
    rig.server
        .wait_node(NODE, testkit::rig::SOON, |node| {
            condition(node).is_some_and(|it| it["message"].as_str().unwrap_or_default().contains(why))
        })
        .unwrap_or_else(|error| panic!("{why}: {error}"));
    assert_eq!((rig.starts(), rig.last_config()["maxPods"].as_u64()), (starts, Some(42)), "{why}");
    // What was good is good still.
    rig.server.unassign(NODE);
    rig.label(&[("name", Some("good")), ("namespace", None)]);
    rig.wait_status("the right one again", |status| status["errorDetail"] == "" && status["error"] == "");
    assert_eq!((rig.starts(), rig.last_config()["maxPods"].as_u64()), (starts, Some(42)), "{why}");
}

fn labelled(rig: &Rig) {
    rig.label(&[("name", Some("evil")), ("namespace", Some(TENANT))]);
}

fn assigned(rig: &Rig) {
    rig.server.assign(NODE, TENANT, "evil", "kubelet");
}

#[test]
fn with_a_policy_a_label_leads_into_no_other_namespace() {
    for policy in ["unknownFields: warn", "allowedNamespaces: [kube-system]"] {
        let mut rig = node(Some(policy));
        labelled(&rig);
        is_refused(&rig, TENANT);
        rig.stop();
    }
}

/// `spec.configSource` is an administrator's, as in native, where no policy says otherwise.
#[test]
fn a_source_leads_into_another_namespace_unless_the_policy_says_no() {
    let mut rig = node(Some("allowedNamespaces: [kube-system]"));
    assigned(&rig);
    is_refused(&rig, TENANT);
    rig.stop();
    for policy in [None, Some("allowedNamespaces: [kube-system, tenant]")] {
        let mut rig = node(policy);
        assigned(&rig);
        rig.wait_running(1);
        rig.stop();
    }
}

/// Without a policy that is anywhere.
#[test]
fn a_label_leads_where_it_is_allowed_to() {
    for policy in [None, Some("allowedNamespaces: [kube-system, tenant]")] {
        let mut rig = node(policy);
        labelled(&rig);
        rig.wait_running(1);
        rig.stop();
    }
}

/// What a tenant's ConfigMap holds; none of it may show anywhere.
const KEPT: [&str; 3] = ["tenants-key", "tenants-value", "tenants-annotation"];

/// Nothing of it is asked for, written or told.
fn is_not_looked_at(rig: &Rig, what: &str) {
    let asked = |request: &Request| request.path.contains(&format!("namespaces/{TENANT}/"));
    let requests: Vec<Request> = rig.server.requests().into_iter().filter(asked).collect();
    assert_eq!(requests.len(), 0, "{what}: {requests:?}");
    let told = [
        rig.status().to_string(),
        rig.done(&["history", "-o", "json"]),
        rig.server.node(NODE).to_string(),
        serde_json::json!(rig.server.events()).to_string(),
        rig.get("/metrics").1,
        rig.log(),
    ];
    for (told, kept) in told.iter().flat_map(|told| KEPT.map(|kept| (told, kept))) {
        assert!(!told.contains(kept), "{what}: {kept}: {told}");
    }
    let mut places = vec![rig.at("dynamic")];
    while let Some(place) = places.pop() {
        for entry in std::fs::read_dir(place).unwrap().map(Result::unwrap) {
            if entry.file_type().unwrap().is_dir() {
                places.push(entry.path());
            } else if entry.file_type().unwrap().is_file() {
                let bytes = std::fs::read(entry.path()).unwrap();
                let text = String::from_utf8_lossy(&bytes);
                let name = entry.path().display().to_string();
                assert!(KEPT.iter().all(|kept| !text.contains(kept) && !name.contains(kept)), "{what}: {name}: {text}");
            }
        }
    }
}

/// A key that is not there would be told with all that are, a line that cannot be parsed with its text.
fn put_kept(rig: &Rig) {
    let annotation = Some(("kubelet-supervisor.io/merge", "tenants-annotation"));
    let data = [("tenants-key", "tenants-value: [\n"), ("kubelet.flags", "--tenants-value")];
    rig.server.put_annotated_config_map(TENANT, "evil", &data, annotation);
}

#[test]
fn nothing_of_a_foreign_config_map_is_fetched_written_or_told() {
    let refuses = Some("allowedNamespaces: [kube-system]");
    for (what, policy, assign) in [
        ("by a label", refuses, labelled as fn(&Rig)),
        ("by a label that the policy does not name", Some("unknownFields: warn"), labelled),
        ("by spec.configSource", refuses, assigned),
    ] {
        let mut rig = node(policy);
        put_kept(&rig);
        assign(&rig);
        is_refused(&rig, TENANT);
        rig.restart();
        assign(&rig);
        is_refused(&rig, TENANT);
        is_not_looked_at(&rig, what);
        rig.stop();
    }
}

#[test]
fn a_preflight_request_reads_no_foreign_config_map() {
    let mut rig = node(Some("allowedNamespaces: [kube-system]"));
    put_kept(&rig);
    rig.annotate_node("preflight", &format!("{TENANT}/evil"));
    let answered = |node: &serde_json::Value| {
        let answer = &node["metadata"]["annotations"]["kubelet-supervisor.io/preflight-status"];
        answer.as_str().is_some_and(|answer| answer.contains("PolicyRefused") && answer.contains(TENANT))
    };
    rig.server.wait_node(NODE, testkit::rig::SOON, answered).unwrap_or_else(|error| panic!("{error}"));
    is_not_looked_at(&rig, "a preflight request");
    rig.stop();
}

/// The default source is an operator's word, and the policy root's.
#[test]
fn a_default_source_is_in_an_allowed_namespace() {
    let mut rig = Rig::new();
    std::fs::create_dir(rig.at("etc")).unwrap();
    let text = "apiVersion: kubelet-supervisor.io/v1alpha1\nkind: NodePolicy\nallowedNamespaces: [kube-system]\n";
    std::fs::write(rig.at("etc/policy.yaml"), text).unwrap();
    let path = rig.at("etc/policy.yaml").display().to_string();
    rig.option("--policy", &path);
    rig.option("--default-source", &format!("{TENANT}/evil/kubelet"));
    put_kept(&rig);
    rig.up();
    rig.wait_condition("False", "SyncFailed");
    is_not_looked_at(&rig, "a default source");
    rig.stop();
}
