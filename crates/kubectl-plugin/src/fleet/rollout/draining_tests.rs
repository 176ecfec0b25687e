//! Drains: what must hold whatever Pods, nodes and people do.

use std::time::Duration;

use proptest::prelude::*;

use super::decide::{Step, decide, gives_up, is_drained};
use super::drain::{Cordon, Drain, Draining, Pods};
use super::member::Member;
use super::sight::{Clocks, Doing, Has, Sight};
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

fn next(record: &Record, sights: &[Sight]) -> Step {
    decide(record, &members(record.nodes), sights)
}

fn stopped(record: &Record, sights: &[Sight]) -> Record {
    match next(record, sights) {
        Step::Record(record) => *record,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_node_is_looked_at_cordoned_emptied_given_it_and_uncordoned() {
    let record = drained(2, 1);
    let mut sights = vec![fresh(); 2];
    assert_eq!(next(&record, &sights), Step::Look(0));
    sights[0].drain = Drain::Looking;
    assert!(matches!(next(&record, &sights), Step::Wait(_)), "the other one has no room");
    sights[0].drain = going(2, Some(0));
    assert_eq!(next(&record, &sights), Step::Cordon(0));
    // What was listed before does not count.
    (sights[0].cordon, sights[0].drain) = (Cordon::Ours, Drain::Idle);
    assert_eq!(next(&record, &sights), Step::Look(0));
    sights[0].drain = Drain::Looking;
    assert!(matches!(next(&record, &sights), Step::Wait(_)), "until it is listed");
    sights[0].drain = going(2, Some(0));
    assert_eq!(next(&record, &sights), Step::Evict(0));
    sights[0].drain = going(2, Some(7));
    assert_eq!(next(&record, &sights), Step::Wait(Some(Duration::from_secs(7))));
    sights[0].drain = going(1, None);
    assert!(matches!(next(&record, &sights), Step::Wait(_)));
    sights[0].drain = Drain::Empty;
    assert_eq!(next(&record, &sights), Step::Send(0));
    (sights[0].has, sights[0].doing, sights[0].drain) = (Has::Target, Doing::Runs, Drain::Idle);
    assert!(matches!(next(&record, &sights), Step::Wait(_)));
    sights[0].doing = Doing::Proven;
    assert_eq!(next(&record, &sights), Step::Uncordon(0));
    sights[0].cordon = Cordon::No;
    assert!(matches!(next(&record, &sights), Step::Record(record) if record.wave == 2));
}

#[test]
fn somebody_elses_cordon_is_enough_and_a_former_one_is_taken_over() {
    let record = drained(1, 1);
    let mut sights = vec![fresh()];
    sights[0].drain = Drain::Empty;
    for (cordon, step) in [
        (Cordon::Theirs, Step::Send(0)),
        (Cordon::Ours, Step::Send(0)),
        (Cordon::Former, Step::Cordon(0)),
        (Cordon::Stale, Step::Cordon(0)),
        (Cordon::No, Step::Cordon(0)),
    ] {
        sights[0].cordon = cordon;
        assert_eq!(next(&record, &sights), step, "{cordon:?}");
    }
    (sights[0].has, sights[0].doing, sights[0].cordon) = (Has::Target, Doing::Proven, Cordon::Theirs);
    assert_eq!(stopped(&record, &sights).phase, Phase::Done, "it is left as it is");
}

#[test]
fn a_mark_without_a_cordon_goes_at_once() {
    let record = Record { phase: Phase::Aborted, ..drained(1, 1) };
    let mut sights = vec![fresh()];
    (sights[0].has, sights[0].doing, sights[0].cordon) = (Has::Target, Doing::Moving, Cordon::Stale);
    assert_eq!(next(&record, &sights), Step::Uncordon(0));
}

#[test]
fn one_that_was_cordoned_by_a_dead_client_comes_first() {
    let record = drained(3, 1);
    let mut sights = vec![fresh(); 3];
    sights[0].cordon = Cordon::Ours;
    assert_eq!(next(&record, &sights), Step::Look(0));
    // Unless its turn is not now: then it is open, for the time being.
    let mut sights = vec![fresh(); 3];
    sights[2].cordon = Cordon::Ours;
    assert_eq!(next(&record, &sights), Step::Uncordon(2));
    // And one that fell over while it was drained.
    let mut sights = vec![fresh(); 3];
    (sights[0].cordon, sights[0].ready) = (Cordon::Ours, false);
    assert_eq!(next(&record, &sights), Step::Uncordon(0));
}

#[test]
fn nothing_more_is_taken_out_while_others_are_not_ready() {
    let record = drained(3, 1);
    let mut sights = vec![fresh(); 3];
    (sights[0].cordon, sights[0].drain) = (Cordon::Ours, Drain::Empty);
    sights[2].ready = false;
    assert!(matches!(next(&record, &sights), Step::Wait(_)), "it was to be sent");
    (sights[0].cordon, sights[0].drain) = (Cordon::No, going(1, Some(0)));
    assert!(matches!(next(&record, &sights), Step::Wait(_)), "or cordoned");
}

#[test]
fn an_empty_node_that_may_not_be_sent_is_opened_after_a_while() {
    let record = drained(4, 2);
    let mut sights = vec![fresh(); 4];
    for sight in &mut sights[..2] {
        (sight.cordon, sight.drain) = (Cordon::Ours, Drain::Empty);
        sight.clocks.draining = Duration::from_secs(record.options.timeout_seconds - 9);
    }
    assert_eq!(next(&record, &sights), Step::Send(0));
    sights[3].ready = false;
    assert_eq!(next(&record, &sights), Step::Wait(Some(Duration::from_secs(9))));
    for sight in &mut sights[..2] {
        sight.clocks.draining = Duration::from_secs(record.options.timeout_seconds);
    }
    assert_eq!(next(&record, &sights), Step::Uncordon(0));
    (sights[0].cordon, sights[0].clocks.draining) = (Cordon::No, Duration::ZERO);
    assert_eq!(next(&record, &sights), Step::Send(1), "there is room for the other one");
    (sights[1].has, sights[1].drain, sights[1].doing) = (Has::Target, Drain::Idle, Doing::Moving);
    assert!(matches!(next(&record, &sights), Step::Wait(_)));
    sights[3].ready = true;
    assert_eq!(next(&record, &sights), Step::Cordon(0), "its turn comes again");
}

#[test]
fn one_that_could_not_be_cordoned_has_not_failed_to_drain() {
    let record = drained(2, 1);
    let mut sights = vec![fresh(); 2];
    sights[0].drain = going(1, Some(0));
    sights[0].clocks.draining = Duration::from_secs(record.options.timeout_seconds);
    sights[1].ready = false;
    assert!(matches!(next(&record, &sights), Step::Wait(_)));
}

#[test]
fn pods_of_a_few_nodes_are_listed_at_a_time() {
    for phase in [Phase::Running, Phase::Reverting] {
        // Fresh ones, and ones that a client left behind who died.
        for cordon in [Cordon::No, Cordon::Ours] {
            let record = Record { phase, ..drained(20, 20) };
            let mut sights = vec![Sight { cordon, ..fresh() }; 20];
            if phase == Phase::Reverting {
                for sight in &mut sights {
                    (sight.has, sight.doing) = (Has::Target, Doing::Proven);
                }
            }
            let mut looks = 0;
            while let Step::Look(place) = next(&record, &sights) {
                sights[place].drain = Drain::Looking;
                looks += 1;
            }
            assert_eq!(looks, 8, "{phase:?}, {cordon:?}");
            assert!(matches!(next(&record, &sights), Step::Wait(_)));
            (sights[3].drain, sights[3].cordon) = (going(1, None), Cordon::Ours);
            assert_eq!(next(&record, &sights), Step::Look(8), "{phase:?}, {cordon:?}");
        }
    }
}

#[test]
fn what_cannot_be_drained_stops_it_whatever_on_failure_says() {
    let mut record = drained(2, 2);
    record.options.on_failure = OnFailure::Revert;
    let mut sights = vec![fresh(); 2];
    sights[0].drain = Drain::Refused("Pod n/p has no controller".into());
    let halted = stopped(&record, &sights);
    assert_eq!(halted.why, "node n0 cannot be drained: Pod n/p has no controller");
    assert_eq!(halted.phase, Phase::Stopped);
    (sights[0].drain, sights[0].cordon) = (going(3, Some(5)), Cordon::Ours);
    sights[0].clocks.draining = Duration::from_secs(record.options.timeout_seconds);
    let halted = stopped(&record, &sights);
    assert!(
        halted.why.contains("3 Pods are still there") && halted.why.ends_with("such as Pod n/p: no"),
        "{}",
        halted.why
    );
    // Then it is open again, and nothing is left to do.
    assert_eq!(next(&halted, &sights), Step::Uncordon(0));
    sights[0].cordon = Cordon::No;
    assert_eq!(next(&halted, &sights), Step::End);
}

#[test]
fn whoever_ends_it_waits_for_nodes_in_flight_and_no_longer_than_they_have() {
    for phase in [Phase::Stopped, Phase::Aborted, Phase::Done, Phase::Reverted] {
        let record = Record { phase, ..drained(1, 1) };
        let mut sights = vec![fresh()];
        (sights[0].has, sights[0].doing, sights[0].cordon) = (Has::Target, Doing::Moving, Cordon::Ours);
        sights[0].clocks.moving = Duration::from_secs(1);
        assert!(matches!(next(&record, &sights), Step::Wait(Some(_))), "{phase:?}");
        sights[0].clocks.moving = Duration::from_secs(record.options.timeout_seconds);
        assert_eq!(next(&record, &sights), Step::End);
        (sights[0].doing, sights[0].ready) = (Doing::Bad("no".into()), false);
        sights[0].clocks = Clocks { unready: Duration::from_secs(1), ..Clocks::default() };
        let record = stopped(&record, &sights);
        assert_eq!((record.phase, record.bad.len()), (phase, 1), "its word is kept");
        assert!(matches!(next(&record, &sights), Step::Wait(Some(_))), "{phase:?}");
        sights[0].ready = true;
        assert_eq!(next(&record, &sights), Step::Uncordon(0));
    }
}

#[test]
fn a_pause_takes_drains_back_and_lets_others_come_to_their_end() {
    let record = Record { phase: Phase::Paused, ..drained(2, 2) };
    let mut sights = vec![fresh(); 2];
    sights[0].cordon = Cordon::Ours;
    (sights[1].has, sights[1].doing, sights[1].cordon) = (Has::Target, Doing::Runs, Cordon::Ours);
    assert!(!is_drained(&record, &sights[0]));
    assert_eq!(next(&record, &sights), Step::Uncordon(0));
    sights[0].cordon = Cordon::No;
    assert!(matches!(next(&record, &sights), Step::Wait(_)));
    sights[1].doing = Doing::Proven;
    assert_eq!(next(&record, &sights), Step::Uncordon(1));
}

#[test]
fn on_the_way_back_what_is_unwell_is_not_drained_and_what_refuses_is_left() {
    let record = Record { phase: Phase::Reverting, ..drained(3, 1) };
    let mut sights = vec![fresh(); 3];
    for sight in &mut sights {
        (sight.has, sight.doing) = (Has::Target, Doing::Proven);
    }
    sights[1].ready = false;
    assert_eq!(next(&record, &sights), Step::Restore(1));
    (sights[1].has, sights[1].doing, sights[1].ready) = (Has::Before, Doing::Runs, true);
    assert_eq!(next(&record, &sights), Step::Look(0));
    (sights[0].drain, sights[0].cordon) = (Drain::Empty, Cordon::Ours);
    assert_eq!(next(&record, &sights), Step::Restore(0));
    (sights[0].has, sights[0].doing, sights[0].drain) = (Has::Before, Doing::Moving, Drain::Idle);
    assert!(matches!(next(&record, &sights), Step::Wait(_)), "the cordon is kept until it is back");
    sights[0].doing = Doing::Runs;
    assert_eq!(next(&record, &sights), Step::Uncordon(0));
    sights[0].cordon = Cordon::No;
    assert_eq!(next(&record, &sights), Step::Look(2));
    sights[2].drain = Drain::Refused("Pod n/p has an emptyDir".into());
    sights[2].drain = Drain::GaveUp(gives_up(&record, &sights[2]).unwrap());
    let reverted = stopped(&record, &sights);
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
    sights: Vec<Sight>,
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
            sights: vec![fresh(); count],
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
        let out = |sight: &&Sight| {
            let flight =
                matches!(sight.doing, Doing::Moving) || (sight.has == Has::Target && sight.doing == Doing::Runs);
            // On the way back, who is not Ready for too long is not waited for.
            let timeout = Duration::from_secs(self.record.options.timeout_seconds);
            let late = self.record.phase == Phase::Reverting && sight.clocks.unready >= timeout;
            !late && (sight.cordon == Cordon::Ours || flight || !sight.ready)
        };
        self.sights.iter().filter(out).count()
    }

    fn change(&mut self, place: usize, has: Has) {
        let sight = &mut self.sights[place];
        if sight.ready && !matches!(sight.doing, Doing::Bad(_)) {
            assert!(sight.cordon.holds() && sight.drain == Drain::Empty, "undrained: {sight:?}");
            assert!(!self.listed[place].is_outdated(true), "a Pod may have come: {sight:?}");
        }
        (sight.has, sight.doing) = (has, Doing::Moving);
        self.changed[place] = self.now;
        self.evicted[place] = None;
    }

    fn refresh(&mut self) {
        for place in 0..self.sights.len() {
            if self.listed[place].is_outdated(self.sights[place].cordon.holds()) {
                self.looked[place] = None;
            }
            let drain = match (self.looked[place], &self.pods[place], self.evicted[place]) {
                (None, ..) => Drain::Idle,
                (_, Fate::Refuse, _) => Drain::Refused("refuses".into()),
                (_, Fate::Leave(0), _) => Drain::Empty,
                (_, Fate::Leave(time), Some(at)) if at + time <= self.now => Drain::Empty,
                (_, Fate::ReexecError, _) => going(1, Some(5)),
                (_, Fate::Leave(_), None) => going(1, Some(0)),
                (_, Fate::Leave(_), Some(_)) => going(1, None),
            };
            let sight = &mut self.sights[place];
            if !is_drained(&self.record, sight) {
                self.looked[place] = None;
            }
            let was_empty = sight.drain == Drain::Empty;
            let gave_up = matches!(sight.drain, Drain::GaveUp(_)) && self.record.phase == Phase::Reverting;
            if !gave_up {
                sight.drain = if self.looked[place].is_some() { drain } else { Drain::Idle };
            }
            let same = was_empty == (sight.drain == Drain::Empty);
            let on = sight.drain.is_on() && sight.cordon.holds();
            let since = on.then(|| self.cordoned[place].filter(|_| same).unwrap_or(self.now));
            self.cordoned[place] = since;
            sight.clocks.draining = Duration::from_secs(since.map_or(0, |at| self.now - at));
            if let Some(why) = gives_up(&self.record, sight) {
                sight.drain = Drain::GaveUp(why);
                self.looked[place] = None;
            }
        }
    }

    /// Until the client waits; true if it has nothing left to do.
    fn client(&mut self) -> bool {
        for _ in 0..1000 {
            self.refresh();
            let room = self.out() <= self.record.options.max_unavailable;
            match decide(&self.record, &self.members, &self.sights) {
                Step::Record(record) => self.record = *record,
                Step::Look(place) => {
                    self.looked[place] = Some(self.now);
                    self.listed[place] = Pods::new(Draining::Careful, self.sights[place].cordon.holds());
                }
                Step::Cordon(place) => {
                    self.sights[place].cordon = Cordon::Ours;
                    assert!(!room || self.out() <= self.record.options.max_unavailable, "too many are out");
                }
                Step::Uncordon(place) => self.sights[place].cordon = Cordon::No,
                Step::Evict(place) => {
                    assert!(self.sights[place].cordon.holds());
                    self.evicted[place] = Some(self.now);
                }
                Step::Send(place) => {
                    self.change(place, Has::Target);
                    assert!(self.out() <= self.record.options.max_unavailable, "too many are out");
                }
                Step::Restore(place) => self.change(place, Has::Before),
                Step::Wait(_) => return false,
                Step::End => return true,
            }
        }
        panic!("it goes round in circles: {:#?} {:#?}", self.record, self.sights);
    }

    fn second(&mut self) {
        self.now += 1;
        for place in 0..self.sights.len() {
            let since = self.now - self.changed[place];
            let sight = &mut self.sights[place];
            sight.ready = self.unready_until[place] <= self.now;
            sight.doing = match (sight.has, since) {
                (Has::Target, 20..) if self.bad == Some(place) => Doing::Bad("no".into()),
                (Has::Target, 30..) => Doing::Proven,
                (Has::Target, 5..) | (Has::Before, 10..) => Doing::Runs,
                _ => sight.doing.clone(),
            };
            let on = |clock: Duration, runs: bool| if runs { clock + Duration::from_secs(1) } else { Duration::ZERO };
            let moving = if sight.has == Has::Target {
                !sight.is_settled(self.record.options.wait_for)
            } else {
                sight.doing == Doing::Moving
            };
            sight.clocks = Clocks {
                unready: on(sight.clocks.unready, !sight.ready),
                moving: on(sight.clocks.moving, moving),
                away: on(sight.clocks.away, sight.is_away()),
                draining: sight.clocks.draining,
            };
        }
    }

    fn strike(&mut self, what: &Outside) {
        let count = self.sights.len();
        match what {
            Outside::Killed => {
                self.looked.fill(None);
                for sight in &mut self.sights {
                    (sight.clocks, sight.drain) = (Clocks::default(), Drain::Idle);
                }
            }
            Outside::Paused if self.record.phase == Phase::Running => self.record.phase = Phase::Paused,
            Outside::Undone if !self.record.phase.is_over() => self.record.phase = Phase::Reverting,
            Outside::Aborted if !self.record.phase.is_over() => self.record.phase = Phase::Aborted,
            Outside::Unready { node, seconds } => self.unready_until[node % count] = self.now + seconds,
            Outside::Uncordoned { node } => {
                let cordon = &mut self.sights[node % count].cordon;
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
                prop_assert!(world.sights.iter().all(|it| it.cordon == Cordon::No || it.has == Has::Target));
                world.record.phase = Phase::Running;
            }
            for (_, what) in strikes.iter().filter(|(at, _)| *at == now) {
                world.strike(what);
            }
            world.second();
        }
        prop_assert!(ended, "it never ends: {:#?} {:#?}", world.record, world.sights);
        let cordoned = world.sights.iter().find(|it| matches!(it.cordon, Cordon::Ours | Cordon::Stale) && it.ready);
        prop_assert!(cordoned.is_none(), "{:?}: {cordoned:?}", world.record.phase);
    }
}
