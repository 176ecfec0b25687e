//! Children, by their ids: how they are signalled, waited for and ended.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering::SeqCst};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::machine::model::Exit;

/// The kubelet's process id. Shared with the forwarding of signals.
#[derive(Clone, Debug, Default)]
pub struct ChildPid(Arc<Child>);

#[derive(Debug, Default)]
struct Child {
    /// 0 if there is none.
    pid: AtomicI32,
    /// Whose messages count: the same, and for a moment after its end.
    heard: AtomicI32,
    stopping: AtomicBool,
}

impl ChildPid {
    /// The id, while the process is not reaped: it cannot belong to another process.
    #[must_use]
    pub fn get(&self) -> Option<i32> {
        Some(self.0.pid.load(SeqCst)).filter(|pid| *pid > 0)
    }

    /// The id of the process whose messages count: one that has just ended may have said something before.
    pub(crate) fn heard(&self) -> Option<i32> {
        Some(self.0.heard.load(SeqCst)).filter(|pid| *pid > 0)
    }

    /// True if there is a process that is to end: it was sent SIGTERM or SIGKILL, or SIGQUIT because it hangs.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.get().is_some() && self.0.stopping.load(SeqCst)
    }

    /// Sends a signal, if there is a process.
    pub fn signal(&self, signal: Signal) {
        self.send(signal, matches!(signal, Signal::SIGTERM | Signal::SIGKILL));
    }

    pub(crate) fn send(&self, signal: Signal, ends: bool) {
        let Some(pid) = self.get() else { return };
        if ends {
            self.0.stopping.store(true, SeqCst);
        }
        if let Err(error) = kill(Pid::from_raw(pid), signal) {
            tracing::warn!("cannot send {signal} to the kubelet (pid {pid}): {error}");
        }
    }

    /// It is this process from now on.
    pub fn set(&self, pid: i32) {
        self.0.stopping.store(false, SeqCst);
        self.0.pid.store(pid, SeqCst);
        self.0.heard.store(pid, SeqCst);
    }

    /// It was reaped, and is not signalled any more.
    pub(crate) fn reaped(&self) {
        self.0.stopping.store(false, SeqCst);
        self.0.pid.store(0, SeqCst);
    }
}

pub(crate) fn exit_of(status: &io::Result<std::process::ExitStatus>) -> Exit {
    use std::os::unix::process::ExitStatusExt as _;
    match status {
        Ok(status) => match (status.code(), status.signal()) {
            (Some(code), _) => Exit::Code(code),
            (None, signal) => Exit::Signal(signal.unwrap_or_default()),
        },
        // waitpid fails only if the child is not ours to wait for: it is gone for us.
        Err(_) => Exit::Code(-1),
    }
}

/// A process group that is killed when nobody waits for it any more, also if its leader has ended and a child of
/// that keeps the output open.
#[derive(Debug)]
pub(crate) struct Group(pub(crate) Option<i32>);

impl Group {
    /// That of a child that leads one.
    pub(crate) fn of(child: &tokio::process::Child) -> Self {
        Self(child.id().and_then(|id| i32::try_from(id).ok()))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            let _ = nix::sys::signal::killpg(Pid::from_raw(group), Signal::SIGKILL);
        }
    }
}
