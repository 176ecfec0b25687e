//! What a hostile review found of exits, starts, and control tests.

use kubelet_supervisor::machine::Effect;
use kubelet_supervisor::machine::records::Phase;
use serde_json::json;

use super::sleep;
use crate::{confirmed, exits_at_its_start, minutes, proven};

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
