//! What a command answers is true, and durable.

use kubelet_config::assignment::Assignment;
use kubelet_supervisor::machine::Input;
use kubelet_supervisor::machine::command::{Command, Target};
use kubelet_supervisor::machine::records::Phase;
use serde_json::json;
use testkit::node::{Node, REFUSAL, source};

use super::{exits_at_its_start, fails_at_its_start, minutes, prove, proven, rolled_back};
use crate::{awaiting, confirmed};

fn version(name: &str) -> Target {
    format!("uid-{name}/1").parse().unwrap()
}

/// The kubelet refused x: it is not pinned, and nothing is restarted into itself.
#[test]
fn a_pin_of_a_refused_version_is_refused_with_the_reason() {
    let mut node = proven("a");
    node.refuse("x").assign("x").pass(30);
    assert!(node.is_bad("x"));
    for command in [Command::Pin { to: Some(version("x")) }, Command::Rollback { to: version("x") }] {
        let why = node.operate(command).unwrap_err();
        assert!(why.contains(REFUSAL), "{why}");
    }
    node.pass(minutes(5));
    assert_eq!(node.starts, ["", "a"]);
    assert_eq!(node.disk().pin, None);
}

/// x failed its trial. Root may have it all the same; what is answered is what happens.
#[test]
fn a_pin_of_a_failed_version_does_not_restart_last_known_good() {
    let mut node = proven("a");
    fails_at_its_start(&mut node);
    assert_eq!(node.running(), Some("a"));
    let starts = node.starts.len();
    let answer = node.operate(Command::Pin { to: Some(version("x")) });
    node.pass(60);
    match answer {
        Ok(_) => assert_eq!(node.running(), Some("x"), "{:?}", node.starts),
        Err(_) => assert_eq!(node.starts.len(), starts, "{:?}", node.starts),
    }
}

/// a was proven, its bytes are gone, local runs.
#[test]
fn a_rollback_where_local_runs_already_says_so() {
    let mut node = proven("a");
    node.store.lose(&source("a"));
    node.api = false;
    node.reboot().pass(60);
    assert_eq!(node.running(), Some(""), "{:?}", node.starts);
    let starts = node.starts.len();
    let why = node.operate(Command::Rollback { to: Target::Lkg }).unwrap_err();
    assert!(why.contains("no checkpoint"), "{why}");
    node.pass(minutes(5));
    assert_eq!(node.starts.len(), starts, "{:?}", node.starts);
    assert!(!node.is_bad("a"), "{:?}", node.disk().bad);
}

#[test]
fn an_unpin_without_the_api_server_goes_to_what_is_assigned_once() {
    let mut node = proven("a");
    prove(&mut node, "b");
    node.obey(Command::Pin { to: Some(version("a")) }).pass(60);
    assert_eq!(node.running(), Some("a"));
    (node.api, node.contact) = (false, false);
    node.pass(minutes(2)).obey(Command::Unpin).pass(minutes(20));
    assert_eq!(node.starts, ["", "a", "b", "a", "b"], "{:?}", node.events());
}

/// x was assigned and on trial, local is pinned; then something else is assigned, which nobody can ask for now.
#[test]
fn an_unpin_of_what_is_no_longer_assigned_goes_to_last_known_good_once() {
    let mut node = proven("a");
    prove(&mut node, "b");
    node.obey(Command::Pin { to: Some(Target::Local) }).pass(60).assign("c").pass(60);
    (node.api, node.contact) = (false, false);
    node.pass(minutes(2)).obey(Command::Unpin).pass(minutes(20));
    // c was never started, and is not while the server is away that assigned it.
    assert_eq!(node.starts, ["", "a", "b", "", "b"], "{:?}", node.events());
    (node.api, node.contact) = (true, true);
    node.pass(minutes(15));
    assert_eq!(node.last_known_good(), "c", "{:?}", node.events());
}

/// It goes on once the server is back: like any change, with a baseline of then.
#[test]
fn an_unpin_does_not_switch_to_what_was_on_trial_while_the_api_server_is_away() {
    let mut node = proven("a");
    node.assign("x").pass(20).obey(Command::Pin { to: Some(version("a")) }).pass(60);
    (node.api, node.contact) = (false, false);
    node.pass(minutes(2)).obey(Command::Unpin).pass(minutes(20));
    assert_eq!(node.starts, ["", "a", "x", "a"], "{:?}", node.events());
    assert!(!rolled_back(&node) && !node.is_bad("x"), "{:?}", node.events());
    (node.api, node.contact) = (true, true);
    node.pass(minutes(15));
    assert_eq!(node.last_known_good(), "x", "{:?}", node.events());
    assert_eq!(node.starts, ["", "a", "x", "a", "x"], "{:?}", node.events());
}

