//! One supervisor per directory.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read as _, Seek as _, Write as _};
use std::os::fd::IntoRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::unistd::Pid;

use super::ownership;

/// A child that is about to become another program, or to die with its parent, still has what the parent had open. It gets so
/// long, in which it has milliseconds to do.
const CHILD_GRACE: Duration = Duration::from_secs(2);
const TRY_AGAIN: Duration = Duration::from_millis(10);

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

/// The same for who cannot wait for a disk that stalls: then it is unavailable.
pub(crate) async fn take_within(root: PathBuf, limit: Duration) -> Lock {
    within(limit, move || take(&root)).await
}

async fn within(limit: Duration, take: impl FnOnce() -> Lock + Send + 'static) -> Lock {
    let (answer, taken) = tokio::sync::oneshot::channel();
    tokio::task::spawn_blocking(move || {
        match answer.send(take()) {
            Err(Lock::Held(late)) => drop(late.into_raw_fd()), // never closed: nobody else may take what we use
            Err(Lock::Taken(pid)) => tracing::error!("another kubelet-supervisor, pid {pid}, uses the store; stop it"),
            Ok(()) | Err(Lock::Unavailable(_)) => {}
        }
    });
    match tokio::time::timeout(limit, taken).await {
        Ok(Ok(lock)) => lock,
        Ok(Err(_)) => Lock::Unavailable("the task that took it died".to_owned()),
        Err(_) => Lock::Unavailable(format!("no answer of the disk within {} s", limit.as_secs())),
    }
}

/// Takes `supervisor/lock` below `root`. One that was killed a moment ago is not in the way.
pub(crate) fn take(root: &Path) -> Lock {
    let begun = Instant::now();
    loop {
        match try_take(root) {
            Lock::Taken(pid) if is_dead(&pid) && begun.elapsed() < CHILD_GRACE => std::thread::sleep(TRY_AGAIN),
            lock => return lock,
        }
    }
}

fn is_dead(pid: &str) -> bool {
    pid.parse().is_ok_and(|pid| kill(Pid::from_raw(pid), None) == Err(Errno::ESRCH))
}

fn try_take(root: &Path) -> Lock {
    let path = root.join("supervisor/lock");
    if let Err(error) = ownership::check(&path) {
        return Lock::Unavailable(error.to_string());
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_a_dead_one_left_open_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().to_owned();
        let Lock::Held(held) = take(&root) else { panic!("it is free") };
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        std::fs::write(root.join("supervisor/lock"), format!("{}\n", child.id())).unwrap();
        let late = tokio::task::spawn_blocking(move || take(&root));
        tokio::time::sleep(Duration::from_millis(100)).await;
        drop(held);
        assert!(matches!(late.await.unwrap(), Lock::Held(_)));
    }

    #[tokio::test]
    async fn a_disk_that_stalls_is_not_waited_for_and_a_late_lock_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let (root, (go, stalled)) = (dir.path().to_owned(), std::sync::mpsc::channel::<()>());
        let (done, taken) = tokio::sync::oneshot::channel();
        let lock = within(Duration::from_millis(20), move || {
            stalled.recv().unwrap();
            let lock = take(&root);
            done.send(()).unwrap();
            lock
        });
        assert!(matches!(lock.await, Lock::Unavailable(why) if why.contains("no answer")));
        go.send(()).unwrap();
        taken.await.unwrap();
        let second = take_within(dir.path().to_owned(), Duration::from_secs(60)).await;
        assert!(matches!(second, Lock::Taken(pid) if pid == std::process::id().to_string()));
    }
}
