//! ConfigMaps and Nodes that come and go, credentials that come late, and how little is asked when nothing happens.

use std::time::Duration;

use serde_json::json;

use testkit::rig::{NAMESPACE, NODE, Rig, SOON, configuration};

#[test]
fn a_node_that_registers_late() {
    let mut rig = Rig::new();
    rig.server.delete_node(NODE);
    rig.up();
    rig.wait_log("there is no Node n1 (yet)");
    rig.server.create_node(NODE);
    rig.apply("a", &configuration("maxPods: 42"));
}

#[test]
fn the_merge_mode_of_a_config_map_is_an_annotation() {
    let mut rig = Rig::long_trial();
    rig.local("maxPods: 77\nclusterDomain: local.test\nfeatureGates: {AppArmor: true}");
    rig.up();
    rig.apply("a", &configuration("clusterDNS: [10.0.0.10]"));
    let config = rig.last_config();
    assert!(config["maxPods"].is_null() && config["featureGates"]["AppArmor"] == true, "{config:#}");
    let version = rig.server.annotate_config_map(NAMESPACE, "a", "kubelet-supervisor.io/merge", "overlay");
    rig.wait_active(&version);
    rig.wait_ready(3);
    let config = rig.last_config();
    assert!(config["maxPods"] == 77 && config["clusterDNS"][0] == "10.0.0.10", "{config:#}");
    assert_eq!(config["clusterDomain"], "local.test");
    let version = rig.server.annotate_config_map(NAMESPACE, "a", "kubelet-supervisor.io/merge", "blend");
    rig.wait_told("KubeletConfigRejected", &version, "unknown merge mode \"blend\"");
}

#[test]
fn kubeconfigs_that_cannot_be_used() {
    let mut rig = Rig::new();
    let path = rig.at("kubeconfig");
    let fixture = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/x509-v1.pem");
    let with = |user: serde_json::Value| {
        json!({"apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": rig.server.url()}}],
            "users": [{"name": "c", "user": user}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}]})
        .to_string()
    };
    let user = |certificate: &str| with(json!({"client-certificate": certificate, "client-key": certificate}));
    let cases = [
        ("{0xdeadbeef".to_owned(), "kubeconfig: "),
        (String::new(), "kubeconfig: "),
        (
            user(fixture),
            "x509-v1.pem: it is X.509 V1; only version 3 can be used for TLS, issue it again with extensions",
        ),
        (user("/no/such.pem"), "kubeconfig: client-certificate /no/such.pem: No such file or directory"),
        (user("/dev/null"), "client-certificate /dev/null: it is not a regular file"),
        (with(json!({"client-certificate-data": "?"})), "client-certificate-data is not base64"),
    ];
    std::fs::write(&path, &cases[0].0).unwrap();
    let version = rig.offer("a", &configuration("maxPods: 42"));
    rig.up();
    for (text, message) in &cases {
        let said = rig.log().matches("no credentials yet").count();
        std::fs::write(&path, text).unwrap();
        testkit::rig::eventually(message, || {
            let log = rig.log();
            let news = log.matches("no credentials yet").count() > said || said == 1;
            (news && log.contains(message)).then_some(())
        });
    }
    assert_eq!(rig.starts(), 1, "the kubelet does not mind");
    rig.server.write_kubeconfig(&path);
    rig.wait_active(&version);
}

#[test]
fn nothing_is_asked_when_nothing_happens() {
    let rig = Rig::new().running();
    let version = rig.prove("a", &configuration("maxPods: 42"));
    rig.wait_event("KubeletConfigProven", &version);
    rig.server.wait_until(SOON, |state| (state.watches() == 2).then_some(())).unwrap();
    // What is answered may have been sent twice; that comes at once or not at all.
    let _ = rig.server.wait_until(Duration::from_millis(500), |_| None::<()>);
    let before = rig.server.requests().len();
    let more = rig.server.wait_until(Duration::from_secs(4), |state| (state.requests().len() > before).then_some(()));
    let requests = rig.server.requests();
    assert!(more.is_err(), "{:?}", &requests[before..]);
    assert_eq!(rig.server.watches(), 2);
    let patches = requests.iter().filter(|request| request.method == "PATCH").count();
    // Hello, the change, the trial, when it ends, the proof; and one for a moment of ill health on a busy machine.
    assert!(patches <= 6, "{patches} PATCHes for one change and its proof");
    assert!(requests.iter().all(|request| request.method != "PUT" && request.method != "DELETE"));
}
