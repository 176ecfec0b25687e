//! The monitor's rules, one by one.

use std::time::Duration;

use kubelet_supervisor::machine::model::Exit;
use kubelet_supervisor::monitor::wire::{PROTOCOL, Phase, Request, Status, fingerprint};
use kubelet_supervisor::monitor::{ABSENCE, Action, CLAIM, Event, GRACE, HELLO, READ, Role, SILENCE};
use kubelet_supervisor::os::notify_socket::Message;

use crate::world::{Chances, SIGHUP, SIGKILL, World, own};

fn world() -> World {
    let mut world = World::new(7, Chances::default());
    world.event(Event::Tick);
    world
}

/// With a worker that is obeyed.
fn begun() -> World {
    let mut world = world();
    world.event(Event::Boot(None));
    world.hello(world.workers()[0]);
    world
}

fn say(world: &mut World, request: Request) {
    let pid = world.workers()[0];
    world.say(pid, request);
    world.reap();
}

fn status(world: &World) -> Status {
    let pid = *world.workers().last().unwrap();
    world.monitor.status(world.worker(pid)).unwrap()
}

fn args(name: &str) -> Vec<String> {
    vec![format!("--config=/{name}")]
}

/// With a kubelet that was started for the worker.
fn running() -> World {
    let mut world = begun();
    say(&mut world, Request::Start { ticket: 1, args: args("a") });
    world
}

#[test]
fn a_start_is_carried_out_once_and_told() {
    let mut world = running();
    let kubelet = status(&world).kubelet.unwrap();
    assert_eq!((kubelet.run, kubelet.ticket, kubelet.command), (1, Some(1), fingerprint(&args("a"))));
    say(&mut world, Request::Start { ticket: 2, args: args("b") });
    assert_eq!(status(&world).refused.unwrap().0, 2);
    assert_eq!(world.starts, 1);
}

#[test]
fn a_worker_that_never_comes_costs_ten_seconds_and_then_nothing() {
    for boot in [Some(args("proven")), None] {
        let mut world = world();
        world.event(Event::Boot(boot.clone()));
        world.pass(HELLO.saturating_sub(Duration::from_secs(1)));
        assert_eq!(world.starts, 0, "a slow disk may be the reason");
        world.pass(Duration::from_secs(2));
        assert_eq!(world.starts, 1);
        let command = boot.unwrap_or_else(own);
        assert_eq!(status(&world).kubelet.unwrap().command, fingerprint(&command));
    }
}

#[test]
fn a_worker_that_cannot_be_executed_costs_nothing_but_the_disk() {
    let mut world = world();
    let pid = world.workers()[0];
    world.die(pid, Exit::Code(127));
    world.reap();
    assert_eq!(world.starts, 0, "what was last known good is not known yet");
    world.pass(READ);
    assert_eq!(world.starts, 1);
}

#[test]
fn what_was_started_outlives_its_worker_and_is_started_again() {
    let mut world = running();
    let pid = world.workers()[0];
    world.die(pid, Exit::Signal(SIGKILL));
    world.reap();
    world.pass(Duration::from_millis(500));
    world.hello(world.workers()[0]);
    let told = status(&world);
    assert_eq!((world.starts, told.generation, told.turn), (1, 2, true));
    assert!(told.before.unwrap().contains("worker 1"), "why is told");
    let (worker, kubelet) = (world.workers()[0], world.acting()[0]);
    world.die(worker, Exit::Code(101));
    world.die(kubelet, Exit::Code(1));
    world.reap();
    world.pass(Duration::from_secs(2));
    assert_eq!((world.starts, status(&world).kubelet.unwrap().command), (2, fingerprint(&args("a"))));
}

#[test]
fn a_worker_that_speaks_and_starts_nothing_is_waited_for_a_minute() {
    let mut world = running();
    let kubelet = world.acting()[0];
    world.die(kubelet, Exit::Code(1));
    world.reap();
    for _ in 0..5 {
        world.pass(ABSENCE / 6);
        say(&mut world, Request::Beat);
    }
    assert_eq!(world.starts, 1);
    world.pass(ABSENCE / 6 + Duration::from_secs(1));
    assert_eq!(world.starts, 2);
}

#[test]
fn a_silent_worker_is_replaced() {
    let mut world = running();
    let before = world.workers()[0];
    world.pass(SILENCE + Duration::from_secs(1));
    assert!(!world.processes[&before].alive);
    assert_eq!((world.workers().len(), world.starts), (1, 1));
    world.hello(world.workers()[0]);
    let why = status(&world).before.unwrap();
    assert!(why.contains("worker 1") && why.ends_with("it says nothing any more"), "the next one tells why: {why}");
}

