//! What a hostile review found of the node's own files: tried after a reset, edited, or of the same content as a version.

use kubelet_config::assignment::Assignment;
use kubelet_supervisor::machine::Input;
use kubelet_supervisor::machine::records::Phase;
use kubelet_supervisor::machine::status::node_status;
use testkit::node::Node;

use super::{dumps, ends_with, hung_node, in_place_of_local, sleep};
use crate::{minutes, prove, proven};

/// A version is on trial, whose content the local file has come to have meanwhile; healthz failed for a while.
fn equal_to_edited_local_files() -> Node {
    let mut node = Node::new();
    node.alias("b", "local+edited");
    node.assign("b").pass(30);
    node.store.local = "edited".to_owned();
    node.step(Input::LocalFilesTouched).pass(30);
    node.healthz = Some(false);
    node.pass(120);
    node.healthz = Some(true);
    node
}

#[test]
fn a_version_that_the_local_file_came_to_equal_is_not_rolled_back_to_itself() {
    let mut node = equal_to_edited_local_files();
    node.pass(minutes(60));
    assert!(!node.events().contains(&"KubeletConfigRolledBack"), "from a content to the same content");
}

#[test]
fn a_control_test_by_the_same_content_ends() {
    let mut node = equal_to_edited_local_files();
    node.pass(24 * 3600);
    assert!(!matches!(node.disk().phase, Phase::ControlTest(..)), "for a day {:?}", node.starts);
}

#[test]
fn a_sleep_does_not_prove_the_local_files_after_a_reset() {
    let mut node = proven("a");
    node.step(Input::Node(Assignment::Local)).pass(30);
    assert_eq!(node.running(), Some(""));
    sleep(&mut node, 7200);
    node.pass(5);
    assert!(node.disk().reset.is_some(), "they lived for half a minute");
}

#[test]
fn a_sleep_is_not_held_against_the_local_files_after_a_reset() {
    let mut node = proven("a");
    node.ready_after = Some(7220);
    node.step(Input::Node(Assignment::Local)).pass(5);
    assert_eq!(node.running(), Some(""));
    sleep(&mut node, 7200);
    node.ready_after = Some(1);
    let until = node.starts.len();
    node.pass(60);
    assert_eq!((node.running(), node.starts.len()), (Some(""), until), "{:?}", node.events());
}

#[test]
fn a_runtime_that_is_away_is_not_held_against_the_local_files_after_a_reset() {
    let mut node = proven("a");
    node.step(Input::Node(Assignment::Local)).pass(30);
    node.environment.runtime = Some(false);
    node.pass(20);
    for _ in 0..2 {
        node.exit(1).pass(20);
    }
    node.environment.runtime = Some(true);
    node.pass(minutes(60));
    assert_eq!(node.running(), Some(""), "{:?}: {:?}", node.events(), node_status(&node.state).condition);
}

#[test]
fn a_full_disk_is_not_held_against_the_local_files_after_a_reset() {
    let mut node = proven("a");
    node.step(Input::Node(Assignment::Local)).pass(30);
    node.environment.disk_full = true;
    for _ in 0..2 {
        node.exit(1).pass(20);
    }
    node.environment.disk_full = false;
    node.pass(minutes(60));
    assert_eq!(node.running(), Some(""), "{:?}: {:?}", node.events(), node_status(&node.state).condition);
}

#[test]
fn the_local_files_under_another_name_have_the_way_back_from_a_reset() {
    let mut node = proven("a");
    node.step(Input::Node(Assignment::Local)).pass(60);
    node.alias("own", "local").assign("own").pass(5);
    ends_with(&mut node, &["", "local"], minutes(20));
    assert_eq!(node.running(), Some("a"), "{} starts {:?}", node.starts.len(), node.events());
}

#[test]
fn what_the_local_files_failed_with_is_no_way_back_under_another_name() {
    let mut node = in_place_of_local();
    node.alias("own", "local").assign("own").pass(5);
    ends_with(&mut node, &["", "local"], minutes(60));
    assert_eq!(node.running(), Some("a"), "{} starts {:?}", node.starts.len(), node.events());
}

#[test]
fn what_runs_in_the_place_of_the_local_files_is_proven_once_it_is_assigned_again() {
    let mut node = in_place_of_local();
    node.assign("a").pass(30);
    ends_with(&mut node, &["", "a"], 60);
    node.pass(24 * 3600);
    assert_eq!((node.running(), node.last_known_good()), (Some("a"), "a"), "{:?}", node.disk().phase);
}

#[test]
fn a_hung_kubelet_is_restarted_though_a_reset_cannot_be_written() {
    let mut node = hung_node();
    prove(&mut node, "a");
    node.store.full = true;
    node.step(Input::Node(Assignment::Local)).pass(minutes(5));
    assert_eq!(node.running(), Some("a"));
    (node.healthz, node.pings) = (Some(false), false);
    node.pass(minutes(120));
    assert!(dumps(&node) > 0, "it hangs for two hours");
}

#[test]
fn a_reset_that_cannot_be_written_is_told() {
    let mut node = proven("a");
    node.store.full = true;
    node.exit(1).pass(60); // a start is written down
    node.step(Input::Node(Assignment::Local)).pass(minutes(10));
    assert_eq!(node.running(), Some("a"));
    let status = node_status(&node.state);
    assert!(status.error.is_some(), "{:?}", status.condition);
}
