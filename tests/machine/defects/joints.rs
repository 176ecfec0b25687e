//! What a hostile review found at other joints of two features: names, binaries, policy, disks that are slow.

use std::time::Duration;

use kubelet_config::policy::{PolicyState, Signed};
use kubelet_config::schema::UnknownFields;
use kubelet_config::source::ConfigAnnotations;
use kubelet_supervisor::machine::command::{Command, Target};
use kubelet_supervisor::machine::evidence::NodePressure;
use kubelet_supervisor::machine::status::node_status;
use kubelet_supervisor::machine::{Effect, Input, Settings, StoreRequest};
use serde_json::json;
use testkit::node::{Definition, Node};

use crate::{acknowledged, exits_at_its_start, minutes, prove, proven};

#[test]
fn systemds_watchdog_is_not_fed_for_a_hung_kubelet_that_the_monitor_started() {
    let watchdog = Some(Duration::from_secs(30));
    let mut node = Node::with(Settings { watchdog, hung_after: Duration::from_secs(300), ..Settings::default() });
    prove(&mut node, "a");
    node.store.unreadable.insert("a".into());
    node.start_unseen("a").replace_worker(Some("signal 9")).pass(minutes(10));
    (node.healthz, node.pings, node.contact, node.is_ready) = (Some(false), false, false, false);
    node.pass(minutes(10));
    let (from, starts) = (node.effects.len(), node.starts.len());
    node.pass(minutes(60));
    let fed = node.effects[from..].iter().filter(|it| **it == Effect::PingWatchdog).count();
    assert!(fed == 0 || node.starts.len() > starts, "fed {fed} times in an hour {:?}", node.state.kubelet());
}

#[test]
fn what_expired_before_it_ever_ran_is_not_taken_up_by_another_binary() {
    let mut node = Node::new();
    node.store.policy = PolicyState::InForce;
    prove(&mut node, "a");
    let expires = node.wall_nanos / 1_000_000_000 + 3600;
    let (key, key_id, pool) = ("ops".into(), "1".into(), "p".into());
    let signed = Signed { key, key_id, pool, sequence: 1, expires, key_not_after: None };
    node.store.signed.insert("b".to_owned(), signed);
    node.refuse("b").assign("b").pass(60);
    assert!(node.is_bad("b") && node.running() == Some("a"));
    node.pass(7200);
    node.refused.clear();
    node.kubelet = "kubelet 2".into();
    node.exit(137).pass(120);
    assert_eq!(node.running(), Some("a"), "it expired an hour ago: {:?}", node.events());
}

#[test]
fn a_hazard_of_one_content_is_not_held_against_the_next_of_the_same_name() {
    let mut node = Node::with(Settings { follow_local: true, ..Settings::default() });
    node.define_overlay("a");
    prove(&mut node, "a");
    let mut edit = |text: &str, fields: serde_json::Value| {
        let annotations = ConfigAnnotations { merge: Some("overlay".to_owned()), ..ConfigAnnotations::default() };
        node.configurations.insert("a".to_owned(), Definition { fields, annotations, overlay: true });
        node.store.local = text.to_owned();
        node.step(Input::LocalFilesTouched).pass(30);
        (node.running().map(str::to_owned), node_status(&node.state).condition.message)
    };
    let (running, message) = edit("2", json!({"cgroupDriver": "systemd"}));
    assert!(running.as_deref() == Some("a") && message.contains("cgroupDriver"), "{message}");
    let (running, message) = edit("3", json!({}));
    assert_eq!(running.as_deref(), Some("a+3"), "{message}");
}

#[test]
fn hazards_are_known_on_a_disk_that_is_a_second_late() {
    let mut node = Node::new();
    node.store.latency = Duration::from_secs(6);
    node.reboot().pass(minutes(5));
    assert_eq!(node.running(), Some(""));
    node.create("b", json!({"cgroupDriver": "systemd"}), ConfigAnnotations::default()).assign("b").pass(minutes(10));
    assert_eq!(node.running(), Some(""), "a live node does not change its cgroup driver: {:?}", node.events());
}

