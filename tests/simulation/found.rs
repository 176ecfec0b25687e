//! The track record: each defect that was ever found is brought back, and worlds are run until a law sees it.
//! `docs/development/found.md` has what came of that.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::mutants::{Back, Defect, FoundBy, built, defects, hunted, needs as needed, number_of};
use super::worlds::{self, Plan, on_all_cores};
use testkit::sim::laws::Law;
use testkit::sim::needs::Need;

/// Each defect is brought back in so many series of worlds ...
const SERIES: u64 = 20;
/// ... and is caught if so many of them catch it.
const MEDIAN: usize = 10;
/// A series ends after so many steps.
const STEPS: u64 = 100_000;
/// Steps of one world before the peace at its end: many short ones begin more often than few long ones.
const WORLD_STEPS: &str = "1500";
/// A defect that no series has caught after so many steps of each is given up. If its median were at the very end, that would
/// happen to one in thirty.
const HOPE: u64 = STEPS / 4;
/// Of a hundred defects at least so many are caught.
const AT_LEAST: u64 = 95;

const PAGE: &str = "docs/development/found.md";
const COMMAND: &str = "SIM_FOUND=1 cargo test --workspace --test simulation";

/// What came of the series of a defect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Measured {
    /// The law that was first most often.
    law: Option<String>,
    /// So many series caught it by the time when the median was known.
    caught: usize,
    /// After so many steps in the median, if the median caught it.
    steps: Option<u64>,
}

impl Measured {
    fn is_caught(&self) -> bool {
        self.caught >= MEDIAN
    }
}

type Record = BTreeMap<&'static str, Measured>;

/// Brings all of them back, or those that this names, with commas between them; and writes what came of it as it goes. Of the others the page
/// keeps what it has.
pub fn all(only: &str) -> bool {
    let began = Instant::now();
    if !is_in_order() {
        return false;
    }
    let is_all = only == "1";
    let is_wanted =
        |it: &&Defect| number_of(it).is_some() && (is_all || only.split(',').any(|part| is_named(it, part)));
    let wanted: Vec<&Defect> = defects().filter(is_wanted).collect();
    let Some(binary) = built() else { return false };
    let before = if is_all { Record::new() } else { read(&fs::read_to_string(page()).unwrap_or_default()) };
    let ran = brought_back(&binary, &wanted, |ran| {
        let record = before.clone().into_iter().chain(ran.clone()).collect();
        fs::write(page(), render(&record)).unwrap_or_else(|error| panic!("{PAGE}: {error}"));
    });
    let (tried, caught) = counts(&ran);
    println!("{caught} of {tried} defects are caught, {:.0} s", began.elapsed().as_secs_f64());
    ran.len() == wanted.len() && 100 * caught >= AT_LEAST * tried
}

/// Runs the mutant of each of these, in the worlds of that defect.
fn brought_back(binary: &Path, defects: &[&'static Defect], so_far: impl Fn(&Record) + Sync) -> Record {
    let record = Mutex::new(Record::new());
    on_all_cores(|at| {
        let Some(defect) = usize::try_from(at).ok().and_then(|at| defects.get(at)) else { return false };
        let Some(number) = number_of(defect) else { return true };
        let began = Instant::now();
        let settings = [("SIM_FOUND", "1"), (NEEDS, defect.id), ("SIM_STEPS", WORLD_STEPS)];
        let said = hunted(binary, number, &settings).unwrap_or_else(|error| error.to_string());
        println!("{:<22} {said}, {:.0} s", defect.id, began.elapsed().as_secs_f64());
        if let Ok(measured) = serde_json::from_str(&said) {
            let mut record = record.lock().unwrap();
            record.insert(defect.id, measured);
            so_far(&record);
        }
        true
    });
    record.into_inner().unwrap()
}

/// Names the defect, or the mutant, whose worlds are run.
pub const NEEDS: &str = "SIM_NEEDS";

/// What these worlds are to have.
pub fn needs() -> &'static [Need] {
    needed::of(&std::env::var(NEEDS).unwrap_or_default())
}

fn is_named(defect: &Defect, part: &str) -> bool {
    defect.id == part || defect.what.contains(part) || mutant(defect).contains(part)
}

/// Worlds one after the other, until one of them breaks a law.
struct Series {
    next_seed: u64,
    steps: u64,
    caught_by: Option<Law>,
}

