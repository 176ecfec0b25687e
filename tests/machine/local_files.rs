//! The local files change while a kubelet runs.

use std::time::Duration;

use kubelet_config::assignment::Assignment;
use kubelet_config::hazard::HazardClass;
use kubelet_config::source::{ConfigAnnotations, ConfigMapRef};
use kubelet_supervisor::machine::command::Command;
use kubelet_supervisor::machine::model::{LoadTarget, RenderError};
use kubelet_supervisor::machine::{Effect, Input, Settings};
use kubelet_supervisor::ports::StoreRequest;
use serde_json::{Value, json};
use testkit::node::{Node, torn};

fn edit(node: &mut Node, text: &str) {
    node.store.local = text.to_owned();
    node.step(Input::LocalFilesTouched).pass(30);
}

fn told(node: &Node) -> usize {
    node.events().iter().filter(|reason| **reason == "KubeletConfigLocalFiles").count()
}

fn prove(node: &mut Node, name: &str) {
    node.assign(name).pass(700);
    assert_eq!((node.active(), node.last_known_good()), (name, name), "{:?}", node.events());
}

fn following() -> Node {
    let mut node = Node::with(Settings { follow_local: true, ..Settings::default() });
    node.define_overlay("a");
    prove(&mut node, "a");
    node
}

#[test]
fn what_the_local_file_says_is_told_once() {
    for overlay in [false, true] {
        let mut node = Node::new();
        node.define_overlay("a");
        if overlay {
            prove(&mut node, "a");
        } else {
            node.pass(60);
        }
        let starts = node.starts.len();
        edit(&mut node, "2");
        let difference = "the local files differ from what the kubelet runs: syncFrequency";
        assert_eq!(node.state.local_files_difference().unwrap().to_string(), difference, "{overlay}");
        edit(&mut node, "2");
        assert_eq!(told(&node), 1);
        assert!(node.message("KubeletConfigLocalFiles").contains(difference));
        edit(&mut node, "");
        assert_eq!((node.state.local_files_difference(), told(&node)), (None, 1), "it is as it was");
        assert_eq!(node.starts.len(), starts, "nothing is restarted for that");
    }
}

/// An editor, or a tool that writes many files, is done when nothing more is written; but one that goes on for ever is not
/// waited for.
#[test]
fn writes_in_a_row_are_read_once() {
    let mut node = Node::new();
    node.pass(60);
    let asked = |node: &Node| {
        let asks = |effect: &&Effect| matches!(effect, Effect::Store(StoreRequest::Load(_, LoadTarget::DryRun(_))));
        node.effects.iter().filter(asks).count()
    };
    let before = asked(&node);
    for _ in 0..10 {
        node.step(Input::LocalFilesTouched).pass(1);
    }
    assert_eq!(asked(&node), before);
    node.pass(5);
    assert_eq!(asked(&node), before + 1);
    for _ in 0..60 {
        node.step(Input::LocalFilesTouched).pass(1);
    }
    assert!((before + 3..=before + 5).contains(&asked(&node)), "{} times", asked(&node) - before);
}

/// A kubelet that starts anew has read the file, so that nothing differs.
#[test]
fn a_start_ends_the_difference() {
    let mut node = Node::new();
    node.pass(60);
    edit(&mut node, "2");
    assert!(node.state.local_files_difference().is_some());
    node.exit(1).pass(30);
    assert_eq!((node.state.local_files_difference(), told(&node)), (None, 1));
}

/// Without anything assigned a torn file ends each kubelet; that is one piece of news.
#[test]
fn a_file_that_ends_each_kubelet_is_told_once() {
    let mut node = Node::new();
    node.pass(60);
    node.store.local_fault = Some(torn());
    edit(&mut node, "2");
    for _ in 0..5 {
        node.exit(1).pass(30);
    }
    assert_eq!(told(&node), 1, "{:?}", node.events());
}

