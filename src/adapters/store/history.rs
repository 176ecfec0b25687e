//! The history: one entry a line, appended, bounded, and outliving power cuts.
//!
//! A line counts once it is synced. What a crash leaves of a later one is skipped when reading, and
//! the next append begins a line of its own.

use std::io;
use std::path::{Path, PathBuf};

use super::{FsStore, Tail};
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

/// The lines that are entries; a number is never 0.
fn parse(bytes: &[u8]) -> impl Iterator<Item = HistoryEntry> {
    let lines = bytes.split(|byte| *byte == b'\n');
    lines.filter_map(|line| serde_json::from_slice::<HistoryEntry>(line).ok()).filter(|entry| entry.number > 0)
}

fn last(bytes: &[u8]) -> u64 {
    parse(bytes).map(|entry| entry.number).max().unwrap_or_default()
}

impl<D: Disk> FsStore<D> {
    fn current(&self) -> PathBuf {
        self.own("history.jsonl")
    }

    fn older(&self) -> PathBuf {
        self.own("history.1.jsonl")
    }

    /// The history as far as it can be read, oldest first, and why the rest cannot be; lines that are no entries are left out.
    pub fn history(&self) -> (Vec<HistoryEntry>, Option<StoreError>) {
        let (mut found, mut damage) = (Vec::new(), None);
        for path in [self.older(), self.current()] {
            match self.lines(&path) {
                Ok(bytes) => found.extend(parse(&bytes)),
                Err(error) => drop(damage.get_or_insert(StoreError::disk(&path, error))),
            }
        }
        (found, damage)
    }

    /// A file's content; one that is not there is empty.
    fn lines(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.read_if_there(path, READ_LIMIT).map(Option::unwrap_or_default)
    }

    /// Appends to the history, durably; gives the entry's number.
    ///
    /// # Errors
    /// Why it is not there.
    pub fn append(&mut self, entry: &HistoryEntry) -> Result<u64, StoreError> {
        if self.history.tail.is_none() {
            let made = self.make_dirs(&[(self.root.clone(), 0o755), (self.root.join("supervisor"), 0o700)]);
            self.checked(made)?;
        }
        let tail = match self.history.tail.take() {
            Some(tail) => Ok(tail),
            None => self.read_tail(),
        };
        let tail = tail.and_then(|tail| self.append_entry(tail, entry));
        // What a failed append left is read before the next one.
        let tail = tail.map_err(|error| StoreError::disk(&self.current(), error))?;
        Ok(self.history.tail.insert(tail).last)
    }

    fn read_tail(&mut self) -> io::Result<Tail> {
        let (bytes, size) = match self.lines(&self.current()) {
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
            number = last(&self.lines(&self.older()).or_else(|error| match error.kind() {
                io::ErrorKind::FileTooLarge => Ok(Vec::new()),
                _ => Err(error),
            })?);
        }
        let number = number.max(self.last_reported());
        Ok(Tail { last: number, size, whole: bytes.last().is_none_or(|byte| *byte == b'\n'), named: false })
    }

    fn append_entry(&self, mut tail: Tail, entry: &HistoryEntry) -> io::Result<Tail> {
        let (path, dir) = (self.current(), self.root.join("supervisor"));
        if tail.size >= ROTATE_AT {
            self.disk.rename(&path, &self.older())?;
            tail = Tail { last: tail.last, size: 0, whole: true, named: false };
        }
        if tail.size == 0 {
            // The full file's new name goes first, whoever gave it: if the new file were durable and
            // that not, a crash would lose the full one.
            self.disk.sync(&dir)?;
        }
        tail.last = tail.last.saturating_add(1);
        let mut entry = HistoryEntry { number: tail.last, ..entry.clone() };
        while entry.log_tail.iter().map(String::len).sum::<usize>() > LOG_TAIL_LIMIT {
            entry.log_tail.remove(0);
        }
        let start = if tail.whole { "" } else { "\n" };
        let line = format!("{start}{}\n", serde_json::to_string(&entry)?);
        self.disk.append(&path, line.as_bytes(), 0o600)?;
        self.disk.sync(&path)?;
        if !tail.named {
            self.disk.sync(&dir)?;
        }
        Ok(Tail { size: tail.size.saturating_add(line.len() as u64), whole: true, named: true, ..tail })
    }

    /// How far the API server has it.
    fn last_reported(&mut self) -> u64 {
        let read = || {
            let bytes = self.disk.read(&self.own("reported"), 64).unwrap_or_default();
            std::str::from_utf8(&bytes).ok().and_then(|text| text.trim().parse().ok()).unwrap_or_default()
        };
        let known = self.history.reported.unwrap_or_else(read);
        *self.history.reported.insert(known)
    }

    /// Notes that the API server has all events up to this number. Not synced, and a failure is nobody's concern:
    /// events that are sent again have the names they had, and the API server turns them away.
    pub fn reported(&mut self, number: u64) {
        if number <= self.last_reported() {
            return;
        }
        self.history.reported = Some(number);
        let path = self.own("reported");
        let temporary = fsx::temporary_beside(&path);
        let written = self.disk.write(&temporary, format!("{number}\n").as_bytes(), 0o600);
        if written.and_then(|()| self.disk.rename(&temporary, &path)).is_err() {
            let _ = self.disk.remove(&temporary);
        }
    }

    /// What the API server may lack of the history, oldest first.
    pub fn unreported(&mut self) -> Vec<HistoryEntry> {
        let known = self.last_reported();
        let (mut found, _) = self.history();
        found.retain(|entry| !entry.local && entry.number > known);
        found.split_off(found.len().saturating_sub(RESEND))
    }
}
