//! The trial, scenario by scenario, on the bare machine: what is judged, what is not, who is
//! blamed, and what an operator can do about it.

mod operated;

use std::collections::BTreeSet;
use std::time::Duration;

use kubelet_config::pods::PodSummary;
use kubelet_supervisor::machine::evidence::{Signal, Suspension};
use kubelet_supervisor::machine::records::Phase;
use kubelet_supervisor::machine::status::node_status;
use kubelet_supervisor::machine::{Effect, Settings};
use serde_json::json;
use testkit::node::Node;

use crate::{acknowledged, exits_at_its_start, minutes, pod, proven};

#[test]
fn every_signal_that_was_good_is_on_the_baseline() {
    let mut node = Node::new();
    node.assign("a");
    let baseline = node.disk().phase.attempt().unwrap().baseline.clone().unwrap();
    assert_eq!(baseline, Signal::ALL.into(), "{baseline:?}");
    node.pass(minutes(11));
    assert_eq!((node.active(), node.last_known_good()), ("a", "a"));
    assert_eq!(node.starts, ["", "a"]);
}

#[test]
fn a_signal_that_was_bad_before_counts_for_nothing() {
    let mut node = Node::new();
    (node.contact, node.pings, node.is_ready) = (false, false, false);
    node.pass(minutes(2)).assign("a");
    let baseline = node.disk().phase.attempt().unwrap().baseline.clone().unwrap();
    for signal in [Signal::Lease, Signal::Watchdog, Signal::NodeReady] {
        assert!(!baseline.contains(&signal), "{signal:?}");
    }
    node.pass(minutes(11));
    assert_eq!(node.last_known_good(), "a", "{:?}", node.events());
}

#[test]
fn a_change_waits_until_the_api_server_answers() {
    let mut node = Node::new();
    node.queries_answered = false;
    node.assign("a").pass(minutes(5));
    assert_eq!(node.starts, [""], "without a baseline in contact nothing is switched to");
    node.queries_answered = true;
    node.pass(60);
    assert_eq!(node.active(), "a");
    node.pass(minutes(11));
    assert_eq!(node.last_known_good(), "a");
}

/// The kubelet reaches no API server with what runs now.
fn cut_off(node: &mut Node, ends: bool) {
    let name = node.running().unwrap_or_default().to_owned();
    node.cuts_api = !ends;
    node.cuts_contact = if ends { BTreeSet::new() } else { BTreeSet::from([name]) };
}

/// With last known good it is there again: the configuration was to blame.
#[test]
fn a_signal_of_the_baseline_that_is_lost_is_waited_for_and_then_fails_the_trial() {
    type Case = (fn(&mut Node, bool), u64, u64, &'static [&'static str]);
    const ERROR: &str = "(the kubelet's last error: no serializers registered)";
    let cases: [Case; 4] = [
        (|node, good| cut_off(node, good), 0, 85, &["the API server could not be reached"]),
        (|node, good| node.is_ready = good, 0, 85, &["has not been Ready", "PLEG is not healthy", ERROR]),
        // The API server answers us, and hears nothing from the kubelet.
        (|node, good| node.contact = good, 0, 85, &[]),
        (|node, good| node.pings = good, 60, 45, &["WATCHDOG=1"]),
    ];
    for (signal, good_for, patience, said) in cases {
        let mut node = Node::new();
        node.log_tail = vec!["E1121 10:00:00.000000 1 controller.go:187] no serializers registered".to_owned()];
        node.assign("a").pass(good_for);
        signal(&mut node, false);
        node.pass(patience);
        assert_eq!(node.active(), "a", "{said:?}");
        node.pass(35);
        assert_eq!(node.active(), "", "{said:?}: {:?}", node.events());
        let message = node.message("KubeletConfigRolledBack");
        assert!(said.iter().all(|part| message.contains(part)), "{message}");
        signal(&mut node, true);
        node.pass(minutes(2));
        assert!(node.is_bad("a"), "{said:?}: {:?}", node.events());
        assert_eq!(node.starts, ["", "a", ""]);
    }
}

