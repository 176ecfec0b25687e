//! A core with small faults in it, each of which a law must catch.
//!
//! The sources are copied, and each listed expression becomes `if crate::mutant(N) { MUTATED } else { ORIGINAL }`; what comes
//! of that is built once, and run once for each mutant.

mod defects;
mod list;

pub use defects::{Back, Defect, FoundBy, all as defects, needs};

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Read as _};
use std::ops::{Range, RangeInclusive};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::found::is_harmless;
use super::worlds::{self, Plan, fits, on_all_cores};
use list::MUTANTS;
use testkit::built::forget_package;
use testkit::sim::laws::{Heed, Law};

/// A fault.
pub struct Mutant {
    /// What is wrong.
    pub name: &'static str,
    /// The law that must catch it.
    pub law: Law,
    /// Below `src/`.
    pub file: &'static str,
    /// The function there that has it.
    pub function: &'static str,
    /// An expression, or a statement with its semicolon, that is in the function once, however it is laid out.
    pub original: &'static str,
    /// What stands in its place.
    pub mutated: &'static str,
}

/// A small edit of the core, by place and meaning.
#[derive(Clone, Copy)]
pub struct Edit {
    /// Below `src/`.
    pub file: &'static str,
    /// The function there.
    pub function: &'static str,
    /// An expression, or a statement with its semicolon, that is in the function once, however it is laid out.
    pub original: &'static str,
    /// What stands in its place.
    pub mutated: &'static str,
}

impl Mutant {
    fn edit(&self) -> Edit {
        let Self { file, function, original, mutated, .. } = *self;
        Edit { file, function, original, mutated }
    }
}

/// Of all mutants, by their numbers: those of laws, and then those that bring a defect back.
fn edits() -> Vec<Edit> {
    let own = defects().filter_map(|defect| if let Back::Edit(edit) = defect.back { Some(edit) } else { None });
    MUTANTS.iter().map(Mutant::edit).chain(own).collect()
}

/// The number of the mutant that brings a defect back, if there is one.
pub fn number_of(defect: &Defect) -> Option<u64> {
    let is_edit = |other: &&Defect| matches!(other.back, Back::Edit(_));
    let number = match defect.back {
        Back::Mutant(name) => MUTANTS.iter().position(|mutant| mutant.name == name),
        Back::Edit(_) => defects().filter(is_edit).position(|it| it.id == defect.id).map(|at| MUTANTS.len() + at),
        Back::Nothing(_) | Back::Elsewhere(_) => None,
    };
    number.map(|number| number as u64)
}

/// What a build needs.
const COPIED: &[&str] = &["Cargo.lock", "src", "crates", "tests", "benches", "examples", "packaging"];

/// Tells which mutant is alive in this process.
const SWITCH: &str = r#"
/// True if this mutant is alive.
pub(crate) fn mutant(number: u32) -> bool {
    static ALIVE: std::sync::OnceLock<u32> = std::sync::OnceLock::new();
    let alive = || std::env::var("SIM_MUTANT").ok().and_then(|text| text.parse().ok()).unwrap_or(u32::MAX);
    *ALIVE.get_or_init(alive) == number
}
"#;

/// A mutant must be caught within so many worlds ...
const WORLDS: u64 = 500;
/// ... and its process, which computes for some seconds, ends by then: it may have the lowest priority.
const PATIENCE: Duration = Duration::from_secs(900);

/// Builds all mutants and runs each.
pub fn all() -> bool {
    let began = Instant::now();
    let Some(binary) = built() else { return false };
    let only = std::env::var("SIM_MUTANTS").unwrap_or_default();
    let found = Mutex::new(vec![String::new(); MUTANTS.len()]);
    on_all_cores(|number| {
        let at = usize::try_from(number).unwrap_or(usize::MAX);
        let Some(mutant) = MUTANTS.get(at) else { return false };
        if only == "1" || mutant.name.contains(&only) {
            let worlds = [(super::found::NEEDS, mutant.name)];
            let result = hunted(&binary, number, &worlds).unwrap_or_else(|error| error.to_string());
            println!("{:<18} {:<58} {result}", format!("{:?}", mutant.law), mutant.name);
            found.lock().unwrap()[at] = result;
        }
        true
    });
    let found = found.into_inner().unwrap();
    let fine = report(&found, only == "1");
    println!("{} mutants, {:.0} s", MUTANTS.len(), began.elapsed().as_secs_f64());
    fine
}