#[test]
fn a_successor_has_its_turn_when_the_one_before_has_ended() {
    let mut world = running();
    let elder = world.workers()[0];
    world.event(Event::Heard(Message::Ready));
    world.event(Event::Signal(SIGHUP));
    let young = *world.workers().last().unwrap();
    assert!(!status(&world).turn, "it has said nothing yet");
    world.hello(young);
    let of = |world: &World, pid: i32| world.monitor.status(world.worker(pid)).unwrap();
    assert!(of(&world, elder).retire && !of(&world, young).turn);
    let start = Request::Stop(1);
    world.say(young, start);
    assert_eq!(of(&world, young).kubelet.unwrap().phase, Phase::Lives, "it is not its turn");
    assert_eq!(world.told.last().unwrap().1, "RELOADING=1", "it is not over");
    world.die(elder, Exit::Code(0));
    world.reap();
    assert!(of(&world, young).turn && of(&world, young).before.is_none());
    let notices: Vec<&str> = world.told.iter().map(|(_, told)| *told).filter(|it| *it != "WATCHDOG=1").collect();
    assert_eq!(notices, ["READY=1", "RELOADING=1", "READY=1"]);
}

#[test]
fn a_successor_that_fails_changes_nothing() {
    for fails in [0, 1, 2] {
        let mut world = running();
        let elder = world.workers()[0];
        world.event(Event::Signal(SIGHUP));
        let young = *world.workers().last().unwrap();
        match fails {
            0 => world.die(young, Exit::Code(1)),
            1 => {
                for _ in 0..3 {
                    world.pass(HELLO / 3 + Duration::from_millis(1));
                    world.say(elder, Request::Beat);
                }
            }
            _ => {
                let hello = Request::Hello { protocol: PROTOCOL + 1, version: "9.9.9".to_owned() };
                world.say(young, hello);
                assert!(world.log.iter().any(|line| line.contains("9.9.9")), "refused by name: {:?}", world.log);
            }
        }
        world.reap();
        assert_eq!((world.workers(), status(&world).turn), (vec![elder], true), "{fails}");
    }
}

#[test]
fn three_early_ends_bring_the_own_binary() {
    let mut world = world();
    world.event(Event::Boot(None));
    for _ in 0..3 {
        let pid = world.workers()[0];
        world.die(pid, Exit::Code(1));
        world.reap();
        world.pass(Duration::from_secs(5));
    }
    assert!(world.works.last().unwrap().1, "{:?}", world.works);
    assert!(world.works[..3].iter().all(|(_, own)| !own));
}

fn end_kubelet(world: &mut World) {
    let kubelet = world.acting()[0];
    world.die(kubelet, Exit::Signal(9));
    world.reap();
}

#[test]
fn the_standby_that_waits_goes_on_and_no_other() {
    let mut world = running();
    say(&mut world, Request::Park { ticket: 2, args: args("b") });
    let standby = world.alive(|role| role == Role::Standby)[0];
    world.event(Event::Lives(Role::Standby));
    end_kubelet(&mut world);
    say(&mut world, Request::Start { ticket: 3, args: args("b") });
    assert_eq!(world.acting(), [standby]);
    say(&mut world, Request::Park { ticket: 4, args: args("c") });
    end_kubelet(&mut world);
    let late = world.alive(|role| role == Role::Standby)[0];
    say(&mut world, Request::Start { ticket: 5, args: args("c") });
    assert!(!world.processes[&late].alive && world.acting() != [late], "it did not wait yet");
}

#[test]
fn a_standby_that_nobody_claims_is_ended_and_asking_again_is_no_claim() {
    let mut world = running();
    say(&mut world, Request::Park { ticket: 2, args: args("b") });
    world.event(Event::Lives(Role::Standby));
    for _ in 0..7 {
        world.pass(CLAIM / 6);
        say(&mut world, Request::Beat);
        world.event(Event::Lives(Role::Standby));
    }
    assert!(world.alive(|role| role == Role::Standby).is_empty());
}

#[test]
fn what_does_not_wait_is_not_parked() {
    let mut world = running();
    for more in ["--lock-file=/x", "--exit-on-lock-contention", "--"] {
        say(&mut world, Request::Park { ticket: 9, args: vec!["--config=/a".to_owned(), more.to_owned()] });
        assert_eq!(status(&world).refused.unwrap().0, 9);
        assert!(world.alive(|role| role == Role::Standby).is_empty());
    }
}

/// Whoever asked for it may be gone.
#[test]
fn a_kubelet_that_does_not_mind_sigterm_is_killed() {
    for signal in [Request::Stop(1), Request::Dump(1)] {
        let mut world = running();
        let (kubelet, worker) = (world.acting()[0], world.workers()[0]);
        world.processes.get_mut(&kubelet).unwrap().deaf = true;
        say(&mut world, signal);
        world.die(worker, Exit::Signal(SIGKILL));
        world.pass(GRACE + Duration::from_secs(1));
        assert!(!world.processes[&kubelet].alive);
    }
}

