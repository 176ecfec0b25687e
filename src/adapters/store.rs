//! The store: native's tree, and our own files beside it.
//!
//! ```text
//! <dynamic-config-dir>/
//!   store/meta/{assigned,last-known-good}          native, byte for byte
//!   store/checkpoints/<uid>/<resourceVersion>/<key>  native, byte for byte
//!   supervisor/lock                                held while a supervisor runs; its pid
//!   supervisor/state.json                          attempts, bad versions
//!   supervisor/history.jsonl, history.1.jsonl      what happened, one entry a line
//!   supervisor/reported                            how far the API server has the history
//!   supervisor/state-files/                        the kubelet's state files of other policies
//!   supervisor/seals/<uid>/<resourceVersion>.json  checksums of a checkpoint
//!   supervisor/rendered/<uid>/<resourceVersion>/<key>  what --config is given
//!   supervisor/preflight/                          throw-away certificates for preflights
//!   supervisor/control.sock                        for `status` and the operator's verbs
//! ```
//! Upstream layout: pkg/kubelet/kubeletconfig/checkpoint/store/fsstore.go, v1.20.2.

mod checkpoint;
mod history;
mod state_files;

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use self::history::History;
use super::fsx::{self, Disk};
use crate::machine::model::{RenderError, StateFiles};
use crate::machine::record::{self, HistoryEntry, LocalState};
use crate::machine::{Records, Stored};
use crate::ports::{Checkpoint, Store, StoreError};
use kubelet_config::source::{Payload, Source};
use kubelet_config::yaml;

/// Records and seals are a few KiB; more is not ours.
const RECORD_LIMIT: u64 = 1 << 20;

/// What a record file holds.
enum Record {
    Text(String),
    Absent,
    /// Not a text; nothing is lost by replacing it.
    Garbage(String),
    /// The disk did not give it; it may be whole.
    Unreadable(String),
}

/// Reads of a record before it is given up: a passing error must not cost a node its memory.
const RECORD_READS: u32 = 3;

/// The store below one directory.
#[derive(Debug)]
pub struct FsStore<D> {
    disk: D,
    root: PathBuf,
    /// What the three record files hold, as far as we know; `None` forces a write.
    written: [Option<String>; 3],
    history: History,
}

fn texts(records: &Records) -> [String; 3] {
    let meta = [&records.assigned, &records.last_known_good].map(|source| record::encode_meta(source.as_ref()));
    let [assigned, last_known_good] = meta;
    [records.local_state.encode(), assigned, last_known_good]
}

impl<D: Disk> FsStore<D> {
    /// A store below `root`, which must be absolute.
    pub fn new(disk: D, root: &Path) -> Self {
        Self { disk, root: root.to_owned(), written: [None, None, None], history: History::default() }
    }

    fn meta(&self, name: &str) -> PathBuf {
        self.root.join("store/meta").join(name)
    }

    fn record_paths(&self) -> [PathBuf; 3] {
        [self.root.join("supervisor/state.json"), self.meta("assigned"), self.meta("last-known-good")]
    }

    fn make_dirs(&self, dirs: &[(PathBuf, u32)]) -> Result<(), StoreError> {
        for (dir, mode) in dirs {
            let step = self.disk.make_dir(dir, *mode).and_then(|()| self.disk.sync(dir.parent().unwrap_or(dir)));
            step.map_err(|error| StoreError::disk(dir, error))?;
        }
        Ok(())
    }

    /// Replaces a file durably; it is for our eyes only.
    fn replace(&self, path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
        fsx::replace(&self.disk, path, bytes, 0o600).map_err(|error| StoreError::disk(path, error))
    }

    fn base_dirs(&self) -> Result<(), StoreError> {
        let native = ["", "store", "store/meta", "store/checkpoints"].map(|dir| (self.root.join(dir), 0o755));
        let own = ["supervisor", "supervisor/seals", "supervisor/rendered"].map(|dir| (self.root.join(dir), 0o700));
        self.make_dirs(&native)?;
        self.make_dirs(&own)
    }

    fn read_text(&self, path: &Path) -> Result<Option<String>, String> {
        match self.disk.read(path, RECORD_LIMIT) {
            Ok(bytes) => String::from_utf8(bytes).map(Some).map_err(|_| "it is not UTF-8".to_owned()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.to_string()),
        }
    }