/// This very test, with all mutants in the core.
pub fn built() -> Option<PathBuf> {
    let began = Instant::now();
    match prepare().and_then(|dir| build(&dir)) {
        Ok(binary) => {
            println!("built in {:.0} s", began.elapsed().as_secs_f64());
            Some(binary)
        }
        Err(why) => {
            println!("{why}");
            None
        }
    }
}

fn report(found: &[String], complete: bool) -> bool {
    let mut alone = BTreeSet::new();
    let mut fine = true;
    for (mutant, result) in MUTANTS.iter().zip(found).filter(|(_, result)| !result.is_empty()) {
        fine &= result.starts_with("caught");
        if result.ends_with("alone") {
            alone.insert(format!("{:?}", mutant.law));
        }
    }
    for (law, ..) in Law::ALL {
        let shared = list::SHARED.iter().any(|(of, _)| *of == law);
        if complete && !shared && !alone.contains(&format!("{law:?}")) {
            println!("{law:?} has no mutant that it alone catches");
            fine = false;
        }
    }
    fine
}

/// The copy of the sources with all mutants in it.
fn prepare() -> Result<PathBuf, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let dir = target_dir().join("mutants");
    let failed = |error: io::Error| format!("{}: {error}", dir.display());
    for name in COPIED {
        copy(&root.join(name), &dir.join(name)).map_err(failed)?;
    }
    // Another version: what is built of the copy lies beside what is built of the sources, and not in its place.
    let manifest = fs::read_to_string(root.join("Cargo.toml")).map_err(failed)?;
    let manifest = manifest.replacen("version = \"", "version = \"0.0.0-mutants+", 1);
    write(&dir.join("Cargo.toml"), manifest.as_bytes()).map_err(failed)?;
    let edits = edits();
    // A part of an expression is looked for once the whole has a mutant beside it.
    let mut longest_first: Vec<usize> = (0..edits.len()).collect();
    longest_first.sort_by_key(|number| std::cmp::Reverse(edits[*number].original.len()));
    let files: BTreeSet<&str> = edits.iter().map(|edit| edit.file).chain(["lib.rs"]).collect();
    for file in files {
        let path = root.join("src").join(file);
        let original = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let mut text = original.clone();
        for number in longest_first.iter().copied().filter(|number| edits[*number].file == file) {
            text = mutate(&original, &text, edits[number], number)?;
        }
        if file == "lib.rs" {
            text.push_str(SWITCH);
        }
        write(&dir.join("src").join(file), text.as_bytes()).map_err(failed)?;
    }
    Ok(dir)
}

/// Puts the mutant beside what it replaces. Earlier mutants may be in the text already: what they replaced is there as it was.
fn mutate(source: &str, text: &str, edit: Edit, number: usize) -> Result<String, String> {
    let Edit { file, function, original, mutated } = edit;
    let no_mutant = |why: &str| format!("src/{file}, fn {function}: {why}, so there is no mutant {mutated:?}");
    let body = body(source, function).ok_or_else(|| no_mutant("it is not there once"))?;
    let wanted = tokens(original);
    let found = matches(body, &wanted);
    let [range] = found.as_slice() else {
        return Err(no_mutant(&format!("{original:?} is there {} times", found.len())));
    };
    let there = body.get(range.clone()).unwrap_or_default();
    // Its function as it is by now: others may have the same text.
    let begins = self::body(text, function).and_then(|body| Some(text.find(body)? + body.rfind(there)?));
    let at = begins.ok_or_else(|| no_mutant("another mutant hides it"))?;
    let both = format!("if crate::mutant({number}) {{ {mutated} }} else {{ {there} }}");
    let both = if original.ends_with([';', '}']) { both } else { format!("({both})") };
    let (before, rest) = text.split_at(at);
    Ok(format!("{before}{both}{}", rest.strip_prefix(there).unwrap_or_default()))
}