/// A stale answer says for a moment that nothing is assigned; the right one comes once that is on record, and before local
/// could be read to be started.
#[test]
fn what_is_assigned_again_while_it_runs_is_to_be_confirmed() {
    let mut node = proven("b");
    node.define("a", json!({}), confirmed("30m")).assign("a").pass(60).stall();
    node.step(Input::Node(Assignment::Local)).serve_next(); // what the reset would come to
    node.serve_next();
    assert_eq!((node.running(), &node.disk().assigned), (Some("a"), &None), "{:?}", node.events());
    node.assign("a").end_stall().pass(minutes(20));
    assert_eq!((node.running(), node.last_known_good()), (Some("a"), ""), "{:?}", node.starts);
    assert!(matches!(node.disk().phase, Phase::AwaitingConfirmation(..)), "{:?}", node.disk());
}

#[test]
fn what_is_confirmed_is_not_to_be_confirmed_later() {
    let mut node = Node::new();
    node.define("a", json!({}), confirmed("30m")).assign("a").pass(60);
    node.obey(Command::Confirm { extend_seconds: None });
    let why = node.operate(Command::Confirm { extend_seconds: Some(60) }).unwrap_err();
    assert!(why.contains("is confirmed"), "{why}");
}

/// What it passed its trial in spite of is not added to what happens while somebody makes up their mind.
#[test]
fn an_exit_in_the_trial_does_not_count_in_the_wait_for_a_confirmation() {
    let mut node = proven("b");
    node.define("a", json!({}), confirmed("5h")).assign("a").pass(60).exit(1);
    node.pass(minutes(12));
    assert!(matches!(node.disk().phase, Phase::AwaitingConfirmation(..)), "{:?}", node.disk());
    node.exit(1).pass(minutes(2));
    assert_eq!(node.running(), Some("a"), "{:?}", node.events());
}

/// Nobody can confirm on a node that never stays up.
#[test]
fn a_wait_for_a_confirmation_ends_on_a_node_that_reboots_in_a_loop() {
    let mut node = awaiting();
    for _ in 0..35 {
        node.reboot().pass(20);
    }
    assert!(rolled_back(&node), "{:?}", node.disk().phase);
    assert_eq!(node.running(), Some(""));
}

#[test]
fn a_confirmation_is_answered_once_it_is_durable() {
    let mut node = awaiting();
    let number = node.stall().ask(Command::Confirm { extend_seconds: None });
    node.pass(2);
    assert_eq!((node.answer_to(number), node.last_known_good()), (None, ""));
    node.end_stall().pass(5);
    assert!(node.answer_to(number).unwrap().is_ok());
    node.reboot().pass(minutes(45));
    assert_eq!(node.last_known_good(), "a", "a confirmation that was answered stands: {:?}", node.events());
}

/// Somebody confirms at the last moment, and the disk takes its time.
#[test]
fn a_confirmation_in_time_is_not_overtaken_by_its_deadline() {
    for durable in [true, false] {
        let mut node = awaiting();
        while node.state.confirm_left() != Some(2) {
            node.pass(1);
        }
        let number = node.stall().ask(Command::Confirm { extend_seconds: None });
        node.pass(10);
        assert_eq!((node.answer_to(number), node.running()), (None, Some("a")), "{:?}", node.events());
        if durable {
            node.end_stall();
        } else {
            node.pass(30);
        }
        let answer = node.answer_to(number).expect("it is answered");
        node.end_stall().pass(60);
        assert_eq!((answer.is_ok(), rolled_back(&node)), (durable, !durable), "{answer:?}: {:?}", node.events());
    }
}

/// The annotation stands on the Node, and a is no longer what it was about.
#[test]
fn an_annotation_confirms_nothing_that_failed() {
    let mut node = awaiting();
    node.obey(Command::Rollback { to: Target::Lkg });
    node.step(Input::NodeAnnotations { retry: None, confirm: Some("uid-a/1".into()) }).pass(60);
    assert!(!node.events().contains(&"KubeletConfigConfirmed"), "{:?}", node.events());
    let mut node = proven("a");
    node.define("x", json!({}), confirmed("30m"));
    exits_at_its_start(&mut node, "x");
    assert!(matches!(node.disk().phase, Phase::ControlTest(..)), "{:?}", node.disk());
    node.step(Input::NodeAnnotations { retry: None, confirm: Some("uid-x/1".into()) }).pass(10);
    assert!(!node.events().contains(&"KubeletConfigConfirmed"), "{:?}", node.events());
}

