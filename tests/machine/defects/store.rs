//! Disks that fail, fill up and stall: a kubelet runs, on the best configuration that can be had.

use std::time::Duration;

use kubelet_config::source::ConfigAnnotations;
use kubelet_supervisor::machine::command::{Command, Target};
use kubelet_supervisor::machine::evidence::Query;
use kubelet_supervisor::machine::{Effect, Input, Settings};
use kubelet_supervisor::ports::StoreRequest;
use serde_json::json;
use testkit::node::{Node, source, torn};

use super::{count, minutes, prove, proven};

/// An overlay, proven; then the local file is torn, nothing can be rendered or the disk is full, and the machine reboots.
#[test]
fn proven_bytes_run_whatever_else_cannot_be_had() {
    let faults: [fn(&mut Node, bool); 3] = [
        |node, there| node.store.local_fault = there.then(torn),
        |node, there| node.store.renders_fail = there,
        |node, there| node.store.full = there,
    ];
    for (number, fault) in faults.into_iter().enumerate() {
        for api in [false, true] {
            let mut node = Node::new();
            node.define_overlay("a");
            prove(&mut node, "a");
            fault(&mut node, true);
            node.api = api;
            node.reboot().pass(minutes(30));
            assert_eq!(node.starts, ["", "a", "a"], "{number}, {api}: {:?}", node.events());
            assert_eq!((node.active(), node.last_known_good()), ("a", "a"));
            assert!(node.disk().bad.is_empty());
            fault(&mut node, false);
            node.api = true;
            node.pass(minutes(15));
            assert_eq!(node.starts, ["", "a", "a"], "{number}, {api}: all is as it was");
            node.assign("b").pass(minutes(15));
            assert_eq!(node.last_known_good(), "b", "{number}, {api}: {:?}", node.events());
        }
    }
}

/// The bytes of last known good are lost, those of what was proven before it are not.
#[test]
fn earlier_proven_bytes_run_before_local() {
    let mut node = proven("a");
    prove(&mut node, "b");
    node.store.lose(&source("b"));
    node.api = false;
    node.reboot().pass(60);
    assert_eq!(node.starts, ["", "a", "b", "a"], "{:?}", node.events());
    // What is assigned is downloaded anew.
    node.api = true;
    node.pass(minutes(15));
    assert_eq!((node.running(), node.last_known_good()), (Some("b"), "b"), "{:?}", node.events());
}

#[test]
fn damaged_bytes_are_made_anew_from_the_checkpoint() {
    let mut node = proven("a");
    node.store.damaged.insert("a".into());
    node.api = false;
    node.reboot().pass(60);
    assert_eq!(node.starts, ["", "a", "a"]);
}

/// A rung that cannot be loaded gets a time before which it is not tried again, and no rung is for ever.
#[test]
fn a_passing_error_does_not_keep_last_known_good_away() {
    let mut node = proven("a");
    node.store.unreadable.insert("a".into());
    node.api = false;
    node.reboot().pass(minutes(3));
    assert_eq!(node.running(), Some(""), "{:?}", node.starts);
    node.store.unreadable.clear();
    node.pass(minutes(15));
    assert_eq!(node.running(), Some("a"), "{:?}", node.starts);
    assert_eq!(node.starts, ["", "a", "", "a"]);
    assert_eq!((node.active(), node.last_known_good()), ("a", "a"));
}

/// Whichever of a change's requests to the disk it is that fails, or is never answered.
#[test]
fn one_error_in_a_change_is_overcome() {
    for number in 0..32 {
        let mut node = proven("a");
        (node.store.fails_after, node.store.fails, node.store.loses_answers) = (number / 2, 1, number % 2 == 1);
        node.assign("b").pass(minutes(14));
        assert_eq!((node.running(), node.last_known_good()), (Some("b"), "b"), "{number}: {:?}", node.events());
        let starts = node.starts.iter().filter(|name| *name == "b").count();
        assert_eq!(starts, 1, "request {number}: {:?}", node.starts);
        assert!(node.disk().bad.is_empty(), "{number}: {:?}", node.disk().bad);
    }
}

