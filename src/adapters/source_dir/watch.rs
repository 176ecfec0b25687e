//! Who has touched the directory: inotify on it and on whatever decides what its path means, and
//! the mount table.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd, RawFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, InotifyEvent, WatchDescriptor};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use kubelet_config::source_dir::{self, Entry};

/// Links that are followed in one path; the kernel follows as many (MAXSYMLINKS).
const LINKS: usize = 40;

/// What is asked of every directory. MODIFY and CREATE tell only that a file is being written.
const MASK: AddWatchFlags = AddWatchFlags::IN_CLOSE_WRITE
    .union(AddWatchFlags::IN_MOVED_TO)
    .union(AddWatchFlags::IN_MOVED_FROM)
    .union(AddWatchFlags::IN_CREATE)
    .union(AddWatchFlags::IN_DELETE)
    .union(AddWatchFlags::IN_MODIFY)
    .union(AddWatchFlags::IN_ATTRIB)
    .union(AddWatchFlags::IN_DELETE_SELF)
    .union(AddWatchFlags::IN_MOVE_SELF)
    .union(AddWatchFlags::IN_ONLYDIR);

/// nix's has no raw descriptor, which [`AsyncFd`] wants.
#[derive(Debug)]
pub struct Descriptor(Inotify);

impl AsRawFd for Descriptor {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

/// A watched directory.
#[derive(Debug, Default)]
pub struct Place {
    path: PathBuf,
    /// The names that matter in it.
    names: BTreeSet<OsString>,
    /// It is the source directory: keys and annotations matter, by whatever name.
    is_source: bool,
}

/// The watched directories.
pub type Places = HashMap<WatchDescriptor, Place>;

/// Files that somebody has begun to write: those known to be open for it, and those that have
/// only been created, which may be links.
pub type Writing = HashMap<(WatchDescriptor, OsString), bool>;

/// Why the directory is to be looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touched {
    /// Something in it, or on the way to it, changed.
    Files,
    /// Something was mounted or unmounted, anywhere.
    Mounts,
    /// Nothing that matters.
    Nothing,
}

/// See the module.
#[derive(Debug)]
pub struct Eye {
    inotify: Option<AsyncFd<Arc<Descriptor>>>,
    mounts: Option<AsyncFd<File>>,
    /// What is watched.
    pub places: Places,
    /// What is being written.
    pub writing: Writing,
}

impl Eye {
    /// Opens it; what cannot be had is left out.
    pub fn open() -> Self {
        let mounts = File::open("/proc/self/mountinfo");
        let mounts = mounts.and_then(|file| register(file, Interest::PRIORITY)).ok();
        let mut eye = Self { inotify: None, mounts, places: Places::new(), writing: Writing::new() };
        eye.reopen();
        eye
    }

    /// Tries again to have an inotify instance, if there is none.
    pub fn reopen(&mut self) -> Option<io::Error> {
        if self.inotify.is_some() {
            return None;
        }
        let flags = InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC;
        let opened = Inotify::init(flags).map_err(io::Error::from);
        match opened.and_then(|inotify| register(Arc::new(Descriptor(inotify)), Interest::READABLE)) {
            Ok(inotify) => self.inotify = Some(inotify),
            Err(error) => return Some(error),
        }
        None
    }

    /// For [`watch`], which may block.
    pub fn descriptor(&self) -> Option<Arc<Descriptor>> {
        self.inotify.as_ref().map(|inotify| inotify.get_ref().clone())
    }

    /// Waits until something happens. Cancel-safe: what was not read stays in the kernel's queue.
    pub async fn touched(&mut self) -> Touched {
        let Self { inotify, mounts, places, writing } = self;
        tokio::select! {
            events = events(inotify.as_ref()) => {
                let mut matters = false;
                for event in events {
                    matters |= heed(&event, places, writing);
                }
                if matters { Touched::Files } else { Touched::Nothing }
            }
            () = mount_events(mounts.as_ref()) => Touched::Mounts,
        }
    }
}

#[allow(
    deprecated,
    reason = "its successor is unsafe, which belongs elsewhere; both types own the descriptor that they give"
)]
fn register<T: AsRawFd>(descriptor: T, interest: Interest) -> io::Result<AsyncFd<T>> {
    AsyncFd::with_interest(descriptor, interest)
}

