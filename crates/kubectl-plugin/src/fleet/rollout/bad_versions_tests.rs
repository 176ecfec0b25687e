//! What a rollout remembers, and how it ends when it is taken back.

use std::time::Duration;

use super::decide::{Step, decide};
use super::drain::{Cordon, Draining};
use super::observed::{Assigned, NodeTimers, ObservedNode, Progress};
use super::tests::{fresh, members, options, record};
use super::{BadVersion, ClearedVersion, NOT_READY, Phase, Record, WITHDRAWN};

fn written(record: &Record, observed: &[ObservedNode]) -> Record {
    match decide(record, &members(record.nodes), observed) {
        Step::Record(record) => *record,
        other => panic!("{other:?}"),
    }
}

fn excluded(record: &mut Record, node: &str) {
    record.exclude(&ClearedVersion { node: node.into(), why: "no".into(), how: "--despite".into() });
}

#[test]
fn bad_versions_are_cleared_one_by_one() {
    let mut record = record(3, options(1, 2));
    for node in ["n0", "n1"] {
        record.add_bad(BadVersion { node: node.into(), why: "no".into(), from: None });
    }
    let mut observed = vec![fresh(); 3];
    (observed[0].assigned, observed[0].progress) = (Assigned::Target, Progress::Proven);
    let record = written(&record, &observed);
    assert_eq!((record.phase, record.bad.len(), record.cleared[0].node.as_str()), (Phase::Running, 1, "n0"));
    let record = written(&record, &observed);
    assert_eq!((record.phase, record.why.as_str()), (Phase::Stopped, "node n1 called it bad: no"));
}

#[test]
fn an_excluded_node_stops_nothing_and_is_not_waited_for() {
    let mut record = record(3, options(0, 1));
    record.wave = 1;
    excluded(&mut record, "n0");
    let mut observed = vec![fresh(); 3];
    (observed[0].assigned, observed[0].progress) = (Assigned::Target, Progress::Bad("no".into()));
    let record = written(&record, &observed);
    assert_eq!((record.phase, record.wave), (Phase::Running, 2));
    assert_eq!(decide(&record, &members(3), &observed), Step::Send(1), "it is not in flight");
    // Not Ready, it counts as any node does.
    observed[0].ready = false;
    assert!(matches!(decide(&record, &members(3), &observed), Step::Wait(_)));
    observed[0].ready = true;
    for node in &mut observed[1..] {
        (node.assigned, node.progress) = (Assigned::Target, Progress::Proven);
    }
    let record = written(&Record { wave: 3, ..record }, &observed);
    assert_eq!(record.phase, Phase::Done);
    assert!(record.why.contains("excused") && record.why.ends_with("n0"), "{}", record.why);
    // Another one that says the same is listened to.
    observed[1].progress = Progress::Bad("no".into());
    let record = written(&Record { phase: Phase::Running, ..record }, &observed);
    assert_eq!((record.phase, record.bad[0].node.as_str()), (Phase::Stopped, "n1"));
}

#[test]
fn for_an_excluded_canary_another_node_is_one() {
    let mut record = record(3, options(1, 2));
    excluded(&mut record, "n0");
    let mut observed = vec![fresh(); 3];
    (observed[0].assigned, observed[0].progress) = (Assigned::Target, Progress::Bad("no".into()));
    assert_eq!(decide(&record, &members(3), &observed), Step::Send(1));
    (observed[1].assigned, observed[1].progress) = (Assigned::Target, Progress::Active);
    assert!(matches!(decide(&record, &members(3), &observed), Step::Wait(_)), "no wave before its canary");
    observed[1].progress = Progress::Proven;
    let next = written(&record, &observed);
    assert_eq!((next.phase, next.wave), (Phase::Running, 1));
    assert_eq!(decide(&next, &members(3), &observed), Step::Send(2));
    // None is left.
    excluded(&mut record, "n1");
    excluded(&mut record, "n2");
    for node in &mut observed {
        (node.assigned, node.progress) = (Assigned::Target, Progress::Bad("no".into()));
    }
    let stopped = written(&record, &observed);
    assert!(stopped.phase == Phase::Stopped && stopped.why.starts_with("no canary is left"), "{}", stopped.why);
}

#[test]
fn what_somebody_took_back_is_written_down_before_anything_is_sent() {
    let mut record = record(4, options(0, 4));
    record.wave = 1;
    let mut observed = vec![fresh(); 4];
    (observed[0].assigned, observed[0].taken_back) = (Assigned::Other, true);
    let next = written(&record, &observed);
    assert_eq!((next.withdrawn.as_slice(), next.phase), (["n0".to_owned()].as_slice(), Phase::Running));
    assert_eq!(decide(&next, &members(4), &observed), Step::Send(1));
    let paused = written(&Record { phase: Phase::Paused, ..record }, &observed);
    assert_eq!((paused.withdrawn.len(), paused.phase), (1, Phase::Paused));
}

#[test]
fn what_is_taken_back_from_hundreds_is_a_veto() {
    let count = WITHDRAWN + 10;
    let mut record = record(count, options(0, count));
    record.wave = 1;
    let mut observed = vec![fresh(); count];
    for node in &mut observed {
        (node.assigned, node.taken_back) = (Assigned::Other, true);
    }
    let stopped = written(&record, &observed);
    assert_eq!((stopped.phase, stopped.withdrawn.len()), (Phase::Stopped, WITHDRAWN));
    // Nor does `resume` give it to those whose names had no room.
    let again = written(&Record { phase: Phase::Running, ..stopped }, &vec![fresh(); count]);
    assert_eq!(again.phase, Phase::Stopped);
}

