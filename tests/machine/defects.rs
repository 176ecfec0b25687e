//! Defects that a review found, each with a test that shows what should happen instead.

mod binaries;
mod contact;
mod content;
mod health;
mod names;
mod questions;
mod store;
mod verbs;

use kubelet_supervisor::machine::Effect;
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

fn prove(node: &mut Node, name: &str) {
    node.assign(name);
    node.pass(minutes(11));
    assert_eq!((node.active(), node.last_known_good()), (name, name), "{:?}", node.events());
}

/// How often something was done since.
fn count(node: &Node, since: usize, which: impl Fn(&Effect) -> bool) -> usize {
    node.effects[since..].iter().filter(|effect| which(effect)).count()
}

fn exits_at_its_start(node: &mut Node) {
    node.ready_after = None;
    node.assign("x");
    node.ready_after = Some(1);
    node.exit(1);
}

/// The kubelet exits at its start with x, which goes back.
fn fails_at_its_start(node: &mut Node) {
    exits_at_its_start(node);
    node.pass(60);
    assert!(node.is_bad("x"), "{:?}", node.events());
}

/// The disk and the API server are well again: the next assignment is proven.
fn next_one_is_proven(node: &mut Node) {
    node.api = true;
    node.assign("b");
    node.pass(minutes(15));
    assert_eq!(node.last_known_good(), "b", "{:?}", node.events());
}

fn rolled_back(node: &Node) -> bool {
    node.events().contains(&"KubeletConfigRolledBack")
}
