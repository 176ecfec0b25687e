//! No version is promoted on a node that was cut off for its whole trial, and no outage is blamed on one.

use kubelet_supervisor::machine::evidence::Signal;
use kubelet_supervisor::machine::{Effect, Settings};
use std::time::Duration;

use kubelet_supervisor::machine::Input;
use kubelet_supervisor::machine::command::Command;
use testkit::node::Node;

use super::{count, minutes, prove, proven, rolled_back};

/// Whether the supervisor reaches the API server where the kubelet does not.
fn each_way(scenario: fn(bool)) {
    [false, true].into_iter().for_each(scenario);
}

/// For so many minutes, in each of them.
fn stays_last_known_good(node: &mut Node, name: &str, minutes: u64, cuts_api: bool) {
    for _ in 0..minutes {
        node.pass(60);
        assert_eq!(node.last_known_good(), name, "{cuts_api}: {:?}", node.events());
    }
}

/// x cuts contact and is rolled back; last known good takes longer to recover than a control test waits, so that x is cleared
/// and tried again. It must still have what it lacked the first time: the Node Ready, the Lease renewed.
#[test]
fn a_cleared_version_is_not_promoted_without_contact() {
    each_way(|cuts_api| {
        let mut node = proven("a");
        node.cuts_contact.insert("x".into());
        (node.cuts_api, node.contact_back_after) = (cuts_api, 150);
        node.assign("x");
        stays_last_known_good(&mut node, "a", 90, cuts_api);
        assert!(rolled_back(&node), "{cuts_api}: {:?}", node.events());
        assert_eq!(node.active(), "a", "{cuts_api}: x has had its turns");
    });
}

/// Nobody can tell what is good right before such a change, but what was good when a was proven is known.
#[test]
fn a_version_assigned_while_the_kubelet_boots_is_not_promoted_without_contact() {
    each_way(|cuts_api| {
        let mut node = proven("a");
        node.cuts_contact.insert("x".into());
        node.cuts_api = cuts_api;
        assigned_while_it_boots(&mut node);
        stays_last_known_good(&mut node, "a", 60, cuts_api);
        assert!(node.starts.iter().any(|name| name == "x"), "it was tried");
        assert_eq!(node.active(), "a", "{cuts_api}: {:?}", node.events());
    });
}

#[test]
fn a_version_assigned_while_the_kubelet_boots_is_promoted_in_contact() {
    let mut node = proven("a");
    assigned_while_it_boots(&mut node);
    node.pass(minutes(15));
    assert_eq!(node.last_known_good(), "x", "{:?}", node.events());
    assert!(!rolled_back(&node));
}

/// Nothing was ever proven here, so that nobody can tell what was good; but a node that nobody sees proves nothing.
#[test]
fn the_first_version_of_a_node_is_not_promoted_without_contact() {
    each_way(|cuts_api| {
        let mut node = Node::new();
        node.cuts_contact.insert("x".into());
        node.cuts_api = cuts_api;
        assigned_while_it_boots(&mut node);
        stays_last_known_good(&mut node, "", 60, cuts_api);
        assert!(node.starts.iter().any(|name| name == "x"), "it was tried");
        // The API server answered right before: a node that it does not reach any more goes back.
        assert_eq!(node.running(), Some(if cuts_api { "" } else { "x" }), "{:?}", node.events());
    });
}

/// Local is in contact; x cuts it off and is rolled back, and it takes a while until the node is seen again.
fn cut_off_by_x() -> Node {
    let mut node = Node::new();
    node.cuts_contact.extend(["x".into(), "y".into()]);
    node.contact_back_after = 150;
    node.assign("x");
    for _ in 0..600 {
        if rolled_back(&node) && node.running() == Some("") {
            return node;
        }
        node.pass(1);
    }
    panic!("{:?}", node.events());
}

#[test]
fn where_nothing_was_proven_the_second_version_is_not_promoted_without_contact() {
    let mut node = cut_off_by_x();
    node.assign("y").pass(minutes(60));
    assert!(node.starts.iter().any(|name| name == "y"), "it was tried");
    assert_eq!(node.last_known_good(), "", "{:?}", node.events());
}