/// Whichever of the requests at boot it is.
#[test]
fn one_error_at_boot_ends_on_last_known_good() {
    for number in 0..16 {
        let mut node = proven("a");
        (node.store.fails_after, node.store.fails, node.store.loses_answers) = (number / 2, 1, number % 2 == 1);
        node.api = false;
        node.reboot().pass(minutes(15));
        assert_eq!((node.running(), node.last_known_good()), (Some("a"), "a"), "{number}: {:?}", node.starts);
        assert!(node.disk().bad.is_empty(), "{number}: {:?}", node.disk().bad);
    }
}

#[test]
fn a_local_configuration_that_cannot_be_read_is_started_all_the_same() {
    let mut node = Node::new();
    node.store.local_fault = Some(torn());
    node.reboot().pass(30);
    assert_eq!(node.starts, ["", ""]);
    node.pass(minutes(10));
    assert_eq!(node.starts, ["", ""], "nor is it started anew for that");
}

/// Pin, freeze and marks are in there, and the disk may give it back.
#[test]
fn an_unreadable_record_is_not_overwritten() {
    let mut node = proven("a");
    node.refuse("x");
    node.assign("x").pass(30).obey(Command::Pin { to: Some(Target::Lkg) }).obey(Command::Freeze);
    let record = node.disk().clone();
    node.store.record_unreadable = true;
    node.boot().pass(30);
    assert_eq!(node.running(), Some("a"), "{:?}", node.starts);
    for _ in 0..3 {
        node.exit(1).pass(15);
    }
    node.assign("b").pass(minutes(15));
    assert_eq!(*node.disk(), record);
    assert!(node.operate(Command::Thaw).is_err(), "what is not known is not changed");
    node.store.record_unreadable = false;
    node.reboot().pass(minutes(15));
    let (pin, frozen) = (node.disk().pin.clone(), node.disk().frozen);
    assert!(pin.is_some() && frozen && node.is_bad("x"), "{:?}", node.disk());
}

/// Longer than a disk may reasonably take.
const STALL: u64 = 120;

#[test]
fn a_stalled_disk_hides_no_exit() {
    let mut node = proven("a");
    node.stall().exit(1).pass(60);
    assert!(node.running().is_some(), "{:?}", node.starts);
    node.pass(STALL).end_stall().pass(minutes(5));
    assert_eq!(node.running(), Some("a"), "{:?}", node.starts);
    assert_eq!(node.last_known_good(), "a");
}

/// Also where the next kubelet is systemd's to start, once the records are written.
#[test]
fn a_stalled_disk_hides_no_exit_while_something_is_to_be_written() {
    for on_trial in [false, true] {
        let mut node = proven("a");
        if on_trial {
            node.assign("x").pass(60);
        }
        node.stall();
        node.ask(Command::Freeze);
        for round in 0..12 {
            node.exit(1).pass(60);
            assert!(node.running().is_some(), "{on_trial}, {round}: {:?}", node.starts);
            node.pass(7 * round);
        }
    }
}

/// At boot, before and in a change, in a trial, while an operator waits.
#[test]
fn a_stalled_disk_delays_no_stop() {
    let moments: [fn(&mut Node) -> &mut Node; 6] = [
        Node::stall,
        |node| node.stall().boot(),
        |node| node.stall().assign("b"),
        |node| node.assign("b").pass(5).stall().exit(1),
        |node| {
            node.stall().ask(Command::Freeze);
            node
        },
        |node| node.stall().boot().pass(60),
    ];
    for (number, moment) in moments.into_iter().enumerate() {
        let mut node = proven("a");
        moment(&mut node).step(Input::Shutdown).pass(20);
        assert!(node.has_quit(), "moment {number}");
        assert_eq!(node.running(), None);
    }
}

