//! The local files: the kubelet's binary, `--config`, `--config-dir`.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::policy::PolicyFile;
use crate::machine::model::KubeletId;
use crate::ports::{self, LocalError, LocalPolicy};
use kubelet_config::flags::KubeletArgs;
use kubelet_config::rendering::{DROP_IN_DEPTH, DropIn};
use kubelet_config::source::Merge;
use kubelet_config::yaml;

pub(crate) mod source;

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
        let path = std::path::absolute(path).map_err(|error| disk(path, error))?;
        let text = read(&path)?;
        let dir = path.parent().unwrap_or(Path::new("/")).display().to_string();
        Ok(Some((text, dir)))
    }

    fn drop_ins(&self) -> Result<Vec<DropIn>, LocalError> {
        let Some(dir) = self.args.last("config-dir").map(Path::new) else { return Ok(Vec::new()) };
        let mut files = Vec::new();
        collect_drop_ins(dir, &mut files, 0)?;
        if files.len() > DROP_INS {
            return Err(LocalError::TooMany { dir: dir.to_owned(), limit: DROP_INS });
        }
        files.sort(); // name by name on the way, as filepath.WalkDir goes (server.go, v1.36)
        files.iter().map(|path| Ok(DropIn { text: read(path)?, path: path.display().to_string() })).collect()
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

/// More drop-ins than this are not read.
const DROP_INS: usize = 1000;

fn disk(path: &Path, error: io::Error) -> LocalError {
    LocalError::Disk { path: path.to_owned(), cause: error.into() }
}

fn read(path: &Path) -> Result<String, LocalError> {
    let size = std::fs::metadata(path).map_err(|error| disk(path, error))?.len();
    if size > yaml::MAX_BYTES as u64 {
        return Err(LocalError::TooLarge { path: path.to_owned(), size });
    }
    std::fs::read_to_string(path).map_err(|error| disk(path, error))
}

/// A link is a file, wherever it leads, as to filepath.WalkDir.
fn collect_drop_ins(dir: &Path, files: &mut Vec<PathBuf>, depth: u32) -> Result<(), LocalError> {
    for entry in std::fs::read_dir(dir).map_err(|error| disk(dir, error))? {
        let entry = entry.map_err(|error| disk(dir, error))?;
        let path = entry.path();
        let is_dir = entry.file_type().map_err(|error| disk(&path, error))?.is_dir();
        if is_dir && depth < DROP_IN_DEPTH && files.len() <= DROP_INS {
            collect_drop_ins(&path, files, depth + 1)?;
        } else if !is_dir && path.extension().is_some_and(|extension| extension == "conf") {
            files.push(path);
        }
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
