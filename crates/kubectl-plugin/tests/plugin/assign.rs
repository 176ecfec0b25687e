//! `assign`, `reset`, `retry`, `confirm`, `rollback`: what they write on either kind of API server, and what they do
//! when something is in the way.

use std::time::Duration;

use serde_json::{Value, json};

use super::status::{node, version};
use super::{Bench, HEAD, NODE, Ran};
use testkit::api_server::{Fault, FaultKind, Verb};

const LABELS: &str = "kubelet-config.node-restriction.kubernetes.io/";
const STATUS: &str = "kubelet-supervisor.io/config-status";
const SOON: Duration = Duration::from_secs(20);

fn bench(keeps: bool) -> Bench {
    let bench = Bench::new();
    bench.server.drop_dynamic_config(!keeps);
    bench.server.put_node(NODE, node(None, Some(&json!({})), "", ""));
    bench.server.put_config_map("kubelet-config", "pool-a", &[("kubelet", "kind: KubeletConfiguration")]);
    bench
}

/// What the Node asks for: its source's name, and its labels' names and values without their prefix.
fn asks(bench: &Bench, name: &str) -> (Value, Vec<String>) {
    let node = bench.server.node(name);
    let labels = node["metadata"]["labels"].as_object().unwrap();
    let ours = labels.iter().filter_map(|(name, value)| Some((name.strip_prefix(LABELS)?, value.as_str()?)));
    let labels = ours.map(|(name, value)| format!("{name}={value}")).collect();
    (node["spec"]["configSource"]["configMap"]["name"].clone(), labels)
}

/// The bodies of patches.
fn patches(bench: &Bench) -> Vec<(Value, u16)> {
    let requests = bench.server.requests().into_iter();
    requests.filter(|request| request.method == "PATCH").map(|request| (request.body, request.status)).collect()
}

#[test]
fn a_server_that_keeps_the_source_gets_it() {
    let bench = bench(true);
    bench.server.patch_node(
        NODE,
        json!({"metadata": {"labels": {format!("{LABELS}name"): "old", format!("{LABELS}key"): "k"}}}),
    );
    let out = bench.run(&["assign", "pool-a", NODE]).ok();
    assert_eq!(out, "node/n1 assigned: spec.configSource kubelet-config/pool-a[kubelet]\n");
    assert_eq!(asks(&bench, NODE), (json!("pool-a"), vec![]), "the labels of before are gone");
    let out = bench.run(&["assign", "cm/pool-a", "node/n1"]).ok();
    assert_eq!(out, "node/n1 unchanged: spec.configSource kubelet-config/pool-a[kubelet]\n");
    assert_eq!(patches(&bench).len(), 2, "source, labels; nothing the second time");
    let out = bench.run(&["reset", NODE]).ok();
    assert_eq!(out, "node/n1 reset: no assignment, was spec.configSource kubelet-config/pool-a[kubelet]\n");
    assert_eq!(asks(&bench, NODE), (Value::Null, vec![]));
}

#[test]
fn a_server_that_drops_it_gets_labels() {
    let bench = bench(false);
    for more in ["n2", "n3"] {
        bench.server.put_node(more, node(None, Some(&json!({})), "", ""));
    }
    let out = bench.run(&["assign", "pool-a", "-l", "pool=a"]).ok();
    let line = |name: &str| format!("node/{name} assigned: labels {LABELS}{{name=pool-a,namespace=kubelet-config}}\n");
    assert_eq!(out, [line("n1"), line("n2"), line("n3")].concat());
    assert_eq!(patches(&bench).len(), 3, "the first one finds out by the way");
    assert_eq!(
        asks(&bench, "n2"),
        (Value::Null, vec!["name=pool-a".to_owned(), "namespace=kubelet-config".to_owned()])
    );
    bench
        .run(&["assign", "pool-a", NODE, "--carrier", "native"])
        .ends(1, &["error: node/n1: this API server does not keep spec.configSource", "--carrier labels"]);
    bench.run(&["reset", "-l", "pool=a"]).ok();
    assert_eq!(asks(&bench, "n3"), (Value::Null, vec![]));
}