#[test]
fn equal_content_restarts_nothing_on_a_disk_that_is_a_second_late() {
    let mut node = Node::new();
    node.store.latency = Duration::from_secs(6);
    node.reboot().pass(minutes(5));
    let starts = node.starts.len();
    node.alias("own", "local").assign("own").pass(minutes(10));
    assert_eq!(node.starts.len(), starts, "{:?} {:?}", node.starts, node.events());
}

#[test]
fn what_the_policy_denies_goes_on_though_the_kubelet_was_just_restarting() {
    let told = |restarting: bool| {
        let mut node = Node::new();
        node.store.policy = PolicyState::InForce;
        prove(&mut node, "a");
        node.store.denied.insert("a".to_owned());
        if restarting {
            node.exit(1);
        }
        node.step(Input::PolicyChanged).pass(60);
        assert_eq!(node.running(), Some("a"));
        (node_status(&node.state).condition.reason, node.events().contains(&"KubeletConfigRejected"))
    };
    assert_eq!(told(true), told(false));
}

#[test]
fn a_refusal_is_held_against_the_binary_that_refused() {
    let mut node = proven("a");
    node.preflight_answers = false;
    node.refuse("b").assign("b").pass(1);
    node.kubelet = "kubelet 2".into(); // the package is upgraded meanwhile
    node.step(Input::LocalFilesTouched).pass(5);
    node.end_preflight();
    node.preflight_answers = true;
    node.refused.clear(); // the new one takes it
    node.pass(5).exit(137).pass(minutes(2));
    assert_eq!(node.running(), Some("b"), "{:?} {:?}", node.events(), node.disk().bad);
}

#[test]
fn a_verdict_is_the_verdict_of_the_binary_that_gave_it() {
    let mut node = proven("a");
    node.preflight_answers = false;
    node.assign("b").pass(1);
    node.kubelet = "kubelet 2".into(); // the package is upgraded meanwhile
    node.step(Input::LocalFilesTouched).pass(5);
    node.end_preflight();
    node.preflight_answers = true;
    node.refuse("b"); // the new one does not take it
    node.end_preflight();
    let starts = node.starts.len();
    node.pass(minutes(2));
    assert_eq!((node.running(), node.starts.len()), (Some("a"), starts), "{:?} {:?}", node.events(), node.preflights);
}

#[test]
fn equal_content_is_not_rolled_back_on_a_slow_disk() {
    let mut node = Node::new();
    node.store.local = "edited".to_owned();
    node.alias("b", "local+edited");
    node.store.latency = Duration::from_secs(6);
    node.assign("b").pass(120);
    assert_eq!(node.running(), Some("local+edited"));
    node.healthz = Some(false);
    node.pass(120);
    node.healthz = Some(true);
    node.pass(60);
    assert!(!node.events().contains(&"KubeletConfigRolledBack"), "from a content to the same content");
}

#[test]
fn what_killed_the_kubelet_is_not_forgotten_for_what_was_only_refused() {
    let mut node = proven("a");
    exits_at_its_start(&mut node, "x");
    node.pass(60);
    assert!(node.is_bad("x"));
    for number in 0..40 {
        node.refuse(&format!("y{number}")).assign(&format!("y{number}")).pass(5);
    }
    let starts = node.starts.len();
    node.assign("x").pass(60);
    assert_eq!(node.starts.len(), starts, "{:?}", &node.starts[starts..]);
}

/// Judged by what ran then, which has gone since.
#[test]
fn a_hazard_is_asked_for_again_when_something_else_runs() {
    let mut node = proven("a");
    node.define("b", json!({"cgroupDriver": "systemd"}), acknowledged(Some("cgroupDriver"))).assign("b").pass(60);
    assert_eq!(node.running(), Some("b"), "{:?}", node.events());
    node.assign("c").pass(minutes(30));
    assert_eq!(node.running(), Some("c"), "{:?}", node_status(&node.state).condition);
}

