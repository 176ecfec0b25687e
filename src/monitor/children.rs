//! The monitor's children: how each is forked, and what is kept for it.

use std::ffi::OsString;
use std::io::{self, PipeReader, PipeWriter, Read as _};
use std::os::fd::{AsFd, AsRawFd as _};
use std::path::PathBuf;
use std::time::Duration;

use super::links::Link;
use super::state::{Event, Role};
use super::wire::MESSAGE_MAX;
use crate::os::boot_time;
use crate::os::fork::{Forked, Program, Streams, fork_program, give_back_memory};
use crate::os::standby_lock::StandbyLock;
use crate::os::stderr_relay::StderrRelay;

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

/// All of them, but for what the state knows of each.
#[derive(Debug)]
pub(super) struct Children {
    command: Command,
    /// Where the kubelet finds its notify socket, and its watchdog's interval.
    notify: (String, Duration),
    pub(super) questions: Vec<Question>,
    /// Passes on what the kubelet writes.
    pub(super) relay: Option<StderrRelay>,
    standby: Option<(StandbyLock, Option<StderrRelay>)>,
}

/// What a copy of this process says until it is another program, or ends: why it cannot be that program, or what was last known good.
#[derive(Debug)]
pub(super) struct Question {
    /// `None`: last known good.
    about: Option<(Role, PathBuf)>,
    pub(super) pipe: PipeReader,
    said: Vec<u8>,
}

impl Children {
    pub(super) fn new(command: Command, notify: (String, Duration)) -> Self {
        Self { command, notify, questions: Vec::new(), relay: None, standby: None }
    }

    /// The kubelet, or one that stands by.
    pub(super) fn start(&mut self, role: Role, args: &[String]) -> Event {
        let stands_by = role == Role::Standby;
        let (relay, writer) = relayed(stands_by);
        let output = relay.as_ref().map(|relay| relay.output.as_raw_fd());
        let forked = stands_by.then(StandbyLock::take).transpose().and_then(|lock| {
            let stderr = writer.as_ref().map(AsFd::as_fd);
            let forked = self.kubelet(args, Streams { stdin: lock.as_ref().map(AsFd::as_fd), stderr, third: None })?;
            match lock {
                Some(lock) => self.standby = Some((lock, relay)),
                None => self.relay = relay, // the one before goes on by itself, for the former kubelet's descendants
            }
            Ok(forked)
        });
        let program = self.command.program.clone();
        self.told(forked, role, output, program)
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

    /// The link goes with its worker.
    pub(super) fn work(&mut self, generation: u64, own_binary: bool, links: &mut Vec<Link>) -> Event {
        let path = if own_binary { PathBuf::from("/proc/self/exe") } else { self.command.worker.clone() };
        let env = std::env::vars_os().filter(|(name, _)| name != "NOTIFY_SOCKET" && name != "WATCHDOG_PID");
        let forked = Link::new(generation, boot_time()).and_then(|(link, theirs)| {
            links.push(link);
            let streams = Streams { third: Some(theirs.as_fd()), ..Streams::default() };
            fork_program(&Program::new(&path, &self.command.worker_args, env)?, streams, false)
        });
        self.told(forked, Role::Worker(generation), None, path)
    }

    fn told(&mut self, forked: io::Result<Forked>, role: Role, output: Option<i32>, program: PathBuf) -> Event {
        give_back_memory(); // what a start takes is not needed for as long as its child lives
        match forked {
            Ok(Forked { pid, executed }) => {
                self.ask(Some((role, program)), executed);
                Event::Forked(role, pid, output)
            }
            Err(error) => Event::Failed(role, error.to_string()),
        }
    }

    pub(super) fn ask(&mut self, about: Option<(Role, PathBuf)>, pipe: PipeReader) {
        self.questions.push(Question { about, pipe, said: Vec::new() });
    }

    /// What was said to the end.
    pub(super) fn answers(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        self.questions.retain_mut(|Question { about, pipe, said }| {
            let room = MESSAGE_MAX.saturating_sub(said.len()) as u64;
            let read = pipe.take(room).read_to_end(said);
            if read.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
                return true;
            }
            events.extend(match (about, said.first_chunk()) {
                (None, _) => Some(Event::Boot(serde_json::from_slice(said).ok())),
                (Some((role, program)), Some(errno)) => {
                    let error = io::Error::from_raw_os_error(i32::from_ne_bytes(*errno));
                    Some(Event::Failed(*role, format!("{}: {error}", program.display())))
                }
                (Some((Role::Kubelet, _)), None) => Some(Event::Lives(Role::Kubelet)),
                (Some(_), None) => None, // whether it lives, it shows by itself
            });
            false
        });
        events
    }

    /// True once the standby waits for its lock, and all that it wrote until then is read.
    pub(super) fn is_parked(&self) -> bool {
        self.standby
            .as_ref()
            .is_some_and(|(lock, relay)| lock.is_awaited() && relay.as_ref().is_none_or(StderrRelay::is_idle))
    }
}

/// Better without its last lines than without a kubelet.
fn relayed(held: bool) -> (Option<StderrRelay>, Option<PipeWriter>) {
    let relay = StderrRelay::to_stderr(held);
    relay.inspect_err(|error| tracing::warn!("the kubelet's output is not read: {error}")).ok().unzip()
}
