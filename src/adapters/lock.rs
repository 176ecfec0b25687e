//! One supervisor per directory.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read as _, Seek as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::unistd::Pid;

use super::clock;
use crate::os::ownership;

/// A child that is about to become another program, or to die with its parent, still has what the parent had open; a verb that
/// found no supervisor has the lock while it writes. They get so long, in which they have milliseconds to do. Well below
/// `LOAD_DEADLINE`, after which a supervisor goes on without.
const GRACE: Duration = Duration::from_secs(2);
const TRY_AGAIN: Duration = Duration::from_millis(10);

/// Why there is no lock.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotLocked {
    /// Another supervisor has it; what its pid file says.
    #[error("process {0} uses the store")]
    Taken(String),
    /// The lock file cannot be made (read-only disk); the reason. Not a ground to leave the node
    /// without a kubelet.
    #[error("{0}")]
    Unavailable(String),
}

/// The lock while the process lives, once it has it.
pub(crate) type SharedLock = Arc<OnceLock<File>>;

/// Takes it, for who cannot wait for a disk that stalls: then it is unavailable, and may come later. A verb that has it is waited for.
pub(crate) async fn hold_within(root: PathBuf, limit: Duration, lock: SharedLock) -> Result<(), NotLocked> {
    within(limit, move || take_from(&root, Some(monitor()), |_| true), lock).await
}

/// The same for who can wait for the disk, and need not wait for a verb.
pub(crate) async fn hold(root: PathBuf, lock: SharedLock) -> Result<(), NotLocked> {
    if lock.get().is_some() {
        return Ok(());
    }
    // An attempt of before may have got it meanwhile.
    match within(Duration::MAX, move || take_from(&root, Some(monitor()), is_dead), lock.clone()).await {
        Err(_) if lock.get().is_some() => Ok(()),
        held => held,
    }
}

async fn within(
    limit: Duration,
    take: impl FnOnce() -> Result<File, NotLocked> + Send + 'static,
    lock: SharedLock,
) -> Result<(), NotLocked> {
    let (answer, taken) = tokio::sync::oneshot::channel();
    tokio::task::spawn_blocking(move || {
        let held = take().map(|file| drop(lock.set(file)));
        // Our own pid: by another attempt of ours.
        if let Err(Err(NotLocked::Taken(pid))) = answer.send(held)
            && pid != monitor().to_string()
        {
            tracing::error!("another kubelet-supervisor, pid {pid}, uses the store; stop it");
        }
    });
    match tokio::time::timeout(limit, taken).await {
        Ok(Ok(held)) => held,
        Ok(Err(_)) => Err(NotLocked::Unavailable("the task that took it died".to_owned())),
        Err(_) => Err(NotLocked::Unavailable(format!("no answer of the disk within {} s", limit.as_secs()))),
    }
}

/// Takes `supervisor/lock` below `root`. One that was killed a moment ago is not in the way.
pub(crate) fn take(root: &Path) -> Result<File, NotLocked> {
    take_from(root, None, is_dead)
}

/// Whom a worker's lock names: what is to be stopped, if anybody is in the way.
fn monitor() -> u32 {
    std::os::unix::process::parent_id()
}

/// The same; a supervisor's lock names it. Holders, as the pid file names them, of which `lets_go` is true are waited for.
fn take_from(root: &Path, owner: Option<u32>, lets_go: impl Fn(&str) -> bool) -> Result<File, NotLocked> {
    let begun = Instant::now();
    loop {
        match try_take(root, owner) {
            Err(NotLocked::Taken(pid)) if lets_go(&pid) && begun.elapsed() < GRACE => {
                std::thread::sleep(TRY_AGAIN);
            }
            lock => return lock,
        }
    }
}

fn is_dead(pid: &str) -> bool {
    pid.parse().is_ok_and(|pid| kill(Pid::from_raw(pid), None) == Err(Errno::ESRCH))
}

/// The longest note in a lock, in bytes.
const NOTE: u64 = 128;

