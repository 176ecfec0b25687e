//! What is said of versions: which runs, which is assigned, until when it is to be confirmed.

use std::time::Duration;

use kubelet_supervisor::machine::command::{Command, Target};
use kubelet_supervisor::machine::records::Phase;
use kubelet_supervisor::machine::status::node_status;
use kubelet_supervisor::machine::{Input, Settings};
use serde_json::json;
use testkit::node::Node;

use super::{minutes, prove, proven, rolled_back};
use crate::confirmed;

/// UID-less: the name and version of what is assigned.
fn assigned(node: &Node) -> String {
    let source = node_status(&node.state).assigned.expect("something is assigned");
    format!("{}/{}", source.reference.name, source.resource_version)
}

/// x is on trial, y has its content and takes the name over; z is refused. The node goes back to a, and says so.
#[test]
fn a_refusal_after_an_adoption_names_what_runs() {
    let mut node = proven("a");
    node.alias("y", "x").refuse("z");
    node.assign("x").pass(30).assign("y").pass(30);
    assert_eq!((node.running(), node.active()), (Some("x"), "y"));
    node.assign("z").pass(30);
    assert_eq!((node.running(), node.active()), (Some("a"), "a"), "{:?}", node.events());
    assert_eq!(node.starts, ["", "a", "x", "a"]);
}

/// a, to be confirmed within half an hour, is assigned; a second version has its content.
fn to_be_confirmed() -> Node {
    let mut node = Node::new();
    node.alias("a@2", "a");
    for name in ["a", "a@2"] {
        node.define(name, json!({}), confirmed("30m"));
    }
    node.assign("a");
    node
}

/// An operator has two hours from the end of the trial, under whatever name.
#[test]
fn a_label_edit_keeps_an_extension_given_in_mid_trial() {
    let mut node = to_be_confirmed();
    node.pass(minutes(5));
    let answer = node.operate(Command::Confirm { extend_seconds: Some(minutes(120)) }).unwrap();
    assert!(answer.ends_with("within 7200 s of the end of its trial"), "{answer}");
    node.edit("a", "2").pass(minutes(7));
    assert!(matches!(node.disk().phase, Phase::AwaitingConfirmation(..)), "{:?}", node.disk().phase);
    node.pass(minutes(100));
    assert!(!rolled_back(&node), "{:?}", node.events());
    node.pass(minutes(25));
    assert!(rolled_back(&node), "{:?}", node.events());
}

#[test]
fn a_label_edit_keeps_an_extended_deadline() {
    let mut node = to_be_confirmed();
    node.pass(minutes(12)).obey(Command::Confirm { extend_seconds: Some(minutes(120)) }).edit("a", "2");
    node.pass(minutes(100));
    assert_eq!(node.starts, ["", "a"], "{:?}", node.events());
    assert!(!rolled_back(&node), "{:?}", node.events());
    node.obey(Command::Confirm { extend_seconds: None }).pass(minutes(11));
    assert_eq!(node.last_known_good(), "a");
}

/// Last known good runs to tell whether x is to blame, and gets another name.
#[test]
fn an_adoption_during_a_control_test_does_not_disturb_it() {
    for fails_alike in [false, true] {
        let mut node = proven("a");
        node.alias("b", "a");
        node.ready_after = None;
        node.assign("x");
        node.ready_after = if fails_alike { None } else { Some(1) };
        node.exit(1);
        assert!(matches!(node.disk().phase, Phase::ControlTest(..)), "{:?}", node.disk());
        node.assign("b").pass(2);
        if fails_alike {
            node.exit(1);
            node.ready_after = Some(1);
        }
        node.pass(minutes(15));
        assert_eq!((node.running(), node.active(), node.last_known_good()), (Some("a"), "b", "b"));
        assert!(!node.is_bad("a") && !node.is_bad("b"));
        assert_eq!(node.disk().phase, Phase::Settled, "{fails_alike}");
        assert_eq!(node.starts.iter().filter(|name| *name == "x").count(), 1, "{:?}", node.starts);
    }
}

#[test]
fn assigned_is_the_latest_version_while_it_is_scheduled() {
    let mut node = Node::with(Settings { spread: Duration::from_secs(300), ..Settings::default() });
    node.step(Input::NodeName("n1".into()));
    prove(&mut node, "a");
    node.edit("a", "2");
    assert!(node.state.scheduled().is_some());
    assert_eq!((assigned(&node).as_str(), node.running()), ("a/2", Some("a")));
    node.pass(minutes(6));
    assert_eq!((assigned(&node).as_str(), node.running()), ("a/2", Some("a@2")));
}

#[test]
fn assigned_is_the_latest_version_while_something_holds_it() {
    let holds: [fn(&mut Node); 3] = [
        |node| drop(node.operate(Command::Freeze).unwrap()),
        |node| drop(node.operate(Command::Pin { to: Some(Target::Lkg) }).unwrap()),
        |node| node.queries_answered = false,
    ];
    for hold in holds {
        let mut node = proven("a");
        hold(&mut node);
        node.assign("b").pass(minutes(2));
        assert_eq!((assigned(&node).as_str(), node.running()), ("b/1", Some("a")));
    }
}
