//! Content is identity: equal content is never restarted, tried again or rolled back, and what was proven is started from
//! its very bytes.

use kubelet_config::source::ConfigAnnotations;
use kubelet_supervisor::machine::command::{Command, Target};
use kubelet_supervisor::machine::records::{Attempt, Phase};
use kubelet_supervisor::machine::{Effect, Settings};
use serde_json::json;
use testkit::node::Node;

use crate::confirmed;

use super::{count, fails_at_its_start, minutes, prove, proven, rolled_back};

/// Two label edits within ten minutes with `confirm-within`: of nobody's interest, as the content is proven.
#[test]
fn a_second_label_edit_asks_for_no_confirmation() {
    let mut node = Node::new();
    for name in ["a", "a@2", "a@3"] {
        node.define(name, json!({}), confirmed("30m")).alias(name, "a");
    }
    node.assign("a").pass(minutes(11)).obey(Command::Confirm { extend_seconds: None }).pass(minutes(1));
    assert_eq!(node.last_known_good(), "a");
    let before = node.effects.len();
    for version in ["2", "3"] {
        node.edit("a", version).pass(minutes(4));
    }
    node.pass(minutes(120));
    assert_eq!(node.starts, ["", "a"], "{:?}", node.events());
    let asked =
        |it: &Effect| matches!(it, Effect::Emit(event) if event.reason.as_str() == "KubeletConfigAwaitsConfirmation");
    assert_eq!(count(&node, before, asked), 0);
    assert!(node.disk().bad.is_empty() && !rolled_back(&node));
    let known_good = node.disk().last_known_good.as_ref().unwrap();
    assert_eq!(known_good.source.resource_version, "3", "told under the new name after a trial's time");
}

/// What was asked for before holds.
#[test]
fn a_mistyped_annotation_does_not_roll_equal_content_back() {
    let mut node = proven("good");
    node.define("a", json!({}), confirmed("30m")).define("a@2", json!({}), confirmed("half an hour"));
    node.alias("a@2", "a");
    node.assign("a").pass(60).edit("a", "2").pass(minutes(12));
    assert_eq!((node.starts.len(), rolled_back(&node)), (3, false), "{:?}", node.starts);
    assert!(matches!(node.disk().phase, Phase::AwaitingConfirmation(..)), "{:?}", node.disk().phase);
}

/// Last known good is local, and so is the content of b: there is nothing to go back to.
#[test]
fn what_equals_local_is_not_rolled_back_into_it() {
    let mut node = Node::new();
    node.alias("b", "local").assign("b");
    assert_eq!((node.active(), node.starts.as_slice()), ("b", [String::new()].as_slice()));
    node.pings = false;
    node.pass(minutes(10));
    assert_eq!(node.starts, [""], "{:?}", node.events());
}

#[test]
fn a_version_equal_to_last_known_good_is_nothing_to_leave() {
    let mut node = proven("a");
    node.alias("b", "a").assign("b");
    let refusal = node.operate(Command::Rollback { to: Target::Lkg }).unwrap_err();
    assert!(refusal.contains("last known good already"), "{refusal}");
    node.pass(60);
    assert_eq!(node.starts, ["", "a"]);
    assert!(node.disk().bad.is_empty());
}

/// x failed. The content of x becomes last known good all the same, under another name and by a retry: the mark goes.
#[test]
fn a_bad_name_does_not_keep_proven_content_from_running() {
    let mut node = proven("a");
    fails_at_its_start(&mut node);
    node.obey(Command::Retry).pass(minutes(11));
    assert_eq!(node.last_known_good(), "x");
    node.alias("y", "x");
    node.assign("y").pass(5).reboot().pass(20);
    assert_eq!((node.running(), node.active()), (Some("x"), "y"));
    assert!(node.disk().bad.is_empty(), "{:?}", node.disk().bad);
}

/// Last known good is lost, local runs in its place. What is refused then has nowhere to go back to.
#[test]
fn a_refused_change_does_not_try_an_unusable_fallback_again() {
    let mut node = proven("a");
    node.store.lose(&testkit::node::source("a"));
    node.api = false;
    node.reboot().pass(60);
    assert_eq!(node.running(), Some(""), "{:?}", node.starts);
    let starts = node.starts.len();
    node.refuse("c").assign("c");
    node.api = true;
    node.pass(minutes(30));
    assert!(node.is_bad("c"), "{:?}", node.events());
    assert_eq!(node.starts.len(), starts, "{:?}", node.starts);
}

