//! What an accepted change waits for before it restarts the kubelet, and what it does not.

use std::time::Duration;

use kubelet_config::pods::{PodInventory, PodSummary};
use kubelet_config::source::ConfigAnnotations;
use kubelet_supervisor::machine::command::{Command, Target};
use kubelet_supervisor::machine::evidence::{Hold, NodePressure, Query};
use kubelet_supervisor::machine::status::node_status;
use kubelet_supervisor::machine::{Effect, Input, Settings, StoreRequest};
use serde_json::{Value, json};
use testkit::node::{Node, source, torn};

use crate::{acknowledged, pod};

const COURTESY: u64 = 30;

/// A node with `a` proven.
fn proven() -> Node {
    let mut node = Node::with(Settings { courtesy: Duration::from_secs(COURTESY), ..Settings::default() });
    node.assign("a").pass(660);
    assert_eq!(node.last_known_good(), "a");
    node
}

fn with_courtesy(text: Option<&str>) -> ConfigAnnotations {
    ConfigAnnotations { courtesy: text.map(str::to_owned), ..ConfigAnnotations::default() }
}

fn under_pressure() -> Node {
    let mut node = proven();
    node.pressure = [NodePressure::Disk].into();
    node.pass(10);
    node
}

fn hold(node: &Node) -> Option<Hold> {
    node.state.waiting().map(|waiting| waiting.hold.clone())
}

fn told(node: &Node) -> usize {
    node.events().iter().filter(|reason| **reason == "KubeletConfigWaiting").count()
}

#[test]
fn it_waits_for_streams_and_no_longer() {
    let mut node = proven();
    node.streams = Some(2);
    node.assign("b");
    assert!(node.until_start(20).is_none());
    assert_eq!((hold(&node), told(&node)), (Some(Hold::Streams(2)), 1));
    let condition = node_status(&node.state).condition;
    assert_eq!(condition.reason.as_str(), "Scheduled");
    assert!(condition.message.starts_with("Takes effect at 2023-"), "{}", condition.message);
    node.streams = Some(0);
    assert!(node.until_start(2).is_some());
    assert_eq!((node.active(), hold(&node)), ("b", None));
}

/// The courtesy does not end and begin again in an outage: each would be told.
#[test]
fn streams_in_an_outage_are_waited_for_once_it_is_over() {
    let mut node = proven();
    (node.streams, node.busy) = (Some(1), true);
    node.assign("b");
    let told_in_an_hour = |node: &mut Node| {
        let before = node.published.len();
        assert!(node.until_start(3600).is_none());
        node.published.len() - before
    };
    told_in_an_hour(&mut node);
    assert_eq!((told_in_an_hour(&mut node), told(&node), hold(&node)), (0, 1, Some(Hold::ApiServer)));
    node.busy = false;
    let waited = node.until_start(120).unwrap();
    assert!((COURTESY..=COURTESY + 60).contains(&waited), "{waited}");
    assert_eq!(told(&node), 2);
}

/// An outage in between does not begin it anew.
#[test]
fn a_courtesy_that_is_spent_stays_spent() {
    let mut node = proven();
    node.streams = Some(1);
    node.assign("b").pass(COURTESY - 5);
    node.busy = true;
    node.pass(10);
    assert_eq!(hold(&node), Some(Hold::ApiServer));
    node.busy = false;
    let waited = node.until_start(120).unwrap();
    assert!(waited < COURTESY, "{waited}");
    assert_eq!((node.active(), told(&node)), ("b", 2));
}

/// What was good when the wait began is no baseline: the node is asked anew.
#[test]
fn an_api_server_that_goes_away_meanwhile_is_waited_for() {
    let mut node = proven();
    node.streams = Some(1);
    node.assign("b").pass(5);
    assert_eq!(hold(&node), Some(Hold::Streams(1)));
    (node.streams, node.queries_answered) = (Some(0), false);
    assert!(node.until_start(600).is_none());
    assert_eq!((hold(&node), told(&node)), (Some(Hold::ApiServer), 2));
    node.queries_answered = true;
    assert!(node.until_start(61).is_some());
}

