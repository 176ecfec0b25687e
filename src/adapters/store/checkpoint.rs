//! Checkpoints: the payload of one version of a ConfigMap, in native's layout, with checksums beside it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use kubelet_config::digest::hex;
use kubelet_config::reported;
use kubelet_config::source::{self, ConfigAnnotations, Payload, Source};
use kubelet_config::yaml;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::records::Content;
use super::{FsStore, READS, is_damage, unsafe_key};
use crate::adapters::fsx::Disk;
use crate::machine::model::RenderError;
use crate::ports::{Checkpoint, StoreError};

/// What is kept beside a checkpoint: sizes and hashes of its files, and the payload's merge mode.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointMetadata {
    /// SHA-256 by key.
    pub sha256: BTreeMap<String, String>,
    /// Keys of the ConfigMap's `binaryData`.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub binary_keys: BTreeSet<String>,
    /// What the ConfigMap's annotations ask for.
    #[serde(flatten)]
    pub annotations: ConfigAnnotations,
}

/// Why a checkpoint cannot be read.
enum Fault {
    /// It is not there, or is another.
    Damaged(String),
    /// The disk does not say.
    Disk(String),
}

impl Fault {
    fn read(path: &Path, error: &io::Error) -> Self {
        let why = format!("{}: {error}", path.display());
        if is_damage(error) { Self::Damaged(why) } else { Self::Disk(why) }
    }
}

impl<D: Disk> FsStore<D> {
    fn checkpoint_dir(&self, source: &Source) -> Result<PathBuf, StoreError> {
        let (uid, version) = (&source.uid, &source.resource_version);
        if !source::is_safe_component(uid) || !source::is_safe_component(version) {
            let why = "cannot be a directory name";
            return Err(StoreError::new(format!("uid {uid:?} or resourceVersion {version:?} {why}")));
        }
        Ok(self.root.join("store/checkpoints").join(uid).join(version))
    }

    fn checksum_path(&self, source: &Source) -> PathBuf {
        self.own("seals").join(&source.uid).join(format!("{}.json", source.resource_version))
    }

    fn seal(&self, source: &Source) -> Result<Option<String>, Fault> {
        let path = self.checksum_path(source);
        match self.content(&path) {
            Content::Text(text) => Ok(Some(text)),
            Content::Absent => Ok(None),
            Content::Garbage(why) => Err(Fault::Damaged(format!("{}: {why}", path.display()))),
            Content::Unreadable(why) => Err(Fault::Disk(format!("{}: {why}", path.display()))),
        }
    }

    /// Reads and verifies a checkpoint. One without a seal was written by native: it is taken as
    /// it is, and sealed when it is saved again.
    fn verified(&self, source: &Source) -> Result<Checkpoint, Fault> {
        let dir = self.checkpoint_dir(source).map_err(|error| Fault::Damaged(error.to_string()))?;
        let seal = match self.seal(source)? {
            Some(text) => Some(
                serde_json::from_str::<CheckpointMetadata>(&text)
                    .map_err(|error| Fault::Damaged(format!("its checksums are unreadable: {error}")))?,
            ),
            None => None,
        };
        let mut names = self.disk.list(&dir).map_err(|error| Fault::read(&dir, &error))?;
        names.retain(|name| source::is_safe_key(name));
        let mut files = BTreeMap::new();
        for name in names {
            let path = dir.join(&name);
            let bytes = self.disk.read(&path, yaml::MAX_BYTES as u64).map_err(|error| Fault::read(&path, &error))?;
            if let Some(seal) = &seal
                && seal.sha256.get(&name).is_some_and(|sum| *sum != hex(&Sha256::digest(&bytes)))
            {
                return Err(Fault::Damaged(format!("{}: the checksum is wrong", path.display())));
            }
            files.insert(name, String::from_utf8_lossy(&bytes).into_owned());
        }
        match &seal {
            Some(seal) => {
                if let Some(missing) = seal.sha256.keys().find(|key| !files.contains_key(*key)) {
                    return Err(Fault::Damaged(format!("{}: {missing} is missing", dir.display())));
                }
                files.retain(|name, _| seal.sha256.contains_key(name));
            }
            None if files.is_empty() => {
                return Err(Fault::Damaged(format!("{}: no checkpoint there", dir.display())));
            }
            None => {}
        }
        let CheckpointMetadata { binary_keys, annotations, .. } = seal.unwrap_or_default();
        Ok(Checkpoint { dir: dir.display().to_string(), files, binary_keys, annotations })
    }

