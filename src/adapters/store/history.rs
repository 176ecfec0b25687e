//! The history: one entry a line, appended, bounded, and outliving power cuts.
//!
//! A line counts once it is synced. What a crash leaves of a later one is skipped when reading, and
//! the next append begins a line of its own.

use std::io;
use std::path::{Path, PathBuf};

use crate::adapters::fsx::{self, Disk};
use crate::machine::history::HistoryEntry;
use crate::ports::StoreError;

/// From here on the file is put aside, and the one put aside before is dropped.
const ROTATE_AT: u64 = 256 << 10;
/// Our files are at most [`ROTATE_AT`] and a line long; more is not ours.
const READ_LIMIT: u64 = 1 << 20;
/// Bytes of the kubelet's log that an entry keeps, the newest.
const LOG_TAIL_LIMIT: usize = 16 << 10;
/// So many events are sent again at a boot, the newest: older ones are no news.
const RESEND: usize = 32;

/// What is known of the files between two appends.
#[derive(Debug, Default)]
pub(super) struct History {
    /// Unknown before the first append and after a failed one: then the file says.
    tail: Option<Tail>,
    /// The API server has the events up to this number, if that was read.
    reported: Option<u64>,
}

/// The end of `history.jsonl`.
#[derive(Debug)]
struct Tail {
    /// The last number given.
    last: u64,
    size: u64,
    /// It ends with a whole line.
    whole: bool,
    /// Its name is durable.
    named: bool,
}

fn current(dir: &Path) -> PathBuf {
    dir.join("history.jsonl")
}

fn older(dir: &Path) -> PathBuf {
    dir.join("history.1.jsonl")
}

/// All entries that can be read, oldest first, and why others cannot be; lines that are none are left out.
pub(super) fn entries<D: Disk>(disk: &D, dir: &Path) -> (Vec<HistoryEntry>, Option<StoreError>) {
    let (mut found, mut damage) = (Vec::new(), None);
    for path in [older(dir), current(dir)] {
        match read(disk, &path) {
            Ok(bytes) => found.extend(parse(&bytes)),
            Err(error) => drop(damage.get_or_insert(StoreError::disk(&path, error))),
        }
    }
    (found, damage)
}

/// The lines that are entries; a number is never 0.
fn parse(bytes: &[u8]) -> impl Iterator<Item = HistoryEntry> {
    let lines = bytes.split(|byte| *byte == b'\n');
    lines.filter_map(|line| serde_json::from_slice::<HistoryEntry>(line).ok()).filter(|entry| entry.number > 0)
}

fn last(bytes: &[u8]) -> u64 {
    parse(bytes).map(|entry| entry.number).max().unwrap_or_default()
}

/// A file's content; one that is not there is empty.
fn read<D: Disk>(disk: &D, path: &Path) -> io::Result<Vec<u8>> {
    match disk.read(path, READ_LIMIT) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        result => result,
    }
}

impl History {
    /// True once there was an append, which needs the directory.
    pub(super) fn is_ready(&self) -> bool {
        self.tail.is_some()
    }

    /// Appends durably; gives the number.
    pub(super) fn append<D: Disk>(&mut self, disk: &D, dir: &Path, entry: &HistoryEntry) -> Result<u64, StoreError> {
        let path = current(dir);
        let tail = match self.tail.take() {
            Some(tail) => Ok(tail),
            None => self.read_tail(disk, dir),
        };
        let tail = tail.and_then(|tail| append_entry(disk, dir, tail, entry));
        // What a failed append left is read before the next one.
        let tail = tail.map_err(|error| StoreError::disk(&path, error))?;
        Ok(self.tail.insert(tail).last)
    }

    fn read_tail<D: Disk>(&mut self, disk: &D, dir: &Path) -> io::Result<Tail> {
        let (bytes, size) = match read(disk, &current(dir)) {
            Ok(bytes) => {
                let size = bytes.len() as u64;
                (bytes, size)
            }
            // Somebody else's doing; it is put aside like a full one.
            Err(error) if error.kind() == io::ErrorKind::FileTooLarge => (Vec::new(), READ_LIMIT),
            Err(error) => return Err(error),
        };
        // A crash may have come between putting the full file aside and beginning the new one.
        let mut number = last(&bytes);
        if number == 0 {
            number = last(&read(disk, &older(dir)).or_else(|error| match error.kind() {
                io::ErrorKind::FileTooLarge => Ok(Vec::new()),
                _ => Err(error),
            })?);
        }
        let number = number.max(self.last_reported(disk, dir));
        Ok(Tail { last: number, size, whole: bytes.last().is_none_or(|byte| *byte == b'\n'), named: false })
    }

    /// How far the API server has it.
    fn last_reported<D: Disk>(&mut self, disk: &D, dir: &Path) -> u64 {
        *self.reported.get_or_insert_with(|| {
            let bytes = disk.read(&dir.join("reported"), 64).unwrap_or_default();
            std::str::from_utf8(&bytes).ok().and_then(|text| text.trim().parse().ok()).unwrap_or_default()
        })
    }

    /// Remembers how far the API server has it. Not synced, and a failure is nobody's concern:
    /// events that are sent again have the names they had, and the API server turns them away.
    pub(super) fn reported<D: Disk>(&mut self, disk: &D, dir: &Path, number: u64) {
        if number <= self.last_reported(disk, dir) {
            return;
        }
        self.reported = Some(number);
        let path = dir.join("reported");
        let temporary = fsx::temporary_beside(&path);
        let written = disk.write(&temporary, format!("{number}\n").as_bytes(), 0o600);
        if written.and_then(|()| disk.rename(&temporary, &path)).is_err() {
            let _ = disk.remove(&temporary);
        }
    }

    /// What the API server may lack, oldest first.
    pub(super) fn unreported<D: Disk>(&mut self, disk: &D, dir: &Path) -> Vec<HistoryEntry> {
        let known = self.last_reported(disk, dir);
        let (mut found, _) = entries(disk, dir);
        found.retain(|entry| !entry.local && entry.number > known);
        found.split_off(found.len().saturating_sub(RESEND))
    }
}

fn append_entry<D: Disk>(disk: &D, dir: &Path, mut tail: Tail, entry: &HistoryEntry) -> io::Result<Tail> {
    let path = current(dir);
    if tail.size >= ROTATE_AT {
        disk.rename(&path, &older(dir))?;
        tail = Tail { last: tail.last, size: 0, whole: true, named: false };
    }
    if tail.size == 0 {
        // The full file's new name goes first, whoever gave it: if the new file were durable and
        // that not, a crash would lose the full one.
        disk.sync(dir)?;
    }
    tail.last = tail.last.saturating_add(1);
    let mut entry = HistoryEntry { number: tail.last, ..entry.clone() };
    while entry.log_tail.iter().map(String::len).sum::<usize>() > LOG_TAIL_LIMIT {
        entry.log_tail.remove(0);
    }
    let start = if tail.whole { "" } else { "\n" };
    let line = format!("{start}{}\n", serde_json::to_string(&entry)?);
    disk.append(&path, line.as_bytes(), 0o600)?;
    disk.sync(&path)?;
    if !tail.named {
        disk.sync(dir)?;
    }
    Ok(Tail { size: tail.size.saturating_add(line.len() as u64), whole: true, named: true, ..tail })
}