#[test]
fn the_api_server_goes_away_in_mid_trial_and_no_version_is_bad() {
    let mut node = Node::new();
    node.assign("a").pass(minutes(5));
    node.api = false;
    node.pass(minutes(30));
    assert_eq!((node.active(), node.state.suspended()), ("a", Some(Suspension::ApiServer)));
    assert_eq!(node.last_known_good(), "", "the clock stands still");
    node.api = true;
    node.pass(minutes(4));
    assert_eq!(node.last_known_good(), "", "four and five are less than ten");
    node.pass(minutes(2));
    assert_eq!(node.last_known_good(), "a", "what was earned before counts");
    assert_eq!(node.starts, ["", "a"]);
}

/// From the first second on, and beyond every patience.
#[test]
fn an_overloaded_api_server_is_nobodys_fault() {
    let mut node = Node::new();
    node.assign("a");
    node.busy = true;
    node.pass(120);
    node.api = false; // it does not even answer any more, as happens to it
    node.busy = false;
    node.pass(120);
    assert_eq!((node.active(), node.state.suspended()), ("a", Some(Suspension::ApiServer)));
    node.api = true;
    node.pass(minutes(9));
    assert_eq!(node.last_known_good(), "", "it earned nothing meanwhile");
    node.pass(minutes(3));
    assert_eq!(node.last_known_good(), "a");
    assert_eq!(node.starts, ["", "a"]);
}

/// The API server has asked to wait, for a minute after the change.
#[test]
fn what_is_not_sent_shows_nothing() {
    for cuts_off in [true, false] {
        let mut node = Node::new();
        node.assign("a");
        node.asks_to_wait = true;
        (node.api, node.contact) = (!cuts_off, !cuts_off);
        node.pass(60);
        assert_eq!((node.active(), node.state.suspended()), ("a", None), "{:?}", node.events());
        node.asks_to_wait = false;
        node.pass(minutes(3));
        assert_eq!(node.active(), if cuts_off { "" } else { "a" }, "{:?}", node.events());
        node.pass(minutes(9));
        assert_eq!(node.last_known_good(), if cuts_off { "" } else { "a" });
    }
}

#[test]
fn the_runtime_goes_away_in_mid_trial_and_no_version_is_bad() {
    let mut node = Node::new();
    node.assign("a").pass(minutes(3));
    (node.environment.runtime, node.is_ready) = (Some(false), false);
    for _ in 0..5 {
        node.pass(30).exit(1);
    }
    assert_eq!((node.active(), node.last_known_good()), ("a", ""));
    assert!(!node.is_bad("a"), "{:?}", node.events());
    assert!(node.message("KubeletConfigTrialSuspended").contains("the container runtime does not answer"));
    (node.environment.runtime, node.is_ready) = (Some(true), true);
    node.pass(minutes(12));
    assert_eq!(node.last_known_good(), "a");
}

#[test]
fn a_runtime_that_the_change_itself_leaves_suspends_nothing() {
    // The socket asked is the one from before the change; it answers.
    let mut node = Node::new();
    node.ready_after = None;
    node.assign("a").exit(1);
    assert_eq!(node.active(), "");
    let sockets: Vec<_> =
        node.effects.iter().filter(|effect| format!("{effect:?}").contains("run/runtime.sock")).collect();
    assert!(!sockets.is_empty());
}

#[test]
fn a_full_disk_suspends_the_trial() {
    let mut node = Node::new();
    node.assign("a").pass(30);
    node.environment.disk_full = true;
    for _ in 0..4 {
        node.exit(1).pass(15);
    }
    assert_eq!(node.active(), "a");
    assert!(!node.is_bad("a"));
}

#[test]
fn a_verdict_does_not_wait_for_ever_for_the_query() {
    let mut node = Node::new();
    node.assign("a");
    (node.queries_answered, node.ready_after) = (false, None);
    node.exit(1);
    assert_eq!(node.starts, ["", "a"], "the look is out");
    node.pass(3);
    assert_eq!(node.starts, ["", "a", ""]);
}

