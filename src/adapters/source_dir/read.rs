//! What the directory holds, read so that nothing half-done is taken for whole.
//!
//! All of this may block (a directory can lie on a network), and runs on the blocking pool.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::Arc;

use nix::fcntl::OFlag;

use crate::adapters::ownership;
use kubelet_config::source::{ConfigAnnotations, Payload};
use kubelet_config::source_dir::{self, Entry, SIZE_LIMIT};

/// The outcome of a reading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DirContent {
    /// There is no directory (yet).
    Missing(String),
    /// A directory without any visible file.
    Empty,
    /// A payload.
    Payload(Arc<Payload>),
    /// It is there and cannot be taken.
    Unusable(String),
    /// Others than root can change what it says. Whether that was mended is not reported by inotify.
    Unsafe(String),
    /// It changes while it is read: read again.
    Changing(String),
    /// Somebody has this file open for writing; inotify reports the end.
    BeingWritten(String),
    /// Files, but none that counts: nothing that anybody would call a decision.
    Undecided(String),
}

/// Device, inode, size and times: differs when a file or directory has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fingerprint {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl From<&Metadata> for Fingerprint {
    fn from(meta: &Metadata) -> Self {
        Self {
            device: meta.dev(),
            inode: meta.ino(),
            size: meta.size(),
            modified: (meta.mtime(), meta.mtime_nsec()),
            changed: (meta.ctime(), meta.ctime_nsec()),
        }
    }
}

/// The directory at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Listing {
    /// Itself: a file that came or went, or a link that was swapped, changes its times.
    own: Fingerprint,
    /// Keys and annotations, links followed.
    files: BTreeMap<String, Fingerprint>,
    /// Visible names that do not count.
    passed: Vec<String>,
}

/// Device and inode, to see whether another directory is there now; zeros stand for none.
pub(crate) type DirId = (u64, u64);

/// Of what is there now.
pub(crate) fn dir_id(dir: &Path) -> DirId {
    std::fs::metadata(dir).map(|meta| (meta.dev(), meta.ino())).unwrap_or_default()
}

/// Reads the directory.
pub(crate) fn read(dir: &Path) -> DirContent {
    let listing = match list(dir) {
        Ok(listing) => listing,
        Err(seen) => return seen,
    };
    if !listing.files.keys().any(|name| source_dir::entry(name) == Entry::Key) {
        return match listing.passed.first() {
            None => DirContent::Empty,
            Some(first) => {
                DirContent::Undecided(format!("{}: {first:?} is no key, and there is no other file", dir.display()))
            }
        };
    }
    let total: u64 = listing.files.values().fold(0, |sum, fingerprint| sum.saturating_add(fingerprint.size));
    if total > SIZE_LIMIT {
        return DirContent::Unusable(format!(
            "{}: its files have {total} bytes, {SIZE_LIMIT} are allowed, as in a ConfigMap",
            dir.display()
        ));
    }
    let mut data = BTreeMap::new();
    let mut annotations = ConfigAnnotations::default();
    for (name, fingerprint) in &listing.files {
        let text = match text(dir, name, *fingerprint) {
            Ok(text) => text,
            Err(seen) => return seen,
        };
        let annotation = || Some(text.trim().to_owned());
        match name.as_str() {
            ".merge" => annotations.merge = annotation(),
            ".acknowledge" => annotations.acknowledge = annotation(),
            ".confirm-within" => annotations.confirm_within = annotation(),
            ".courtesy" => annotations.courtesy = annotation(),
            _ => drop(data.insert(name.clone(), text)),
        }
    }
    match list(dir) {
        Ok(after) if after == listing => DirContent::Payload(Arc::new(source_dir::payload(data, annotations))),
        Ok(_) => DirContent::Changing(format!("{} changes while it is read", dir.display())),
        Err(seen) => seen,
    }
}

fn list(dir: &Path) -> Result<Listing, DirContent> {
    let failure = |error: &io::Error| match error.kind() {
        ErrorKind::NotFound => DirContent::Missing(format!("{}: {error}", dir.display())),
        _ => DirContent::Unusable(format!("{}: {error}", dir.display())),
    };
    let own = std::fs::metadata(dir).map_err(|error| failure(&error))?;
    ownership::check(dir).map_err(|error| DirContent::Unsafe(error.to_string()))?;
    let mut listing = Listing { own: Fingerprint::from(&own), files: BTreeMap::new(), passed: Vec::new() };
    for entry in std::fs::read_dir(dir).map_err(|error| failure(&error))? {
        let name = entry.map_err(|error| failure(&error))?.file_name();
        add(&mut listing, dir, &name)?;
    }
    listing.passed.sort();
    Ok(listing)
}

