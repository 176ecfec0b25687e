//! What counts as health, and what ends a suspension.

use std::time::Duration;

use kubelet_supervisor::machine::command::{Command, Target};
use testkit::node::Node;

use super::{exits_at_its_start, minutes, prove, proven, rolled_back};

/// A suspension after the crash must not bring back what was earned before it.
#[test]
fn a_crash_at_nine_and_a_half_minutes_begins_the_trial_anew() {
    for after_crash in [5, 90] {
        let mut node = Node::new();
        node.assign("a").pass(570).exit(1).pass(after_crash);
        node.environment.runtime = Some(false);
        node.pass(60);
        node.environment.runtime = Some(true);
        node.pass(minutes(6));
        assert_eq!(node.last_known_good(), "", "proven {after_crash} s and six minutes after its own crash");
        node.pass(minutes(8));
        assert_eq!(node.last_known_good(), "a", "{:?}", node.events());
    }
}

/// The suspension for a runtime that is away must end where the change itself may have taken it down.
#[test]
fn a_change_that_takes_the_runtime_down_is_judged() {
    for exits in [false, true] {
        let mut node = proven("a");
        node.kills_runtime.insert("x".into());
        node.assign("x");
        for _ in 0..60 {
            node.pass(30);
            if exits && node.running() == Some("x") {
                node.exit(1);
            }
        }
        assert_eq!(node.active(), "a", "{:?}", node.events());
        assert!(node.is_bad("x"), "with last known good the runtime is there");
        assert!(exits || node.starts == ["", "a", "x", "a"], "{:?}", node.starts);
    }
}

/// The runtime went away by chance, just then. A kubelet that runs bears it; one that is started, as 1.20, ends after some seconds.
#[test]
fn a_runtime_that_is_down_with_last_known_good_as_well_is_nobodys_fault() {
    for bears_it in [true, false] {
        let mut node = proven("a");
        node.assign("x").pass(10);
        (node.environment.runtime, node.is_ready) = (Some(false), false);
        if !bears_it {
            node.ready_after = None;
        }
        for _ in 0..200 {
            node.pass(6);
            if !bears_it && node.running() == Some("a") {
                node.exit(255);
            }
        }
        let is_cleared = node.events().contains(&"KubeletConfigNotBlamed");
        assert!(is_cleared || bears_it && !node.is_bad("x"), "{:?}", node.events());
        (node.environment.runtime, node.is_ready) = (Some(true), true);
        node.ready_after = Some(2);
        node.pass(minutes(40));
        assert!(!node.is_bad("x"), "{:?}", node.events());
        assert_eq!(node.last_known_good(), "x", "{:?}", node.events());
        assert!(!rolled_back(&node) || node.events().contains(&"KubeletConfigNotBlamed"), "{:?}", node.events());
    }
}

/// What it looks like is what it looked like when the API server was last heard; that may be the server's trouble.
#[test]
fn a_node_is_not_judged_by_while_no_question_is_answered() {
    let mut node = proven("a");
    node.assign("x").pass(60);
    node.is_ready = false;
    node.pass(78);
    (node.api, node.queries_answered) = (false, false);
    node.pass(minutes(5));
    assert_eq!(node.running(), Some("x"), "{:?}", node.events());
    (node.api, node.queries_answered, node.is_ready) = (true, true, true);
    node.pass(minutes(15));
    assert_eq!(node.last_known_good(), "x", "{:?}", node.events());
}

fn pin_on_trial(node: &mut Node) {
    node.assign("x").pass(5).obey(Command::Pin { to: Some("uid-x/1".parse().unwrap()) });
}

/// Nothing is judged while x is pinned; its trial goes on with a kubelet of which nothing was awaited when it came up.
#[test]
fn what_came_up_while_pinned_must_give_its_signs_after_an_unpin() {
    let mut node = Node::new();
    node.pings = true;
    prove(&mut node, "a");
    pin_on_trial(&mut node);
    node.pings = false;
    node.reboot().pass(60);
    assert_eq!(node.running(), Some("x"));
    node.obey(Command::Unpin).pass(minutes(12));
    assert!(rolled_back(&node), "{:?}", node.events());
    assert_eq!(node.last_known_good(), "a");
}

/// Its time-out for the start is long over when it is looked at for the first time.
#[test]
fn what_came_up_while_pinned_has_its_whole_time_after_an_unpin() {
    let mut node = proven("a");
    pin_on_trial(&mut node);
    node.reboot().pass(200);
    node.healthz = Some(false);
    node.obey(Command::Unpin).pass(20);
    assert_eq!(node.running(), Some("x"), "{:?}", node.events());
    node.healthz = Some(true);
    node.pass(minutes(12));
    assert_eq!(node.last_known_good(), "x", "{:?}", node.events());
}

/// NotReady after nine and a half minutes, and a suspension meanwhile.
#[test]
fn health_that_was_lost_stays_lost_after_a_suspension() {
    type Suspend = fn(&mut Node);
    let overloaded: Suspend = |node| {
        node.busy = true;
        node.pass(12);
        node.busy = false;
    };
    // The API server is overloaded for a moment after 50 s; in the midst of two minutes. The runtime goes, and the kubelet with it.
    let moments: [(u64, Suspend, u64); 3] = [
        (50, overloaded, 60),
        (25, overloaded, 110),
        (
            40,
            |node| {
                node.environment.runtime = Some(false);
                node.pass(12).exit(1);
            },
            20,
        ),
    ];
    for (before, suspend, after) in moments {
        let mut node = Node::new();
        node.assign("a").pass(570);
        node.is_ready = false;
        node.pass(before);
        suspend(&mut node);
        node.pass(after);
        (node.environment.runtime, node.is_ready) = (Some(true), true);
        node.pass(minutes(5));
        assert_eq!(node.last_known_good(), "", "{before} s: {:?}", node.events());
        node.pass(minutes(8));
        assert_eq!(node.last_known_good(), "a", "{before} s: {:?}", node.events());
    }
}