#[test]
fn last_known_good_that_fails_in_the_same_way_clears_the_version() {
    let mut node = Node::new();
    node.ready_after = None; // whatever is started dies now
    node.log_tail = vec!["F1121 10:00:00.000000 1 server.go:1] swap is on".to_owned()];
    node.assign("a").exit(255);
    assert!(node.is_bad("a"));
    assert_eq!(node.active(), "");
    node.exit(255);
    assert!(!node.is_bad("a"), "lifted");
    assert!(node.message("KubeletConfigNotBlamed").contains("swap is on"));
    assert!(node_status(&node.state).condition.message.contains("not to blame"), "{:?}", node_status(&node.state));
    node.pass(minutes(5)).exit(255);
    assert_eq!(node.active(), "", "times are no better");
    // The swap is off.
    node.ready_after = Some(1);
    node.pass(11).exit(255).pass(minutes(1));
    assert_eq!(node.active(), "a", "tried again {:?}", node.events());
    node.pass(minutes(11));
    assert_eq!(node.last_known_good(), "a");
    assert_eq!(node.disk().phase, Phase::Settled);
}

/// The OOM killer leaves no words: the last line may be of another program, or of an error that nothing came of.
#[test]
fn what_stands_in_the_log_is_no_reason_of_a_kill() {
    for (signal, is_told) in [(9, false), (6, true)] {
        let mut node = Node::new();
        node.ready_after = None;
        node.log_tail = vec!["Error: the token could not be had".to_owned()];
        node.assign("a").kill(signal);
        assert!(node.is_bad("a"));
        let told = node.message("KubeletConfigRolledBack");
        assert!(told.contains(&format!("signal {signal}")), "{told}");
        assert_eq!(told.contains("the token could not be had"), is_told, "{told}");
    }
}

#[test]
fn what_was_earned_is_not_lost_to_another_name() {
    let mut node = proven("a");
    // A label edit: the same content, a new version; then the machine reboots, into trouble.
    node.alias("b", "a").assign("b");
    assert_eq!(node.starts, ["", "a"]);
    for _ in 0..5 {
        node.reboot().exit(1).pass(2).exit(1);
        node.pass(15);
        assert!(node.active() == "b" && node.disk().bad.is_empty(), "{:?}", node.events());
    }
    node.pass(minutes(11));
    assert_eq!(node.last_known_good(), "b");
}

#[test]
fn a_refusal_restarts_nothing_into_what_runs() {
    let mut node = proven("a");
    node.alias("b", "a").assign("b").refuse("c");
    node.assign("c").pass(60);
    assert_eq!((node.active(), node.last_known_good()), ("a", "a"), "b is a");
    assert_eq!(node.starts, ["", "a"]);
}

#[test]
fn a_healthy_last_known_good_ends_the_control_test() {
    let mut node = Node::new();
    exits_at_its_start(&mut node, "a");
    assert!(matches!(node.disk().phase, Phase::ControlTest(..)), "{:?}", node.disk());
    node.pass(45);
    assert_eq!(node.disk().phase, Phase::Settled);
    assert!(node.is_bad("a"));
    node.exit(255).pass(minutes(60));
    assert!(node.is_bad("a"), "a later accident changes nothing");
    assert_eq!(node.active(), "");
}

#[test]
fn a_cleared_version_that_fails_alone_is_bad() {
    let mut node = Node::new();
    node.ready_after = None;
    node.assign("a").exit(255);
    node.ready_after = Some(1); // the next one
    node.exit(255); // local too: a is pardoned
    node.pass(60);
    assert_eq!(node.active(), "a");
    node.exit(1).pass(5).exit(1); // now its own fault
    node.pass(120);
    assert!(node.is_bad("a") && node.active().is_empty());
    let before = node.effects.len();
    node.pass(600);
    let asked = node.effects[before..].iter().filter(|it| matches!(it, Effect::Probe(..) | Effect::Query(..))).count();
    assert_eq!((asked, &node.disk().phase), (0, &Phase::Settled));
}