#[test]
fn a_stalled_disk_at_boot_keeps_no_kubelet_down() {
    for change in [false, true] {
        let mut node = proven("a");
        node.stall().reboot().pass(60);
        assert!(node.running().is_some(), "{:?}", node.starts);
        if change {
            node.assign("b").pass(STALL);
            assert!(node.running().is_some(), "{:?}", node.starts);
        }
        node.end_stall().pass(minutes(15));
        let best = if change { "b" } else { "a" };
        assert_eq!((node.running(), node.last_known_good()), (Some(best), best), "{:?}", node.starts);
        assert!(node.disk().bad.is_empty(), "{:?}", node.disk().bad);
    }
}

#[test]
fn a_stalled_disk_at_a_change_keeps_what_runs() {
    let mut node = proven("a");
    node.stall().assign("b").pass(STALL);
    assert_eq!(node.starts, ["", "a"]);
    node.end_stall().pass(minutes(13));
    assert_eq!(node.last_known_good(), "b", "{:?}", node.events());
    assert_eq!(node.starts, ["", "a", "b"]);
}

/// The way back is gone without the disk, or else to local, which needs none; also for what ends again and again, and would
/// be started by itself if nothing else could be.
#[test]
fn a_stalled_disk_does_not_hold_a_rollback() {
    for exits in [false, true] {
        let mut node = proven("a");
        node.assign("x").pass(30).stall();
        node.pings = exits;
        for _ in 0..36 {
            if exits && node.running() == Some("x") {
                node.exit(1);
            }
            node.pass(5);
            node.pings |= node.running() != Some("x");
        }
        assert!(matches!(node.running(), Some("a" | "")), "{exits}: {:?}", node.starts);
        node.end_stall().pass(minutes(5));
        assert_eq!(node.running(), Some("a"), "{exits}: {:?}", node.starts);
        assert!(exits || node.is_bad("x"), "what was found meanwhile is written: {:?}", node.disk());
    }
}

/// Where a lies is known, for it was started from there; but its bytes were found to be lost.
#[test]
fn what_was_found_damaged_is_not_started_while_the_disk_stalls() {
    let mut node = proven("a");
    node.api = false;
    node.store.lose(&source("a"));
    node.exit(1).pass(5);
    assert_eq!(node.running(), Some(""), "{:?}", node.events());
    node.stall().exit(1).pass(minutes(3));
    assert_eq!(node.running(), Some(""), "{:?}", node.starts);
}

/// Nothing can be written, and a is to be read.
#[test]
fn a_rollback_is_applied_without_its_record() {
    let mut node = proven("a");
    node.assign("x").pass(30);
    (node.store.full, node.pings) = (true, false);
    node.until_start(120);
    assert_eq!(node.running(), Some("a"), "{:?}", node.starts);
    node.pings = true;
    node.pass(minutes(5));
    assert_eq!(node.starts, ["", "a", "x", "a"]);
    node.store.full = false;
    node.pass(minutes(2));
    assert!(node.is_bad("x"), "written as soon as it can be: {:?}", node.disk());
}

/// An operator is told that the rollback failed; that it reached the disk in the end changes nothing.
#[test]
fn a_decision_whose_write_was_given_up_does_not_count() {
    let mut node = proven("a");
    let number = node.assign("x").pass(60).stall().ask(Command::Rollback { to: Target::Lkg });
    node.pass(40);
    let answer = node.answer_to(number).expect("it is answered in time");
    assert!(answer.is_err(), "{answer:?}");
    node.end_stall().pass(minutes(12));
    assert_eq!((node.running(), node.last_known_good()), (Some("x"), "x"), "{:?}", node.events());
    assert!(!node.is_bad("x"), "{:?}", node.disk());
    assert_eq!(node.starts, ["", "a", "x"]);
}

/// systemd would kill a healthy kubelet.
#[test]
fn a_stalled_disk_keeps_no_ping_back() {
    let settings = || Settings { watchdog: Some(Duration::from_secs(20)), ..Settings::default() };
    let pings = |it: &Effect| matches!(it, Effect::PingWatchdog);
    let mut node = Node::with(settings());
    prove(&mut node, "a");
    node.stall().assign("b").pass(STALL);
    // The kubelet, whose pings the monitor passes on, goes; ours come, until another one pings.
    node.pings = false;
    node.exit(1);
    let before = node.effects.len();
    node.until_start(60).unwrap();
    node.pass(30);
    assert!(count(&node, before, pings) >= 3, "{:?}", node.starts);
    // So they do at boot.
    let mut node = Node::with(settings());
    node.pings = false;
    node.stall().boot();
    let before = node.effects.len();
    node.pass(STALL);
    assert!(count(&node, before, pings) >= 10);
}