#[test]
fn who_is_not_back_in_time_is_counted_and_why_it_began_is_kept() {
    let mut record = record(3, options(0, 3));
    (record.phase, record.why) = (Phase::Reverting, "node n0 called it bad".into());
    let mut observed = vec![fresh(); 3];
    observed[1].progress = Progress::Updating;
    assert!(matches!(decide(&record, &members(3), &observed), Step::Wait(_)));
    observed[1].timers.updating = Duration::from_secs(record.options.timeout_seconds);
    observed[2].assigned = Assigned::Other;
    let reverted = written(&record, &observed);
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
    excluded(&mut record, "n3");
    let mut observed = vec![fresh(); 4];
    for (node, progress) in
        observed.iter_mut().zip([Progress::Updating, Progress::Bad("a".into()), Progress::Bad("b".into())])
    {
        (node.assigned, node.progress) = (Assigned::Target, progress);
    }
    (observed[3].assigned, observed[3].progress) = (Assigned::Target, Progress::Bad("excused".into()));
    (observed[0].ready, observed[0].timers.unready) = (false, NOT_READY);
    let stopped = written(&record, &observed);
    let who = |record: &Record| record.bad.iter().map(|bad| bad.node.clone()).collect::<Vec<_>>();
    assert!(stopped.why.starts_with("node n0 is not Ready"), "{}", stopped.why);
    assert_eq!((stopped.phase, who(&stopped)), (Phase::Stopped, vec!["n1".to_owned(), "n2".to_owned()]));
    assert_eq!(decide(&stopped, &members(4), &observed), Step::End, "that is all");
}

#[test]
fn what_a_node_says_later_is_written_down_before_it_goes_back() {
    let mut observed = vec![fresh(); 2];
    (observed[0].assigned, observed[0].progress) = (Assigned::Target, Progress::Bad("went back".into()));
    for phase in [Phase::Stopped, Phase::Reverting, Phase::Aborted] {
        let record = Record { phase, why: "n0 was not Ready".into(), ..record(2, options(1, 1)) };
        let next = written(&record, &observed);
        assert_eq!((next.phase, next.why.as_str(), next.bad[0].node.as_str()), (phase, "n0 was not Ready", "n0"));
        let then = if phase == Phase::Reverting { Step::Restore(0) } else { Step::End };
        assert_eq!(decide(&next, &members(2), &observed), then, "{phase:?}");
    }
    // Of a hundred, as many are kept as there is room for.
    let mut record = Record { phase: Phase::Reverting, ..record(100, options(1, 1)) };
    let observed = vec![observed[0].clone(); 100];
    record = written(&record, &observed);
    assert_eq!(decide(&record, &members(100), &observed), Step::Restore(0), "{}", record.bad.len());
}

#[test]
fn one_that_stays_not_ready_does_not_keep_the_others_from_going_back() {
    let timeout = Duration::from_secs(options(0, 1).timeout_seconds);
    for drain in [None, Some(Draining::Careful)] {
        let mut record = Record { phase: Phase::Reverting, ..record(3, options(0, 1)) };
        record.options.drain = drain;
        let mut observed = vec![fresh(); 3];
        (observed[0].assigned, observed[0].progress) = (Assigned::Target, Progress::Proven);
        observed[1].ready = false;
        observed[1].timers.unready = timeout.checked_sub(Duration::from_secs(7)).unwrap();
        let next = |observed: &[ObservedNode]| decide(&record, &members(3), observed);
        assert_eq!(next(&observed), Step::Wait(Some(Duration::from_secs(7))), "and wakes for it");
        observed[1].timers.unready = timeout;
        let goes = if drain.is_some() { Step::FollowPods(0) } else { Step::Restore(0) };
        assert_eq!(next(&observed), goes);
        // Nor does one that was drained for it.
        observed[1].cordon = Cordon::Ours;
        assert_eq!(next(&observed), goes);
        (observed[1].ready, observed[1].progress, observed[1].timers) =
            (true, Progress::Updating, NodeTimers::default());
        assert!(matches!(next(&observed), Step::Wait(_)), "it has its time");
        observed[1].timers.updating = timeout;
        assert_eq!(next(&observed), goes);
    }
}

#[test]
fn who_is_back_and_not_ready_is_named() {
    let record = Record { phase: Phase::Reverting, ..record(2, options(0, 1)) };
    let mut observed = vec![fresh(); 2];
    (observed[0].ready, observed[0].timers.unready) = (false, Duration::from_secs(record.options.timeout_seconds));
    let reverted = written(&record, &observed);
    assert_eq!(reverted.why, "back, but not Ready for longer than --timeout-per-node: n0");
    assert_eq!((reverted.phase, reverted.behind), (Phase::Reverted, 0));
    observed[0].progress = Progress::Updating;
    observed[0].timers.updating = observed[0].timers.unready;
    let reverted = written(&record, &observed);
    assert_eq!((reverted.phase, reverted.behind), (Phase::Reverted, 1));
}
