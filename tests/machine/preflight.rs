//! Preflight on request: what the Node is asked to judge is judged as a change is, and changes nothing.

use kubelet_config::pods::{PodInventory, PodSummary};
use kubelet_config::policy::PolicyState;
use kubelet_config::preflight::{PreflightResult, PreflightStatus};
use kubelet_config::readmission::Supply;
use kubelet_config::source::ConfigAnnotations;
use kubelet_config::status::PreflightAnswer;
use kubelet_supervisor::machine::model::LoadTarget;
use kubelet_supervisor::machine::status::node_status;
use kubelet_supervisor::machine::{Effect, Input, StoreRequest, limits};
use serde_json::json;
use testkit::node::{Node, REFUSAL};

use crate::{acknowledged, confirmed};

fn node() -> Node {
    let mut node = Node::new();
    node.step(Input::KubeletVersion("v1.20.2".to_owned())).create("a", json!({}), ConfigAnnotations::default());
    node.pass(20);
    node
}

fn said(node: &Node) -> Option<PreflightStatus> {
    PreflightStatus::parse(node.preflight.1.as_ref()?)
}

fn result(node: &Node) -> Option<PreflightResult> {
    said(node).map(|said| said.result)
}

fn finding(node: &mut Node, name: &str) -> PreflightStatus {
    let asked = format!("n/{name}");
    node.request(Some(&asked)).pass(limits::PREFLIGHT_REQUEST_PAUSE.as_secs() + 1);
    let said = said(node).unwrap_or_else(|| panic!("no answer to {name}"));
    assert!(said.answers(&asked), "{said:?}");
    assert_eq!(said.kubelet_version, node.state.kubelet_version().unwrap_or_default());
    said
}

fn count(node: &Node, wanted: fn(&Effect) -> bool) -> usize {
    node.effects.iter().filter(|effect| wanted(effect)).count()
}

fn fetches(node: &Node) -> usize {
    count(node, |effect| matches!(effect, Effect::Fetch(..)))
}

#[test]
fn each_finding_is_told() {
    let mut node = node();
    node.store.policy = PolicyState::InForce;
    for (name, fields, annotations) in [
        ("refused", json!({}), ConfigAnnotations::default()),
        ("hazard", json!({"cgroupDriver": "systemd"}), ConfigAnnotations::default()),
        ("accepted", json!({"cgroupDriver": "systemd"}), acknowledged(Some("reboot"))),
        ("pods", json!({"maxPods": 1}), ConfigAnnotations::default()),
        ("threshold", json!({"evictionHard": {"memory.available": "3Gi"}}), ConfigAnnotations::default()),
        ("ignored", json!({"evictionHard": {"memory.available": "3Gi"}}), ConfigAnnotations::default()),
        ("crossed", json!({"evictionHard": {"imagefs.inodesFree": "5%"}}), ConfigAnnotations::default()),
        ("forever", json!({}), confirmed("for ever")),
        ("denied", json!({}), ConfigAnnotations::default()),
        ("elsewhere", json!({}), ConfigAnnotations::default()),
    ] {
        node.create(name, fields, annotations);
    }
    node.refuse("refused");
    node.store.forbidden.insert("denied".to_owned());
    let pod = |name: &str| PodSummary { name: format!("d/{name}"), phase: "Running".to_owned(), ..Default::default() };
    node.inventory = PodInventory { pods: vec![pod("first"), pod("second")], ..PodInventory::default() };
    node.step(Input::AssignedByLabels(true));

    let valid = finding(&mut node, "a");
    assert_eq!((valid.result, valid.version.as_str(), valid.digest.as_str()), (PreflightResult::Valid, "uid-a/1", "a"));
    let refused = finding(&mut node, "refused");
    assert_eq!((refused.result, refused.message.as_str()), (PreflightResult::Invalid, REFUSAL));
    let hazard = finding(&mut node, "hazard");
    assert_eq!((hazard.result, hazard.hazards), (PreflightResult::Hazard, vec!["reboot".to_owned()]));
    assert!(hazard.message.contains("cgroupDriver"), "{}", hazard.message);
    assert_eq!(finding(&mut node, "accepted").result, PreflightResult::Valid);
    let pods = finding(&mut node, "pods");
    assert_eq!((pods.result, pods.pods_lost), (PreflightResult::PodsLost, 1));
    assert_eq!(pods.pods, ["d/second"]);
    assert!(pods.message.contains("d/second (OutOfpods)"), "{}", pods.message);
    // A threshold costs nobody where the unit's flags have it ignored.
    node.inventory.pods[0].requests = [("memory".to_owned(), 2 << 30)].into();
    node.inventory.node.capacity = [("memory".to_owned(), "4Gi".to_owned())].into();
    assert_eq!(finding(&mut node, "threshold").pods, ["d/first"]);
    node.store.ignores_eviction = true;
    assert_eq!(finding(&mut node, "ignored").result, PreflightResult::Valid);
    node.inventory.pods[0].requests.clear();
    let few = Supply { available: 3, capacity: 100 };
    node.environment.supplies = [("imagefs.inodesFree".to_owned(), few)].into();
    let crossed = finding(&mut node, "crossed");
    assert_eq!(crossed.result, PreflightResult::PodsLost);
    assert!(crossed.message.contains("imagefs.inodesFree is 3, the new threshold 5"), "{}", crossed.message);
    // What nobody can tell refuses nothing, and is said.
    node.inventory.pods[0].node_selector = json!({"disk": "ssd"});
    let unsure = finding(&mut node, "a");
    assert_eq!(unsure.result, PreflightResult::Valid);
    assert!(unsure.message.contains("d/first (perhaps NodeAffinity)"), "{}", unsure.message);
    node.inventory.node.labels = Some([("disk".to_owned(), "hdd".to_owned())].into());
    let told = finding(&mut node, "accepted");
    assert_eq!(told.result, PreflightResult::Valid, "any restart would cost it");
    assert!(told.message.contains("d/first (NodeAffinity)"), "{}", told.message);
    node.inventory.pods[0].node_selector = serde_json::Value::Null;
    assert_eq!(finding(&mut node, "forever").result, PreflightResult::Invalid);
    assert_eq!(finding(&mut node, "denied").result, PreflightResult::PolicyRefused);
    assert_eq!(finding(&mut node, "elsewhere").result, PreflightResult::PolicyRefused, "as an assignment by labels");
    let absent = finding(&mut node, "absent");
    assert_eq!((absent.result, absent.message.as_str()), (PreflightResult::Inconclusive, "it is not to be had"));
    let garbage = finding(&mut node, "../../etc/passwd");
    assert_eq!(garbage.result, PreflightResult::Inconclusive, "{garbage:?}");
    node.store.policy = PolicyState::Unreadable("torn".to_owned());
    assert_eq!(finding(&mut node, "a").result, PreflightResult::Inconclusive);
}