#[test]
fn dry_runs_write_nothing_and_say_what() {
    for (keeps, server) in [(true, "spec.configSource"), (false, "labels")] {
        let bench = bench(keeps);
        let client = bench.run(&["assign", "pool-a", NODE, "--dry-run"]).ok();
        assert!(client.ends_with(" (dry run)\n"), "{client}");
        assert!(patches(&bench).is_empty());
        let out = bench.run(&["assign", "pool-a", NODE, "--dry-run=server", "--wait"]).ok();
        assert!(
            out.starts_with(&format!("node/n1 assigned: {server}")) && out.ends_with(" (server dry run)\n"),
            "{out}"
        );
        assert_eq!(asks(&bench, NODE), (Value::Null, vec![]));
    }
}

#[test]
fn what_is_not_there_is_said_before_anything_is_written() {
    let bench = bench(true);
    bench.run(&["assign", "nothing", NODE]).ends(1, &["there is no ConfigMap kubelet-config/nothing", "push FILE"]);
    bench.run(&["assign", "pool-a", NODE, "--key", "other"]).ends(1, &["no key \"other\"", "there are: kubelet"]);
    bench.run(&["assign", "Pool_A", NODE]).ends(1, &["cannot be the name of a ConfigMap"]);
    bench.run(&["assign", "pool-a", "-l", "pool=none"]).ends(1, &["no node has the labels"]);
    for verb in ["assign pool-a", "reset", "retry", "confirm", "rollback", "preflight pool-a"] {
        let words: Vec<&str> = verb.split(' ').collect();
        assert_eq!(bench.run(&words).code, 2, "{verb}: no nodes is not all nodes");
    }
    assert!(patches(&bench).is_empty());
    bench.server.faults().push(Fault::once(Verb::Get, "/configmaps/", FaultKind::Status(403)));
    let ran = bench.run(&["assign", "pool-a", NODE]);
    assert_eq!(ran.code, 0);
    assert!(ran.err.starts_with("warning: you may not get ConfigMap kubelet-config/pool-a"), "{ran:#?}");
}

#[test]
fn a_node_that_fails_keeps_no_other_from_it() {
    let bench = bench(false);
    bench.server.put_node("n2", node(None, None, "", ""));
    bench.server.faults().push(Fault::new(Verb::Patch, "/nodes/n1", FaultKind::Status(403)));
    let ran = bench.run(&["assign", "pool-a", "n0", "n1", "n2"]);
    let no_right = "error: node/n1: you have no right to patch node n1";
    ran.ends(1, &["error: get node n0:", no_right, "warning: node/n2: no supervisor"]);
    assert!(ran.out.starts_with("node/n2 assigned"), "{ran:#?}");
}

#[test]
fn a_heartbeat_in_between_is_no_matter_and_another_assignment_is() {
    let bench = bench(false);
    bench.server.faults().push(Fault::once(Verb::Patch, "/nodes/n1", FaultKind::Status(409)));
    bench.run(&["assign", "pool-a", NODE]).ok();
    let (first, _) = &patches(&bench)[0];
    assert!(first["metadata"]["resourceVersion"].is_string(), "{first}");

    // Somebody else is quicker, while this one is held up.
    bench.server.put_config_map("kubelet-config", "pool-b", &[("kubelet", "x")]);
    bench.server.faults().push(Fault::once(Verb::Patch, "/nodes/n1", FaultKind::Slow(Duration::from_secs(1))));
    let before = bench.server.requests().len();
    let ran = std::thread::scope(|scope| {
        let slow = scope.spawn(|| bench.run(&["assign", "pool-b", NODE]));
        let patch = |state: &testkit::api_server::State| {
            state.requests().iter().skip(before).any(|request| request.method == "PATCH").then_some(())
        };
        bench.server.wait_until(SOON, patch).unwrap();
        bench.server.patch_node(NODE, json!({"metadata": {"labels": {format!("{LABELS}name"): "theirs"}}}));
        slow.join().unwrap()
    });
    ran.ends(1, &["error: node/n1: somebody else has assigned to it meanwhile", "name=theirs"]);
    assert_eq!(asks(&bench, NODE).1[0], "name=theirs");
}

/// What a supervisor would say of the ConfigMap as it is now.
fn says(bench: &Bench, reason: &str, good: bool, message: &str) {
    says_of(bench, "pool-a", reason, good, message);
}

