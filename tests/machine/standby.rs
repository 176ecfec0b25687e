//! The standby on the bare machine: asked for where a change is switched to at once, and ended where it is not.

use kubelet_config::assignment::Assignment;
use kubelet_supervisor::machine::command::Command;
use kubelet_supervisor::machine::{Afterwards, Effect, Input, Settings, limits};
use testkit::node::{Node, reference};

/// What was asked of judges so far.
fn asked(node: &Node) -> Vec<Afterwards> {
    let asked = |effect: &Effect| match effect {
        Effect::Preflight(_, _, afterwards) => Some(*afterwards),
        _ => None,
    };
    node.effects.iter().filter_map(asked).collect()
}

fn discards(node: &Node) -> usize {
    node.effects.iter().filter(|effect| **effect == Effect::DiscardStandby).count()
}

/// A change is judged, and its baseline waits for an API server that does not answer.
fn parked() -> Node {
    let mut node = Node::new();
    node.hold().assign("a");
    assert_eq!((asked(&node), discards(&node)), (vec![Afterwards::StandsBy], 0));
    assert_eq!(node.starts, [""]);
    node
}

#[test]
fn a_change_that_is_switched_to_at_once_keeps_it_to_its_start() {
    let mut node = Node::new();
    node.assign("a");
    assert_eq!((asked(&node), discards(&node)), (vec![Afterwards::StandsBy], 0));
    assert_eq!(node.starts, ["", "a"]);
    node.pass(700);
    assert_eq!((node.last_known_good(), discards(&node)), ("a", 0));
}

#[test]
fn an_edit_that_waits_for_its_turn_is_judged_and_no_more() {
    let mut node = Node::with(Settings { spread: limits::SPREAD, ..Settings::default() });
    node.step(Input::NodeName("n1".to_owned())).assign("a").pass(660).edit("a", "2");
    assert!(node.state.scheduled().is_some());
    assert_eq!(asked(&node), [Afterwards::StandsBy, Afterwards::Ends]);
}

#[test]
fn what_is_not_asked_for_any_more_or_is_frozen_leaves_none_behind() {
    let ends: [fn(&mut Node) -> &mut Node; 3] = [
        |node| node.step(Input::Node(Assignment::Map(reference("no-such-map")))),
        |node| node.obey(Command::Freeze),
        |node| node.step(Input::Shutdown),
    ];
    for end in ends {
        let mut node = parked();
        end(&mut node).release();
        assert_eq!((discards(&node), node.starts.len()), (1, 1));
    }
}

#[test]
fn the_next_version_has_its_own() {
    let mut node = parked();
    node.edit("a", "2").release().pass(10);
    assert_eq!(node.starts, ["", "a@2"]);
    assert_eq!(asked(&node), [Afterwards::StandsBy, Afterwards::StandsBy]);
}

#[test]
fn one_that_waits_for_the_api_server_is_ended() {
    let mut node = Node::new();
    node.queries_answered = false;
    node.assign("a");
    assert_eq!((asked(&node), discards(&node)), (vec![Afterwards::StandsBy], 0));
    node.pass(limits::BASELINE.as_secs() + 2);
    assert_eq!(discards(&node), 1);
    node.queries_answered = true;
    node.pass(60);
    assert_eq!(node.starts, ["", "a"]);
    assert_eq!(asked(&node).len(), 1, "it was accepted");
}
