//! Changes that take turns, and the default source, on the bare machine: a change that reaches many
//! nodes at once is judged at once and begins on each in its own time.

use kubelet_supervisor::machine::status::node_status;
use std::time::Duration;

use kubelet_config::assignment::Assignment;
use kubelet_supervisor::machine::command::{Command, Target};
use kubelet_supervisor::machine::{Effect, Input, Settings, limits};
use testkit::node::{Node, reference};

fn settings(name: &str) -> (Settings, Input) {
    let settings = Settings { spread: limits::SPREAD, ..Settings::default() };
    (settings, Input::NodeName(name.to_owned()))
}

/// A node of this name with version 1 of `a` proven.
fn proven(name: &str) -> Node {
    let (settings, named) = settings(name);
    let mut node = Node::with(settings);
    node.step(named).assign("a").pass(660);
    assert_eq!(node.last_known_good(), "a", "an assignment does not wait");
    node
}

fn reason(node: &Node) -> &'static str {
    node_status(&node.state).condition.reason.as_str()
}

#[test]
fn each_node_starts_within_the_window() {
    let waits: Vec<u64> = (0..20)
        .map(|number| {
            let mut node = proven(&format!("n{number}"));
            node.edit("a", "2");
            let again = node.state.scheduled().map(|(_, at)| at.boot.checked_sub(node.now).unwrap().as_secs());
            let waited = node.until_start(310).expect("within the window");
            assert!(again.is_none_or(|due| due.abs_diff(waited) <= 3), "{again:?} {waited}");
            assert_eq!(node.starts.last().unwrap(), "a@2");
            waited
        })
        .collect();
    let late = waits.iter().filter(|wait| **wait > 150).count();
    assert!((4..=16).contains(&late), "{waits:?}");
}

/// An edit that somebody wished back.
#[test]
fn a_change_that_nobody_asks_for_any_more_is_not_made() {
    let gone = Input::ConfigMapFailed { why: "the ConfigMap does not exist".into(), definite: true };
    let elsewhere = Input::Node(Assignment::Map(reference("no-such-map")));
    let nonsense = Input::Node(Assignment::Invalid("the Node's label".into()));
    for abort in [gone, elsewhere, nonsense] {
        let mut node = patient();
        let starts = node.starts.clone();
        node.step(abort).pass(600);
        assert_eq!((&node.starts, node.active()), (&starts, "a"));
        assert_eq!(node.disk().assigned.as_ref().map(|version| &*version.source.resource_version), Some("1"));
        node.step(Input::Node(Assignment::Map(reference("a")))).edit("a", "2").pass(310);
        assert_eq!(node.starts.last().unwrap(), "a@2", "asked for again");
    }
}

/// A node that has long to wait: 20 names hold one.
fn patient() -> Node {
    let names = (0..).map(|number| format!("patient-{number}"));
    for name in names.take(20) {
        let mut node = proven(&name);
        node.edit("a", "2");
        if node.state.scheduled().is_some_and(|(_, at)| at.boot > node.now + Duration::from_secs(120)) {
            return node;
        }
    }
    panic!("the spread is no spread");
}

#[test]
fn a_bad_edit_is_refused_before_its_start() {
    let mut node = patient();
    assert_eq!((reason(&node), node.starts.len()), ("Scheduled", 2));
    node.refuse("a@3").edit("a", "3");
    assert_eq!((reason(&node), node.starts.len()), ("Rejected", 2));
    assert!(node.until_start(310).is_none());
}

#[test]
fn the_latest_edit_counts_and_equal_content_need_not_wait() {
    let mut node = patient();
    node.edit("a", "3");
    assert!(node.until_start(310).is_some());
    assert_eq!(node.starts.last().unwrap(), "a@3");
    node.pass(700).alias("a@4", "a@3").edit("a", "4");
    assert_eq!(node.state.active().unwrap().source.resource_version, "4");
    assert_eq!(node.starts.len(), 3);
}

