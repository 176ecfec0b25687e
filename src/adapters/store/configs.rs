//! Configurations by their content: the very bytes that a kubelet was or will be given, and the files they name.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{FsStore, RECORD_LIMIT, again, checksum, unread, unsafe_key};
use crate::adapters::fsx::Disk;
use crate::machine::model::RenderError;
use crate::ports::StoreError;
use kubelet_config::digest::Digest;
use kubelet_config::flags::{ConfigDir, FlagOverrides};
use kubelet_config::own_files::DropIn;
use kubelet_config::policy::Signed;
use kubelet_config::rendering::Configuration;
use kubelet_config::source;
use kubelet_config::yaml;

/// What `--config` is given.
const KUBELET: &str = "kubelet.json";
/// What becomes of the unit's own flags, one a line; where nothing does, there is no such file.
const FLAGS: &str = "flags";
/// Where the drop-ins lie, in their order; where there are none, there is no such directory.
const DROP_INS: &str = "drop-ins";
/// Checksums.
const METADATA: &str = "config.json";
/// Directories in a content: the files that it names, and the drop-ins.
const TREES: [&str; 2] = ["files", DROP_INS];
/// Of a file here. A configuration is indented, so it may be longer than its source.
const LIMIT: u64 = 8 * yaml::MAX_BYTES as u64;

/// `config.json`.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Metadata {
    /// SHA-256 by path in the directory.
    sha256: BTreeMap<String, String>,
    /// Fields that a command-line flag overrides, with the flag, as it was when this was rendered last.
    #[serde(default)]
    shadowed: Vec<String>,
    /// The signature that was verified on what this was rendered from, the latest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    signed: Option<Signed>,
}

/// What of a content the kubelet's command line names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GivenFiles {
    /// What `--config` is given.
    pub config: String,
    /// What becomes of `--config-dir`.
    pub config_dir: ConfigDir,
}

/// A configuration that was read and verified.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredConfig {
    /// Where it lies.
    pub given: GivenFiles,
    /// What it says.
    pub value: Value,
    /// What becomes of the unit's own flags.
    pub overrides: FlagOverrides,
    /// The drop-ins that the kubelet merges over it.
    pub drop_ins: Vec<DropIn>,
    /// Fields that a command-line flag overrides, with the flag.
    pub shadowed: Vec<String>,
    /// The signature that was verified on what it was rendered from.
    pub signed: Option<Signed>,
}

impl<D: Disk> FsStore<D> {
    /// Where configurations lie by their digest.
    #[must_use]
    pub fn configs_dir(&self) -> PathBuf {
        self.own("configs")
    }

    fn config_dir(&self, digest: &Digest) -> Result<PathBuf, StoreError> {
        if !source::is_safe_component(&digest.0) {
            return Err(StoreError::new(format!("digest {:?} cannot be a directory name", digest.0)));
        }
        Ok(self.configs_dir().join(&digest.0))
    }

    /// Reads and verifies a configuration.
    ///
    /// # Errors
    /// [`RenderError::Checkpoint`] if it is missing or damaged, [`RenderError::Internal`] if the disk does not give it.
    pub fn open_config(&self, digest: &Digest) -> Result<StoredConfig, RenderError> {
        let dir = self.config_dir(digest).map_err(|error| RenderError::Checkpoint(error.to_string()))?;
        again(|| self.verified_config(&dir))
    }

    /// The same for a start: what is there may be in memory alone, of a write that failed, or of the supervisor before us.
    ///
    /// # Errors
    /// As [`Self::open_config`]; [`RenderError::Internal`] also for what a failed write of ours left, if it cannot be made
    /// durable. A disk that cannot sync keeps out nothing else.
    pub fn load_config(&mut self, digest: &Digest) -> Result<StoredConfig, RenderError> {
        let found = self.open_config(digest)?;
        let dir = self.config_dir(digest).map_err(|error| RenderError::Checkpoint(error.to_string()))?;
        match self.keep(&dir) {
            Err(error) if self.suspect.contains(&dir) => Err(RenderError::Internal(error.to_string())),
            _ => Ok(found),
        }
    }

    fn verified_config(&self, dir: &Path) -> Result<StoredConfig, RenderError> {
        let read = |name: &str, limit| {
            let path = dir.join(name);
            self.disk.read(&path, limit).map_err(|error| unread(&path, &error))
        };
        let damaged = |name: &str, why: &str| RenderError::Checkpoint(format!("{}: {why}", dir.join(name).display()));
        let metadata = serde_json::from_slice::<Metadata>(&read(METADATA, RECORD_LIMIT)?)
            .map_err(|error| damaged(METADATA, &error.to_string()))?;
        let (mut value, mut overrides, mut drop_ins) = (None, FlagOverrides::default(), Vec::new());
        for (name, sum) in &metadata.sha256 {
            let (tree, key) = name.split_once('/').unwrap_or(("", name));
            let ours = if tree.is_empty() { key == KUBELET || key == FLAGS } else { TREES.contains(&tree) };
            if !ours || !source::is_safe_key(key) {
                return Err(damaged(METADATA, "it names what is not ours"));
            }
            let bytes = read(name, LIMIT)?;
            if *sum != checksum(&bytes) {
                return Err(damaged(name, "the checksum is wrong"));
            }
            let text = || String::from_utf8_lossy(&bytes);
            if tree == DROP_INS {
                drop_ins.push(DropIn::new(dir.join(name).display().to_string(), text()));
            } else if name == FLAGS {
                overrides = FlagOverrides::parse(&text()).map_err(|why| damaged(name, &why))?;
            } else if name == KUBELET {
                value = Some(serde_json::from_slice(&bytes).map_err(|error| damaged(name, &error.to_string()))?);
            }
        }
        let value = value.ok_or_else(|| damaged(METADATA, "it does not name kubelet.json"))?;
        let given = given_files(dir, &drop_ins);
        let Metadata { shadowed, signed, .. } = metadata;
        Ok(StoredConfig { given, value, overrides, drop_ins, shadowed, signed })
    }