/// The API server went away so soon that the change may have done it; but nobody looked for two hours.
#[test]
fn sleep_in_an_outage_is_nobodys_fault() {
    let mut node = proven("a");
    node.assign("x").pass(20);
    (node.api, node.contact) = (false, false);
    node.pass(15);
    node.now += Duration::from_secs(7200);
    node.wall_nanos += 7_200_000_000_000;
    node.pass(20);
    assert_eq!(node.running(), Some("x"), "{:?}", node.events());
    (node.api, node.contact) = (true, true);
    node.pass(minutes(12));
    assert_eq!(node.last_known_good(), "x", "{:?}", node.events());
}

/// An outage that is shorter than the isolation time-out. The supervisor hears of the server first, the server of the kubelet
/// some seconds later.
#[test]
fn the_return_of_the_api_server_is_given_time() {
    let mut node = proven("a");
    node.assign("x").pass(32);
    (node.api, node.contact) = (false, false);
    node.pass(85);
    node.api = true;
    node.pass(10);
    node.contact = true;
    node.pass(minutes(12));
    assert_eq!(node.last_known_good(), "x", "{:?}", node.events());
    assert!(!rolled_back(&node), "{:?}", node.events());
}

/// What is pinned meanwhile fails by itself.
#[test]
fn a_control_test_is_of_last_known_good_alone() {
    let mut node = proven("a");
    exits_at_its_start(&mut node, "x");
    node.pass(5);
    assert!(node.is_bad("x") && node.running() == Some("a"), "{:?}", node.starts);
    node.obey(Command::Pin { to: Some(Target::Local) }).pass(5).exit(1).pass(60);
    assert!(node.is_bad("x"), "{:?}", node.events());
}

/// One answer of the API server in five is lost.
#[test]
fn lost_answers_do_not_keep_a_version_that_is_cut_off() {
    let mut node = proven("a");
    node.cuts_contact.insert("x".into());
    node.assign("x");
    for _ in 0..5 {
        node.pass(39);
        node.api = false;
        node.pass(11);
        node.api = true;
    }
    assert!(rolled_back(&node), "{:?}", node.events());
}

/// It is gone a minute after the switch, when nothing is blamed on the change any more, and does not come back.
#[test]
fn a_runtime_that_does_not_come_back_ends_the_trial_without_blame() {
    let mut node = proven("a");
    node.assign("x").pass(60);
    (node.environment.runtime, node.is_ready) = (Some(false), false);
    node.pass(minutes(25));
    assert_eq!((node.running(), node.is_bad("x")), (Some("a"), false), "{:?}", node.events());
    let starts = node.starts.len();
    node.pass(24 * 3600);
    assert_eq!(node.starts.len(), starts, "nothing is restarted for it");
    (node.environment.runtime, node.is_ready) = (Some(true), true);
    node.pass(minutes(12));
    assert_eq!(node.last_known_good(), "x", "{:?}", node.events());
}

/// Both died for the node's trouble; then last known good alone does, as the node is another one than it was.
#[test]
fn a_cleared_version_is_tried_again_although_last_known_good_does_not_get_well() {
    let mut node = proven("a");
    node.ready_after = None;
    node.assign("x");
    for _ in 0..20 {
        if node.running().is_some() {
            node.exit(1);
        }
        node.pass(1);
    }
    assert!(!node.is_bad("x"), "{:?}", node.events());
    node.ready_after = Some(1);
    for _ in 0..minutes(30) / 10 {
        if node.running() == Some("a") {
            node.exit(1);
        }
        node.pass(10);
    }
    assert_eq!((node.running(), node.last_known_good()), (Some("x"), "x"), "{:?}", node.events());
}

/// The runtime is upgraded while a change is made, for a moment longer than the trial has patience.
#[test]
fn a_runtime_that_comes_back_after_the_rollback_is_nobodys_fault() {
    for after in [0, 10, 30] {
        for lasts in (95..150).step_by(11) {
            let mut node = proven("a");
            node.assign("x").pass(after);
            node.environment.runtime = Some(false);
            node.pass(lasts);
            node.environment.runtime = Some(true);
            node.pass(minutes(16));
            assert!(!node.is_bad("x"), "after {after} s, for {lasts} s: {:?}", node.events());
            assert_eq!(node.last_known_good(), "x", "after {after} s, for {lasts} s: {:?}", node.events());
        }
    }
}

/// Each failure is shorter than what fails a trial, and each begins the trial anew.
#[test]
fn a_version_whose_health_flaps_ends_its_trial() {
    for last_known_good_flaps in [false, true] {
        let mut node = proven("a");
        node.assign("b").pass(30);
        for second in 0..minutes(60) {
            let flaps = node.running() == Some("b") || last_known_good_flaps && node.running() == Some("a");
            node.healthz = Some(!flaps || second % 30 < 20);
            node.pass(1);
        }
        assert_eq!(node.last_known_good(), "a");
        let cleared = node.events().contains(&"KubeletConfigNotBlamed");
        assert!(rolled_back(&node) && cleared == last_known_good_flaps, "{:?}", node.events());
    }
}
