//! The state machine, without a daemon around it.
#![cfg(test)]

mod behaviour;
mod counted;
mod defects;
mod drift;
mod good_moment;
mod hung;
mod local_files;
mod policy;
mod preflight;
mod publication;
mod random_inputs;
mod spread;
mod standby;
mod trial;

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