#[test]
fn what_does_not_end_delays_it_by_the_courtesy() {
    for (annotation, waits) in [(None, COURTESY), (Some("7s"), 7), (Some("1m"), 60)] {
        let mut node = proven();
        node.streams = Some(1);
        node.define("b", json!({}), with_courtesy(annotation)).assign("b");
        assert_eq!(node.until_start(waits + 2), Some(waits - 1), "in second {waits}");
        assert_eq!(node.active(), "b");
    }
}

#[test]
fn without_a_courtesy_nobody_asks() {
    let mut node = proven();
    node.streams = Some(1);
    node.define("b", json!({}), with_courtesy(Some("0")));
    let starts = node.starts.len();
    node.effects.clear();
    node.assign("b").pass(1);
    assert_eq!(node.starts.len(), starts + 1);
    assert!(!node.effects.iter().any(|effect| matches!(effect, Effect::Query(_, Query::Streams(..)))));
}

/// Nothing starts that is not durably saved. Once the courtesy is over it is the disk that holds the change.
#[test]
fn what_the_disk_holds_is_not_said_to_wait_for_streams() {
    let mut node = proven();
    node.assign("b").pass(45);
    node.streams = Some(1);
    node.assign("c");
    node.store.full = true; // what `b` earned is saved each minute
    node.pass(COURTESY - 5);
    assert_eq!(hold(&node), Some(Hold::Streams(1)));
    node.pass(10);
    assert_eq!((hold(&node), node.active()), (None, "b"));
    let condition = node_status(&node.state).condition;
    assert!(condition.message.ends_with("no space left on device"), "{}", condition.message);
    node.store.full = false;
    assert!(node.until_start(60).is_some());
    assert_eq!(node.active(), "c");
}

/// A wait may be long, and an administrator goes on editing: what nobody asks for any more does not fill the disk.
#[test]
fn what_was_overtaken_while_it_waited_is_removed() {
    let spread = || {
        let mut node = Node::with(Settings { spread_assignment: Duration::from_secs(3600), ..Settings::default() });
        node.assign("a").pass(3600 + 660);
        node
    };
    let starts: [fn() -> Node; 2] = [under_pressure, spread];
    for start in starts {
        let mut node = start();
        node.assign("b").assign("c");
        assert_eq!((node.active(), node.state.pid().is_some()), ("a", true));
        let kept = node.effects.iter().rev().find_map(|effect| match effect {
            Effect::Store(StoreRequest::Collect(sources, digests)) => Some((sources.clone(), digests.len())),
            _ => None,
        });
        assert_eq!(kept, Some(([source("a"), source("c")].into(), 2)));
        node.pressure.clear();
        node.pass(3600);
        assert_eq!(node.active(), "c");
    }
}

#[test]
fn what_cannot_be_known_holds_nothing() {
    let mut node = proven();
    node.streams = None;
    let starts = node.starts.len();
    node.assign("b");
    assert_eq!((node.starts.len(), told(&node)), (starts + 1, 0));
    let says = |effect: &Effect| matches!(effect, Effect::Log(_, line) if line.contains("streams cannot be seen"));
    assert!(node.effects.iter().any(says));
    // Nor does who never answers, but for the API server: six seconds for all of them.
    let mut node = proven();
    node.hold().assign("b").pass(5);
    assert!(hold(&node).is_none());
    node.pass(1);
    assert_eq!(hold(&node), Some(Hold::ApiServer));
    node.release().pass(10);
    assert_eq!(node.active(), "b");
}

#[test]
fn a_courtesy_that_is_none_is_refused() {
    for (text, why) in [("soon", "duration"), ("2h", "2h0m0s is more than 1h0m0s")] {
        let mut node = proven();
        node.define("b", json!({}), with_courtesy(Some(text))).assign("b");
        let condition = node_status(&node.state).condition;
        assert_eq!((condition.reason.as_str(), node.active()), ("Rejected", "a"));
        assert!(condition.message.contains("annotation kubelet-supervisor.io/courtesy: "), "{}", condition.message);
        assert!(condition.message.contains(why), "{}", condition.message);
    }
}

