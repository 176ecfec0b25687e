//! What a rollout remembers, and how it ends when it is taken back.

use std::time::Duration;

use super::decide::{Step, decide};
use super::drain::{Cordon, Draining};
use super::sight::{Clocks, Doing, Has, Sight};
use super::tests::{fresh, members, options, record};
use super::{Bad, ClearedVersion, NOT_READY, Phase, Record, WITHDRAWN};

fn written(record: &Record, sights: &[Sight]) -> Record {
    match decide(record, &members(record.nodes), sights) {
        Step::Record(record) => *record,
        other => panic!("{other:?}"),
    }
}

fn excused(record: &mut Record, node: &str) {
    record.excuse(&ClearedVersion { node: node.into(), why: "no".into(), how: "--despite".into() });
}

#[test]
fn marks_are_lifted_one_by_one() {
    let mut record = record(3, options(1, 2));
    for node in ["n0", "n1"] {
        record.mark(Bad { node: node.into(), why: "no".into(), from: None });
    }
    let mut sights = vec![fresh(); 3];
    (sights[0].has, sights[0].doing) = (Has::Target, Doing::Proven);
    let record = written(&record, &sights);
    assert_eq!((record.phase, record.bad.len(), record.lifted[0].node.as_str()), (Phase::Running, 1, "n0"));
    let record = written(&record, &sights);
    assert_eq!((record.phase, record.why.as_str()), (Phase::Stopped, "node n1 called it bad: no"));
}

#[test]
fn an_excused_node_stops_nothing_and_is_not_waited_for() {
    let mut record = record(3, options(0, 1));
    record.wave = 1;
    excused(&mut record, "n0");
    let mut sights = vec![fresh(); 3];
    (sights[0].has, sights[0].doing) = (Has::Target, Doing::Bad("no".into()));
    let record = written(&record, &sights);
    assert_eq!((record.phase, record.wave), (Phase::Running, 2));
    assert_eq!(decide(&record, &members(3), &sights), Step::Send(1), "it is not in flight");
    // Not Ready, it counts as any node does.
    sights[0].ready = false;
    assert!(matches!(decide(&record, &members(3), &sights), Step::Wait(_)));
    sights[0].ready = true;
    for sight in &mut sights[1..] {
        (sight.has, sight.doing) = (Has::Target, Doing::Proven);
    }
    let record = written(&Record { wave: 3, ..record }, &sights);
    assert_eq!(record.phase, Phase::Done);
    assert!(record.why.contains("excused") && record.why.ends_with("n0"), "{}", record.why);
    // Another one that says the same is listened to.
    sights[1].doing = Doing::Bad("no".into());
    let record = written(&Record { phase: Phase::Running, ..record }, &sights);
    assert_eq!((record.phase, record.bad[0].node.as_str()), (Phase::Stopped, "n1"));
}

#[test]
fn for_an_excused_canary_another_node_is_one() {
    let mut record = record(3, options(1, 2));
    excused(&mut record, "n0");
    let mut sights = vec![fresh(); 3];
    (sights[0].has, sights[0].doing) = (Has::Target, Doing::Bad("no".into()));
    assert_eq!(decide(&record, &members(3), &sights), Step::Send(1));
    (sights[1].has, sights[1].doing) = (Has::Target, Doing::Runs);
    assert!(matches!(decide(&record, &members(3), &sights), Step::Wait(_)), "no wave before its canary");
    sights[1].doing = Doing::Proven;
    let next = written(&record, &sights);
    assert_eq!((next.phase, next.wave), (Phase::Running, 1));
    assert_eq!(decide(&next, &members(3), &sights), Step::Send(2));
    // None is left.
    excused(&mut record, "n1");
    excused(&mut record, "n2");
    for sight in &mut sights {
        (sight.has, sight.doing) = (Has::Target, Doing::Bad("no".into()));
    }
    let stopped = written(&record, &sights);
    assert!(stopped.phase == Phase::Stopped && stopped.why.starts_with("no canary is left"), "{}", stopped.why);
}

#[test]
fn what_somebody_took_back_is_written_down_before_anything_is_sent() {
    let mut record = record(4, options(0, 4));
    record.wave = 1;
    let mut sights = vec![fresh(); 4];
    (sights[0].has, sights[0].taken_back) = (Has::Other, true);
    let next = written(&record, &sights);
    assert_eq!((next.withdrawn.as_slice(), next.phase), (["n0".to_owned()].as_slice(), Phase::Running));
    assert_eq!(decide(&next, &members(4), &sights), Step::Send(1));
    let paused = written(&Record { phase: Phase::Paused, ..record }, &sights);
    assert_eq!((paused.withdrawn.len(), paused.phase), (1, Phase::Paused));
}

#[test]
fn what_is_taken_back_from_hundreds_is_a_veto() {
    let count = WITHDRAWN + 10;
    let mut record = record(count, options(0, count));
    record.wave = 1;
    let mut sights = vec![fresh(); count];
    for sight in &mut sights {
        (sight.has, sight.taken_back) = (Has::Other, true);
    }
    let stopped = written(&record, &sights);
    assert_eq!((stopped.phase, stopped.withdrawn.len()), (Phase::Stopped, WITHDRAWN));
    // Nor does `resume` give it to those whose names had no room.
    let again = written(&Record { phase: Phase::Running, ..stopped }, &vec![fresh(); count]);
    assert_eq!(again.phase, Phase::Stopped);
}

