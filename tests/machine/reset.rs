//! The assignment is withdrawn: the node's own files are tried, too.

use std::time::Duration;

use kubelet_config::assignment::Assignment;
use kubelet_supervisor::machine::command::Command;
use kubelet_supervisor::machine::status::node_status;
use kubelet_supervisor::machine::{Input, Settings};
use testkit::node::Node;

use crate::{minutes, prove, proven};

/// A node whose assignment was withdrawn, and whose kubelet ends with the local files.
fn reset_to_what_kills() -> Node {
    let mut node = proven("a");
    node.step(Input::Node(Assignment::Local));
    ends_with_local(&mut node, minutes(20));
    node
}

/// For so long; gives how often it was started with them.
fn ends_with_local(node: &mut Node, seconds: u64) -> usize {
    let before = node.starts.len();
    for _ in 0..seconds / 2 {
        if node.running() == Some("") {
            node.exit(1);
        }
        node.pass(2);
    }
    node.starts[before..].iter().filter(|name| name.is_empty()).count()
}

#[test]
fn a_local_file_that_kills_has_a_way_back() {
    let node = reset_to_what_kills();
    assert_eq!(node.running(), Some("a"), "{:?}", node.events());
    let status = node_status(&node.state);
    assert_eq!((status.assigned, status.active, status.last_known_good), (None, None, None), "as native's");
    assert!(status.error.is_some(), "{:?}", status.condition);
    let message = status.condition.message;
    assert!(message.contains("local configuration") && message.contains("configmaps/a"), "{message}");
    assert!(node.message("KubeletConfigRolledBack").contains("from the local configuration"), "{:?}", node.events());
    assert_eq!(node.starts, ["", "a", "", "", "a"], "two exits are a pattern");
}

#[test]
fn local_files_that_live_are_proven_after_a_trials_time() {
    let mut node = proven("a");
    node.step(Input::Node(Assignment::Local)).pass(60);
    assert!(node.disk().reset.is_some(), "what was proven is kept for a while");
    node.pass(minutes(11));
    assert_eq!(node.disk().reset, None);
    assert!(ends_with_local(&mut node, 120) > 5, "nothing else is known to be better");
    assert_eq!(node.starts.last().map(String::as_str), Some(""));
}

#[test]
fn local_files_are_tried_again_when_somebody_wrote_them_or_asks_for_it() {
    let again: [fn(&mut Node); 3] = [
        |node| {
            node.step(Input::LocalFilesTouched);
        },
        |node| {
            node.obey(Command::Retry);
        },
        |node| {
            node.reboot();
        },
    ];
    for again in again {
        let mut node = reset_to_what_kills();
        again(&mut node);
        node.pass(60);
        assert_eq!(node.running(), Some(""), "{:?}", node.events());
        node.pass(minutes(11));
        assert_eq!((node.running(), node.disk().reset.clone()), (Some(""), None));
        assert_eq!(node_status(&node.state).error, None);
    }
}

#[test]
fn another_assignment_is_followed_as_ever() {
    let mut node = reset_to_what_kills();
    node.assign("b").pass(minutes(12));
    assert_eq!((node.running(), node.last_known_good()), (Some("b"), "b"), "{:?}", node.events());
    assert_eq!(node.disk().reset, None);
}

/// One that fails goes back to what lives, not to what kills.
#[test]
fn what_fails_goes_back_to_what_runs_in_the_place_of_the_local_files() {
    let mut node = reset_to_what_kills();
    node.assign("x").pass(30);
    node.healthz = Some(false);
    node.pass(60);
    node.healthz = Some(true);
    node.pass(60);
    assert_eq!(node.running(), Some("a"), "{:?}", node.events());
    assert!(node.is_bad("x"));
}

/// Nothing lives: no rung is left for good, though it is tried ever more seldom.
#[test]
fn where_both_end_both_are_tried() {
    let mut node = reset_to_what_kills();
    for _ in 0..1800 {
        if node.running().is_some() {
            node.exit(1);
        }
        node.pass(2);
    }
    let last = &node.starts[node.starts.len() / 2..];
    assert!(last.iter().any(String::is_empty) && last.iter().any(|name| name == "a"), "{last:?}");
}

/// What a worker has counted, the next one knows; and what ended while none was there, it misses.
#[test]
fn exits_are_counted_by_whichever_worker() {
    for unseen in [false, true] {
        let mut node = proven("a");
        node.step(Input::Node(Assignment::Local)).pass(3);
        for _ in 0..60 {
            if node.running() == Some("") {
                if unseen {
                    node.exit_unseen();
                } else {
                    node.exit(1);
                }
                node.replace_worker(Some("signal 9"));
            }
            node.pass(2);
        }
        assert_eq!(node.running(), Some("a"), "{unseen}: {:?}", node.starts);
        assert_eq!(node.starts, ["", "a", "", "", "a"], "{unseen}");
    }
}

/// One that hangs does not live, however long it is there.
#[test]
fn a_local_file_with_which_the_kubelet_hangs_has_a_way_back() {
    let hung_after = Duration::from_secs(300);
    let mut node = Node::with(Settings { hung_after, ..Settings::default() });
    prove(&mut node, "a");
    node.step(Input::Node(Assignment::Local)).pass(30);
    let (mut starts, mut since) = (node.starts.len(), 0);
    for second in 0..minutes(60) {
        if node.starts.len() > starts {
            (starts, since) = (node.starts.len(), second);
        }
        // It comes up, and hangs after a minute.
        let lives = node.running() != Some("") || second - since < 60;
        (node.healthz, node.pings) = (Some(lives), lives);
        node.pass(1);
    }
    assert_eq!(node.running(), Some("a"), "{:?}: {:?}", node.starts, node.events());
}
