//! What operators and administrators do about a trial: confirm, pin, freeze, roll back, acknowledge.

use kubelet_config::pods::PodSummary;
use kubelet_config::schema::UnknownFields;
use kubelet_config::source::ConfigAnnotations;
use kubelet_supervisor::machine::command::{Command, Target};
use kubelet_supervisor::machine::{Effect, Input, Settings, StoreRequest};
use serde_json::json;

use crate::{acknowledged, awaiting, confirmed, minutes, pod, prove, proven};
use testkit::node::{Node, source, torn};

#[test]
fn what_nobody_confirms_is_rolled_back() {
    let mut node = awaiting();
    assert!(node.message("KubeletConfigAwaitsConfirmation").contains("30m"));
    assert_eq!((node.active(), node.last_known_good()), ("a", ""));
    node.pass(minutes(27));
    assert_eq!(node.active(), "a");
    node.pass(minutes(3));
    assert_eq!(node.active(), "");
    assert!(node.message("KubeletConfigRolledBack").contains("nobody confirmed"));
    node.pass(minutes(10));
    assert!(node.is_bad("a"), "no control test for that");
}

#[test]
fn what_somebody_confirms_is_last_known_good() {
    let mut node = awaiting();
    node.obey(Command::Confirm { extend_seconds: Some(minutes(60)) }).pass(minutes(50));
    assert_eq!(node.active(), "a", "the deadline was moved");
    // A reboot neither loses the deadline nor starts it anew.
    node.reboot().pass(minutes(5));
    assert_eq!(node.active(), "a");
    node.obey(Command::Confirm { extend_seconds: None }).pass(minutes(11));
    assert_eq!(node.last_known_good(), "a");
    assert!(node.operate(Command::Confirm { extend_seconds: None }).is_err());
}

/// One write for both: a crash right after the answer finds it.
#[test]
fn what_is_confirmed_is_last_known_good_when_that_is_answered() {
    let mut node = awaiting();
    (node.store.fails_after, node.store.fails) = (1, 1000);
    node.obey(Command::Confirm { extend_seconds: None });
    assert_eq!(node.state.saved().last_known_good.as_ref().map(|it| it.source.reference.name.as_str()), Some("a"));
    assert_eq!(node.events().last(), Some(&"KubeletConfigProven"));
}

#[test]
fn what_is_confirmed_right_after_a_boot_is_proven_once_it_is_healthy() {
    let mut node = awaiting();
    node.reboot();
    (node.api, node.contact) = (false, false);
    node.obey(Command::Confirm { extend_seconds: None }).pass(60);
    assert_eq!(node.last_known_good(), "", "nobody sees its Node");
    (node.api, node.contact) = (true, true);
    node.pass(60);
    assert_eq!(node.last_known_good(), "a");
}

#[test]
fn a_confirmation_deadline_survives_reboots() {
    let mut node = awaiting();
    node.pass(minutes(20)).reboot().pass(minutes(7));
    assert_eq!(node.active(), "a");
    node.pass(minutes(5));
    assert_eq!(node.active(), "", "{:?}", node.disk().phase);
}

/// What would be gone back to is not known.
#[test]
fn a_confirmation_is_waited_for_though_local_cannot_be_read() {
    let mut node = Node::new();
    node.define("a", json!({}), confirmed("30m"));
    node.store.local_fault = Some(torn());
    node.assign("a").pass(minutes(12));
    assert!(node.message("KubeletConfigAwaitsConfirmation").contains("30m"));
    node.pass(minutes(2));
    assert_eq!((node.active(), node.last_known_good()), ("a", ""));
}

#[test]
fn a_pin_holds_whatever_is_assigned() {
    let mut node = proven("a");
    node.obey(Command::Pin { to: Some(Target::Local) }).pass(5);
    assert_eq!(node.active(), "");
    node.assign("b").pass(minutes(20));
    assert_eq!(node.active(), "", "b waits");
    node.boot().pass(10).assign("b").pass(10);
    assert_eq!(node.active(), "", "a pin outlives us");
    node.obey(Command::Unpin).pass(5);
    assert_eq!(node.active(), "b");
    assert!(node.operate(Command::Unpin).is_err());
}