#[test]
fn where_nothing_was_proven_a_retry_is_not_promoted_without_contact() {
    let mut node = cut_off_by_x();
    node.obey(Command::Retry).pass(minutes(60));
    let count = |wanted: &str| node.events().iter().filter(|reason| **reason == wanted).count();
    assert!(count("KubeletConfigRolledBack") > 1, "it goes back each time: {:?}", node.events());
    assert_eq!(node.last_known_good(), "", "{:?}", node.events());
}

fn assigned_while_it_boots(node: &mut Node) {
    node.ready_after = Some(20);
    node.reboot().assign("x");
}

/// The second of two changes is judged by what was good before the first.
#[test]
fn a_version_after_an_unproven_one_is_not_promoted_without_contact() {
    each_way(|cuts_api| {
        let mut node = proven("a");
        node.cuts_contact.extend(["x".into(), "y".into()]);
        node.cuts_api = cuts_api;
        node.assign("x").pass(30);
        // The source of assignments is not always the API server that is away.
        node.cuts_api = false;
        node.assign("y");
        node.cuts_api = cuts_api;
        stays_last_known_good(&mut node, "a", 60, cuts_api);
        assert_eq!(node.active(), "a");
    });
}

/// Equal content is adopted with nothing known of what was good before; the next version is judged by what is good with it.
#[test]
fn a_version_after_an_adopted_one_is_judged_by_contact() {
    let mut node = Node::new();
    node.alias("a", "local");
    node.cuts_contact.insert("x".into());
    node.pass(60).assign("a").pass(60);
    assert_eq!(node.starts, [""], "a is adopted");
    node.assign("x").pass(minutes(5));
    assert!(rolled_back(&node), "{:?}", node.events());
    assert_eq!(node.running(), Some(""));
}

#[test]
fn nothing_is_switched_to_while_the_api_server_is_away() {
    let mut node = proven("a");
    // What was assigned is still heard, and then the server is gone.
    node.hold().assign("x");
    node.api = false;
    node.take_held();
    node.release().pass(minutes(30));
    assert_eq!(node.starts, ["", "a"], "{:?}", node.events());
    node.api = true;
    node.pass(minutes(2));
    assert_eq!(node.active(), "x");
    let baseline = node.disk().phase.attempt().unwrap().baseline.clone().unwrap();
    assert!(baseline.contains(&Signal::Lease) && baseline.contains(&Signal::ApiServer), "{baseline:?}");
}

/// An edit waits for its turn, the API server goes away or asks to wait, the turn comes: the change waits for contact, and for a
/// look at the pods.
#[test]
fn a_turn_that_comes_without_contact_waits_for_it() {
    for asks_to_wait in [false, true] {
        let settings = Settings { spread: Duration::from_secs(300), ..Settings::default() };
        let mut node = Node::with(settings);
        node.step(Input::NodeName("n1".into()));
        prove(&mut node, "a");
        node.edit("a", "2");
        assert!(node.state.scheduled().is_some(), "it has a turn to wait for");
        (node.api, node.contact, node.asks_to_wait) = (asks_to_wait, asks_to_wait, asks_to_wait);
        assert_eq!(node.until_start(1000), None, "{:?}", node.starts);
        let before = node.effects.len();
        (node.api, node.contact, node.asks_to_wait) = (true, true, false);
        let waited = node.until_start(400);
        assert!(waited.is_some_and(|waited| waited > 60), "it takes another turn: {waited:?}");
        assert_eq!(node.starts, ["", "a", "a@2"]);
        let baseline = node.disk().phase.attempt().unwrap().baseline.clone().unwrap();
        for signal in [Signal::Lease, Signal::ApiServer, Signal::Pods] {
            assert!(baseline.contains(&signal), "{baseline:?}");
        }
        let is_look = |it: &Effect| matches!(it, Effect::Query(_, kubelet_supervisor::machine::evidence::Query::Pods));
        assert!(count(&node, before, is_look) > 0, "the pods were looked at");
    }
}