#[test]
fn the_way_back_and_a_kubelet_that_is_not_up_do_not_wait() {
    // Somebody assigns last known good while `b` is on trial: a start is left in peace for ten seconds.
    let mut node = proven();
    node.assign("b").pass(20);
    node.streams = Some(1);
    let starts = node.starts.len();
    node.assign("a");
    assert_eq!((node.starts.len(), node.active()), (starts + 1, "a"));
    // An operator goes back.
    let mut node = proven();
    node.assign("b").pass(20);
    node.streams = Some(1);
    node.obey(Command::Rollback { to: Target::Lkg });
    assert_eq!(node.active(), "a");
    // A trial fails, of a kubelet that runs and says no more that it is healthy.
    let mut node = proven();
    node.assign("b").pass(20);
    (node.streams, node.healthz) = (Some(1), Some(false));
    node.pass(60);
    assert_eq!((node.active(), told(&node)), ("a", 0), "{:?}", node.events());
    // The assignment is taken back.
    let mut node = proven();
    node.streams = Some(1);
    node.step(Input::Node(kubelet_config::assignment::Assignment::Local));
    assert_eq!(node.active(), "");
    // A kubelet that does not come up has nothing that could be cut.
    let mut node = proven();
    (node.streams, node.ready_after) = (Some(1), None);
    node.exit(1).pass(30);
    let starts = node.starts.len();
    node.assign("b").pass(1);
    assert_eq!((node.starts.len(), node.starts.last().unwrap().as_str()), (starts + 1, "b"));
}

#[test]
fn a_wait_that_is_interrupted_does_not_begin_anew() {
    let interruptions: [fn(&mut Node) -> &mut Node; 2] =
        [|node| node.obey(Command::Freeze).obey(Command::Thaw), |node| node.step(Input::PolicyChanged)];
    for interrupt in interruptions {
        let mut node = proven();
        node.streams = Some(1);
        node.assign("b").pass(10);
        assert_eq!(interrupt(&mut node).until_start(40), Some(COURTESY - 10 - 1));
        assert_eq!((node.active(), told(&node)), ("b", 1));
    }
}

#[test]
fn a_newer_version_or_none_ends_the_wait() {
    let mut node = proven();
    node.streams = Some(1);
    node.assign("b").pass(10).assign("a");
    assert!(node.state.waiting().is_none() && node.until_start(60).is_none(), "as it was");
    node.assign("b").pass(10);
    node.step(Input::ConfigMapFailed { why: "the ConfigMap does not exist".into(), definite: true });
    assert!(node.state.waiting().is_none() && node.until_start(60).is_none());
    assert_eq!(node.active(), "a");
}

#[test]
fn it_waits_for_as_long_as_the_node_is_under_pressure() {
    let mut node = under_pressure();
    node.streams = Some(1);
    node.assign("b");
    assert!(node.until_start(3600).is_none());
    assert_eq!((hold(&node), told(&node)), (Some(Hold::Pressure([NodePressure::Disk].into())), 1));
    let condition = node_status(&node.state).condition;
    assert!(condition.message.starts_with("Waits while the Node has DiskPressure: "), "{}", condition.message);
    // What runs through the kubelet is waited for then. The Node tells every ten seconds.
    node.pressure.clear();
    node.pass(10);
    assert_eq!((hold(&node), told(&node)), (Some(Hold::Streams(1)), 2));
    let waited = node.until_start(40).unwrap();
    assert!((COURTESY - 11..=COURTESY).contains(&waited), "{waited}");
    assert_eq!(node.active(), "b");
}

