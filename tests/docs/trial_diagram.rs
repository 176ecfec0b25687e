//! The life of a version, walked on the bare machine: which state follows which, and what is said of it.

use std::collections::BTreeSet;

use kubelet_config::assignment::Assignment;
use kubelet_config::pods::PodSummary;
use kubelet_config::source::ConfigAnnotations;
use kubelet_supervisor::machine::command::{Command, Target};
use kubelet_supervisor::machine::{Effect, Input, State, records};
use serde_json::json;

use testkit::node::{Node, source};

/// The states of the diagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Settled,
    Trial,
    Suspended,
    AwaitingConfirmation,
    ControlTest,
    RetryLater,
    Pinned,
}

impl Phase {
    pub fn word(self) -> String {
        format!("{self:?}")
    }

    fn of(state: &State) -> Phase {
        let records = state.records();
        match &records.phase {
            _ if records.pin.is_some() => Phase::Pinned,
            records::Phase::Settled => Phase::Settled,
            records::Phase::Trial(_) if state.suspended().is_some() => Phase::Suspended,
            records::Phase::Trial(_) => Phase::Trial,
            records::Phase::AwaitingConfirmation(..) => Phase::AwaitingConfirmation,
            records::Phase::ControlTest(..) => Phase::ControlTest,
            records::Phase::RetryLater(..) => Phase::RetryLater,
        }
    }
}

/// A node that is looked at after every step.
struct Walk<'a> {
    node: Node,
    at: Phase,
    told: usize,
    seen: &'a mut BTreeSet<String>,
}

impl Walk<'_> {
    fn new(seen: &mut BTreeSet<String>) -> Walk<'_> {
        let node = Node::new();
        let (at, told) = (Phase::of(&node.state), node.effects.len());
        assert_eq!(at, Phase::Settled);
        Walk { node, at, told, seen }
    }

    /// Does something, and notes where that led.
    fn then(&mut self, act: impl FnOnce(&mut Node)) -> Phase {
        act(&mut self.node);
        let now = Phase::of(&self.node.state);
        if now != self.at {
            let said = self.node.effects[self.told..].iter().filter_map(|effect| match effect {
                Effect::Emit(event) => Some(event.reason.as_str()),
                _ => None,
            });
            let said: Vec<&str> = said.collect();
            self.seen.insert(format!("{} --> {} ({})", self.at.word(), now.word(), said.join(", ")));
            self.told = self.node.effects.len();
        }
        self.at = now;
        now
    }

    /// Time passes, and what is said meanwhile belongs to the next step.
    fn pass(&mut self, seconds: u64) {
        for _ in 0..seconds {
            self.then(|node| node.pass(1));
        }
    }

    fn expect(&self, phase: Phase) {
        assert_eq!(self.at, phase, "{:?}", self.node.events());
    }

    fn assign(&mut self, name: &str) {
        self.told = self.node.effects.len();
        self.then(|node| node.assign(name));
    }

    fn operate(&mut self, command: Command) {
        self.told = self.node.effects.len();
        self.then(|node| drop(node.operate(command).unwrap()));
    }

    /// Assigns what dies, and lets it.
    fn fail(&mut self, name: &str) {
        self.node.ready_after = None;
        self.assign(name);
        self.expect(Phase::Trial);
        self.then(|node| node.exit(255));
        self.expect(Phase::ControlTest);
    }
}

/// All transitions of all walks, as lines of the diagram.
pub fn walk() -> BTreeSet<String> {
    let mut seen = BTreeSet::new();
    good(&mut seen);
    bad(&mut seen);
    confirmed(&mut seen);
    overtaken(&mut seen);
    held(&mut seen);
    seen
}

