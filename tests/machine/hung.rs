//! A kubelet that hangs while nobody judges it: what is restarted, what is not, and how often.

use std::time::Duration;

use kubelet_config::policy::PolicyState;
use kubelet_config::readmission::Supply;
use kubelet_supervisor::machine::command::Command;
use kubelet_supervisor::machine::evidence::Environment;
use kubelet_supervisor::machine::limits;
use kubelet_supervisor::machine::model::RestartCause;
use kubelet_supervisor::machine::records::{Phase, Records};
use kubelet_supervisor::machine::{Counter, Effect, Input, Settings, StoreRequest};
use testkit::node::{Node, source};

use crate::prove;

const HUNG_AFTER: u64 = 300;

/// So much later it may be seen, decided and done.
const LATER: u64 = 60;

fn node() -> Node {
    Node::with(Settings { hung_after: Duration::from_secs(HUNG_AFTER), ..Settings::default() })
}

/// One whose kubelet never pinged, as before v1.32, and answers healthz.
fn without_pings() -> Node {
    let mut node = node();
    node.pings = false;
    node.exit(1).pass(60);
    assert!(node.running().is_some());
    node
}

fn dumps(node: &Node) -> usize {
    node.effects.iter().filter(|effect| **effect == Effect::DumpStacks).count()
}

/// Seconds until the kubelet is restarted because it hangs, if it is within so many.
fn until_restart(node: &mut Node, limit: u64) -> Option<u64> {
    let before = dumps(node);
    (1..=limit).find(|_| {
        node.pass(1);
        dumps(node) > before
    })
}

/// Lines of the log that say why it is not restarted.
fn spared(node: &Node) -> Vec<String> {
    let lines = node.effects.iter().filter_map(|effect| match effect {
        Effect::Log(_, line) => line.split_once("is not restarted: ").map(|(_, why)| why.to_owned()),
        _ => None,
    });
    lines.collect()
}

#[test]
fn it_is_restarted_as_it_was() {
    let mut node = node();
    node.assign("a").pass(660);
    assert_eq!((node.last_known_good(), node.starts.len()), ("a", 2), "{:?}", node.starts);
    let before = node.disk().clone();
    node.log_tail = vec!["E1121 10:00:00.000000 1 kubelet.go:1] the last line".to_owned()];
    let events = node.events().len();

    (node.pings, node.healthz) = (false, Some(false));
    assert_eq!(until_restart(&mut node, HUNG_AFTER), None);
    assert!(until_restart(&mut node, LATER).is_some());
    assert_eq!((node.running(), node.starts.len()), (Some("a"), 3), "{:?}", node.starts);
    assert_eq!(node.events()[events..], ["KubeletHung"], "and nothing else is said");
    let message = node.message("KubeletHung");
    assert!(message.contains("no WATCHDOG=1 for 5m") && message.contains("takes 10m"), "{message}");
    let event = node.effects.iter().find_map(|effect| match effect {
        Effect::Emit(event) if event.reason.as_str() == "KubeletHung" => Some(event.clone()),
        _ => None,
    });
    let event = event.unwrap();
    assert!(event.warning && event.log_tail.join("\n").contains("the last line"), "{event:?}");
    // Nothing is held against anything, and no try is spent.
    let but_for_the_run = |records: &Records| Records { started: None, ..records.clone() };
    assert_eq!(but_for_the_run(node.disk()), but_for_the_run(&before));
    assert!(node.state.config_error().is_none());
    // This one never gave a sign of life.
    assert_eq!(until_restart(&mut node, 7200), None);
}

#[test]
fn each_restart_takes_twice_as_long() {
    let mut node = without_pings();
    for (number, expected) in [300, 600, 1200, 2400, 3600, 3600].into_iter().enumerate() {
        node.healthz = Some(true);
        node.pass(60);
        node.healthz = Some(false);
        assert_eq!(until_restart(&mut node, expected), None, "the restart after {number}");
        assert!(until_restart(&mut node, LATER).is_some(), "the restart after {number}");
    }
    assert!(node.message("KubeletHung").contains("no healthz for 1h0m"), "{}", node.message("KubeletHung"));
    assert!(node.disk().bad.is_empty() && node.disk().phase == Phase::Settled);
    let hung = Effect::Count(Counter::Restart(RestartCause::Hung));
    let counted = node.effects.iter().filter(|effect| **effect == hung).count();
    assert_eq!(counted, 6);
}