#[test]
fn a_torn_file_is_told_and_the_kubelet_runs_on() {
    let mut node = Node::new();
    node.pass(60);
    node.store.local_fault = Some(torn());
    edit(&mut node, "2");
    node.pass(300);
    let unusable = node.state.local_files_difference().unwrap().to_string();
    assert_eq!(unusable, "the local files cannot be used: the local file cannot be parsed");
    assert_eq!((told(&node), node.starts.len()), (1, 1), "{:?}", node.events());
    node.store.local_fault = None;
    edit(&mut node, "");
    assert_eq!(node.state.local_files_difference(), None);
}

#[test]
fn a_file_that_is_being_written_is_no_news() {
    let mut node = following();
    node.store.local_fault = Some(RenderError::Unfinished("it is being written".to_owned()));
    edit(&mut node, "2");
    node.pass(300);
    assert_eq!((node.state.local_files_difference(), told(&node)), (None, 0), "{:?}", node.events());
}

#[test]
fn a_payload_alone_does_not_mind_the_file() {
    let mut node = Node::new();
    prove(&mut node, "b");
    edit(&mut node, "2");
    assert_eq!((node.state.local_files_difference(), told(&node)), (None, 0));
}

#[test]
fn followed_it_is_a_candidate_over_the_same_source() {
    let mut node = following();
    edit(&mut node, "2");
    assert_eq!((node.running(), node.last_known_good()), (Some("a+2"), "a"), "{:?}", node.events());
    assert!(node.preflights.contains(&"a+2".to_owned()), "it was judged");
    node.pass(700);
    let proven = node.disk().last_known_good.clone().unwrap();
    assert_eq!(proven.digest.unwrap().0, "a+2");
    assert_eq!((node.starts.as_slice(), told(&node)), (["", "a", "a+2"].map(str::to_owned).as_slice(), 0));
}

#[test]
fn followed_it_is_rolled_back_to_the_proven_bytes() {
    let mut node = following();
    node.ready_after = None;
    edit(&mut node, "2");
    node.pass(130);
    node.ready_after = Some(1);
    node.pass(60);
    assert_eq!(node.running(), Some("a"), "{:?}", node.events());
    assert!(node.is_bad("a"));
    let starts = node.starts.len();
    edit(&mut node, "2");
    assert_eq!(node.starts.len(), starts, "it is known to be bad");
    edit(&mut node, "3");
    assert_eq!(node.running(), Some("a+3"));
}

#[test]
fn followed_it_is_what_is_assigned_where_nothing_else_is() {
    let reference = ConfigMapRef::local_files();
    let settings = Settings { follow_local: true, default_source: Some(reference.clone()), ..Settings::default() };
    let mut node = Node::with(settings);
    node.define_overlay("local-files").alias("local-files", "local");
    node.step(Input::Node(Assignment::Local)).edit("local-files", "1").pass(700);
    assert_eq!(
        (node.last_known_good(), node.starts.len()),
        ("local-files", 1),
        "proven as it runs: {:?}",
        node.events()
    );
    let edit = |node: &mut Node, text: &str, version: &str| {
        node.alias(&format!("local-files@{version}"), "local").define_overlay(&format!("local-files@{version}"));
        node.store.local = text.to_owned();
        let asked = |node: &Node| {
            let watches = |effect: &&Effect| matches!(effect, Effect::Watch(Some(map)) if *map == reference);
            node.effects.iter().filter(watches).count()
        };
        let before = asked(node);
        node.step(Input::LocalFilesTouched).pass(5);
        assert!(asked(node) > before, "they are read again");
        node.edit("local-files", version).pass(30);
    };
    edit(&mut node, "2", "2");
    assert_eq!((node.running(), node.starts.len()), (Some("local+2"), 2), "{:?}", node.events());
    node.ready_after = None;
    edit(&mut node, "3", "3");
    node.pass(130);
    node.ready_after = Some(1);
    node.pass(60);
    assert_eq!(node.running(), Some("local"), "the proven bytes: {:?}", node.events());
    // What the API server assigns goes before them.
    node.assign("b").pass(60);
    assert_eq!(node.running(), Some("b"));
}