    /// Makes a configuration, its drop-ins and the files that it names durable, as this text; gives what the kubelet is to be
    /// given. What is there already stays as it is.
    ///
    /// # Errors
    /// Why it is not there.
    pub fn write_config(&mut self, content: &Configuration, text: &str) -> Result<GivenFiles, StoreError> {
        let written = self.write_or_keep(content, text);
        self.checked(written)
    }

    /// Notes the signature that was verified on what this content was rendered from. Without any the one that is noted stays: bytes
    /// that were signed once are no less so for a source that is not.
    ///
    /// # Errors
    /// Why it is not durable.
    pub fn sign_config(&mut self, digest: &Digest, signed: Option<&Signed>) -> Result<(), StoreError> {
        let Some(signed) = signed else { return Ok(()) };
        let path = self.config_dir(digest)?.join(METADATA);
        let text = self.read_text(&path).map_err(|why| StoreError::disk(&path, why))?.unwrap_or_default();
        let mut metadata = serde_json::from_str::<Metadata>(&text).map_err(|error| StoreError::disk(&path, error))?;
        if metadata.signed.as_ref() == Some(signed) {
            return Ok(());
        }
        metadata.signed = Some(signed.clone());
        let text = encoded(&metadata)?;
        self.replace(&path, text.as_bytes())
    }

    fn write_or_keep(&mut self, content: &Configuration, text: &str) -> Result<GivenFiles, StoreError> {
        let Configuration { digest, overrides, drop_ins, files, shadowed, .. } = content;
        let dir = self.config_dir(digest)?;
        if let Some(key) = files.keys().find(|key| !source::is_safe_key(key)) {
            return Err(unsafe_key(key));
        }
        let files = files.iter().map(|(key, content)| (format!("files/{key}"), content.as_str()));
        let flags = overrides.lines().join("\n");
        let flags_file = Some((FLAGS.to_owned(), flags.as_str())).filter(|_| !overrides.is_empty());
        let copies = drop_ins
            .iter()
            .zip(0..)
            .map(|(drop_in, number)| (format!("{DROP_INS}/{}", drop_in.stored_name(number)), drop_in.text.as_str()));
        let files: BTreeMap<String, &str> =
            files.chain(copies).chain([(KUBELET.to_owned(), text)]).chain(flags_file).collect();
        let sha256 = files.iter().map(|(name, content)| (name.clone(), checksum(content.as_bytes()))).collect();
        let mut metadata = Metadata { sha256, shadowed: shadowed.clone(), signed: None };
        let Ok(found) = self.open_config(digest) else {
            self.base_dirs()?;
            let is_in =
                |tree: &str| files.keys().any(|name| name.split_once('/').is_some_and(|(first, _)| first == tree));
            let trees: Vec<&str> = TREES.into_iter().filter(|tree| is_in(tree)).collect();
            let metadata = encoded(&metadata)?;
            let contents = files.iter().map(|(name, content)| (name.as_str(), *content));
            let written = self.write_whole(&dir, &trees, contents.chain([(METADATA, metadata.as_str())]));
            if written.is_err() {
                self.suspect.insert(dir.clone());
            }
            written?;
            self.suspect.remove(&dir);
            self.durable.insert(dir.clone());
            return Ok(given_files(&dir, drop_ins));
        };
        self.keep(&dir)?;
        if found.shadowed != *shadowed
            && let Ok(Some(there)) = self.read_text(&dir.join(METADATA))
            && let Ok(there) = serde_json::from_str::<Metadata>(&there)
        {
            // For people; a full disk must not keep out a configuration that is there.
            (metadata.sha256, metadata.signed) = (there.sha256, there.signed);
            let _ = self.replace(&dir.join(METADATA), encoded(&metadata)?.as_bytes());
        }
        Ok(given_files(&dir, drop_ins))
    }

    /// A crash or a failed sync may have left its name in memory alone.
    fn keep(&mut self, dir: &Path) -> Result<(), StoreError> {
        if !self.durable.contains(dir) {
            self.base_dirs()?;
            self.sync(&self.configs_dir())?;
            self.suspect.remove(dir);
            self.durable.insert(dir.to_owned());
        }
        Ok(())
    }
}

fn encoded(metadata: &Metadata) -> Result<String, StoreError> {
    serde_json::to_string(metadata).map_err(|error| StoreError::new(error.to_string()))
}

fn given_files(dir: &Path, drop_ins: &[DropIn]) -> GivenFiles {
    let config_dir = match drop_ins {
        [] => ConfigDir::Removed,
        _ => ConfigDir::Copied(dir.join(DROP_INS).display().to_string()),
    };
    GivenFiles { config: dir.join(KUBELET).display().to_string(), config_dir }
}
