//! What a hostile review found of answers and texts: what is said is so, and is said.

use kubelet_config::assignment::Assignment;
use kubelet_config::source::ConfigAnnotations;
use kubelet_supervisor::machine::Input;
use kubelet_supervisor::machine::command::{Command, Target};
use kubelet_supervisor::machine::evidence::NodePressure;
use kubelet_supervisor::machine::status::node_status;
use serde_json::json;
use testkit::node::{Node, source};

use super::{dumps, ends_with, hung_node, in_place_of_local};
use crate::{confirmed, exits_at_its_start, minutes, prove, proven};

#[test]
fn a_rollback_says_where_it_goes_when_the_binary_refuses_last_known_good() {
    let mut node = proven("a");
    node.refuse("a");
    node.kubelet = "kubelet 2".into();
    node.exit(137).pass(60);
    assert_eq!(node.running(), Some(""), "{:?}", node.events());
    node.assign("b").pass(60);
    assert_eq!(node.running(), Some("b"), "{:?}", node.events());
    let answer = node.operate(Command::Rollback { to: Target::Lkg }).unwrap();
    node.pass(30);
    assert!(node.running() == Some("a") || !answer.contains("configmaps/a"), "runs {:?}: {answer}", node.running());
}

#[test]
fn thaw_does_not_say_that_changes_are_taken_up_while_something_is_pinned() {
    let mut node = proven("a");
    node.obey(Command::Pin { to: None }).obey(Command::Freeze);
    let answer = node.operate(Command::Thaw).unwrap();
    node.assign("b").pass(60);
    assert!(node.running() == Some("b") || answer != "changes are taken up again", "{answer}");
}

#[test]
fn unpin_does_not_ask_for_a_confirmation_that_was_given() {
    let mut node = Node::new();
    node.define("a", json!({}), confirmed("30m")).assign("a").pass(minutes(12));
    node.obey(Command::Pin { to: None }).obey(Command::Confirm { extend_seconds: None });
    let answer = node.operate(Command::Unpin).unwrap();
    assert!(!answer.contains("is to be confirmed"), "{answer}");
}

#[test]
fn it_is_not_said_that_something_runs_in_the_place_of_the_local_files_while_they_run() {
    let mut node = in_place_of_local();
    node.store.unreadable.insert("a".into());
    node.exit(1).pass(minutes(30));
    let message = node_status(&node.state).condition.message;
    assert!(
        node.running() == Some("a") || !message.contains("runs in its place"),
        "runs {:?}: {message}",
        node.running()
    );
}

#[test]
fn a_hung_kubelet_in_the_place_of_the_local_files_is_not_said_to_be_restarted_as_it_was() {
    let mut node = hung_node();
    prove(&mut node, "a");
    node.step(Input::Node(Assignment::Local));
    ends_with(&mut node, &[""], minutes(2));
    assert_eq!(node.running(), Some("a"), "{:?}", node.events());
    for _ in 0..3 {
        node.pass(60);
        (node.healthz, node.pings) = (Some(false), false);
        let ran = node.running().map(str::to_owned);
        let (before, events) = (dumps(&node), node.events().len());
        for _ in 0..7200 {
            node.pass(1);
            if dumps(&node) > before {
                break;
            }
        }
        (node.healthz, node.pings) = (Some(true), true);
        let told =
            if node.events()[events..].contains(&"KubeletHung") { node.message("KubeletHung") } else { String::new() };
        node.pass(5);
        assert!(
            node.running() == ran.as_deref() || !told.contains("same configuration"),
            "runs {:?}: {told}",
            node.running()
        );
    }
}

#[test]
fn a_request_is_answered_though_nothing_can_be_written() {
    let mut node = proven("a");
    node.create("b", json!({}), ConfigAnnotations::default());
    node.store.full = true;
    node.exit(1).pass(60); // a start is written down
    node.request(Some("n/b")).pass(minutes(60));
    assert!(node.preflight.1.is_some());
}

#[test]
fn a_command_is_answered_though_the_record_cannot_be_read() {
    let mut node = proven("a");
    node.stall().replace_worker(Some("signal 9")).pass(60);
    let number = node.ask(Command::Freeze);
    node.pass(minutes(10));
    assert!(node.answer_to(number).is_some(), "nothing in ten minutes");
}

#[test]
fn retry_does_not_say_that_what_is_gone_is_tried_again() {
    let mut node = proven("a");
    exits_at_its_start(&mut node, "x");
    node.pass(60).step(Input::ConfigMapFailed { why: "the ConfigMap does not exist".into(), definite: true });
    node.pass(60);
    let answer = node.operate(Command::Retry).unwrap_or_default();
    node.pass(minutes(60));
    assert!(
        node.starts.iter().filter(|name| *name == "x").count() > 1 || !answer.contains("is tried again"),
        "{answer}"
    );
}

#[test]
fn retry_does_not_say_that_what_was_overtaken_is_tried_again() {
    let mut node = proven("a");
    exits_at_its_start(&mut node, "x");
    node.pass(60);
    node.pressure = [NodePressure::Disk].into();
    node.pass(10).assign("c").pass(30);
    assert!(node.state.waiting().is_some() && node.disk().assigned.as_ref().unwrap().source == source("x"));
    let answer = node.operate(Command::Retry).unwrap_or_default();
    node.pass(minutes(60));
    node.pressure.clear();
    node.pass(minutes(60));
    assert!(
        node.starts.iter().filter(|name| *name == "x").count() > 1 || !answer.contains("is tried again"),
        "{answer}"
    );
}

#[test]
fn a_hung_kubelet_whose_local_file_was_edited_is_not_said_to_be_restarted_as_it_was() {
    let mut node = hung_node();
    node.store.local = "2".to_owned();
    node.step(Input::LocalFilesTouched).pass(30);
    let before = node.state.running().digest.clone();
    (node.healthz, node.pings) = (Some(false), false);
    for _ in 0..minutes(20) {
        node.pass(1);
        if dumps(&node) > 0 {
            break;
        }
    }
    node.pass(30);
    let told = node.message("KubeletHung");
    assert!(node.state.running().digest == before || !told.contains("same configuration"), "{before:?} {told}");
}

#[test]
fn retry_on_a_frozen_node_after_a_reset_does_what_it_says() {
    let mut node = in_place_of_local();
    node.obey(Command::Freeze);
    let answer = node.operate(Command::Retry).unwrap();
    node.pass(30);
    assert!(node.running() == Some("a") || !answer.contains("once thaw"), "runs {:?}: {answer}", node.running());
}

#[test]
fn rollback_does_not_say_that_local_runs_while_something_runs_in_its_place() {
    let mut node = in_place_of_local();
    let answer = node.operate(Command::Rollback { to: Target::Lkg }).unwrap_err();
    assert!(!answer.contains("what runs is last known good already (the local configuration)"), "{answer}");
}
