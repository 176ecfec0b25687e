//! Drains: what must hold whatever Pods, nodes and people do.

use std::time::Duration;

use proptest::prelude::*;

use super::decide::{Step, decide, gives_up, is_drained};
use super::drain::{Cordon, Drain, Draining, Pods};
use super::member::Member;
use super::observed::{Assigned, NodeTimers, ObservedNode, Progress};
use super::tests::{fresh, members, options, record};
use super::{OnFailure, Phase, Record};

fn drained(nodes: usize, max: usize) -> Record {
    let mut options = options(0, max);
    options.drain = Some(Draining::Careful);
    Record { wave: 1, ..record(nodes, options) }
}

fn going(left: usize, next: Option<u64>) -> Drain {
    Drain::Going { left, next: next.map(Duration::from_secs), such: "Pod n/p: no".into() }
}

fn next(record: &Record, observed: &[ObservedNode]) -> Step {
    decide(record, &members(record.nodes), observed)
}

fn stopped(record: &Record, observed: &[ObservedNode]) -> Record {
    match next(record, observed) {
        Step::Record(record) => *record,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_node_is_listed_cordoned_emptied_given_it_and_uncordoned() {
    let record = drained(2, 1);
    let mut observed = vec![fresh(); 2];
    assert_eq!(next(&record, &observed), Step::FollowPods(0));
    observed[0].drain = Drain::Listing;
    assert!(matches!(next(&record, &observed), Step::Wait(_)), "the other one has no room");
    observed[0].drain = going(2, Some(0));
    assert_eq!(next(&record, &observed), Step::Cordon(0));
    // What was listed before does not count.
    (observed[0].cordon, observed[0].drain) = (Cordon::Ours, Drain::Idle);
    assert_eq!(next(&record, &observed), Step::FollowPods(0));
    observed[0].drain = Drain::Listing;
    assert!(matches!(next(&record, &observed), Step::Wait(_)), "until it is listed");
    observed[0].drain = going(2, Some(0));
    assert_eq!(next(&record, &observed), Step::Evict(0));
    observed[0].drain = going(2, Some(7));
    assert_eq!(next(&record, &observed), Step::Wait(Some(Duration::from_secs(7))));
    observed[0].drain = going(1, None);
    assert!(matches!(next(&record, &observed), Step::Wait(_)));
    observed[0].drain = Drain::Empty;
    assert_eq!(next(&record, &observed), Step::Send(0));
    (observed[0].assigned, observed[0].progress, observed[0].drain) = (Assigned::Target, Progress::Active, Drain::Idle);
    assert!(matches!(next(&record, &observed), Step::Wait(_)));
    observed[0].progress = Progress::Proven;
    assert_eq!(next(&record, &observed), Step::Uncordon(0));
    observed[0].cordon = Cordon::No;
    assert!(matches!(next(&record, &observed), Step::Record(record) if record.wave == 2));
}

#[test]
fn somebody_elses_cordon_is_enough_and_a_former_one_is_taken_over() {
    let record = drained(1, 1);
    let mut observed = vec![fresh()];
    observed[0].drain = Drain::Empty;
    for (cordon, step) in [
        (Cordon::Theirs, Step::Send(0)),
        (Cordon::Ours, Step::Send(0)),
        (Cordon::Former, Step::Cordon(0)),
        (Cordon::Stale, Step::Cordon(0)),
        (Cordon::No, Step::Cordon(0)),
    ] {
        observed[0].cordon = cordon;
        assert_eq!(next(&record, &observed), step, "{cordon:?}");
    }
    (observed[0].assigned, observed[0].progress, observed[0].cordon) =
        (Assigned::Target, Progress::Proven, Cordon::Theirs);
    assert_eq!(stopped(&record, &observed).phase, Phase::Done, "it is left as it is");
}

#[test]
fn an_annotation_without_a_cordon_goes_at_once() {
    let record = Record { phase: Phase::Aborted, ..drained(1, 1) };
    let mut observed = vec![fresh()];
    (observed[0].assigned, observed[0].progress, observed[0].cordon) =
        (Assigned::Target, Progress::Updating, Cordon::Stale);
    assert_eq!(next(&record, &observed), Step::Uncordon(0));
}

#[test]
fn one_that_was_cordoned_by_a_dead_client_comes_first() {
    let record = drained(3, 1);
    let mut observed = vec![fresh(); 3];
    observed[0].cordon = Cordon::Ours;
    assert_eq!(next(&record, &observed), Step::FollowPods(0));
    // Unless its turn is not now: then it is open, for the time being.
    let mut observed = vec![fresh(); 3];
    observed[2].cordon = Cordon::Ours;
    assert_eq!(next(&record, &observed), Step::Uncordon(2));
    // And one that fell over while it was drained.
    let mut observed = vec![fresh(); 3];
    (observed[0].cordon, observed[0].ready) = (Cordon::Ours, false);
    assert_eq!(next(&record, &observed), Step::Uncordon(0));
}

#[test]
fn nothing_more_is_taken_out_while_others_are_not_ready() {
    let record = drained(3, 1);
    let mut observed = vec![fresh(); 3];
    (observed[0].cordon, observed[0].drain) = (Cordon::Ours, Drain::Empty);
    observed[2].ready = false;
    assert!(matches!(next(&record, &observed), Step::Wait(_)), "it was to be sent");
    (observed[0].cordon, observed[0].drain) = (Cordon::No, going(1, Some(0)));
    assert!(matches!(next(&record, &observed), Step::Wait(_)), "or cordoned");
}

#[test]
fn an_empty_node_that_may_not_be_sent_is_opened_after_a_while() {
    let record = drained(4, 2);
    let mut observed = vec![fresh(); 4];
    for node in &mut observed[..2] {
        (node.cordon, node.drain) = (Cordon::Ours, Drain::Empty);
        node.timers.draining = Duration::from_secs(record.options.timeout_seconds - 9);
    }
    assert_eq!(next(&record, &observed), Step::Send(0));
    observed[3].ready = false;
    assert_eq!(next(&record, &observed), Step::Wait(Some(Duration::from_secs(9))));
    for node in &mut observed[..2] {
        node.timers.draining = Duration::from_secs(record.options.timeout_seconds);
    }
    assert_eq!(next(&record, &observed), Step::Uncordon(0));
    (observed[0].cordon, observed[0].timers.draining) = (Cordon::No, Duration::ZERO);
    assert_eq!(next(&record, &observed), Step::Send(1), "there is room for the other one");
    (observed[1].assigned, observed[1].drain, observed[1].progress) =
        (Assigned::Target, Drain::Idle, Progress::Updating);
    assert!(matches!(next(&record, &observed), Step::Wait(_)));
    observed[3].ready = true;
    assert_eq!(next(&record, &observed), Step::Cordon(0), "its turn comes again");
}

#[test]
fn one_that_could_not_be_cordoned_has_not_failed_to_drain() {
    let record = drained(2, 1);
    let mut observed = vec![fresh(); 2];
    observed[0].drain = going(1, Some(0));
    observed[0].timers.draining = Duration::from_secs(record.options.timeout_seconds);
    observed[1].ready = false;
    assert!(matches!(next(&record, &observed), Step::Wait(_)));
}

#[test]
fn pods_of_a_few_nodes_are_listed_at_a_time() {
    for phase in [Phase::Running, Phase::Reverting] {
        // Fresh ones, and ones that a client left behind who died.
        for cordon in [Cordon::No, Cordon::Ours] {
            let record = Record { phase, ..drained(20, 20) };
            let mut observed = vec![ObservedNode { cordon, ..fresh() }; 20];
            if phase == Phase::Reverting {
                for node in &mut observed {
                    (node.assigned, node.progress) = (Assigned::Target, Progress::Proven);
                }
            }
            let mut looks = 0;
            while let Step::FollowPods(index) = next(&record, &observed) {
                observed[index].drain = Drain::Listing;
                looks += 1;
            }
            assert_eq!(looks, 8, "{phase:?}, {cordon:?}");
            assert!(matches!(next(&record, &observed), Step::Wait(_)));
            (observed[3].drain, observed[3].cordon) = (going(1, None), Cordon::Ours);
            assert_eq!(next(&record, &observed), Step::FollowPods(8), "{phase:?}, {cordon:?}");
        }
    }
}

#[test]
fn what_cannot_be_drained_stops_it_whatever_on_failure_says() {
    let mut record = drained(2, 2);
    record.options.on_failure = OnFailure::Revert;
    let mut observed = vec![fresh(); 2];
    observed[0].drain = Drain::Refused("Pod n/p has no controller".into());
    let halted = stopped(&record, &observed);
    assert_eq!(halted.why, "node n0 cannot be drained: Pod n/p has no controller");
    assert_eq!(halted.phase, Phase::Stopped);
    (observed[0].drain, observed[0].cordon) = (going(3, Some(5)), Cordon::Ours);
    observed[0].timers.draining = Duration::from_secs(record.options.timeout_seconds);
    let halted = stopped(&record, &observed);
    assert!(
        halted.why.contains("3 Pods are still there") && halted.why.ends_with("such as Pod n/p: no"),
        "{}",
        halted.why
    );
    // Then it is open again, and nothing is left to do.
    assert_eq!(next(&halted, &observed), Step::Uncordon(0));
    observed[0].cordon = Cordon::No;
    assert_eq!(next(&halted, &observed), Step::End);
}

#[test]
fn whoever_ends_it_waits_for_nodes_in_flight_and_no_longer_than_they_have() {
    for phase in [Phase::Stopped, Phase::Aborted, Phase::Done, Phase::Reverted] {
        let record = Record { phase, ..drained(1, 1) };
        let mut observed = vec![fresh()];
        (observed[0].assigned, observed[0].progress, observed[0].cordon) =
            (Assigned::Target, Progress::Updating, Cordon::Ours);
        observed[0].timers.updating = Duration::from_secs(1);
        assert!(matches!(next(&record, &observed), Step::Wait(Some(_))), "{phase:?}");
        observed[0].timers.updating = Duration::from_secs(record.options.timeout_seconds);
        assert_eq!(next(&record, &observed), Step::End);
        (observed[0].progress, observed[0].ready) = (Progress::Bad("no".into()), false);
        observed[0].timers = NodeTimers { unready: Duration::from_secs(1), ..NodeTimers::default() };
        let record = stopped(&record, &observed);
        assert_eq!((record.phase, record.bad.len()), (phase, 1), "its word is kept");
        assert!(matches!(next(&record, &observed), Step::Wait(Some(_))), "{phase:?}");
        observed[0].ready = true;
        assert_eq!(next(&record, &observed), Step::Uncordon(0));
    }
}

#[test]
fn a_pause_takes_drains_back_and_lets_others_come_to_their_end() {
    let record = Record { phase: Phase::Paused, ..drained(2, 2) };
    let mut observed = vec![fresh(); 2];
    observed[0].cordon = Cordon::Ours;
    (observed[1].assigned, observed[1].progress, observed[1].cordon) =
        (Assigned::Target, Progress::Active, Cordon::Ours);
    assert!(!is_drained(&record, &observed[0]));
    assert_eq!(next(&record, &observed), Step::Uncordon(0));
    observed[0].cordon = Cordon::No;
    assert!(matches!(next(&record, &observed), Step::Wait(_)));
    observed[1].progress = Progress::Proven;
    assert_eq!(next(&record, &observed), Step::Uncordon(1));
}

#[test]
fn on_the_way_back_what_is_unwell_is_not_drained_and_what_refuses_is_left() {
    let record = Record { phase: Phase::Reverting, ..drained(3, 1) };
    let mut observed = vec![fresh(); 3];
    for node in &mut observed {
        (node.assigned, node.progress) = (Assigned::Target, Progress::Proven);
    }
    observed[1].ready = false;
    assert_eq!(next(&record, &observed), Step::Restore(1));
    (observed[1].assigned, observed[1].progress, observed[1].ready) = (Assigned::Previous, Progress::Active, true);
    assert_eq!(next(&record, &observed), Step::FollowPods(0));
    (observed[0].drain, observed[0].cordon) = (Drain::Empty, Cordon::Ours);
    assert_eq!(next(&record, &observed), Step::Restore(0));
    (observed[0].assigned, observed[0].progress, observed[0].drain) =
        (Assigned::Previous, Progress::Updating, Drain::Idle);
    assert!(matches!(next(&record, &observed), Step::Wait(_)), "the cordon is kept until it is back");
    observed[0].progress = Progress::Active;
    assert_eq!(next(&record, &observed), Step::Uncordon(0));
    observed[0].cordon = Cordon::No;
    assert_eq!(next(&record, &observed), Step::FollowPods(2));
    observed[2].drain = Drain::Refused("Pod n/p has an emptyDir".into());
    observed[2].drain = Drain::GaveUp(gives_up(&record, &observed[2]).unwrap());
    let reverted = stopped(&record, &observed);
    assert_eq!((reverted.phase, reverted.behind), (Phase::Reverted, 1));
    assert_eq!(reverted.why, "cannot be drained: n2: Pod n/p has an emptyDir");
}

/// What a node's Pods do once they are evicted.
#[derive(Clone, Debug)]
enum Fate {
    /// Gone after so many seconds.
    Leave(u64),
    Refuse,
    ReexecError,
}

#[derive(Clone, Debug)]
enum Outside {
    Killed,
    Paused,
    Undone,
    Aborted,
    Unready { node: usize, seconds: u64 },
    Uncordoned { node: usize },
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![30 => (0..90u64).prop_map(Fate::Leave), 1 => Just(Fate::Refuse), 1 => Just(Fate::ReexecError)]
}

fn outside() -> impl Strategy<Value = Outside> {
    prop_oneof![
        4 => Just(Outside::Killed),
        1 => Just(Outside::Paused),
        1 => Just(Outside::Undone),
        1 => Just(Outside::Aborted),
        3 => (0..20usize, 1..100u64).prop_map(|(node, seconds)| Outside::Unready { node, seconds }),
        1 => (0..20usize, 500..2000u64).prop_map(|(node, seconds)| Outside::Unready { node, seconds }),
        2 => (0..20usize).prop_map(|node| Outside::Uncordoned { node }),
    ]
}

struct World {
    record: Record,
    members: Vec<Member>,
    observed: Vec<ObservedNode>,
    pods: Vec<Fate>,
    bad: Option<usize>,
    /// Since when a node is drained, evicted, and has what it has.
    looked: Vec<Option<u64>>,
    listed: Vec<Pods>,
    cordoned: Vec<Option<u64>>,
    evicted: Vec<Option<u64>>,
    changed: Vec<u64>,
    unready_until: Vec<u64>,
    now: u64,
}

impl World {
    fn new(pods: Vec<Fate>, max: usize, bad: Option<usize>) -> Self {
        let count = pods.len();
        Self {
            record: drained(count, max),
            members: members(count),
            observed: vec![fresh(); count],
            pods,
            bad,
            looked: vec![None; count],
            listed: (0..count).map(|_| Pods::new(Draining::Careful, false)).collect(),
            cordoned: vec![None; count],
            evicted: vec![None; count],
            changed: vec![0; count],
            unready_until: vec![0; count],
            now: 0,
        }
    }

    fn out(&self) -> usize {
        let out = |node: &&ObservedNode| {
            let flight = matches!(node.progress, Progress::Updating)
                || (node.assigned == Assigned::Target && node.progress == Progress::Active);
            // On the way back, who is not Ready for too long is not waited for.
            let timeout = Duration::from_secs(self.record.options.timeout_seconds);
            let late = self.record.phase == Phase::Reverting && node.timers.unready >= timeout;
            !late && (node.cordon == Cordon::Ours || flight || !node.ready)
        };
        self.observed.iter().filter(out).count()
    }

    fn change(&mut self, index: usize, assigned: Assigned) {
        let node = &mut self.observed[index];
        if node.ready && !matches!(node.progress, Progress::Bad(_)) {
            assert!(node.cordon.holds() && node.drain == Drain::Empty, "undrained: {node:?}");
            assert!(!self.listed[index].is_outdated(true), "a Pod may have come: {node:?}");
        }
        (node.assigned, node.progress) = (assigned, Progress::Updating);
        self.changed[index] = self.now;
        self.evicted[index] = None;
    }

    fn refresh(&mut self) {
        for index in 0..self.observed.len() {
            if self.listed[index].is_outdated(self.observed[index].cordon.holds()) {
                self.looked[index] = None;
            }
            let drain = match (self.looked[index], &self.pods[index], self.evicted[index]) {
                (None, ..) => Drain::Idle,
                (_, Fate::Refuse, _) => Drain::Refused("refuses".into()),
                (_, Fate::Leave(0), _) => Drain::Empty,
                (_, Fate::Leave(time), Some(at)) if at + time <= self.now => Drain::Empty,
                (_, Fate::ReexecError, _) => going(1, Some(5)),
                (_, Fate::Leave(_), None) => going(1, Some(0)),
                (_, Fate::Leave(_), Some(_)) => going(1, None),
            };
            let node = &mut self.observed[index];
            if !is_drained(&self.record, node) {
                self.looked[index] = None;
            }
            let was_empty = node.drain == Drain::Empty;
            let gave_up = matches!(node.drain, Drain::GaveUp(_)) && self.record.phase == Phase::Reverting;
            if !gave_up {
                node.drain = if self.looked[index].is_some() { drain } else { Drain::Idle };
            }
            let same = was_empty == (node.drain == Drain::Empty);
            let on = node.drain.is_on() && node.cordon.holds();
            let since = on.then(|| self.cordoned[index].filter(|_| same).unwrap_or(self.now));
            self.cordoned[index] = since;
            node.timers.draining = Duration::from_secs(since.map_or(0, |at| self.now - at));
            if let Some(why) = gives_up(&self.record, node) {
                node.drain = Drain::GaveUp(why);
                self.looked[index] = None;
            }
        }
    }

    /// Until the client waits; true if it has nothing left to do.
    fn client(&mut self) -> bool {
        for _ in 0..1000 {
            self.refresh();
            let room = self.out() <= self.record.options.max_unavailable;
            match decide(&self.record, &self.members, &self.observed) {
                Step::Record(record) => self.record = *record,
                Step::FollowPods(index) => {
                    self.looked[index] = Some(self.now);
                    self.listed[index] = Pods::new(Draining::Careful, self.observed[index].cordon.holds());
                }
                Step::Cordon(index) => {
                    self.observed[index].cordon = Cordon::Ours;
                    assert!(!room || self.out() <= self.record.options.max_unavailable, "too many are out");
                }
                Step::Uncordon(index) => self.observed[index].cordon = Cordon::No,
                Step::Evict(index) => {
                    assert!(self.observed[index].cordon.holds());
                    self.evicted[index] = Some(self.now);
                }
                Step::Send(index) => {
                    self.change(index, Assigned::Target);
                    assert!(self.out() <= self.record.options.max_unavailable, "too many are out");
                }
                Step::Restore(index) => self.change(index, Assigned::Previous),
                Step::Wait(_) => return false,
                Step::End => return true,
            }
        }
        panic!("it goes round in circles: {:#?} {:#?}", self.record, self.observed);
    }

    fn second(&mut self) {
        self.now += 1;
        for index in 0..self.observed.len() {
            let since = self.now - self.changed[index];
            let node = &mut self.observed[index];
            node.ready = self.unready_until[index] <= self.now;
            node.progress = match (node.assigned, since) {
                (Assigned::Target, 20..) if self.bad == Some(index) => Progress::Bad("no".into()),
                (Assigned::Target, 30..) => Progress::Proven,
                (Assigned::Target, 5..) | (Assigned::Previous, 10..) => Progress::Active,
                _ => node.progress.clone(),
            };
            let on = |clock: Duration, runs: bool| if runs { clock + Duration::from_secs(1) } else { Duration::ZERO };
            let updating = if node.assigned == Assigned::Target {
                !node.is_settled(self.record.options.wait_for)
            } else {
                node.progress == Progress::Updating
            };
            node.timers = NodeTimers {
                unready: on(node.timers.unready, !node.ready),
                updating: on(node.timers.updating, updating),
                away: on(node.timers.away, node.is_away()),
                draining: node.timers.draining,
            };
        }
    }

    fn strike(&mut self, what: &Outside) {
        let count = self.observed.len();
        match what {
            Outside::Killed => {
                self.looked.fill(None);
                for node in &mut self.observed {
                    (node.timers, node.drain) = (NodeTimers::default(), Drain::Idle);
                }
            }
            Outside::Paused if self.record.phase == Phase::Running => self.record.phase = Phase::Paused,
            Outside::Undone if !self.record.phase.is_over() => self.record.phase = Phase::Reverting,
            Outside::Aborted if !self.record.phase.is_over() => self.record.phase = Phase::Aborted,
            Outside::Unready { node, seconds } => self.unready_until[node % count] = self.now + seconds,
            Outside::Uncordoned { node } => {
                let cordon = &mut self.observed[node % count].cordon;
                *cordon = if *cordon == Cordon::Ours { Cordon::Stale } else { *cordon };
            }
            Outside::Paused | Outside::Undone | Outside::Aborted => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_changes_on_an_undrained_node_and_none_stays_cordoned(
        pods in proptest::collection::vec(fate(), 1..20),
        max in 1..5usize,
        bad in proptest::option::of(0..60usize),
        strikes in proptest::collection::vec((0..900u64, outside()), 0..6),
    ) {
        let mut world = World::new(pods, max, bad);
        let mut ended = false;
        for _ in 0..20_000 {
            if world.client() {
                ended = true;
                break;
            }
            let now = world.now;
            // Somebody has looked at the canaries.
            if world.record.phase == Phase::Paused && now % 500 == 499 {
                prop_assert!(world.observed.iter().all(|it| it.cordon == Cordon::No || it.assigned == Assigned::Target));
                world.record.phase = Phase::Running;
            }
            for (_, what) in strikes.iter().filter(|(at, _)| *at == now) {
                world.strike(what);
            }
            world.second();
        }
        prop_assert!(ended, "it never ends: {:#?} {:#?}", world.record, world.observed);
        let cordoned = world.observed.iter().find(|it| matches!(it.cordon, Cordon::Ours | Cordon::Stale) && it.ready);
        prop_assert!(cordoned.is_none(), "{:?}: {cordoned:?}", world.record.phase);
    }
}
