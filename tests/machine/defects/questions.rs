//! Every question has a deadline, and an answer counts for what was asked.

use kubelet_config::assignment::Assignment;
use kubelet_supervisor::machine::{Effect, Input};
use testkit::node::{Node, reference};

use super::{count, minutes, proven, rolled_back};

/// Another binary is there: what it never judged is judged before it starts.
fn with_another_binary() -> Node {
    let mut node = proven("a");
    node.kubelet = "kubelet 2".into();
    node
}

/// The judge hangs on a dead disk, or its task died.
#[test]
fn a_preflight_that_never_answers_at_launch_is_given_up() {
    for api in [true, false] {
        let mut node = with_another_binary();
        (node.preflight_answers, node.api) = (false, api);
        node.boot().pass(minutes(3));
        assert_eq!(node.running(), Some("a"), "{api}: {:?}", node.starts);
        // The answer may come after all; it is nobody's any more.
        let starts = node.starts.len();
        node.end_preflight().pass(60);
        assert_eq!((node.running(), node.starts.len()), (Some("a"), starts));
    }
}

#[test]
fn a_preflight_that_never_answers_does_not_hold_a_change_for_ever() {
    let mut node = proven("a");
    node.preflight_answers = false;
    node.assign("x").pass(minutes(5));
    let asked = node.preflights.iter().filter(|name| *name == "x").count();
    assert!(asked > 1 || node.running() == Some("x"), "asked {asked} times, {:?}", node.starts);
    node.preflight_answers = true;
    node.pass(minutes(15));
    assert_eq!(node.last_known_good(), "x", "{:?}", node.events());
}

/// The trial decides; to ask again while no kubelet runs would only lengthen the outage.
#[test]
fn a_change_without_a_verdict_is_judged_once() {
    let mut node = proven("a");
    node.inconclusive = true;
    node.assign("x").pass(60);
    assert_eq!(node.running(), Some("x"), "{:?}", node.events());
    node.exit(1).pass(minutes(15));
    assert_eq!(node.last_known_good(), "x", "{:?}", node.events());
    let asked = node.preflights.iter().filter(|name| *name == "x").count();
    assert_eq!(asked, 1, "{:?}", node.preflights);
}

#[test]
fn a_stop_does_not_wait_for_a_preflight() {
    let mut node = with_another_binary();
    node.preflight_answers = false;
    node.boot().step(Input::Shutdown).pass(20);
    assert!(node.has_quit());
}

/// The supervisor begins anew, or the package is upgraded while the old kubelet runs on, and that is killed.
#[test]
fn a_refusal_by_a_new_kubelet_is_heeded_before_it_starts() {
    let moments: [fn(&mut Node) -> &mut Node; 2] = [Node::boot, |node| node.exit(137)];
    for moment in moments {
        let mut node = with_another_binary();
        node.refuse("a");
        let starts = node.starts.len();
        moment(&mut node).pass(60);
        assert_eq!(node.running(), Some(""), "{:?}", node.starts);
        assert!(!node.starts[starts..].contains(&"a".to_owned()), "{:?}", node.starts);
    }
}

/// What was judged, or could not be, is not asked again at each restart: that only lengthens the outage.
#[test]
fn a_verdict_at_launch_is_not_asked_for_again() {
    for inconclusive in [true, false] {
        let mut node = with_another_binary();
        node.inconclusive = inconclusive;
        let before = node.preflights.len();
        node.boot().pass(5);
        assert_eq!(node.running(), Some("a"));
        for _ in 0..4 {
            node.exit(1).pass(15);
        }
        if !inconclusive {
            node.reboot().pass(15);
        }
        assert_eq!(node.running(), Some("a"));
        let asked = node.preflights[before..].iter().filter(|name| *name == "a").count();
        assert_eq!(asked, 1, "{inconclusive}: {:?}", node.preflights);
    }
}

/// The runtime dies, and the kubelet with it. An observation of a minute ago, when the runtime was well, is on its way.
#[test]
fn an_observation_begun_before_an_exit_does_not_decide_about_it() {
    let mut node = proven("a");
    node.assign("x").pass(60).exit(1); // an accident: one more is held against x
    node.pass(minutes(2)).hold().pass(21);
    let early = node.take_held();
    (node.environment.runtime, node.is_ready) = (Some(false), false);
    node.exit(1);
    for answer in early {
        node.step(answer);
    }
    assert!(!rolled_back(&node), "the runtime was well a while ago: {:?}", node.events());
    node.release().pass(minutes(5));
    assert!(!rolled_back(&node) && !node.is_bad("x"), "{:?}", node.events());
    (node.environment.runtime, node.is_ready) = (Some(true), true);
    node.pass(minutes(15));
    assert_eq!(node.last_known_good(), "x", "{:?}", node.events());
}

/// A probe that the last kubelet failed comes after the next one has started, again and again.
#[test]
fn a_probe_begun_before_an_exit_says_nothing_of_the_next_kubelet() {
    let mut node = proven("a");
    node.assign("x").pass(minutes(3));
    let asked = node.effects.len();
    node.healthz = Some(false);
    node.hold().pass(8);
    let early = node.take_held();
    node.healthz = Some(true);
    node.release();
    assert!(count(&node, asked, |it| matches!(it, Effect::Probe(..))) > 0);
    node.exit(1).pass(40);
    for answer in early {
        node.step(answer);
    }
    node.pass(60);
    assert_eq!(node.running(), Some("x"), "{:?}", node.events());
    assert!(!rolled_back(&node));
    node.pass(minutes(11));
    assert_eq!(node.last_known_good(), "x");
}

/// The disk takes its time over b, the kubelet ends, and c is assigned meanwhile, without its ConfigMap yet.
#[test]
fn a_checkpoint_that_is_saved_late_says_nothing_of_what_is_assigned_by_then() {
    let mut node = proven("a");
    node.stall().assign("b").exit(1).pass(2); // the next start is being prepared, and goes first
    node.step(Input::Node(Assignment::Map(reference("c")))).end_stall().pass(60);
    assert_eq!(node.running(), Some("a"), "{:?}", node.starts);
    node.assign("c").pass(minutes(15));
    assert_eq!((node.running(), node.last_known_good()), (Some("c"), "c"), "{:?}", node.events());
    assert!(!node.starts.contains(&"b".to_owned()), "{:?}", node.starts);
}
