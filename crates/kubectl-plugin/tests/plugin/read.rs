//! `capture`, `explain` and `history`.

use std::os::unix::fs::PermissionsExt as _;

use kubelet_config::yaml;
use serde_json::{Value, json};

use crate::{Bench, HEAD, NODE};
use testkit::api_server::{Fault, FaultKind, Verb};

/// As a v1.20.2 kubelet answers, shortened.
pub fn configz() -> Value {
    json!({
        "maxPods": 50, "syncFrequency": "1m0s", "clusterDomain": "cluster.local", "cgroupDriver": "systemd",
        "nodeStatusUpdateFrequency": "10s", "nodeStatusReportFrequency": "5m0s", "eventRecordQPS": 5, "eventBurst": 10,
        "kubeAPIQPS": 5, "kubeAPIBurst": 10, "serializeImagePulls": true, "kubeReserved": {"cpu": "1"},
        "staticPodURLHeader": {"Authorization": ["Bearer hush"]},
    })
}

/// What a supervisor says on the Node about the ConfigMap that it runs.
pub fn runs(bench: &Bench, name: &str, text: &str, annotation: Option<(&str, &str)>) {
    runs_with(bench, name, &[("kubelet", text)], annotation);
}

/// The same with more than one key.
pub fn runs_with(bench: &Bench, name: &str, data: &[(&str, &str)], annotation: Option<(&str, &str)>) {
    let (uid, version) = bench.server.put_annotated_config_map("kubelet-config", name, data, annotation);
    let source = json!({"configMap": {"namespace": "kubelet-config", "name": name, "kubeletConfigKey": "kubelet",
        "uid": uid, "resourceVersion": version}});
    let said = json!({"assigned": source, "active": source, "lastKnownGood": source}).to_string();
    bench.server.patch_node(
        NODE,
        json!({"metadata": {"annotations": {"kubelet-supervisor.io/config-status": said},
                "labels": {"kubelet-config.node-restriction.kubernetes.io/name": name}},
            "status": {"nodeInfo": {"kubeletVersion": "v1.20.2"}}}),
    );
}

#[test]
fn what_is_captured_is_whole_private_and_replaces_nothing() {
    let bench = Bench::new();
    bench.server.set_configz(NODE, configz());
    let text = bench.run(&["capture", NODE]).ok();
    let read = yaml::parse(&text).unwrap().value;
    assert_eq!(
        (&read["kind"], &read["apiVersion"]),
        (&json!("KubeletConfiguration"), &json!("kubelet.config.k8s.io/v1beta1"))
    );
    assert_eq!(read["staticPodURLHeader"]["Authorization"][0], "Bearer hush", "a pipe is no terminal");
    assert_eq!(read["maxPods"], 50);

    let path = bench.path("n1.yaml");
    assert!(bench.run(&["capture", "node/n1", "-o", "n1.yaml"]).ok().contains("captured to n1.yaml"));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let asked = bench.server.requests().len();
    bench.run(&["capture", NODE, "-o", "n1.yaml"]).ends(1, &["n1.yaml: there already; --force replaces it"]);
    assert_eq!(bench.server.requests().len(), asked, "before anybody is asked");

    let mut other = configz();
    other["maxPods"] = json!(60);
    bench.server.set_configz(NODE, other);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    bench.run(&["capture", NODE, "-o", "n1.yaml", "--force"]).ok();
    assert!(std::fs::read_to_string(&path).unwrap().contains("maxPods: 60"));
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(std::fs::read_dir(bench.dir.path()).unwrap().count(), 2, "nothing is left beside");
    // What was captured can be pushed.
    assert!(bench.run(&["push", "n1.yaml", "--kubelet", "1.20"]).ok().ends_with(" created\n"));
}