fn add(listing: &mut Listing, dir: &Path, name: &OsStr) -> Result<(), DirContent> {
    let kind = name.to_str().map_or(Entry::NoKey, source_dir::entry);
    if kind == Entry::Hidden {
        return Ok(());
    }
    let path = dir.join(name);
    let shown = name.to_string_lossy().into_owned();
    match std::fs::metadata(&path) {
        Ok(meta) if meta.is_dir() => {}
        Ok(meta) if meta.is_file() && kind != Entry::NoKey => {
            ownership::check(&path).map_err(|error| DirContent::Unsafe(error.to_string()))?;
            listing.files.insert(shown, Fingerprint::from(&meta));
        }
        Ok(_) => listing.passed.push(shown),
        Err(_) if kind == Entry::NoKey => listing.passed.push(shown),
        Err(error) if error.kind() == ErrorKind::NotFound && path.is_symlink() => {
            return Err(DirContent::Unusable(format!("{}: the link leads nowhere", path.display())));
        }
        // It was there a moment ago.
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Err(DirContent::Changing(format!("{} has just gone", path.display())));
        }
        Err(error) => return Err(DirContent::Unusable(format!("{}: {error}", path.display()))),
    }
    Ok(())
}

/// The text of the very file that was listed.
fn text(dir: &Path, name: &str, listed: Fingerprint) -> Result<String, DirContent> {
    let path = dir.join(name);
    let unusable = |error: io::Error| match error.kind() {
        ErrorKind::NotFound => DirContent::Changing(format!("{} has just gone", path.display())),
        _ => DirContent::Unusable(format!("{}: {error}", path.display())),
    };
    let fingerprint = |file: &File| file.metadata().map(|meta| Fingerprint::from(&meta));
    // Not to hang on a pipe that has taken the file's place.
    let flags = (OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC).bits();
    let mut file = OpenOptions::new().read(true).custom_flags(flags).open(&path).map_err(unusable)?;
    if fingerprint(&file).map_err(unusable)? != listed {
        return Err(DirContent::Changing(format!("{} has just changed", path.display())));
    }
    let mut bytes = Vec::new();
    (&mut file).take(SIZE_LIMIT + 1).read_to_end(&mut bytes).map_err(unusable)?;
    if fingerprint(&file).map_err(unusable)? != listed {
        return Err(DirContent::Changing(format!("{} has just changed", path.display())));
    }
    String::from_utf8(bytes).map_err(|_| DirContent::Unusable(format!("{}: it is not UTF-8", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    fn dir(files: &[(&str, &str)]) -> tempfile::TempDir {
        nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o022));
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(dir.path().join(name), text).unwrap();
        }
        dir
    }

    fn payload(dir: &Path) -> Arc<Payload> {
        match read(dir) {
            DirContent::Payload(payload) => payload,
            other => panic!("{other:?}"),
        }
    }

    fn keys(dir: &Path) -> Vec<String> {
        payload(dir).data.keys().cloned().collect()
    }

    #[test]
    fn one_visible_file_is_one_key() {
        let dir = dir(&[
            ("kubelet", "a: 1\n"),
            ("ca.crt", "CA"),
            (".merge", "overlay\n"),
            (".confirm-within", " 5m \n"),
            (".courtesy", "1m"),
            (".hidden", "x"),
            ("kubelet~", "old"),
            ("kubelet.tmp", "new"),
            ("no key", "x"),
        ]);
        fs::create_dir(dir.path().join("subdirectory")).unwrap();
        fs::create_dir(dir.path().join("lost+found")).unwrap();
        let found = payload(dir.path());
        assert_eq!(found.data["kubelet"], "a: 1\n");
        assert_eq!(found.data.keys().collect::<Vec<_>>(), ["ca.crt", "kubelet"]);
        assert_eq!(found.annotations.merge.as_deref(), Some("overlay"));
        assert_eq!(found.annotations.confirm_within.as_deref(), Some("5m"));
        assert_eq!(found.annotations.courtesy.as_deref(), Some("1m"));
        assert_eq!(found.annotations.acknowledge, None);
    }

    #[test]
    fn the_same_content_is_the_same_version() {
        let (one, two) = (dir(&[("kubelet", "a")]), dir(&[("kubelet", "a"), (".other", "x")]));
        let version = |dir: &tempfile::TempDir| payload(dir.path()).resource_version.clone();
        assert_eq!(version(&one), version(&two));
        fs::write(one.path().join(".merge"), "overlay").unwrap();
        assert_ne!(version(&one), version(&two), "a wish is part of it");
    }

    #[test]
    fn nothing_there() {
        let dir = dir(&[]);
        assert_eq!(read(dir.path()), DirContent::Empty);
        fs::create_dir(dir.path().join("lost+found")).unwrap();
        fs::write(dir.path().join(".merge"), "overlay").unwrap();
        assert_eq!(read(dir.path()), DirContent::Empty, "a wish alone is nothing");
        assert!(matches!(read(&dir.path().join("no/such")), DirContent::Missing(_)));
        symlink("nowhere", dir.path().join("link")).unwrap();
        assert!(matches!(read(&dir.path().join("link")), DirContent::Missing(_)), "a link to what is not there yet");
    }

    #[test]
    fn what_is_no_decision() {
        for name in ["kubelet~", "kubelet.tmp", "#kubelet#", "my kubelet"] {
            assert!(matches!(read(dir(&[(name, "x")]).path()), DirContent::Undecided(_)), "{name}");
        }
        let pipe = dir(&[]);
        nix::unistd::mkfifo(&pipe.path().join("kubelet"), nix::sys::stat::Mode::S_IRUSR).unwrap();
        assert!(matches!(read(pipe.path()), DirContent::Undecided(_)), "a pipe is never opened");
    }

    #[test]
    fn what_cannot_be_taken() {
        let unusable = |dir: &Path| match read(dir) {
            DirContent::Unusable(why) => why,
            other => panic!("{other:?}"),
        };
        let file = dir(&[("kubelet", "x")]);
        assert!(unusable(&file.path().join("kubelet")).contains("kubelet"), "no directory");
        let big = dir(&[("kubelet", "x"), ("more", &"x".repeat(1 << 20))]);
        assert!(unusable(big.path()).contains("1048577 bytes, 1048576 are allowed"));
        fs::write(big.path().join("more"), "x".repeat((1 << 20) - 1)).unwrap();
        assert_eq!(keys(big.path()), ["kubelet", "more"]);
        let odd = dir(&[]);
        fs::write(odd.path().join("kubelet"), b"a: \xff").unwrap();
        assert!(unusable(odd.path()).ends_with("kubelet: it is not UTF-8"));
        let dangling = dir(&[("other", "x")]);
        symlink("nowhere", dangling.path().join("kubelet")).unwrap();
        assert!(unusable(dangling.path()).ends_with("kubelet: the link leads nowhere"));
    }

    /// As the kubelet's own AtomicWriter lays out a volume (pkg/volume/util/atomic_writer.go).
    #[test]
    fn a_projected_volume() {
        let dir = dir(&[]);
        let at = |name: &str| dir.path().join(name);
        for (version, text) in [("..one", "a: 1"), ("..two", "a: 2")] {
            fs::create_dir(at(version)).unwrap();
            fs::write(at(version).join("kubelet"), text).unwrap();
        }
        symlink("..one", at("..data")).unwrap();
        symlink("..data/kubelet", at("kubelet")).unwrap();
        let first = payload(dir.path());
        assert_eq!(first.data["kubelet"], "a: 1");
        symlink("..two", at("..data_tmp")).unwrap();
        fs::rename(at("..data_tmp"), at("..data")).unwrap();
        assert_eq!(payload(dir.path()).data["kubelet"], "a: 2");
        assert_ne!(payload(dir.path()).resource_version, first.resource_version);
    }

    #[test]
    fn another_file_than_the_listed_one_is_not_taken() {
        let dir = dir(&[("kubelet", "a: 1")]);
        let listed = list(dir.path()).unwrap().files["kubelet"];
        assert!(text(dir.path(), "kubelet", listed).is_ok());
        fs::write(dir.path().join("other"), "a: 2").unwrap();
        fs::rename(dir.path().join("other"), dir.path().join("kubelet")).unwrap();
        assert!(matches!(text(dir.path(), "kubelet", listed), Err(DirContent::Changing(_))));
        fs::remove_file(dir.path().join("kubelet")).unwrap();
        assert!(matches!(text(dir.path(), "kubelet", listed), Err(DirContent::Changing(_))));
    }
}