/// On trial in contact for minutes; then the API server goes away.
fn in_an_outage() -> Node {
    let mut node = proven("a");
    node.assign("x").pass(minutes(3));
    (node.api, node.contact) = (false, false);
    node.pass(60);
    node
}

/// A kubelet ends for want of an API server, whatever it runs; or it does not come into contact after a boot.
#[test]
fn exits_and_a_reboot_during_an_outage_are_not_blamed() {
    let all_end: fn(&mut Node) -> &mut Node = |node| {
        for _ in 0..12 {
            node.pass(140).exit(1);
        }
        node
    };
    for meanwhile in [all_end, Node::reboot] {
        let mut node = in_an_outage();
        meanwhile(&mut node).pass(minutes(30));
        assert_eq!((node.running(), node.last_known_good()), (Some("a"), "a"), "{:?}", node.events());
        assert!(node.events().contains(&"KubeletConfigNotBlamed") && !node.is_bad("x"), "{:?}", node.events());
        (node.api, node.contact) = (true, true);
        node.pass(minutes(25));
        assert_eq!(node.last_known_good(), "x", "{:?}", node.events());
    }
}

/// Last known good lives in the same outage.
#[test]
fn a_version_that_alone_ends_in_an_outage_is_blamed() {
    let mut node = in_an_outage();
    let (mut exits, mut seconds) = (0, 0);
    while seconds < minutes(60) {
        if node.running() == Some("x") {
            node.exit(2);
            exits += 1;
        }
        node.pass(30);
        seconds += 30;
    }
    assert_eq!((node.running(), exits), (Some("a"), 2), "{:?}", node.events());
    assert!(node.is_bad("x"));
    (node.api, node.contact) = (true, true);
    node.pass(minutes(15));
    assert_eq!(node.running(), Some("a"));
}

/// It begins with the change, and ends while last known good is on test, which came up without contact as well.
#[test]
fn an_outage_right_after_the_change_is_not_blamed() {
    for after in [0, 5, 20, 30, 44] {
        for lasts in (91..200).step_by(7) {
            let mut node = proven("a");
            node.assign("x").pass(after);
            (node.api, node.contact) = (false, false);
            node.pass(lasts);
            (node.api, node.contact) = (true, true);
            node.pass(minutes(16));
            assert!(!node.is_bad("x"), "after {after} s, for {lasts} s: {:?}", node.events());
            assert_eq!(node.last_known_good(), "x", "after {after} s, for {lasts} s: {:?}", node.events());
        }
    }
}

/// What an outage had it earn before is lost by the exit.
#[test]
fn an_exit_in_an_outage_begins_the_trial_anew() {
    let mut node = proven("a");
    node.assign("x").pass(570);
    (node.api, node.contact) = (false, false);
    node.pass(60).exit(2).pass(60);
    (node.api, node.contact) = (true, true);
    node.pass(560);
    assert_eq!(node.last_known_good(), "a");
    node.pass(120);
    assert_eq!(node.last_known_good(), "x");
}

/// Contact that never was there since the change cannot excuse an exit.
#[test]
fn a_loss_of_contact_right_after_the_change_is_blamed_all_the_same() {
    let mut node = proven("a");
    node.cuts_contact.insert("x".into());
    node.cuts_api = true;
    node.assign("x").pass(30).exit(1).pass(minutes(5));
    assert_eq!(node.active(), "a", "{:?}", node.events());
    assert!(node.is_bad("x"));
}

/// The local files and a kubelet on its own: its own signs must do.
#[test]
fn where_there_is_no_api_server_nothing_waits_for_it() {
    let mut node = Node::with(Settings { api_server: false, ..Settings::default() });
    node.hold().assign("a");
    (node.api, node.contact) = (false, false);
    node.take_held();
    node.release().pass(minutes(12));
    assert_eq!((node.active(), node.last_known_good()), ("a", "a"), "{:?}", node.events());
    assert_eq!(node.starts, ["", "a"]);
}

