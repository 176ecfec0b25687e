//! Who but root can change what a path leads to: owner and mode of the file, and of every directory and link on the way.

use std::ffi::OsString;
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};

/// As many links as the kernel follows.
const LINKS: u32 = 40;

/// Why a path is not root's alone.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OwnershipError {
    /// This file, directory or link can be changed by others.
    #[error("{} can be changed by others than root: {why}", place.display())]
    Changeable {
        /// What is wrong with it.
        place: PathBuf,
        /// Its owner or mode, and what mends it.
        why: String,
    },
    /// Nobody could look.
    #[error("{}: {cause}", place.display())]
    Unreadable {
        /// Where.
        place: PathBuf,
        /// What the system says.
        #[source]
        cause: io::Error,
    },
}

impl OwnershipError {
    /// What the system would say.
    pub(crate) fn kind(&self) -> io::ErrorKind {
        match self {
            Self::Changeable { .. } => io::ErrorKind::PermissionDenied,
            Self::Unreadable { cause, .. } => cause.kind(),
        }
    }
}

/// Checks that nobody but root (and the user that this process runs as) can change what `path` leads to, or put something
/// else in its place. What does not exist yet is judged by the directory that it would be made in.
///
/// A sticky directory such as /tmp is passed through, if what comes next on the path is root's: there others may make new
/// entries, but neither remove nor rename those of root. It is refused where the path ends in it, and where what comes next is not
/// there: others may make it first.
///
/// # Errors
/// The first place on the way that others can change.
pub(crate) fn check(path: &Path) -> Result<(), OwnershipError> {
    let absolute = std::path::absolute(path).map_err(|cause| unreadable(path, cause))?;
    let mut rest: Vec<OsString> = Vec::new();
    push(&mut rest, &absolute);
    let mut at = PathBuf::from("/");
    let mut links = 0;
    judge(&at, &std::fs::symlink_metadata(&at).map_err(|cause| unreadable(&at, cause))?, rest.is_empty())?;
    while let Some(name) = rest.pop() {
        if name == ".." {
            at.pop(); // judged on the way here
            continue;
        }
        let next = at.join(&name);
        let meta = match std::fs::symlink_metadata(&next) {
            Ok(meta) => meta,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // Whoever may write there makes it first.
                let parent = std::fs::symlink_metadata(&at).map_err(|cause| unreadable(&at, cause))?;
                return judge(&at, &parent, true);
            }
            Err(cause) => return Err(unreadable(&next, cause)),
        };
        if !meta.is_symlink() {
            judge(&next, &meta, rest.is_empty())?;
            at = next;
            continue;
        }
        owner(&next, &meta)?;
        links += 1;
        if links > LINKS {
            return Err(unreadable(&next, nix::errno::Errno::ELOOP.into()));
        }
        let target = std::fs::read_link(&next).map_err(|cause| unreadable(&next, cause))?;
        if target.is_absolute() {
            at = PathBuf::from("/");
        }
        push(&mut rest, &target);
    }
    Ok(())
}

fn push(rest: &mut Vec<OsString>, path: &Path) {
    rest.extend(path.components().rev().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    }));
}

fn judge(place: &Path, meta: &Metadata, last: bool) -> Result<(), OwnershipError> {
    owner(place, meta)?;
    let mode = meta.mode() & 0o7777;
    let passed_through = meta.is_dir() && mode & 0o1000 != 0 && !last;
    if mode & 0o022 == 0 || passed_through {
        return Ok(());
    }
    let why = format!("its mode is {mode:04o}; chmod go-w {}", place.display());
    Err(OwnershipError::Changeable { place: place.to_owned(), why })
}

fn owner(place: &Path, meta: &Metadata) -> Result<(), OwnershipError> {
    let uid = meta.uid();
    if uid == 0 || uid == nix::unistd::geteuid().as_raw() {
        return Ok(());
    }
    let why = format!("it belongs to uid {uid}; chown root {}", place.display());
    Err(OwnershipError::Changeable { place: place.to_owned(), why })
}

fn unreadable(place: &Path, cause: io::Error) -> OwnershipError {
    OwnershipError::Unreadable { place: place.to_owned(), cause }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, chown, symlink};

    fn mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn place(path: &Path) -> Option<PathBuf> {
        match check(path) {
            Ok(()) => None,
            Err(OwnershipError::Changeable { place, .. }) => Some(place),
            Err(error) => panic!("{error}"),
        }
    }

    /// `root/a/b/file`, below a directory of this user's own.
    fn tree() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        fs::create_dir_all(root.join("a/b")).unwrap();
        fs::write(root.join("a/b/file"), "x").unwrap();
        for (name, bits) in [("a", 0o755), ("a/b", 0o755), ("a/b/file", 0o644)] {
            mode(&root.join(name), bits);
        }
        (dir, root)
    }

    #[test]
    fn every_directory_and_file_on_the_way_counts() {
        let (_dir, root) = tree();
        let file = root.join("a/b/file");
        assert_eq!(place(&file), None);
        assert_eq!(place(&root.join("a/b/file-to-be")), None);
        for (name, safe) in [("a", 0o755), ("a/b", 0o700), ("a/b/file", 0o600)] {
            for bad in [0o777, 0o775, 0o757] {
                mode(&root.join(name), bad);
                assert_eq!(place(&file), Some(root.join(name)), "{bad:o}");
                assert_eq!(place(&root.join("a/b/../b/./file")), Some(root.join(name)), "{bad:o}");
            }
            mode(&root.join(name), safe);
        }
    }

    #[test]
    fn a_sticky_directory_is_passed_through_and_not_ended_in() {
        let (_dir, root) = tree();
        mode(&root.join("a"), 0o1777);
        assert_eq!(place(&root.join("a/b/file")), None);
        assert_eq!(place(&root.join("a/not-yet")), Some(root.join("a")), "others may make it first");
        assert_eq!(place(&root.join("a/not-yet/below")), Some(root.join("a")));
        assert_eq!(place(&root.join("a/b/not-yet")), None);
        assert_eq!(place(&root.join("a")), Some(root.join("a")));
        if nix::unistd::geteuid().is_root() {
            chown(root.join("a/b"), Some(65534), None).unwrap();
            assert_eq!(place(&root.join("a/b/file")), Some(root.join("a/b")));
        }
    }

    #[test]
    fn links_are_followed_place_by_place() {
        let (_dir, root) = tree();
        fs::create_dir(root.join("open")).unwrap();
        mode(&root.join("open"), 0o777);
        symlink("../a", root.join("open/hop")).unwrap();
        symlink("open/hop/b", root.join("way")).unwrap();
        assert_eq!(place(&root.join("way/file")), Some(root.join("open")), "who turns the link turns the way");
        mode(&root.join("open"), 0o1777);
        assert_eq!(place(&root.join("way/file")), None);
        if nix::unistd::geteuid().is_root() {
            std::os::unix::fs::lchown(root.join("open/hop"), Some(65534), None).unwrap();
            assert_eq!(place(&root.join("way/file")), Some(root.join("open/hop")));
        }
        symlink("round", root.join("round")).unwrap();
        assert!(matches!(check(&root.join("round")), Err(OwnershipError::Unreadable { .. })));
        assert!(matches!(check(&root.join("a/b/file/x")), Err(OwnershipError::Unreadable { .. })), "a file on the way");
    }
}
