//! The table, and its place in `docs/usage/measured.md`.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::Result;
use crate::cluster::output;
use crate::contender::Contender;
use crate::counted::Starts;
use crate::turn::{Change, NATIVE_WATCHED, Turn};
use crate::usage::{Usage, Window};
use crate::world::World;

/// What is measured is built from these; a commit that touches none of them changes no number.
const MEASURED: [&str; 4] = ["src", "crates/config", "crates/exposition", "Cargo.lock"];

pub fn text(world: &World, rounds: u32, turns: &[Turn], usage: &Usage) -> Result<String> {
    let mut contenders: Vec<Contender> = Contender::ALL.into_iter().collect();
    contenders.retain(|contender| turns.iter().any(|turn| turn.contender == *contender));
    let table = Table { turns, contenders };
    let build = if cfg!(debug_assertions) { " A development build." } else { "" };
    let head = format!(
        "Commit {}, {}.{build} {}. {}. Rounds: {rounds}; median (least–most).",
        commit()?,
        jiff::Timestamp::now().strftime("%Y-%m-%d"),
        world.told(),
        machine()?
    );
    Ok(format!("{head}\n\n{}\n{}", table.text(), usage_text(usage)))
}

/// The last commit that changed what is measured.
fn commit() -> Result<String> {
    let git = |args: &[&str]| -> Result<String> {
        output(Command::new("git").args(args).arg("--").args(MEASURED).current_dir(env!("CARGO_MANIFEST_DIR")))
    };
    let commit = git(&["log", "-1", "--format=%h"])?.trim().to_owned();
    let changed = git(&["status", "--porcelain"])?;
    Ok(if changed.is_empty() { commit } else { format!("{commit} and what is not committed yet") })
}

fn machine() -> Result<String> {
    let read = |path: &str| std::fs::read_to_string(Path::new("/proc").join(path));
    let (cpus, memory) = (read("cpuinfo")?, read("meminfo")?);
    let field = |text: &str, name: &str| -> String {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        line.split_once(':').unwrap_or_default().1.trim().to_owned()
    };
    let kib: f64 = field(&memory, "MemTotal").trim_end_matches(" kB").parse()?;
    let cores = std::thread::available_parallelism()?;
    let model = field(&cpus, "model name");
    Ok(format!("{model}, {cores} cores, {:.0} GB, Linux {}", kib * 1024.0 / 1e9, read("sys/kernel/osrelease")?.trim()))
}

type OfTurn = fn(&Turn) -> Change;

struct Table<'a> {
    turns: &'a [Turn],
    contenders: Vec<Contender>,
}