#[test]
fn an_hour_of_life_undoes_that() {
    let mut node = without_pings();
    node.healthz = Some(false);
    assert!(until_restart(&mut node, HUNG_AFTER + LATER).is_some());
    node.healthz = Some(true);
    node.pass(limits::HUNG_BACKOFF_RESET.as_secs() - 60);
    node.healthz = Some(false);
    assert_eq!(until_restart(&mut node, 2 * HUNG_AFTER), None, "not quite an hour");
    assert!(until_restart(&mut node, LATER).is_some());
    node.healthz = Some(true);
    node.pass(limits::HUNG_BACKOFF_RESET.as_secs() + LATER);
    node.healthz = Some(false);
    assert!(until_restart(&mut node, HUNG_AFTER + LATER).is_some());
}

#[test]
fn another_content_undoes_that_as_well() {
    let mut node = without_pings();
    node.healthz = Some(false);
    assert!(until_restart(&mut node, HUNG_AFTER + LATER).is_some());
    node.healthz = Some(true);
    prove(&mut node, "a");
    node.healthz = Some(false);
    assert!(until_restart(&mut node, HUNG_AFTER + LATER).is_some(), "the content before hung, not this one");
}

#[test]
fn pings_stand_for_a_kubelet_that_sends_them() {
    let mut node = node();
    node.healthz = Some(false); // its port is out of reach, and its own checks pass
    assert_eq!(until_restart(&mut node, 3600), None);
    (node.healthz, node.pings) = (Some(true), false); // its sync loop is stuck
    assert!(until_restart(&mut node, HUNG_AFTER + LATER).is_some());
    // Without pings it goes by healthz, which is well.
    assert_eq!(until_restart(&mut node, 3600), None);
}

#[test]
fn one_that_never_gave_a_sign_is_let_be() {
    let mut node = node();
    (node.pings, node.healthz) = (false, Some(false));
    node.exit(1);
    assert_eq!(until_restart(&mut node, 7200), None);
    // Nor one that does not come up.
    (node.ready_after, node.healthz) = (None, Some(true));
    node.exit(1);
    assert_eq!(until_restart(&mut node, 7200), None);
}

#[test]
fn nobody_looks_where_it_is_off() {
    let mut off = Node::with(Settings { hung_after: Duration::ZERO, ..Settings::default() });
    let mut without_healthz = node();
    for node in [&mut off, &mut without_healthz] {
        (node.pings, node.healthz) = (false, None);
        node.exit(1).pass(60);
        let before = node.effects.len();
        assert_eq!(until_restart(node, 3600), None);
        let asked = |effect: &&Effect| matches!(effect, Effect::Probe(..) | Effect::Query(..));
        assert_eq!(node.effects[before..].iter().find(asked), None);
    }
}

#[test]
fn an_ill_machine_is_nobodys_fault() {
    let well = Environment { runtime: Some(true), ..Environment::default() };
    let short_of = |name: &str, available: u64| {
        let supply = Supply { available, capacity: 1 << 40 };
        Environment { supplies: [(name.to_owned(), supply)].into(), ..well.clone() }
    };
    for (environment, why) in [
        (Environment { runtime: Some(false), ..well.clone() }, "the container runtime does not answer"),
        (Environment { runtime: None, ..well.clone() }, "--container-runtime-endpoint"),
        (Environment { disk_full: true, ..well.clone() }, "the disk is full"),
        (Environment { shutting_down: true, ..well.clone() }, "the system is shutting down"),
        (short_of("memory.available", 50 << 20), "the machine is short of memory"),
        (short_of("pid.available", 7), "the machine is short of process ids"),
    ] {
        let mut node = without_pings();
        node.environment = environment;
        node.healthz = Some(false);
        assert_eq!(until_restart(&mut node, 3600), None, "{why}");
        let said = spared(&node);
        assert!(said.len() == 1 && said[0].contains(why), "said once: {said:?}");
        assert!(!node.events().contains(&"KubeletHung"));
    }
}