/// The store serves one request after the other, and an event is told when the history has it.
#[test]
fn what_is_told_of_a_failure_is_on_the_disk() {
    let mut node = proven("a");
    node.ready_after = None;
    node.assign("x").exit(1).exit(1);
    let place = |wanted: &str, said: &str| {
        let is_it = |effect: &String| effect.starts_with(wanted) && effect.contains(said);
        node.effects.iter().map(|effect| format!("{effect:?}")).position(|effect| is_it(&effect)).unwrap()
    };
    assert!(place("Store(Record", "ControlTest") < place("Emit", "RolledBack"));
    assert!(place("Store(Record", "RetryLater") < place("Emit", "NotBlamed"));
}

/// At a boot the store gives no answer, and so it does when local, which was started instead, is to be started again.
#[test]
fn what_could_be_read_too_late_is_used_at_once() {
    let mut node = proven("a");
    node.stall().reboot().serve_next().pass(200);
    assert_eq!(node.running(), Some(""), "{:?}", node.starts);
    node.exit(1).pass(20);
    assert_eq!(node.running(), Some(""), "{:?}", node.starts);
    node.end_stall().pass(20);
    assert_eq!(node.running(), Some("a"), "{:?}", node.starts);
}

/// Its answers come a second after a start stops waiting for them, or a change.
#[test]
fn a_disk_that_always_takes_a_second_too_long_is_a_slow_disk() {
    for latency in [6, 31, 61, 200].map(Duration::from_secs) {
        let mut node = proven("a");
        node.store.latency = latency;
        node.assign("x").pass(minutes(120));
        assert_eq!((node.running(), node.last_known_good()), (Some("x"), "x"), "{latency:?}: {:?}", node.events());
        assert_eq!(node.starts, ["", "a", "x"], "{latency:?}");
        node.reboot().until_start(60).unwrap();
        node.pass(minutes(30));
        assert_eq!(node.running(), Some("x"), "{latency:?}: {:?}", node.starts);
        assert!(node.starts.len() <= 5, "{latency:?}: {:?}", node.starts);
    }
}

/// A change of policies needs the kubelet's state files in order while no kubelet runs.
#[test]
fn a_change_of_policies_gets_through_a_slow_disk() {
    for latency in [6, 31].map(Duration::from_secs) {
        let mut node = proven("a");
        with_state_files_of_its_own(&mut node, "b");
        node.store.latency = latency;
        node.assign("b").pass(minutes(180));
        assert_eq!(node.running(), Some("b"), "{latency:?}: {:?}", node.starts);
        assert!(node.starts.len() <= 10, "{latency:?}: {:?}", node.starts);
    }
}

#[test]
fn a_full_disk_is_told_once() {
    let mut node = proven("a");
    node.assign("b").pass(60);
    let before = node.effects.len();
    node.store.full = true;
    node.pass(minutes(120));
    let told = count(&node, before, |it| matches!(it, Effect::Log(_, line) if line.contains("cannot be written")));
    assert_eq!(told, 1, "in two hours");
}

/// Each round costs the API server a list, and the disk its syncs.
#[test]
fn a_checkpoint_that_cannot_be_read_back_is_not_downloaded_without_a_pause() {
    let mut node = proven("a");
    node.store.loses_checkpoints = true;
    let before = node.effects.len();
    node.assign("x").pass(minutes(5));
    let saves =
        count(&node, before, |it| matches!(it, Effect::Store(StoreRequest::Save(..) | StoreRequest::SaveAnew(..))));
    assert!((3..20).contains(&saves), "saved {saves} times in five minutes");
    node.store.loses_checkpoints = false;
    node.pass(minutes(2));
    assert_eq!(node.running(), Some("x"), "{:?}", node.events());
}