/// It takes its time to end, and renews its Lease after the supervisor last asked for that.
#[test]
fn the_last_renewal_of_the_kubelet_before_is_no_contact() {
    let mut node = Node::with(Settings { trial_duration: Duration::from_secs(30), ..Settings::default() });
    node.is_ready = false; // so that the Lease alone tells of contact
    node.pass(20);
    prove(&mut node, "a");
    node.cuts_contact.insert("x".into());
    node.is_deaf = true;
    node.assign("x");
    for _ in 0..60 {
        node.pass(5);
        assert_eq!(node.last_known_good(), "a", "{:?}", node.events());
    }
    assert!(rolled_back(&node), "{:?}", node.events());
}

/// Right after READY=1 the Node is not Ready yet; it was when a was proven.
#[test]
fn what_was_good_before_is_required_of_a_change_right_after_a_start() {
    let mut node = proven("a");
    node.exit(1);
    node.is_ready = false;
    node.pass(10);
    assert!(node.state.is_ready(), "{:?}", node.starts);
    node.assign("x"); // leaves the Node as it is
    node.pass(minutes(30));
    assert_eq!(node.last_known_good(), "a", "{:?}", node.events());
}

/// A change in the very second of a heartbeat, to a kubelet that has started within that second: v1.36.2 takes 0.3 s, and writes
/// no other heartbeat for five minutes.
fn assign_with_a_heartbeat(node: &mut Node, name: &str) {
    while !node.now.as_secs().is_multiple_of(10) {
        node.pass(1);
    }
    node.same_heartbeat = Some(node.now.as_secs().to_string());
    node.assign(name);
    assert_eq!(node.starts.last().map(String::as_str), Some(name), "{:?}", node.starts);
}

/// Whoever wrote it, a kubelet that renews nothing is not in contact.
#[test]
fn a_heartbeat_that_reads_like_the_one_before_the_start_counts_with_the_lease_alone() {
    for cut_off in [false, true] {
        let mut node = proven("a");
        if cut_off {
            node.cuts_contact.insert("b".into());
        }
        assign_with_a_heartbeat(&mut node, "b");
        node.pass(minutes(12));
        assert_eq!(node.last_known_good(), if cut_off { "a" } else { "b" }, "{:?}", node.events());
        assert_eq!(rolled_back(&node), cut_off, "{:?}", node.events());
    }
}

/// Nobody has asked since. With last known good, which starts after that, the server answers from the first question on.
#[test]
fn an_outage_that_ended_just_before_the_verdict_is_seen_to_have_ended() {
    for (ready_after, cut_after, lasts) in [(20, 3, 100), (1, 3, 91), (1, 10, 91)] {
        let mut node = proven("a");
        node.ready_after = Some(ready_after);
        node.assign("b").pass(cut_after);
        node.api = false;
        node.pass(lasts);
        node.api = true;
        node.pass(minutes(30));
        assert!(!node.is_bad("b"), "{ready_after}, {cut_after}, {lasts}: {:?}", node.events());
        assert_eq!(node.last_known_good(), "b", "{ready_after}, {cut_after}, {lasts}: {:?}", node.starts);
    }
}

/// Without a container runtime no Node is Ready, and it takes the kubelet some seconds to tell that it is again.
#[test]
fn a_node_that_is_not_ready_for_want_of_a_runtime_is_held_against_no_version() {
    for lasts in [95, 110, 140] {
        let mut node = proven("a");
        node.assign("b").pass(5);
        (node.environment.runtime, node.is_ready) = (Some(false), false);
        node.pass(lasts);
        node.environment.runtime = Some(true);
        node.pass(12);
        node.is_ready = true;
        node.pass(minutes(30));
        assert!(!node.is_bad("b"), "{lasts}: {:?}", node.events());
        assert_eq!(node.last_known_good(), "b", "{lasts}: {:?}", node.starts);
    }
}
