//! Random worlds: administrators, API servers, kubelets, disks, clocks and power all misbehave, and the laws hold after every
//! step. `SIM_MUTANTS=1` builds the core with small faults in it, each of which a law must catch.
//!
//! A step is one `State::step`, through the real executor and the real store.
//!
//! ```text
//! cargo test --test simulation                               worlds that once failed, and half a million steps
//! SIM_TARGET=4000000 cargo test --test simulation            four million, as CI does
//! SIM_COMMIT=$(git rev-parse HEAD) cargo test … simulation   other worlds with every commit
//! SIM_SEED=7 [SIM_STEPS=3000] cargo test … simulation        one world, and what happened in it
//! SIM_SURVEY=500 cargo test … simulation                     which laws so many worlds break
//! SIM_MUTANTS=1 cargo test … simulation                      the mutants
//! SIM_FOUND=1 cargo test … simulation                        each defect ever found, and which law sees it: the track record
//! SIM_EXHAUSTIVE=120 cargo test … simulation                 every order of events in small worlds, for so many seconds
//! SIM_MINUTES=30 cargo test … simulation                     new worlds for so long
//! ```
#![cfg(test)]

mod exhaustive;
mod found;
mod mutants;
mod worlds;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use testkit::sim::laws::Heed;
use worlds::{Failure, Plan, fitting, many, on_all_cores, run, summary};

/// Steps of one world before the peace at its end.
const WORLD_STEPS: u64 = 3000;

/// Steps of a run, unless `SIM_TARGET` says how many.
const TARGET: u64 = 500_000;

/// Seconds of a run for small worlds, unless `SIM_EXHAUSTIVE` says how many, and nothing else is run.
const EXHAUSTIVE: u64 = 20;

/// Worlds that once failed. They go on failing something else than chance: add to the end.
const FAILED_ONCE: &[u64] = &[
    17,
    19,
    42,
    45,
    57,
    59,
    86,
    89,
    90,
    96,
    106,
    126,
    147,
    164,
    183,
    198,
    284,
    305,
    338,
    430,
    434,
    473,
    588,
    675,
    786,
    797,
    851,
    971,
    12,
    15,
    28,
    31,
    40,
    49,
    66,
    79,
    81,
    121,
    193,
    249,
    397,
    374,
    996,
    728_224_406_568_960_025,
    728_224_406_568_960_638,
    728_224_406_568_961_428,
    728_224_406_568_961_602,
    728_224_406_568_962_534,
    728_224_406_568_962_834,
    728_224_406_568_963_254,
    728_224_406_568_964_114,
    728_224_406_568_967_823,
    800_282_000_606_888_072,
    800_282_000_606_888_663,
    872_339_594_644_816_417,
    768_603_781_271_126_692,
    768_603_781_271_127_242,
    768_603_781_271_127_874,
    768_603_781_271_128_756,
    922_324_302_927_233_829,
    922_324_302_927_234_238,
    922_324_302_927_235_286,
    922_324_302_927_236_034,
    922_324_302_927_236_824,
    922_324_302_927_236_851,
    922_324_302_927_237_139,
    999_184_563_755_287_280,
    999_184_563_755_288_957,
    999_184_563_755_289_711,
    999_184_563_755_291_327,
    1_076_044_824_583_342_147,
    1_076_044_824_583_344_171,
    1_152_905_085_411_396_411,
    1_152_905_085_411_397_116,
    1_152_905_085_411_396_982,
    2_844_626_587_223_589,
    2_844_626_587_223_653,
    2_844_626_587_224_605,
    3_358_939_305_484_118,
    3_358_939_306_525_110,
    3_358_939_306_526_211,
    3_358_939_306_526_410,
    3_358_939_306_529_867,
    3_358_939_306_530_544,
    3_358_939_306_532_963,
    3_358_939_306_533_597,
    3_358_939_307_574_645,
    3_358_939_307_579_062,
    3_358_939_307_581_482,
    3_358_939_307_582_056,
    3_358_939_307_584_733,
    3_358_939_309_671_618,
    3_358_939_310_722_817,
    3_358_939_310_723_511,
    3_358_939_310_727_660,
    3_358_939_311_770_859,
    3_358_939_311_773_739,
    3_358_939_311_776_167,
    3_358_939_311_777_311,
    3_358_939_312_823_623,
    3_358_939_313_865_954,
    3_358_939_313_866_944,
    3_358_939_314_913_429,
    3_358_939_315_962_339,
    3_358_939_315_963_135,
    3_358_939_317_013_908,
    764_996_260_785_555_117,
    764_996_260_785_564_675,
    764_996_260_785_565_535,
    764_996_260_785_566_941,
    764_996_260_785_568_380,
    764_996_260_785_572_812,
    412_027_818_512_223_685,
    412_027_818_512_224_195,
    412_027_818_512_238_621,
    512_302_044_967_605_319,
    512_302_044_967_612_607,
    512_302_044_967_617_465,
    738_321_984_768_709_441,
    738_321_984_768_716_392,
    1_034_895_171_415_706_412,
    1_034_895_171_415_708_355,
    130_283_391_391_128_142,
    1107,
    61,
    1_469,
    899_189_306_187_317_300,
    899_189_306_187_317_351,
    899_189_306_187_317_431,
    2056,
    967_417_698_950_578_515,
    4,
    77,
    691,
    844,
    1073,
    510,
    1596,
    1600,
    2008,
    149,
    239,
    585,
    595,
    602,
];