#[test]
fn each_retry_waits_twice_as_long() {
    let mut node = Node::new();
    let mut waits = Vec::new();
    for round in 0..3 {
        // Healthy on its own, and everything dies as soon as a is tried.
        if round == 0 {
            node.ready_after = None;
            node.assign("a");
        }
        node.ready_after = None;
        node.exit(255); // a
        node.exit(255); // local: not to blame
        node.ready_after = Some(1);
        node.pass(11).exit(255); // and now it stays up
        let begun = node.now;
        while node.active() != "a" {
            node.pass(1);
            assert!(node.now < begun + Duration::from_secs(600));
        }
        waits.push(node.now.saturating_sub(begun).as_secs());
    }
    assert!(waits[1] > waits[0] + 20 && waits[2] > waits[1] + 40, "{waits:?}");
}

#[test]
fn pods_that_admission_rejected_fail_the_trial() {
    for acknowledge in [None, Some("pods")] {
        let mut node = Node::new();
        node.inventory.pods = vec![pod("web"), pod("db")];
        node.define("a", json!({}), acknowledged(acknowledge)).assign("a");
        node.inventory.pods[1].phase = "Failed".to_owned();
        node.inventory.pods[1].reason = "OutOfcpu".to_owned();
        node.pass(60);
        if acknowledge.is_some() {
            assert_eq!(node.active(), "a");
        } else {
            assert_eq!(node.active(), "");
            let message = node.message("KubeletConfigRolledBack");
            assert!(message.contains("default/db (OutOfcpu)") && !message.contains("web"), "{message}");
        }
    }
}

/// A label of the Node has changed since they came: the next kubelet refuses them, whatever it is given.
#[test]
fn pods_that_any_restart_costs_are_not_held_against_it() {
    for foreseen in [true, false] {
        let mut node = Node::new();
        let node_selector = if foreseen { json!({"disk": "ssd"}) } else { json!({}) };
        node.inventory.pods = vec![PodSummary { node_selector, ..pod("db") }];
        node.inventory.node.labels = Some([("disk".to_owned(), "hdd".to_owned())].into());
        node.assign("a");
        node.inventory.pods[0].phase = "Failed".to_owned();
        node.inventory.pods[0].reason = "NodeAffinity".to_owned();
        node.pass(60);
        assert_eq!(node.active(), if foreseen { "a" } else { "" });
    }
}

/// Nobody can say whom it would hurt then, and that is said.
#[test]
fn a_change_whose_pods_cannot_be_listed_says_so() {
    let unlisted = "the pods of this node could not be listed, so what the restart costs is not known";
    for lists_pods in [true, false] {
        let mut node = Node::new();
        node.lists_pods = lists_pods;
        node.assign("a");
        assert_eq!(node.active(), "a");
        let told = node.journal.iter().filter(|line| line.contains(unlisted)).count();
        assert_eq!(told, usize::from(!lists_pods), "{:?}", node.journal);
    }
}

#[test]
fn a_machine_that_sleeps_is_not_judged_for_it() {
    for healthz in [Some(true), None] {
        let mut node = Node::new();
        node.healthz = healthz;
        node.assign("a");
        for _ in 0..3 {
            node.pass(30);
            node.now += Duration::from_secs(7200);
            node.wall_nanos += 7_200_000_000_000;
            node.pass(30);
            assert_eq!((node.active(), node.last_known_good()), ("a", ""), "{:?}", node.events());
        }
        node.pass(minutes(6));
        assert_eq!(node.last_known_good(), "", "it was awake for nine minutes");
        node.pass(minutes(8));
        assert_eq!(node.last_known_good(), "a", "{:?}", node.events());
    }
}

#[test]
fn the_wall_clock_may_jump() {
    let mut node = Node::new();
    node.assign("a").pass(30);
    for wall in [0, u64::MAX, 1_700_000_000_000_000_000] {
        node.wall_nanos = wall;
        node.pass(minutes(2));
        assert_eq!(node.last_known_good(), "");
    }
    node.pass(minutes(4));
    assert_eq!(node.last_known_good(), "a");
}

#[test]
fn a_machine_that_reboots_in_a_loop_comes_up_on_last_known_good() {
    for boots in [1, 3, 5] {
        let mut node = Node::with(Settings { boots, ..Settings::default() });
        node.assign("a");
        for _ in 1..boots {
            node.reboot();
            assert_eq!(node.active(), "a");
        }
        node.reboot();
        assert_eq!(node.active(), "", "{boots} tries");
        assert!(node.is_bad("a"));
    }
}
