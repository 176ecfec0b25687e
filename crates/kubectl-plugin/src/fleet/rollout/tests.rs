//! What must hold whatever nodes do.

use std::time::Duration;

use proptest::prelude::*;

use super::decide::{Step, decide};
use super::member::Member;
use super::observed::{Assigned, NodeTimers, ObservedNode, Progress};
use super::{BadVersion, NOT_READY, OnFailure, Options, Phase, Record, Target, WaitFor};
use crate::fleet::assign::WrittenAssignment;
use kubelet_config::source::ConfigMapRef;

const TIMEOUT: u64 = 600;

pub(crate) fn record(nodes: usize, options: Options) -> Record {
    Record {
        target: Target {
            reference: ConfigMapRef { namespace: "n".into(), name: "m".into(), kubelet_config_key: "kubelet".into() },
            uid: "u".into(),
            resource_version: "1".into(),
            immutable: true,
        },
        selector: String::new(),
        options,
        nodes,
        parts: 1,
        namespace: "n".into(),
        phase: Phase::Running,
        wave: 0,
        why: String::new(),
        bad: Vec::new(),
        cleared: Vec::new(),
        excluded_nodes: Vec::new(),
        withdrawn: Vec::new(),
        undone: false,
        behind: 0,
        second: false,
        replaces: None,
        holder: None,
        started: String::new(),
    }
}

pub(crate) fn options(canaries: usize, max_unavailable: usize) -> Options {
    Options {
        canaries,
        max_unavailable,
        wait_for: WaitFor::Proven,
        pause_after_canaries: false,
        on_failure: OnFailure::Stop,
        timeout_seconds: TIMEOUT,
        drain: None,
    }
}

pub(crate) fn members(count: usize) -> Vec<Member> {
    (0..count).map(|n| Member { name: format!("n{n}"), before: WrittenAssignment::default() }).collect()
}

pub(crate) fn fresh() -> ObservedNode {
    ObservedNode { assigned: Assigned::Previous, progress: Progress::Active, ready: true, ..ObservedNode::gone() }
}

/// What a node does with the target, by seconds since it was sent.
#[derive(Clone, Debug)]
enum Fate {
    Good { runs: u64, proven: u64 },
    Rejects { after: u64 },
    RollsBack { runs: u64, after: u64 },
    Dies { after: u64 },
    Silent,
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![
        40 => (1..20u64, 1..60u64).prop_map(|(runs, more)| Fate::Good { runs, proven: runs + more }),
        1 => (1..20u64).prop_map(|after| Fate::Rejects { after }),
        1 => (1..20u64, 1..60u64).prop_map(|(runs, more)| Fate::RollsBack { runs, after: runs + more }),
        1 => (1..60u64).prop_map(|after| Fate::Dies { after }),
        1 => Just(Fate::Silent),
    ]
}

/// Something that comes from outside, at a second.
#[derive(Clone, Debug)]
enum Outside {
    Unready {
        node: usize,
        seconds: u64,
    },
    /// The client is killed and another one takes over: clocks begin anew.
    Killed,
    Paused {
        seconds: u64,
    },
    Reassigned {
        node: usize,
    },
    Deleted {
        node: usize,
    },
    Undone,
}

fn outside() -> impl Strategy<Value = Outside> {
    prop_oneof![
        4 => (0..40usize, 1..100u64).prop_map(|(node, seconds)| Outside::Unready { node, seconds }),
        4 => Just(Outside::Killed),
        1 => (1..100u64).prop_map(|seconds| Outside::Paused { seconds }),
        1 => (0..40usize).prop_map(|node| Outside::Reassigned { node }),
        1 => (0..40usize).prop_map(|node| Outside::Deleted { node }),
        1 => Just(Outside::Undone),
    ]
}

#[derive(Debug)]
struct World {
    record: Record,
    members: Vec<Member>,
    observed: Vec<ObservedNode>,
    fates: Vec<Fate>,
    sent_at: Vec<Option<u64>>,
    back_at: Vec<Option<u64>>,
    unready_until: Vec<u64>,
    resume_at: Option<u64>,
    now: u64,
    sends: usize,
}

