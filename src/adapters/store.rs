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

mod history;
mod state_files;

use kubelet_config::source;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

use self::history::History;
use super::fsx::{self, Disk};
use crate::machine::model::{RenderError, StateFiles};
use crate::machine::record::{self, CheckpointMetadata, HistoryEntry, LocalState};
use crate::machine::{Records, Stored};
use crate::ports::{Checkpoint, Store, StoreError};
use kubelet_config::digest::hex;
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

    fn checkpoint_dir(&self, source: &Source) -> Result<PathBuf, StoreError> {
        let (uid, version) = (&source.uid, &source.resource_version);
        if !source::is_safe_component(uid) || !source::is_safe_component(version) {
            return Err(StoreError::Version { uid: uid.clone(), resource_version: version.clone() });
        }
        Ok(self.root.join("store/checkpoints").join(uid).join(version))
    }

    fn seal_path(&self, source: &Source) -> PathBuf {
        self.root.join("supervisor/seals").join(&source.uid).join(format!("{}.json", source.resource_version))
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

    /// Reads and verifies a checkpoint. One without a seal was written by native: it is taken as
    /// it is, and sealed when it is saved again.
    fn verified(&self, source: &Source) -> Result<Checkpoint, String> {
        let dir = self.checkpoint_dir(source).map_err(|error| error.to_string())?;
        let seal = match self.read_text(&self.seal_path(source))? {
            Some(text) => Some(
                serde_json::from_str::<CheckpointMetadata>(&text)
                    .map_err(|error| format!("its checksums are unreadable: {error}"))?,
            ),
            None => None,
        };
        let mut names = self.disk.list(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
        names.retain(|name| source::is_safe_key(name));
        let mut files = BTreeMap::new();
        for name in names {
            let path = dir.join(&name);
            let bytes = self
                .disk
                .read(&path, yaml::MAX_BYTES as u64)
                .map_err(|error| format!("{}: {error}", path.display()))?;
            if let Some(seal) = &seal
                && seal.sha256.get(&name).is_some_and(|sum| *sum != hex(&Sha256::digest(&bytes)))
            {
                return Err(format!("{}: the checksum is wrong", path.display()));
            }
            files.insert(name, String::from_utf8_lossy(&bytes).into_owned());
        }
        match &seal {
            Some(seal) => {
                if let Some(missing) = seal.sha256.keys().find(|key| !files.contains_key(*key)) {
                    return Err(format!("{}: {missing} is missing", dir.display()));
                }
                files.retain(|name, _| seal.sha256.contains_key(name));
            }
            None if files.is_empty() => return Err(format!("{}: no checkpoint there", dir.display())),
            None => {}
        }
        let annotations = seal.map(|seal| seal.annotations).unwrap_or_default();
        Ok(Checkpoint { dir: dir.display().to_string(), files, annotations })
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
        if let Some(key) = payload.data.keys().find(|key| !source::is_safe_key(key)) {
            return Err(StoreError::Key(key.clone()));
        }
        let seal = CheckpointMetadata {
            sha256: payload
                .data
                .iter()
                .map(|(key, text)| (key.clone(), hex(&Sha256::digest(text.as_bytes()))))
                .collect(),
            annotations: payload.annotations.clone(),
        };
        let seal_path = self.seal_path(source);
        let seal_text = serde_json::to_string(&seal).map_err(|error| StoreError::Json(error.into()))?;
        let sealed = self.read_text(&seal_path).is_ok_and(|text| text.as_ref() == Some(&seal_text));
        let intact = self.verified(source).is_ok_and(|found| found.files == payload.data);
        if sealed && intact {
            return Ok(());
        }
        let dir = self.checkpoint_dir(source)?;
        let uid_dir = dir.parent().unwrap_or(&dir).to_owned();
        let seal_dir = seal_path.parent().unwrap_or(&seal_path).to_owned();
        self.base_dirs()?;
        self.make_dirs(&[(uid_dir.clone(), 0o755), (seal_dir, 0o700)])?;
        if intact {
            // Written by native, or by us before a crash or a failed sync: it lacks its seal, and
            // nobody knows whether it is durable.
            let files = payload.data.keys().map(|key| dir.join(key));
            for path in files.chain([dir.clone(), uid_dir]) {
                self.disk.sync(&path).map_err(|error| StoreError::disk(&path, error))?;
            }
            return self.replace(&seal_path, seal_text.as_bytes());
        }

        // The checkpoint appears whole by one rename, as in native; a leftover of a crash before
        // that is removed first. The seal follows: until then the checkpoint is taken unsealed.
        let temporary = fsx::temporary_beside(&dir);
        let steps = || -> io::Result<()> {
            self.disk.remove(&temporary)?;
            self.disk.make_dir(&temporary, 0o700)?;
            for (key, text) in &payload.data {
                let path = temporary.join(key);
                self.disk.write(&path, text.as_bytes(), 0o600)?;
                self.disk.sync(&path)?;
            }
            self.disk.sync(&temporary)?;
            self.disk.remove(&seal_path)?;
            self.disk.remove(&dir)?; // damaged, or of a crash: the same version is written anew
            self.disk.rename(&temporary, &dir)?;
            self.disk.sync(&uid_dir)
        };
        steps().map_err(|error| {
            let _ = self.disk.remove(&temporary);
            StoreError::disk(&dir, error)
        })?;
        self.replace(&seal_path, seal_text.as_bytes())
    }

    fn open(&mut self, source: &Source) -> Result<Checkpoint, RenderError> {
        // A passing error must not cost a node its configuration.
        let mut checkpoint = self.verified(source);
        for _ in 1..RECORD_READS {
            checkpoint = checkpoint.or_else(|_| self.verified(source));
        }
        checkpoint.map_err(RenderError::Checkpoint)
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
        let kept = |uid: &str, version: Option<&str>| {
            keep.iter()
                .any(|source| source.uid == uid && version.is_none_or(|version| source.resource_version == version))
        };
        for (tree, suffix) in [("store/checkpoints", ""), ("supervisor/seals", ".json"), ("supervisor/rendered", "")] {
            let tree = self.root.join(tree);
            let list = |path: &Path| self.disk.list(path).map_err(|error| StoreError::disk(path, error));
            for uid in list(&tree)? {
                let dir = tree.join(&uid);
                let doomed: Vec<PathBuf> = if kept(&uid, None) {
                    let versions = list(&dir)?.into_iter();
                    versions
                        .filter(|name| !kept(&uid, Some(name.strip_suffix(suffix).unwrap_or(name))))
                        .map(|name| dir.join(name))
                        .collect()
                } else {
                    vec![dir]
                };
                for path in doomed {
                    self.disk.remove(&path).map_err(|error| StoreError::disk(&path, error))?;
                }
            }
        }
        Ok(())
    }
}