/// The text of a function, from its name to the next item of the same depth; `None` unless there is one of that name.
fn body<'a>(source: &'a str, function: &str) -> Option<&'a str> {
    let heads = [format!("fn {function}("), format!("fn {function}<")];
    let mut starts = heads.iter().flat_map(|head| source.match_indices(head.as_str())).map(|(at, _)| at);
    let (Some(start), None) = (starts.next(), starts.next()) else { return None };
    let (before, rest) = source.split_at_checked(start)?;
    let indent = before.rsplit('\n').next().map_or(0, |line| line.len() - line.trim_start().len());
    let end = format!("\n{}}}\n", " ".repeat(indent));
    rest.get(..rest.find(&end)? + end.len())
}

/// What the compiler sees of a text: no white space, and no comma that only ends a list.
fn tokens(text: &str) -> Vec<(usize, char)> {
    let mut seen: Vec<(usize, char)> = Vec::new();
    for (at, character) in text.char_indices().filter(|(_, character)| !character.is_whitespace()) {
        if matches!(character, ')' | ']' | '}') {
            seen.pop_if(|(_, last)| *last == ',');
        }
        seen.push((at, character));
    }
    seen
}

/// Where a text has these tokens.
fn matches(text: &str, wanted: &[(usize, char)]) -> Vec<Range<usize>> {
    let there = tokens(text);
    let same = |window: &&[(usize, char)]| window.iter().zip(wanted).all(|((_, one), (_, other))| one == other);
    let range = |window: &[(usize, char)]| match window {
        [(first, _), .., (last, end)] => *first..last + end.len_utf8(),
        _ => 0..0,
    };
    there.windows(wanted.len()).filter(same).map(range).collect()
}

/// Where cargo puts what it builds: beside this binary, up to the profile.
fn target_dir() -> PathBuf {
    let binary = std::env::current_exe().unwrap_or_default();
    binary.ancestors().nth(3).map_or_else(|| PathBuf::from("target"), Path::to_owned)
}

/// Files that are equal keep their times, so that nothing is built twice.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    if !from.is_dir() {
        return match fs::read(from) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            bytes => write(to, &bytes?),
        };
    }
    fs::create_dir_all(to)?;
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(from)? {
        let name = entry?.file_name();
        copy(&from.join(&name), &to.join(&name))?;
        names.insert(name);
    }
    for entry in fs::read_dir(to)? {
        let entry = entry?;
        if !names.contains(&entry.file_name()) {
            if entry.file_type()?.is_dir() { fs::remove_dir_all(entry.path())? } else { fs::remove_file(entry.path())? }
        }
    }
    Ok(())
}

fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if fs::read(path).is_ok_and(|there| there == bytes) {
        return Ok(());
    }
    path.parent().map_or(Ok(()), fs::create_dir_all)?;
    fs::write(path, bytes)
}

/// Builds the copy; gives this very test, with the mutants.
fn build(dir: &Path) -> Result<PathBuf, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    // Dependencies are shared. The programs are not: they would take the place of those that other suites run meanwhile.
    command.current_dir(dir).env("CARGO_BUILD_BUILD_DIR", target_dir()).env("CARGO_TARGET_DIR", dir.join("target"));
    forget_package(&mut command);
    command.args(["test", "--offline", "--no-run", "--test", "simulation"]);
    command.arg("--message-format=json-render-diagnostics");
    let output = command.output().map_err(|error| format!("cargo: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let mut messages = text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let binary = messages.find_map(|message| {
        let named = message.pointer("/target/name")? == "simulation";
        named.then(|| message.get("executable")?.as_str().map(PathBuf::from))?
    });
    // Warnings are not told: mutants make things unused.
    let errors = String::from_utf8_lossy(&output.stderr);
    let errors = errors.find("\nerror").and_then(|at| errors.get(at..)).unwrap_or(&errors);
    binary.filter(|_| output.status.success()).ok_or_else(|| format!("the mutants cannot be built:{errors}"))
}