#[test]
fn rollback_leaves_what_runs_and_remembers() {
    let mut node = Node::new();
    node.assign("a").pass(60).obey(Command::Rollback { to: Target::Lkg }).pass(minutes(20));
    assert_eq!(node.active(), "");
    assert!(node.operate(Command::Rollback { to: Target::Lkg }).unwrap_err().contains("last known good already"));
    node.obey(Command::Retry).pass(10);
    assert_eq!(node.active(), "a");
    assert!(node.operate(Command::Retry).unwrap_err().contains("nothing is held against"));
}

#[test]
fn rollback_to_an_older_proven_version() {
    let mut node = Node::new();
    for name in ["a", "b", "c"] {
        prove(&mut node, name);
    }
    let to = |version: &str| Command::Rollback { to: version.parse().unwrap() };
    assert!(node.operate(to("uid-x/1")).unwrap_err().contains("uid-a/1"));
    node.obey(to("uid-a/1")).pass(10);
    assert_eq!(node.active(), "a");
    let kept = node.effects.iter().rev().find_map(|effect| match effect {
        Effect::Store(StoreRequest::Collect(keep, _)) => Some(keep.clone()),
        _ => None,
    });
    assert!(kept.unwrap().contains(&source("b")), "still to be had");
}

/// The runtime may be stopped before us, and the kubelet with it.
#[test]
fn nothing_is_started_while_the_system_goes_down() {
    for on_trial in [false, true] {
        let mut node = Node::new();
        if on_trial {
            node.assign("a").pass(30);
        }
        let (starts, tries) = (node.starts.len(), node.disk().phase.attempt().map(|attempt| attempt.tries));
        node.environment.shutting_down = true;
        node.exit(1).pass(25);
        assert_eq!(node.starts.len(), starts, "on trial: {on_trial}");
        assert_eq!(node.disk().phase.attempt().map(|attempt| attempt.tries), tries);
        assert!(!node.events().contains(&"KubeletConfigRolledBack"), "{:?}", node.events());
        // Somebody called it off.
        node.environment.shutting_down = false;
        node.pass(15);
        assert_eq!(node.starts.len(), starts + 1, "on trial: {on_trial}");
        assert!(!node.is_bad("a"));
    }
}

#[test]
fn a_freeze_takes_up_nothing_and_judges_on() {
    let mut node = Node::new();
    node.assign("a").pass(30).obey(Command::Freeze);
    assert!(node.operate(Command::Freeze).is_err());
    node.assign("b").pass(60);
    assert_eq!(node.active(), "a");
    node.pings = false;
    node.pass(100);
    assert_eq!(node.active(), "", "a trial under way goes on");
    node.pings = true;
    node.obey(Command::Thaw).pass(5);
    assert_eq!(node.active(), "b");
}

#[test]
fn hazards_are_refused_unless_acknowledged() {
    let mut node = Node::new();
    node.define("a", json!({"cgroupDriver": "systemd"}), ConfigAnnotations::default()).assign("a").pass(5);
    assert_eq!(node.active(), "");
    let message = node.message("KubeletConfigRejected");
    assert!(message.contains("cgroupDriver") && message.contains("kubelet-supervisor.io/acknowledge"), "{message}");
    node.define("b", json!({"cgroupDriver": "systemd"}), acknowledged(Some("cgroupDriver"))).assign("b").pass(5);
    assert_eq!(node.active(), "b");
    assert_eq!(node.starts, ["", "b"]);
}

#[test]
fn fields_of_no_effect_are_refused_on_demand() {
    let misspelt = json!({"evictionhard": {"memory.available": "1Gi"}, "maxPods": 60});
    for (unknown_fields, active, starts) in
        [(UnknownFields::Warn, "a", ["", "a"].as_slice()), (UnknownFields::Refuse, "", &[""])]
    {
        let mut node = Node::with(Settings { unknown_fields, ..Settings::default() });
        node.define("a", misspelt.clone(), ConfigAnnotations::default()).assign("a").pass(5);
        assert_eq!(node.active(), active, "{unknown_fields:?}");
        assert_eq!(node.starts, starts, "{unknown_fields:?}");
        let line = "evictionhard: did you mean evictionHard?";
        let logged = |effect: &Effect| matches!(effect, Effect::Log(_, text) if text.contains(line));
        match unknown_fields {
            UnknownFields::Warn => assert!(node.effects.iter().any(logged), "{:?}", node.effects),
            UnknownFields::Refuse => assert!(node.message("KubeletConfigRejected").contains(line)),
        }
    }
}