fn good(seen: &mut BTreeSet<String>) {
    let mut walk = Walk::new(seen);
    walk.assign("a");
    walk.expect(Phase::Trial);
    walk.pass(60);
    walk.node.environment.disk_full = true;
    walk.pass(15);
    walk.expect(Phase::Suspended);
    walk.node.environment.disk_full = false;
    walk.pass(15);
    walk.expect(Phase::Trial);
    walk.pass(700);
    walk.expect(Phase::Settled);
    // The same content again, after a label edit, is proven under its new name as well.
    walk.told = walk.node.effects.len();
    walk.then(|node| {
        node.same_content.insert("a@2".to_owned(), "a".to_owned());
        node.edit("a", "2");
    });
    walk.expect(Phase::Settled);
}

fn bad(seen: &mut BTreeSet<String>) {
    let mut walk = Walk::new(seen);
    // Last known good dies as well.
    walk.fail("a");
    walk.then(|node| node.exit(255));
    walk.node.ready_after = Some(1);
    walk.expect(Phase::RetryLater);
    walk.told = walk.node.effects.len();
    walk.pass(60);
    walk.expect(Phase::Trial);
    // Its own fault.
    let mut walk = Walk::new(walk.seen);
    walk.assign("a");
    walk.pass(5);
    walk.then(|node| node.exit(1));
    walk.pass(5);
    walk.then(|node| node.exit(1));
    walk.expect(Phase::ControlTest);
    walk.pass(45);
    walk.expect(Phase::Settled);
    // While last known good is on test, something else comes.
    walk.fail("b");
    walk.node.ready_after = Some(1);
    walk.assign("c");
    walk.pass(12); // a kubelet that was just switched is left alone
    walk.expect(Phase::Trial);
}

fn confirmed(seen: &mut BTreeSet<String>) {
    let mut walk = Walk::new(seen);
    let annotations = ConfigAnnotations { confirm_within: Some("30m".to_owned()), ..ConfigAnnotations::default() };
    for name in ["a", "b", "c"] {
        walk.node.define(name, json!({}), annotations.clone());
        walk.assign(name);
        walk.pass(620);
        walk.expect(Phase::AwaitingConfirmation);
        match name {
            "a" => {
                walk.operate(Command::Confirm { extend_seconds: None });
                walk.pass(1);
                walk.expect(Phase::Settled);
            }
            "b" => {
                walk.pass(1800);
                walk.expect(Phase::Settled);
            }
            _ => {
                walk.then(|node| node.exit(1));
                walk.pass(2);
                walk.then(|node| node.exit(1));
                walk.expect(Phase::ControlTest);
            }
        }
    }
}

fn overtaken(seen: &mut BTreeSet<String>) {
    let mut walk = Walk::new(seen);
    // A failure whose cause is plain.
    let pod = PodSummary { uid: "p".into(), name: "d/p".into(), phase: "Running".into(), ..PodSummary::default() };
    walk.node.inventory.pods = vec![pod];
    walk.assign("a");
    walk.node.inventory.pods[0].phase = "Failed".into();
    walk.node.inventory.pods[0].reason = "OutOfcpu".into();
    walk.pass(30);
    walk.expect(Phase::Settled);
    // One that is refused while what runs is unproven.
    walk.assign("b");
    walk.node.define("c", json!({"cgroupDriver": "systemd"}), ConfigAnnotations::default());
    walk.pass(5);
    walk.assign("c");
    walk.expect(Phase::Settled);
    // A reset.
    walk.pass(5);
    walk.assign("d");
    walk.pass(5);
    walk.told = walk.node.effects.len();
    walk.then(|node| node.step(Input::Node(Assignment::Local)));
    walk.expect(Phase::Settled);
}

fn held(seen: &mut BTreeSet<String>) {
    let mut walk = Walk::new(seen);
    let pin = || Command::Pin { to: Some(Target::Local) };
    walk.operate(pin());
    walk.pass(5);
    walk.operate(Command::Unpin);
    walk.expect(Phase::Settled);
    walk.assign("a");
    walk.pass(5);
    assert_eq!(walk.node.state.active().map(|version| &version.source), Some(&source("a")));
    walk.operate(Command::Pin { to: None });
    walk.expect(Phase::Pinned);
    walk.operate(Command::Unpin);
    walk.expect(Phase::Trial);
}
