//! What a hostile review found at joints of two features: each test says what should happen.

use std::time::Duration;

use kubelet_config::assignment::Assignment;
use kubelet_config::policy::{PolicyState, Signed};
use kubelet_config::schema::UnknownFields;
use kubelet_config::source::ConfigAnnotations;
use kubelet_supervisor::machine::command::{Command, Target};
use kubelet_supervisor::machine::evidence::NodePressure;
use kubelet_supervisor::machine::records::Phase;
use kubelet_supervisor::machine::status::node_status;
use kubelet_supervisor::machine::{Effect, Input, Settings, StoreRequest};
use serde_json::json;
use testkit::node::{Definition, Node, source};

use crate::{acknowledged, confirmed, exits_at_its_start, minutes, prove, proven};

fn hung_node() -> Node {
    Node::with(Settings { hung_after: Duration::from_secs(300), ..Settings::default() })
}

fn dumps(node: &Node) -> usize {
    node.effects.iter().filter(|effect| **effect == Effect::DumpStacks).count()
}

fn sleep(node: &mut Node, seconds: u64) {
    node.now += Duration::from_secs(seconds);
    node.wall_nanos += seconds * 1_000_000_000;
}

/// The kubelet ends every two seconds while it runs one of these.
fn ends_with(node: &mut Node, contents: &[&str], seconds: u64) {
    for _ in 0..seconds / 2 {
        if node.running().is_some_and(|content| contents.contains(&content)) {
            node.exit(1);
        }
        node.pass(2);
    }
}

/// After a reset the local files kill the kubelet, and a runs in their place.
fn in_place_of_local() -> Node {
    let mut node = proven("a");
    node.step(Input::Node(Assignment::Local));
    ends_with(&mut node, &[""], minutes(2));
    assert_eq!(node.running(), Some("a"), "{:?}", node.events());
    node
}

#[test]
fn a_rollback_says_where_it_goes_when_the_binary_refuses_last_known_good() {
    let mut node = proven("a");
    node.refuse("a");
    node.kubelet = "kubelet 2".into();
    node.exit(137).pass(60);
    assert_eq!(node.running(), Some(""), "{:?}", node.events());
    node.assign("b").pass(60);
    assert_eq!(node.running(), Some("b"), "{:?}", node.events());
    let answer = node.operate(Command::Rollback { to: Target::Lkg }).unwrap();
    node.pass(30);
    assert!(node.running() == Some("a") || !answer.contains("configmaps/a"), "runs {:?}: {answer}", node.running());
}

#[test]
fn thaw_does_not_say_that_changes_are_taken_up_while_something_is_pinned() {
    let mut node = proven("a");
    node.obey(Command::Pin { to: None }).obey(Command::Freeze);
    let answer = node.operate(Command::Thaw).unwrap();
    node.assign("b").pass(60);
    assert!(node.running() == Some("b") || answer != "changes are taken up again", "{answer}");
}

#[test]
fn unpin_does_not_ask_for_a_confirmation_that_was_given() {
    let mut node = Node::new();
    node.define("a", json!({}), confirmed("30m")).assign("a").pass(minutes(12));
    node.obey(Command::Pin { to: None }).obey(Command::Confirm { extend_seconds: None });
    let answer = node.operate(Command::Unpin).unwrap();
    assert!(!answer.contains("is to be confirmed"), "{answer}");
}

#[test]
fn it_is_not_said_that_something_runs_in_the_place_of_the_local_files_while_they_run() {
    let mut node = in_place_of_local();
    node.store.unreadable.insert("a".into());
    node.exit(1).pass(minutes(30));
    let message = node_status(&node.state).condition.message;
    assert!(
        node.running() == Some("a") || !message.contains("runs in its place"),
        "runs {:?}: {message}",
        node.running()
    );
}

