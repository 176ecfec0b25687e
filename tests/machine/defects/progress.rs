//! A node that is left alone with its faults comes to rest: each wait ends, or is asked for ever more seldom and told once.

use kubelet_config::assignment::Assignment;
use kubelet_supervisor::machine::Effect;
use kubelet_supervisor::machine::Input;
use kubelet_supervisor::machine::evidence::Query;
use testkit::node::Node;

use super::{count, exits_at_its_start, minutes, proven};

fn is_lease(effect: &Effect) -> bool {
    matches!(effect, Effect::Query(_, Query::Lease))
}

/// Questions and lines of the log in an hour of that.
fn hour_of_waiting(node: &mut Node) -> (usize, usize) {
    node.assign("x");
    node.pass(minutes(30));
    let (effects, lines) = (node.effects.len(), node.journal.len());
    node.pass(minutes(60));
    (count(node, effects, is_lease), node.journal.len() - lines)
}

#[test]
fn a_change_that_waits_for_the_api_server_asks_ever_more_seldom_and_says_so_once() {
    let silent: [fn(&mut Node, bool); 2] =
        [|node, is_silent| node.busy = is_silent, |node, is_silent| node.queries_answered = !is_silent];
    for silence in silent {
        let mut node = proven("a");
        silence(&mut node, true);
        let (asked, said) = hour_of_waiting(&mut node);
        assert!((1..=70).contains(&asked), "asked {asked} times in an hour");
        assert_eq!(said, 0, "{:?}", node.journal);
        let waits = node.events().iter().filter(|reason| **reason == "KubeletConfigWaiting").count();
        assert_eq!((waits, node.running()), (1, Some("a")), "{:?}", node.events());
        silence(&mut node, false);
        node.pass(75);
        assert_eq!(node.running(), Some("x"), "it is back");
    }
}

/// What failed exited; last known good does not, and is not well for long enough either.
#[test]
fn a_control_test_that_tells_nothing_ends() {
    let mut node = proven("a");
    exits_at_its_start(&mut node, "x");
    for _ in 0..minutes(12) / 30 {
        node.healthz = Some(true);
        node.pass(20);
        node.healthz = Some(false);
        node.pass(10);
    }
    assert!(node.events().contains(&"KubeletConfigNotBlamed"), "{:?}", node.events());
    assert_eq!(node.running(), Some("a"));
    node.healthz = Some(true);
    node.pass(minutes(15));
    assert_eq!(node.last_known_good(), "x", "it was tried once more: {:?}", node.events());
}

#[test]
fn a_kubelet_that_stays_sick_is_probed_as_seldom_as_a_healthy_one() {
    let mut node = proven("a");
    exits_at_its_start(&mut node, "x");
    node.pass(5);
    node.healthz = Some(false);
    node.pass(minutes(5));
    let effects = node.effects.len();
    node.pass(minutes(5));
    let probes = count(&node, effects, |effect| matches!(effect, Effect::Probe(..)));
    assert!(probes <= 62, "{probes} probes in five minutes");
}

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