#[test]
fn the_baseline_is_taken_when_the_change_starts() {
    let mut node = patient();
    let looked = |node: &Node| node.effects.iter().filter(|effect| matches!(effect, Effect::Query(..))).count();
    let before = looked(&node);
    node.pass(60);
    assert_eq!(looked(&node), before, "nothing is asked while it waits");
    // The runtime goes meanwhile: the change must not be blamed for it.
    node.environment.runtime = Some(false);
    assert!(node.until_start(310).is_some());
    let baseline = node.disk().phase.attempt().unwrap().baseline.clone().unwrap();
    assert!(!baseline.iter().any(|signal| signal.label() == "runtime"), "{baseline:?}");
}

#[test]
fn a_kubelet_that_dies_meanwhile_does_not_begin_the_window_anew() {
    let mut node = patient();
    let (_, due) = node.state.scheduled().unwrap();
    node.pass(30).exit(1);
    assert!(node.until_start(20).is_some());
    assert_eq!(node.starts.last().unwrap(), "a", "what comes up is what ran");
    node.pass(5);
    assert_eq!(node.state.scheduled().map(|(_, at)| at.boot), Some(due.boot));
    assert!(node.until_start(310).is_some());
    assert_eq!(node.starts.last().unwrap(), "a@2");
}

#[test]
fn an_operator_and_a_reset_do_not_wait() {
    let mut node = patient();
    node.obey(Command::Freeze);
    assert!(node.until_start(310).is_none(), "frozen");
    node.obey(Command::Thaw);
    assert_eq!(node.starts.last().unwrap(), "a@2", "its turn was while it was frozen");
    let mut node = patient();
    node.step(Input::Node(Assignment::Local));
    assert_eq!(node.active(), "");
    assert_eq!(node.starts.last().unwrap(), "");
    let mut node = patient();
    node.assign("b");
    assert_eq!(node.active(), "b", "nor what somebody assigns by name");
    let mut node = patient();
    node.obey(Command::Rollback { to: Target::Local });
    assert_eq!((node.active(), node.starts.last().unwrap().as_str()), ("", ""), "nor a rollback");
}

#[test]
fn a_version_that_is_tried_again_does_not_wait() {
    let (settings, named) = settings("n");
    let mut node = Node::with(settings);
    node.step(named);
    node.ready_after = None;
    node.assign("a").pass(130);
    node.ready_after = Some(1);
    node.pass(60);
    assert_eq!(node.active(), "", "{:?}", node.events());
    node.obey(Command::Retry).pass(5);
    assert_eq!(node.active(), "a");
}

#[test]
fn the_default_source_runs_where_nothing_is_assigned() {
    let (settings, named) = settings("n");
    let mut node = Node::with(Settings { default_source: Some(reference("default")), ..settings });
    node.step(named).step(Input::Node(Assignment::Local)).edit("default", "1");
    assert_eq!(reason(&node), "Scheduled", "where it appears, it appears on all nodes");
    assert!(node.until_start(310).is_some());
    node.pass(660);
    assert_eq!(node.last_known_good(), "default");
    node.assign("a").pass(660);
    assert_eq!((node.active(), node.last_known_good()), ("a", "a"));
    // What takes an assignment away is about this node.
    node.step(Input::Node(Assignment::Local)).edit("default", "1").pass(5);
    assert_eq!(node.active(), "default");
    // The Node may be gone for a moment, or the API server.
    node.step(Input::Node(Assignment::Unknown)).pass(60);
    assert_eq!(node.active(), "default");
}

#[test]
fn labels_that_name_nothing_keep_what_runs() {
    let mut node = proven("n");
    node.step(Input::Node(Assignment::Invalid("the Node's label x: \"A\" cannot be".to_owned())));
    assert_eq!((reason(&node), node.active()), ("SyncFailed", "a"));
    node.assign("a");
    assert_eq!((reason(&node), node.starts.len()), ("LastKnownGood", 2));
}
