//! Defects that a review found, each with a test that shows what should happen instead.

mod binaries;
mod contact;
mod content;
mod health;
mod joints;
mod names;
mod progress;
mod questions;
mod store;
mod verbs;

use kubelet_supervisor::machine::Effect;
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
