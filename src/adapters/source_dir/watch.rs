//! Changes of the directory: inotify on it and on whatever decides what its path means, and
//! the mount table.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use nix::sys::inotify::{AddWatchFlags, InotifyEvent, WatchDescriptor};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::adapters::inotify::{CONTENT, Inotify, events, register};
use kubelet_config::source_dir::{self, Entry};

/// Links that are followed in one path; the kernel follows as many (MAXSYMLINKS).
const LINKS: usize = 40;

/// What is asked of every directory. MODIFY and CREATE tell only that a file is being written; a change of owner or mode may
/// make a file readable.
const MASK: AddWatchFlags = CONTENT.union(AddWatchFlags::IN_ATTRIB);

/// A watched directory.
#[derive(Debug, Default)]
pub(crate) struct WatchedDir {
    path: PathBuf,
    /// The names that matter in it.
    names: BTreeSet<OsString>,
    /// It is the source directory: keys and annotations matter, by whatever name.
    is_source: bool,
}

/// The watched directories.
pub(crate) type WatchedDirs = HashMap<WatchDescriptor, WatchedDir>;

/// Files that somebody has begun to write: those known to be open for it, and those that have
/// only been created, which may be links.
pub(crate) type Writing = HashMap<(WatchDescriptor, OsString), bool>;

/// Why the directory is to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Something in it, or on the way to it, changed.
    Files,
    /// Something was mounted or unmounted, anywhere.
    Mounts,
    /// Nothing that matters.
    Nothing,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct DirWatcher {
    inotify: Option<AsyncFd<Arc<Inotify>>>,
    mounts: Option<AsyncFd<File>>,
    /// What is watched.
    pub(crate) dirs: WatchedDirs,
    /// What is being written.
    pub(crate) writing: Writing,
}

impl DirWatcher {
    /// Opens it; what cannot be had is left out.
    pub(crate) fn open() -> Self {
        let mounts = File::open("/proc/self/mountinfo");
        let mounts = mounts.and_then(|file| register(file, Interest::PRIORITY)).ok();
        let mut watcher = Self { inotify: None, mounts, dirs: WatchedDirs::new(), writing: Writing::new() };
        watcher.reopen();
        watcher
    }

    /// Tries again to have an inotify instance, if there is none.
    pub(crate) fn reopen(&mut self) -> Option<io::Error> {
        if self.inotify.is_some() {
            return None;
        }
        match Inotify::open() {
            Ok(inotify) => self.inotify = Some(inotify),
            Err(error) => return Some(error),
        }
        None
    }

    /// For [`watch`], which may block.
    pub(crate) fn descriptor(&self) -> Option<Arc<Inotify>> {
        self.inotify.as_ref().map(|inotify| inotify.get_ref().clone())
    }

    /// Waits until something happens. Cancel-safe: what was not read stays in the kernel's queue.
    pub(crate) async fn change(&mut self) -> Change {
        let Self { inotify, mounts, dirs, writing } = self;
        tokio::select! {
            events = events(inotify.as_ref()) => {
                let mut matters = false;
                for event in events {
                    matters |= record_event(&event, dirs, writing);
                }
                if matters { Change::Files } else { Change::Nothing }
            }
            () = mount_events(mounts.as_ref()) => Change::Mounts,
        }
    }
}

async fn mount_events(mounts: Option<&AsyncFd<File>>) {
    let Some(mounts) = mounts else { return std::future::pending().await };
    match mounts.ready(Interest::PRIORITY).await {
        Ok(mut ready) => ready.clear_ready(),
        Err(_) => std::future::pending().await,
    }
}

/// Takes an event in; true if the directory is to be read.
pub(super) fn record_event(event: &InotifyEvent, dirs: &mut WatchedDirs, writing: &mut Writing) -> bool {
    let is = |flags: AddWatchFlags| event.mask.intersects(flags);
    if is(AddWatchFlags::IN_Q_OVERFLOW) {
        // Whatever was open may be closed by now; the reader sees for itself whether it changes.
        writing.clear();
        return true;
    }
    let Some(watched) = dirs.get(&event.wd) else { return false };
    if is(AddWatchFlags::IN_IGNORED) {
        dirs.remove(&event.wd);
        return true;
    }
    let Some(name) = &event.name else { return !is(AddWatchFlags::IN_MODIFY) };
    if !watched.concerns(name) {
        return false;
    }
    let file = (event.wd, name.clone());
    let counts = !watched.is_source || name.to_str().is_some_and(|name| source_dir::entry(name) != Entry::NoKey);
    if is(AddWatchFlags::IN_MODIFY) {
        if counts {
            writing.insert(file, true);
        }
        return false;
    }
    if is(AddWatchFlags::IN_CREATE) {
        if counts && !is(AddWatchFlags::IN_ISDIR) {
            writing.entry(file).or_insert(false);
        }
    } else if !is(AddWatchFlags::IN_ATTRIB) {
        writing.remove(&file);
    }
    true
}