/// Each life of the supervisor renders what is assigned once more: what comes of it then is tried, beside the proven bytes.
#[test]
fn a_changed_local_file_is_a_new_candidate() {
    let mut node = Node::new();
    node.define_overlay("a");
    prove(&mut node, "a");
    node.store.local = "2".into();
    node.pass(minutes(10));
    assert_eq!(node.starts, ["", "a"], "nothing is rendered again in this life");
    node.boot().pass(minutes(2));
    assert_eq!(node.starts, ["", "a", "a", "a+2"], "first the proven bytes, then the candidate");
    let digest = |node: &Node| node.disk().last_known_good.clone().unwrap().digest.unwrap().0;
    assert_eq!(digest(&node), "a");
    node.pass(minutes(11));
    assert_eq!(digest(&node), "a+2", "{:?}", node.events());
    assert_eq!(node.starts.len(), 4);
}

/// x is cleared and is to be tried again. Then the administrator takes it back.
#[test]
fn a_revert_to_the_old_content_ends_the_retries() {
    let mut node = proven("a");
    node.ready_after = None;
    node.assign("x").exit(255).exit(255); // a fails alike
    node.pass(5);
    assert!(matches!(node.disk().phase, Phase::RetryLater(..)), "{:?}", node.disk());
    node.assign("a");
    node.ready_after = Some(1);
    node.pass(60);
    if node.running().is_some() {
        node.exit(255);
    }
    node.pass(minutes(5));
    assert_eq!((&node.disk().phase, node.running()), (&Phase::Settled, Some("a")));
    let before = node.effects.len();
    node.pass(minutes(60));
    assert_eq!(count(&node, before, |it| matches!(it, Effect::Query(..) | Effect::Probe(..))), 0);
    assert!(!node.starts[3..].contains(&"x".to_owned()), "{:?}", node.starts);
}

/// The record is one file; native's are written after it, for a way back, and count only if somebody else changed them.
#[test]
fn a_cut_between_record_and_meta_gives_no_tries_back() {
    let mut node = Node::with(Settings { boots: 3, ..Settings::default() });
    prove(&mut node, "a");
    node.store.meta_lost = true;
    node.assign("x");
    for _ in 0..3 {
        assert_eq!(node.running(), Some("x"), "{:?}", node.starts);
        node.reboot().pass(5);
    }
    assert_eq!(node.running(), Some("a"), "{:?}", node.starts);
    assert!(node.is_bad("x"));
}

/// Native and 0.1.0 recorded names alone. A label edit was made minutes before the upgrade: assigned and last known good
/// are two names of one content, which is found out before the kubelet's exits are held against the newer one.
#[test]
fn equal_content_of_records_without_digests_is_not_rolled_back() {
    let mut node = proven("a");
    node.alias("b", "a").assign("b").pass(30);
    let records = &mut node.store.records;
    for version in records.assigned.iter_mut().chain(&mut records.last_known_good) {
        version.digest = None;
    }
    let assigned = records.assigned.clone().unwrap();
    records.phase = Phase::Trial(Attempt::new(assigned));
    node.reboot().pass(20);
    for _ in 0..4 {
        node.exit(1).pass(20);
    }
    assert!(node.disk().bad.is_empty() && !rolled_back(&node), "{:?}", node.events());
    node.pass(minutes(12));
    assert_eq!((node.active(), node.last_known_good(), node.running()), ("b", "b", Some("a")));
}

/// The local file of a node with an overlay is edited to what must not be made on a live node. The restart refuses that, and
/// the name of last known good says nothing of the content that is refused.
#[test]
fn what_is_refused_does_not_become_last_known_good_by_its_name() {
    for restart in [Node::boot, Node::reboot] {
        let mut node = Node::new();
        node.define("local", json!({"cgroupDriver": "cgroupfs"}), ConfigAnnotations::default());
        node.define_overlay("a");
        prove(&mut node, "a");
        let before = node.disk().last_known_good.clone();
        node.store.local = "edited".to_owned();
        node.configurations.get_mut("a").unwrap().fields = json!({"cgroupDriver": "systemd"});
        restart(&mut node).pass(minutes(25));
        assert_eq!(node.disk().last_known_good, before, "{:?}", node.events());
        assert_eq!(node.running(), Some("a"), "the bytes that were proven");
    }
}

/// Nothing is proven, so the way back is the local file: as it is by then.
#[test]
fn what_equals_an_edited_local_file_is_not_rolled_back_into_it() {
    let mut node = Node::new();
    node.store.local = "edited".to_owned();
    node.same_content.insert("a".to_owned(), "local+edited".to_owned());
    node.assign("a").pass(30);
    node.healthz = Some(false);
    node.pass(120);
    node.healthz = Some(true);
    node.pass(60);
    assert!(!rolled_back(&node), "from a content to the same content: {:?}", node.starts);
}
