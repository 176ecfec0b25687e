//! The monitor's children: how each is forked, and what is kept for it.

use std::ffi::OsString;
use std::io::{self, PipeReader, PipeWriter, Read as _};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};
use std::path::PathBuf;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::links::Link;
use super::state::{Event, Role};
use crate::os::fork::{Forked, Program, Streams, fork_program, set_nonblocking};
use crate::os::standby_lock::StandbyLock;
use crate::os::stderr_relay::StderrRelay;

/// How long the end waits for the output to be passed on.
const DRAIN: Duration = Duration::from_secs(1);

/// What is supervised, and by what.
#[derive(Debug)]
pub struct Command {
    /// The kubelet, resolved.
    pub program: PathBuf,
    /// The unit's own arguments, as the kubelet is run with them.
    pub args: Vec<String>,
    /// The installed binary of the worker.
    pub worker: PathBuf,
    /// The worker's arguments.
    pub worker_args: Vec<OsString>,
    /// Reads what was last known good, by the worker's arguments: the kubelet's arguments, if there is such a configuration and
    /// it is whole. Runs in a process of its own.
    pub last_known_good: fn(&[OsString]) -> Option<Vec<String>>,
}

/// All of them, but for their ids, which the state has.
#[derive(Debug)]
pub(super) struct Children {
    command: Command,
    /// Where the kubelet finds its notify socket, and its watchdog's interval.
    notify: (String, Duration),
    /// Children on their way to their program.
    pub(super) executing: Vec<(i32, PipeReader, PathBuf)>,
    relay: Option<StderrRelay>,
    standby: Option<(StandbyLock, Option<StderrRelay>)>,
    /// Reaped, and not told yet: their numbers may be others' by now.
    pub(super) reaped: Vec<i32>,
}

impl Children {
    pub(super) fn new(command: Command, notify: (String, Duration)) -> Self {
        Self { command, notify, executing: Vec::new(), relay: None, standby: None, reaped: Vec::new() }
    }

    pub(super) fn start(&mut self, args: &[String]) -> Event {
        let (relay, writer) = relayed(false);
        let output = relay.as_ref().map(|relay| relay.output.as_raw_fd());
        let forked = self.kubelet(args, Streams { stderr: writer.as_ref().map(AsFd::as_fd), ..Streams::default() });
        if forked.is_ok() {
            self.relay = relay; // the one before goes on by itself, for the former kubelet's descendants
        }
        let program = self.command.program.clone();
        self.told(forked, Role::Kubelet, output, program)
    }

    pub(super) fn park(&mut self, args: &[String]) -> Event {
        let (relay, writer) = relayed(true);
        let output = relay.as_ref().map(|relay| relay.output.as_raw_fd());
        let forked = StandbyLock::take().and_then(|lock| {
            let streams = Streams { stdin: Some(lock.as_fd()), stderr: writer.as_ref().map(AsFd::as_fd), third: None };
            let forked = self.kubelet(args, streams)?;
            self.standby = Some((lock, relay));
            Ok(forked)
        });
        let program = self.command.program.clone();
        self.told(forked, Role::Standby, output, program)
    }

    /// The standby's lock falls: it is the kubelet now. What was held of its output comes first: it may write nothing for long.
    pub(super) fn promote(&mut self) {
        let Some((lock, relay)) = self.standby.take() else { return };
        self.relay = relay;
        self.relay.iter().for_each(StderrRelay::release);
        if let Err(error) = lock.unlock() {
            tracing::warn!("the lock of the standby kubelet does not fall, it will be ended: {error}");
        }
    }

    fn kubelet(&self, args: &[String], streams: Streams<'_>) -> io::Result<Forked> {
        let ours = ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"].map(OsString::from);
        let env = std::env::vars_os().filter(|(name, _)| !ours.contains(name));
        let (name, interval) = &self.notify;
        let micros = interval.as_micros().to_string();
        let notify = [("NOTIFY_SOCKET".into(), name.into()), ("WATCHDOG_USEC".into(), micros.into())];
        fork_program(&Program::new(&self.command.program, args, env.chain(notify))?, streams, true)
    }

    pub(super) fn work(&mut self, generation: u64, own_binary: bool, now: Duration) -> (Event, Option<Link>) {
        let path = if own_binary { PathBuf::from("/proc/self/exe") } else { self.command.worker.clone() };
        let env = std::env::vars_os().filter(|(name, _)| name != "NOTIFY_SOCKET" && name != "WATCHDOG_PID");
        let forked = Link::new(generation, now).and_then(|(link, theirs)| {
            let program = Program::new(&path, &self.command.worker_args, env)?;
            let streams = Streams { third: Some(theirs.as_fd()), ..Streams::default() };
            Ok((fork_program(&program, streams, false)?, link))
        });
        let (forked, link) = match forked {
            Ok((forked, link)) => (Ok(forked), Some(link)),
            Err(error) => (Err(error), None),
        };
        (self.told(forked, Role::Worker(generation), None, path), link)
    }

    fn told(&mut self, forked: io::Result<Forked>, role: Role, output: Option<i32>, program: PathBuf) -> Event {
        let forked = forked.map(|Forked { pid, executed }| {
            let _ = set_nonblocking(&executed); // it is read when there is something
            self.executing.push((pid, executed, program));
            (pid, output)
        });
        Event::Forked(role, forked.map_err(|error| error.to_string()))
    }

    /// Which children are what they were to become, or cannot.
    pub(super) fn executed(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        self.executing.retain_mut(|(pid, pipe, program)| {
            let mut errno = [0; 4];
            let result = match pipe.read(&mut errno) {
                Ok(4) => {
                    Err(format!("{}: {}", program.display(), io::Error::from_raw_os_error(i32::from_ne_bytes(errno))))
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                _ => Ok(()),
            };
            events.push(Event::Executed(*pid, result));
            false
        });
        events
    }

    pub(super) fn signal(&self, pid: i32, signal: i32) {
        let Ok(signal) = Signal::try_from(signal) else { return };
        if self.reaped.contains(&pid) {
            return;
        }
        if let Err(error) = kill(Pid::from_raw(pid), signal) {
            tracing::warn!("cannot send {signal} to pid {pid}: {error}");
        }
    }

    /// True once the standby waits for its lock, and all that it wrote until then is read.
    pub(super) fn is_parked(&self) -> bool {
        self.standby
            .as_ref()
            .is_some_and(|(lock, relay)| lock.is_awaited() && relay.as_ref().is_none_or(StderrRelay::is_idle))
    }

    /// Ends, for poll(2), when the kubelet's output is passed on.
    pub(super) fn last_words(&self) -> Option<BorrowedFd<'_>> {
        self.relay.as_ref().map(|relay| relay.ended.as_fd())
    }

    /// True while there may be more of them.
    pub(super) fn has_last_words(&self) -> bool {
        self.relay.as_ref().is_some_and(|relay| !relay.is_ended())
    }

    /// Before the end.
    pub(super) fn drain(&self) {
        self.relay.iter().for_each(|relay| relay.drain(DRAIN));
    }
}

/// Better without its last lines than without a kubelet.
fn relayed(held: bool) -> (Option<StderrRelay>, Option<PipeWriter>) {
    let relay = StderrRelay::to_stderr(held);
    relay.inspect_err(|error| tracing::warn!("the kubelet's output is not read: {error}")).ok().unzip()
}