#[test]
fn pressure_that_the_change_may_end_does_not_hold_it() {
    let plain = json!({});
    let cases: [(&Value, Option<&str>, bool); 6] = [
        (&plain, None, true),
        (&json!({"maxPods": 50}), None, true),
        (&json!({"evictionHard": {"nodefs.available": "1%"}}), None, false),
        (&json!({"imageGCHighThresholdPercent": 60}), None, false),
        (&json!({"systemReserved": {"memory": "1Gi"}}), None, false),
        (&plain, Some("pods"), false),
    ];
    for (fields, acknowledge, waits) in cases {
        let mut node = under_pressure();
        node.define("b", fields.clone(), acknowledged(acknowledge));
        let starts = node.starts.len();
        node.assign("b").pass(60);
        assert_eq!(node.starts.len() == starts, waits, "{fields} {:?}", node.events());
    }
    // What runs is the node's own content under another name: it is not on trial for that.
    let mut node = Node::new();
    node.alias("own", "local").assign("own");
    node.pressure = [NodePressure::Disk].into();
    node.pass(20);
    let starts = node.starts.len();
    node.assign("b").pass(60);
    assert_eq!(node.starts.len(), starts);
    // It may be the work of what is on trial.
    let mut node = proven();
    node.assign("b").pass(20);
    node.pressure = [NodePressure::Memory].into();
    node.pass(10).assign("c").pass(1);
    assert_eq!(node.active(), "c");
    // Or of what failed meanwhile.
    node.obey(Command::Rollback { to: Target::Lkg }).pass(1);
    assert_eq!(node.active(), "a");
}

/// A withdrawn assignment is a restart as well. It waits for nothing else, and is not held up for what it costs.
#[test]
fn a_reset_waits_for_the_end_of_a_pressure_and_tells_what_it_costs() {
    let mut node = under_pressure();
    node.streams = Some(1);
    let withdrawn = || Input::Node(kubelet_config::assignment::Assignment::Local);
    node.step(withdrawn());
    assert!(node.until_start(600).is_none());
    assert_eq!((hold(&node), told(&node)), (Some(Hold::Pressure([NodePressure::Disk].into())), 1));
    let status = node_status(&node.state);
    assert_eq!((status.assigned, node.active()), (None, "a"));
    assert!(
        status.condition.message.ends_with("DiskPressure: the local configuration"),
        "{}",
        status.condition.message
    );
    node.assign("a");
    assert!(node.state.waiting().is_none() && node.until_start(20).is_none(), "as it was");
    node.step(withdrawn()).pass(2);
    node.pressure.clear();
    node.pass(12);
    assert_eq!((node.active(), told(&node)), ("", 2));

    let mut node = Node::with(Settings::default());
    node.define("few", json!({"maxPods": 500}), ConfigAnnotations::default()).assign("few").pass(660);
    let pods = (0..111).map(|number| pod(&format!("p{number:03}")));
    node.inventory = PodInventory { pods: pods.collect(), ..PodInventory::default() };
    node.step(withdrawn());
    assert_eq!(node.active(), "");
    let says = |effect: &Effect| matches!(effect, Effect::Log(_, line) if line.contains("default/p110 (OutOfpods)"));
    assert!(node.effects.iter().any(says));
}

/// Nobody knows what that would change, and it restarts the kubelet all the same.
#[test]
fn a_reset_to_a_local_file_that_cannot_be_read_waits_for_the_end_of_a_pressure_too() {
    let mut node = Node::with(Settings::default());
    node.define("a", json!({"kubeReserved": {"memory": "1Gi"}}), ConfigAnnotations::default()).assign("a");
    node.pass(660);
    (node.pressure, node.store.local_fault) = ([NodePressure::Disk].into(), Some(torn()));
    node.pass(10).step(Input::Node(kubelet_config::assignment::Assignment::Local));
    assert!(node.until_start(600).is_none());
    assert_eq!((node.active(), hold(&node)), ("a", Some(Hold::Pressure([NodePressure::Disk].into()))));
    node.pressure.clear();
    assert!(node.until_start(20).is_some());
    assert_eq!(node.active(), "");
    // Without one it is as it was: at once.
    let mut node = proven();
    node.store.local_fault = Some(torn());
    node.step(Input::Node(kubelet_config::assignment::Assignment::Local));
    assert_eq!(node.active(), "");
}

/// A pod that needs a label that the Node has no longer: any kubelet that starts refuses it.
fn stray() -> PodInventory {
    let pod = PodSummary { node_selector: json!({"disk": "ssd"}), ..pod("db") };
    let mut inventory = PodInventory { pods: vec![pod], ..PodInventory::default() };
    inventory.node.labels = Some([("disk".to_owned(), "hdd".to_owned())].into());
    inventory
}

fn label(node: &Node) -> Option<&'static str> {
    hold(node).map(|hold| hold.label())
}

