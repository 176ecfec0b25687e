//! The bytes of one uid and resourceVersion never change: an API server that gives others is not believed.

use std::sync::Arc;

use kubelet_config::source::{ConfigAnnotations, Payload};
use kubelet_supervisor::machine::events::EventReason;
use kubelet_supervisor::machine::{Effect, Input, StoreRequest};
use testkit::node::Node;

use crate::prove;

/// The version of this name that the API server had, with other bytes.
fn lie(name: &str, text: &str) -> Input {
    Input::ConfigMap(Arc::new(Payload {
        namespace: "n".into(),
        name: name.into(),
        uid: format!("uid-{name}"),
        resource_version: "1".into(),
        data: [("k".to_owned(), text.to_owned())].into(),
        binary_keys: [].into(),
        annotations: ConfigAnnotations::default(),
    }))
}

fn condition(node: &Node) -> (&'static str, String) {
    let condition = kubelet_supervisor::machine::status::node_status(&node.state).condition;
    (condition.reason.as_str(), condition.message)
}

fn told(node: &Node) -> usize {
    node.events().iter().filter(|reason| **reason == EventReason::Rejected.as_str()).count()
}

fn saves(node: &Node) -> usize {
    let is_save = |it: &&Effect| matches!(it, Effect::Store(StoreRequest::Save(..) | StoreRequest::SaveAnew(..)));
    node.effects.iter().filter(is_save).count()
}

#[test]
fn other_bytes_of_last_known_good_are_refused_and_told() {
    let mut node = Node::new();
    prove(&mut node, "a");
    let (starts, saved) = (node.starts.len(), saves(&node));
    for text in ["a lie", "another", "a lie"] {
        node.step(lie("a", text)).pass(5);
    }
    let (reason, message) = condition(&node);
    assert_eq!(reason, "SyncFailed");
    for part in ["configmaps/a", "UID: uid-a", "ResourceVersion: 1", "write the ConfigMap anew"] {
        assert!(message.contains(part), "{part}: {message}");
        assert!(node.message("KubeletConfigRejected").contains(part), "{}", node.message("KubeletConfigRejected"));
    }
    assert_eq!((told(&node), saves(&node)), (1, saved), "once, and nothing is written");
    assert_eq!((node.running(), node.starts.len(), node.last_known_good()), (Some("a"), starts, "a"));
    node.pass(60);
    assert_eq!(condition(&node).0, "LastKnownGood", "it is asked again, and tells the truth");
    node.edit("a", "2").pass(60);
    assert_eq!(node.running(), Some("a@2"), "another version is another matter");
}

/// What is known of the bytes is on record.
#[test]
fn over_a_boot_too() {
    let mut node = Node::new();
    prove(&mut node, "a");
    let known = node.disk().payloads.clone();
    assert_eq!(known.keys().collect::<Vec<_>>(), ["uid-a/1"]);
    node.reboot().pass(60).step(lie("a", "a lie")).pass(5);
    assert_eq!((condition(&node).0, told(&node)), ("SyncFailed", 1));
    for _ in 0..100 {
        node.step(lie("a", "a lie")).pass(7);
    }
    assert_eq!((node.running(), node.last_known_good(), told(&node)), (Some("a"), "a", 1));
    assert_eq!(node.disk().payloads, known);
}

#[test]
fn a_trial_goes_on_with_the_bytes_that_it_began_with() {
    let mut node = Node::new();
    prove(&mut node, "a");
    node.assign("b").pass(60);
    let starts = node.starts.len();
    node.step(lie("b", "a lie")).pass(700);
    assert_eq!((node.running(), node.starts.len(), node.last_known_good()), (Some("b"), starts, "b"));
    assert_eq!(told(&node), 1);
}

/// What was decided about them may be lost with the record; their seal is there.
#[test]
fn other_bytes_than_the_store_has_are_refused_too() {
    let mut node = Node::new();
    prove(&mut node, "a");
    node.store.other_bytes.insert("b".to_owned());
    let saved = saves(&node);
    node.assign("b").pass(3600);
    assert_eq!((node.running(), condition(&node).0, told(&node)), (Some("a"), "SyncFailed", 1));
    assert!((2..20).contains(&(saves(&node) - saved)), "with a pause that grows: {}", saves(&node) - saved);
    node.store.other_bytes.clear();
    node.pass(1200);
    assert_eq!(node.running(), Some("b"), "it is asked again");
}

/// Each lie is one entry, and what no version names any more is forgotten.
#[test]
fn what_is_known_of_bytes_is_bounded() {
    let mut node = Node::new();
    for number in 1..40 {
        node.edit("a", &number.to_string());
        prove(&mut node, "a");
    }
    assert!(node.disk().payloads.len() < 12, "{:?}", node.disk().payloads);
}