/// It stands on the Node for good: a boot does not read it as a new one. The same word again, once it was taken away, is
/// one.
#[test]
fn an_annotation_that_was_obeyed_is_not_obeyed_again_in_the_next_life() {
    let mut node = proven("a");
    fails_at_its_start(&mut node);
    let retry = |node: &mut Node, value: Option<&str>| {
        node.step(Input::NodeAnnotations { retry: value.map(str::to_owned), confirm: None }).pass(10);
    };
    let retried = |node: &Node| node.events().iter().filter(|event| **event == "KubeletConfigRetried").count();
    node.ready_after = None;
    retry(&mut node, Some("uid-x/1"));
    assert_eq!((retried(&node), node.running()), (1, Some("x")), "{:?}", node.events());
    node.ready_after = Some(1);
    node.exit(1).pass(60);
    assert!(node.is_bad("x"), "{:?}", node.events());
    for _ in 0..2 {
        node.reboot().pass(120);
    }
    assert_eq!((retried(&node), node.running()), (1, Some("a")), "{:?}", node.events());
    assert!(node.is_bad("x"));
    retry(&mut node, None);
    retry(&mut node, Some("uid-x/1"));
    assert_eq!(retried(&node), 2, "{:?}", node.events());
}

/// Somebody asks in the moment in which a supervisor has begun, and no kubelet has.
#[test]
fn what_is_about_to_run_is_pinned_before_the_first_start() {
    let mut node = proven("a");
    let before = node.starts.len();
    let number = node.stall().reboot().ask(Command::Pin { to: None });
    node.end_stall().pass(60);
    assert!(node.answer_to(number).is_some_and(|answer| answer.is_ok_and(|text| text.contains("uid-a"))));
    let pinned = node.disk().pin.clone().map(|pin| pin.version.map(|version| version.source));
    assert_eq!(pinned, Some(Some(source("a"))));
    assert_eq!(node.starts[before..], ["a"], "the local configuration never ran");
}

#[test]
fn a_command_that_cannot_be_written_is_refused() {
    let mut node = awaiting();
    node.store.full = true;
    let commands = [
        Command::Confirm { extend_seconds: None },
        Command::Freeze,
        Command::Pin { to: Some(Target::Local) },
        Command::Rollback { to: Target::Local },
    ];
    let starts = node.starts.clone();
    for command in commands {
        let number = node.ask(command.clone());
        node.pass(40);
        let answer = node.answer_to(number).expect("it is answered");
        assert!(answer.is_err(), "{command:?}: {answer:?}");
    }
    assert_eq!(node.starts, starts, "nor is it done");
    node.store.full = false;
    node.pass(60);
    assert_eq!((&node.disk().pin, node.disk().frozen, node.last_known_good()), (&None, false, ""), "nor later");
}

#[test]
fn what_a_command_asks_for_is_done_once_it_is_durable() {
    let mut node = proven("a");
    let number = node.stall().ask(Command::Pin { to: Some(Target::Local) });
    node.pass(2);
    assert_eq!((node.answer_to(number), node.starts.len()), (None, 2));
    node.end_stall().pass(5);
    assert!(node.answer_to(number).unwrap().is_ok());
    assert_eq!(node.running(), Some(""));
}

/// A person waits.
#[test]
fn a_command_is_answered_although_the_disk_is_not() {
    let mut node = proven("a");
    let number = node.stall().ask(Command::Freeze);
    node.pass(60);
    assert!(node.answer_to(number).expect("it is answered").is_err());
    node.end_stall().pass(60);
    assert!(!node.disk().frozen, "what was refused is not done later");
    node.assign("b").pass(60);
    assert_eq!(node.running(), Some("b"));
}

