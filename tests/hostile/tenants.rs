//! Who may label Nodes and has a namespace of their own: a pod there is enough for a node to read their ConfigMap.

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
