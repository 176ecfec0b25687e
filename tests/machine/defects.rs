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

/// So many seconds until the kubelet was started again; the node is let be for at most that long.
fn until_start(node: &mut Node, limit: u64) -> Option<u64> {
    let before = node.starts.len();
    (0..limit).find(|_| {
        node.pass(1);
        node.starts.len() > before
    })
}

/// How often something was done since.
fn count(node: &Node, since: usize, which: impl Fn(&Effect) -> bool) -> usize {
    node.effects[since..].iter().filter(|effect| which(effect)).count()
}

fn rolled_back(node: &Node) -> bool {
    node.events().contains(&"KubeletConfigRolledBack")
}