impl Series {
    fn is_over(&self) -> bool {
        self.caught_by.is_some() || self.steps >= STEPS
    }

    /// Runs the next world.
    fn go_on(&mut self, plan: Plan) {
        let seed = worlds::fitting(self.next_seed, plan);
        let outcome = worlds::run(seed, Plan { limit: STEPS - self.steps, ..plan }, false);
        self.next_seed = seed + 1;
        self.steps += outcome.steps;
        self.caught_by = outcome.broken().filter(|_| is_harmless(seed));
    }
}

/// In the process of one mutant: runs its series, and says what came of them. All go on at one pace, so that the median is known before
/// the last of them is over.
pub fn series(plan: Plan) -> bool {
    let new = |number| Series { next_seed: number * 1_000_000, steps: 0, caught_by: None };
    let mut all: Vec<Series> = (1..=SERIES).map(new).collect();
    let measured = loop {
        let measured = measured(&all);
        // The one that is behind the others.
        let behind = all.iter_mut().filter(|series| !series.is_over()).min_by_key(|series| series.steps);
        match behind {
            Some(series) if measured.caught == 0 && series.steps >= HOPE => break measured,
            Some(series) if measured.steps.is_none_or(|median| series.steps < median) => series.go_on(plan),
            _ => break measured,
        }
    };
    println!("{}", serde_json::to_string(&measured).unwrap_or_default());
    true
}

/// What is known of them so far.
fn measured(all: &[Series]) -> Measured {
    let mut laws: BTreeMap<String, u64> = BTreeMap::new();
    let caught = || all.iter().filter_map(|series| Some((series.caught_by?, series.steps)));
    caught().for_each(|(law, _)| *laws.entry(format!("{law:?}")).or_default() += 1);
    let mut steps: Vec<u64> = caught().map(|(_, steps)| steps).collect();
    steps.sort_unstable();
    let median = steps.get(MEDIAN - 1).copied();
    let law = laws.into_iter().max_by_key(|(_, times)| *times).map(|(law, _)| law);
    Measured { law, caught: steps.len(), steps: median }
}

/// True if the same world breaks no law without the mutant.
pub fn is_harmless(seed: u64) -> bool {
    let Ok(this) = std::env::current_exe() else { return false };
    let mut command = Command::new(this);
    command.env_remove("SIM_MUTANT").env_remove("SIM_FOUND").env("SIM_SEED", seed.to_string());
    command.stdout(Stdio::null()).status().is_ok_and(|status| status.success())
}

fn page() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(PAGE)
}

/// How many were brought back, and how many of these were caught.
fn counts(record: &Record) -> (u64, u64) {
    (record.len() as u64, record.values().filter(|it| it.is_caught()).count() as u64)
}

/// The page that has this record.
fn render(record: &Record) -> String {
    let (tried, caught) = counts(record);
    let count = |which: fn(&Back) -> bool| defects().filter(|it| which(&it.back)).count();
    let all = count(|_| true);
    let prevented = count(|back| matches!(back, Back::Nothing(_)));
    let elsewhere = count(|back| matches!(back, Back::Elsewhere(_)));
    let not_run = defects().filter(|it| number_of(it).is_some()).count() as u64 - tried;
    let not_run = if not_run == 0 { String::new() } else { format!(" {not_run} were not run yet.") };
    let percent = (100 * caught).checked_div(tried).unwrap_or_default();
    let text = format!(
        "# Track record\n\n\
         This page lists the defects of the core that were found so far. It says which law of the [simulator](testing.md#the-simulator) sees each of them today.\n\
         A command writes it: `{COMMAND}`. Do not edit it by hand.\n\n\
         **{all} defects. A mutant brought {tried} of them back. The laws caught {caught} of these, {percent} %.** At least {AT_LEAST} % must be caught.{not_run}\n\
         The code makes {prevented} impossible. The simulator cannot reach {elsewhere}; other tests show these.\n\n\
         - A *mutant* is a small edit of the core, by file, function and expression (`tests/simulation/mutants/`). It does what the defect did.\n\
         - Each mutant runs in {SERIES} series of directed worlds: they have, and often do, what the defect needs in order to show (`tests/simulation/mutants/defects/needs.rs`). All else is random. A series ends when any law breaks, or after {STEPS} steps. A world that breaks a law without the mutant does not count.\n\
         - A defect is *caught* if at least {MEDIAN} series catch it. All go on at one pace, and end once that is known. *Steps* is the median of the {SERIES} series. A step is one `State::step`.\n\
         - *Law* is the law that broke first in most series. `crates/testkit/src/sim/laws.rs` says what each law means.\n"
    );
    let tables = FoundBy::ALL.map(|found_by| {
        let rows = defects().filter(|it| it.found_by == found_by).map(|it| row(it, record.get(it.id)));
        let head = "| defect | what happened | mutant | law | caught | steps |\n|---|---|---|---|---|---|\n";
        format!("\n## {}\n\n{head}{}", found_by.label(), rows.collect::<String>())
    });
    text + &tables.concat()
}

