//! The node's policy: what it admits, what is not started, and what it does not take away.

use kubelet_config::policy::{PolicyState, Signed};
use kubelet_supervisor::machine::Input;
use kubelet_supervisor::machine::command::{Command, Target};
use testkit::node::{Node, source};

use crate::prove;

fn node() -> Node {
    let mut node = Node::new();
    node.store.policy = PolicyState::InForce;
    node
}

fn forbid(node: &mut Node, name: &str) {
    node.store.forbidden.insert(name.to_owned());
    node.step(Input::PolicyChanged).pass(5);
}

fn sign(node: &mut Node, name: &str, sequence: u64, expires: u64) {
    let (key, key_id, pool) = ("ops".into(), "1".into(), "p".into());
    let signed = Signed { key, key_id, pool, sequence, expires, key_not_after: None };
    node.store.signed.insert(name.to_owned(), signed);
}

fn condition(node: &Node) -> (&'static str, String) {
    let condition = kubelet_supervisor::machine::status::node_status(&node.state).condition;
    (condition.reason.as_str(), condition.message)
}

/// Long after what is in [`Node`]'s clock.
const LATER: u64 = 4_000_000_000;

#[test]
fn what_it_refuses_is_not_started() {
    let mut node = node();
    prove(&mut node, "a");
    node.store.forbidden.insert("b".into());
    let starts = node.starts.len();
    node.assign("b").pass(700);
    assert_eq!((node.running(), node.starts.len()), (Some("a"), starts), "and it costs no restart");
    assert_eq!(condition(&node).0, "Rejected");
    assert!(node.message("KubeletConfigRejected").contains("the node's policy: b"));
    assert_eq!(node.events().iter().filter(|reason| **reason == "KubeletConfigRejected").count(), 1);
}

#[test]
fn it_is_taken_up_once_the_policy_admits_it() {
    let mut node = node();
    node.store.forbidden.insert("b".into());
    node.assign("b").pass(30);
    assert!(node.is_bad("b") && node.running() != Some("b"));
    node.store.forbidden.clear();
    node.step(Input::PolicyChanged).pass(30);
    assert_eq!(node.running(), Some("b"));
    assert!(node.disk().bad.is_empty(), "nobody had to say retry");
}

#[test]
fn what_runs_goes_on_and_is_told_of() {
    let mut node = node();
    prove(&mut node, "a");
    let starts = node.starts.len();
    forbid(&mut node, "a");
    node.pass(700);
    assert_eq!((node.running(), node.starts.len(), node.last_known_good()), (Some("a"), starts, "a"));
    let (reason, message) = condition(&node);
    assert_eq!(reason, "ForbiddenByPolicy");
    assert!(message.contains("the node's policy: a"), "{message}");
    assert!(node.message("KubeletConfigForbidden").contains("the node's policy: a"));
    node.store.forbidden.clear();
    node.step(Input::PolicyChanged).pass(5);
    assert_eq!(condition(&node).0, "LastKnownGood");
}

#[test]
fn what_it_forbids_is_not_started_again() {
    let mut node = node();
    prove(&mut node, "a");
    prove(&mut node, "b");
    forbid(&mut node, "b");
    node.exit(1).pass(60);
    assert_eq!(node.running(), Some("a"), "an earlier one, which is admitted");
    node.store.forbidden.insert("a".into());
    node.reboot().pass(60);
    assert_eq!(node.running(), Some(""), "the node's own: a kubelet runs");
    node.store.forbidden.clear();
    node.step(Input::PolicyChanged).pass(700);
    assert_eq!(node.running(), Some("b"), "what is on record was kept");
}

#[test]
fn equal_content_under_a_forbidden_name_is_not_adopted() {
    let mut node = node();
    prove(&mut node, "a");
    node.alias("b", "a");
    node.store.forbidden.insert("b".into());
    let starts = node.starts.len();
    node.assign("b").pass(60);
    assert_eq!((node.running(), node.starts.len(), condition(&node).0), (Some("a"), starts, "Rejected"));
    node.reboot().pass(60);
    assert_eq!(node.running(), Some("a"), "nobody took it away by a name");
}

/// An API server can say two things under one uid and resourceVersion.
#[test]
fn the_same_name_with_other_bytes_is_a_candidate() {
    let mut node = node();
    prove(&mut node, "a");
    forbid(&mut node, "a");
    node.alias("a", "other");
    let starts = node.starts.len();
    node.step(Input::PolicyChanged).pass(60);
    assert_eq!((node.running(), node.starts.len()), (Some("a"), starts), "what runs was admitted, this was not");
    assert_eq!((condition(&node).0, node.last_known_good()), ("Rejected", "a"));
    node.store.forbidden.clear();
    node.refused = vec!["other".into()];
    node.step(Input::PolicyChanged).pass(60);
    assert!(node.preflights.iter().any(|judged| judged.contains("other")), "{:?}", node.preflights);
    assert_eq!((node.running(), node.starts.len(), node.last_known_good()), (Some("a"), starts, "a"));
}