#[test]
fn a_hung_kubelet_in_the_place_of_the_local_files_is_not_said_to_be_restarted_as_it_was() {
    let mut node = hung_node();
    prove(&mut node, "a");
    node.step(Input::Node(Assignment::Local));
    ends_with(&mut node, &[""], minutes(2));
    assert_eq!(node.running(), Some("a"), "{:?}", node.events());
    for _ in 0..3 {
        node.pass(60);
        (node.healthz, node.pings) = (Some(false), false);
        let ran = node.running().map(str::to_owned);
        let (before, events) = (dumps(&node), node.events().len());
        for _ in 0..7200 {
            node.pass(1);
            if dumps(&node) > before {
                break;
            }
        }
        (node.healthz, node.pings) = (Some(true), true);
        let told =
            if node.events()[events..].contains(&"KubeletHung") { node.message("KubeletHung") } else { String::new() };
        node.pass(5);
        assert!(
            node.running() == ran.as_deref() || !told.contains("same configuration"),
            "runs {:?}: {told}",
            node.running()
        );
    }
}

#[test]
fn a_request_is_answered_though_nothing_can_be_written() {
    let mut node = proven("a");
    node.create("b", json!({}), ConfigAnnotations::default());
    node.store.full = true;
    node.exit(1).pass(60); // a start is written down
    node.request(Some("n/b")).pass(minutes(60));
    assert!(node.preflight.1.is_some());
}

#[test]
fn a_version_that_the_local_file_came_to_equal_is_not_rolled_back_to_itself() {
    let mut node = Node::new();
    node.alias("b", "local+edited");
    node.assign("b").pass(30);
    node.store.local = "edited".to_owned();
    node.step(Input::LocalFilesTouched).pass(30);
    node.healthz = Some(false);
    node.pass(120);
    node.healthz = Some(true);
    node.pass(minutes(60));
    assert!(!node.events().contains(&"KubeletConfigRolledBack"), "from a content to the same content");
}

#[test]
fn a_control_test_by_the_same_content_ends() {
    let mut node = Node::new();
    node.alias("b", "local+edited");
    node.assign("b").pass(30);
    node.store.local = "edited".to_owned();
    node.step(Input::LocalFilesTouched).pass(30);
    node.healthz = Some(false);
    node.pass(120);
    node.healthz = Some(true);
    node.pass(24 * 3600);
    assert!(!matches!(node.disk().phase, Phase::ControlTest(..)), "for a day {:?}", node.starts);
}

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
fn a_sleep_does_not_prove_the_local_files_after_a_reset() {
    let mut node = proven("a");
    node.step(Input::Node(Assignment::Local)).pass(30);
    assert_eq!(node.running(), Some(""));
    sleep(&mut node, 7200);
    node.pass(5);
    assert!(node.disk().reset.is_some(), "they lived for half a minute");
}

#[test]
fn a_sleep_is_not_held_against_the_local_files_after_a_reset() {
    let mut node = proven("a");
    node.ready_after = Some(7220);
    node.step(Input::Node(Assignment::Local)).pass(5);
    assert_eq!(node.running(), Some(""));
    sleep(&mut node, 7200);
    node.ready_after = Some(1);
    let until = node.starts.len();
    node.pass(60);
    assert_eq!((node.running(), node.starts.len()), (Some(""), until), "{:?}", node.events());
}

#[test]
fn a_runtime_that_is_away_is_not_held_against_the_local_files_after_a_reset() {
    let mut node = proven("a");
    node.step(Input::Node(Assignment::Local)).pass(30);
    node.environment.runtime = Some(false);
    node.pass(20);
    for _ in 0..2 {
        node.exit(1).pass(20);
    }
    node.environment.runtime = Some(true);
    node.pass(minutes(60));
    assert_eq!(node.running(), Some(""), "{:?}: {:?}", node.events(), node_status(&node.state).condition);
}

#[test]
fn a_full_disk_is_not_held_against_the_local_files_after_a_reset() {
    let mut node = proven("a");
    node.step(Input::Node(Assignment::Local)).pass(30);
    node.environment.disk_full = true;
    for _ in 0..2 {
        node.exit(1).pass(20);
    }
    node.environment.disk_full = false;
    node.pass(minutes(60));
    assert_eq!(node.running(), Some(""), "{:?}: {:?}", node.events(), node_status(&node.state).condition);
}

#[test]
fn the_local_files_under_another_name_have_the_way_back_from_a_reset() {
    let mut node = proven("a");
    node.step(Input::Node(Assignment::Local)).pass(60);
    node.alias("own", "local").assign("own").pass(5);
    ends_with(&mut node, &["", "local"], minutes(20));
    assert_eq!(node.running(), Some("a"), "{} starts {:?}", node.starts.len(), node.events());
}

