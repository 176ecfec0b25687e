//! `doctor`: each thing that can be missing, found by the built binary, and nothing found where nothing is.

use serde_json::{Value, json};

use crate::{Bench, Controller, NODE, Ran};
use testkit::api_server::{Fault, FaultKind, Verb};

const LABEL: &str = "kubelet-config.node-restriction.kubernetes.io";
const NAMESPACE: &str = "kubelet-config";

/// A node that runs what its labels say, on a server without `spec.configSource`.
fn well() -> Bench {
    let bench = Bench::new();
    bench.server.drop_dynamic_config(true);
    let (uid, version) = bench.server.put_config_map(NAMESPACE, "pool-a", &[("kubelet", "{}")]);
    let map = json!({"configMap": {"namespace": NAMESPACE, "name": "pool-a", "kubeletConfigKey": "kubelet",
        "uid": uid, "resourceVersion": version}});
    let status = json!({"assigned": map, "active": map, "lastKnownGood": map}).to_string();
    let condition =
        json!({"type": "KubeletConfigOk", "status": "True", "reason": "LastKnownGood", "message": "Proven"});
    bench.server.patch_node(
        NODE,
        json!({
            "metadata": {"labels": {format!("{LABEL}/name"): "pool-a"},
                "annotations": {"kubelet-supervisor.io/config-status": status,
                    "kubelet-supervisor.io/supervisor": r#"{"version":"0.1.0","shadowedByFlags":[]}"#}},
            "status": {"conditions": [condition, {"type": "Ready", "status": "True"}],
                "nodeInfo": {"kubeletVersion": "v1.36.2"}},
        }),
    );
    bench
}

fn found(ran: &Ran) -> Vec<String> {
    let findings = ran.json()["findings"].as_array().unwrap().clone();
    findings.iter().map(|finding| finding["check"].as_str().unwrap().to_owned()).collect()
}

fn json_of(bench: &Bench) -> Ran {
    bench.run(&["doctor", "-o", "json"])
}

#[test]
fn nothing_is_missing() {
    let bench = well();
    let before = bench.server.node(NODE);
    let said = bench.run(&["doctor"]).ok();
    assert_eq!(
        said,
        "nothing is missing: 1 node, 1 assigned ConfigMap, 10 rights looked at; assignments are written as labels\n"
    );
    let chosen = format!("{LABEL}/name=pool-a");
    for args in [&["doctor", "node/n1"][..], &["doctor", NODE], &["doctor", "-l", &chosen]] {
        assert_eq!(bench.run(args).code, 0, "{args:?}");
    }
    bench.run(&["doctor", "-l", "pool=none"]).ends(2, &["no node has the labels pool=none"]);
    assert_eq!(bench.server.node(NODE), before, "what was tried was tried as a dry run");
    let writes = bench.server.requests().into_iter().filter(|it| it.method == "PATCH");
    assert!(writes.into_iter().all(|it| it.query == "dryRun=All"));
    bench.server.drop_dynamic_config(false);
    assert_eq!(json_of(&bench).json()["carrier"], "spec.configSource");
}

#[test]
fn rights_that_the_user_lacks() {
    let bench = well();
    bench.server.judge_access(|spec| {
        let of = &spec["resourceAttributes"];
        !(of["subresource"] == "proxy" || of["resource"] == "configmaps" && of["verb"] == "create")
    });
    let ran = bench.run(&["doctor"]);
    assert_eq!(ran.code, 1, "{ran:#?}");
    let expected = "\
cluster: you may not get nodes/proxy; needed by capture, diff NODE, explain
    kubectl create clusterrole kubelet-config-nodes-proxy-d407a9 --verb=get --resource=nodes/proxy
    kubectl create clusterrolebinding kubelet-config-nodes-proxy-d407a9 --clusterrole=kubelet-config-nodes-proxy-d407a9 --user=jane
cluster: you may not create configmaps in namespace kubelet-config; needed by push, preflight
    kubectl -n kubelet-config create role kubelet-config-configmaps-a643b5 --verb=create --resource=configmaps
    kubectl -n kubelet-config create rolebinding kubelet-config-configmaps-a643b5 --role=kubelet-config-configmaps-a643b5 --user=jane
2 findings: 1 node, 1 assigned ConfigMap, 10 rights looked at; assignments are written as labels
";
    assert_eq!(ran.out, expected);
}

#[test]
fn nodes_that_may_not_read() {
    let bench = well();
    // As packaging/manifests/narrow has it, and this ConfigMap is not on the list.
    bench.server.judge_access(|spec| spec["user"].is_null() || spec["resourceAttributes"]["name"] == "other");
    let ran = json_of(&bench);
    assert_eq!((ran.code, found(&ran)), (1, vec!["nodes-may-not-read".to_owned()]));
    let problem = ran.json()["findings"][0]["problem"].to_string();
    assert!(problem.contains("may not get, list, watch ConfigMap kubelet-config/pool-a"), "{problem}");
    // On the list it is well, though not all of the namespace may be read.
    bench.server.judge_access(|spec| spec["user"].is_null() || spec["resourceAttributes"]["name"] == "pool-a");
    assert_eq!(json_of(&bench).code, 0);
    // Nor is it missed in the user's namespace, where nothing is assigned.
    let label = json!({"metadata": {"labels": {format!("{LABEL}/namespace"): NAMESPACE}}});
    bench.server.patch_node(NODE, label);
    assert_eq!(bench.run(&["doctor", "-n", "kube-system", "-o", "json"]).code, 0);
    // Nothing is assigned at all: the right to one that is there is enough.
    let label = json!({"metadata": {"labels": {format!("{LABEL}/name"): null, format!("{LABEL}/namespace"): null}}});
    bench.server.patch_node(NODE, label);
    assert_eq!(json_of(&bench).code, 0);
    bench.server.judge_access(|spec| spec["user"].is_null() || spec["resourceAttributes"]["name"] == "not-there");
    assert_eq!(found(&json_of(&bench)), ["nodes-may-not-read"]);
}

#[test]
fn a_labels_domain_that_nobody_guards() {
    let bench = well();
    bench.server.guard_labels(false);
    let ran = json_of(&bench);
    assert_eq!((ran.code, found(&ran)), (1, vec!["labels-not-guarded".to_owned()]));
    assert!(ran.json()["findings"][0]["mend"][0].as_str().unwrap().contains("NodeRestriction"));
    // In somebody else's name the node cannot be impersonated.
    let ran = bench.run(&["doctor", "--as", "bob", "-o", "json"]);
    assert_eq!((ran.code, found(&ran).len()), (2, 0), "{ran:#?}");
    assert!(ran.json()["couldNotLook"][0].as_str().unwrap().contains("not with --as"));
}

#[test]
fn assignments_that_lead_nowhere() {
    let bench = well();
    let label = |name: &str, value: Value| {
        bench.server.patch_node(NODE, json!({"metadata": {"labels": {format!("{LABEL}/{name}"): value}}}));
    };
    label("key", "other".into());
    assert!(found(&json_of(&bench)).contains(&"no-key".to_owned()));
    label("key", Value::Null);
    label("name", "gone".into());
    let ran = json_of(&bench);
    assert_eq!(found(&ran), ["no-config-map"]);
    let mend = ran.json()["findings"][0]["mend"].clone();
    assert_eq!(
        mend,
        json!(["kubectl kubelet-config -n kubelet-config push FILE --name BASE", "kubectl kubelet-config reset n1"])
    );
    label("name", "pool-a".into());
    // A server that keeps both.
    bench.server.drop_dynamic_config(false);
    bench.server.put_config_map("kube-system", "native", &[("kubelet", "{}")]);
    bench.server.assign(NODE, "kube-system", "native", "kubelet");
    assert_eq!(found(&json_of(&bench)), ["contradicting-assignments"]);
}

#[test]
fn nodes_without_a_supervisor_are_gathered() {
    let bench = well();
    for index in 0..5 {
        bench.server.create_node(&format!("bare{index}"));
    }
    let ran = bench.run(&["doctor"]);
    assert_eq!(ran.code, 1);
    let first = ran.out.lines().next().unwrap();
    assert!(first.starts_with("node/bare0, node/bare1, node/bare2 and 2 more: no supervisor"), "{first}");
    assert!(ran.out.contains("kubelet-supervisor enable && systemctl restart kubelet"));
    assert_eq!(json_of(&bench).json()["findings"][0]["nodes"].as_array().unwrap().len(), 5);
    let ran = bench.run(&["doctor", NODE, "bare3", "-o", "yaml"]);
    assert!(ran.code == 1 && ran.out.contains("- bare3") && !ran.out.contains("bare0"), "{ran:#?}");
}

#[test]
fn an_old_supervisor_and_flags_that_win() {
    let bench = well();
    let about = r#"{"version":"0.2.0","shadowedByFlags":["maxPods","cgroupDriver"],"ownFiles":"/etc/k/30-a.conf: kind is missing"}"#;
    let status = json!({"metadata": {"annotations": {"kubelet-supervisor.io/supervisor": about,
        "kubelet-supervisor.io/config-status": "{}"}}});
    bench.server.create_node("n2");
    bench.server.patch_node("n2", status);
    let ran = json_of(&bench);
    assert_eq!(found(&ran), ["old-supervisor", "own-files", "shadowed-fields"]);
    assert!(ran.out.contains("/etc/k/30-a.conf: kind is missing"), "{}", ran.out);
    let nodes: Vec<Value> = (0..3).map(|index| ran.json()["findings"][index]["nodes"][0].clone()).collect();
    assert_eq!(nodes, ["n1", "n2", "n2"]);
}

#[test]
fn what_cannot_be_checked_is_reported() {
    let bench = well();
    bench.run(&["doctor", "nobody"]).ends(2, &["nodes \"nobody\" not found"]);
    let forbid = |verb, path: &str| bench.server.faults().push(Fault::new(verb, path, FaultKind::Status(403)));
    forbid(Verb::Patch, "dryRun");
    let ran = bench.run(&["doctor"]);
    assert_eq!(ran.code, 2, "{ran:#?}");
    assert!(
        ran.out
            .starts_with("could not look: whether this API server keeps spec.configSource (a dry run): scripted (403)"),
        "{}",
        ran.out
    );
    forbid(Verb::Post, "selfsubjectaccessreviews");
    let ran = bench.run(&["doctor"]);
    assert!(ran.code == 2 && ran.err.starts_with("error: asking which rights you have: scripted"), "{ran:#?}");
    bench.server.faults().clear();
    bench.server.require_token(Some("another"));
    bench.run(&["doctor"]).ends(2, &["log in again"]);
}

#[test]
fn nodes_without_a_policy_are_a_note_and_beside_others_a_finding() {
    let bench = well();
    let tell = |node: &str, policy: &str| {
        let about = json!({"version": env!("CARGO_PKG_VERSION"), "shadowedByFlags": [], "policy": policy}).to_string();
        let annotations =
            json!({"kubelet-supervisor.io/supervisor": about, "kubelet-supervisor.io/config-status": "{}"});
        bench.server.patch_node(node, json!({"metadata": {"annotations": annotations}}));
    };
    for index in 0..12 {
        let name = format!("open{index:02}");
        bench.server.create_node(&name);
        tell(&name, "absent");
    }
    let ran = bench.run(&["doctor"]);
    assert_eq!(ran.code, 0, "nothing has to be mended: {ran:#?}");
    let lines: Vec<&str> = ran.out.lines().filter(|line| line.starts_with("note: ")).collect();
    let [line] = lines[..] else { panic!("{}", ran.out) };
    assert!(line.starts_with("note: 12 nodes (open00, open01, "), "{line}");
    assert!(line.contains("open09 and 2 more): no policy: ") && line.ends_with("enable --policy baseline"), "{line}");
    let document = json_of(&bench).json();
    assert_eq!((document["findings"].clone(), document["notes"][0]["check"].clone()), (json!([]), json!("no-policy")));
    assert_eq!(document["notes"][0]["nodes"].as_array().unwrap().len(), 12);

    tell(NODE, "in-force");
    let ran = json_of(&bench);
    assert_eq!((ran.code, found(&ran)), (1, vec!["no-policy".to_owned()]));
    tell(NODE, "unreadable");
    assert_eq!(found(&json_of(&bench)), ["no-policy", "policy-unreadable"]);
    tell(NODE, "in-force");
    assert_eq!(
        (ran.json()["notes"].clone(), ran.json()["findings"][0]["nodes"][11].clone()),
        (json!([]), json!("open11"))
    );
}

#[test]
fn pools_that_nobody_carries_out_and_those_that_go_no_further() {
    let bench = well();
    assert_eq!(json_of(&bench).json()["pools"], Value::Null, "nobody misses a CRD");
    let spec = json!({"nodeSelector": {"matchLabels": {"nobody": "has"}}, "kubeletConfiguration": {"maxPods": 60}});
    bench.server.put_pool("fine", &spec);
    let ran = json_of(&bench);
    assert_eq!((ran.code, found(&ran)), (1, vec!["no-controller".to_owned()]), "{ran:#?}");
    assert_eq!(ran.json()["pools"], json!({"count": 1, "controller": null, "image": null}));
    assert!(ran.out.contains("nobody holds it"), "{}", ran.out);

    let controller = Controller::start(&bench);
    let settled = |pool: &str| bench.server.pool(pool).unwrap()["status"]["observedGeneration"] != -1;
    let until = |pool: &str| {
        while !settled(pool) {
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    };
    until("fine");
    let ran = json_of(&bench);
    assert_eq!((ran.code, found(&ran)), (0, vec![]), "{ran:#?}");
    assert!(ran.json()["pools"]["controller"].is_string());
    let said = bench.run(&["doctor"]).ok();
    assert!(said.contains("; 1 pool, carried out by ") && !said.contains("image"), "{said}");
    // As in a Pod, which the host is named like.
    let pod = nix::unistd::gethostname().unwrap().into_string().unwrap();
    bench.server.put_pod(NODE, "kubelet-config", "another", json!({"spec": {"containers": [{"image": "r/b:1"}]}}));
    bench.server.put_pod(NODE, "kubelet-config", &pod, json!({"spec": {"containers": [{"image": "r/c@sha256:0"}]}}));
    assert_eq!(json_of(&bench).json()["pools"]["image"], "r/c@sha256:0");
    assert!(bench.run(&["doctor"]).ok().contains(", image r/c@sha256:0"));
    bench.server.put_pool("wrong", &json!({"nodeSelector": {}, "kubeletConfiguration": {"kind": "Pod"}}));
    until("wrong");
    let ran = json_of(&bench);
    assert_eq!((ran.code, found(&ran)), (1, vec!["pool-stalled".to_owned()]), "{ran:#?}");
    let finding = ran.json()["findings"][0].clone();
    let problem = finding["problem"].as_str().unwrap();
    assert!(problem.starts_with("pool wrong goes no further (RevisionInvalid): "), "{problem}");
    assert!(
        finding["mend"][0].as_str().unwrap().starts_with("`kubectl edit kcpool wrong` mends the spec"),
        "{finding}"
    );

    controller.stop();
    assert_eq!(found(&json_of(&bench)), ["no-controller", "pool-stalled"], "it released its Lease");
    bench.server.faults().push(Fault::new(Verb::List, "kubeletconfigpools", FaultKind::Status(403)));
    let ran = json_of(&bench);
    assert!(ran.code == 2 && ran.json()["couldNotLook"][0].as_str().unwrap().starts_with("pools and their controller"));
}