#[test]
fn a_runtime_that_was_away_gives_the_whole_time_again() {
    let mut node = without_pings();
    (node.environment.runtime, node.healthz) = (Some(false), Some(false));
    assert_eq!(until_restart(&mut node, 2 * HUNG_AFTER), None);
    while spared(&node).is_empty() {
        node.pass(1);
    }
    // It is back right after somebody looked.
    node.pass(HUNG_AFTER / 2);
    let before = node.effects.iter().filter(|effect| matches!(effect, Effect::Query(..))).count();
    while node.effects.iter().filter(|effect| matches!(effect, Effect::Query(..))).count() == before {
        node.pass(1);
    }
    node.environment.runtime = Some(true);
    assert_eq!(until_restart(&mut node, HUNG_AFTER - 1), None);
    assert!(until_restart(&mut node, LATER).is_some());
}

#[test]
fn nothing_is_done_that_nobody_can_judge() {
    let mut node = without_pings();
    (node.queries_answered, node.healthz) = (false, Some(false));
    assert_eq!(until_restart(&mut node, 3600), None);
    node.queries_answered = true;
    assert!(until_restart(&mut node, LATER).is_some(), "the time was over long ago");
}

#[test]
fn sleep_and_moments_of_life_begin_the_time_anew() {
    let mut node = without_pings();
    node.healthz = Some(false);
    for _ in 0..4 {
        node.pass(HUNG_AFTER / 2);
        node.now += Duration::from_secs(7200);
    }
    for _ in 0..4 {
        node.pass(HUNG_AFTER - 60);
        node.healthz = Some(true);
        node.pass(20);
        node.healthz = Some(false);
    }
    assert_eq!(dumps(&node), 0);
    assert!(until_restart(&mut node, HUNG_AFTER + LATER).is_some());
}

#[test]
fn one_that_minds_no_signal_is_killed() {
    let mut node = without_pings();
    (node.healthz, node.is_deaf) = (Some(false), true);
    assert!(until_restart(&mut node, HUNG_AFTER + LATER).is_some());
    let starts = node.starts.len();
    node.pass(limits::STOP_GRACE.as_secs() - 2);
    assert_eq!(node.starts.len(), starts);
    node.pass(4);
    assert_eq!((node.starts.len(), node.running()), (starts + 1, Some("")));
}

#[test]
fn a_trial_has_its_own_verdict() {
    let mut node = node();
    node.assign("a").pass(60);
    (node.pings, node.healthz) = (false, Some(false));
    node.pass(45);
    node.healthz = Some(true);
    node.pass(HUNG_AFTER + LATER);
    assert_eq!((node.starts.len(), node.running()), (3, Some("")), "{:?}", node.starts);
    assert!(node.events().contains(&"KubeletConfigRolledBack"));
    assert_eq!(dumps(&node), 0);
}

#[test]
fn the_wait_for_a_retry_has_none() {
    let mut node = node();
    node.ready_after = None;
    node.assign("a").exit(255); // a
    node.exit(255); // local: not to blame
    node.ready_after = Some(1);
    node.pass(11).exit(255).pass(15);
    assert!(matches!(node.state.records().phase, Phase::RetryLater(..)), "{:?}", node.events());
    (node.pings, node.healthz) = (false, Some(false));
    assert!(until_restart(&mut node, HUNG_AFTER + LATER).is_some());
    let before = node.starts.len();
    (node.pings, node.healthz) = (true, Some(true));
    node.pass(HUNG_AFTER);
    assert!(
        node.starts[before..].contains(&"a".to_owned()),
        "it is tried again: {:?} {:?}",
        node.starts,
        node.events()
    );
}