    fn read_record(&self, path: &Path) -> Record {
        let mut record = Record::Absent;
        for _ in 0..RECORD_READS {
            record = match self.disk.read(path, RECORD_LIMIT) {
                Ok(bytes) => String::from_utf8(bytes)
                    .map_or_else(|_| Record::Garbage("it is not UTF-8".to_owned()), Record::Text),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Record::Absent,
                Err(error) if error.kind() == io::ErrorKind::FileTooLarge => Record::Garbage(error.to_string()),
                Err(error) => Record::Unreadable(error.to_string()),
            };
            if !matches!(record, Record::Unreadable(_)) {
                break;
            }
        }
        record
    }
}

impl<D: Disk> Store for FsStore<D> {
    fn load(&mut self) -> Stored {
        let [local_state, assigned, last_known_good] = self.record_paths().map(|path| self.read_record(&path));
        let meta = |record: &Record| match record {
            Record::Text(text) => record::decode_meta(text),
            Record::Absent => Ok(None),
            Record::Garbage(why) | Record::Unreadable(why) => Err(why.clone()),
        };
        let stored = Stored {
            assigned: meta(&assigned),
            last_known_good: meta(&last_known_good),
            local_state: match &local_state {
                Record::Text(text) => LocalState::decode(text),
                Record::Absent => Ok(LocalState::default()),
                Record::Garbage(why) | Record::Unreadable(why) => Err(why.clone()),
            },
        };
        // What could not be read may be whole: it is replaced by a decision, not by our ignorance.
        let known = |record: Record, ignorance: String| match record {
            Record::Text(text) => Some(text),
            Record::Unreadable(_) => Some(ignorance),
            Record::Absent | Record::Garbage(_) => None,
        };
        self.written = [
            known(local_state, LocalState::default().encode()),
            known(assigned, String::new()),
            known(last_known_good, String::new()),
        ];
        stored
    }

    fn assume(&mut self, records: &Records) {
        self.written = texts(records).map(Some);
    }

    fn save(&mut self, source: &Source, payload: &Payload) -> Result<(), StoreError> {
        self.save_checkpoint(source, payload)
    }

    fn open(&mut self, source: &Source) -> Result<Checkpoint, RenderError> {
        self.open_checkpoint(source)
    }

    fn write_rendered(&mut self, source: &Source, text: &str) -> Result<String, StoreError> {
        self.checkpoint_dir(source)?; // its parts are safe as names
        let uid = self.root.join("supervisor/rendered").join(&source.uid);
        let dir = uid.join(&source.resource_version);
        let path = dir.join(&source.reference.kubelet_config_key);
        // A full or read-only disk must not keep out a configuration that is there already.
        if !self.disk.read(&path, 2 * yaml::MAX_BYTES as u64).is_ok_and(|bytes| bytes == text.as_bytes()) {
            self.base_dirs()?;
            self.make_dirs(&[(uid, 0o700), (dir, 0o700)])?;
            self.replace(&path, text.as_bytes())?;
        }
        Ok(path.display().to_string())
    }

    fn record(&mut self, records: &Records) -> Result<(), StoreError> {
        let texts = texts(records);
        let mut ready = false;
        for ((path, text), written) in self.record_paths().iter().zip(texts).zip(0_usize..) {
            if self.written.get(written).is_some_and(|known| known.as_ref() == Some(&text)) {
                continue;
            }
            if !ready {
                self.base_dirs()?;
                ready = true;
            }
            // After a failure the file may hold either text: it is written again next time.
            let result = self.replace(path, text.as_bytes());
            if let Some(known) = self.written.get_mut(written) {
                *known = result.is_ok().then_some(text);
            }
            result?;
        }
        Ok(())
    }

    fn swap_state_files(&mut self, files: &StateFiles) -> Result<(), StoreError> {
        self.swap(files)
    }

    fn append(&mut self, entry: &HistoryEntry) -> Result<u64, StoreError> {
        let dir = self.root.join("supervisor");
        if !self.history.is_ready() {
            self.make_dirs(&[(self.root.clone(), 0o755), (dir.clone(), 0o700)])?;
        }
        self.history.append(&self.disk, &dir, entry)
    }

    fn history(&mut self) -> Vec<HistoryEntry> {
        history::entries(&self.disk, &self.root.join("supervisor"))
    }

    fn reported(&mut self, number: u64) {
        self.history.reported(&self.disk, &self.root.join("supervisor"), number);
    }

    fn unreported(&mut self) -> Vec<HistoryEntry> {
        self.history.unreported(&self.disk, &self.root.join("supervisor"))
    }

    fn collect(&mut self, keep: &BTreeSet<Source>) -> Result<(), StoreError> {
        self.collect_unused(keep)
    }
}