#[test]
fn what_is_over_is_not_signalled() {
    let mut world = running();
    for run in [0, 2, 99] {
        for request in [Request::Stop(run), Request::Dump(run)] {
            say(&mut world, request);
        }
    }
    assert_eq!(status(&world).kubelet.unwrap().phase, Phase::Lives);
}

#[test]
fn a_worker_that_refuses_ends_the_monitor_before_anything_was_started_and_never_after() {
    for (code, ends) in [(64, Some(64)), (65, Some(1)), (1, None), (0, None)] {
        let mut world = begun();
        let pid = world.workers()[0];
        world.die(pid, Exit::Code(code));
        world.reap();
        assert_eq!(world.exit, ends, "{code}");
        let mut world = running();
        let pid = world.workers()[0];
        world.die(pid, Exit::Code(code));
        world.reap();
        assert_eq!(world.exit, None, "{code}");
    }
}

/// Not as the exit code of a copy of the monitor.
#[test]
fn why_a_worker_cannot_be_executed_is_told_to_the_next() {
    let mut world = running();
    let pid = world.workers()[0];
    world.die(pid, Exit::Signal(SIGKILL));
    world.reap();
    world.pass(Duration::from_millis(500));
    let pid = world.workers()[0];
    world.event(Event::Failed(Role::Worker(world.worker(pid)), "/x: no such file".to_owned()));
    world.die(pid, Exit::Code(127));
    world.reap();
    world.pass(Duration::from_secs(1));
    let told = status(&world);
    assert_eq!(told.generation, 3);
    assert!(told.before.as_ref().is_some_and(|why| why.contains("/x: no such file")), "{told:?}");
}

#[test]
fn a_kubelet_that_cannot_be_executed_is_refused_and_may_be_asked_for_again() {
    let mut world = begun();
    let worker = world.workers()[0];
    world.event(Event::Said(1, Ok(Request::Start { ticket: 1, args: args("a") })));
    let pid = world.acting()[0];
    world.monitor.step(Event::Failed(Role::Kubelet, "/x: no such file".to_owned()), world.now);
    world.die(pid, Exit::Code(127));
    world.reap();
    let told = status(&world);
    assert_eq!((told.refused, told.kubelet, told.ended), (Some((1, "/x: no such file".to_owned())), None, None));
    say(&mut world, Request::Start { ticket: 2, args: args("a") });
    assert_eq!((status(&world).kubelet.unwrap().ticket, world.workers()), (Some(2), vec![worker]));
}

/// Whoever began before may be of the former package.
#[test]
fn a_reload_that_comes_while_a_worker_begins_waits_for_its_end_or_its_hello() {
    for dies in [true, false] {
        let mut world = world();
        world.event(Event::Heard(Message::Ready)); // of nobody
        world.event(Event::Signal(SIGHUP));
        let first = world.workers()[0];
        assert_eq!(world.works.len(), 1, "it is on its way");
        if dies {
            world.die(first, Exit::Code(1));
            world.reap();
        } else {
            world.hello(first);
        }
        assert_eq!(world.works.len(), 2, "{dies}");
        let second = *world.workers().last().unwrap();
        world.hello(second);
        world.reap();
        world.pass(GRACE * 2);
        assert_eq!(world.works.len(), 2, "one successor is enough");
    }
}

#[test]
fn other_signals_are_the_kubelets() {
    let mut world = running();
    let actions = world.monitor.step(Event::Signal(10), world.now);
    assert_eq!(actions, [Action::Signal(Role::Kubelet, 10)]);
}

/// The monitor's own start is due in the very step in which a standby is asked for.
#[test]
fn a_standby_that_is_ended_before_it_is_forked_is_ended() {
    let mut world = running();
    end_kubelet(&mut world);
    world.now += ABSENCE * 2;
    world.event(Event::Said(1, Ok(Request::Park { ticket: 2, args: args("b") })));
    assert_eq!((world.acting().len(), world.alive(|role| role == Role::Standby)), (1, Vec::new()));
}

/// A worker is on its way in the same step.
#[test]
fn nothing_is_started_by_itself_before_the_first_worker_had_its_time() {
    for first in [Event::Tick, Event::Boot(None), Event::Boot(Some(args("proven")))] {
        let mut world = World::new(7, Chances::default());
        world.event(first);
        world.event(Event::Boot(None));
        assert_eq!((world.starts, world.workers().len()), (0, 1));
    }
}