impl WatchedDir {
    fn concerns(&self, name: &OsStr) -> bool {
        let counts = |name: &str| matches!(source_dir::entry(name), Entry::Key | Entry::Annotation | Entry::NoKey);
        self.names.contains(name) || (self.is_source && name.to_str().is_none_or(counts))
    }
}

/// A file that somebody is writing, if there is one. A file that was only created is
/// being written unless it is a link, or gone.
pub(crate) fn being_written(dirs: &WatchedDirs, writing: &mut Writing) -> Option<PathBuf> {
    let path = |(wd, name): &(WatchDescriptor, OsString)| dirs.get(wd).map(|watched| watched.path.join(name));
    writing.retain(|file, written| {
        let meta = path(file).and_then(|path| std::fs::symlink_metadata(path).ok());
        meta.is_some_and(|meta| meta.is_file() && (*written || meta.nlink() == 1))
    });
    writing.keys().next().and_then(path)
}

/// Watches the directory, all that decides what its path means, and what the links in it lead to.
/// Watches come before readings, so that nothing is missed in between.
pub(crate) fn watch(descriptor: &Inotify, dir: &Path, before: &WatchedDirs) -> io::Result<WatchedDirs> {
    let mut dirs = WatchedDirs::new();
    let Some(source) = follow(descriptor, dir, &mut dirs)? else {
        return Ok(drop_others(descriptor, before, dirs));
    };
    let watched = watch_dir(descriptor, &source, &mut dirs)?;
    if let Some(watched) = watched {
        watched.is_source = true;
        for entry in std::fs::read_dir(&source).into_iter().flatten().filter_map(Result::ok) {
            let counts = entry
                .file_name()
                .to_str()
                .is_some_and(|name| matches!(source_dir::entry(name), Entry::Key | Entry::Annotation));
            if counts && entry.file_type().is_ok_and(|kind| kind.is_symlink()) {
                follow(descriptor, &entry.path(), &mut dirs)?;
            }
        }
    }
    Ok(drop_others(descriptor, before, dirs))
}

fn drop_others(descriptor: &Inotify, before: &WatchedDirs, dirs: WatchedDirs) -> WatchedDirs {
    let now: HashSet<WatchDescriptor> = dirs.keys().copied().collect();
    for gone in before.keys().filter(|wd| !now.contains(wd)) {
        descriptor.forget(*gone);
    }
    dirs
}

/// Watches one directory; `None` if there is none.
fn watch_dir<'a>(
    descriptor: &Inotify,
    path: &Path,
    dirs: &'a mut WatchedDirs,
) -> io::Result<Option<&'a mut WatchedDir>> {
    let Some(wd) = descriptor.watch(path, MASK)? else { return Ok(None) };
    Ok(Some(dirs.entry(wd).or_insert_with(|| WatchedDir { path: path.to_owned(), ..WatchedDir::default() })))
}

/// Watches each directory on the way of `path`, links resolved one by one; gives where it leads,
/// if it leads to a directory.
fn follow(descriptor: &Inotify, path: &Path, dirs: &mut WatchedDirs) -> io::Result<Option<PathBuf>> {
    let names = |path: &Path| {
        let parts = path.components().filter(|part| matches!(part, Component::Normal(_) | Component::ParentDir));
        parts.map(|part| part.as_os_str().to_owned()).collect::<Vec<_>>()
    };
    let mut at = PathBuf::from("/");
    let mut rest: VecDeque<OsString> = names(path).into();
    let mut links = 0;
    while let Some(name) = rest.pop_front() {
        if name == ".." {
            at.pop();
            continue;
        }
        let Some(watched) = watch_dir(descriptor, &at, dirs)? else { return Ok(None) };
        watched.names.insert(name.clone());
        let next = at.join(&name);
        if let Ok(target) = std::fs::read_link(&next) {
            links += 1;
            if links > LINKS {
                return Ok(None);
            }
            if target.is_absolute() {
                at = PathBuf::from("/");
            }
            for name in names(&target).into_iter().rev() {
                rest.push_front(name);
            }
        } else if next.is_dir() {
            at = next;
        } else {
            return Ok(None);
        }
    }
    Ok(Some(at))
}