/// A verdict comes while a command is written down: it contradicts nothing, and both are kept.
#[test]
fn a_command_stands_although_something_is_learned_meanwhile() {
    let mut node = proven("a");
    node.kubelet = "kubelet 2".into();
    node.preflight_answers = false;
    node.boot();
    assert_eq!(node.running(), None, "it waits for the verdict");
    let number = node.stall().ask(Command::Freeze);
    node.end_preflight();
    assert_eq!(node.answer_to(number), None, "it is not durable yet");
    node.end_stall();
    assert_eq!(node.answer_to(number), Some(Ok("no change is taken up until thaw".to_owned())));
    node.pass(30);
    assert_eq!((node.running(), node.disk().frozen), (Some("a"), true));
    // The verdict is durable as well.
    let asked = node.preflights.len();
    node.reboot().pass(30);
    assert_eq!((node.running(), node.preflights.len()), (Some("a"), asked));
}

/// A decision is another matter: what the command was about is no more.
#[test]
fn a_command_gives_way_to_a_rollback_meanwhile() {
    let mut node = proven("a");
    node.define("x", json!({}), confirmed("30m")).assign("x").pass(60).stall();
    let number = node.ask(Command::Confirm { extend_seconds: None });
    for _ in 0..2 {
        node.exit(1).pass(10); // a start waits a while for the disk
    }
    assert!(rolled_back(&node), "{:?}", node.events());
    node.end_stall().pass(30);
    let answer = node.answer_to(number).unwrap();
    assert!(answer.is_err(), "{answer:?}");
    assert!(node.is_bad("x"), "{:?}", node.disk());
    assert_eq!(node.running(), Some("a"));
}

/// A pin is somebody's decision: it stops the clock of a confirmation, and unpin says what is left.
#[test]
fn a_pin_does_not_let_the_wait_for_a_confirmation_run_out() {
    for reboots in [false, true] {
        let mut node = Node::new();
        prove(&mut node, "a");
        node.define("b", json!({}), confirmed("1h")).assign("b").pass(900);
        let left = node.state.confirm_left().unwrap();
        node.obey(Command::Pin { to: None }).pass(7200);
        if reboots {
            node.reboot().pass(60);
        }
        let answer = node.operate(Command::Unpin).unwrap();
        assert!(answer.contains(&format!("to be confirmed within {left} s")), "{answer}");
        node.pass(5);
        assert_eq!(node.running(), Some("b"), "{:?}", node.events());
        node.pass(left + 5);
        assert_eq!(node.running(), Some("a"), "it ends all the same");
    }
}

#[test]
fn a_command_says_what_will_be() {
    let mut node = Node::new();
    prove(&mut node, "a");
    node.refuse("x").assign("x").pass(30);
    node.refused.clear();
    node.obey(Command::Freeze);
    let answer = node.operate(Command::Retry).unwrap();
    assert!(answer.contains("once thaw"), "{answer}");
    node.pass(600);
    assert_eq!(node.running(), Some("a"));
    node.obey(Command::Thaw).pass(60);
    assert_eq!(node.running(), Some("x"));
    assert!(node.operate(Command::Unpin).is_err(), "nothing is pinned");
}

/// Once it is unpinned it is tried like any change, and would have to be confirmed then.
#[test]
fn what_does_not_run_for_a_pin_is_not_confirmed() {
    let mut node = awaiting();
    node.obey(Command::Pin { to: Some(Target::Local) }).pass(100);
    for extend_seconds in [None, Some(3600)] {
        let why = node.operate(Command::Confirm { extend_seconds }).unwrap_err();
        assert!(why.contains("unpin first"), "{why}");
    }
    node.obey(Command::Unpin).pass(minutes(12)).obey(Command::Confirm { extend_seconds: None }).pass(5);
    assert_eq!(node.last_known_good(), "a", "{:?}", node.events());
}

/// Whoever may write the Node's annotations may have a version tried again, and not have the kubelet restarted without an end.
#[test]
fn retries_by_annotation_have_a_pause_that_grows() {
    let mut node = proven("a");
    exits_at_its_start(&mut node, "x");
    node.pass(60);
    let before = node.starts.len();
    for second in 0..minutes(60) {
        if second.is_multiple_of(10) {
            let spelling = ["1", "uid-x/1", " 1"][usize::try_from(second / 10 % 3).unwrap()];
            node.step(Input::NodeAnnotations { retry: Some(spelling.to_owned()), confirm: None });
        }
        if node.running() == Some("x") {
            node.exit(1);
        }
        node.pass(1);
    }
    let starts = node.starts.len() - before;
    assert!((2..=20).contains(&starts), "{starts} starts in an hour");
}
