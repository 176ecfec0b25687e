//! `diff`.

use serde_json::json;

use crate::read::{configz, runs};
use crate::{Bench, HEAD, NODE, run};

#[test]
fn files_need_no_cluster() {
    let bench = Bench::new();
    let (a, b) = (
        bench.file("a.yaml", &format!("{HEAD}maxPods: 50\n")),
        bench.file("b.json", "{\"maxPods\": 50, \"syncFrequency\": \"60s\"}"),
    );
    let diff = |one: &str, other: &str| run(&bench.path("none"), bench.dir.path(), &["diff", one, other], "");
    assert_eq!(diff(&a, &b).ok(), format!("{a} → {b}: no field differs\n"), "a default that is spelled out is none");
    let c = bench.file(
        "c.yaml",
        &format!("{HEAD}maxPods: 60\ncgroupDriver: systemd\nstaticPodURLHeader: {{Authorization: [Bearer hush]}}\n"),
    );
    let ran = diff(&a, &c);
    assert_eq!(ran.code, 1, "{ran:?}");
    assert_eq!(
        ran.out,
        "\
FIELD                CLASS    ASKS FOR           CHANGE
cgroupDriver         reboot   drain and reboot   \"cgroupfs\" → \"systemd\"
maxPods              pods     restart            50 → 60
staticPodURLHeader   pods     restart            (hidden)

cgroupDriver: cordon, drain and reboot the node
maxPods: lowered, the newest pods beyond it are turned away at the restart: move them away first
staticPodURLHeader: static pods that are no longer found are killed, those of a control plane too
cgroupDriver: refused by the supervisor of a live node until the ConfigMap acknowledges it (annotation kubelet-supervisor.io/acknowledge)
"
    );
    for (one, other, words) in [
        (a.as_str(), "nowhere.yaml", "nowhere.yaml: No such file"),
        (&a, "n1", "kubeconfig"),
        (&a, "a//b", "is no NODE"),
        (&a, "n/m", "kubeconfig"),
    ] {
        diff(one, other).ends(2, &[words]);
    }
}