#[test]
fn one_that_cannot_be_read_admits_nothing_new() {
    let mut node = node();
    prove(&mut node, "a");
    node.store.policy = PolicyState::Unreadable("torn".into());
    node.step(Input::PolicyChanged).assign("b").pass(120);
    assert_eq!((node.running(), condition(&node).0), (Some("a"), "SyncFailed"));
    assert!(condition(&node).1.contains("torn"));
    assert!(!node.is_bad("b"), "it is not to blame");
    node.store.policy = PolicyState::InForce;
    node.step(Input::PolicyChanged).pass(30);
    assert_eq!(node.running(), Some("b"));
}

#[test]
fn one_that_cannot_be_read_takes_nothing_away() {
    let mut node = node();
    prove(&mut node, "a");
    node.assign("b").pass(60);
    node.store.policy = PolicyState::Unreadable("torn".into());
    node.step(Input::PolicyChanged).exit(1).pass(30);
    assert_eq!(node.running(), Some("b"), "its trial goes on");
    node.pass(700);
    assert_eq!(node.last_known_good(), "b");
    node.reboot().pass(60);
    assert_eq!(node.running(), Some("b"));
}

#[test]
fn labels_name_fewer_namespaces() {
    let mut node = node();
    node.step(Input::AssignedByLabels(true)).assign("elsewhere").pass(60);
    assert!(node.is_bad("elsewhere") && node.running() != Some("elsewhere"));
    node.step(Input::AssignedByLabels(false)).pass(60);
    assert_eq!(node.running(), Some("elsewhere"), "native's freedom");
}

#[test]
fn a_lower_sequence_is_refused() {
    let mut node = node();
    for (name, sequence) in [("a", 7), ("b", 6), ("c", 7)] {
        sign(&mut node, name, sequence, LATER);
    }
    prove(&mut node, "a");
    node.assign("b").pass(60);
    assert_eq!((node.running(), node.disk().sequences.get("p")), (Some("a"), Some(&7)));
    assert!(condition(&node).1.contains("sequence 6 of pool p is lower than 7"), "{}", condition(&node).1);
    node.reboot().pass(60);
    assert_eq!(node.running(), Some("a"), "over a boot as well");
    prove(&mut node, "c");
}

#[test]
fn a_rollback_keeps_the_sequence() {
    let mut node = node();
    sign(&mut node, "a", 1, LATER);
    sign(&mut node, "b", 2, LATER);
    prove(&mut node, "a");
    prove(&mut node, "b");
    let to = Target::Version { uid: "uid-a".into(), resource_version: "1".into() };
    assert!(node.operate(Command::Rollback { to }).is_ok());
    node.pass(60);
    assert_eq!((node.running(), node.disk().sequences.get("p")), (Some("a"), Some(&2)), "an operator may");
    assert!(node.operate(Command::Unpin).is_ok());
    node.edit("a", "2");
    sign(&mut node, "a@2", 1, LATER);
    node.assign("a").pass(60);
    assert_ne!(node.running(), Some("a@2"), "the cluster cannot go back below it");
}

/// An API server that lies can put the signed bytes of long ago under a new name.
#[test]
fn older_proven_content_does_not_come_back_by_an_assignment() {
    let mut node = node();
    for (name, sequence) in [("a", 1), ("b", 2), ("c", 3)] {
        sign(&mut node, name, sequence, LATER);
        prove(&mut node, name);
    }
    node.alias("d", "a");
    sign(&mut node, "d", 1, LATER);
    node.assign("d").pass(60);
    assert_eq!(node.running(), Some("c"));
    assert!(condition(&node).1.contains("sequence 1 of pool p is lower than 3"), "{}", condition(&node).1);
    node.alias("e", "c");
    sign(&mut node, "e", 3, 1);
    node.assign("e").pass(60);
    assert_eq!((node.running(), condition(&node).0), (Some("c"), "LastKnownGood"), "what runs may expire");
}