#[test]
fn what_the_local_files_failed_with_is_no_way_back_under_another_name() {
    let mut node = in_place_of_local();
    node.alias("own", "local").assign("own").pass(5);
    ends_with(&mut node, &["", "local"], minutes(60));
    assert_eq!(node.running(), Some("a"), "{} starts {:?}", node.starts.len(), node.events());
}

#[test]
fn what_runs_in_the_place_of_the_local_files_is_proven_once_it_is_assigned_again() {
    let mut node = in_place_of_local();
    node.assign("a").pass(30);
    ends_with(&mut node, &["", "a"], 60);
    node.pass(24 * 3600);
    assert_eq!((node.running(), node.last_known_good()), (Some("a"), "a"), "{:?}", node.disk().phase);
}

#[test]
fn exits_that_are_days_apart_do_not_fail_what_waits_to_be_confirmed() {
    let mut node = proven("good");
    node.define("a", json!({}), confirmed("168h")).assign("a").pass(minutes(12));
    for _ in 0..2 {
        node.pass(24 * 3600).exit(137).pass(60);
    }
    assert_eq!(node.running(), Some("a"), "{}", node.message("KubeletConfigRolledBack"));
}

#[test]
fn exits_that_are_hours_apart_do_not_fail_a_trial_that_an_outage_made_long() {
    let mut node = proven("good");
    node.assign("a").pass(minutes(3)).exit(137).pass(minutes(5));
    node.environment.runtime = Some(false);
    node.is_ready = false;
    node.pass(minutes(9));
    node.environment.runtime = Some(true);
    node.is_ready = true;
    node.pass(60);
    (node.api, node.contact) = (false, false);
    node.pass(24 * 3600);
    (node.api, node.contact) = (true, true);
    node.pass(120).exit(137).pass(60);
    assert_eq!(node.running(), Some("a"), "{}", node.message("KubeletConfigRolledBack"));
}

#[test]
fn probes_that_are_missed_now_and_then_do_not_fail_what_waits_to_be_confirmed() {
    let mut node = proven("good");
    node.define("a", json!({}), confirmed("168h")).assign("a").pass(minutes(12));
    for _ in 0..40 {
        node.pass(3 * 3600);
        node.healthz = Some(false);
        node.pass(6);
        node.healthz = Some(true);
    }
    assert_eq!(node.running(), Some("a"), "{}", node.message("KubeletConfigRolledBack"));
}

#[test]
fn a_hung_kubelet_is_restarted_though_a_reset_cannot_be_written() {
    let mut node = hung_node();
    prove(&mut node, "a");
    node.store.full = true;
    node.step(Input::Node(Assignment::Local)).pass(minutes(5));
    assert_eq!(node.running(), Some("a"));
    (node.healthz, node.pings) = (Some(false), false);
    node.pass(minutes(120));
    assert!(dumps(&node) > 0, "it hangs for two hours");
}

#[test]
fn an_outage_during_the_control_test_does_not_clear_what_died_before_it() {
    let mut node = proven("good");
    exits_at_its_start(&mut node, "x");
    (node.api, node.contact) = (false, false);
    node.pass(minutes(20));
    assert_eq!(node.running(), Some("good"));
    (node.api, node.contact) = (true, true);
    node.pass(minutes(20));
    assert!(!node.events().contains(&"KubeletConfigNotBlamed"), "{:?} {:?}", node.starts, node.events());
}

