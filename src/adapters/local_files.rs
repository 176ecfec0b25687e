//! The local files: the kubelet's binary, `--config`, `--config-dir`.

use std::fs::OpenOptions;
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::fcntl::OFlag;

use super::file_watch::fingerprint;
use super::fsx::FileId;
use super::policy::PolicyFile;
use crate::os::{boot_time, ownership};

use crate::machine::model::KubeletId;
use crate::ports::{self, KubeletVersion, LocalError, LocalPolicy, Snapshot};
use kubelet_config::flags::KubeletArgs;
use kubelet_config::own_files::{DROP_IN_DEPTH, DropIn};
use kubelet_config::source::Merge;
use kubelet_config::yaml;

pub(crate) mod source;
mod writers;

/// Reads them when asked: kubeadm rewrites them under our feet.
#[derive(Clone, Debug)]
pub struct LocalFiles {
    /// Resolved path of the kubelet.
    pub program: PathBuf,
    /// Its own arguments.
    pub args: KubeletArgs,
    /// `--merge`.
    pub merge: Merge,
    /// The node's policy.
    pub policy: PolicyFile,
    /// `--follow-local`.
    pub followed: bool,
    /// What the kubelet says that it is.
    pub version: KubeletVersion,
}

impl LocalFiles {
    fn config_path(&self) -> Option<&Path> {
        self.args.last("config").map(Path::new)
    }

    /// In the kubelet's order.
    fn drop_in_paths(&self) -> Result<Vec<PathBuf>, LocalError> {
        let Some(dir) = self.args.last("config-dir").map(Path::new) else { return Ok(Vec::new()) };
        let mut files = Vec::new();
        let kind = std::fs::symlink_metadata(dir).map_err(|error| LocalError::disk(dir, error))?;
        collect_drop_ins(dir, kind.is_dir(), &mut files, 0)?;
        files.sort(); // name by name on the way, as filepath.WalkDir goes (server.go, v1.36)
        Ok(files)
    }
}

impl ports::Local for LocalFiles {
    fn boot_time(&self) -> Duration {
        boot_time()
    }

    fn config(&self) -> Result<Option<(String, String)>, LocalError> {
        let Some(path) = self.config_path() else { return Ok(None) };
        let path = std::path::absolute(path).map_err(|error| LocalError::disk(path, error))?;
        let text = read(&path)?;
        let dir = path.parent().unwrap_or(Path::new("/")).display().to_string();
        Ok(Some((text, dir)))
    }

    fn drop_ins(&self) -> Result<Vec<DropIn>, LocalError> {
        let files = self.drop_in_paths()?;
        files.iter().map(|path| Ok(DropIn::new(path.display().to_string(), read(path)?))).collect()
    }

    fn snapshot(&self) -> Result<Snapshot, LocalError> {
        if !self.followed {
            return Ok(Snapshot::default());
        }
        let mut files = self.drop_in_paths()?;
        files.extend(self.config_path().map(Path::to_owned));
        let dir = self.args.last("config-dir").map(PathBuf::from);
        for path in files.iter().chain(&dir) {
            ownership::check(path).map_err(|error| LocalError::Unsafe(error.to_string()))?;
        }
        let state = |path: &PathBuf| std::fs::metadata(path).map_err(|error| LocalError::disk(path, error));
        let states = files.iter().map(|path| Ok(fingerprint(&state(path)?))).collect::<Result<_, LocalError>>()?;
        match writers::written(&files) {
            Some(path) => Err(LocalError::Unfinished(format!("{} is being written", path.display()))),
            None => Ok(states),
        }
    }

    fn kubelet_id(&self) -> KubeletId {
        KubeletId(FileId::named(&self.program).unwrap_or_default())
    }

    fn kubelet_minor(&self) -> Option<u64> {
        let id = self.kubelet_id();
        if self.version.minor_of(&id).is_none()
            && let Some(text) = self.version.file().and_then(|file| read(file).ok())
        {
            self.version.learn(&id, &text);
        }
        self.version.minor_of(&id)
    }

    fn default_merge(&self) -> Merge {
        self.merge
    }

    fn policy(&self) -> Result<LocalPolicy, String> {
        self.policy.read()
    }
}

/// More drop-ins than this are not read.
const DROP_INS: usize = 1000;

/// Nothing but a regular file: a pipe would be waited for, and a device has no end.
fn read(path: &Path) -> Result<String, LocalError> {
    let fail = |error: io::Error| LocalError::disk(path, error);
    let file = OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path).map_err(fail)?;
    let meta = file.metadata().map_err(fail)?;
    if !meta.is_file() {
        return Err(LocalError::disk(path, "this is no regular file"));
    }
    if meta.len() > yaml::MAX_BYTES as u64 {
        return Err(LocalError::disk(path, format_args!("{} bytes are not a kubelet's configuration", meta.len())));
    }
    let mut text = String::new();
    file.take(yaml::MAX_BYTES as u64).read_to_string(&mut text).map_err(fail)?;
    Ok(text)
}

/// As filepath.WalkDir goes: no link is entered, that of the directory itself neither; and any name that ends so counts.
fn collect_drop_ins(path: &Path, is_dir: bool, files: &mut Vec<PathBuf>, depth: u32) -> Result<(), LocalError> {
    if !is_dir {
        if path.file_name().is_some_and(|name| name.as_bytes().ends_with(b".conf")) {
            files.push(path.to_owned());
        }
        return Ok(());
    }
    if depth > DROP_IN_DEPTH || files.len() > DROP_INS {
        let limits =
            format_args!("more than {DROP_INS} drop-ins, or than {DROP_IN_DEPTH} directories one in the other");
        return Err(LocalError::disk(path, limits));
    }
    for entry in std::fs::read_dir(path).map_err(|error| LocalError::disk(path, error))? {
        let entry = entry.map_err(|error| LocalError::disk(path, error))?;
        let kind = entry.file_type().map_err(|error| LocalError::disk(&entry.path(), error))?;
        collect_drop_ins(&entry.path(), kind.is_dir(), files, depth + 1)?;
    }
    Ok(())
}

/// Finds a program as the shell would.
///
/// # Errors
/// A message that says what is wrong with it.
pub fn resolve_program(name: &str) -> Result<PathBuf, String> {
    let candidates: Vec<PathBuf> = if name.contains('/') {
        vec![PathBuf::from(name)]
    } else {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).map(|dir| dir.join(name)).collect()
    };
    let mut refused = None;
    for candidate in candidates {
        match std::fs::metadata(&candidate) {
            Ok(meta) if meta.is_file() && meta.mode() & 0o111 != 0 => {
                return std::path::absolute(&candidate).map_err(|error| format!("{}: {error}", candidate.display()));
            }
            Ok(_) => refused = Some(format!("{} is not an executable file", candidate.display())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => refused = Some(format!("{}: {error}", candidate.display())),
        }
    }
    let hint = if name.contains('/') { "there is no such file" } else { "it is not on PATH; give its full path" };
    Err(refused.unwrap_or_else(|| format!("{name}: {hint}")))
}
