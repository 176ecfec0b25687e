//! What the machine counts for the metrics: each thing once, when it happens.

use kubelet_config::assignment::Assignment;
use kubelet_config::hazard::HazardClass;
use kubelet_config::source::ConfigAnnotations;
use kubelet_supervisor::machine::command::{Command, Target};
use kubelet_supervisor::machine::evidence::Suspension;
use kubelet_supervisor::machine::model::TrialResult;
use kubelet_supervisor::machine::{Counter, Effect, Input};
use serde_json::json;
use testkit::node::Node;

use crate::{minutes, pod};

fn counters(node: &Node) -> Vec<&Counter> {
    let counters = node.effects.iter().filter_map(|effect| match effect {
        Effect::Count(counter) => Some(counter),
        _ => None,
    });
    counters.collect()
}

/// What of the counters is asked for.
fn counted<T>(node: &Node, of: impl Fn(&Counter) -> Option<T>) -> Vec<T> {
    counters(node).into_iter().filter_map(of).collect()
}

/// Results, and seconds.
fn trials(node: &Node) -> Vec<(TrialResult, u64)> {
    counted(node, |counter| match counter {
        Counter::Trial(result, took) => Some((*result, took.as_secs())),
        _ => None,
    })
}

fn adoptions(node: &Node) -> usize {
    counted(node, |counter| (*counter == Counter::Adoption).then_some(())).len()
}

#[test]
fn trials_by_their_ends() {
    let mut node = Node::new();
    node.assign("good").pass(minutes(5));
    assert_eq!(trials(&node), [], "it goes on");
    node.pass(minutes(6)).assign("left").pass(minutes(5)).assign("bad");
    node.pass(30);
    for _ in 0..2 {
        node.exit(1).pass(5);
    }
    let [(TrialResult::Proven, proven), (TrialResult::NoVerdict, left), (TrialResult::RolledBack, bad)] =
        trials(&node)[..]
    else {
        panic!("{:?}", trials(&node));
    };
    assert!((600..=640).contains(&proven), "all of a trial, and the start: {proven}");
    assert!((290..=310).contains(&left), "{left}");
    assert!(bad <= 60, "{bad}");
    node.pass(minutes(20));
    assert_eq!(trials(&node).len(), 3, "last known good is on no trial");
}

#[test]
fn a_trial_that_is_left_for_local_or_by_an_operator() {
    let mut node = Node::new();
    node.assign("a").pass(minutes(2)).obey(Command::Rollback { to: Target::Lkg }).pass(5);
    assert!(matches!(trials(&node)[..], [(TrialResult::RolledBack, 110..=130)]), "{:?}", trials(&node));
    node.assign("b").pass(minutes(2)).step(Input::Node(Assignment::Local)).pass(5);
    assert!(matches!(trials(&node)[1..], [(TrialResult::NoVerdict, 110..=130)]), "{:?}", trials(&node));
}

/// A life of the supervisor knows of its own time alone.
#[test]
fn a_trial_of_three_boots_has_failed() {
    let mut node = Node::new();
    node.assign("a").pass(30);
    for _ in 0..3 {
        assert_eq!(trials(&node), [], "{:?}", node.events());
        node.reboot().pass(30);
    }
    assert!(matches!(trials(&node)[..], [(TrialResult::RolledBack, 0..=5)]), "{:?}", trials(&node));
}

#[test]
fn equal_content_goes_on_with_its_trial() {
    let mut node = Node::new();
    node.alias("b", "a").assign("a").pass(minutes(5));
    assert_eq!(adoptions(&node), 0);
    node.assign("b").pass(minutes(6));
    assert_eq!((node.last_known_good(), adoptions(&node)), ("b", 1), "{:?}", node.events());
    assert!(matches!(trials(&node)[..], [(TrialResult::Proven, 600..=640)]), "{:?}", trials(&node));
    // What was proven under one name is on no trial under another.
    node.assign("a").pass(minutes(11));
    assert_eq!((node.last_known_good(), adoptions(&node), trials(&node).len()), ("a", 2, 1), "{:?}", node.events());
}

