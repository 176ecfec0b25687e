//! Checkpoints: the payload of one version of a ConfigMap, in native's layout, with checksums beside it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use kubelet_config::reported;
use kubelet_config::source::{self, ConfigAnnotations, Payload, Source};
use kubelet_config::yaml;
use serde::{Deserialize, Serialize};

use super::records::Content;
use super::{FsStore, again, checksum, unread, unsafe_key};
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

impl CheckpointMetadata {
    fn of(payload: &Payload) -> Self {
        Self {
            sha256: payload.data.iter().map(|(key, text)| (key.clone(), checksum(text.as_bytes()))).collect(),
            binary_keys: payload.binary_keys.clone(),
            annotations: payload.annotations.clone(),
        }
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

    /// Reads and verifies a checkpoint. One without a seal was written by native: it is taken as
    /// it is, and sealed when it is saved again.
    ///
    /// # Errors
    /// [`RenderError::Checkpoint`] if it is not there or is another, [`RenderError::Internal`] if the disk does not say.
    pub fn verify(&self, source: &Source) -> Result<Checkpoint, RenderError> {
        let damaged = |why: String| RenderError::Checkpoint(why);
        let dir = self.checkpoint_dir(source).map_err(|error| damaged(error.to_string()))?;
        let seal_path = self.checksum_path(source);
        let seal: Option<CheckpointMetadata> = match self.content(&seal_path) {
            Content::Text(text) => Some(
                serde_json::from_str(&text)
                    .map_err(|error| damaged(format!("its checksums are unreadable: {error}")))?,
            ),
            Content::Absent => None,
            Content::Garbage(why) => return Err(damaged(format!("{}: {why}", seal_path.display()))),
            Content::Unreadable(why) => return Err(RenderError::Internal(format!("{}: {why}", seal_path.display()))),
        };
        let mut names = self.disk.list(&dir).map_err(|error| unread(&dir, &error))?;
        names.retain(|name| source::is_safe_key(name));
        let mut files = BTreeMap::new();
        for name in names {
            let path = dir.join(&name);
            let bytes = self.disk.read(&path, yaml::MAX_BYTES as u64).map_err(|error| unread(&path, &error))?;
            if let Some(seal) = &seal
                && seal.sha256.get(&name).is_some_and(|sum| *sum != checksum(&bytes))
            {
                return Err(damaged(format!("{}: the checksum is wrong", path.display())));
            }
            files.insert(name, String::from_utf8_lossy(&bytes).into_owned());
        }
        match &seal {
            Some(seal) => {
                if let Some(missing) = seal.sha256.keys().find(|key| !files.contains_key(*key)) {
                    return Err(damaged(format!("{}: {missing} is missing", dir.display())));
                }
                files.retain(|name, _| seal.sha256.contains_key(name));
            }
            None if files.is_empty() => return Err(damaged(format!("{}: no checkpoint there", dir.display()))),
            None => {}
        }
        let CheckpointMetadata { binary_keys, annotations, .. } = seal.unwrap_or_default();
        Ok(Checkpoint { dir: dir.display().to_string(), files, binary_keys, annotations })
    }

    /// True if other bytes than these were saved under this version: its seal says so, or what native left without one. A seal
    /// that is damaged says nothing.
    ///
    /// # Errors
    /// The disk does not say.
    pub fn has_other_bytes(&self, source: &Source, payload: &Payload) -> Result<bool, StoreError> {
        self.checkpoint_dir(source)?;
        let seal_path = self.checksum_path(source);
        match self.content(&seal_path) {
            Content::Text(text) => {
                let found = serde_json::from_str::<CheckpointMetadata>(&text);
                Ok(found.is_ok_and(|found| found != CheckpointMetadata::of(payload)))
            }
            Content::Garbage(_) => Ok(false),
            Content::Unreadable(why) => Err(StoreError::disk(&seal_path, why)),
            Content::Absent => match again(|| self.verify(source)) {
                // Files may be missing, where a removal was cut off.
                Ok(found) => Ok(found.files.iter().any(|(key, text)| payload.data.get(key) != Some(text))),
                Err(RenderError::Internal(why)) => Err(StoreError::new(why)),
                Err(_) => Ok(false), // nothing is there
            },
        }
    }

    /// Makes a checkpoint durable, whatever is there in its place.
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
        let seal = CheckpointMetadata::of(payload);
        let checksum_path = self.checksum_path(source);
        let seal_text = serde_json::to_string(&seal).map_err(|error| StoreError::new(error.to_string()))?;
        let sealed = self.read_text(&checksum_path).is_ok_and(|text| text.as_ref() == Some(&seal_text));
        let intact = self.verify(source).is_ok_and(|found| found.files == payload.data);
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

        // A seal that is there stays until the new one is: without any, what a crash leaves would be taken as it is.
        let files = payload.data.iter().map(|(key, text)| (key.as_str(), text.as_str()));
        self.write_whole(&dir, &[], files)?;
        self.replace(&checksum_path, seal_text.as_bytes())
    }

    /// Reads and verifies a checkpoint.
    ///
    /// # Errors
    /// [`RenderError::Checkpoint`].
    pub fn open(&self, source: &Source) -> Result<Checkpoint, RenderError> {
        again(|| self.verify(source)).map_err(|fault| RenderError::Checkpoint(fault.to_string()))
    }

    /// What the annotations of a checkpoint's ConfigMap ask for, as far as that can be read.
    pub fn annotations(&self, source: &Source) -> ConfigAnnotations {
        let text = self.checkpoint_dir(source).ok().and_then(|_| self.read_text(&self.checksum_path(source)).ok()?);
        let seal = text.and_then(|text| serde_json::from_str::<CheckpointMetadata>(&text).ok());
        seal.map(|seal| seal.annotations).unwrap_or_default()
    }
}