#[test]
fn it_waits_for_as_long_as_any_restart_would_cost_pods() {
    for courtesy in ["30s", "0"] {
        let mut node = proven();
        node.inventory = stray();
        node.streams = Some(1);
        node.define("b", json!({"syncFrequency": "2m"}), with_courtesy(Some(courtesy))).assign("b");
        assert!(node.until_start(3600).is_none(), "{:?}", node.events());
        assert_eq!((label(&node), told(&node)), (Some("pods-lost"), 1));
        let message = node_status(&node.state).condition.message;
        let told = "Waits while any restart would cost pods (move them away, or accept it: annotation \
                    kubelet-supervisor.io/acknowledge: pods): default/db (NodeAffinity): ";
        assert!(message.starts_with(told), "{message}");
        // It has gone; pods are asked for each minute by now, and what runs through the kubelet is waited for then.
        node.inventory.pods.clear();
        for _ in 0..60 {
            if label(&node) == Some("pods-lost") {
                node.pass(1);
            }
        }
        assert_eq!(label(&node), (courtesy != "0").then_some("streams"));
        assert_eq!(node.until_start(40).is_some(), courtesy != "0");
        assert_eq!((node.active(), node.events().contains(&"KubeletConfigRejected")), ("b", false));
    }
}

#[test]
fn pods_lost_to_any_restart_hold_only_what_can_be_acknowledged_and_is_known() {
    let terminating = |mut inventory: PodInventory| {
        inventory.pods[0].is_terminating = true;
        inventory
    };
    let unknown = |mut inventory: PodInventory| {
        inventory.node.labels = None;
        inventory
    };
    // Acknowledged; going anyway; not known.
    for (inventory, acknowledge) in [(stray(), Some("pods")), (terminating(stray()), None), (unknown(stray()), None)] {
        let mut node = proven();
        node.inventory = inventory;
        node.define("b", json!({"syncFrequency": "2m"}), acknowledged(acknowledge)).assign("b").pass(1);
        assert_eq!(node.active(), "b", "{acknowledge:?}");
    }
    // What was never listed holds nothing. A list that fails does not say that they are gone.
    let mut node = proven();
    (node.inventory, node.lists_pods) = (stray(), false);
    node.assign("b").pass(1);
    assert_eq!(node.active(), "b");
    let mut node = proven();
    node.inventory = stray();
    node.assign("b").pass(20);
    node.lists_pods = false;
    node.pass(60);
    assert_eq!((label(&node), node.active()), (Some("pods-lost"), "a"));
    // What the change would cost itself refuses it, so that nobody accepts with the one what was not named.
    let mut node = proven();
    node.inventory = stray();
    let fits = |name: &str| PodSummary { name: name.to_owned(), node_selector: Value::Null, ..stray().pods[0].clone() };
    node.inventory.pods.extend([fits("default/web"), fits("default/worker")]);
    node.define("b", json!({"maxPods": 1}), ConfigAnnotations::default()).assign("b").pass(5);
    let message = node.message("KubeletConfigRejected");
    assert!(message.contains("default/worker (OutOfpods)"), "{message}");
    // The ways back, by an assignment, an operator, and a reset: there is no ConfigMap to acknowledge it.
    let ways_back: [fn(&mut Node) -> &mut Node; 3] = [
        |node| node.assign("a"),
        |node| node.obey(Command::Rollback { to: Target::Lkg }),
        |node| node.step(Input::Node(kubelet_config::assignment::Assignment::Local)),
    ];
    for (go_back, runs) in ways_back.into_iter().zip(["a", "a", ""]) {
        let mut node = proven();
        node.assign("b").pass(20);
        node.inventory = stray();
        go_back(&mut node).pass(1);
        assert_eq!(node.active(), runs);
    }
}

