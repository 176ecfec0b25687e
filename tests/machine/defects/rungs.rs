//! What a reader found where a change, a test or a start goes by something else than what would be run.

use kubelet_config::assignment::Assignment;
use kubelet_config::source::ConfigAnnotations;
use kubelet_supervisor::machine::command::Command;
use kubelet_supervisor::machine::records::Phase;
use kubelet_supervisor::machine::status::node_status;
use kubelet_supervisor::machine::{Input, Settings, limits};
use serde_json::json;
use testkit::node::Node;

use super::{dumps, hung_node, in_place_of_local, rolled_back, sleep};
use crate::{acknowledged, exits_at_its_start, minutes, prove, proven};

/// A node where a is proven, and edits of b wait for their turn for more than two minutes.
fn patient_with_b() -> Node {
    for number in 0..40 {
        let mut node = Node::with(Settings { spread: limits::SPREAD, ..Settings::default() });
        node.step(Input::NodeName(format!("patient-{number}")));
        prove(&mut node, "a");
        let fields = json!({"cgroupDriver": "systemd"});
        node.define("b", fields.clone(), acknowledged(Some("cgroupDriver"))).assign("b").pass(60);
        node.define("b@2", fields, ConfigAnnotations::default()).edit("b", "2");
        if node.state.scheduled().is_some_and(|(_, at)| at.boot > node.now + std::time::Duration::from_secs(120)) {
            return node;
        }
    }
    panic!("the spread is no spread");
}

#[test]
fn what_waits_is_weighed_against_what_runs_when_its_turn_comes() {
    let mut node = patient_with_b();
    assert_eq!(node.running(), Some("b"));
    node.exit(1).pass(10).exit(1).pass(10);
    assert_eq!(node.running(), Some("a"), "b has failed");
    node.pass(330);
    assert_eq!(node.running(), Some("a"), "nobody acknowledged b@2: {:?}", node_status(&node.state).condition);
}

/// Last known good is refused by the binary, so local would be gone back to, which is that very content.
#[test]
fn nothing_is_rolled_back_to_the_same_content_below_a_rung_that_is_refused() {
    let mut node = proven("a");
    node.kubelet = "kubelet 2".into();
    node.refuse("a").exit(1).pass(30);
    node.alias("own", "local").assign("own").pass(10).exit(1).pass(5).exit(1).pass(24 * 3600);
    assert!(!rolled_back(&node), "{:?}", node.events());
    assert!(!matches!(node.disk().phase, Phase::ControlTest(..)), "{:?}", node.disk().phase);
}

#[test]
fn what_was_cleared_and_runs_all_the_same_is_on_trial() {
    let mut node = Node::new();
    node.alias("x", "local+2").assign("x").pass(30);
    node.exit(1).pass(5).exit(1).pass(5).exit(1).pass(5);
    assert!(matches!(node.disk().phase, Phase::RetryLater(..)), "{:?}", node.disk().phase);
    node.store.local = "2".into();
    node.boot().pass(24 * 3600);
    assert!(!matches!(node.disk().phase, Phase::RetryLater(..)), "{:?}", node_status(&node.state).condition);
}

#[test]
fn an_exit_of_last_known_good_that_nobody_saw_clears_the_version_too() {
    let mut node = proven("a");
    exits_at_its_start(&mut node, "x");
    node.pass(5);
    assert!(matches!(node.disk().phase, Phase::ControlTest(..)), "{:?}", node.disk().phase);
    node.exit_unseen().replace_worker(Some("signal 9")).pass(minutes(5));
    assert!(!node.is_bad("x"), "{:?}", node.events());
}

#[test]
fn exits_that_nobody_saw_on_a_full_disk_are_not_held_against_the_local_files() {
    let mut node = proven("a");
    node.step(Input::Node(Assignment::Local)).pass(30);
    node.environment.disk_full = true;
    for _ in 0..2 {
        node.exit_unseen().replace_worker(Some("signal 9")).pass(20);
    }
    node.environment.disk_full = false;
    node.pass(minutes(60));
    assert_eq!(node.running(), Some(""), "{:?}", node.events());
}