#[test]
fn unknown_fields_are_asked_for_again_when_the_option_is_another() {
    let unknown_fields = UnknownFields::Refuse;
    let mut node = Node::with(Settings { unknown_fields, ..Settings::default() });
    node.step(Input::KubeletVersion("v1.20.2".to_owned()));
    node.define("b", json!({"maxpods": 1}), ConfigAnnotations::default()).assign("b").pass(60);
    assert_eq!(node.running(), Some(""), "{:?}", node.events());
    node.state.settings.unknown_fields = UnknownFields::Warn; // as after a restart with another option
    node.step(Input::PolicyChanged).pass(60);
    assert_eq!(node.running(), Some("b"), "{:?}", node_status(&node.state).condition);
}

#[test]
fn seeing_the_same_version_again_does_not_wipe_the_pause() {
    let saves = |seen_again: bool| {
        let mut node = proven("a");
        node.store.full = true;
        node.assign("b");
        let before = node.effects.len();
        for _ in 0..300 {
            if seen_again {
                node.edit("b", "1");
            }
            node.pass(2);
        }
        let is_save = |it: &&Effect| matches!(it, Effect::Store(StoreRequest::Save(..) | StoreRequest::SaveAnew(..)));
        node.effects[before..].iter().filter(is_save).count()
    };
    assert!(saves(true) <= saves(false) + 5, "{} and {}", saves(true), saves(false));
}

/// The kubelet's judge takes longer than anybody waits for it; meanwhile the Node is asked to judge something else.
#[test]
fn a_late_verdict_is_not_lost_to_a_preflight_on_request() {
    let mut node = proven("a");
    node.create("c", json!({}), ConfigAnnotations::default());
    node.pressure = [NodePressure::Disk].into();
    node.pass(10).refuse("b").preflight_answers = false;
    node.assign("b").pass(150);
    assert!(node.state.waiting().is_some(), "it is waited for no longer");
    node.request(Some("n/c")).pass(30);
    node.preflight_answers = true;
    node.end_preflight().pass(30);
    node.pressure.clear();
    node.pass(minutes(5));
    assert!(!node.starts.iter().any(|name| name == "b"), "refused, had it been asked: {:?}", node.preflights);
}

/// How often last known good is judged within twenty seconds, each time with the same refusal.
fn judged_over_and_over(node: &mut Node) -> usize {
    let before = node.preflights.len();
    for _ in 0..20 {
        node.end_preflight().pass(1);
    }
    node.preflights[before..].iter().filter(|judged| *judged == "a").count()
}

/// The package is upgraded while x is on trial; the new binary does not take last known good.
#[test]
fn the_way_back_that_the_next_binary_refuses_is_refused_once() {
    let mut node = proven("a");
    node.assign("x").pass(60);
    node.kubelet = "kubelet 2".into();
    node.refuse("a").preflight_answers = false;
    (node.healthz, node.pings) = (Some(false), false);
    while !node.events().contains(&"KubeletConfigRolledBack") {
        node.pass(1);
    }
    let judged = judged_over_and_over(&mut node);
    assert!(judged <= 1, "{judged} times: {:?}", node.events());
}

/// Last known good could not be read for a while; the package is upgraded meanwhile.
#[test]
fn a_rung_that_can_be_read_again_is_refused_once_by_the_next_binary() {
    let mut node = proven("a");
    node.store.unreadable.insert("a".into());
    node.exit(1).pass(5);
    assert_eq!(node.running(), Some(""), "{:?}", node.events());
    node.kubelet = "kubelet 2".into();
    node.refuse("a").preflight_answers = false;
    node.store.unreadable.clear();
    let before = node.preflights.len();
    while node.preflights.len() == before {
        node.pass(1);
    }
    let judged = judged_over_and_over(&mut node);
    assert!(judged <= 1, "{judged} times: {:?}", node.events());
}

/// An operator goes back to an earlier version after an upgrade of the package.
#[test]
fn what_is_pinned_is_refused_once_by_the_next_binary() {
    let mut node = proven("a");
    prove(&mut node, "b");
    node.kubelet = "kubelet 2".into();
    node.refuse("a").preflight_answers = false;
    node.obey(Command::Pin { to: Some(Target::Version { uid: "uid-a".into(), resource_version: "1".into() }) });
    let judged = judged_over_and_over(&mut node);
    assert!(judged <= 1, "{judged} times: {:?}", node.events());
}
