//! The kubelet's binary is replaced: what failed did so with the one that ran.

use kubelet_config::status::ConditionReason;
use kubelet_supervisor::machine::status::node_status;
use testkit::node::Node;

use super::{minutes, proven, rolled_back};

fn fails(node: &mut Node) {
    node.healthz = Some(false);
    node.pass(90);
    assert!(rolled_back(node), "{:?}", node.events());
    node.healthz = Some(true);
}

/// The package is upgraded while the version is on trial, and the label edit has the supervisor see that.
#[test]
fn a_failure_is_held_against_the_binary_that_ran() {
    let mut node = proven("a");
    node.assign("x").pass(60);
    assert_eq!(node.running(), Some("x"));
    node.kubelet = "kubelet 2".into();
    node.alias("x@2", "x").edit("x", "2").pass(5);
    fails(&mut node);
    let binaries: Vec<&str> = node.disk().bad.iter().map(|bad| &*bad.kubelet.0).collect();
    assert_eq!(binaries, ["kubelet"]);
    // With the new one it is tried, once last known good was started with that.
    node.pass(minutes(15));
    assert_eq!((node.running(), node.last_known_good()), (Some("x"), "x"), "{:?}", node.starts);
}

/// A node on which x failed with the first binary, and runs with the second.
fn with_another() -> Node {
    let mut node = proven("a");
    node.assign("x").pass(60);
    fails(&mut node);
    node.pass(minutes(2));
    restart_with(&mut node, "kubelet 2");
    assert_eq!(node.running(), Some("x"), "another binary may run it: {:?}", node.starts);
    node
}

fn restart_with(node: &mut Node, kubelet: &str) {
    node.kubelet = kubelet.into();
    node.exit(137).pass(minutes(2));
}

fn has_left_x(node: &Node) {
    assert_eq!(node.running(), Some("a"), "{:?}", node.starts);
    assert!(node.published.last().is_some_and(|status| status.error.is_some()), "nobody is told why");
}

/// A failure with one binary outlives a proof with another.
#[test]
fn what_failed_with_a_binary_is_not_started_with_it_again() {
    for is_proven in [false, true] {
        let mut node = with_another();
        if is_proven {
            node.pass(minutes(15));
            assert_eq!(node.last_known_good(), "x", "{:?}", node.events());
        }
        restart_with(&mut node, "kubelet");
        has_left_x(&node);
        restart_with(&mut node, "kubelet 2");
        assert_eq!(node.running(), Some("x"), "{:?}", node.starts);
    }
}

/// With another binary last known good failed as x did: that says nothing of the first one.
#[test]
fn what_failed_with_a_binary_is_not_said_to_be_tried_again_with_it() {
    let mut node = with_another();
    node.healthz = Some(false);
    node.pass(minutes(4));
    assert!(node.events().contains(&"KubeletConfigNotBlamed"), "{:?}", node.events());
    node.healthz = Some(true);
    restart_with(&mut node, "kubelet");
    node.pass(minutes(5));
    has_left_x(&node);
    let status = node_status(&node.state);
    assert_eq!(status.condition.reason, ConditionReason::RolledBack, "{:?}", status.condition);
}

/// The kubelet is upgraded over and over: what each binary found valid is not kept for ever.
#[test]
fn the_record_does_not_grow_with_each_binary() {
    let mut node = proven("a");
    let size = node.disk().encode().len();
    for number in 0..100 {
        node.kubelet = format!("/usr/bin/kubelet:{number}:118000000:1700000000:0");
        node.reboot().pass(15);
    }
    let grown = node.disk().encode().len() - size;
    assert!(grown < 1000, "{grown} bytes");
}
