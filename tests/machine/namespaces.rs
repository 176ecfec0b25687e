//! The namespace of a ConfigMap is asked before anything of it is fetched, saved or told.

use kubelet_config::assignment::Assignment;
use kubelet_config::policy::PolicyState;
use kubelet_config::preflight::PreflightResult;
use kubelet_config::status::PreflightAnswer;
use kubelet_supervisor::machine::status::node_status;
use kubelet_supervisor::machine::{Effect, Input, StoreRequest};
use testkit::node::Node;

use crate::prove;

fn touched(effect: &Effect) -> bool {
    matches!(
        effect,
        Effect::Watch(Some(_))
            | Effect::Fetch(..)
            | Effect::Store(StoreRequest::Save(..) | StoreRequest::SaveAnew(..) | StoreRequest::Load(..))
    )
}

fn condition(node: &Node) -> (&'static str, String) {
    let condition = node_status(&node.state).condition;
    (condition.reason.as_str(), condition.message)
}

#[test]
fn nothing_of_a_foreign_config_map_is_touched() {
    let mut node = Node::new();
    node.store.foreign.insert("n".to_owned());
    node.pass(60);
    let before = node.effects.len();
    node.assign("a").pass(600);
    let late: Vec<_> = node.effects[before..].iter().filter(|effect| touched(effect)).collect();
    assert!(late.is_empty(), "{late:?}");
    let (reason, message) = condition(&node);
    assert!(reason == "SyncFailed" && message.contains("the node's policy: n"), "{reason} {message}");
    assert_eq!(node.events().iter().filter(|event| **event == "KubeletConfigRejected").count(), 1);
    assert!(node.message("KubeletConfigRejected").contains("n/a"));
    node.store.foreign.clear();
    node.step(Input::PolicyChanged).pass(30);
    assert_eq!(node.running(), Some("a"), "nobody had to say retry");
    assert_eq!(condition(&node).0, "OnTrial");
}

/// Who may label the Node could fill the journal and the events.
#[test]
fn each_refusal_is_told_once_whatever_is_assigned_in_turn() {
    let mut node = Node::new();
    node.store.foreign.insert("n".to_owned());
    node.pass(60);
    let in_turn = |node: &mut Node| {
        for _ in 0..5 {
            node.assign("a").pass(60).assign("b").pass(60);
        }
        node.events().iter().filter(|event| **event == "KubeletConfigRejected").count()
    };
    assert_eq!(in_turn(&mut node), 2);
    node.step(Input::PolicyChanged).pass(60);
    assert_eq!(in_turn(&mut node), 4, "by what the policy is now");
    node.store.foreign.clear();
    node.assign("a").pass(600);
    node.store.foreign.insert("n".to_owned());
    node.assign("b").pass(60);
    assert_eq!(in_turn(&mut node), 5, "that of a, which was let be");
}

/// The question is asked again while nobody can answer it.
#[test]
fn a_policy_that_cannot_be_read_lets_nothing_be_fetched() {
    let mut node = Node::new();
    node.store.policy = PolicyState::Unreadable("torn".into());
    node.pass(60);
    let before = node.effects.len();
    node.assign("a").pass(300);
    assert!(!node.effects[before..].iter().any(touched));
    let asked = node.effects[before..].iter();
    let asked = asked.filter(|it| matches!(it, Effect::Store(StoreRequest::JudgeNamespace(..)))).count();
    assert!((5..40).contains(&asked), "asked {asked} times in five minutes");
    node.store.policy = PolicyState::InForce;
    node.pass(60);
    assert_eq!(node.running(), Some("a"));
}

#[test]
fn a_disk_that_stalls_only_puts_it_off() {
    let mut node = Node::new();
    node.stall().assign("a").pass(120);
    assert_ne!(node.running(), Some("a"));
    node.end_stall().pass(120);
    assert_eq!(node.running(), Some("a"));
}

/// What was taken up from there goes on, and is told as what it is.
#[test]
fn what_runs_from_a_namespace_that_is_refused_since_goes_on() {
    let mut node = Node::new();
    prove(&mut node, "a");
    let starts = node.starts.len();
    node.store.foreign.insert("n".to_owned());
    node.store.forbidden.insert("a".to_owned());
    node.store.policy = PolicyState::InForce;
    node.step(Input::PolicyChanged).pass(600);
    assert_eq!((node.running(), node.starts.len(), node.last_known_good()), (Some("a"), starts, "a"));
    assert_eq!(condition(&node).0, "ForbiddenByPolicy");
    let before = node.effects.len();
    node.edit("a", "2").pass(60);
    assert!(!node.effects[before..].iter().any(|it| matches!(it, Effect::Store(StoreRequest::Save(..)))));
    assert_eq!(node.running(), Some("a"), "what is new there is not looked at");
}

#[test]
fn a_preflight_on_request_asks_it_too() {
    let mut node = Node::new();
    prove(&mut node, "a");
    node.store.foreign.insert("n".to_owned());
    refuses_unfetched(&mut node, "n/b");
}

/// A preflight of this ConfigMap is refused by the policy, and nothing was fetched for it.
fn refuses_unfetched(node: &mut Node, requested: &str) {
    let before = node.effects.len();
    node.request(Some(requested)).pass(60);
    assert!(!node.effects[before..].iter().any(|it| matches!(it, Effect::Fetch(..))));
    let PreflightAnswer::Said(answer) = node_status(&node.state).preflight else { panic!("no answer") };
    assert_eq!(answer.result, PreflightResult::PolicyRefused);
}

/// Who annotates a Node could assign by a label, and not by `spec.configSource`.
#[test]
fn a_preflight_on_request_reaches_no_further_than_a_label() {
    let mut node = Node::new();
    prove(&mut node, "a");
    node.store.unlisted.insert("n".to_owned());
    refuses_unfetched(&mut node, "n/b");
    let before = node.effects.len();
    node.request(Some("n/a")).pass(60);
    assert!(node.effects[before..].iter().any(|it| matches!(it, Effect::Fetch(..))), "it is assigned, whoever asks");
}

/// It may be started unread, as it was loaded last: the policy's latest word on it counts, whoever asked for that.
#[test]
fn a_stalled_disk_does_not_start_what_the_policy_forbade_since() {
    let mut node = Node::new();
    prove(&mut node, "a");
    node.store.foreign.insert("n".to_owned());
    node.store.forbidden.insert("a".to_owned());
    node.store.policy = PolicyState::InForce;
    node.step(Input::PolicyChanged).pass(600);
    assert_eq!(condition(&node).0, "ForbiddenByPolicy");
    node.stall().exit(1).until_start(60).unwrap();
    assert_eq!(node.running(), Some(""), "{:?}", node.starts);
}

/// The same content goes on as the local configuration, which is in no namespace: what the policy said of the name before is not said of it.
#[test]
fn what_goes_on_as_the_local_configuration_is_in_no_namespace() {
    let mut node = Node::new();
    node.alias("a", "local").pass(60);
    node.assign("a").pass(60);
    node.store.foreign.insert("n".to_owned());
    node.store.forbidden.insert("a".to_owned());
    node.store.policy = PolicyState::InForce;
    node.step(Input::PolicyChanged).pass(60);
    assert_eq!((node.running(), condition(&node).0), (Some(""), "ForbiddenByPolicy"));
    node.step(Input::Node(Assignment::Local)).pass(60);
    let (reason, message) = condition(&node);
    assert_eq!((node.starts.len(), node.running()), (1, Some("")), "{message}");
    assert_ne!(reason, "ForbiddenByPolicy", "{message}");
}