#[test]
fn a_sleep_in_the_control_test_of_an_outage_is_no_life() {
    let mut node = proven("a");
    node.assign("b").pass(90);
    (node.api, node.contact) = (false, false);
    node.pass(30).exit(1).pass(25).exit(1).pass(10);
    assert_eq!(node.running(), Some("a"), "{:?}", node.events());
    sleep(&mut node, 3600);
    node.pass(20).exit(1).pass(60);
    assert!(!node.is_bad("b"), "{:?}", node.events());
}

#[test]
fn a_sleep_right_after_the_start_is_no_time_in_contact() {
    let mut node = proven("a");
    node.cuts_api = true;
    node.assign("b").pass(10);
    sleep(&mut node, 3600);
    node.cuts_contact.insert("b".into());
    node.pass(minutes(30));
    assert!(rolled_back(&node), "{:?}", node_status(&node.state).condition);
}

#[test]
fn a_hung_kubelet_is_left_where_the_next_binary_refuses_what_runs() {
    let mut node = hung_node();
    prove(&mut node, "a");
    node.kubelet = "kubelet 2".into();
    node.refuse("a");
    (node.healthz, node.pings) = (Some(false), false);
    node.pass(minutes(30));
    assert!(node.running() == Some("a") && dumps(&node) == 0, "{:?}", node.events());
}

#[test]
fn a_hung_kubelet_is_restarted_though_a_reset_can_never_be_written() {
    let mut node = hung_node();
    prove(&mut node, "a");
    node.store.record_unreadable = true;
    node.boot().pass(minutes(5));
    node.step(Input::Node(Assignment::Local)).pass(minutes(5));
    (node.healthz, node.pings) = (Some(false), false);
    node.pass(minutes(30));
    assert!(dumps(&node) > 0, "{:?}", node.events());
}

#[test]
fn retry_does_not_say_that_a_refused_namespace_is_tried() {
    let mut node = proven("a");
    node.store.foreign.insert("n".into());
    node.step(Input::PolicyChanged).pass(5);
    let said = node.operate(Command::Retry);
    assert!(!said.as_ref().is_ok_and(|text| text.ends_with("is tried again")), "{said:?}");
}

#[test]
fn retry_tries_what_could_not_be_read() {
    let mut node = proven("a");
    node.store.unreadable.insert("a".into());
    node.exit(1).pass(minutes(30));
    assert_eq!(node.running(), Some(""));
    node.store.unreadable.clear();
    assert!(node.operate(Command::Retry).is_ok());
    node.pass(5);
    assert_eq!(node.running(), Some("a"), "{:?}", node.events());
}

/// Content that was tried without a verdict is proven; then the verdict comes.
#[test]
fn a_refusal_after_the_proof_says_nothing_of_last_known_good() {
    let mut node = proven("a");
    node.preflight_answers = false;
    node.refuse("b").assign("b").pass(150 + 660);
    assert_eq!(node.last_known_good(), "b", "{:?}", node.events());
    node.end_preflight();
    node.preflight_answers = true;
    exits_at_its_start(&mut node, "c");
    node.pass(60);
    assert_eq!(node.running(), Some("b"), "{:?}", node.events());
}

#[test]
fn what_is_refused_is_not_said_to_run_in_the_place_of_the_local_files() {
    let mut node = in_place_of_local();
    node.kubelet = "kubelet 2".into();
    node.refuse("a").exit(1).pass(60);
    let message = node_status(&node.state).condition.message;
    assert!(!message.contains("is to run"), "{message}");
}

/// What was last known good before a reset stays proven once something else is.
#[test]
fn what_was_proven_before_a_reset_is_proven_after_the_next_proof() {
    let mut node = proven("a");
    prove(&mut node, "b");
    node.step(Input::Node(Assignment::Local)).pass(30);
    prove(&mut node, "c");
    let proven: Vec<&str> = node.disk().proven.iter().map(|it| it.source.reference.name.as_str()).collect();
    assert_eq!(proven, ["a", "b"]);
}

/// A tool that touches the ConfigMap now and then: the courtesy is for its content.
#[test]
fn a_label_edit_begins_no_wait_anew() {
    let mut node = Node::with(Settings { courtesy: std::time::Duration::from_secs(3600), ..Settings::default() });
    prove(&mut node, "a");
    node.streams = Some(1);
    node.assign("b").pass(minutes(50));
    for edit in 2..6 {
        node.alias(&format!("b@{edit}"), "b").edit("b", &edit.to_string()).pass(minutes(50));
    }
    assert_eq!(node.active(), "b", "{:?}", node.events());
}
