//! A node that is left alone with its faults comes to rest: each wait ends, or is asked for ever more seldom and told once.

use kubelet_config::assignment::Assignment;
use kubelet_supervisor::machine::Input;

use super::{minutes, proven};

/// The container runtime is gone: neither the node's own files nor what was proven before the reset can run.
#[test]
fn a_reset_on_a_node_where_nothing_lives_is_no_start_loop() {
    let mut node = proven("a");
    node.step(Input::Node(Assignment::Local));
    node.ready_after = None;
    let mut before = (0, 0);
    for second in 0..minutes(120) {
        if second == minutes(60) {
            before = (node.starts.len(), node.events().len());
        }
        if node.running().is_some() {
            node.exit(1);
        }
        node.pass(1);
    }
    let (starts, events) = (node.starts.len() - before.0, node.events().len() - before.1);
    assert!((100..=360).contains(&starts), "{starts} starts in an hour");
    assert!(events <= 4, "{events} events in an hour: {:?}", node.events());
    let tried = |content: &str| node.starts[before.0..].iter().any(|it| it == content);
    assert!(tried("a") || tried(""), "something is tried");
}