/// Contact failed, and last known good is on test for that: it hangs, which tells nothing of contact.
#[test]
fn a_control_test_for_another_sign_has_none() {
    let mut node = node();
    node.cuts_contact.insert("a".to_owned());
    node.assign("a");
    while node.running() == Some("a") {
        node.pass(1);
    }
    assert!(matches!(node.state.records().phase, Phase::ControlTest(..)), "{:?}", node.events());
    node.pass(11);
    (node.pings, node.healthz) = (false, Some(false));
    assert!(until_restart(&mut node, HUNG_AFTER + LATER).is_some());
    (node.pings, node.healthz) = (true, Some(true));
    node.pass(60);
    assert!(node.disk().phase == Phase::Settled && node.is_bad("a"), "{:?}", node.events());
}

/// What was seen of it while it was judged counts, though nothing else of that time does.
#[test]
fn one_that_was_well_on_trial_was_alive() {
    let mut node = without_pings();
    node.assign("a").pass(60);
    node.healthz = Some(false);
    node.obey(Command::Pin { to: None }); // before anybody looks again
    assert!(until_restart(&mut node, HUNG_AFTER + LATER).is_some());
}

#[test]
fn a_change_that_comes_goes_first() {
    let mut node = without_pings();
    node.healthz = Some(false);
    node.pass(HUNG_AFTER - 10);
    node.preflight_answers = false;
    node.assign("a");
    assert_eq!(until_restart(&mut node, limits::PREFLIGHT_DEADLINE.as_secs() - 10), None);
    (node.healthz, node.preflight_answers) = (Some(true), true);
    node.end_preflight().pass(30);
    assert_eq!((node.running(), dumps(&node)), (Some("a"), 0), "one restart is enough");
}

#[test]
fn what_is_pinned_stays_pinned() {
    let mut node = node();
    node.assign("a").pass(30).obey(Command::Pin { to: None }).assign("b");
    node.pass(30);
    (node.pings, node.healthz) = (false, Some(false));
    assert!(until_restart(&mut node, HUNG_AFTER + LATER).is_some());
    node.pass(5);
    assert_eq!((node.running(), node.starts.len()), (Some("a"), 3), "{:?}", node.starts);
}

/// What would be started comes a second later than it is waited for at first.
#[test]
fn a_hang_is_told_from_a_slow_disk() {
    let mut node = without_pings();
    node.store.latency = Duration::from_secs(6);
    node.pass(60);
    node.healthz = Some(false);
    assert!(until_restart(&mut node, 3 * HUNG_AFTER).is_some(), "{:?}", spared(&node));
}

/// Its content is gone, and nobody has it: a restart would be one into another configuration.
#[test]
fn what_could_not_be_started_again_is_let_be() {
    let mut node = node();
    node.assign("a").pass(700);
    assert_eq!((node.running(), node.last_known_good()), (Some("a"), "a"));
    node.api = false;
    node.store.lose(&source("a"));
    node.step(Input::StoreTouched).pass(30);
    (node.pings, node.healthz) = (false, Some(false));
    assert_eq!(until_restart(&mut node, 3 * HUNG_AFTER), None);
    assert!(spared(&node).iter().any(|line| line.contains("damaged in the store")), "{:?}", spared(&node));
    assert_eq!(node.running(), Some("a"));
}

/// A kubelet that waits for the disk would not come up again either.
#[test]
fn a_disk_that_stalls_is_told_from_a_hang() {
    let mut node = without_pings();
    node.stall();
    node.healthz = Some(false);
    assert_eq!(until_restart(&mut node, 4 * HUNG_AFTER), None);
    let said = spared(&node);
    assert!(said.len() == 1 && said[0].contains("the disk may stall"), "said once: {said:?}");
    assert!(!node.events().contains(&"KubeletHung"));
}

