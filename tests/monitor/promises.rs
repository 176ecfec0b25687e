//! What holds in every world, whatever workers say and chance does.

use std::time::Duration;

use kubelet_supervisor::machine::model::Exit;
use kubelet_supervisor::monitor::{ABSENCE, Event, FEED_MAX, GRACE, LAST_WORDS, Role};
use kubelet_supervisor::os::notify_socket::Message;

use crate::world::{Chances, INTERVAL, SIGKILL, SIGTERM, World};

const WORLDS: u64 = 3000;

/// The longest pause before a kubelet.
const PAUSE: Duration = Duration::from_secs(10);

fn worlds(chances: Chances, steps: usize, mut check: impl FnMut(World)) {
    for seed in 0..WORLDS {
        let mut world = World::new(seed, chances);
        world.event(Event::Tick);
        for _ in 0..steps {
            if world.exit.is_none() {
                world.chance();
            }
        }
        assert_eq!(world.exit, None, "world {seed}: nobody asked for the end");
        check(world);
    }
}

/// Also checked in every step: never two that act, never a standby that would not wait, three workers at most.
#[test]
fn a_worker_that_says_anything_leaves_no_node_without_a_kubelet() {
    worlds(Chances::default(), 150, |mut world| {
        world.pass(ABSENCE * 2);
        assert!(world.longest_none <= ABSENCE + PAUSE, "no kubelet for {:?}", world.longest_none);
        assert_eq!(world.acting().len(), 1);
    });
}

/// Nor do children that nobody can kill: what is held is left alone.
#[test]
fn what_cannot_be_killed_holds_up_nothing() {
    worlds(Chances { held: true, ..Chances::default() }, 150, |mut world| {
        world.pass(ABSENCE * 2);
        assert_eq!(world.acting().len(), 1);
        let starts = world.starts;
        assert!(starts <= world.kubelet_ends + 1, "{starts} starts for {} ends", world.kubelet_ends);
    });
}

/// A worker that dies, or is replaced, costs the kubelet nothing.
#[test]
fn a_kubelet_is_started_only_after_the_end_of_one() {
    worlds(Chances { sane_workers: true, ..Chances::default() }, 150, |world| {
        assert!(world.starts <= world.kubelet_ends + 1, "{} starts, {} ends", world.starts, world.kubelet_ends);
    });
}

#[test]
fn forks_that_fail_are_tried_again_with_pauses() {
    for seed in 0..WORLDS {
        let mut world = World::new(seed, Chances { forks_fail: true, ..Chances::default() });
        world.event(Event::Tick);
        world.pass(Duration::from_secs(600));
        assert!((10..300).contains(&world.failed_forks), "{} tries in ten minutes", world.failed_forks);
        world.chances.forks_fail = false;
        world.pass(Duration::from_secs(120));
        assert_eq!((world.acting().len(), world.workers().len()), (1, 1), "world {seed}");
    }
}

#[test]
fn the_end_comes_and_leaves_nobody_who_can_be_ended() {
    for held in [false, true] {
        worlds(Chances { held, ..Chances::default() }, 60, |mut world| {
            world.event(Event::Signal(SIGTERM));
            world.reap();
            world.pass(GRACE * 2 + LAST_WORDS * 2);
            assert_eq!(world.exit, Some(0));
            let left: Vec<i32> = world.acting().into_iter().filter(|pid| !world.processes[pid].held).collect();
            assert!(left.is_empty(), "a kubelet is left: {left:?}");
        });
    }
}

#[test]
fn a_second_sigterm_ends_at_once() {
    worlds(Chances::default(), 30, |mut world| {
        world.event(Event::Signal(SIGTERM));
        if world.exit.is_none() {
            world.event(Event::Signal(SIGTERM));
            assert_eq!(world.exit, Some(1));
            assert!(world.acting().iter().all(|pid| world.processes[pid].held));
        }
    });
}

/// Everybody whom the monitor was told of is signalled or reaped: nobody is forgotten while alive, but who cannot be killed.
#[test]
fn nobody_is_forgotten() {
    worlds(Chances::default(), 150, |mut world| {
        world.pass(ABSENCE * 3);
        let roles = |wanted: fn(Role) -> bool| world.alive(wanted).len();
        assert_eq!(roles(|role| role == Role::Kubelet), 1);
        assert_eq!(roles(|role| role == Role::Standby), 0, "nobody claims it");
        assert!(roles(|role| matches!(role, Role::Worker(_))) <= 1);
    });
}

fn pings(world: &World, from: Duration) -> Vec<Duration> {
    let of = |(at, told): &(Duration, &str)| (*told == "WATCHDOG=1" && *at >= from).then_some(*at);
    world.told.iter().filter_map(of).collect()
}

/// systemd hears of a node whose kubelet lives, whatever becomes of workers; and misses a kubelet that hangs.
#[test]
fn systemd_is_pinged_for_a_kubelet_that_lives_and_not_for_one_that_hangs() {
    for seed in 0..200 {
        let mut world = World::new(seed, Chances { sane_workers: true, ..Chances::default() });
        world.event(Event::Tick);
        world.pass(Duration::from_secs(11));
        let begin = world.now;
        for _ in 0..30 {
            world.event(Event::Heard(Message::Ping));
            let worker = world.workers().first().copied();
            if let Some(pid) = worker.filter(|_| world.rng.bool()) {
                world.die(pid, Exit::Signal(SIGKILL));
            }
            world.reap();
            world.pass(INTERVAL / 2);
        }
        let gaps = pings(&world, begin).windows(2).map(|pair| pair[1].saturating_sub(pair[0])).max();
        assert!(gaps <= Some(INTERVAL), "world {seed}: {gaps:?}");
        let hangs = world.now;
        world.pass(FEED_MAX);
        assert!(pings(&world, hangs).iter().all(|at| *at < hangs + INTERVAL), "world {seed}");
        assert_eq!(world.starts, 1);
    }
}

#[test]
fn a_node_that_cannot_have_a_kubelet_is_fed_for_a_while_only() {
    let mut world = World::new(1, Chances { forks_fail: true, ..Chances::default() });
    world.event(Event::Tick);
    world.pass(FEED_MAX * 2);
    // Each failed fork is a try, and the time counts from it.
    let last = pings(&world, Duration::ZERO).last().copied();
    assert!(last.is_some());
}