#[test]
fn what_expired_or_whose_key_ended_is_not_taken_up_and_goes_on() {
    let expires: fn(&mut Signed) = |signed| signed.expires = 1;
    let ends: fn(&mut Signed) = |signed| signed.key_not_after = Some(1);
    for (end, said) in [(expires, "it expired at 1970-01-01"), (ends, "key ops ended at 1970-01-01")] {
        let mut node = node();
        sign(&mut node, "a", 1, LATER);
        prove(&mut node, "a");
        sign(&mut node, "b", 2, LATER);
        node.store.signed.values_mut().for_each(end);
        node.step(Input::PolicyChanged).reboot().pass(60);
        assert_eq!((node.running(), condition(&node).0), (Some("a"), "LastKnownGood"), "it was taken up in time");
        node.assign("b").pass(60);
        assert_eq!(node.running(), Some("a"));
        assert!(condition(&node).1.contains(said), "{}", condition(&node).1);
        assert_eq!(node.state.active().map(|version| version.source.clone()), Some(source("a")));
        sign(&mut node, "c", 2, LATER);
        prove(&mut node, "c");
    }
}

#[test]
fn what_a_wrong_clock_refused_is_asked_again_once_it_is_set() {
    let mut node = node();
    prove(&mut node, "a");
    let right = node.wall_nanos;
    node.wall_nanos = right + (LATER * 1_000_000_000);
    sign(&mut node, "b", 1, LATER);
    node.assign("b").pass(60);
    assert!(condition(&node).1.contains("it expired at"), "{}", condition(&node).1);
    node.pass(3600);
    assert_eq!(node.running(), Some("a"));
    let loads = node.events().len();
    node.step(Input::ClockSet).pass(60);
    assert_eq!((node.running(), node.events().len()), (Some("a"), loads), "still wrong, and that is not told twice");
    node.wall_nanos = right;
    node.step(Input::ClockSet).pass(60);
    assert_eq!(node.running(), Some("b"), "nobody had to say retry");
}

/// Denied fields bind changes: proven bytes start. So it is not said that they do not.
#[test]
fn what_it_denies_is_told_of_for_as_long_as_it_runs() {
    let mut node = node();
    prove(&mut node, "a");
    node.store.denied.insert("a".to_owned());
    node.step(Input::PolicyChanged).pass(5);
    let told = node.message("KubeletConfigForbidden");
    assert!(told.contains("goes on") && !told.contains("not again"), "{told}");
    let before = condition(&node);
    node.exit(1).pass(660);
    assert_eq!((node.running(), condition(&node)), (Some("a"), before));
    assert_eq!(node.events().iter().filter(|event| **event == "KubeletConfigForbidden").count(), 1, "no news");
}

/// The next worker has not read the policy when it goes on with the kubelet: that there is none is not said meanwhile.
#[test]
fn a_worker_that_goes_on_does_not_say_that_there_is_no_policy() {
    let mut node = node();
    prove(&mut node, "a");
    node.replace_worker(None).pass(5);
    let said: Vec<&str> = node.published.iter().map(|status| status.policy).collect();
    assert!(!said.is_empty() && said[1..].iter().all(|policy| *policy == "in-force"), "{said:?}");
}

/// A local file that was edited says nothing of what runs, and the policy is there all the same.
#[test]
fn it_is_read_beside_local_files_that_were_edited() {
    let mut node = node();
    node.step(Input::PolicyChanged).pass(60);
    node.store.local = "edited".to_owned();
    node.step(Input::LocalFilesTouched).pass(30);
    node.store.policy = PolicyState::Absent;
    node.step(Input::PolicyChanged).pass(30);
    assert_eq!(node.published.last().map(|status| status.policy), Some("absent"));
}

/// Fields that are denied are compared with the local files: who mends those hears what that means for what runs.
#[test]
fn what_runs_is_held_against_it_when_the_local_files_change() {
    let mut node = node();
    prove(&mut node, "a");
    node.store.denied.insert("a".to_owned());
    node.step(Input::LocalFilesTouched).pass(30);
    assert_eq!(condition(&node).0, "ForbiddenByPolicy");
    node.store.denied.clear();
    node.step(Input::LocalFilesTouched).pass(30);
    assert_eq!(condition(&node).0, "LastKnownGood");
}

/// One error of the disk: what runs is held against it a minute later.
#[test]
fn it_is_read_again_after_an_error_of_the_disk() {
    let mut node = node();
    prove(&mut node, "a");
    node.store.denied.insert("a".to_owned());
    node.step(Input::PolicyChanged).pass(5);
    assert_eq!(condition(&node).0, "ForbiddenByPolicy");
    node.store.unreadable.insert("a".to_owned());
    node.store.denied.clear();
    node.step(Input::PolicyChanged).pass(5);
    node.store.unreadable.clear();
    node.pass(70);
    assert_eq!(condition(&node).0, "LastKnownGood");
}
