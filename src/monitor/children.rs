//! A child as the kernel has it: how it is forked, what it says, and how it ends; and the sockets to the workers, where messages
//! come in and the state goes out.

use std::ffi::OsString;
use std::io::{self, PipeReader, Read as _};
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags};
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, recv, send, socketpair};
use serde::Serialize;

use super::state::{Event, Monitor, Role};
use super::wire::{MESSAGE_MAX, Request, Status};
use crate::machine::model::Exit;
use crate::os::fork::{Forked, Program, Streams, fork_program};
use crate::os::standby_lock::StandbyLock;
use crate::os::stderr_relay::StderrRelay;

/// Read at once of one worker: the others have their turn, too.
const BURST: usize = 64;
/// A worker that says more in a second than this is out of its mind. One says some ten.
const FLOOD: u32 = 1000;
/// Cleared so often.
const WINDOW: Duration = Duration::from_secs(1);

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

/// NOTIFY_SOCKET and WATCHDOG_USEC, as the kubelet has them.
pub(super) type Notify = [(OsString, OsString); 2];

/// A child: the kubelet, one that stands by, or a worker.
pub(super) struct Process {
    /// 0 once its end is told: the number may be another's by then.
    pub(super) pid: i32,
    program: PathBuf,
    /// Where a copy of this process says why it cannot be the program; `None` once that is known.
    begins: Option<PipeReader>,
    /// To a worker.
    pub(super) link: Option<Link>,
    /// Passes on what a kubelet writes.
    pub(super) relay: Option<StderrRelay>,
    /// What a standby waits for.
    lock: Option<StandbyLock>,
    /// How it ended, and until when its last lines are waited for.
    pub(super) ended: Option<(Exit, Duration)>,
}

impl Process {
    /// Forks the kubelet, or one that stands by. `notify` are the variables by which it finds its notify socket and its watchdog.
    pub(super) fn kubelet(command: &Command, args: &[String], notify: &Notify, stands_by: bool) -> io::Result<Self> {
        let is_ours = |name: &OsString| name == "WATCHDOG_PID" || notify.iter().any(|(ours, _)| ours == name);
        let env = std::env::vars_os().filter(|(name, _)| !is_ours(name)).chain(notify.clone());
        let program = Program::new(&command.program, args, env)?;
        let lock = stands_by.then(StandbyLock::take).transpose()?;
        // Better without its last lines than without a kubelet.
        let relay = StderrRelay::to_stderr(stands_by);
        let relay = relay.inspect_err(|error| tracing::warn!("the kubelet's output is not read: {error}"));
        let (relay, stderr) = relay.ok().unzip();
        let (stdin, stderr) = (lock.as_ref().map(AsFd::as_fd), stderr.as_ref().map(AsFd::as_fd));
        let Forked { pid, executed } = fork_program(&program, Streams { stdin, stderr, third: None }, true)?;
        let (program, begins) = (command.program.clone(), Some(executed));
        Ok(Self { pid, program, begins, link: None, relay, lock, ended: None })
    }

    /// Forks a worker.
    pub(super) fn worker(command: &Command, generation: u64, own_binary: bool) -> io::Result<Self> {
        let program = if own_binary { PathBuf::from("/proc/self/exe") } else { command.worker.clone() };
        let env = std::env::vars_os().filter(|(name, _)| name != "NOTIFY_SOCKET" && name != "WATCHDOG_PID");
        let (link, theirs) = Link::new(generation)?;
        let streams = Streams { third: Some(theirs.as_fd()), ..Streams::default() };
        let prepared = Program::new(&program, &command.worker_args, env)?;
        let Forked { pid, executed } = fork_program(&prepared, streams, false)?;
        Ok(Self { pid, program, begins: Some(executed), link: Some(link), relay: None, lock: None, ended: None })
    }

    /// The standby's lock falls: it is the kubelet now. What was held of its output comes first: it may write nothing for long.
    pub(super) fn promoted(mut self) -> Self {
        self.relay.iter().for_each(StderrRelay::release);
        if let Some(Err(error)) = self.lock.take().map(|lock| lock.unlock()) {
            tracing::warn!("the lock of the standby kubelet does not fall, it will be ended: {error}");
        }
        self
    }

    /// True once the standby waits for its lock, and all that it wrote until then is read.
    pub(super) fn is_parked(&self) -> bool {
        self.lock.as_ref().is_some_and(StandbyLock::is_awaited) && self.relay.as_ref().is_none_or(StderrRelay::is_idle)
    }