/// The law: nobody who sees the node, its disk or its kubelet can tell that it was asked.
#[test]
fn it_changes_nothing() {
    let mut node = node();
    node.create("refused", json!({}), ConfigAnnotations::default());
    node.create("hazard", json!({"cgroupDriver": "systemd"}), ConfigAnnotations::default()).refuse("refused");
    node.assign("good").pass(660);
    let seen = |node: &Node| {
        let status = node_status(&node.state);
        let status = (status.annotation(), status.about(), status.condition);
        (status, node.disk().clone(), node.starts.clone(), node.events(), node.state.records().clone())
    };
    let saves = |effect: &Effect| matches!(effect, Effect::Store(StoreRequest::Save(..) | StoreRequest::SaveAnew(..)));
    let before = (seen(&node), count(&node, saves));
    for name in ["a", "refused", "hazard", "absent", "good"] {
        finding(&mut node, name);
    }
    node.request(None).pass(30);
    assert_eq!((seen(&node), count(&node, saves)), before);
}

#[test]
fn a_candidate_goes_first() {
    let mut node = node();
    node.preflight_answers = false;
    node.request(Some("n/a")).pass(2);
    assert_eq!(node.preflights.last().map(String::as_str), Some("a"), "it is being judged");
    node.assign("b").pass(2);
    assert_eq!(node.preflights.last().map(String::as_str), Some("b"), "and is dropped for a candidate");
    node.pass(20);
    assert_eq!((node.preflights.last().map(String::as_str), said(&node)), (Some("b"), None));
    node.preflight_answers = true;
    node.end_preflight().pass(660);
    assert_eq!((node.last_known_good(), result(&node)), ("b", Some(PreflightResult::Valid)));
}

#[test]
fn a_trial_goes_first() {
    let mut node = node();
    node.assign("b").pass(60);
    assert_eq!(node.running(), Some("b"));
    node.request(Some("n/a")).pass(300);
    assert_eq!((said(&node), fetches(&node)), (None, 0), "while it is on trial");
    node.pass(400);
    assert_eq!((node.last_known_good(), result(&node)), ("b", Some(PreflightResult::Valid)));
}

#[test]
fn a_kubelet_that_is_down_goes_first() {
    let mut node = node();
    node.ready_after = None;
    node.exit(1).request(Some("n/a")).pass(60);
    assert_eq!((said(&node), fetches(&node)), (None, 0));
}

