//! One supervisor per directory.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read as _, Seek as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// What came of the attempt to lock.
#[derive(Debug)]
pub(crate) enum Lock {
    /// Ours while this lives.
    Held(File),
    /// Another supervisor has it; what its pid file says.
    Taken(String),
    /// The lock file cannot be made (read-only disk); the reason. Not a ground to leave the node
    /// without a kubelet.
    Unavailable(String),
}

/// Takes `supervisor/lock` below `root`.
pub(crate) fn take(root: &Path) -> Lock {
    let path = root.join("supervisor/lock");
    let open = || -> std::io::Result<File> {
        if let Some(dir) = path.parent() {
            std::fs::create_dir_all(root)?;
            match std::os::unix::fs::DirBuilderExt::mode(&mut std::fs::DirBuilder::new(), 0o700).create(dir) {
                Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
        }
        OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path)
    };
    let mut file = match open() {
        Ok(file) => file,
        Err(error) => return Lock::Unavailable(format!("{}: {error}", path.display())),
    };
    match file.try_lock() {
        Ok(()) => {
            let mut note = || -> std::io::Result<()> {
                file.set_len(0)?;
                file.rewind()?;
                writeln!(file, "{}", std::process::id())
            };
            if let Err(error) = note() {
                tracing::debug!("{}: {error}", path.display());
            }
            Lock::Held(file)
        }
        Err(TryLockError::WouldBlock) => {
            let mut pid = String::new();
            let _ = file.take(32).read_to_string(&mut pid);
            Lock::Taken(pid.trim().to_owned())
        }
        Err(TryLockError::Error(error)) => Lock::Unavailable(format!("{}: {error}", path.display())),
    }
}
