//! `preflight`: what nodes say is told by what they say, and the annotation goes, however it ends.

use std::process::Stdio;
use std::time::Duration;

use kubelet_config::preflight::{
    ANSWER_ANNOTATION, PreflightRequest, PreflightResult, PreflightStatus, REQUEST_ANNOTATION,
};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::status::node;
use super::{Bench, NODE, Ran};
use testkit::api_server::{Fault, FaultKind, Verb};

const SOON: Duration = Duration::from_secs(20);
const FILE: &str = "kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\nmaxPods: 50\n";

fn bench(nodes: &[&str]) -> Bench {
    let bench = Bench::new();
    bench.server.delete_node(NODE);
    for name in nodes {
        bench.server.put_node(name, node(None, Some(&json!({})), "", ""));
    }
    bench.server.put_config_map("kubelet-config", "pool-a", &[("kubelet", FILE)]);
    bench
}

fn request(bench: &Bench, name: &str) -> Option<String> {
    Some(bench.server.node(name)["metadata"]["annotations"].get(REQUEST_ANNOTATION)?.as_str()?.to_owned())
}

/// The request of the node, once it is there.
fn requested(bench: &Bench, name: &str) -> String {
    let asked = |node: &Value| node["metadata"]["annotations"][REQUEST_ANNOTATION].is_string();
    bench.server.wait_node(name, SOON, asked).unwrap();
    request(bench, name).unwrap()
}

/// As the node's supervisor does.
fn answer(bench: &Bench, name: &str, status: &PreflightStatus) {
    let annotations = json!({ANSWER_ANNOTATION: status.annotation()});
    bench.server.patch_node(name, json!({"metadata": {"annotations": annotations}}));
}

/// Runs it, while the nodes answer.
fn run(bench: &Bench, args: &[&str], answers: &[(&str, PreflightResult, &str, &str)]) -> Ran {
    std::thread::scope(|scope| {
        let ran = scope.spawn(|| bench.run(args));
        for (name, result, version, message) in answers {
            let asked = requested(bench, name);
            let pods = if *result == PreflightResult::PodsLost { vec!["d/p".to_owned()] } else { Vec::new() };
            let kubelet_version = (*version).to_owned();
            let status = PreflightStatus { kubelet_version, pods, ..PreflightStatus::new(&asked, *result, message) };
            answer(bench, name, &status);
        }
        ran.join().unwrap()
    })
}

#[test]
fn answers_are_told_by_what_they_say() {
    let bench = bench(&["n1", "n2", "n3", "n4"]);
    bench.server.create_node("foreign");
    let answers = [
        ("n1", PreflightResult::Valid, "v1.30.1", ""),
        ("n2", PreflightResult::Invalid, "v1.27.3", "unknown feature gate X"),
        ("n3", PreflightResult::Invalid, "v1.27.3", "unknown feature gate X"),
        ("n4", PreflightResult::PodsLost, "v1.30.1", "maxPods"),
    ];
    let all = ["n1", "n2", "n3", "n4", "foreign", "absent"];
    let ran = run(&bench, &[&["preflight", "pool-a", "-o", "json"], &all[..]].concat(), &answers);
    assert_eq!(ran.code, 1, "{ran:#?}");
    let document = ran.json();
    assert_eq!(
        document["summary"],
        "1 valid; 2 invalid (kubelet v1.27.3): unknown feature gate X; 1 would lose pods: n4; 1 without a supervisor: foreign; \
         1 gone: absent"
    );
    assert_eq!(document["valid"], false);
    let version = bench.server.config_map("kubelet-config", "pool-a");
    let asked = PreflightRequest::parse(document["request"].as_str().unwrap()).unwrap();
    assert_eq!(json!(asked.version.unwrap().1), version["metadata"]["resourceVersion"], "these very bytes");
    let group = document["groups"].as_array().unwrap().iter().find(|group| group["result"] == "PodsLost").unwrap();
    assert_eq!((&group["nodes"], &group["pods"]), (&json!(["n4"]), &json!(["d/p"])));

    let ran = run(&bench, &["preflight", "pool-a", "n1", "n2"], &answers[..2]);
    assert_eq!(ran.code, 1);
    assert!(
        ran.out.contains("RESULT") && ran.out.contains("Invalid   v1.27.3   n2      unknown feature gate X"),
        "{}",
        ran.out
    );
    assert!(ran.out.ends_with("1 valid; 1 invalid (kubelet v1.27.3): unknown feature gate X\n"), "{}", ran.out);
    for name in ["n1", "n2", "n3", "n4"] {
        assert_eq!(request(&bench, name), None);
        assert!(bench.server.node(name)["metadata"]["annotations"].get(ANSWER_ANNOTATION).is_none());
    }
}

#[test]
fn a_file_is_pushed_first() {
    let bench = bench(&["n1"]);
    let file = bench.file("pool-b.yaml", FILE);
    let ran = run(&bench, &["preflight", &file, "-l", "pool=a"], &[("n1", PreflightResult::Valid, "v1.30.1", "")]);
    assert_eq!((ran.code, ran.out.lines().last()), (0, Some("1 valid")), "{ran:#?}");
    let name = ran.err.split_whitespace().next().unwrap().strip_prefix("configmap/").unwrap().to_owned();
    assert!(name.starts_with("pool-b-"), "{name}");
    assert_eq!(bench.server.config_map("kubelet-config", &name)["immutable"], true);
}

/// What a node said to somebody else, or before, is no answer.
#[test]
fn an_old_answer_does_not_count_and_a_silent_node_is_told() {
    let bench = bench(&["n1"]);
    answer(&bench, "n1", &PreflightStatus::new("kubelet-config/pool-a/kubelet", PreflightResult::Valid, ""));
    let ran = bench.run(&["preflight", "pool-a", "n1", "--timeout", "1s"]);
    assert_eq!((ran.code, ran.out.lines().last()), (1, Some("1 silent: n1")), "{ran:#?}");
    assert_eq!(request(&bench, "n1"), None);
}

#[test]
fn one_that_may_not_be_asked_is_told_apart() {
    let bench = bench(&["n1", "n2"]);
    bench.server.faults().push(Fault::new(Verb::Patch, "nodes/n2", FaultKind::Status(403)).times(1));
    let ran = run(&bench, &["preflight", "pool-a", "n1", "n2"], &[("n1", PreflightResult::Valid, "v1.30.1", "")]);
    assert_eq!(ran.code, 1);
    assert!(ran.out.contains("1 valid; 1 could not be asked: you have no right to patch node n2"), "{}", ran.out);
}

#[test]
fn an_interrupt_takes_the_annotation_off() {
    let bench = bench(&["n1"]);
    let mut command = bench.command(&["preflight", "pool-a", "n1"]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    requested(&bench, "n1");
    kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), Signal::SIGINT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1));
    assert_eq!(request(&bench, "n1"), None);
}
