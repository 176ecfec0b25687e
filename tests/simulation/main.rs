//! Random worlds: administrators, API servers, kubelets, disks, clocks and power all misbehave,
//! and the laws hold after every step. Then the same worlds around broken cores, each of which
//! the laws must catch.
//!
//! A step is one `State::step`, through the real executor and the real store.
//!
//! ```text
//! cargo test --test simulation                               half a million steps, and the mutants
//! SIM_TARGET=10000000 cargo test --test simulation           ten million, as CI does
//! SIM_SEED=7 [SIM_STEPS=3000] cargo test … simulation        one world, and what happened in it
//! SIM_SURVEY=500 cargo test … simulation                     which laws so many worlds break
//! SIM_MUTANTS=1 cargo test … simulation                      the mutants alone
//! SIM_MINUTES=30 cargo test … simulation                     new worlds for so long
//! ```
#![cfg(test)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use testkit::sim::chaos::Chaos;
use testkit::sim::laws::{Law, Tally};
use testkit::sim::mutants::{MUTANTS, Mutant};
use testkit::sim::tamper::{HONEST, Tamper};

/// Steps of one world before the peace at its end.
const WORLD_STEPS: u64 = 3000;

/// Steps of a run, unless `SIM_TARGET` says how many.
const TARGET: u64 = 500_000;

/// Every world of these has a twin without jumps of the wall clock.
const TWINS: u64 = 8;

/// A mutant must be caught within so many worlds.
const MUTANT_WORLDS: u64 = 300;

static HONEST_CORE: Tamper = HONEST;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is not a number: {text}")))
}

/// How a world ended.
#[derive(Default)]
struct Outcome {
    steps: u64,
    tally: Tally,
    failure: Option<String>,
    log: Vec<String>,
}

/// Runs the world of a seed, and its twin.
fn run(seed: u64, steps: u64, tamper: &'static Tamper, with_log: bool) -> Outcome {
    let (mut outcome, fingerprint) = run_one(seed, steps, tamper, with_log, false);
    if outcome.failure.is_none() && seed.is_multiple_of(TWINS) {
        let (twin, other) = run_one(seed, steps, tamper, false, true);
        outcome.steps += twin.steps;
        outcome.tally.add(&twin.tally);
        outcome.tally.check(Law::WallClock);
        if twin.failure.is_some() || fingerprint != other {
            outcome.failure = Some(format!("{:?}: its twin does other things", Law::WallClock));
        }
    }
    outcome
}

fn run_one(seed: u64, steps: u64, tamper: &'static Tamper, with_log: bool, wall_is_steady: bool) -> (Outcome, u64) {
    let mut chaos = Chaos::new(seed, tamper, wall_is_steady);
    chaos.log = with_log.then(Vec::new);
    let result = catch_unwind(AssertUnwindSafe(|| chaos.live(steps)));
    let failure = result.err().map(|cause| {
        let message = cause.downcast_ref::<String>().cloned();
        message.or_else(|| cause.downcast_ref::<&str>().map(|it| (*it).to_owned())).unwrap_or_default()
    });
    let outside = chaos.node.outside.borrow();
    let account = &outside.account;
    let log = chaos.log.take().unwrap_or_default();
    (Outcome { steps: account.steps, tally: account.tally.clone(), failure, log }, account.fingerprint)
}

/// A world that failed.
struct Failure {
    seed: u64,
    message: String,
}

impl Failure {
    fn report(&self, steps: u64) {
        println!("\n{}", self.message);
        println!("\nSIM_SEED={} SIM_STEPS={steps} cargo test --locked --test simulation", self.seed);
    }
}

/// What all threads found so far.
#[derive(Default)]
struct Findings {
    steps: u64,
    worlds: u64,
    tally: Tally,
    failure: Option<Failure>,
}