fn says_of(bench: &Bench, name: &str, reason: &str, good: bool, message: &str) {
    let map = bench.server.read(|state| state.config_map("kubelet-config", name).cloned());
    let map = map.unwrap_or_else(|| json!({"metadata": {"resourceVersion": "1", "uid": "u"}}));
    let mut source = version(name, map["metadata"]["resourceVersion"].as_str().unwrap());
    source["configMap"]["uid"] = map["metadata"]["uid"].clone();
    let failed = !message.is_empty();
    let mut said = json!({"assigned": source, "active": if failed { Value::Null } else { source.clone() }});
    if good {
        said["lastKnownGood"] = source;
    }
    if reason == "OnTrial" {
        said["trialEnds"] = json!("2000-01-01T00:00:00Z"); // its clock runs: the kubelet is healthy
    }
    if failed {
        said["error"] = json!("failed to load config, see Kubelet log for details");
    }
    let ours = json!({"type": "KubeletConfigOk", "status": "Unknown", "reason": reason, "message": message});
    let ready = json!({"type": "Ready", "status": "True"});
    bench.server.patch_node(
        NODE,
        json!({"metadata": {"annotations": {STATUS: said.to_string()}}, "status": {"conditions": [ready, ours]}}),
    );
}

/// Runs a command that waits, and what happens meanwhile as soon as it watches.
fn meanwhile(bench: &Bench, args: &[&str], then: impl Fn()) -> Ran {
    // The watch of a command before.
    bench.server.wait_until(SOON, |state| (state.watches() == 0).then_some(())).unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| bench.run(args));
        bench.server.wait_until(SOON, |state| (state.watches() > 0).then_some(())).unwrap();
        then();
        waiting.join().unwrap()
    })
}

#[test]
fn waiting_ends_when_it_is_reached_or_cannot_be() {
    let bench = bench(false);
    let ran = meanwhile(&bench, &["assign", "pool-a", NODE, "--wait"], || says(&bench, "OnTrial", false, ""));
    assert!(ran.out.ends_with("node/n1 pending\nnode/n1 active\n"), "{ran:#?}");
    let wait = ["assign", "pool-a", NODE, "--wait=proven"];
    let ran = meanwhile(&bench, &wait, || says(&bench, "LastKnownGood", true, ""));
    assert!(ran.out.ends_with("node/n1 on trial 0s\nnode/n1 proven\n"), "{ran:#?}");
    bench.server.put_config_map("kubelet-config", "pool-a", &[("kubelet", "worse")]);
    meanwhile(&bench, &wait, || says(&bench, "Rejected", false, "the kubelet's own words"))
        .ends(1, &["error: node/n1: the kubelet's own words"]);
    bench.server.put_config_map("kubelet-config", "pool-a", &[("kubelet", "better")]);
    bench
        .run(&["assign", "pool-a", NODE, "--wait", "--timeout", "100ms"])
        .ends(1, &["error: timed out after 0.100s; still waiting: node/n1 failed"]);
}

#[test]
fn retry_and_confirm_name_the_version() {
    let bench = bench(false);
    bench.run(&["assign", "pool-a", NODE]).ok();
    bench.run(&["retry", NODE]).ends(1, &["node/n1: nothing to try again, it is pending"]);
    says(&bench, "RolledBack", false, "healthz failed");
    let annotation = |name: &str| {
        bench.server.node(NODE)["metadata"]["annotations"][format!("kubelet-supervisor.io/{name}")].clone()
    };
    bench.run(&["retry", NODE]).ok();
    let first = annotation("retry");
    let (uid, version) = first.as_str().unwrap().split_once('/').unwrap();
    assert!(uid.starts_with("5eed") && version.parse::<u64>().is_ok(), "{first}");
    bench.run(&["retry", NODE]).ok();
    assert_eq!(annotation("retry"), *version, "the same once more is another wish");
    bench.run(&["confirm", NODE]).ends(1, &["nothing waits for a confirmation, it is failed"]);
    let out = bench.run(&["confirm", "-l", "pool=a"]).ok();
    assert!(out.starts_with("node/n1 skipped"), "{out}");
    says(&bench, "AwaitsConfirmation", false, "");
    bench.run(&["confirm", NODE]).ok();
    assert_eq!(annotation("confirm"), first);
}

/// What was pushed, and its name.
fn pushed(bench: &Bench, text: &str) -> String {
    let file = bench.file("pool-a.yaml", &format!("{HEAD}{text}\n"));
    let out = bench.run(&["push", &file, "--kubelet", "1.36", "-o", "name"]).ok();
    out.trim().strip_prefix("configmap/").unwrap().to_owned()
}