#[test]
fn a_node_against_what_it_would_get() {
    let bench = Bench::new();
    bench.server.set_configz(NODE, configz());
    bench.server.set_capacity(NODE, "4", "8Gi", "110");
    runs(
        &bench,
        "pool-a",
        &format!("{HEAD}maxPods: 50\nkubeReserved: {{cpu: 500m}}\n"),
        Some(("kubelet-supervisor.io/merge", "overlay")),
    );
    for (name, day) in [("old", 1), ("new", 2), ("newest", 3)] {
        let created = format!("2026-01-0{day}T00:00:00Z");
        bench.server.put_pod(NODE, "d", name, json!({"metadata": {"creationTimestamp": created}}));
    }
    bench.server.put_pod("n2", "d", "elsewhere", json!({}));
    bench.server.put_annotated_config_map(
        "kubelet-config",
        "next",
        &[("kubelet", "maxPods: 2\nkubeReserved: {cpu: 250m}\nclusterDomain: other.local\n")],
        Some(("kubelet-supervisor.io/merge", "overlay")),
    );
    let ran = bench.run(&["diff", NODE, "kubelet-config/next", "-o", "json"]);
    assert_eq!(ran.code, 1, "{ran:?}");
    let value = ran.json();
    let changes: Vec<(&str, bool)> = value["changes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|change| (change["field"].as_str().unwrap(), change["heldByFlagOrDropIn"].as_bool().unwrap()))
        .collect();
    assert_eq!(changes, [("clusterDomain", false), ("kubeReserved.cpu", true), ("maxPods", false)]);
    assert_eq!(value["changes"][0]["asksFor"], "restart; new pods only");
    assert_eq!(value["podsLost"][0]["pods"], json!(["d/newest"]));
    assert_eq!(
        (&value["from"], &value["to"], &value["same"]),
        (&json!("node/n1"), &json!("kubelet-config/next"), &json!(false))
    );

    let ran = bench.run(&["diff", "node/n1", "cm/next"]);
    assert!(ran.out.contains("kubeReserved.cpu   pods    held by flag or drop-in   \"1\" → \"250m\""), "{}", ran.out);
    assert!(
        ran.out.contains("pods lost (maxPods): 3 pods run here and 2 places would be left: d/newest (OutOfpods)"),
        "{}",
        ran.out
    );
    assert!(ran.out.contains("cannot be read through the API server"), "{}", ran.out);
    // The other way round nobody loses anything.
    assert_eq!(bench.run(&["diff", "cm/next", NODE, "-o", "json"]).json()["podsLost"], json!([]));
    assert_eq!(bench.run(&["diff", NODE, "node/n1"]).code, 0);
}

#[test]
fn what_a_flag_holds_is_refused_by_nobody_and_costs_no_pods() {
    let bench = Bench::new();
    bench.server.set_configz(NODE, configz());
    bench.server.set_capacity(NODE, "4", "8Gi", "110");
    // That the ConfigMap in force says nothing of maxPods and cgroupDriver leaves a flag or a drop-in.
    let merge = Some(("kubelet-supervisor.io/merge", "replace"));
    runs(&bench, "pool-a", &format!("{HEAD}clusterDomain: cluster.local\n"), merge);
    for name in ["a", "b"] {
        bench.server.put_pod(NODE, "d", name, json!({}));
    }
    let next = bench.file("next.yaml", &format!("{HEAD}maxPods: 1\ncgroupDriver: cgroupfs\nclusterDomain: x.local\n"));
    let ran = bench.run(&["diff", NODE, &next, "-o", "json"]);
    let value = ran.json();
    let of = |field: &str| {
        let changes = value["changes"].as_array().unwrap();
        let change =
            changes.iter().find(|change| change["field"] == field).unwrap_or_else(|| panic!("{field}: {value:#}"));
        (change["heldByFlagOrDropIn"].as_bool().unwrap(), change["refusedOnLiveNode"].as_bool().unwrap())
    };
    assert_eq!(
        (of("cgroupDriver"), of("maxPods"), of("clusterDomain")),
        ((true, false), (true, false), (false, false))
    );
    assert_eq!((ran.code, &value["podsLost"]), (1, &json!([])));
}

/// As `push` does: what no kubelet reads makes no difference, which is not what its author meant.
#[test]
fn fields_that_a_kubelet_reads_over_are_said() {
    let bench = Bench::new();
    let odd = "maxpods: 3\nmaxPods: 4\nmaxPods: 5\nseccompDefault: true\n";
    let (a, b) = (bench.file("a.yaml", &format!("{HEAD}maxPods: 5\n")), bench.file("b.yaml", &format!("{HEAD}{odd}")));
    let said = |place: &str| {
        let duplicate = format!("note: {place}: duplicate field in the payload, the last one wins: ");
        [format!("note: {place}: maxpods: did you mean maxPods?\n"), duplicate]
    };
    let ran = bench.run(&["diff", &a, &b]);
    assert!(said(&b).iter().all(|line| ran.out.contains(line)), "{}", ran.out);
    assert!(!ran.out.contains("since 1.22"), "of no version it is known: {}", ran.out);

    bench.server.put_node(NODE, json!({"status": {"nodeInfo": {"kubeletVersion": "v1.20.2"}}}));
    bench.server.set_configz(NODE, json!({"maxPods": 5, "ours": true}));
    bench.server.put_config_map("kubelet-config", "odd", &[("kubelet", odd)]);
    let place = "ConfigMap kubelet-config/odd";
    let ran = bench.run(&["diff", NODE, "cm/odd", "-o", "json"]);
    let notes = ran.json()["notes"].to_string();
    for line in
        ["maxpods: did you mean maxPods?", "duplicate field", "seccompDefault: since 1.22, this kubelet is 1.20"]
    {
        assert_eq!(notes.matches(&format!("{place}: {line}")).count(), 1, "{line}: {notes}");
    }
    bench.run(&["capture", NODE]).ends(0, &["warning: ours: no kubelet up to 1."]);
}

#[test]
fn what_a_node_runs_does_not_differ_from_it() {
    let bench = Bench::new();
    bench.server.set_configz(NODE, configz());
    bench.run(&["capture", NODE, "-o", "n1.yaml"]).ok();
    let ran = bench.run(&["diff", NODE, "n1.yaml"]);
    assert!(ran.code == 0 && ran.out.starts_with("node/n1 → n1.yaml: no field differs\n"), "{ran:?}");
}

#[test]
fn what_is_missing_is_named_and_two_is_an_error() {
    let bench = Bench::new();
    bench.server.put_config_map("kubelet-config", "two", &[("a", "x"), ("b", "y")]);
    bench.server.put_config_map("kubelet-config", "one", &[("a", "maxPods: 1")]);
    for (word, words) in [
        ("cm/none", "configmaps \"none\" not found"),
        ("cm/two", "has no key \"kubelet\" in its data; there is: a, b"),
        ("kubelet-config/two/a", "it is a single value"),
        ("n2", "nodes \"n2\" not found"),
    ] {
        let ran = bench.run(&["diff", word, "cm/one"]);
        assert!(ran.code == 2 && ran.err.starts_with("error: ") && ran.err.contains(words), "{words}: {ran:?}");
    }
    assert_eq!(bench.run(&["diff", "cm/one", "kubelet-config/one/a"]).code, 0, "a key alone needs no name");
}