#[test]
fn pressure_that_comes_while_the_baseline_is_waited_for_holds_it_too() {
    let mut node = proven();
    node.hold().assign("b").pass(4); // the baseline was asked for, and nobody answers
    let starts = node.starts.len();
    let readiness = kubelet_supervisor::machine::evidence::NodeReadiness {
        ready: true,
        heartbeat: "now".to_owned(),
        pressure: [NodePressure::Pid].into(),
        ..Default::default()
    };
    node.pressure.clone_from(&readiness.pressure);
    node.step(Input::NodeObserved(readiness)).release().pass(30);
    assert_eq!((node.starts.len(), hold(&node)), (starts, Some(Hold::Pressure([NodePressure::Pid].into()))));
}

/// A verdict that takes longer than anybody waits for it is a slow verdict.
#[test]
fn a_verdict_that_comes_late_counts_while_the_change_waits() {
    let mut node = under_pressure();
    node.refuse("b").preflight_answers = false;
    node.assign("b").pass(150);
    assert_eq!(hold(&node), Some(Hold::Pressure([NodePressure::Disk].into())), "it is waited for no longer");
    node.end_preflight();
    assert!(node.events().contains(&"KubeletConfigRejected"), "{:?}", node.events());
    node.pressure.clear();
    assert!(node.until_start(60).is_none());
    assert_eq!(node.active(), "a");
}

/// The verdict is of the content and the binary, and not of the change that asked for it.
#[test]
fn a_verdict_that_comes_late_counts_for_the_change_that_begins_anew() {
    let mut node = under_pressure();
    node.refuse("b").preflight_answers = false;
    node.assign("b").pass(150);
    node.obey(Command::Freeze).end_preflight();
    assert!(!node.is_bad("b"), "nothing is judged while changes are held");
    node.obey(Command::Thaw).pass(5);
    assert!(node.is_bad("b") && node.active() == "a", "{:?}", node.events());
    assert_eq!(node.preflights, ["a", "b"], "it was asked for once");
}

/// What it was refused for may lie outside of it, and be mended: whoever asks for a retry gets one.
#[test]
fn a_verdict_that_came_late_is_asked_for_anew_by_a_retry() {
    let mut node = under_pressure();
    node.refuse("b").preflight_answers = false;
    node.assign("b").pass(150).end_preflight();
    assert!(node.is_bad("b"));
    (node.refused, node.preflight_answers) = (Vec::new(), true);
    node.pressure.clear();
    node.obey(Command::Retry).pass(10);
    assert_eq!(node.preflights, ["a", "b", "b"]);
    assert!(node.active() == "b" && !node.is_bad("b"), "{:?}", node.events());
}

/// That a question came to nothing for one who asked is no verdict for another.
#[test]
fn no_verdict_after_its_time_admits_nothing() {
    let mut node = proven();
    node.create("b", json!({"maxPods": 9}), ConfigAnnotations::default()).refuse("b");
    (node.preflight_answers, node.inconclusive) = (false, true);
    node.request(Some("n/b")).pass(150).end_preflight();
    (node.preflight_answers, node.inconclusive) = (true, false);
    node.assign("b").pass(60);
    assert!(node.is_bad("b") && node.active() == "a", "{:?}", node.preflights);
}

/// While something else holds the change, the courtesy has not begun, and has no end.
#[test]
fn a_short_courtesy_does_not_wake_the_machine_while_the_api_server_is_away() {
    let mut node = proven();
    node.define("b", json!({}), with_courtesy(Some("1ms")));
    node.busy = true;
    node.assign("b").pass(120);
    assert_eq!(hold(&node), Some(Hold::ApiServer));
    node.step(Input::Tick);
    let due = node.state.deadline().expect("it is asked for again");
    assert!(due > node.now + Duration::from_millis(100), "{due:?} {:?}", node.now);
}

/// What was sick before cannot be held against a version, and does not prove it: the condition says what is missing.
#[test]
fn a_trial_whose_clock_stands_still_says_for_what() {
    let mut node = Node::new();
    node.healthz = Some(false);
    node.pass(60).assign("x").pass(100);
    let message = |node: &Node| node_status(&node.state).condition.message;
    assert!(message(&node).starts_with("On trial: "), "{}", message(&node));
    node.pass(60);
    assert!(message(&node).starts_with("On trial, not healthy for want of healthz: "), "{}", message(&node));
    node.healthz = Some(true);
    node.pass(30);
    assert!(message(&node).starts_with("On trial until "), "{}", message(&node));
}