#[test]
fn rollback_goes_to_the_version_that_was_good_and_to_no_other() {
    let bench = bench(false);
    bench.run(&["assign", "pool-a", NODE]).ok();
    says(&bench, "LastKnownGood", true, "");
    bench.run(&["rollback", NODE]).ends(1, &["what is assigned is last known good already", "--to"]);
    bench.server.put_config_map("kubelet-config", "pool-b", &[("kubelet", "x")]);
    bench.run(&["assign", "pool-b", NODE]).ok();
    // Nobody but the node says that it had that.
    let before = patches(&bench).len();
    bench
        .run(&["rollback", NODE])
        .ends(1, &["not pushed under the same name before", "kubelet-config/pool-a[kubelet]", "--to CONFIGMAP"]);
    assert_eq!(patches(&bench).len(), before);
    let out = bench.run(&["rollback", NODE, "--to", "pool-a"]).ok();
    assert!(out.contains("{name=pool-a,"), "{out}");
}

#[test]
fn rollback_goes_to_an_earlier_push_of_the_same_name() {
    let bench = bench(false);
    let (good, bad) = (pushed(&bench, "maxPods: 50"), pushed(&bench, "maxPods: 51"));
    bench.run(&["assign", &good, NODE]).ok();
    says_of(&bench, &good, "LastKnownGood", true, "");
    bench.run(&["assign", &bad, NODE]).ok();
    let out = bench.run(&["rollback", NODE]).ok();
    assert!(out.starts_with("node/n1 rolled back: labels") && out.contains(&format!("{{name={good},")), "{out}");
    // By hand, and by a name that looks like one.
    bench.run(&["assign", &bad, NODE]).ok();
    bench.server.put_config_map("kubelet-config", "pool-a-gggggggggg", &[("kubelet", "x")]);
    says_of(&bench, "pool-a-gggggggggg", "LastKnownGood", true, "");
    bench.run(&["rollback", NODE]).ends(1, &["was not made by `kubectl kubelet-config push`"]);
    // The same name, another object.
    says_of(&bench, &good, "LastKnownGood", true, "");
    bench.server.delete_config_map("kubelet-config", &good);
    bench.server.put_config_map("kubelet-config", &good, &[("kubelet", "x")]);
    bench.run(&["rollback", NODE]).ends(1, &["has been edited since", "`kubelet-supervisor rollback`"]);
}

#[test]
fn rollback_takes_no_nodes_word_for_where_it_goes() {
    let bench = bench(false);
    bench.run(&["assign", "pool-a", NODE]).ok();
    bench.server.put_config_map("kube-system", "kubeadm-config", &[("kubelet", "secret")]);
    let (other, none) = ("not pushed under the same name before", "calls no ConfigMap last known good");
    for (namespace, name, why) in [
        ("kube-system", "kubeadm-config", other),
        ("../../secrets", "x", none),
        ("kubelet-config", "../../x?y=z", none),
    ] {
        let mut source = version(name, "1");
        source["configMap"]["namespace"] = json!(namespace);
        let said = json!({"assigned": source, "active": source, "lastKnownGood": source});
        bench.server.patch_node(NODE, json!({"metadata": {"annotations": {STATUS: said.to_string()}}}));
        let (patched, asked) = (patches(&bench).len(), bench.server.requests().len());
        bench.run(&["rollback", NODE]).ends(1, &[why, "--to CONFIGMAP"]);
        assert_eq!(patches(&bench).len(), patched);
        let requests = bench.server.requests();
        assert!(
            requests[asked..].iter().all(|it| !it.path.contains("kubeadm") && !it.path.contains("..")),
            "{requests:?}"
        );
    }
}

#[test]
fn what_cannot_be_a_name_is_no_part_of_a_path() {
    let bench = bench(false);
    let asked = bench.server.requests().len();
    for args in [
        &["status", "../../api/v1/secrets"][..],
        &["assign", "pool-a", "n1/../n2", "--carrier", "labels"],
        &["assign", "../pool-a", NODE],
        &["rollout", "status", "x/../../y"],
        &["rollback", "n1?dryRun=All", "--to", "pool-a"],
        &["retry", "n1#x"],
        &["explain", "n1/../n2"],
    ] {
        let ran = bench.run(args);
        assert!(
            ran.code != 0 && (ran.err.contains("cannot be") || ran.err.contains("is not NAMESPACE/NAME")),
            "{args:?}: {ran:#?}"
        );
    }
    assert!(bench.run(&["status", "-n", "a/../b"]).err.contains("a namespace has a-z"), "before anybody is asked");
    let requests = bench.server.requests();
    let odd = |it: &testkit::api_server::Request| it.path.contains("..") || it.query.contains("dryRun");
    assert!(!requests[asked..].iter().any(odd), "{requests:?}");
}