    /// Makes a checkpoint durable.
    ///
    /// # Errors
    /// Why it is not there.
    pub fn save(&mut self, source: &Source, payload: &Payload) -> Result<(), StoreError> {
        let saved = self.save_checkpoint(source, payload);
        self.checked(saved)
    }

    fn save_checkpoint(&mut self, source: &Source, payload: &Payload) -> Result<(), StoreError> {
        if let Some(key) = payload.data.keys().find(|key| !source::is_safe_key(key)) {
            return Err(unsafe_key(&reported::text(key)));
        }
        let seal = CheckpointMetadata {
            sha256: payload
                .data
                .iter()
                .map(|(key, text)| (key.clone(), hex(&Sha256::digest(text.as_bytes()))))
                .collect(),
            binary_keys: payload.binary_keys.clone(),
            annotations: payload.annotations.clone(),
        };
        let checksum_path = self.checksum_path(source);
        let seal_text = serde_json::to_string(&seal).map_err(|error| StoreError::new(error.to_string()))?;
        let sealed = self.read_text(&checksum_path).is_ok_and(|text| text.as_ref() == Some(&seal_text));
        let intact = self.verified(source).is_ok_and(|found| found.files == payload.data);
        if sealed && intact {
            return Ok(());
        }
        let dir = self.checkpoint_dir(source)?;
        let uid_dir = dir.parent().unwrap_or(&dir).to_owned();
        let seal_dir = checksum_path.parent().unwrap_or(&checksum_path).to_owned();
        self.base_dirs()?;
        self.make_dirs(&[(uid_dir.clone(), 0o755), (seal_dir, 0o700)])?;
        if intact {
            // Written by native, or by us before a crash or a failed sync: it lacks its seal, and
            // nobody knows whether it is durable.
            let files = payload.data.keys().map(|key| dir.join(key));
            for path in files.chain([dir.clone(), uid_dir]) {
                self.sync(&path)?;
            }
            return self.replace(&checksum_path, seal_text.as_bytes());
        }

        // The seal follows: until then the checkpoint is taken unsealed.
        let files = payload.data.iter().map(|(key, text)| (key.as_str(), text.as_str()));
        self.write_whole(&dir, &[], files, Some(&checksum_path))?;
        self.replace(&checksum_path, seal_text.as_bytes())
    }

    /// Reads and verifies a checkpoint.
    ///
    /// # Errors
    /// [`RenderError::Checkpoint`].
    pub fn open(&self, source: &Source) -> Result<Checkpoint, RenderError> {
        // A passing error must not cost a node its configuration.
        let mut checkpoint = self.verified(source);
        for _ in 1..READS {
            checkpoint = checkpoint.or_else(|_| self.verified(source));
        }
        checkpoint.map_err(|fault| match fault {
            Fault::Damaged(why) | Fault::Disk(why) => RenderError::Checkpoint(why),
        })
    }

    /// What is wrong with a checkpoint.
    ///
    /// # Errors
    /// Why the disk does not give it.
    pub fn checkpoint_damage(&self, source: &Source) -> Result<Option<String>, String> {
        match self.verified(source) {
            Ok(_) => Ok(None),
            Err(Fault::Damaged(what)) => Ok(Some(what)),
            Err(Fault::Disk(error)) => Err(error),
        }
    }

    /// What the annotations of a checkpoint's ConfigMap ask for, as far as that can be read.
    pub fn annotations(&self, source: &Source) -> ConfigAnnotations {
        let text = self.checkpoint_dir(source).ok().and_then(|_| self.read_text(&self.checksum_path(source)).ok()?);
        let seal = text.and_then(|text| serde_json::from_str::<CheckpointMetadata>(&text).ok());
        seal.map(|seal| seal.annotations).unwrap_or_default()
    }
}