async fn events(inotify: Option<&AsyncFd<Arc<Descriptor>>>) -> Vec<InotifyEvent> {
    let Some(inotify) = inotify else { return std::future::pending().await };
    loop {
        let Ok(mut ready) = inotify.readable().await else { return std::future::pending().await };
        match inotify.get_ref().0.read_events() {
            Ok(events) => return events,
            Err(Errno::EAGAIN) => ready.clear_ready(),
            Err(_) => {} // EINTR; nothing else is known to happen
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

/// Takes an event in; true if the directory is to be looked at.
pub(super) fn heed(event: &InotifyEvent, places: &mut Places, writing: &mut Writing) -> bool {
    let is = |flags: AddWatchFlags| event.mask.intersects(flags);
    if is(AddWatchFlags::IN_Q_OVERFLOW) {
        // Whatever was open may be closed by now; the reader sees for itself whether it changes.
        writing.clear();
        return true;
    }
    let Some(place) = places.get(&event.wd) else { return false };
    if is(AddWatchFlags::IN_IGNORED) {
        places.remove(&event.wd);
        return true;
    }
    let Some(name) = &event.name else { return !is(AddWatchFlags::IN_MODIFY) };
    if !place.cares_for(name) {
        return false;
    }
    let file = (event.wd, name.clone());
    let counts = !place.is_source || name.to_str().is_some_and(|name| source_dir::entry(name) != Entry::NoKey);
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

impl Place {
    fn cares_for(&self, name: &OsStr) -> bool {
        let counts = |name: &str| matches!(source_dir::entry(name), Entry::Key | Entry::Annotation | Entry::NoKey);
        self.names.contains(name) || (self.is_source && name.to_str().is_none_or(counts))
    }
}

/// A file that somebody is writing, if there is one. A file that was only created is
/// being written unless it is a link, or gone.
pub fn being_written(places: &Places, writing: &mut Writing) -> Option<PathBuf> {
    let path = |(wd, name): &(WatchDescriptor, OsString)| places.get(wd).map(|place| place.path.join(name));
    writing.retain(|file, written| {
        let meta = path(file).and_then(|path| std::fs::symlink_metadata(path).ok());
        meta.is_some_and(|meta| meta.is_file() && (*written || meta.nlink() == 1))
    });
    writing.keys().next().and_then(path)
}

/// Watches the directory, all that decides what its path means, and what the links in it lead to.
/// Watches come before looks, so that nothing is missed in between.
///
/// # Errors
/// Why not: the system's limits, mostly.
pub fn watch(descriptor: &Descriptor, dir: &Path, before: &Places) -> io::Result<Places> {
    let mut places = Places::new();
    let Some(source) = follow(descriptor, dir, &mut places)? else {
        return Ok(drop_others(descriptor, before, places));
    };
    let place = place(descriptor, &source, &mut places)?;
    if let Some(place) = place {
        place.is_source = true;
        for entry in std::fs::read_dir(&source).into_iter().flatten().filter_map(Result::ok) {
            let counts = entry
                .file_name()
                .to_str()
                .is_some_and(|name| matches!(source_dir::entry(name), Entry::Key | Entry::Annotation));
            if counts && entry.file_type().is_ok_and(|kind| kind.is_symlink()) {
                follow(descriptor, &entry.path(), &mut places)?;
            }
        }
    }
    Ok(drop_others(descriptor, before, places))
}

fn drop_others(descriptor: &Descriptor, before: &Places, places: Places) -> Places {
    let now: HashSet<WatchDescriptor> = places.keys().copied().collect();
    for gone in before.keys().filter(|wd| !now.contains(wd)) {
        let _ = descriptor.0.rm_watch(*gone); // it may have gone by itself
    }
    places
}

/// Watches one directory; `None` if there is none.
fn place<'a>(descriptor: &Descriptor, path: &Path, places: &'a mut Places) -> io::Result<Option<&'a mut Place>> {
    match descriptor.0.add_watch(path, MASK) {
        Ok(wd) => Ok(Some(places.entry(wd).or_insert_with(|| Place { path: path.to_owned(), ..Place::default() }))),
        Err(Errno::ENOENT | Errno::ENOTDIR | Errno::EACCES | Errno::ELOOP) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Watches each directory on the way of `path`, links resolved one by one; gives where it leads,
/// if it leads to a directory.
fn follow(descriptor: &Descriptor, path: &Path, places: &mut Places) -> io::Result<Option<PathBuf>> {
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
        let Some(place) = place(descriptor, &at, places)? else { return Ok(None) };
        place.names.insert(name.clone());
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
