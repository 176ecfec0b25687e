//! What the API server is told of a change, and how often.

use kubelet_config::status::ConditionReason;
use kubelet_supervisor::machine::command::Command;
use kubelet_supervisor::machine::{Effect, Level};
use testkit::node::{Node, REFUSAL};

fn told(node: &Node, since: usize) -> Vec<(&str, &str, bool)> {
    let name = |source: &Option<kubelet_config::source::Source>| {
        // The names live as long as the node.
        node.configurations
            .keys()
            .map(String::as_str)
            .find(|name| source.as_ref().is_some_and(|source| source.reference.name == *name))
    };
    let told = node.published[since..].iter();
    told.map(|it| {
        (name(&it.active).unwrap_or_default(), name(&it.last_known_good).unwrap_or_default(), it.trial_ends.is_some())
    })
    .collect()
}

/// What each step of the switch leaves behind for a moment is not told.
#[test]
fn a_change_and_its_proof_are_told_in_a_few_writes() {
    let mut node = Node::new();
    let since = node.published.len();
    node.assign("a").pass(11 * 60);
    let told = told(&node, since);
    assert_eq!(told, [("a", "", false), ("a", "", true), ("a", "a", false)], "{:?}", &node.published[since..]);
}

/// A kubelet that does not end at SIGTERM: what is assigned is told all the same, in time.
#[test]
fn a_slow_stop_does_not_keep_the_status_back() {
    let mut node = Node::new();
    let since = node.published.len();
    node.is_deaf = true;
    node.assign("a");
    assert_eq!(node.published.len(), since, "{:?}", &node.published[since..]);
    node.pass(2);
    let status = node.published.last().unwrap();
    assert_eq!(status.assigned.as_ref().map(|it| it.reference.name.as_str()), Some("a"));
    assert_eq!(status.active, None, "the one before is still there");
}

/// A version failed, and the node is held: the next one was never tried.
#[test]
fn what_is_held_back_is_not_told_to_have_failed() {
    for (command, reason) in
        [(Command::Freeze, ConditionReason::Frozen), (Command::Pin { to: None }, ConditionReason::Pinned)]
    {
        let mut node = Node::new();
        node.refuse("x");
        node.assign("x").pass(60).obey(command).pass(60);
        let told = |node: &Node| {
            let status = node.published.last().unwrap();
            let assigned = status.assigned.as_ref().map(|it| it.reference.name.clone()).unwrap();
            (assigned, status.condition.reason, status.error.is_some())
        };
        assert_eq!(told(&node), ("x".to_owned(), ConditionReason::Rejected, true));
        node.assign("b").pass(60);
        assert_eq!(told(&node), ("b".to_owned(), reason, false));
    }
}

/// The journal has an error once in a life: not again on the way to the next version.
#[test]
fn what_failed_is_not_logged_again_as_the_next_one_begins() {
    let mut node = Node::new();
    node.refuse("x").assign("x").pass(60);
    let warned = |effect: &Effect| matches!(effect, Effect::Log(Level::Warn, line) if line.contains(REFUSAL));
    assert!(node.effects.iter().any(warned));
    let since = node.effects.len();
    node.assign("b").pass(60);
    assert_eq!(node.effects[since..].iter().filter(|effect| warned(effect)).count(), 0);
}