/// Its own files earn the title first: until then they are what a failed candidate would go back to.
#[test]
fn followed_it_waits_until_there_is_something_to_go_back_to() {
    let mut node = following_itself();
    node.step(Input::Node(Assignment::Local)).edit("local-files", "1").pass(60);
    edit(&mut node, "2");
    node.edit("local-files", "2").pass(120);
    assert_eq!((node.running(), node.starts.len()), (Some(""), 1), "{:?}", node.events());
    node.pass(700);
    assert_eq!((node.running(), node.starts.len()), (Some("local+2"), 2), "{:?}", node.events());
}

/// Nobody writes them again: what was read of them before the proof is read once more after it.
#[test]
fn an_edit_of_before_the_proof_is_taken_up_after_it() {
    let mut node = following_itself();
    node.step(Input::Node(Assignment::Local)).edit("local-files", "1").pass(60);
    edit(&mut node, "2");
    node.pass(300);
    let watched = node.effects.len();
    node.pass(500);
    let is_watch = |effect: &Effect| matches!(effect, Effect::Watch(_));
    assert!(node.effects[watched..].iter().any(is_watch), "{:?}", node.events());
}

fn following_itself() -> Node {
    let settings =
        Settings { follow_local: true, default_source: Some(ConfigMapRef::local_files()), ..Settings::default() };
    let mut node = Node::with(settings);
    for version in ["local-files", "local-files@2", "local-files@3"] {
        node.define_overlay(version).alias(version, "local");
    }
    node
}

/// The supervisor dies, and the kubelet too, before the first version is proven and while it is edited.
#[test]
fn what_was_first_seen_is_gone_back_to_from_the_first_edit() {
    let mut node = following_itself();
    node.step(Input::Node(Assignment::Local)).edit("local-files", "1").pass(60);
    assert_eq!(node.disk().assigned.clone().unwrap().digest.unwrap().0, "local", "its bytes are kept");
    node.store.local = "2".to_owned();
    node.exit(1).pass(30);
    assert_eq!(node.running(), Some("local"), "{:?}", node.events());
    node.step(Input::LocalFilesTouched).edit("local-files", "2").pass(400);
    assert_eq!(node.running(), Some("local"), "it is not proven yet: {:?}", node.events());
    node.ready_after = None; // what comes next is fatal
    node.until_start(600).unwrap();
    assert_eq!(node.running(), Some("local+2"), "{:?}", node.events());
    node.pass(130);
    node.ready_after = Some(1);
    node.pass(60);
    assert_eq!(node.running(), Some("local"), "{:?}", node.events());
    assert_eq!(node.disk().last_known_good.clone().unwrap().digest.unwrap().0, "local");
}

/// Nobody knows the bytes that the kubelet was started with.
#[test]
fn an_edit_that_nobody_saw_begin_waits_for_a_restart() {
    let mut node = following_itself();
    node.pass(60);
    node.store.local = "2".to_owned();
    node.step(Input::Node(Assignment::Local)).edit("local-files", "2").pass(1000);
    assert_eq!((node.starts.len(), node.running()), (1, Some("")), "{:?}", node.events());
    let told = node.state.sync_error().map(|(_, why)| why.to_owned()).unwrap_or_default();
    assert!(told.contains("taken up once the kubelet was restarted"), "{told}");
    node.exit(1).pass(1500);
    let proven = node.disk().last_known_good.clone().unwrap();
    assert_eq!((node.starts.len(), proven.digest.unwrap().0), (2, "local+2".to_owned()), "{:?}", node.events());
    assert!(node.state.sync_error().is_none());
}