fn variable<T: std::str::FromStr>(name: &str) -> Option<T> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} cannot be {text:?}")))
}

fn number(name: &str) -> Option<u64> {
    variable(name)
}

/// The first world of a commit. Without one, the same everywhere.
fn first_world() -> u64 {
    let Some(commit) = variable::<String>("SIM_COMMIT").filter(|commit| !commit.is_empty()) else { return 0 };
    let digits: String = commit.chars().take(10).collect();
    let first = u64::from_str_radix(&digits, 16).unwrap_or_else(|_| panic!("SIM_COMMIT cannot be {commit:?}")) << 20;
    println!("worlds from {first} on, of commit {commit}");
    first
}

fn honest(target: u64, plan: Plan) -> bool {
    let (began, first, known) = (Instant::now(), first_world(), FAILED_ONCE.len() as u64);
    let seeds = |number: u64| match FAILED_ONCE.get(usize::try_from(number).unwrap_or(usize::MAX)) {
        Some(seed) => *seed,
        None => first + number - known,
    };
    let found = many(seeds, plan, |found| found.steps >= target && found.worlds >= known);
    println!("{}\nchecks of each law:", summary(&found, began));
    let mut complete = true;
    for (law, name, checks, floor) in found.tally.iter(found.steps) {
        let low = if checks < floor { format!("  TOO FEW: {law:?} needs {floor}") } else { String::new() };
        println!("{checks:>12}  {name}{low}");
        complete &= checks >= floor;
    }
    if let Some(failure) = &found.failure {
        failure.report(plan.steps);
    } else if !complete {
        println!("\na law was put to the test too seldom");
    }
    found.failure.is_none() && complete
}

fn replay(seed: u64, plan: Plan) -> bool {
    let outcome = run(seed, plan, true);
    println!("{}", outcome.log[outcome.log.len().saturating_sub(60)..].join("\n"));
    println!("seed {seed}: {} steps", outcome.steps);
    if let Some(message) = outcome.failure {
        Failure { seed, message }.report(plan.steps);
        return false;
    }
    true
}

/// Which laws the first worlds break, how often, and where first; each is told as soon as it is found.
fn survey(worlds: u64, plan: Plan) -> bool {
    let (first, began) = (first_world(), Instant::now());
    let found = Mutex::new(BTreeMap::new());
    let steps = AtomicU64::new(0);
    on_all_cores(|number| {
        let seed = first + number;
        if number >= worlds {
            return false;
        }
        if fitting(seed, plan) != seed {
            return true;
        }
        let outcome = run(seed, plan, false);
        steps.fetch_add(outcome.steps, Ordering::Relaxed);
        if let Some(why) = &outcome.failure {
            let law = outcome.broken().map_or("another panic".to_owned(), |law| format!("{law:?}"));
            let why = why.lines().next().unwrap_or_default().to_owned();
            println!("world {seed}, step {}: {why}", outcome.steps);
            let mut found = found.lock().unwrap();
            let entry = found.entry(law).or_insert((0, outcome.steps, seed, why.clone()));
            entry.0 += 1;
            if outcome.steps < entry.1 {
                (entry.1, entry.2, entry.3) = (outcome.steps, seed, why);
            }
        }
        true
    });
    let found = found.into_inner().unwrap();
    println!("{} steps in {worlds} worlds, {:.0} s", steps.into_inner(), began.elapsed().as_secs_f64());
    for (law, (times, steps, seed, why)) in &found {
        println!("{times:>6} {law}, soonest in world {seed}, step {steps}: {why}");
    }
    found.is_empty()
}

fn for_minutes(minutes: u64, plan: Plan) -> bool {
    let (began, said) = (Instant::now(), Mutex::new(Instant::now()));
    let limit = Duration::from_secs(60 * minutes);
    // The only chance that no seed decides; each failure prints its own.
    let first = std::time::UNIX_EPOCH.elapsed().map_or(0, |now| now.as_secs()) << 20;
    let found = many(
        |number| first + number,
        plan,
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
    found.failure.iter().for_each(|failure| failure.report(plan.steps));
    found.failure.is_none()
}

fn main() -> ExitCode {
    std::panic::set_hook(Box::new(|_| {})); // each is caught, and told with its seed
    let plan = Plan {
        steps: number("SIM_STEPS").unwrap_or(WORLD_STEPS),
        heed: Heed::All,
        limit: u64::MAX,
        needs: found::needs(),
    };
    let fine = match (number("SIM_SEED"), number("SIM_MINUTES")) {
        _ if number("SIM_SURVEY").is_some() => survey(number("SIM_SURVEY").unwrap_or_default(), plan),
        _ if number("SIM_MUTANT").is_some() && std::env::var_os("SIM_FOUND").is_some() => found::series(plan),
        _ if number("SIM_MUTANT").is_some() => mutants::hunt(plan),
        _ if std::env::var_os("SIM_FOUND").is_some() => found::all(&std::env::var("SIM_FOUND").unwrap_or_default()),
        _ if std::env::var_os("SIM_MUTANTS").is_some() => mutants::all(),
        _ if number("SIM_EXHAUSTIVE").is_some() => exhaustive::search(number("SIM_EXHAUSTIVE").unwrap_or_default()),
        (Some(seed), _) => replay(seed, plan),
        (None, Some(minutes)) => for_minutes(minutes, plan),
        (None, None) => {
            found::is_current() & honest(number("SIM_TARGET").unwrap_or(TARGET), plan) & exhaustive::search(EXHAUSTIVE)
        }
    };
    if fine { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
