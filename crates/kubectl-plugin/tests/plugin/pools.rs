//! `render`, and `diff` of pools.

use serde_json::{Value, json};
use testkit::api_server::{Fault, FaultKind, Verb};

use crate::read::configz;
use crate::{Bench, NODE};

fn bench() -> Bench {
    let bench = Bench::new();
    bench.server.set_configz(NODE, configz());
    bench.server.set_capacity(NODE, "8", "32Gi", "110");
    bench.server.patch_node(NODE, json!({"status": {"nodeInfo": {"kubeletVersion": "v1.20.2"}}}));
    let configuration =
        json!({"maxPods": "${node.cpu * 10}", "kubeReserved": {"memory": "${eks.memoryReserved(node.pods)}"}});
    let spec = json!({"nodeSelector": {}, "kubeletConfiguration": configuration, "merge": "overlay"});
    bench.server.put_pool("workers", &spec);
    bench
}

#[test]
fn what_a_pool_says_for_a_node() {
    let bench = bench();
    let ran = bench.run(&["render", "pool/workers", NODE]);
    assert!(ran.err.starts_with("ConfigMap kubelet-config/workers-") && ran.err.contains("laid over"), "{ran:?}");
    assert_eq!(
        ran.ok(),
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nkubeReserved:\n  memory: 1135Mi\nmaxPods: 80\n"
    );
    let value: Value = bench.run(&["render", "workers", "node/n1", "-o", "json"]).json();
    assert_eq!((&value["maxPods"], &value["kubeReserved"]["memory"]), (&json!(80), &json!("1135Mi")));
    assert_eq!(bench.run(&["__complete", "render", ""]).ok(), "pool/workers\n:4\n");
    // Nothing is made by it.
    assert!(bench.server.requests().iter().all(|request| request.method == "GET"));
}

#[test]
fn what_it_says_wrong_is_said_with_the_node() {
    let bench = bench();
    let spec = json!({"nodeSelector": {}, "kubeletConfiguration": {"maxPods": "${int(node.labels['size'])}"}});
    bench.server.put_pool("odd", &spec);
    for (args, words) in [
        (
            vec!["render", "pool/odd", NODE],
            "pool odd: Node n1: spec.kubeletConfiguration.maxPods: ${int(node.labels['size'])}: there is no \"size\"",
        ),
        (vec!["render", "pool/none", NODE], "get pool none"),
        (vec!["render", "pool/workers", "n9"], "n9"),
        (vec!["render", "cm/x", NODE], "is no pool/NAME"),
        (vec!["diff", "pool/workers", "cm/x"], "it has expressions"),
        (vec!["diff", NODE, "pool/odd"], "there is no \"size\""),
    ] {
        let ran = bench.run(&args);
        assert!(ran.code != 0 && ran.err.contains(words), "{args:?}: {ran:?}");
    }
}

#[test]
fn what_a_pool_would_change_on_a_node() {
    let bench = bench();
    let ran = bench.run(&["diff", NODE, "pool/workers", "-o", "json"]);
    assert_eq!(ran.code, 1, "{ran:?}");
    let value = ran.json();
    let changes = value["changes"].as_array().unwrap().iter();
    let changes: Vec<(&str, &Value)> =
        changes.map(|change| (change["field"].as_str().unwrap(), &change["new"])).collect();
    assert!(changes.contains(&("maxPods", &json!(80))), "{changes:?}");
    assert!(changes.contains(&("kubeReserved.memory", &json!("1135Mi"))), "{changes:?}");
    assert_eq!(value["to"], "pool/workers");
    // Without expressions no node is needed.
    bench.server.put_pool("plain", &json!({"nodeSelector": {}, "kubeletConfiguration": {"maxPods": 70}}));
    let file = bench.file("now.yaml", "maxPods: 60\n");
    assert!(bench.run(&["diff", &file, "pool/plain"]).out.contains("60 → 70"));
}