#[test]
fn a_hazard_is_accepted_for_one_content() {
    let mut node = following_itself();
    node.define("local-files", json!({}), ConfigAnnotations::default());
    let acknowledge = |node: &mut Node, class| node.operate(Command::Acknowledge { class });
    node.step(Input::Node(Assignment::Local)).edit("local-files", "1").pass(700);
    assert!(acknowledge(&mut node, HazardClass::Reboot).unwrap_err().contains("no hazard of the local files waits"));
    let edit = |node: &mut Node, version: &str, fields: Value| {
        node.define(&format!("local-files@{version}"), fields, ConfigAnnotations::default());
        node.store.local = version.to_owned();
        node.alias(&format!("local-files@{version}"), &format!("local+{version}"));
        node.step(Input::LocalFilesTouched).pass(5).edit("local-files", version).pass(30);
    };
    edit(&mut node, "2", json!({"cgroupDriver": "systemd"}));
    assert!(node.is_bad("local-files"), "{:?}", node.events());
    assert!(acknowledge(&mut node, HazardClass::Pods).unwrap_err().contains("reboot waits"));
    assert!(acknowledge(&mut node, HazardClass::Reboot).unwrap().contains("class reboot are accepted"));
    node.pass(700);
    let proven = node.disk().last_known_good.clone().unwrap();
    assert_eq!((proven.digest.unwrap().0.as_str(), node.is_bad("local-files")), ("local+2", false));
    edit(&mut node, "3", json!({"cgroupDriver": "cgroupfs"}));
    assert!(node.is_bad("local-files"), "it was accepted for another content: {:?}", node.events());
}

#[test]
fn what_an_operator_holds_is_told_though_it_is_followed() {
    let mut node = following();
    node.obey(Command::Freeze);
    edit(&mut node, "2");
    assert_eq!((told(&node), node.running()), (1, Some("a")), "{:?}", node.events());
    node.obey(Command::Thaw).pass(90);
    assert_eq!((told(&node), node.running()), (1, Some("a+2")), "{:?}", node.events());
}

#[test]
fn a_broken_file_of_a_followed_node_costs_no_restart() {
    let mut node = following();
    let starts = node.starts.len();
    node.store.local_fault = Some(torn());
    edit(&mut node, "2");
    assert!(node.state.sync_error().is_some(), "it is said");
    node.store.local_fault = None;
    edit(&mut node, "");
    assert!(node.state.sync_error().is_none());
    assert_eq!((node.starts.len(), node.running()), (starts, Some("a")));
    node.refuse("a+4");
    edit(&mut node, "4");
    assert_eq!((node.starts.len(), node.running()), (starts, Some("a")), "{:?}", node.events());
    assert!(node.is_bad("a"));
}

/// Nobody wants it any more: neither what waits for its moment, nor what was refused.
#[test]
fn an_edit_that_is_taken_back_is_not_made() {
    let settings = Settings { follow_local: true, courtesy: Duration::from_secs(300), ..Settings::default() };
    let mut node = Node::with(settings);
    node.define_overlay("a");
    prove(&mut node, "a");
    let starts = node.starts.len();
    node.streams = Some(1);
    edit(&mut node, "2");
    edit(&mut node, "");
    node.streams = Some(0);
    node.pass(60);
    assert_eq!((node.starts.len(), node.running()), (starts, Some("a")), "{:?}", node.events());
    node.refuse("a+4");
    edit(&mut node, "4");
    assert!(node.is_bad("a") && node.disk().assigned != node.disk().last_known_good);
    edit(&mut node, "");
    assert_eq!((&node.disk().assigned, node.starts.len()), (&node.disk().last_known_good, starts));

    let mut node = following_itself();
    node.step(Input::Node(Assignment::Local)).edit("local-files", "1").pass(700).refuse("local+2");
    for (text, version) in [("2", "2"), ("", "1")] {
        node.effects.clear();
        edit(&mut node, text);
        assert!(node.effects.iter().any(|effect| matches!(effect, Effect::Watch(Some(_)))), "{text:?} is read");
        node.edit("local-files", version).pass(30);
        let is_bad = node.disk().assigned != node.disk().last_known_good;
        assert_eq!((is_bad, node.starts.len()), (version == "2", 1), "{:?}", node.events());
    }
}

#[test]
fn a_store_that_does_not_answer_is_asked_again() {
    let mut node = Node::new();
    node.pass(60);
    (node.store.fails_after, node.store.fails, node.store.loses_answers) = (0, 1, true);
    edit(&mut node, "2");
    node.pass(120);
    let asked = node.effects.iter().filter(|it| matches!(it, Effect::Store(StoreRequest::Load(..)))).count();
    assert!(node.state.local_files_difference().is_some(), "asked {asked} times");
}