#[test]
fn flags_are_captured_beside_it() {
    let bench = Bench::new();
    bench.server.set_configz(NODE, configz());
    let captured = |title: &str, lines: &str| {
        bench.run(&["capture", NODE, "-o", "n1.yaml", "--flags", "n1.flags", "--force"]).ok();
        let text = std::fs::read_to_string(bench.path("n1.flags")).unwrap();
        assert_eq!(text, format!("# Flag overrides that the kubelet of node n1 ran with: {title}.\n{lines}\n"));
    };
    captured("node n1 runs its own configuration", "");
    let flags = "# as is\n--v=4\n!--cgroup-driver\n--node-labels=a=b\n";
    runs_with(&bench, "pool-a", &[("kubelet", HEAD), ("kubelet.flags", flags)], None);
    captured("ConfigMap kubelet-config/pool-a", "!--cgroup-driver\n--v=4\n--node-labels=a=b");
    bench.run(&["capture", NODE, "--flags", "n1.flags"]).ends(1, &["n1.flags: there already; --force replaces it"]);
    assert!(bench.run(&["push", "n1.yaml", "--flags", "n1.flags"]).ok().ends_with(" created\n"));

    // Of flags that are fields /configz tells, of others the ConfigMap.
    let other = "--v=4\n--max-pods=40\n!--cgroup-driver\n";
    bench.server.put_config_map("kubelet-config", "pool-b", &[("kubelet", HEAD), ("kubelet.flags", other)]);
    let ran = bench.run(&["diff", "cm/pool-a", "cm/pool-b"]);
    let rows: Vec<Vec<&str>> = ran.out.lines().take(3).map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(ran.code, 1, "{ran:?}");
    assert_eq!(rows[1], ["--node-labels", "unknown", "restart", "\"a=b\"", "→", "unset"], "{}", ran.out);
    assert_eq!(rows[2], ["maxPods", "pods", "restart", "110", "→", "40"], "{}", ran.out);
    let ran = bench.run(&["diff", NODE, "cm/pool-b"]);
    assert!(ran.out.contains("--node-labels") && ran.out.contains("50 → 40"), "{ran:?}");
    let why = "--v 4";
    bench.server.put_config_map("kubelet-config", "pool-b", &[("kubelet", HEAD), ("kubelet.flags", why)]);
    bench.run(&["diff", NODE, "cm/pool-b"]).ends(2, &["pool-b, key kubelet.flags: line 1: a blank after --v"]);
}

#[test]
fn who_does_not_answer_is_named() {
    let bench = Bench::new();
    bench.run(&["capture", "n2"]).ends(1, &["nodes \"n2\" not found"]);
    bench.run(&["capture", NODE]).ends(1, &["connection refused"]);
    bench.server.faults().push(Fault::new(Verb::Get, "/proxy/configz", FaultKind::Status(403)));
    bench.run(&["capture", NODE]).ends(1, &["verb get on nodes/proxy", "no right"]);
    bench.run(&["capture", "../../secrets"]).ends(1, &["cannot be the name of a node"]);
}

#[test]
fn explain_says_what_the_kubelet_reads_over() {
    let bench = Bench::new();
    bench.server.set_configz(NODE, configz());
    let text = format!("{HEAD}maxpods: 50\n");
    runs(&bench, "pool-a", &text, Some(("kubelet-supervisor.io/merge", "replace")));
    let ran = bench.run(&["explain", NODE]);
    let note = "note: ConfigMap kubelet-config/pool-a: maxpods: did you mean maxPods?\n";
    assert!(ran.code == 0 && ran.out.contains(note), "{ran:?}");
}

#[test]
fn each_value_with_where_it_comes_from() {
    let bench = Bench::new();
    bench.server.set_configz(NODE, configz());
    let text = format!("{HEAD}maxPods: 50\nkubeReserved: {{cpu: 500m}}\n");
    runs(&bench, "pool-a", &text, Some(("kubelet-supervisor.io/merge", "replace")));
    let wide = bench.run(&["explain", NODE, "-o", "wide"]).ok();
    assert!(wide.contains("\"1\"               \"500m\"     flag or drop-in, not the ConfigMap\n"), "{wide}");
    assert!(wide.contains("50                50         ConfigMap kubelet-config/pool-a\n"), "{wide}");
    let ran = bench.run(&["explain", NODE, "kubeReserved", "-o", "json"]);
    assert_eq!(
        ran.json()["fields"][0],
        json!({"field": "kubeReserved.cpu", "value": "1", "intended": "500m", "from": "overridden"})
    );
    // The node's supervisor knows which flag it is.
    let about = json!({"version": "0.1.0", "shadowedByFlags": ["kubeReserved (--kube-reserved)"]}).to_string();
    bench.server.patch_node(NODE, json!({"metadata": {"annotations": {"kubelet-supervisor.io/supervisor": about}}}));
    let text = bench.run(&["explain", NODE, "kubeReserved"]).ok();
    assert!(text.contains("   flag --kube-reserved, not the ConfigMap: \"500m\"\n"), "{text}");
    assert!(!text.contains("which file or flag"), "{text}");
    let ran = bench.run(&["explain", NODE, "kubeReserved", "-o", "json"]);
    assert_eq!(
        (&ran.json()["fields"][0]["from"], &ran.json()["fields"][0]["flag"]),
        (&json!("overridden"), &json!("--kube-reserved"))
    );
    assert!(bench.run(&["explain", NODE, "--all"]).ok().contains("syncFrequency"));
    let ran = bench.run(&["explain", NODE, "cgroupDriver"]);
    assert!(ran.ok().contains("a change of cgroupDriver is of class reboot and asks for: drain and reboot (cordon"));
    bench.run(&["explain", NODE, "maxpods"]).ends(1, &["no field of a KubeletConfiguration"]);
    assert!(!bench.run(&["explain", NODE, "-o", "json"]).ok().contains("hush"));
}