#[test]
fn the_latest_request_wins() {
    let mut node = node();
    node.create("b", json!({}), ConfigAnnotations::default());
    node.preflight_answers = false;
    node.request(Some("n/a")).pass(2).request(Some("n/b"));
    node.preflight_answers = true;
    node.end_preflight();
    assert_eq!(said(&node), None, "the verdict on the first decides nothing");
    node.pass(15);
    let said = said(&node).unwrap();
    assert!(said.answers("n/b") && said.digest == "b", "{said:?}");
}

#[test]
fn requests_are_paced() {
    let mut node = node();
    for second in 0..60 {
        node.request(Some(if second % 2 == 0 { "n/a" } else { "n/absent" })).pass(1);
    }
    assert!((5..=7).contains(&fetches(&node)), "{}", fetches(&node));
}

#[test]
fn an_answer_stands_until_something_else_is_asked() {
    let mut node = node();
    let first = finding(&mut node, "a");
    for _ in 0..5 {
        node.show_preflight().pass(60);
    }
    assert_eq!((fetches(&node), said(&node)), (1, Some(first.clone())));
    // Of a supervisor that was started anew, by what the Node shows.
    node.reboot().pass(60);
    assert_eq!((fetches(&node), said(&node)), (1, Some(first)));
    node.request(Some("n/a#2")).pass(60);
    assert_eq!((fetches(&node), result(&node)), (2, Some(PreflightResult::Valid)));
}

#[test]
fn an_answer_of_another_kubelet_is_asked_for_anew() {
    let mut node = node();
    finding(&mut node, "a");
    node.step(Input::KubeletVersion("v1.21.0".to_owned())).pass(30);
    assert_eq!((fetches(&node), said(&node).map(|said| said.kubelet_version)), (2, Some("v1.21.0".to_owned())));
}

#[test]
fn without_a_request_there_is_no_answer() {
    let mut node = node();
    let unseen = kubelet_supervisor::machine::State::new(kubelet_supervisor::machine::Settings::default());
    assert_eq!(node_status(&unseen).preflight, PreflightAnswer::AsItIs);
    finding(&mut node, "a");
    node.request(None);
    assert_eq!(node_status(&node.state).preflight, PreflightAnswer::None);
}

#[test]
fn another_version_than_asked_for_is_not_judged() {
    let mut node = node();
    node.request(Some("n/a/kubelet@uid-a/2")).pass(15);
    let other = said(&node).unwrap();
    assert_eq!(other.result, PreflightResult::Inconclusive);
    assert!(other.message.contains("ResourceVersion: 1"), "{}", other.message);
    assert!(node.preflights.is_empty());
    node.request(Some("n/a/kubelet@uid-a/1")).pass(15);
    assert_eq!(result(&node), Some(PreflightResult::Valid));
}

#[test]
fn what_passes_is_tried_again_but_not_for_ever() {
    let mut node = node();
    node.api = false;
    node.request(Some("n/a")).pass(12);
    assert_eq!(said(&node), None);
    node.api = true;
    node.pass(12);
    assert_eq!(result(&node), Some(PreflightResult::Valid));
    node.api = false;
    node.request(Some("n/b")).pass(300);
    let tried = fetches(&node);
    assert_eq!(result(&node), Some(PreflightResult::Inconclusive));
    node.pass(300);
    assert_eq!(fetches(&node), tried);
}

#[test]
fn what_it_was_rendered_to_is_removed() {
    let mut node = node();
    node.preflight_answers = false;
    node.request(Some("n/a")).pass(2);
    assert_eq!(node.preflights, ["a"]);
    let collects = |effect: &Effect| matches!(effect, Effect::Store(StoreRequest::Collect(..)));
    let before = count(&node, collects);
    node.request(None); // nobody waits for it
    node.pass(1);
    assert_eq!(count(&node, collects), before + 1);
    node.pass(300);
    assert_eq!(count(&node, collects), before + 1);
}

/// Else each request would leave something on the disk.
#[test]
fn nothing_is_written_while_nothing_can_be_removed() {
    let mut node = node();
    node.store.record_unreadable = true;
    node.reboot().pass(60).request(Some("n/a")).pass(60);
    let writes = |effect: &Effect| matches!(effect, Effect::Store(StoreRequest::Load(_, LoadTarget::Unassigned(..))));
    assert_eq!(count(&node, writes), 0);
    node.store.record_unreadable = false;
    node.pass(600);
    assert_eq!((result(&node), count(&node, writes)), (Some(PreflightResult::Inconclusive), 0));
    node.reboot().pass(60).request(Some("n/a#again")).pass(60);
    assert_eq!((result(&node), count(&node, writes)), (Some(PreflightResult::Valid), 1));
}