fn row(defect: &Defect, measured: Option<&Measured>) -> String {
    let cells = match (defect.back, measured) {
        (Back::Nothing(by), _) => format!("impossible: {by} | | |"),
        (Back::Elsewhere(test), _) => format!("not in the simulator: `{test}` | | |"),
        (Back::Edit(_) | Back::Mutant(_), None) => format!("{} | | not run yet |", mutant(defect)),
        (Back::Edit(_) | Back::Mutant(_), Some(Measured { law, caught, steps })) => {
            let law = law.as_ref().map_or("none".to_owned(), |law| format!("`{law}`"));
            let missed = if *caught >= MEDIAN { "" } else { ", **missed**" };
            let steps = steps.map(|steps| steps.to_string()).unwrap_or_default();
            format!("{} | {law} | {caught} of {SERIES}{missed} | {steps}", mutant(defect))
        }
    };
    format!("| {} | {} | {cells} |\n", defect.id, defect.what)
}

/// The mutant, for people.
fn mutant(defect: &Defect) -> String {
    match defect.back {
        Back::Edit(edit) => format!("`{}`, `{}`", edit.file, edit.function),
        Back::Mutant(name) => name.to_owned(),
        Back::Nothing(text) | Back::Elsewhere(text) => text.to_owned(),
    }
}

/// What the page says of each defect.
fn read(text: &str) -> Record {
    let cells = |line: &str| -> Vec<String> { line.split('|').map(|cell| cell.trim().to_owned()).collect() };
    let mut record = Record::new();
    for line in text.lines().filter(|line| line.starts_with("| ")) {
        let [_, id, _, _, law, caught, steps, _] = cells(line).try_into().unwrap_or_default();
        let Some(defect) = defects().find(|it| it.id == id) else { continue };
        let Some(caught) = caught.split(' ').next().and_then(|count| count.parse().ok()) else { continue };
        let law = law.strip_prefix('`').and_then(|law| law.strip_suffix('`')).map(str::to_owned);
        record.insert(defect.id, Measured { law, caught, steps: steps.parse().ok() });
    }
    record
}

/// True if each defect is there once, and its mutant as well.
fn is_in_order() -> bool {
    let mut names = BTreeSet::new();
    let twice = defects().find(|it| !names.insert(it.id)).map(|it| format!("{} is there twice", it.id));
    let lost = defects().find(|it| matches!(it.back, Back::Mutant(_)) && number_of(it).is_none());
    let lost = lost.map(|it| format!("{} names a mutant that is not in the list", it.id));
    let needless = defects().find(|it| number_of(it).is_some() == needed::of(it.id).is_empty());
    let needless = needless.map(|it| format!("what the worlds of {} are to have does not go with its mutant", it.id));
    let nobody = needed::NEEDS.iter().find(|(id, _)| defects().all(|it| it.id != *id));
    let nobody = nobody.map(|(id, _)| format!("{id} is no defect, and has worlds"));
    let why = twice.or(lost).or(needless).or(nobody);
    if let Some(why) = &why {
        println!("{why}");
    }
    why.is_none()
}

/// The page lists these very defects, as the command would write it with the results that are there.
pub fn is_current() -> bool {
    let text = fs::read_to_string(page()).unwrap_or_default();
    let is_page = render(&read(&text)) == text;
    if !is_page {
        println!("{PAGE} does not list the defects as their table does: {COMMAND}");
    }
    is_page && is_in_order()
}