#[test]
fn each_reason_for_a_suspension_as_it_begins() {
    let mut node = Node::new();
    let suspensions = |node: &Node| {
        counted(node, |counter| match counter {
            Counter::Suspension(reason) => Some(*reason),
            _ => None,
        })
    };
    // Outside a trial nothing is judged.
    node.environment.disk_full = true;
    node.pass(60);
    node.environment.disk_full = false;
    node.pass(60).assign("a").pass(minutes(3));
    assert_eq!(suspensions(&node), []);
    node.environment.disk_full = true;
    node.pass(minutes(2));
    node.environment.runtime = Some(false);
    node.pass(minutes(2));
    assert_eq!(suspensions(&node), [Suspension::DiskFull], "the first reason hides the other");
    node.environment.disk_full = false;
    node.pass(minutes(2));
    node.environment.runtime = Some(true);
    node.pass(minutes(2));
    node.api = false;
    node.pass(minutes(2));
    assert_eq!(suspensions(&node), [Suspension::DiskFull, Suspension::Runtime, Suspension::ApiServer]);
}

#[test]
fn a_version_that_is_refused_for_hazards_once() {
    let mut node = Node::new();
    let refused = |node: &Node| {
        counted(node, |counter| match counter {
            Counter::HazardRefused(class) => Some(*class),
            _ => None,
        })
    };
    node.define("a", json!({"cgroupDriver": "systemd"}), ConfigAnnotations::default());
    // The disk takes the refusal at the third try.
    node.store.full = true;
    node.assign("a").pass(30);
    assert_eq!(refused(&node), [], "it is not durable: {:?}", node.events());
    node.store.full = false;
    node.pass(minutes(2));
    assert_eq!(refused(&node), [HazardClass::Reboot], "{:?}", node.events());
    // Nor is it another refusal when it comes again.
    node.assign("b").pass(minutes(11)).assign("a").pass(60);
    assert_eq!((node.active(), refused(&node).len()), ("b", 1), "{:?}", node.events());
    node.reboot().pass(60);
    assert_eq!(refused(&node).len(), 1, "{:?}", node.events());
    // A change of pods alone.
    node.define("c", json!({"maxPods": 1}), ConfigAnnotations::default());
    node.inventory.pods = vec![pod("one"), pod("two")];
    node.assign("c").pass(60);
    assert_eq!(refused(&node)[1..], [HazardClass::Pods], "{:?}", node.events());
}

#[test]
fn a_healthy_kubelet() {
    let mut node = Node::new();
    assert!(node.state.is_kubelet_healthy());
    node.ready_after = Some(5);
    node.exit(1);
    assert!(!node.state.is_kubelet_healthy(), "there is none");
    while node.running().is_none() {
        node.pass(1);
    }
    assert!(!node.state.is_kubelet_healthy(), "it is not ready");
    node.pass(minutes(2));
    assert!(node.state.is_kubelet_healthy());
    // Nobody asks outside a trial.
    node.healthz = Some(false);
    node.pass(minutes(2));
    assert!(node.state.is_kubelet_healthy());
    node.healthz = Some(true);
    node.assign("a").pass(60);
    assert!(node.state.is_kubelet_healthy());
    node.healthz = Some(false);
    node.pass(10);
    assert!(!node.state.is_kubelet_healthy(), "healthz is bad");
    node.healthz = Some(true);
    node.pass(10);
    assert!(node.state.is_kubelet_healthy());
    node.pings = false;
    node.pass(40);
    assert!(!node.state.is_kubelet_healthy(), "WATCHDOG=1 is overdue");
    node.pings = true;
    node.pass(minutes(11));
    assert!(node.state.is_kubelet_healthy());
    assert_eq!(node.last_known_good(), "a", "{:?}", node.events());
}