impl World {
    fn busy(&self) -> usize {
        let settled = |node: &ObservedNode| node.is_settled(self.record.options.wait_for);
        let busy = |node: &&ObservedNode| {
            let flight = node.assigned == Assigned::Target && !settled(node);
            node.assigned != Assigned::Gone && (!node.ready || flight)
        };
        self.observed.iter().filter(busy).count()
    }

    fn send(&mut self, index: usize) {
        let options = self.record.options.clone();
        let node = &self.observed[index];
        assert_eq!((self.record.phase, node.assigned, node.ready), (Phase::Running, Assigned::Previous, true));
        assert!(self.busy() < options.max_unavailable, "too many at once: {self:#?}");
        assert!(self.record.bad.is_empty(), "sent on after {:?}", self.record.bad);
        assert!(
            !self.observed.iter().any(|it| matches!(it.progress, Progress::Bad(_)) && it.assigned == Assigned::Target)
        );
        if options.wave(index) > 0 {
            let canaries = &self.observed[..options.canaries];
            let open =
                |it: &&ObservedNode| it.assigned == Assigned::Target && !it.is_settled(options.wait_for) && it.ready;
            assert_eq!(canaries.iter().filter(open).count(), 0, "a wave before its canaries: {self:#?}");
        }
        self.sends += 1;
        self.sent_at[index] = Some(self.now);
        let node = &mut self.observed[index];
        (node.assigned, node.progress, node.timers.updating) = (Assigned::Target, Progress::Updating, Duration::ZERO);
    }

    fn restore(&mut self, index: usize) {
        let node = &self.observed[index];
        assert_eq!((self.record.phase, node.assigned), (Phase::Reverting, Assigned::Target));
        let well = node.ready && node.is_settled(self.record.options.wait_for);
        assert!(!well || self.busy() < self.record.options.max_unavailable, "too many back at once");
        let said = matches!(node.progress, Progress::Bad(_));
        let with_bad = self.record.bad.iter().any(|bad| bad.node == self.members[index].name);
        assert!(!said || with_bad || self.record.bad.len() >= 32, "its word is lost: {self:#?}");
        self.back_at[index] = Some(self.now);
        let node = &mut self.observed[index];
        (node.assigned, node.progress, node.timers.updating) = (Assigned::Previous, Progress::Updating, Duration::ZERO);
    }

    /// Until the client waits; true if it has nothing left to do.
    fn client(&mut self) -> bool {
        for _ in 0..200 {
            match decide(&self.record, &self.members, &self.observed) {
                Step::Record(record) => {
                    assert_ne!(*record, self.record, "a record for nothing");
                    assert!(record.wave <= self.record.wave + 1);
                    self.record = *record;
                }
                Step::Send(index) => self.send(index),
                Step::Restore(index) => self.restore(index),
                Step::Wait(_) => return false,
                Step::End => return true,
                other => panic!("{other:?}"),
            }
        }
        panic!("it goes round in circles: {self:#?}");
    }

    fn second(&mut self) {
        self.now += 1;
        for index in 0..self.observed.len() {
            let Some(since) = self.sent_at[index].map(|at| self.now - at) else {
                self.observed[index].ready = self.unready_until[index] <= self.now;
                self.run_timers(index);
                continue;
            };
            let node = &mut self.observed[index];
            let mut dead = false;
            if node.assigned == Assigned::Target {
                node.progress = match &self.fates[index] {
                    Fate::Good { proven, .. } if since >= *proven => Progress::Proven,
                    Fate::Rejects { after } | Fate::RollsBack { after, .. } if since >= *after => {
                        Progress::Bad("no".into())
                    }
                    Fate::Good { runs, .. } | Fate::RollsBack { runs, .. } if since >= *runs => Progress::Active,
                    Fate::Dies { after } => {
                        dead = since >= *after;
                        Progress::Updating
                    }
                    _ => Progress::Updating,
                };
            } else if self.back_at[index].is_some_and(|at| self.now >= at + 5) {
                node.progress = Progress::Active;
            }
            node.ready = self.unready_until[index] <= self.now && !dead;
            self.run_timers(index);
        }
        if self.resume_at == Some(self.now) && self.record.phase == Phase::Paused {
            self.record.phase = Phase::Running;
        }
    }