#[test]
fn a_disk_that_stalls_and_ends_gives_the_whole_time_again() {
    let mut node = without_pings();
    node.stall();
    node.healthz = Some(false);
    let is_spared = |_: &u64| {
        node.pass(1);
        !spared(&node).is_empty()
    };
    assert!((0..HUNG_AFTER + LATER).find(is_spared).is_some());
    node.end_stall(); // an answer that comes late decides nothing
    assert_eq!(until_restart(&mut node, HUNG_AFTER - 1), None);
    assert!(until_restart(&mut node, LATER).is_some());
}

#[test]
fn what_comes_to_life_while_the_disk_is_asked_is_let_be() {
    let mut node = node();
    node.pass(60);
    node.pings = false;
    node.stall();
    let is_asked = |_: &u64| {
        node.pass(1);
        node.effects.contains(&Effect::Store(StoreRequest::ProbeDisk))
    };
    assert!((0..HUNG_AFTER + LATER).find(is_asked).is_some());
    node.step(Input::Watchdog).end_stall();
    assert_eq!(until_restart(&mut node, HUNG_AFTER - LATER), None);
}

#[test]
fn what_the_disk_does_not_give_is_not_started_again() {
    let mut node = node();
    node.assign("a").pass(700);
    node.store.unreadable.insert("a".to_owned());
    (node.pings, node.healthz) = (false, Some(false));
    assert_eq!(until_restart(&mut node, 2 * HUNG_AFTER), None);
    assert!(spared(&node).iter().any(|line| line.contains("cannot be loaded")), "{:?}", spared(&node));
    node.store.unreadable.clear();
    assert!(until_restart(&mut node, LATER).is_some());
    assert_eq!(node.running(), Some("a"));
}

/// It hangs, while the machine around it is well.
fn hang(node: &mut Node) {
    (node.healthz, node.contact, node.is_ready, node.pings) = (Some(false), false, false, false);
}

fn revive(node: &mut Node) {
    (node.healthz, node.contact, node.is_ready, node.pings) = (Some(true), true, true, true);
}

/// The kubelet before the change hung, so that no sign of life is in the baseline, and no trial judges by one.
#[test]
fn one_that_no_trial_can_judge_is_restarted() {
    for pings in [false, true] {
        let watchdog = pings.then_some(Duration::from_secs(30));
        let mut node =
            Node::with(Settings { watchdog, hung_after: Duration::from_secs(HUNG_AFTER), ..Settings::default() });
        prove(&mut node, "a");
        hang(&mut node);
        node.pass(120).assign("fix");
        revive(&mut node);
        node.pings = pings;
        node.pass(300);
        assert_eq!(node.running(), Some("fix"), "{:?}", node.events());
        hang(&mut node);
        let before = node.effects.len();
        assert!(until_restart(&mut node, HUNG_AFTER + LATER).is_some(), "{:?}", node.events());
        let until = node.effects[before..].iter().take_while(|effect| **effect != Effect::DumpStacks);
        assert_eq!(until.filter(|effect| **effect == Effect::PingWatchdog).count(), 0, "systemd may act as well");
    }
}

/// An outage of the API server suspends the trial: that comes to no verdict.
#[test]
fn one_that_hangs_in_a_suspended_trial_is_restarted() {
    let mut node = node();
    prove(&mut node, "a");
    node.assign("b").pass(300);
    node.api = false;
    node.pass(60);
    hang(&mut node);
    assert!(until_restart(&mut node, HUNG_AFTER + LATER).is_some(), "{:?}", node.events());
    node.pass(30);
    assert_eq!(node.running(), Some("b"), "with the same configuration");
}

#[test]
fn one_that_the_policy_does_not_let_start_again_is_left() {
    let mut node = node();
    node.store.policy = PolicyState::InForce;
    prove(&mut node, "a");
    prove(&mut node, "b");
    node.store.forbidden.insert("b".to_owned());
    node.step(Input::PolicyChanged).pass(5);
    hang(&mut node);
    assert_eq!(until_restart(&mut node, 2 * HUNG_AFTER), None, "it would be another configuration");
    assert!(spared(&node).iter().any(|why| why.contains("policy")), "{:?}", spared(&node));
}