    /// What is waited for.
    pub(super) fn awaited(&self) -> impl Iterator<Item = PollFd<'_>> {
        let read = |pipe| PollFd::new(pipe, PollFlags::POLLIN);
        let begins = self.begins.as_ref().map(|pipe| read(pipe.as_fd()));
        let link = self.link.as_ref().filter(|link| !link.wants.is_empty());
        let relay = self.ended.and(self.relay.as_ref()).map(|relay| read(relay.ended.as_fd()));
        let link = link.map(|link| PollFd::new(link.socket.as_fd(), link.wants));
        begins.into_iter().chain(link).chain(relay)
    }

    /// Whether it is its program, once that is known. Whether a worker or a standby lives, it shows by itself.
    pub(super) fn begun(&mut self, role: Role) -> Option<Event> {
        let mut errno = [0; size_of::<i32>()];
        let event = match self.begins.as_mut()?.read_exact(&mut errno) {
            Ok(()) => {
                let error = io::Error::from_raw_os_error(i32::from_ne_bytes(errno));
                Some(Event::Failed(role, format!("{}: {error}", self.program.display())))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
            Err(_) => (role == Role::Kubelet).then_some(Event::Lives(role)),
        };
        self.begins = None;
        event
    }

    /// How it ended, once what it wrote before that is read, or has been waited for. A standby's end is told at once: a worker may
    /// want it.
    pub(super) fn end(&mut self, role: Role, now: Duration) -> Option<Event> {
        let is_read = role != Role::Kubelet || self.relay.as_ref().is_none_or(StderrRelay::is_ended);
        let (exit, _) = self.ended.take_if(|(_, until)| is_read || now >= *until)?;
        Some(Event::Reaped(std::mem::take(&mut self.pid), exit))
    }
}

/// The socket to one worker.
pub(super) struct Link {
    generation: u64,
    socket: OwnedFd,
    /// What it was told last.
    told: Option<Status>,
    /// What is waited for: also that it takes something, if it was full; nothing, once it is closed.
    wants: PollFlags,
    /// Messages since.
    said: (u32, Duration),
}

impl Link {
    /// With the end that the worker inherits.
    fn new(generation: u64) -> io::Result<(Self, OwnedFd)> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let (socket, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags)?;
        Ok((Self { generation, socket, told: None, wants: PollFlags::POLLIN, said: (0, Duration::ZERO) }, theirs))
    }

    /// Tells the worker the state, if it is another than it was told.
    pub(super) fn tell(&mut self, monitor: &Monitor) {
        let status = monitor.status(self.generation);
        if status.is_none() || status == self.told || self.wants.is_empty() {
            return;
        }
        if say(&self.socket, &status) == Err(Errno::EAGAIN) {
            self.wants.insert(PollFlags::POLLOUT);
        } else {
            (self.told, self.wants) = (status, PollFlags::POLLIN); // one that cannot be told is about to end
        }
    }

    /// What the worker said. One that is not understood is ended at once, whatever it says meanwhile.
    pub(super) fn hear(&mut self, now: Duration) -> Vec<Event> {
        let mut events = Vec::new();
        while events.len() < BURST && !self.wants.is_empty() {
            match receive(&self.socket) {
                Ok(Some(message)) => events.push(Event::Said(self.generation, self.parse(&message, now))),
                Err(Errno::EAGAIN | Errno::EINTR) => break,
                _ => self.wants = PollFlags::empty(),
            }
        }
        events
    }

    fn parse(&mut self, message: &Result<Vec<u8>, usize>, now: Duration) -> Result<Request, String> {
        let (said, since) = &mut self.said;
        if now.saturating_sub(*since) > WINDOW {
            (*said, *since) = (0, now);
        }
        *said += 1;
        if *said > FLOOD {
            return Err(format!("more than {FLOOD} messages in a second"));
        }
        let too_long = |length| format!("a message of {length} bytes, and {MESSAGE_MAX} are allowed");
        let message = message.as_ref().map_err(too_long)?;
        serde_json::from_slice(message).map_err(|error| format!("a message that is none: {error}"))
    }
}

/// Sends a message, if the other side takes it now.
///
/// # Errors
/// As the system gives them: EAGAIN if it takes nothing.
pub(crate) fn say(socket: &impl AsFd, message: &impl Serialize) -> Result<(), Errno> {
    let bytes = serde_json::to_vec(message).map_err(|_| Errno::EINVAL)?; // no message of ours has what JSON has not
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    send(socket.as_fd().as_raw_fd(), &bytes, flags).map(drop)
}

/// The next message, or its length if it is longer than any may be; `None` at the end. Nothing is kept for the longest one.
///
/// # Errors
/// EAGAIN if there is none.
pub(crate) fn receive(socket: &impl AsFd) -> Result<Option<Result<Vec<u8>, usize>>, Errno> {
    let (fd, now) = (socket.as_fd().as_raw_fd(), MsgFlags::MSG_DONTWAIT);
    let length = recv(fd, &mut [], now | MsgFlags::MSG_PEEK | MsgFlags::MSG_TRUNC)?;
    let mut message = vec![0; length.min(MESSAGE_MAX)];
    recv(fd, &mut message, now)?;
    Ok((length > 0).then_some(if length > MESSAGE_MAX { Err(length) } else { Ok(message) }))
}