/// What has been proven is not refused for what it always had.
#[test]
fn last_known_good_keeps_its_fields_of_no_effect() {
    let mut node = Node::with(Settings { unknown_fields: UnknownFields::Refuse, ..Settings::default() });
    let later = json!({"maxParallelImagePulls": 3});
    for (version, name, active) in [("v1.20.2", "a", ""), ("v1.29.3", "b", "b"), ("v1.20.2", "c", "b")] {
        node.define(name, later.clone(), ConfigAnnotations::default());
        node.step(Input::KubeletVersion(version.to_owned())).assign(name).pass(minutes(11));
        assert_eq!(node.active(), active, "{version}");
    }
    let message = node.message("KubeletConfigRejected");
    assert!(message.contains("maxParallelImagePulls: since 1.27, this kubelet is 1.20"), "{message}");
    node.assign("b").pass(5);
    assert_eq!((node.active(), node.last_known_good()), ("b", "b"));
    assert_eq!(node.starts, ["", "b"]);
}

#[test]
fn the_way_back_to_last_known_good_needs_no_acknowledgement() {
    let mut node = proven("a");
    node.define("b", json!({"cpuManagerPolicy": "static"}), acknowledged(Some("all"))).assign("b").pass(5);
    assert_eq!(node.active(), "b");
    node.assign("a").pass(5);
    assert_eq!(node.active(), "a");
    let [.., aside, back] = node.store.swaps.as_slice() else { panic!("{:?}", node.store.swaps) };
    assert_ne!(aside.policy, back.policy);
    assert!(!aside.restore && back.restore, "b begins afresh, a finds its files again: {:?}", node.store.swaps);
}

#[test]
fn more_pods_than_places_are_named() {
    let mut node = Node::new();
    node.inventory.pods = (0..5)
        .map(|number| PodSummary {
            created: format!("2026-01-0{}T00:00:00Z", number + 1),
            ..pod(&format!("pod-{number}"))
        })
        .collect();
    node.define("a", json!({"maxPods": 3}), ConfigAnnotations::default()).assign("a").pass(5);
    assert_eq!(node.active(), "");
    let message = node.message("KubeletConfigRejected");
    assert!(message.contains("pod-3") && message.contains("pod-4") && !message.contains("pod-0"), "{message}");
    node.inventory.pods.truncate(3);
    node.obey(Command::Retry).pass(5);
    assert_eq!(node.active(), "a", "drained, and asked for again");
}

#[test]
fn the_kubelets_own_log_is_kept_and_holds_no_secrets() {
    let mut node = Node::new();
    node.log_tail = vec![
        "I1121 10:00:00.000000 1 flags.go:1] StaticPodURLHeader:map[Authorization:[Bearer hunter2]]".to_owned(),
        "F1121 10:00:00.000000 1 server.go:269] failed to run Kubelet: running with swap on".to_owned(),
    ];
    node.ready_after = None;
    node.assign("a");
    node.ready_after = Some(1);
    node.exit(255).pass(60);
    let bad = node.disk().bad.last().unwrap();
    assert!(bad.detail.contains("running with swap on") && bad.detail.contains("exit code 255"), "{}", bad.detail);
    assert_eq!(bad.reason.label(), "exit-before-ready");
    let everything = format!("{:?} {:?} {:?}", node.effects, node.disk(), node.state);
    assert!(!everything.contains("hunter2"));
}

#[test]
fn what_came_up_while_it_was_weighed_is_not_started_again() {
    let mut node = Node::new();
    node.start_fails = true;
    node.assign("a").pass(30);
    assert_eq!((node.active(), node.starts.as_slice()), ("a", ["", "a"].map(str::to_owned).as_slice()));
}

#[test]
fn a_pin_stops_a_switch_that_is_on_its_way() {
    let mut node = proven("a");
    node.is_deaf = true;
    node.assign("b").pass(3).obey(Command::Pin { to: None });
    node.is_deaf = false;
    node.exit(0);
    assert_eq!(node.active(), "a");
    node.pass(60);
    assert_eq!(node.starts, ["", "a", "a"]);
}

#[test]
fn an_unpin_stops_a_switch_that_is_on_its_way() {
    let mut node = proven("a");
    prove(&mut node, "b");
    node.is_deaf = true;
    node.obey(Command::Pin { to: Some("uid-a/1".parse().unwrap()) }).pass(3).obey(Command::Unpin);
    node.is_deaf = false;
    node.exit(0).pass(60);
    assert_eq!(node.starts, ["", "a", "b", "b"], "no record names a any more");
}