#[test]
fn a_map_that_was_edited_says_nothing_of_what_runs() {
    let bench = Bench::new();
    bench.server.set_configz(NODE, configz());
    runs(&bench, "pool-a", &format!("{HEAD}maxPods: 50\n"), None);
    let ran = bench.run(&["explain", NODE, "maxPods"]);
    assert!(ran.out.contains("ConfigMap is kubelet-config/pool-a") && ran.out.contains("has no annotation"), "{ran:?}");
    bench.server.label_config_map("kubelet-config", "pool-a", "a", "b");
    let ran = bench.run(&["explain", NODE, "maxPods"]);
    assert!(ran.out.contains("local files or flags") && ran.out.contains("was edited after version"), "{ran:?}");
}

#[test]
fn events_are_a_table_and_json() {
    let bench = Bench::new();
    let event = |node: &str, reason: &str, time: &str, more: Value| {
        let mut event = json!({"involvedObject": {"kind": "Node", "name": node}, "reason": reason, "type": "Normal", "count": 1,
            "message": "words", "firstTimestamp": time, "lastTimestamp": time});
        event.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        event
    };
    let put = |name: &str, event: Value| bench.server.put_event(name, event);
    let rejected = json!({"type": "Warning", "count": 3, "message": "Rejected\u{1b}[31m it", "lastTimestamp": "2026-01-02T00:00:09Z"});
    put("a", event(NODE, "KubeletConfigRejected", "2026-01-02T00:00:01Z", rejected));
    // As events.k8s.io has them.
    let new = json!({"eventTime": "2026-01-02T00:00:05.5Z", "firstTimestamp": null, "lastTimestamp": null, "count": null,
        "series": {"count": 2, "lastObservedTime": "2026-01-02T00:00:05.500001Z"}});
    put("b", event(NODE, "KubeletConfigChanged", "", new));
    put("e", event(NODE, "KubeletHung", "2026-01-02T00:00:05Z", json!({})));
    put("c", event(NODE, "NodeReady", "2026-01-02T00:00:06Z", json!({})));
    put("d", event("n2", "KubeletConfigChanged", "2026-01-02T00:00:07Z", json!({})));
    assert_eq!(
        bench.run(&["history", NODE, "-o", "wide"]).ok(),
        "\
LAST (UTC)            FIRST (UTC)           COUNT   REASON                  MESSAGE
2026-01-02T00:00:05   2026-01-02T00:00:05   1       KubeletHung             words
2026-01-02T00:00:05   2026-01-02T00:00:05   2       KubeletConfigChanged    words
2026-01-02T00:00:09   2026-01-02T00:00:01   3       KubeletConfigRejected   Rejected\\u{1b}[31m it
"
    );
    let table = bench.run(&["history", NODE]).ok();
    assert!(table.starts_with("LAST SEEN   COUNT   REASON                  MESSAGE\n"), "{table}");
    let events = bench.run(&["history", "node/n1", "-o", "json"]).json();
    assert_eq!(events[2]["firstTime"], "2026-01-02T00:00:01Z");
    assert_eq!((events.as_array().unwrap().len(), &events[2]["count"]), (3, &json!(3)));
    bench.server.create_node("n3");
    let ran = bench.run(&["history", "n3"]);
    assert!(ran.code == 0 && ran.out.is_empty() && ran.err.contains("kubelet-supervisor history"), "{ran:?}");
    bench.run(&["history", "n4"]).ends(1, &["nodes \"n4\" not found"]);
}