#[test]
fn who_writes_into_a_pools_node_is_told() {
    let bench = Bench::new();
    bench.server.put_config_map("kubelet-config", "pool-a", &[("kubelet", "{}")]);
    let warns = |args: &[&str]| {
        let ran = bench.run(args);
        assert_eq!(ran.code, 0, "{ran:?}");
        ran.err.contains("warning: node/n1 is in pool workers, which undoes this")
    };
    assert!(!warns(&["assign", "pool-a", NODE]));
    let spec = |paused: bool| json!({"nodeSelector": {}, "kubeletConfiguration": {}, "paused": paused});
    bench.server.put_pool("workers", &spec(false));
    assert!(warns(&["reset", NODE]) && warns(&["assign", "pool-a", NODE]));
    assert!(!warns(&["retry", "-l", "!none"]), "it assigns nothing");
    bench.server.faults().push(Fault::new(Verb::List, "kubeletconfigpools", FaultKind::Status(403)));
    assert!(!warns(&["reset", NODE]), "who may not list them is not kept from it");
    bench.server.faults().clear();
    bench.server.put_pool("workers", &spec(true));
    assert!(!warns(&["assign", "pool-a", NODE]), "one that is paused undoes nothing");
    assert_eq!(bench.run(&["__complete", "rollout", "undo", ""]).ok(), "pool/workers\n:4\n");
}

#[test]
fn a_namespace_that_means_nothing_is_refused() {
    let bench = bench();
    for args in [&["rollout", "status"][..], &["rollout", "pause", "workers"]] {
        bench.run(&[args, &["-n", "other"]].concat()).ends(2, &["-n other: pools are of the whole cluster"]);
        assert_eq!(bench.run(&[args, &["-n", "kubelet-config"]].concat()).code, 0, "{args:?}");
    }
    assert_eq!(bench.run(&["rollout", "status", "workers", "-n", "other"]).code, 0, "it reads ConfigMaps");
}

#[test]
fn how_far_pools_are() {
    let bench = bench();
    assert!(bench.run(&["rollout", "status"]).ok().contains("workers   0"));
    let condition = |kind: &str, status: &str, reason: &str| {
        json!({"type": kind, "status": status, "reason": reason, "message": "so", "observedGeneration": 1,
            "lastTransitionTime": "2026-01-01T00:00:00Z"})
    };
    let status = json!({
        "observedGeneration": 1, "currentRevision": "workers-a", "updateRevision": "workers-b", "nodes": 1, "updated": 1, "failed": 1,
        "badRevisions": [{"revision": "workers-b", "nodes": [{"name": NODE, "message": "\u{1b}[31mno\nnever"}]}],
        "conditions": [condition("Ready", "False", "PreflightRefused"), condition("Stalled", "True", "PreflightRefused")],
    });
    bench.server.patch_pool("workers", &json!({ "status": status }));
    bench.server.set_condition(NODE, "Ready", "True");
    let shown = bench.run(&["rollout", "status", "workers"]).ok();
    for words in
        ["PreflightRefused: 0/1 done, 1 bad; so", "rollout undo workers", "bad workers-b: n1: ", "n1     waiting"]
    {
        assert!(shown.contains(words), "{words:?} is not in {shown}");
    }
    assert!(!shown.contains('\u{1b}'), "{shown}");
    let shown = bench.run(&["rollout", "status", "pool/workers", "-o", "json"]).json();
    assert_eq!((&shown["pool"], &shown["remaining"][0]["state"]), (&json!("workers"), &json!("waiting")));
    assert!(bench.run(&["rollout", "status", "-o", "wide"]).ok().contains("workers-a   workers-b   so"));
    // To follow it approves nothing.
    let waits = json!({"badRevisions": [], "conditions": [condition("Ready", "False", "AwaitingApproval")]});
    bench.server.patch_pool("workers", &json!({ "status": waits }));
    bench.server.faults().push(Fault::new(Verb::Get, "leases", FaultKind::Status(403))); // it is believed then
    let followed = bench.run(&["rollout", "status", "workers", "--watch"]).ok();
    assert!(followed.contains("pool/workers waits: the canaries have workers-b"), "{followed}");
    assert_eq!(bench.server.pool("workers").unwrap()["metadata"]["annotations"], Value::Null);
    bench.run(&["rollout", "status", "nobody"]).ends(1, &["there is no pool \"nobody\""]);
    bench.server.faults().push(Fault::new(Verb::List, "kubeletconfigpools", FaultKind::Status(404)));
    bench
        .run(&["rollout", "status"])
        .ends(1, &["kubectl create --validate=false -f packaging/manifests/pools/crd.yaml"]);
}