/// Runs worlds on all cores until there is enough of them or one fails.
fn many(seeds: impl Fn(u64) -> u64 + Sync, steps: u64, enough: impl Fn(&Findings) -> bool + Sync) -> Findings {
    let (next, findings) = (AtomicU64::new(0), Mutex::new(Findings::default()));
    let work = || {
        loop {
            {
                let found = findings.lock().unwrap();
                if found.failure.is_some() || enough(&found) {
                    return;
                }
            }
            let seed = seeds(next.fetch_add(1, Ordering::Relaxed));
            let outcome = run(seed, steps, &HONEST_CORE, false);
            let mut found = findings.lock().unwrap();
            found.steps += outcome.steps;
            found.worlds += 1;
            found.tally.add(&outcome.tally);
            if let Some(message) = outcome.failure {
                found.failure.get_or_insert(Failure { seed, message });
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..threads() {
            scope.spawn(work);
        }
    });
    findings.into_inner().unwrap()
}

fn threads() -> u64 {
    std::thread::available_parallelism().map_or(2, |cores| cores.get() as u64)
}

fn summary(found: &Findings, began: Instant) -> String {
    let seconds = began.elapsed().as_secs_f64();
    #[allow(clippy::cast_precision_loss, reason = "for people")]
    let rate = found.steps as f64 / seconds;
    format!(
        "{} steps in {} worlds, {seconds:.1} s, {rate:.0} steps/s on {} threads",
        found.steps,
        found.worlds,
        threads()
    )
}

fn honest(target: u64, steps: u64) -> bool {
    let began = Instant::now();
    let found = many(|number| number, steps, |found| found.steps >= target);
    println!("{}\nchecks of each law:", summary(&found, began));
    let mut complete = true;
    for (_, name, checks) in found.tally.iter() {
        println!("{checks:>12}  {name}");
        complete &= checks > 0;
    }
    if let Some(failure) = &found.failure {
        failure.report(steps);
    } else if !complete {
        println!("\na law was never put to the test");
    }
    found.failure.is_none() && complete
}

/// Steps and worlds it took to catch a mutant, and by which complaint.
fn hunt((_, tamper): &'static Mutant, steps: u64) -> Option<(u64, u64, String)> {
    let mut taken = 0;
    for seed in 0..MUTANT_WORLDS {
        let outcome = run(seed, steps, tamper, false);
        taken += outcome.steps;
        if let Some(message) = outcome.failure {
            return Some((taken, seed + 1, message));
        }
    }
    None
}

fn mutants(steps: u64) -> bool {
    let began = Instant::now();
    let (next, caught) = (AtomicU64::new(0), Mutex::new(vec![None; MUTANTS.len()]));
    let work = || {
        loop {
            let index = usize::try_from(next.fetch_add(1, Ordering::Relaxed)).unwrap();
            let Some(mutant) = MUTANTS.get(index) else { return };
            let trace = hunt(mutant, steps);
            caught.lock().unwrap()[index] = trace;
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..threads() {
            scope.spawn(work);
        }
    });
    println!("\nmutants, and the steps and worlds until the laws caught them:");
    let mut survivors = 0;
    for ((name, _), trace) in MUTANTS.iter().zip(caught.into_inner().unwrap()) {
        if let Some((taken, worlds, message)) = trace {
            let law = message.trim_start_matches(": ").split(':').next().unwrap_or_default().to_owned();
            println!("{taken:>9} {worlds:>4}  {name:<48} {law:.30}");
        } else {
            println!("  SURVIVES       {name}");
            survivors += 1;
        }
    }
    println!("{} mutants, {survivors} survive, {:.1} s", MUTANTS.len(), began.elapsed().as_secs_f64());
    survivors == 0
}

fn replay(seed: u64, steps: u64) -> bool {
    let outcome = run(seed, steps, &HONEST_CORE, true);
    println!("{}", outcome.log[outcome.log.len().saturating_sub(60)..].join("\n"));
    println!("seed {seed}: {} steps", outcome.steps);
    if let Some(message) = outcome.failure {
        Failure { seed, message }.report(steps);
        return false;
    }
    true
}

/// Which laws the first worlds break, how often, and where first.
fn survey(worlds: u64, steps: u64) -> bool {
    let (next, found) = (AtomicU64::new(0), Mutex::new(std::collections::BTreeMap::new()));
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= worlds {
                return;
            }
            if let Some(why) = run(seed, steps, &HONEST_CORE, false).failure {
                let why = why.lines().next().unwrap_or_default().to_owned();
                let law = why.trim_start_matches(": ").split(':').next().unwrap_or_default().to_owned();
                let mut found = found.lock().unwrap();
                let entry = found.entry(law).or_insert((0, seed, why.clone()));
                entry.0 += 1;
                if seed < entry.1 {
                    (entry.1, entry.2) = (seed, why);
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..threads() {
            scope.spawn(work);
        }
    });
    let found = found.into_inner().unwrap();
    for (law, (times, seed, why)) in &found {
        println!("{times:>6} {law}, first in world {seed}: {why}");
    }
    found.is_empty()
}

fn for_minutes(minutes: u64, steps: u64) -> bool {
    let (began, said) = (Instant::now(), Mutex::new(Instant::now()));
    let limit = Duration::from_secs(60 * minutes);
    // The only chance that no seed decides; each failure prints its own.
    let first = std::time::UNIX_EPOCH.elapsed().map_or(0, |now| now.as_secs()) << 20;
    let found = many(
        |number| first + number,
        steps,
        |found| {
            let mut said = said.lock().unwrap();
            if said.elapsed() >= Duration::from_secs(10) {
                println!("{}", summary(found, began));
                *said = Instant::now();
            }
            began.elapsed() >= limit
        },
    );
    println!("{}", summary(&found, began));
    found.failure.iter().for_each(|failure| failure.report(steps));
    found.failure.is_none()
}

fn main() -> ExitCode {
    std::panic::set_hook(Box::new(|_| {})); // each is caught, and told with its seed
    let steps = number("SIM_STEPS").unwrap_or(WORLD_STEPS);
    let fine = match (number("SIM_SEED"), number("SIM_MINUTES")) {
        _ if number("SIM_SURVEY").is_some() => survey(number("SIM_SURVEY").unwrap_or_default(), steps),
        _ if number("SIM_MUTANTS").is_some() => mutants(steps),
        (Some(seed), _) => replay(seed, steps),
        (None, Some(minutes)) => for_minutes(minutes, steps),
        (None, None) => honest(number("SIM_TARGET").unwrap_or(TARGET), steps) && mutants(steps),
    };
    if fine { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
