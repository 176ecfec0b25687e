//! The node's own files: the kubelet's binary, `--config`, `--config-dir`.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::policy::PolicyFile;
use crate::machine::model::KubeletId;
use crate::ports::{self, LocalError, LocalPolicy};
use kubelet_config::flags::KubeletArgs;
use kubelet_config::rendering::DropIn;
use kubelet_config::source::Merge;
use kubelet_config::yaml;

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
}

impl ports::Local for LocalFiles {
    fn config(&self) -> Result<Option<(String, String)>, LocalError> {
        let Some(path) = self.args.last("config").map(Path::new) else { return Ok(None) };
        let fail = |path: &Path, error: io::Error| LocalError::Disk { path: path.to_owned(), cause: error.into() };
        let path = std::path::absolute(path).map_err(|error| fail(path, error))?;
        let size = std::fs::metadata(&path).map_err(|error| fail(&path, error))?.len();
        if size > yaml::MAX_BYTES as u64 {
            return Err(LocalError::TooLarge { path, size });
        }
        let text = std::fs::read_to_string(&path).map_err(|error| fail(&path, error))?;
        let dir = path.parent().unwrap_or(Path::new("/")).display().to_string();
        Ok(Some((text, dir)))
    }

    fn drop_ins(&self) -> Vec<DropIn> {
        let mut files = Vec::new();
        if let Some(dir) = self.args.last("config-dir") {
            collect_drop_ins(Path::new(dir), &mut files, 0);
        }
        files.sort(); // lexical by full path, as filepath.WalkDir goes (server.go, v1.36)
        let read = |path: &PathBuf| {
            Some(DropIn { text: std::fs::read_to_string(path).ok()?, path: path.display().to_string() })
        };
        files.iter().filter_map(read).collect()
    }

    fn kubelet_id(&self) -> KubeletId {
        let Ok(meta) = std::fs::metadata(&self.program) else { return KubeletId::default() };
        KubeletId(format!(
            "{}:{}:{}:{}:{}",
            self.program.display(),
            meta.ino(),
            meta.size(),
            meta.mtime(),
            meta.mtime_nsec()
        ))
    }

    fn default_merge(&self) -> Merge {
        self.merge
    }

    fn policy(&self) -> Result<LocalPolicy, String> {
        self.policy.read()
    }
}

fn collect_drop_ins(dir: &Path, files: &mut Vec<PathBuf>, depth: u32) {
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    for entry in entries.filter_map(Result::ok) {
        let path = entry.path();
        match entry.file_type() {
            Ok(kind) if kind.is_dir() && depth < 16 => collect_drop_ins(&path, files, depth + 1),
            Ok(_) if path.extension().is_some_and(|extension| extension == "conf") => files.push(path),
            _ => {}
        }
    }
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
