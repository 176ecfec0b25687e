//! What changes in the store behind the supervisor's back.

use kubelet_supervisor::machine::{Effect, Input};
use kubelet_supervisor::ports::StoreRequest;
use testkit::node::{Node, source};

use crate::proven;

fn drifts(node: &Node) -> usize {
    node.events().iter().filter(|reason| **reason == "KubeletConfigDrift").count()
}

fn touched(node: &mut Node) {
    node.step(Input::StoreTouched).pass(15);
}

#[test]
fn content_is_written_again_while_the_kubelet_runs_on() {
    let mut node = proven("a");
    let starts = node.starts.len();
    touched(&mut node);
    assert_eq!(drifts(&node), 0, "it was the supervisor itself");
    node.store.damaged.insert("a".to_owned());
    touched(&mut node);
    assert!(node.message("KubeletConfigDrift").contains("written again"), "{}", node.message("KubeletConfigDrift"));
    assert!(node.store.damaged.is_empty());
    touched(&mut node);
    assert_eq!((drifts(&node), node.starts.len()), (1, starts));
}

#[test]
fn a_checkpoint_comes_from_the_api_server_again() {
    let mut node = proven("a");
    let starts = node.starts.len();
    node.store.lose_checkpoint(&source("a"));
    touched(&mut node);
    assert!(node.message("KubeletConfigDrift").contains("downloaded again"), "{}", node.message("KubeletConfigDrift"));
    assert!(node.store.has_checkpoint(&source("a")));
    assert_eq!((drifts(&node), node.starts.len()), (1, starts));
    touched(&mut node);
    assert_eq!(node.state.damage().count(), 0);
}

/// The API server is away, so what is lost stays lost; the kubelet runs on.
#[test]
fn what_cannot_be_put_right_is_told_once() {
    let mut node = proven("a");
    node.api = false;
    node.store.lose(&source("a"));
    for _ in 0..3 {
        touched(&mut node);
    }
    assert_eq!(drifts(&node), 2, "content and checkpoint, once each: {:?}", node.events());
    assert_eq!(node.state.damage().count(), 2);
    assert_eq!(node.running(), Some("a"));
}

/// The disk fails while the store is verified, and nobody writes in it after that.
#[test]
fn what_could_not_be_read_is_looked_at_again() {
    let mut node = proven("a");
    touched(&mut node);
    node.store.damaged.insert("a".to_owned());
    node.store.fails = 1;
    node.step(Input::StoreTouched).pass(3);
    assert_eq!((drifts(&node), node.store.damaged.len(), node.store.fails), (0, 1, 0));
    node.pass(60);
    assert_eq!((drifts(&node), node.store.damaged.len()), (1, 0));
}

#[test]
fn a_store_that_does_not_answer_is_asked_again() {
    let mut node = proven("a");
    node.store.damaged.insert("a".to_owned());
    (node.store.fails_after, node.store.fails, node.store.loses_answers) = (0, 1, true);
    node.step(Input::StoreTouched).pass(180);
    let asked = node.effects.iter().filter(|it| matches!(it, Effect::Store(StoreRequest::Verify(..)))).count();
    assert!(asked > 1 && node.store.damaged.is_empty(), "asked {asked} times");
}