    fn run_timers(&mut self, index: usize) {
        let wait_for = self.record.options.wait_for;
        let node = &mut self.observed[index];
        let on = |clock: &mut Duration, runs: bool| {
            *clock = if runs { *clock + Duration::from_secs(1) } else { Duration::ZERO }
        };
        let updating = match node.assigned {
            Assigned::Target => !node.is_settled(wait_for),
            _ => node.progress == Progress::Updating,
        };
        let away = node.is_away();
        on(&mut node.timers.unready, !node.ready);
        on(&mut node.timers.updating, updating);
        on(&mut node.timers.away, away);
    }

    fn strike(&mut self, what: &Outside) {
        let count = self.observed.len();
        match what {
            Outside::Unready { node, seconds } => self.unready_until[node % count] = self.now + seconds,
            Outside::Killed => self.observed.iter_mut().for_each(|node| node.timers = NodeTimers::default()),
            Outside::Paused { seconds } if self.record.phase == Phase::Running => {
                self.record.phase = Phase::Paused;
                self.resume_at = Some(self.now + seconds);
            }
            Outside::Reassigned { node } => self.observed[node % count].assigned = Assigned::Other,
            Outside::Deleted { node } => self.observed[node % count] = ObservedNode::gone(),
            Outside::Undone if self.record.phase == Phase::Running => self.record.phase = Phase::Reverting,
            Outside::Paused { .. } | Outside::Undone => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_promises_hold(
        fates in proptest::collection::vec(fate(), 1..40),
        canaries in 0..4usize,
        max in 1..6usize,
        active: bool,
        revert: bool,
        strikes in proptest::collection::vec((0..400u64, outside()), 0..6),
    ) {
        let count = fates.len();
        let mut options = options(canaries.min(count), max);
        if active { options.wait_for = WaitFor::Active; }
        if revert { options.on_failure = OnFailure::Revert; }
        let mut world = World {
            record: record(count, options),
            members: members(count),
            observed: vec![fresh(); count],
            fates,
            sent_at: vec![None; count],
            back_at: vec![None; count],
            unready_until: vec![0; count],
            resume_at: None,
            now: 0,
            sends: 0,
        };
        let mut ended = false;
        for _ in 0..20_000 {
            if world.client() {
                ended = true;
                break;
            }
            let now = world.now;
            for (_, what) in strikes.iter().filter(|(at, _)| *at == now) {
                world.strike(what);
            }
            world.second();
        }
        prop_assert!(ended, "it never ends: {world:#?}");
        let count = |assigned: Assigned| world.observed.iter().filter(|node| node.assigned == assigned).count();
        match world.record.phase {
            Phase::Done => {
                let fine = |node: &ObservedNode| match node.assigned {
                    Assigned::Target => !matches!(node.progress, Progress::Bad(_)),
                    Assigned::Previous => !node.ready,
                    _ => true,
                };
                prop_assert!(world.observed.iter().all(fine));
            }
            Phase::Reverted => prop_assert_eq!(count(Assigned::Target), 0),
            Phase::Stopped => prop_assert!(!world.record.why.is_empty()),
            phase => prop_assert!(false, "ended {phase:?}"),
        }
    }
}

#[test]
fn a_good_rollout_is_canaries_then_waves() {
    let (mut record, members) = (record(6, options(1, 2)), members(6));
    let mut observed = vec![fresh(); 6];
    let mut log = String::new();
    loop {
        match decide(&record, &members, &observed) {
            Step::Record(next) => {
                log.push_str(if next.wave > record.wave { "| " } else { "." });
                record = *next;
            }
            Step::Send(index) => {
                log.extend([index.to_string(), " ".to_owned()]);
                (observed[index].assigned, observed[index].progress) = (Assigned::Target, Progress::Updating);
            }
            Step::Wait(_) => {
                observed
                    .iter_mut()
                    .filter(|it| it.assigned == Assigned::Target)
                    .for_each(|it| it.progress = Progress::Proven);
            }
            other @ (Step::Restore(_) | Step::FollowPods(_) | Step::Cordon(_) | Step::Evict(_) | Step::Uncordon(_)) => {
                panic!("{other:?}")
            }
            Step::End => break,
        }
    }
    assert_eq!(log, "0 | 1 2 | 3 4 | 5 .");
    assert_eq!(record.phase, Phase::Done);
}

#[test]
fn nodes_that_are_not_ready_use_up_the_allowance() {
    let (record, members) = (record(5, options(0, 2)), members(5));
    let mut observed = vec![fresh(); 5];
    observed[3].ready = false;
    observed[4].ready = false;
    let record = Record { wave: 1, ..record };
    assert!(matches!(decide(&record, &members, &observed), Step::Wait(_)));
    observed[4].ready = true;
    assert_eq!(decide(&record, &members, &observed), Step::Send(0));
}

#[test]
fn a_pause_comes_after_the_canaries_and_resume_goes_on() {
    let mut options = options(1, 2);
    options.pause_after_canaries = true;
    let (record, members) = (record(3, options), members(3));
    let mut observed = vec![fresh(); 3];
    (observed[0].assigned, observed[0].progress) = (Assigned::Target, Progress::Proven);
    let Step::Record(paused) = decide(&record, &members, &observed) else { panic!("no record") };
    assert_eq!((paused.phase, paused.wave), (Phase::Paused, 1));
    assert!(matches!(decide(&paused, &members, &observed), Step::Wait(_)));
    let resumed = Record { phase: Phase::Running, ..*paused };
    assert_eq!(decide(&resumed, &members, &observed), Step::Send(1));
}

#[test]
fn a_version_called_bad_stays_so_until_that_node_proves_it() {
    let (mut record, members) = (record(3, options(1, 2)), members(3));
    record.bad.push(BadVersion { node: "n0".into(), why: "no".into(), from: None });
    let mut observed = vec![fresh(); 3];
    let Step::Record(stopped) = decide(&record, &members, &observed) else { panic!("no record") };
    assert_eq!((stopped.phase, stopped.why.as_str()), (Phase::Stopped, "node n0 called it bad: no"));
    (observed[0].assigned, observed[0].progress) = (Assigned::Target, Progress::Proven);
    let Step::Record(cleared) = decide(&record, &members, &observed) else { panic!("no record") };
    assert!(cleared.bad.is_empty() && cleared.phase == Phase::Running);
}

#[test]
fn a_moment_of_not_ready_is_no_failure() {
    let (mut record, members) = (record(2, options(0, 2)), members(2));
    record.wave = 1;
    let mut observed = vec![fresh(); 2];
    (observed[0].assigned, observed[0].progress, observed[0].ready) = (Assigned::Target, Progress::Active, false);
    observed[0].timers.unready = NOT_READY.checked_sub(Duration::from_secs(1)).unwrap();
    assert_eq!(decide(&record, &members, &observed), Step::Send(1), "one of two");
    observed[0].timers.unready = NOT_READY;
    let Step::Record(stopped) = decide(&record, &members, &observed) else { panic!("no record") };
    assert_eq!(stopped.phase, Phase::Stopped);
    assert!(stopped.why.contains("n0 is not Ready") && stopped.bad.is_empty());
}

#[test]
fn nodes_that_had_it_before_are_waited_for_and_not_given_it_again() {
    let (mut record, members) = (record(3, options(0, 2)), members(3));
    record.wave = 1;
    let mut observed = vec![fresh(); 3];
    (observed[0].assigned, observed[0].same, observed[0].progress) = (Assigned::Target, true, Progress::Updating);
    (observed[1].assigned, observed[1].same, observed[1].progress) = (Assigned::Target, true, Progress::Proven);
    assert!(matches!(decide(&record, &members, &observed), Step::Wait(_)), "on its way");
    observed[0].timers.updating = Duration::from_secs(TIMEOUT);
    let Step::Record(stopped) = decide(&record, &members, &observed) else { panic!("no record") };
    assert!(stopped.why.contains("n0 did not come to an end"), "{}", stopped.why);
    // One that is not Ready has been so before, for all we know.
    (observed[0].ready, observed[0].timers.unready) = (false, Duration::from_secs(TIMEOUT));
    let Step::Record(next) = decide(&record, &members, &observed) else { panic!("no record") };
    assert_eq!((next.phase, next.wave), (Phase::Running, 2));
    record.phase = Phase::Reverting;
    let Step::Record(reverted) = decide(&record, &members, &observed) else { panic!("no record") };
    assert_eq!(reverted.phase, Phase::Reverted, "what they had is what they have");
}