fn with_state_files_of_its_own(node: &mut Node, name: &str) {
    let acknowledge = Some("cpuManagerPolicy".to_owned());
    let annotations = ConfigAnnotations { acknowledge, ..ConfigAnnotations::default() };
    node.define(name, json!({"cpuManagerPolicy": "static"}), annotations);
}

/// Stop, wait for the state files, give up, go back: a try costs two restarts, so its pause grows, and nothing wipes it.
#[test]
fn state_files_that_take_too_long_do_not_restart_the_kubelet_over_and_over() {
    for replaced_every in [u64::MAX, 600, 60, 7] {
        let mut node = proven("a");
        with_state_files_of_its_own(&mut node, "b");
        node.store.slow_swaps = true;
        let starts = node.starts.len();
        node.assign("b");
        for second in 1..=3600 {
            node.pass(1);
            if second % replaced_every == 0 {
                node.replace_worker(None);
            }
        }
        let starts = node.starts.len() - starts;
        assert!((1..=8).contains(&starts), "{starts} starts in an hour, a worker lives {replaced_every} s");
        node.store.slow_swaps = false;
        node.pass(minutes(130));
        assert_eq!(node.running(), Some("b"), "once the disk is well");
    }
}

/// Its exit would be our trouble, and held against it.
#[test]
fn a_version_is_not_started_on_the_state_files_of_another_policy() {
    let mut node = proven("a");
    with_state_files_of_its_own(&mut node, "b");
    node.store.swaps_fail = true;
    node.assign("b").pass(20);
    assert_eq!((node.running(), node.is_bad("b")), (Some("a"), false), "{:?}", node.starts);
    node.store.swaps_fail = false;
    node.pass(minutes(15));
    assert_eq!(node.last_known_good(), "b", "{:?}", node.events());
}

/// A change waits longer for the disk than a start does. What the change prepared is what starts.
#[test]
fn content_that_is_read_too_late_for_a_start_is_known_from_the_change() {
    let mut node = proven("a");
    node.store.slow_contents = true;
    let before = node.effects.len();
    node.assign("b").pass(minutes(15));
    assert_eq!(node.last_known_good(), "b", "{:?}", node.events());
    let lists = count(&node, before, |it| matches!(it, Effect::Query(_, Query::Pods)));
    let records = count(&node, before, |it| matches!(it, Effect::Store(StoreRequest::Record(..))));
    assert!(lists < 30 && records < 30, "{lists} lists of pods, {records} records");
}

/// Nobody but the monitor knows of the kubelet that runs: it ends before the files are swapped, if they are another policy's.
#[test]
fn state_files_are_not_swapped_below_a_kubelet_that_the_monitor_started() {
    let mut node = proven("a");
    with_state_files_of_its_own(&mut node, "b");
    node.assign("b").pass(minutes(12));
    assert_eq!(node.last_known_good(), "b");
    for (runs, files, restarts) in
        [("a", "cpu=none_memory=None", true), ("b", &*node.store.policy_files.clone(), false)]
    {
        let starts = node.starts.len();
        node.store.policy_files = files.to_owned();
        node.start_unseen(runs).replace_worker(Some("signal 9")).pass(60);
        assert_eq!(node.running(), Some("b"), "{:?}", node.starts);
        assert_eq!(node.starts.len() > starts, restarts, "{:?}", node.starts);
    }
}

/// They may be why a kubelet ended at once, whatever is on record of them.
#[test]
fn state_files_are_looked_at_again_after_a_kubelet_that_was_not_ready() {
    let mut node = proven("a");
    let before = node.store.swaps.len();
    node.exit(1).pass(60);
    assert_eq!(node.store.swaps.len(), before, "it was well with them");
    node.ready_after = None;
    node.exit(1).pass(5).exit(1);
    node.ready_after = Some(1);
    node.pass(60);
    assert!(node.store.swaps.len() > before);
}
