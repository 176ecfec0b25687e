//! What commands print, compared with `tests/fixtures/plugin/`: files that a person reads.
//!
//! A file has one command's calls in the order they came: `$ COMMAND`, its standard output, each line of its standard
//! error behind `! `, and the exit code if it is not 0. What differs between runs and machines stands there as a word
//! in capitals. What both carriers give alike is in `both`. `UPDATE_SNAPSHOTS=1` writes the files anew.
#![allow(clippy::string_slice, reason = "offsets come from find and char lengths")]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use crate::assignment::Carrier;

const DIR: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/plugin");
const UPDATE: &str = "UPDATE_SNAPSHOTS";

/// The carriers' cases run at the same time, and write to one directory.
static TURN: Mutex<()> = Mutex::new(());

/// What was said so far, by file.
pub struct Snapshots {
    carrier: Carrier,
    /// Words of this run alone, and what stands for them.
    pub own: Vec<(String, &'static str)>,
    said: BTreeMap<&'static str, String>,
}

impl Snapshots {
    pub fn new(carrier: Carrier, own: Vec<(String, &'static str)>) -> Self {
        Self { carrier, own, said: BTreeMap::new() }
    }

    /// A call and what came of it.
    pub fn add(&mut self, file: &'static str, call: &str, (code, out, err): &(i32, String, String)) {
        let said = self.said.entry(file).or_default();
        let mut text = out.clone();
        if !out.is_empty() && !out.ends_with('\n') {
            text.push('\n');
        }
        for line in err.lines() {
            let _ = writeln!(text, "! {line}");
        }
        if *code != 0 {
            let _ = writeln!(text, "exit code {code}");
        }
        for (own, word) in self.own.iter().filter(|(own, _)| !own.is_empty()) {
            text = text.replace(own, word);
        }
        if !said.is_empty() {
            said.push('\n');
        }
        let call = self.own.iter().fold(call.to_owned(), |call, (own, word)| call.replace(own, word));
        let _ = write!(said, "$ {call}\n{}", aligned(&settled(&text)));
    }

    /// Compares all; where they differ, prints how and fails.
    pub fn compare(self) {
        let update = std::env::var_os(UPDATE).is_some();
        let _mine = TURN.lock();
        let mut wrong = Vec::new();
        for (name, said) in &self.said {
            if update {
                self.write(name, said);
                continue;
            }
            let file = self.file(name);
            let kept = fs::read_to_string(&file).unwrap_or_default();
            if &kept != said {
                println!("{}", difference(&file, &kept, said));
                wrong.push(*name);
            }
        }
        assert!(wrong.is_empty(), "other than tests/fixtures/plugin has them: {wrong:?}; {UPDATE}=1 renews them");
    }

    fn place(carrier: &str, name: &str) -> PathBuf {
        Path::new(DIR).join(carrier).join(format!("{name}.txt"))
    }

    fn file(&self, name: &str) -> PathBuf {
        let own = Self::place(self.carrier.name(), name);
        if own.exists() { own } else { Self::place("both", name) }
    }

    /// What both say alike is kept once.
    fn write(&self, name: &str, said: &str) {
        let other = if self.carrier == Carrier::Native { Carrier::Labels } else { Carrier::Native };
        let [own, other, both] = [self.carrier.name(), other.name(), "both"].map(|dir| Self::place(dir, name));
        let shared = fs::read_to_string(&both).ok();
        let put = |file: &Path, text: &str| {
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        };
        let gone = |file: &Path| drop(fs::remove_file(file));
        if fs::read_to_string(&other).unwrap_or_else(|_| shared.clone().unwrap_or_default()) == said {
            put(&both, said);
            gone(&own);
            gone(&other);
            return;
        }
        if let Some(shared) = shared {
            put(&other, &shared);
            gone(&both);
        }
        put(&own, said);
    }
}

/// The first lines that differ, with the call they belong to.
fn difference(file: &Path, kept: &str, said: &str) -> String {
    let (kept, said): (Vec<&str>, Vec<&str>) = (kept.lines().collect(), said.lines().collect());
    let same = kept.iter().zip(&said).take_while(|(kept, said)| kept == said).count();
    let call = said.iter().take(same + 1).rev().find(|line| line.starts_with("$ ")).unwrap_or(&"");
    let tail = kept.iter().rev().zip(said.iter().rev()).take_while(|(kept, said)| kept == said).count();
    let tail = tail.min(kept.len() - same).min(said.len() - same);
    let lines = |sign: &str, lines: &[&str]| -> String {
        lines[same..lines.len() - tail].iter().flat_map(|line| [sign, line, "\n"]).collect()
    };
    format!("{}, line {}, {call}:\n{}{}", file.display(), same + 1, lines("-", &kept), lines("+", &said))
}

/// The text with a word for each thing that is another in each run.
fn settled(text: &str) -> String {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "-:.+@_".contains(c);
    let mut settled = String::new();
    for line in text.split_inclusive('\n') {
        let mut at = 0;
        while let Some(next) = line[at..].chars().next() {
            let length = line[at..].find(|c| !is_part(c)).unwrap_or(line.len() - at);
            match length {
                0 => settled.push(next),
                _ => settled.push_str(&instead(&line[..at], &line[at..at + length], &line[at + length..])),
            }
            at += length.max(if length == 0 { next.len_utf8() } else { 0 });
        }
    }
    settled
}

/// What stands for this word, between what is in front of it and behind it.
fn instead(before: &str, word: &str, after: &str) -> String {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let bare = word.trim_end_matches(['.', ':']);
    let end = &word[bare.len()..];
    let parts: Vec<&str> = bare.split('-').collect();
    let hex = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let shape: String = bare.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    let is_after = |keys: &[&str]| keys.iter().any(|key| before.ends_with(key));
    if parts.iter().map(|part| part.len()).eq([8, 4, 4, 4, 12]) && parts.iter().all(|part| hex(part)) {
        return format!("UID{end}");
    }
    if shape.starts_with("0000-00-00T00:00:00") {
        return format!("TIME{end}");
    }
    if let Some((name, version)) = bare.rsplit_once('@')
        && digits(version)
    {
        return format!("{name}@VERSION{end}");
    }
    let uid = before.strip_suffix('/').and_then(|before| before.rsplit(['=', ' ']).next()).unwrap_or_default();
    let is_version = is_after(&["\"resourceVersion\": \"", "ResourceVersion: "]) || uid.len() == 36;
    if digits(bare) && is_version {
        return format!("VERSION{end}");
    }
    if digits(bare) && (is_after(&["\"secondsLeft\": "]) || after.starts_with(" requests")) {
        return format!("NUMBER{end}");
    }
    word.to_owned()
}

/// Tables with their columns as wide as what stands in them now, and ages settled: whether a cell is one, the heading
/// tells.
fn aligned(text: &str) -> String {
    let mut done = String::new();
    let mut table: Vec<Vec<String>> = Vec::new();
    for line in text.lines() {
        let cells: Vec<&str> = line.split("   ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
        let is_row = cells.len() > 1 && !line.starts_with([' ', '!', '$']);
        if is_row {
            table.push(cells.into_iter().map(str::to_owned).collect());
        } else {
            done.push_str(&columns(&std::mem::take(&mut table)));
            done.push_str(line);
            done.push('\n');
        }
    }
    done + &columns(&table)
}

fn columns(table: &[Vec<String>]) -> String {
    let Some((headings, _)) = table.split_first() else { return String::new() };
    let age = |word: &str| word.ends_with(['s', 'm', 'h', 'd']) && word.starts_with(|c: char| c.is_ascii_digit());
    let cell = |column: usize, cell: &String| match headings.get(column).map_or("", String::as_str) {
        "AGE" | "LAST SEEN" if age(cell) => "AGE".to_owned(),
        "STATE" => match cell.rsplit_once(' ') {
            Some((state, left)) if age(left) => format!("{state} LEFT"),
            _ => cell.clone(),
        },
        _ => cell.clone(),
    };
    let rows: Vec<Vec<String>> =
        table.iter().map(|row| row.iter().enumerate().map(|(at, text)| cell(at, text)).collect()).collect();
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let mut text = String::new();
    for row in &rows {
        for (column, cell) in row.iter().enumerate() {
            let last = column + 1 == row.len();
            let pad = if last { 0 } else { width(column).unwrap_or_default() - cell.chars().count() + 3 };
            text.push_str(cell);
            text.push_str(&" ".repeat(pad));
        }
        text.push('\n');
    }
    text
}
