//! Durable files. The only place that says fsync.
//!
//! Every step is a method of [`Disk`], so that tests can fail or cut the power at each.

use std::fmt;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use crate::os::ownership;

/// Single file operations, each a fault point.
pub trait Disk {
    /// Reads a file of at most `limit` bytes.
    ///
    /// # Errors
    /// As the system gives them; a larger file is `FileTooLarge`.
    fn read(&self, path: &Path, limit: u64) -> io::Result<Vec<u8>>;
    /// Creates or truncates a file and writes it, without syncing.
    ///
    /// # Errors
    /// As the system gives them.
    fn write(&self, path: &Path, bytes: &[u8], mode: u32) -> io::Result<()>;
    /// Writes at the end of a file, which is created if need be, without syncing. After a failure
    /// a part may be there.
    ///
    /// # Errors
    /// As the system gives them.
    fn append(&self, path: &Path, bytes: &[u8], mode: u32) -> io::Result<()>;
    /// Syncs a file or directory.
    ///
    /// # Errors
    /// As the system gives them.
    fn sync(&self, path: &Path) -> io::Result<()>;
    /// Renames within one directory tree.
    ///
    /// # Errors
    /// As the system gives them.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Creates a directory; one that is there is fine.
    ///
    /// # Errors
    /// As the system gives them.
    fn make_dir(&self, path: &Path, mode: u32) -> io::Result<()>;
    /// Names in a directory; none if it is not there.
    ///
    /// # Errors
    /// As the system gives them.
    fn list(&self, path: &Path) -> io::Result<Vec<String>>;
    /// Removes a file or a tree; nothing there is fine.
    ///
    /// # Errors
    /// As the system gives them.
    fn remove(&self, path: &Path) -> io::Result<()>;
}

/// The real thing. Below a directory that must be root's alone, what others can change there, or on the way there, is neither read
/// nor written. It is looked at each time, so that an administrator who mends it restarts nothing.
#[derive(Clone, Debug, Default)]
pub struct RealDisk {
    guarded: Option<PathBuf>,
}

impl RealDisk {
    /// `root` and all below it is guarded; what lies elsewhere is not.
    pub(crate) fn guarded(root: &Path) -> Self {
        Self { guarded: Some(root.to_owned()) }
    }

    /// The path, if what lies there may be read and written.
    fn at<'a>(&self, path: &'a Path) -> io::Result<&'a Path> {
        if self.guarded.as_ref().is_some_and(|root| path.starts_with(root)) {
            ownership::check(path).map_err(|error| io::Error::new(error.kind(), error))?;
        }
        Ok(path)
    }
}

impl Disk for RealDisk {
    fn read(&self, path: &Path, limit: u64) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        File::open(self.at(path)?)?.take(limit + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > limit {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("more than {limit} bytes")));
        }
        Ok(bytes)
    }

    fn write(&self, path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(self.at(path)?)?;
        file.write_all(bytes)
    }

    fn append(&self, path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
        // One write, unless the system takes less: then the next one says why.
        OpenOptions::new().append(true).create(true).mode(mode).open(self.at(path)?)?.write_all(bytes)
    }

    fn sync(&self, path: &Path) -> io::Result<()> {
        File::open(self.at(path)?)?.sync_all()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(self.at(from)?, self.at(to)?)
    }

    fn make_dir(&self, path: &Path, mode: u32) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(mode).create(self.at(path)?)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        let entries = match fs::read_dir(self.at(path)?) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        // Names that are not UTF-8 are not ours.
        Ok(entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.at(path.parent().unwrap_or(path))?; // what is taken away may be a stranger's
        let result = match fs::symlink_metadata(path) {
            Ok(meta) if meta.is_dir() => fs::remove_dir_all(path),
            Ok(_) => fs::remove_file(path),
            Err(error) => Err(error),
        };
        match result {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            result => result,
        }
    }
}

/// What tells a file from the next in its place, links followed. Without the device: its number may be another after a reboot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileId {
    inode: u64,
    size: u64,
    modified: (i64, i64),
}

impl FileId {
    /// None if there is no such file.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        let meta = fs::metadata(path).ok()?;
        Some(Self { inode: meta.ino(), size: meta.size(), modified: (meta.mtime(), meta.mtime_nsec()) })
    }

    /// With its path, as one text.
    pub(crate) fn named(path: &Path) -> Option<String> {
        Some(format!("{}:{}", path.display(), Self::of(path)?))
    }
}

impl fmt::Display for FileId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}:{}", self.inode, self.size, self.modified.0, self.modified.1)
    }
}

/// Replaces a file so that after a crash it holds the old bytes or the new ones; they are written beside it first.
///
/// # Errors
/// The failing step's, as the system gives it.
pub fn replace(disk: &impl Disk, path: &Path, temporary: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    // A crash up to the rename leaves a temporary file, which the next replace overwrites.
    let steps = || -> io::Result<()> {
        disk.write(temporary, bytes, mode)?;
        disk.sync(temporary)?;
        disk.rename(temporary, path)?;
        // Without this the rename may be lost by a power cut.
        disk.sync(path.parent().unwrap_or(path))
    };
    steps().inspect_err(|_| {
        let _ = disk.remove(temporary);
    })
}

/// The temporary name beside `path`, in native's style.
pub(crate) fn temporary_beside(path: &Path) -> std::path::PathBuf {
    let base = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!("tmp_{base}"))
}
