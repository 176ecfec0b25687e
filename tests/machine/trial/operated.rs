//! What operators and administrators do about a trial: confirm, pin, freeze, roll back, acknowledge.

use kubelet_config::pods::PodSummary;
use kubelet_config::source::ConfigAnnotations;
use kubelet_supervisor::machine::Effect;
use kubelet_supervisor::machine::command::{Command, Target};
use serde_json::json;

use super::minutes;
use testkit::node::{Node, source};

testkit::scenarios!(
    what_nobody_confirms_is_rolled_back,
    what_somebody_confirms_is_last_known_good,
    a_confirmation_deadline_survives_reboots,
    a_pin_holds_whatever_is_assigned,
    rollback_leaves_what_runs_and_remembers,
    rollback_to_an_older_proven_version,
    nothing_is_started_while_the_system_goes_down,
    a_freeze_takes_up_nothing_and_judges_on,
    hazards_are_refused_unless_acknowledged,
    the_way_back_to_last_known_good_needs_no_acknowledgement,
    more_pods_than_places_are_named,
    the_kubelets_own_log_is_kept_and_holds_no_secrets,
    what_came_up_while_it_was_weighed_is_not_started_again,
    a_pin_stops_a_switch_that_is_on_its_way,
    an_unpin_stops_a_switch_that_is_on_its_way,
);

fn confirmed(within: &str) -> ConfigAnnotations {
    ConfigAnnotations { confirm_within: Some(within.to_owned()), ..ConfigAnnotations::default() }
}