#[test]
fn a_sleep_during_the_control_test_does_not_clear_what_died_before_it() {
    let mut node = proven("good");
    exits_at_its_start(&mut node, "x");
    node.pass(10);
    sleep(&mut node, 7200);
    node.pass(minutes(5));
    assert!(
        node.is_bad("x") && !node.events().contains(&"KubeletConfigNotBlamed"),
        "{:?} {:?}",
        node.starts,
        node.events()
    );
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
fn a_version_that_cannot_even_be_executed_goes_back() {
    let mut node = proven("good");
    node.start_fails = true;
    node.assign("x");
    for _ in 0..1200 {
        node.start_fails = node.disk().phase.trial().is_some();
        node.pass(1);
    }
    let attempts =
        node.effects.iter().filter(|it| matches!(it, Effect::Start(Some(config)) if config.path == "/x")).count();
    assert_eq!(node.running(), Some("good"), "{attempts} attempts, {:?}", node.events());
}

#[test]
fn starts_that_fail_have_pauses_that_grow_in_a_trial_too() {
    let mut node = proven("good");
    node.start_fails = true;
    node.assign("x");
    let before = node.effects.len();
    for _ in 0..600 {
        node.start_fails = true;
        node.pass(1);
    }
    let attempts = node.effects[before..].iter().filter(|it| matches!(it, Effect::Start(_))).count();
    assert!(attempts < 120, "{attempts} attempts in ten minutes");
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
fn exits_in_an_outage_that_began_right_after_the_change_are_not_blamed() {
    let mut blamed = Vec::new();
    for (after, first, second, back) in [(5, 28, 51, 60), (5, 28, 30, 60), (10, 30, 55, 70), (20, 43, 66, 75)] {
        let mut node = proven("good");
        node.assign("x").pass(after);
        (node.api, node.contact) = (false, false);
        node.pass(first - after).exit(1).pass(second - first);
        if node.running() == Some("x") {
            node.exit(1);
        }
        node.pass(back - second);
        (node.api, node.contact) = (true, true);
        node.pass(minutes(20));
        if node.is_bad("x") {
            blamed.push((after, first, second, back));
        }
    }
    assert!(blamed.is_empty(), "{blamed:?}");
}

/// A pool, or a GitOps tool, takes the assignment back as soon as the node says that it failed.
#[test]
fn a_control_test_is_not_called_off_by_assigning_what_runs() {
    for assign in [None, Some("good"), Some("same")] {
        let mut node = proven("good");
        node.alias("same", "good").assign("x").pass(30);
        node.healthz = Some(false); // the node's trouble, whatever runs
        while node.running() == Some("x") {
            node.pass(1);
        }
        assert!(matches!(node.state.records().phase, Phase::ControlTest(..)), "{:?}", node.events());
        node.healthz = Some(true);
        node.pass(5);
        if let Some(name) = assign {
            node.assign(name).pass(5);
        }
        node.healthz = Some(false);
        node.pass(60);
        node.healthz = Some(true);
        node.pass(minutes(20));
        assert!(!node.is_bad("x"), "{assign:?}: last known good failed alike: {:?}", node.events());
    }
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
fn exits_that_no_worker_saw_are_not_blamed_while_the_disk_is_full() {
    let mut node = proven("a");
    node.assign("b").pass(60);
    node.environment.disk_full = true;
    node.pass(20);
    for _ in 0..2 {
        node.exit_unseen().replace_worker(Some("signal 9")).pass(20);
    }
    node.environment.disk_full = false;
    node.pass(minutes(20));
    assert!(!node.is_bad("b"), "{:?}", node.events());
}

#[test]
fn exits_that_no_worker_saw_are_not_blamed_in_an_outage() {
    let mut node = proven("a");
    node.assign("b").pass(minutes(3));
    (node.api, node.contact) = (false, false);
    node.pass(60);
    for _ in 0..2 {
        node.pass(140).exit_unseen().replace_worker(Some("signal 9")).pass(5);
    }
    (node.api, node.contact) = (true, true);
    node.pass(minutes(20));
    assert!(!node.is_bad("b"), "{:?}", node.events());
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

#[test]
fn a_command_is_answered_though_the_record_cannot_be_read() {
    let mut node = proven("a");
    node.stall().replace_worker(Some("signal 9")).pass(60);
    let number = node.ask(Command::Freeze);
    node.pass(minutes(10));
    assert!(node.answer_to(number).is_some(), "nothing in ten minutes");
}

/// Cleared of something else before: the runtime goes later than the attribution window, and stays away.
#[test]
fn a_cleared_version_that_takes_the_runtime_down_later_ends() {
    let mut node = proven("good");
    node.ready_after = None;
    node.assign("x").exit(255);
    node.exit(255); // good, too: x is not to blame
    node.ready_after = Some(1);
    node.pass(11);
    if node.running().is_some() && !node.state.is_ready() {
        node.exit(255);
    }
    while node.running() != Some("x") {
        node.pass(1);
        assert!(node.now.as_secs() < 20_000, "{:?}", node.events());
    }
    node.pass(60);
    for _ in 0..24 * 3600 {
        let is_away = node.running() == Some("x");
        (node.environment.runtime, node.is_ready) = (Some(!is_away), !is_away);
        node.pass(1);
    }
    assert_eq!(node.running(), Some("good"), "{:?} {:?}", node.state.suspended(), node.events());
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
fn retry_does_not_say_that_what_is_gone_is_tried_again() {
    let mut node = proven("a");
    exits_at_its_start(&mut node, "x");
    node.pass(60).step(Input::ConfigMapFailed { why: "the ConfigMap does not exist".into(), definite: true });
    node.pass(60);
    let answer = node.operate(Command::Retry).unwrap_or_default();
    node.pass(minutes(60));
    assert!(
        node.starts.iter().filter(|name| *name == "x").count() > 1 || !answer.contains("is tried again"),
        "{answer}"
    );
}

#[test]
fn retry_does_not_say_that_what_was_overtaken_is_tried_again() {
    let mut node = proven("a");
    exits_at_its_start(&mut node, "x");
    node.pass(60);
    node.pressure = [NodePressure::Disk].into();
    node.pass(10).assign("c").pass(30);
    assert!(node.state.waiting().is_some() && node.disk().assigned.as_ref().unwrap().source == source("x"));
    let answer = node.operate(Command::Retry).unwrap_or_default();
    node.pass(minutes(60));
    node.pressure.clear();
    node.pass(minutes(60));
    assert!(
        node.starts.iter().filter(|name| *name == "x").count() > 1 || !answer.contains("is tried again"),
        "{answer}"
    );
}

#[test]
fn a_hung_kubelet_whose_local_file_was_edited_is_not_said_to_be_restarted_as_it_was() {
    let mut node = hung_node();
    node.store.local = "2".to_owned();
    node.step(Input::LocalFilesTouched).pass(30);
    let before = node.state.running().digest.clone();
    (node.healthz, node.pings) = (Some(false), false);
    for _ in 0..minutes(20) {
        node.pass(1);
        if dumps(&node) > 0 {
            break;
        }
    }
    node.pass(30);
    let told = node.message("KubeletHung");
    assert!(node.state.running().digest == before || !told.contains("same configuration"), "{before:?} {told}");
}

#[test]
fn retry_on_a_frozen_node_after_a_reset_does_what_it_says() {
    let mut node = in_place_of_local();
    node.obey(Command::Freeze);
    let answer = node.operate(Command::Retry).unwrap();
    node.pass(30);
    assert!(node.running() == Some("a") || !answer.contains("once thaw"), "runs {:?}: {answer}", node.running());
}

#[test]
fn rollback_does_not_say_that_local_runs_while_something_runs_in_its_place() {
    let mut node = in_place_of_local();
    let answer = node.operate(Command::Rollback { to: Target::Lkg }).unwrap_err();
    assert!(!answer.contains("what runs is last known good already (the local configuration)"), "{answer}");
}

#[test]
fn a_reset_that_cannot_be_written_is_told() {
    let mut node = proven("a");
    node.store.full = true;
    node.exit(1).pass(60); // a start is written down
    node.step(Input::Node(Assignment::Local)).pass(minutes(10));
    assert_eq!(node.running(), Some("a"));
    let status = node_status(&node.state);
    assert!(status.error.is_some(), "{:?}", status.condition);
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
        let is_save = |it: &&Effect| matches!(it, Effect::Store(StoreRequest::Save(..)));
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

/// The next push is refused while last known good is on test for the one before.
#[test]
fn a_control_test_is_not_called_off_by_a_version_that_is_refused() {
    let mut node = proven("good");
    node.assign("x").pass(30);
    node.healthz = Some(false); // the node's trouble, whatever runs
    while node.running() == Some("x") {
        node.pass(1);
    }
    node.healthz = Some(true);
    node.pass(5).refuse("c").assign("c").pass(5);
    node.healthz = Some(false);
    node.pass(60);
    node.healthz = Some(true);
    node.pass(minutes(20));
    assert!(!node.is_bad("x"), "last known good failed alike: {:?}", node.events());
}
