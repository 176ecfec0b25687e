//! A process that is started again when it ends, as by systemd with Restart=always.

use std::process::Command;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use std::{io, thread};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Ended, and started no more, when it is dropped.
pub struct Restarted {
    shared: Arc<(Mutex<State>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

struct State {
    /// 0 while there is none.
    pid: u32,
    stopped: bool,
}

impl Restarted {
    /// The first is started before this returns; each next one `restart_sec` after the end of the one before.
    pub fn start(mut command: Command, restart_sec: Duration) -> io::Result<Self> {
        let mut child = command.spawn()?;
        let shared = Arc::new((Mutex::new(State { pid: child.id(), stopped: false }), Condvar::new()));
        let own = Arc::clone(&shared);
        let thread = thread::spawn(move || {
            let (state, changed) = &*own;
            loop {
                let _ = child.wait();
                let mut next = lock(state);
                next.pid = 0; // it may be somebody else's by now
                let (mut next, _) = changed
                    .wait_timeout_while(next, restart_sec, |state| !state.stopped)
                    .unwrap_or_else(PoisonError::into_inner);
                if next.stopped {
                    return;
                }
                match command.spawn() {
                    Ok(started) => child = started,
                    Err(_) => return,
                }
                next.pid = child.id();
            }
        });
        Ok(Self { shared, thread: Some(thread) })
    }

    /// 0 between two of them.
    pub fn pid(&self) -> u32 {
        lock(&self.shared.0).pid
    }

    /// SIGTERM to the one that runs.
    pub fn terminate(&self) {
        terminate(&lock(&self.shared.0));
    }
}

impl Drop for Restarted {
    fn drop(&mut self) {
        let mut state = lock(&self.shared.0);
        state.stopped = true;
        terminate(&state);
        drop(state);
        self.shared.1.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn terminate(state: &State) {
    if let Ok(pid @ 1..) = i32::try_from(state.pid) {
        let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
    }
}