fn what_nobody_confirms_is_rolled_back() {
    let mut node = Node::new();
    node.define("a", json!({}), confirmed("30m"));
    node.assign("a");
    node.pass(minutes(12));
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

fn what_somebody_confirms_is_last_known_good() {
    let mut node = Node::new();
    node.define("a", json!({}), confirmed("30m"));
    node.assign("a");
    node.pass(minutes(12));
    node.operate(Command::Confirm { extend_seconds: Some(minutes(60)) }).unwrap();
    node.pass(minutes(50));
    assert_eq!(node.active(), "a", "the deadline was moved");
    // A reboot neither loses the deadline nor starts it anew.
    node.reboot();
    node.pass(minutes(5));
    assert_eq!(node.active(), "a");
    node.operate(Command::Confirm { extend_seconds: None }).unwrap();
    node.pass(minutes(11));
    assert_eq!(node.last_known_good(), "a");
    assert!(node.operate(Command::Confirm { extend_seconds: None }).is_err());
}

fn a_confirmation_deadline_survives_reboots() {
    let mut node = Node::new();
    node.define("a", json!({}), confirmed("30m"));
    node.assign("a");
    node.pass(minutes(12));
    node.pass(minutes(20));
    node.reboot();
    node.pass(minutes(7));
    assert_eq!(node.active(), "a");
    node.pass(minutes(5));
    assert_eq!(node.active(), "", "{:?}", node.disk.local_state.attempt);
}

fn a_pin_holds_whatever_is_assigned() {
    let mut node = Node::new();
    node.assign("a");
    node.pass(minutes(11));
    node.operate(Command::Pin { to: Some(Target::Local) }).unwrap();
    node.pass(5);
    assert_eq!(node.active(), "");
    node.assign("b");
    node.pass(minutes(20));
    assert_eq!(node.active(), "", "b waits");
    node.boot();
    node.pass(10);
    node.assign("b");
    node.pass(10);
    assert_eq!(node.active(), "", "a pin outlives us");
    node.operate(Command::Unpin).unwrap();
    node.pass(5);
    assert_eq!(node.active(), "b");
    assert!(node.operate(Command::Unpin).is_err());
}

fn rollback_leaves_what_runs_and_remembers() {
    let mut node = Node::new();
    node.assign("a");
    node.pass(60);
    node.operate(Command::Rollback { to: Target::Lkg }).unwrap();
    node.pass(minutes(20));
    assert_eq!(node.active(), "");
    assert!(node.operate(Command::Rollback { to: Target::Lkg }).unwrap_err().contains("last known good already"));
    node.operate(Command::Retry).unwrap();
    node.pass(10);
    assert_eq!(node.active(), "a");
    assert!(node.operate(Command::Retry).unwrap_err().contains("nothing is held against"));
}

fn rollback_to_an_older_proven_version() {
    let mut node = Node::new();
    for name in ["a", "b", "c"] {
        node.assign(name);
        node.pass(minutes(11));
    }
    let to = |version: &str| Command::Rollback { to: version.parse().unwrap() };
    assert!(node.operate(to("uid-x/1")).unwrap_err().contains("uid-a/1"));
    node.operate(to("uid-a/1")).unwrap();
    node.pass(10);
    assert_eq!(node.active(), "a");
    let kept = node.effects.iter().rev().find_map(|effect| match effect {
        Effect::Collect(keep) => Some(keep.clone()),
        _ => None,
    });
    assert!(kept.unwrap().contains(&source("b")), "still to be had");
}

/// The runtime may be stopped before us, and the kubelet with it.
fn nothing_is_started_while_the_system_goes_down() {
    for on_trial in [false, true] {
        let mut node = Node::new();
        if on_trial {
            node.assign("a");
            node.pass(30);
        }
        let (starts, tries) = (node.starts.len(), node.disk.local_state.attempt.as_ref().map(|attempt| attempt.tries));
        node.environment.shutting_down = true;
        node.exit(1);
        node.pass(25);
        assert_eq!(node.starts.len(), starts, "on trial: {on_trial}");
        assert_eq!(node.disk.local_state.attempt.as_ref().map(|attempt| attempt.tries), tries);
        assert!(!node.events().contains(&"KubeletConfigRolledBack"), "{:?}", node.events());
        // Somebody called it off.
        node.environment.shutting_down = false;
        node.pass(15);
        assert_eq!(node.starts.len(), starts + 1, "on trial: {on_trial}");
        assert!(!node.is_bad("a"));
    }
}

fn a_freeze_takes_up_nothing_and_judges_on() {
    let mut node = Node::new();
    node.assign("a");
    node.pass(30);
    node.operate(Command::Freeze).unwrap();
    assert!(node.operate(Command::Freeze).is_err());
    node.assign("b");
    node.pass(60);
    assert_eq!(node.active(), "a");
    node.pings = false;
    node.pass(100);
    assert_eq!(node.active(), "", "a trial under way goes on");
    node.pings = true;
    node.operate(Command::Thaw).unwrap();
    node.pass(5);
    assert_eq!(node.active(), "b");
}

fn hazards_are_refused_unless_acknowledged() {
    let mut node = Node::new();
    node.define("a", json!({"cgroupDriver": "systemd"}), ConfigAnnotations::default());
    node.assign("a");
    node.pass(5);
    assert_eq!(node.active(), "");
    let message = node.message("KubeletConfigRejected");
    assert!(message.contains("cgroupDriver") && message.contains("kubelet-supervisor.io/acknowledge"), "{message}");
    let annotations =
        ConfigAnnotations { acknowledge: Some("cgroupDriver".to_owned()), ..ConfigAnnotations::default() };
    node.define("b", json!({"cgroupDriver": "systemd"}), annotations);
    node.assign("b");
    node.pass(5);
    assert_eq!(node.active(), "b");
    assert_eq!(node.starts, ["", "b"]);
}

fn the_way_back_to_last_known_good_needs_no_acknowledgement() {
    let mut node = Node::new();
    node.assign("a");
    node.pass(minutes(11));
    let annotations = ConfigAnnotations { acknowledge: Some("all".to_owned()), ..ConfigAnnotations::default() };
    node.define("b", json!({"cpuManagerPolicy": "static"}), annotations);
    node.assign("b");
    node.pass(5);
    assert_eq!(node.active(), "b");
    node.assign("a");
    node.pass(5);
    assert_eq!(node.active(), "a");
    let files: Vec<_> = node
        .effects
        .iter()
        .filter_map(|effect| match effect {
            Effect::Start(_, files) => files.as_ref().map(|files| (files.policy.clone(), files.restore)),
            _ => None,
        })
        .collect();
    let [local, a, b, back] = files.as_slice() else { panic!("{files:?}") };
    assert!(local.0 == a.0 && a.0 == back.0 && b.0 != a.0, "{files:?}");
    assert!(!b.1 && back.1, "b begins afresh, a finds its files again");
}

fn more_pods_than_places_are_named() {
    let mut node = Node::new();
    node.inventory.pods = (0..5)
        .map(|number| PodSummary {
            uid: number.to_string(),
            name: format!("default/pod-{number}"),
            created: format!("2026-01-0{}T00:00:00Z", number + 1),
            phase: "Running".to_owned(),
            ..PodSummary::default()
        })
        .collect();
    node.define("a", json!({"maxPods": 3}), ConfigAnnotations::default());
    node.assign("a");
    node.pass(5);
    assert_eq!(node.active(), "");
    let message = node.message("KubeletConfigRejected");
    assert!(message.contains("pod-3") && message.contains("pod-4") && !message.contains("pod-0"), "{message}");
    node.inventory.pods.truncate(3);
    node.operate(Command::Retry).unwrap();
    node.pass(5);
    assert_eq!(node.active(), "a", "drained, and asked for again");
}

fn the_kubelets_own_log_is_kept_and_holds_no_secrets() {
    let mut node = Node::new();
    node.log_tail = vec![
        "I1121 10:00:00.000000 1 flags.go:1] StaticPodURLHeader:map[Authorization:[Bearer hunter2]]".to_owned(),
        "F1121 10:00:00.000000 1 server.go:269] failed to run Kubelet: running with swap on".to_owned(),
    ];
    node.ready_after = None;
    node.assign("a");
    node.exit(255);
    let bad = node.disk.local_state.bad.last().unwrap();
    assert!(bad.detail.contains("running with swap on") && bad.detail.contains("exit code 255"), "{}", bad.detail);
    assert_eq!(bad.reason, "exit-before-ready");
    let everything = format!("{:?} {:?} {:?}", node.effects, node.disk, node.state);
    assert!(!everything.contains("hunter2"));
}

fn what_came_up_while_it_was_weighed_is_not_started_again() {
    let mut node = Node::new();
    (node.queries_answered, node.start_fails) = (false, true);
    node.assign("a");
    node.pass(30);
    assert_eq!((node.active(), node.starts.as_slice()), ("a", ["", "a"].map(str::to_owned).as_slice()));
}

fn a_pin_stops_a_switch_that_is_on_its_way() {
    let mut node = Node::new();
    node.assign("a");
    node.pass(minutes(11));
    node.is_deaf = true;
    node.assign("b");
    node.pass(3);
    node.operate(Command::Pin { to: None }).unwrap();
    node.is_deaf = false;
    node.exit(0);
    assert_eq!(node.active(), "a");
    node.pass(60);
    assert_eq!(node.starts, ["", "a", "a"]);
}

fn an_unpin_stops_a_switch_that_is_on_its_way() {
    let mut node = Node::new();
    for name in ["a", "b"] {
        node.assign(name);
        node.pass(minutes(11));
    }
    node.is_deaf = true;
    node.operate(Command::Pin { to: Some("uid-a/1".parse().unwrap()) }).unwrap();
    node.pass(3);
    node.operate(Command::Unpin).unwrap();
    node.is_deaf = false;
    node.exit(0);
    node.pass(60);
    assert_eq!(node.starts, ["", "a", "b", "b"], "no record names a any more");
}
