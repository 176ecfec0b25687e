//! What a standby waits for: a lock on a file in memory that nobody else has. The standby's standard input is the very open
//! file that holds it. So it does not fall when the supervisor dies: the standby holds it against itself. It falls only if the
//! supervisor says so, which it does once the kubelet before has ended.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt as _;
use std::time::Duration;

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::stat::{major, minor};

/// The kernel tells nobody when a lock comes to be waited for; its list is read as often as this, while a standby is on its way.
pub(crate) const POLL: Duration = Duration::from_millis(4);

/// A locked file in memory. Closing it does not unlock it while a standby has it as its standard input.
#[derive(Debug)]
pub(crate) struct StandbyLock(File);

impl StandbyLock {
    /// It is held from now on.
    pub(crate) fn take() -> io::Result<Self> {
        let file = File::from(memfd_create(c"standby-lock", MFdFlags::MFD_CLOEXEC)?);
        file.try_lock().map_err(io::Error::from)?;
        Ok(Self(file))
    }

    /// Whoever waits for it goes on.
    pub(crate) fn unlock(&self) -> io::Result<()> {
        self.0.unlock()
    }

    /// True if somebody waits for it, who can only be the standby.
    pub(crate) fn is_awaited(&self) -> bool {
        let Ok(meta) = self.0.metadata() else { return false };
        let locks = std::fs::read_to_string("/proc/locks").unwrap_or_default();
        is_awaited(&locks, meta.dev(), meta.ino())
    }
}

impl AsFd for StandbyLock {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Reads the kernel's list of locks (fs/locks.c, `lock_get_status`): who waits is listed below who holds, after an arrow.
fn is_awaited(locks: &str, device: u64, inode: u64) -> bool {
    let file = format!("{:02x}:{:02x}:{inode}", major(device), minor(device));
    locks.lines().any(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        words.get(1) == Some(&"->") && words.get(2) == Some(&"FLOCK") && words.get(6) == Some(&file.as_str())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_is_told_from_who_holds() {
        let locks = "1: FLOCK  ADVISORY  WRITE 1552 00:01:1046 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 9 fe:00:77 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 1603 fe:00:77 0 EOF\n\
                     3: POSIX  ADVISORY  READ 5 00:01:78 128 128\n\
                     3: -> POSIX  ADVISORY  WRITE 6 00:01:78 128 128\n";
        let device = |major, minor| nix::sys::stat::makedev(major, minor);
        assert!(is_awaited(locks, device(0xfe, 0), 77));
        assert!(!is_awaited(locks, device(0, 1), 1046), "it is held alone");
        assert!(!is_awaited(locks, device(0, 1), 77), "another device");
        assert!(!is_awaited(locks, device(0, 1), 78), "another kind of lock");
        assert!(!is_awaited("", device(0, 1), 1046));
    }

    #[test]
    fn the_lock_outlives_its_owner_in_whoever_has_it_as_standard_input() {
        let lock = StandbyLock::take().unwrap();
        let standby = lock.0.try_clone().unwrap(); // as a child's is: the same open file
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&standby));
        let opened = File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap();
        drop(lock);
        assert!(opened.try_lock().is_err(), "it is held still");
        standby.unlock().unwrap();
        opened.try_lock().unwrap();
    }
}
