//! A worker that ends, or is replaced, while the kubelet runs: another one goes on with it.

use kubelet_config::source::ConfigAnnotations;
use kubelet_supervisor::machine::records::Phase;
use kubelet_supervisor::machine::{Input, Kubelet};
use serde_json::json;
use testkit::node::{Node, torn};

use crate::{awaiting, minutes, proven};

#[test]
fn the_kubelet_goes_on_and_the_event_says_why() {
    let mut node = proven("a");
    let starts = node.starts.clone();
    node.replace_worker(Some("signal 9")).pass(minutes(1));
    assert_eq!((&node.starts, node.active(), node.state.is_ready()), (&starts, "a", true));
    assert!(node.message("WorkerReplaced").contains("signal 9: worker 2"), "{}", node.message("WorkerReplaced"));
    assert!(
        node.journal.iter().any(|line| line.starts_with("the kubelet goes on, pid 2, with ")),
        "{:?}",
        node.journal
    );
    node.replace_worker(None).pass(minutes(1));
    assert_eq!((node.starts.len(), node.state.worker()), (starts.len(), 3));
    assert_eq!(node.message("WorkerReplaced"), "The supervisor's worker was replaced on request: worker 3 begins");
}

#[test]
fn a_try_is_the_supervisors_start_and_no_workers() {
    let mut node = Node::new();
    node.assign("a");
    for _ in 0..10 {
        node.pass(20).replace_worker(Some("signal 9"));
    }
    node.pass(minutes(11));
    assert_eq!((node.last_known_good(), node.starts.len()), ("a", 2), "{:?}", node.events());
}

/// What it was switched to is not what runs: that is ended first.
#[test]
fn a_kubelet_with_another_configuration_is_replaced() {
    let mut node = proven("a");
    node.is_deaf = true;
    node.assign("b");
    assert!(matches!(node.disk().phase, Phase::Trial(_)) && node.running() == Some("a"), "{:?}", node.disk());
    node.replace_worker(Some("signal 9")).pass(5);
    assert_eq!((node.running(), node.active()), (Some("b"), "b"));
}

/// What the kubelet goes by is on record: a hazard is one, and is refused, whatever became of the local file since.
#[test]
fn what_runs_is_known_where_the_local_file_cannot_be_read_any_more() {
    let mut node = Node::new();
    node.pass(60);
    node.store.local_fault = Some(torn());
    node.replace_worker(Some("signal 9")).pass(60);
    node.create("b", json!({"cgroupDriver": "systemd"}), ConfigAnnotations::default()).assign("b").pass(60);
    assert_eq!((node.running(), node.starts.len()), (Some(""), 1), "{:?}", node.events());
    assert!(node.message("KubeletConfigRejected").contains("cgroupDriver"), "{:?}", node.events());
}

#[test]
fn one_that_was_never_gone_on_with_is_ended_by_a_shutdown() {
    let mut node = proven("a");
    node.stall().replace_worker(Some("signal 9")).pass(minutes(5));
    assert_eq!((node.state.kubelet(), node.running()), (&Kubelet::NotBegun, Some("a")), "it waits for the record");
    node.step(Input::Shutdown);
    assert!(node.has_quit() && node.running().is_none());
}

/// Ten minutes of health are ten minutes, but for what no worker saw or wrote down.
#[test]
fn a_trial_goes_on_with_what_was_earned() {
    let mut node = Node::new();
    node.assign("a");
    for _ in 0..5 {
        node.pass(100).replace_worker(None);
    }
    node.pass(165);
    assert_eq!((node.last_known_good(), node.starts.len()), ("a", 2), "{:?}", node.disk());
    node.assign("b").pass(590);
    node.now += std::time::Duration::from_secs(3600);
    node.replace_worker(Some("signal 9")).pass(20);
    assert_eq!(node.last_known_good(), "a", "an hour that nobody watched is no health");
    node.pass(minutes(2));
    assert_eq!((node.last_known_good(), node.starts.len()), ("b", 3), "{:?}", node.disk());
}

#[test]
fn another_kubelet_begins_anew() {
    let mut node = Node::new();
    node.assign("a").pass(590).exit_unseen().replace_worker(Some("signal 9"));
    node.pass(580);
    assert_eq!((node.last_known_good(), node.starts.len()), ("", 3), "{:?}", node.disk());
    assert_eq!(node.disk().phase.attempt().unwrap().exits, 1, "nobody else could have ended it");
    node.pass(60);
    assert_eq!(node.last_known_good(), "a");
}

#[test]
fn exits_that_no_worker_saw_fail_a_trial() {
    let mut node = proven("a");
    node.assign("b").pass(30).exit(1).pass(30);
    node.exit_unseen().replace_worker(Some("signal 9")).pass(5);
    assert!(node.is_bad("b") && node.active() == "a", "{:?}", node.disk());
    assert!(node.message("KubeletConfigRolledBack").contains("the kubelet ended 2 times within the trial"));
}

/// It was ended for the switch, and has not run yet.
#[test]
fn what_the_worker_ended_itself_is_no_exit() {
    let mut node = proven("a");
    (node.is_deaf, node.is_ready) = (true, true);
    node.assign("b").exit_unseen().replace_worker(Some("signal 9")).pass(minutes(1));
    assert_eq!((node.active(), node.disk().phase.attempt().unwrap().exits), ("b", 0));
}

#[test]
fn what_was_bad_goes_on_being_bad() {
    let mut node = proven("a");
    node.cuts_contact.insert("b".to_owned());
    node.assign("b");
    for _ in 0..3 {
        node.pass(65).replace_worker(None);
    }
    node.pass(5);
    assert!(node.is_bad("b"), "{:?} {:?}", node.state.kubelet(), node.disk());
}

#[test]
fn a_kubelet_that_does_not_come_up_is_waited_for_no_longer() {
    let mut node = proven("a");
    node.ready_after = None;
    node.assign("b");
    for _ in 0..4 {
        node.pass(40).replace_worker(None);
    }
    node.ready_after = Some(1);
    node.pass(5);
    assert!(node.is_bad("b"), "{:?}", node.disk());
}

#[test]
fn a_confirmation_is_due_when_it_was() {
    let mut node = awaiting();
    let by = node.state.confirm_by();
    for worker in 0..10 {
        node.replace_worker((worker % 2 == 0).then_some("signal 9")).pass(minutes(2));
    }
    assert_eq!(node.state.confirm_by(), by);
    assert!(matches!(node.disk().phase, Phase::AwaitingConfirmation(..)), "{:?}", node.disk());
    node.pass(minutes(12));
    assert!(node.is_bad("a"), "{:?}", node.disk());
}

/// A slow store costs no restart.
#[test]
fn content_that_cannot_be_read_yet_is_waited_for() {
    let mut node = proven("a");
    let starts = node.starts.len();
    node.replace_worker(Some("signal 9")).stall();
    node.pass(minutes(5)).end_stall().pass(30);
    assert_eq!((node.starts.len(), node.active(), node.state.is_ready()), (starts, "a", true));
}
