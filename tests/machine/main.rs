//! The state machine, without a daemon around it.
#![cfg(test)]

mod behaviour;
mod counted;
mod defects;
mod drift;
mod gate;
mod hung;
mod local_files;
mod namespaces;
mod payloads;
mod policy;
mod preflight;
mod publication;
mod random_inputs;
mod reset;
mod spread;
mod standby;
mod trial;
mod workers;

use kubelet_config::pods::PodSummary;
use kubelet_config::source::ConfigAnnotations;
use kubelet_supervisor::machine::records::Phase;
use serde_json::json;
use testkit::node::Node;

fn minutes(count: u64) -> u64 {
    count * 60
}

/// A node on which this was assigned, and proven.
fn proven(name: &str) -> Node {
    let mut node = Node::new();
    prove(&mut node, name);
    node
}

/// A version that is to be confirmed within this time.
fn confirmed(within: &str) -> ConfigAnnotations {
    ConfigAnnotations { confirm_within: Some(within.to_owned()), ..ConfigAnnotations::default() }
}

/// A version whose hazards an administrator accepts, if any.
fn acknowledged(classes: Option<&str>) -> ConfigAnnotations {
    ConfigAnnotations { acknowledge: classes.map(str::to_owned), ..ConfigAnnotations::default() }
}

/// A node where a waits to be confirmed, within half an hour.
fn awaiting() -> Node {
    let mut node = Node::new();
    node.define("a", json!({}), confirmed("30m")).assign("a").pass(minutes(12));
    assert!(matches!(node.disk().phase, Phase::AwaitingConfirmation(..)), "{:?}", node.disk());
    node
}

/// One that runs.
fn pod(name: &str) -> PodSummary {
    PodSummary {
        uid: name.to_owned(),
        name: format!("default/{name}"),
        phase: "Running".to_owned(),
        ..PodSummary::default()
    }
}

/// The kubelet exits at its start with this version.
fn exits_at_its_start(node: &mut Node, name: &str) {
    node.ready_after = None;
    node.assign(name);
    node.ready_after = Some(1);
    node.exit(1);
}

fn prove(node: &mut Node, name: &str) {
    node.assign(name).pass(minutes(11));
    assert_eq!((node.active(), node.last_known_good()), (name, name), "{:?}", node.events());
}
