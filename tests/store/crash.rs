//! Crash tests: a fault at every single disk operation of a long story, and the laws after it.

mod content;
mod history;
mod records;
mod state_files;

use std::time::Duration;

use kubelet_config::assignment::Assignment;
use kubelet_supervisor::machine::Settings;
use testkit::sim::disk::{Fault, Plan};
use testkit::sim::harness::Node;
use testkit::sim::world::{Behaviour, Outside};

/// Shorter than native's, because every probe of it is simulated some thousand times.
const TRIAL: Duration = Duration::from_secs(40);

/// What an administrator does, and how long the node is left alone after it.
type Chapter = (fn(&mut Outside), Duration);

const STORY: &[(&str, Chapter)] = &[
    ("boot on local", (|_| {}, Duration::from_secs(20))),
    (
        "assign A, which earns last known good",
        (
            |outside| {
                outside.put("a", &Behaviour::Good.text(1));
                outside.assign("a");
            },
            Duration::from_secs(60),
        ),
    ),
    (
        "assign B, which is on trial when",
        (
            |outside| {
                outside.put("b", &Behaviour::Good.text(2));
                outside.assign("b");
            },
            Duration::from_secs(20),
        ),
    ),
    (
        "C comes and is rolled back for its exits",
        (
            |outside| {
                outside.put("c", &Behaviour::DiesAfter(5).text(3));
                outside.assign("c");
            },
            Duration::from_secs(30),
        ),
    ),
    ("then invalid C is refused", (|outside| outside.put("c", &Behaviour::Invalid.text(4)), Duration::from_secs(20))),
    ("back to A", (|outside| outside.assign("a"), Duration::from_secs(20))),
    ("a label edit of A is adopted", (|outside| outside.touch("a"), Duration::from_secs(60))),
    ("reset", (|outside| outside.set_desired(Assignment::Local), Duration::from_secs(20))),
];

/// A node before its first boot, with a fault waiting on its disk.
fn fresh(plan: Option<Plan>) -> Node {
    let node = Node::new(7, Behaviour::Good, Settings { trial_duration: TRIAL, ..Settings::default() });
    if let Some(plan) = plan {
        node.outside.borrow().disk.plan(plan);
    }
    node
}

/// Tells the story until the power goes, if it does. Returns the chapter it came to.
fn run_story(node: &mut Node) -> usize {
    node.boot();
    for (index, (_, (act, rest))) in STORY.iter().enumerate() {
        act(&mut node.outside.borrow_mut());
        if !node.advance(*rest) {
            return index;
        }
    }
    STORY.len()
}

/// After a crash: boot without an API server, live, then meet it again and come to what is wanted.
fn recover(node: &mut Node) {
    node.outside.borrow_mut().api_up = false;
    node.boot();
    assert!(node.advance(Duration::from_secs(30)));
    {
        let outside = node.outside.borrow();
        let process = outside.process.as_ref();
        assert!(process.is_some_and(|process| process.ready), "{}: no kubelet is ready", node.context);
    }
    node.outside.borrow_mut().set_api(true);
    // Bad versions are remembered, so that nothing bad is tried again; a good one needs its trial.
    assert!(node.advance(TRIAL + Duration::from_secs(60)));
    node.check_converged();
}

#[test]
fn the_story_without_faults() {
    let mut node = fresh(None);
    assert_eq!(run_story(&mut node), STORY.len());
    node.check_converged();
    let outside = node.outside.borrow();
    // C ran twice, because its first exit may be an accident; the label edit started nothing.
    assert_eq!(outside.starts, ["local", "a", "b", "c", "c", "a", "local"]);
    assert_eq!(
        outside.events,
        [
            "KubeletConfigChanged",
            "KubeletConfigProven",
            "KubeletConfigChanged",
            "KubeletConfigChanged",
            "KubeletConfigRolledBack",
            "KubeletConfigRejected",
            "KubeletConfigAdopted", // and last known good after its trial, which is no news
            "KubeletConfigChanged",
        ]
    );
}

/// Runs the story with one fault at every operation there is.
fn at_every_operation(fault: Fault, once: bool, crash_after: bool) {
    let operations = {
        let mut node = fresh(None);
        run_story(&mut node);
        node.outside.borrow().disk.operations()
    };
    assert!(operations > 100, "the story writes too little: {operations}");
    // Living on after a fault is the simulation's subject too: here a third of the places will do.
    let stride = if crash_after { 1 } else { 3 };
    for at in (0..operations).step_by(stride) {
        let mut node = fresh(Some(Plan { fault, at, once }));
        node.context = format!("{fault:?} at operation {at}, once: {once}");
        let chapter = run_story(&mut node);
        let name = STORY.get(chapter).map_or("the end", |(name, _)| name);
        node.context = format!("{} (in: {name})", node.context);
        if crash_after || fault == Fault::PowerOff {
            node.power_cycle();
            recover(&mut node);
        } else {
            node.outside.borrow().disk.heal();
            assert!(node.advance(TRIAL + Duration::from_secs(60)));
            node.check_converged();
        }
    }
}

#[test]
fn power_off_at_every_operation() {
    at_every_operation(Fault::PowerOff, true, true);
}

#[test]
fn disk_full_once_at_every_operation() {
    at_every_operation(Fault::Full, true, false);
    at_every_operation(Fault::Full, true, true);
}

#[test]
fn io_error_once_at_every_operation() {
    at_every_operation(Fault::Io, true, false);
    at_every_operation(Fault::Io, true, true);
}

#[test]
fn disk_full_from_every_operation_on() {
    at_every_operation(Fault::Full, false, false);
    at_every_operation(Fault::Full, false, true);
}

#[test]
fn read_only_from_every_operation_on() {
    at_every_operation(Fault::ReadOnly, false, false);
    at_every_operation(Fault::ReadOnly, false, true);
}

#[test]
fn broken_from_every_operation_on() {
    at_every_operation(Fault::Io, false, false);
    at_every_operation(Fault::Io, false, true);
}