#[test]
fn who_is_not_back_in_time_is_counted_and_why_it_began_is_kept() {
    let mut record = record(3, options(0, 3));
    (record.phase, record.why) = (Phase::Reverting, "node n0 called it bad".into());
    let mut sights = vec![fresh(); 3];
    sights[1].doing = Doing::Moving;
    assert!(matches!(decide(&record, &members(3), &sights), Step::Wait(_)));
    sights[1].clocks.moving = Duration::from_secs(record.options.timeout_seconds);
    sights[2].has = Has::Other;
    let reverted = written(&record, &sights);
    assert_eq!((reverted.phase, reverted.behind), (Phase::Reverted, 1));
    assert_eq!(
        reverted.why,
        "node n0 called it bad; did not come back within --timeout-per-node: n1; left alone, as somebody assigned them \
         something else: n2"
    );
}

#[test]
fn every_word_is_remembered_whatever_it_stopped_for() {
    let mut record = record(4, options(0, 4));
    record.wave = 1;
    excused(&mut record, "n3");
    let mut sights = vec![fresh(); 4];
    for (sight, doing) in sights.iter_mut().zip([Doing::Moving, Doing::Bad("a".into()), Doing::Bad("b".into())]) {
        (sight.has, sight.doing) = (Has::Target, doing);
    }
    (sights[3].has, sights[3].doing) = (Has::Target, Doing::Bad("excused".into()));
    (sights[0].ready, sights[0].clocks.unready) = (false, NOT_READY);
    let stopped = written(&record, &sights);
    let who = |record: &Record| record.bad.iter().map(|bad| bad.node.clone()).collect::<Vec<_>>();
    assert!(stopped.why.starts_with("node n0 is not Ready"), "{}", stopped.why);
    assert_eq!((stopped.phase, who(&stopped)), (Phase::Stopped, vec!["n1".to_owned(), "n2".to_owned()]));
    assert_eq!(decide(&stopped, &members(4), &sights), Step::End, "that is all");
}

#[test]
fn what_a_node_says_later_is_written_down_before_it_goes_back() {
    let mut sights = vec![fresh(); 2];
    (sights[0].has, sights[0].doing) = (Has::Target, Doing::Bad("went back".into()));
    for phase in [Phase::Stopped, Phase::Reverting, Phase::Aborted] {
        let record = Record { phase, why: "n0 was not Ready".into(), ..record(2, options(1, 1)) };
        let next = written(&record, &sights);
        assert_eq!((next.phase, next.why.as_str(), next.bad[0].node.as_str()), (phase, "n0 was not Ready", "n0"));
        let then = if phase == Phase::Reverting { Step::Restore(0) } else { Step::End };
        assert_eq!(decide(&next, &members(2), &sights), then, "{phase:?}");
    }
    // Of a hundred, as many are kept as there is room for.
    let mut record = Record { phase: Phase::Reverting, ..record(100, options(1, 1)) };
    let sights = vec![sights[0].clone(); 100];
    record = written(&record, &sights);
    assert_eq!(decide(&record, &members(100), &sights), Step::Restore(0), "{}", record.bad.len());
}

#[test]
fn one_that_stays_not_ready_does_not_keep_the_others_from_going_back() {
    let timeout = Duration::from_secs(options(0, 1).timeout_seconds);
    for drain in [None, Some(Draining::Careful)] {
        let mut record = Record { phase: Phase::Reverting, ..record(3, options(0, 1)) };
        record.options.drain = drain;
        let mut sights = vec![fresh(); 3];
        (sights[0].has, sights[0].doing) = (Has::Target, Doing::Proven);
        sights[1].ready = false;
        sights[1].clocks.unready = timeout.checked_sub(Duration::from_secs(7)).unwrap();
        let next = |sights: &[Sight]| decide(&record, &members(3), sights);
        assert_eq!(next(&sights), Step::Wait(Some(Duration::from_secs(7))), "and wakes for it");
        sights[1].clocks.unready = timeout;
        let goes = if drain.is_some() { Step::Look(0) } else { Step::Restore(0) };
        assert_eq!(next(&sights), goes);
        // Nor does one that was drained for it.
        sights[1].cordon = Cordon::Ours;
        assert_eq!(next(&sights), goes);
        (sights[1].ready, sights[1].doing, sights[1].clocks) = (true, Doing::Moving, Clocks::default());
        assert!(matches!(next(&sights), Step::Wait(_)), "it has its time");
        sights[1].clocks.moving = timeout;
        assert_eq!(next(&sights), goes);
    }
}

#[test]
fn who_is_back_and_not_ready_is_named() {
    let record = Record { phase: Phase::Reverting, ..record(2, options(0, 1)) };
    let mut sights = vec![fresh(); 2];
    (sights[0].ready, sights[0].clocks.unready) = (false, Duration::from_secs(record.options.timeout_seconds));
    let reverted = written(&record, &sights);
    assert_eq!(reverted.why, "back, but not Ready for longer than --timeout-per-node: n0");
    assert_eq!((reverted.phase, reverted.behind), (Phase::Reverted, 0));
    sights[0].doing = Doing::Moving;
    sights[0].clocks.moving = sights[0].clocks.unready;
    let reverted = written(&record, &sights);
    assert_eq!((reverted.phase, reverted.behind), (Phase::Reverted, 1));
}