/// What became of a mutant: what its process says last. With settings it is not hunted, but does what they ask for.
pub fn hunted(binary: &Path, number: u64, settings: &[(&str, &str)]) -> io::Result<String> {
    let mut command = Command::new(binary);
    command.env_remove("SIM_MUTANTS").env("SIM_MUTANT", number.to_string()).stdout(Stdio::piped());
    command.envs(settings.iter().copied());
    let mut child = command.spawn()?;
    let Some(mut output) = child.stdout.take() else { return Ok("it says nothing".to_owned()) };
    let text = std::thread::scope(|scope| {
        let reader = scope.spawn(move || {
            let mut text = String::new();
            output.read_to_string(&mut text).map(|_| text)
        });
        wait(&mut child)?;
        reader.join().unwrap_or_else(|_| Ok(String::new()))
    })?;
    Ok(text.lines().last().unwrap_or("it hangs").to_owned())
}

fn wait(child: &mut Child) -> io::Result<()> {
    let until = Instant::now() + PATIENCE;
    while child.try_wait()?.is_none() {
        if Instant::now() > until {
            child.kill()?;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Runs worlds around the mutant that is alive in this process, until its law catches it; then the same without that law.
/// Where another law was quicker, other worlds have a say: which of two is first is chance.
pub fn hunt(plan: Plan) -> bool {
    let number = super::number("SIM_MUTANT").and_then(|number| usize::try_from(number).ok());
    let Some(mutant) = number.and_then(|number| MUTANTS.get(number)) else { return false };
    let mut shared = None;
    for first in [0, 10 * WORLDS, 20 * WORLDS] {
        let Some((seed, steps, panics)) = caught(mutant.law, first, plan) else { continue };
        match others(mutant.law, first..=seed, steps, plan) {
            None => {
                println!("caught in world {seed} after {steps} steps, {panics} panics, alone");
                return true;
            }
            Some(other) => shared = Some((seed, steps, panics, other)),
        }
    }
    match shared {
        Some((seed, steps, panics, law)) => {
            println!("caught in world {seed} after {steps} steps, {panics} panics, and by {law:?}");
        }
        None => println!("SURVIVES"),
    }
    shared.is_some()
}

/// The world from this one on in which the law catches it, with the steps until then, and the worlds that panicked. One that breaks a
/// law without the mutant does not count.
fn caught(law: Law, first: u64, plan: Plan) -> Option<(u64, u64, u64)> {
    let (mut steps, mut panics) = (0, 0);
    for seed in (first..first + WORLDS).filter(|seed| fits(*seed, plan)) {
        let outcome = worlds::run(seed, Plan { heed: Heed::Only(law), ..plan }, false);
        steps += outcome.steps;
        if outcome.broken().is_some() && is_harmless(seed) {
            return Some((seed, steps, panics));
        }
        panics += u64::from(outcome.failure.is_some());
    }
    None
}

/// Another law that catches it in as many steps.
fn others(law: Law, seeds: RangeInclusive<u64>, steps: u64, plan: Plan) -> Option<Law> {
    let mut left = steps;
    for seed in seeds.filter(|seed| fits(*seed, plan)) {
        let outcome = worlds::run(seed, Plan { heed: Heed::AllBut(law), limit: left, ..plan }, false);
        if let Some(other) = outcome.broken().filter(|_| is_harmless(seed)) {
            return Some(other);
        }
        left = left.saturating_sub(outcome.steps).max(1);
    }
    None
}
