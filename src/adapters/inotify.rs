//! inotify, as a stream of events.

use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::path::Path;
use std::sync::Arc;

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, InotifyEvent, WatchDescriptor};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// What changes in a directory, and the directory itself. Reading changes nothing, so it is not asked for.
pub(crate) const CONTENT: AddWatchFlags = AddWatchFlags::IN_CLOSE_WRITE
    .union(AddWatchFlags::IN_MODIFY)
    .union(AddWatchFlags::IN_CREATE)
    .union(AddWatchFlags::IN_DELETE)
    .union(AddWatchFlags::IN_MOVED_TO)
    .union(AddWatchFlags::IN_MOVED_FROM)
    .union(AddWatchFlags::IN_DELETE_SELF)
    .union(AddWatchFlags::IN_MOVE_SELF)
    .union(AddWatchFlags::IN_ONLYDIR);

/// The same, as far as a file is whole then: not while it is being written.
pub(crate) const WHOLE: AddWatchFlags = CONTENT.difference(AddWatchFlags::IN_MODIFY);

/// An instance of the kernel's.
pub(crate) type Inotify = nix::sys::inotify::Inotify;

/// Opens one.
pub(crate) fn open() -> io::Result<AsyncFd<Raw<Arc<Inotify>>>> {
    register(Arc::new(Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?))
}

/// Watches a directory; `None` if there is none. It may block, where the disk does.
pub(crate) fn watch(inotify: &Inotify, dir: &Path, mask: AddWatchFlags) -> io::Result<Option<WatchDescriptor>> {
    match inotify.add_watch(dir, mask) {
        Ok(wd) => Ok(Some(wd)),
        Err(Errno::ENOENT | Errno::ENOTDIR | Errno::EACCES | Errno::ELOOP) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// What has a descriptor, but no raw one, which [`AsyncFd`] wants.
#[derive(Debug)]
pub(crate) struct Raw<T>(pub(crate) T);

impl<T: AsFd> AsRawFd for Raw<T> {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

/// For a file that tokio is to tell us is readable.
#[allow(
    deprecated,
    reason = "its successor is unsafe, which belongs elsewhere; both types own the descriptor that they give"
)]
pub(crate) fn register<T: AsFd>(descriptor: T) -> io::Result<AsyncFd<Raw<T>>> {
    AsyncFd::with_interest(Raw(descriptor), Interest::READABLE)
}

/// Waits for events. Cancel-safe: what was not read stays in the kernel's queue.
pub(crate) async fn events(inotify: &AsyncFd<Raw<Arc<Inotify>>>) -> Vec<InotifyEvent> {
    loop {
        let Ok(mut ready) = inotify.readable().await else { return std::future::pending().await };
        match inotify.get_ref().0.read_events() {
            Ok(events) => return events,
            Err(Errno::EAGAIN) => ready.clear_ready(),
            Err(Errno::EINTR) => {}
            Err(error) => {
                tracing::warn!("inotify tells of no more changes: {error}");
                return std::future::pending().await;
            }
        }
    }
}
