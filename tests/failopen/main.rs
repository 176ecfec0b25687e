//! Law 1, against two processes: whatever ends the worker, at whatever call, the kubelet goes on and the story has the same end.
//!
//! This binary runs itself as the monitor, with the stand-in kubelet as its program, and as that one's worker, with the real loop,
//! kubelet adapter and store. It tells a story: a boot, a change that is proven, one that is rolled back, SIGTERM. It is told
//! once for every call to a port, which ends the worker: by a panic, abort or SIGKILL; some by silence. Two more stories have a
//! kubelet that ignores SIGTERM, and one that hangs.
//!
//! ```text
//! cargo test --test failopen                    all of it
//! cargo test --test failopen -- calls           each call
//! cargo test --test failopen -- hostile         a worker that says anything
//! FAILOPEN_KILLS=200 cargo test … -- kills      SIGKILL at random moments, a thousand by default
//! FAILOPEN_SEED=7 cargo test … -- kills         the same moments again
//! ```
#![cfg(test)]
#![allow(clippy::disallowed_methods, reason = "the monitor alone has kubelets, and no threads of ours")]

mod kills;
mod ports;
mod worker;
mod world;

use std::collections::{BTreeMap, VecDeque};
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use ports::methods;
use worker::{End, Fault, Spec};
use world::{Story, World};

/// Side by side: they mostly wait.
const WORLDS: usize = 12;

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    let (role, text) = (args.next().unwrap_or_default(), args.next().unwrap_or_default());
    let spec = || serde_json::from_str::<Spec>(text.to_str().unwrap()).unwrap();
    match role.to_str().unwrap_or_default() {
        "monitor" => return worker::monitor(&spec(), text.clone()),
        "worker" => return worker::worker(&spec()),
        "--list" => return ExitCode::SUCCESS,
        _ => {}
    }
    let suites: [(&str, fn()); 3] = [("calls", calls), ("hostile", hostile), ("kills", kills::kills)];
    for (name, suite) in suites {
        if role.is_empty() || role.to_str().is_some_and(|role| role.starts_with('-') || name.contains(role)) {
            let begun = Instant::now();
            suite();
            println!("{name}: ok, {:.0} s", begun.elapsed().as_secs_f64());
        }
    }
    ExitCode::SUCCESS
}

/// The worlds of a story: one for each of its calls, and whether they take long.
fn faults(story: Story, told: &[String]) -> Vec<(bool, Story, Fault)> {
    let mut faults = Vec::new();
    let mut calls = BTreeMap::<&str, u32>::new();
    for method in told {
        let call = *calls.entry(method).and_modify(|call| *call += 1).or_insert(1);
        let touches_kubelet = method.starts_with("kubelet.");
        if story != Story::Change && !touches_kubelet && !method.ends_with(".ProbeDisk") {
            continue;
        }
        let both = touches_kubelet || method.starts_with("disk.");
        for after in [false, true] {
            let nth = faults.len();
            if !both && after != (nth % 2 == 0) {
                continue;
            }
            // A panic of the store's thread ends no worker.
            let ends = if method.starts_with("disk.") {
                &[End::Kill, End::Abort][..]
            } else {
                &[End::Panic, End::Abort, End::Kill]
            };
            let fault = |end| Fault { method: method.clone(), call, after, end };
            faults.push((story != Story::Change, story, fault(ends[nth % ends.len()])));
            if story == Story::Change && is_told_slowly(method, call, after) {
                let end = if method.starts_with("disk.") { End::Panic } else { [End::Stop, End::Loop][nth % 2] };
                faults.push((true, story, fault(end)));
            }
        }
    }
    faults
}

/// The worker is silent for half a minute, or an answer never comes.
fn is_told_slowly(method: &str, call: u32, after: bool) -> bool {
    match method {
        "kubelet.start" | "kubelet.stop" => call == 2 || !after,
        "disk.ReadRecords" | "disk.Record" | "disk.Save" | "disk.Load" | "disk.Append" => call == 1 && !after,
        "store.Record" | "notifier.publish" | "cluster.publish" => call == 2,
        _ => false,
    }
}

fn calls() {
    let mut worlds = VecDeque::new();
    let mut usual = BTreeMap::new();
    std::thread::scope(|scope| {
        let stories = [Story::Change, Story::Stubborn, Story::Hung];
        let told = stories.map(|story| (story, scope.spawn(move || world::tell(story, None, &[]).unwrap())));
        for (story, told) in told {
            let told = told.join().unwrap();
            println!("{story:?}: {} calls, starts {:?}", told.calls.len(), told.starts);
            worlds.extend(faults(story, &told.calls));
            usual.insert(story, told.starts);
        }
    });
    worlds.make_contiguous().sort_by_key(|(slow, ..)| !slow);
    let (all, slow) = (worlds.len(), worlds.iter().filter(|(slow, ..)| *slow).count());
    let (worlds, tally) = (Mutex::new(worlds), Mutex::new(Tally::default()));
    let next = || {
        let (_, story, fault) = worlds.lock().unwrap().pop_front()?;
        let told = world::tell(story, Some(&fault), &usual[&story]);
        let mut tally = tally.lock().unwrap();
        match told {
            Ok(told) if told.fired => {
                tally.others += u32::from(told.starts != usual[&story]);
                *tally.hits.entry(fault.method).or_default() += 1;
            }
            Ok(_) => tally.missed.push(fault),
            Err(why) => tally.failures.push(format!("{story:?} {fault:?}: {why}")),
        }
        Some(())
    };
    std::thread::scope(|scope| (0..WORLDS + slow).for_each(|_| drop(scope.spawn(|| while next().is_some() {}))));
    let Tally { hits, missed, failures, others } = tally.into_inner().unwrap();
    println!("{all} worlds, {slow} of them slow, {} of them missed; by method: {hits:?}", missed.len());
    println!("in {others} the kubelet was started once more, between a stop and a start");
    assert!(failures.is_empty(), "{} worlds failed:\n{}", failures.len(), failures.join("\n"));
    // The story is not the same to the call each time.
    assert!(missed.len() * 10 < all, "{missed:?}");
    let never: Vec<_> = methods().into_iter().filter(|method| !hits.contains_key(method)).collect();
    assert!(never.is_empty(), "never hit: {never:?}");
}

#[derive(Default)]
struct Tally {
    hits: BTreeMap<String, u32>,
    missed: Vec<Fault>,
    failures: Vec<String>,
    others: u32,
}

/// Nothing that a worker says brings a second kubelet, or is more than the monitor can bear.
fn hostile() {
    let mut world = World::begin(Story::Change, None, Some(kills::seed()));
    std::thread::sleep(Duration::from_secs(10)); // this is how long it is let go on
    world.end().unwrap();
    let starts = world.starts().len();
    assert!(starts > 10, "{starts} starts");
    world.never_two().unwrap();
    println!("{starts} kubelets, one at a time");
}