impl Table<'_> {
    fn text(&self) -> String {
        let titles: Vec<String> = self.contenders.iter().map(|contender| contender.title()).collect();
        let mut text = format!("| | {} |\n|---|{}\n", titles.join(" | "), "---|".repeat(titles.len()));
        let mut row = |name: &str, cell: &dyn Fn(Contender) -> String| {
            let cells: Vec<String> = self.contenders.iter().map(|contender| cell(*contender)).collect();
            let _ = writeln!(text, "| {name} | {} |", cells.join(" | "));
        };
        let changes: [(&str, OfTurn); 2] =
            [("first change after a start", |turn| turn.first), ("second change", |turn| turn.second)];
        for (name, change) in changes {
            row(&format!("{name}: write → active and healthz 200"), &|who| {
                self.seconds(who, |turn| Some(change(turn).healthy))
            });
        }
        row("… times the bare restart of the same round", &|who| self.ratios(who, |change| change.healthy));
        for (name, change) in changes {
            row(&format!("{name}: healthz outage"), &|who| self.seconds(who, |turn| Some(change(turn).outage)));
        }
        row("… times the bare restart's of the same round", &|who| self.ratios(who, |change| change.outage));
        for (name, change) in changes {
            row(&format!("{name}: kubelet starts"), &|who| self.starts(who, |turn| Some(change(turn).starts)));
        }
        row("kubelet starts at its own start", &|who| self.starts(who, |turn| Some(turn.own_start)));
        let others = |turn: &Turn| turn.others.clone();
        row("kubelet starts per label edit", &|who| self.starts(who, |turn| Some(others(turn)?.label_edit)));
        row("kubelet starts per rejected payload", &|who| self.starts(who, |turn| Some(others(turn)?.rejected)));
        row("recovery from a configuration that kills the kubelet", &|who| self.recovery(who));
        row("its start → exec of the kubelet, warm store", &|who| self.seconds(who, |turn| turn.exec));
        text
    }

    fn of(&self, contender: Contender) -> impl Iterator<Item = &Turn> {
        self.turns.iter().filter(move |turn| turn.contender == contender)
    }

    fn seconds(&self, contender: Contender, value: impl Fn(&Turn) -> Option<Duration>) -> String {
        spread(self.of(contender).filter_map(value).map(|time| time.as_secs_f64()).collect(), seconds)
    }

    /// Each change against the bare restart of the same round that was the same in order.
    fn ratios(&self, contender: Contender, value: fn(Change) -> Duration) -> String {
        let ratio = |mine: Change, bare: Change| value(mine).as_secs_f64() / value(bare).as_secs_f64();
        let pairs = self.of(contender).filter_map(|turn| {
            let bare = self.of(Contender::Bare).find(|bare| bare.round == turn.round)?;
            Some([ratio(turn.first, bare.first), ratio(turn.second, bare.second)])
        });
        spread(pairs.flatten().collect(), |ratio| format!("{ratio:.2}"))
    }

    /// All that were seen; one if they are alike.
    fn starts(&self, contender: Contender, value: impl Fn(&Turn) -> Option<Starts>) -> String {
        let mut all: Vec<Starts> = self.of(contender).filter_map(value).collect();
        all.sort();
        all.dedup();
        let all: Vec<String> = all.iter().map(Starts::to_string).collect();
        if all.is_empty() { "–".to_owned() } else { all.join(", ") }
    }

    fn recovery(&self, contender: Contender) -> String {
        let all: Vec<Option<Duration>> =
            self.of(contender).filter_map(|turn| Some(turn.others.as_ref()?.recovery)).collect();
        if all.contains(&None) {
            return format!("never ({} s watched)", NATIVE_WATCHED.as_secs());
        }
        spread(all.iter().flatten().map(Duration::as_secs_f64).collect(), seconds)
    }
}

fn seconds(value: f64) -> String {
    if value < 1.0 { format!("{value:.3} s") } else { format!("{value:.2} s") }
}

/// Median, and the least and the most.
fn spread(mut values: Vec<f64>, show: impl Fn(f64) -> String) -> String {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    let (Some(least), Some(most), Some(upper)) = (values.first(), values.last(), values.get(middle)) else {
        return "–".to_owned();
    };
    let even = values.len().is_multiple_of(2).then(|| values.get(middle - 1)).flatten();
    let median = even.map_or(*upper, |lower| f64::midpoint(*lower, *upper));
    let [least, most] = [least, most].map(|value| show(*value).trim_end_matches(" s").to_owned());
    format!("{} ({least}–{most})", show(median))
}

fn usage_text(usage: &Usage) -> String {
    let mb = |bytes: u64| bytes as f64 / 1e6;
    let cpu = |window: &Window| window.cpu.as_secs_f64() / window.length.as_secs_f64() * 100.0;
    let Usage { trial, idle, binary_bytes } = usage;
    format!(
        "| the supervisor itself (MB: 10^6 bytes) | on trial, {} s | idle, {} s |\n|---|---|---|\n\
         | memory of its own (`RssAnon`): the monitor | {:.2} MB | {:.2} MB |\n\
         | the worker | {:.2} MB | {:.2} MB |\n\
         | pages of files (`RssFile`), the binary's | {:.1} MB | {:.1} MB |\n\
         | CPU of both, of one | {:.4} % | {:.4} % |\n\
         | API requests meanwhile | {:.0} | {:.0} |\n\n\
         The binary: {:.2} MB.\n",
        trial.length.as_secs(),
        idle.length.as_secs(),
        mb(trial.monitor),
        mb(idle.monitor),
        mb(trial.worker),
        mb(idle.worker),
        mb(trial.file),
        mb(idle.file),
        cpu(trial),
        cpu(idle),
        trial.requests,
        idle.requests,
        mb(*binary_bytes),
    )
}
