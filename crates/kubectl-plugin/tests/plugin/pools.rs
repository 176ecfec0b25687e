//! `render`, and `diff` of pools.

use serde_json::{Value, json};

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
