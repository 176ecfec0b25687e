//! Defects that a review found, each with a test that shows what should happen instead.

mod answers;
mod binaries;
mod contact;
mod content;
mod evidence;
mod health;
mod joints;
mod names;
mod progress;
mod questions;
mod resets;
mod rungs;
mod store;
mod verbs;

use std::time::Duration;

use kubelet_config::assignment::Assignment;
use kubelet_supervisor::machine::{Effect, Input, Settings};
use testkit::node::Node;

use crate::{exits_at_its_start, minutes, prove, proven};

/// How often something was done since.
fn count(node: &Node, since: usize, which: impl Fn(&Effect) -> bool) -> usize {
    node.effects[since..].iter().filter(|effect| which(effect)).count()
}

/// The kubelet exits at its start with x, which goes back.
fn fails_at_its_start(node: &mut Node) {
    exits_at_its_start(node, "x");
    node.pass(60);
    assert!(node.is_bad("x"), "{:?}", node.events());
}

fn rolled_back(node: &Node) -> bool {
    node.events().contains(&"KubeletConfigRolledBack")
}

fn hung_node() -> Node {
    Node::with(Settings { hung_after: Duration::from_secs(300), ..Settings::default() })
}

fn dumps(node: &Node) -> usize {
    node.effects.iter().filter(|effect| **effect == Effect::DumpStacks).count()
}

fn sleep(node: &mut Node, seconds: u64) {
    node.now += Duration::from_secs(seconds);
    node.wall_nanos += seconds * 1_000_000_000;
}

/// The kubelet ends every two seconds while it runs one of these.
fn ends_with(node: &mut Node, contents: &[&str], seconds: u64) {
    for _ in 0..seconds / 2 {
        if node.running().is_some_and(|content| contents.contains(&content)) {
            node.exit(1);
        }
        node.pass(2);
    }
}

/// After a reset the local files kill the kubelet, and a runs in their place.
fn in_place_of_local() -> Node {
    let mut node = proven("a");
    node.step(Input::Node(Assignment::Local));
    ends_with(&mut node, &[""], minutes(2));
    assert_eq!(node.running(), Some("a"), "{:?}", node.events());
    node
}