/// What no other process has, in this boot or another one: its id, when it was started, and the boot.
fn identity(pid: u32) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let started = stat.rsplit_once(") ")?.1.split(' ').nth(19)?; // starttime, proc(5)
    Some(format!("{pid} {started} {:x}", clock::boot_id()))
}

/// The supervisor that a lock names, while it lives.
pub(crate) fn living(note: &str) -> Option<u32> {
    let pid = note.split(' ').next()?.parse().ok()?;
    (identity(pid)? == note).then_some(pid)
}

fn try_take(root: &Path, owner: Option<u32>) -> Result<File, NotLocked> {
    let path = root.join("supervisor/lock");
    ownership::check(&path).map_err(|error| NotLocked::Unavailable(error.to_string()))?;
    let unavailable = |error: std::io::Error| NotLocked::Unavailable(format!("{}: {error}", path.display()));
    // What the lock says, which is no more than a note.
    let said = |file: &File| {
        let mut said = String::new();
        let _ = file.take(NOTE).read_to_string(&mut said);
        said
    };
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
    let mut file = open().map_err(unavailable)?;
    match file.try_lock() {
        Ok(()) => {
            let Some(owner) = owner else { return Ok(file) };
            // Its worker is being replaced; the kubelet runs.
            if let Some(pid) = living(said(&file).trim()).filter(|pid| *pid != owner) {
                return Err(NotLocked::Taken(pid.to_string()));
            }
            let mut note = || -> std::io::Result<()> {
                file.set_len(0)?;
                file.rewind()?;
                writeln!(file, "{}", identity(owner).unwrap_or_default())
            };
            if let Err(error) = note() {
                tracing::debug!("{}: {error}", path.display());
            }
            Ok(file)
        }
        Err(TryLockError::WouldBlock) => {
            Err(NotLocked::Taken(said(&file).split_whitespace().next().unwrap_or_default().to_owned()))
        }
        Err(TryLockError::Error(error)) => Err(unavailable(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_a_dead_one_left_open_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().to_owned();
        let held = take(&root).unwrap();
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        std::fs::write(root.join("supervisor/lock"), format!("{}\n", child.id())).unwrap();
        let late = tokio::task::spawn_blocking(move || take(&root));
        tokio::time::sleep(Duration::from_millis(100)).await;
        drop(held);
        assert!(late.await.unwrap().is_ok());
    }

    #[tokio::test]
    async fn a_supervisor_waits_for_a_verb_that_writes() {
        let dir = tempfile::tempdir().unwrap();
        let held = take(dir.path()).unwrap();
        assert!(matches!(take(dir.path()), Err(NotLocked::Taken(_))), "a verb does not wait");
        let lock = SharedLock::default();
        let late = tokio::spawn(hold_within(dir.path().to_owned(), Duration::from_secs(60), lock.clone()));
        tokio::time::sleep(Duration::from_millis(100)).await;
        drop(held);
        assert_eq!(late.await.unwrap(), Ok(()));
        assert!(lock.get().is_some());
    }

    #[tokio::test]
    async fn a_disk_that_stalls_is_not_waited_for_and_a_late_lock_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let (root, (go, stalled)) = (dir.path().to_owned(), std::sync::mpsc::channel::<()>());
        let (done, taken) = tokio::sync::oneshot::channel();
        let lock = SharedLock::default();
        let late = move || {
            stalled.recv().unwrap();
            let lock = take(&root);
            done.send(()).unwrap();
            lock
        };
        let held = within(Duration::from_millis(20), late, lock.clone()).await;
        assert!(matches!(held, Err(NotLocked::Unavailable(why)) if why.contains("no answer")));
        go.send(()).unwrap();
        taken.await.unwrap();
        let second = hold_within(dir.path().to_owned(), Duration::from_secs(60), SharedLock::default()).await;
        assert!(matches!(second, Err(NotLocked::Taken(_))), "{second:?}");
        while hold(dir.path().to_owned(), lock.clone()).await.is_err() {}
        assert!(lock.get().is_some());
    }
}
