//! The store: native's tree, and our own files beside it.
//!
//! ```text
//! <dynamic-config-dir>/
//!   store/meta/{assigned,last-known-good}          native, byte for byte
//!   store/checkpoints/<uid>/<resourceVersion>/<key>  native, byte for byte
//!   supervisor/lock                                held while a supervisor runs; its pid
//!   supervisor/state.json                          the record: assigned, last known good, bad versions, ...
//!   supervisor/configs/<digest>/kubelet.json       what --config is given
//!   supervisor/configs/<digest>/flags              what becomes of the unit's own flags
//!   supervisor/configs/<digest>/files/<key>        the payload's keys that it names
//!   supervisor/configs/<digest>/config.json        checksums of these
//!   supervisor/history.jsonl, history.1.jsonl      what happened, one entry a line
//!   supervisor/reported                            how far the API server has the history
//!   supervisor/state-files/                        the kubelet's state files of other policies
//!   supervisor/seals/<uid>/<resourceVersion>.json  checksums of a checkpoint
//!   supervisor/preflight/                          throw-away certificates for preflights
//!   supervisor/control.sock                        for `status` and the operator's verbs
//! ```
//! Upstream layout: pkg/kubelet/kubeletconfig/checkpoint/store/fsstore.go, v1.20.2.

mod checkpoint;
mod collect;
mod configs;
mod history;
pub mod meta;
mod records;
mod state_files;

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

pub use self::checkpoint::CheckpointMetadata;
pub use self::configs::{GivenFiles, StoredConfig};
use super::fsx::{self, Disk};
use crate::machine::model::RenderError;
use crate::ports::StoreError;
use kubelet_config::digest::hex;
use sha2::{Digest as _, Sha256};

/// Records and checksums are a few KiB; more is not ours.
const RECORD_LIMIT: u64 = 1 << 20;

/// Reads before something is given up: a passing error must not cost a node its memory.
const READS: u32 = 3;

/// What a reading of these errors comes to: damage, if the disk answered, and what was written is not there.
fn unread(path: &Path, error: &io::Error) -> RenderError {
    let why = format!("{}: {error}", path.display());
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::FileTooLarge | io::ErrorKind::NotADirectory => {
            RenderError::Checkpoint(why)
        }
        _ => RenderError::Internal(why),
    }
}

/// Reads until it succeeds, within bounds.
fn again<T>(read: impl Fn() -> Result<T, RenderError>) -> Result<T, RenderError> {
    (1..READS).fold(read(), |found, _| found.or_else(|_| read()))
}

/// SHA-256 in hexadecimal.
fn checksum(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// A data key that would lead out of its directory.
fn unsafe_key(key: &str) -> StoreError {
    StoreError::new(format!("the ConfigMap's key {key:?} cannot be a file name"))
}

/// The store below one directory.
#[derive(Debug)]
pub struct FsStore<D> {
    disk: D,
    root: PathBuf,
    /// What `state.json` and native's records hold, as far as we know; `None` forces a write.
    written: [Option<String>; 3],
    /// What is known to be there and durable, so that it is synced once.
    durable: BTreeSet<PathBuf>,
    /// Configurations that a failed write may have left in memory alone.
    suspect: BTreeSet<PathBuf>,
    history: History,
}

/// What is known of the history's files between two appends.
#[derive(Debug, Default)]
struct History {
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

impl<D: Disk> FsStore<D> {
    /// A store below `root`, which must be absolute.
    pub fn new(disk: D, root: &Path) -> Self {
        let (written, history) = ([None, None, None], History::default());
        Self { disk, root: root.to_owned(), written, durable: BTreeSet::new(), suspect: BTreeSet::new(), history }
    }

    /// Forgets what it knows of the disk. What is there is looked at, and written, again.
    pub fn forget(&mut self) {
        (self.written, self.history) = ([None, None, None], History::default());
        self.durable.clear();
    }

    fn own(&self, name: &str) -> PathBuf {
        self.root.join("supervisor").join(name)
    }

    /// After a failure nobody knows what is there.
    fn checked<T>(&mut self, result: Result<T, StoreError>) -> Result<T, StoreError> {
        result.inspect_err(|_| self.durable.clear())
    }

    /// Makes directories, each of them once in our life.
    fn make_dirs(&mut self, dirs: &[(PathBuf, u32)]) -> Result<(), StoreError> {
        let mut parents = BTreeSet::new();
        let new = || dirs.iter().filter(|(dir, _)| !self.durable.contains(dir));
        for (dir, mode) in new() {
            self.disk.make_dir(dir, *mode).map_err(|error| StoreError::disk(dir, error))?;
            parents.insert(dir.parent().unwrap_or(dir));
        }
        for parent in parents {
            self.sync(parent)?;
        }
        let new: Vec<PathBuf> = new().map(|(dir, _)| dir.clone()).collect();
        self.durable.extend(new);
        Ok(())
    }

    /// A file's content, if there is one.
    fn read_if_there(&self, path: &Path, limit: u64) -> io::Result<Option<Vec<u8>>> {
        match self.disk.read(path, limit) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            result => result.map(Some),
        }
    }

    fn sync(&self, path: &Path) -> Result<(), StoreError> {
        self.disk.sync(path).map_err(|error| StoreError::disk(path, error))
    }

    /// Makes a directory of files, which appears whole by one rename, as in native; a leftover of a crash before that is
    /// removed first. What is there is damaged, or of a crash: it is removed last.
    fn write_whole<'a>(
        &self,
        dir: &Path,
        trees: &[&str],
        files: impl Iterator<Item = (&'a str, &'a str)>,
    ) -> Result<(), StoreError> {
        let temporary = fsx::temporary_beside(dir);
        let trees: Vec<PathBuf> = trees.iter().map(|tree| temporary.join(tree)).collect();
        let steps = || -> io::Result<()> {
            self.disk.remove(&temporary)?;
            for made in [&temporary].into_iter().chain(&trees) {
                self.disk.make_dir(made, 0o700)?;
            }
            for (name, content) in files {
                let path = temporary.join(name);
                self.disk.write(&path, content.as_bytes(), 0o600)?;
                self.disk.sync(&path)?;
            }
            for made in trees.iter().chain([&temporary]) {
                self.disk.sync(made)?;
            }
            self.disk.remove(dir)?;
            self.disk.rename(&temporary, dir)?;
            self.disk.sync(dir.parent().unwrap_or(dir))
        };
        steps().map_err(|error| {
            let _ = self.disk.remove(&temporary);
            StoreError::disk(dir, error)
        })
    }

    /// Replaces a file durably; it is for our eyes only.
    fn replace(&self, path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
        fsx::replace(&self.disk, path, &fsx::temporary_beside(path), bytes, 0o600)
            .map_err(|error| StoreError::disk(path, error))
    }

    /// Returns once the disk has taken a write, or refused it; one that stalls does neither, though it reads from memory.
    pub(crate) fn probe_disk(&self) {
        let path = fsx::temporary_beside(&self.own("disk"));
        let written = self.disk.write(&path, b"", 0o600).and_then(|()| self.disk.sync(&path));
        let removed = self.disk.remove(&path);
        if let Err(error) = written.and(removed) {
            tracing::debug!("{}: {error}", path.display());
        }
    }

    fn base_dirs(&mut self) -> Result<(), StoreError> {
        let native = ["", "store", "store/meta", "store/checkpoints"].map(|dir| (self.root.join(dir), 0o755));
        let own = ["supervisor", "supervisor/seals", "supervisor/configs"].map(|dir| (self.root.join(dir), 0o700));
        self.make_dirs(&[&native[..], &own].concat())
    }
}
