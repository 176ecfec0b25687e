//! The loop: waits for signals, children, workers, the kubelet's words and the next deadline, all at once; has the state take each
//! event, and carries out what that gives.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, PipeReader, Read as _};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::signal::Signal::{self, SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use nix::sys::signal::kill;
use nix::sys::signalfd::SignalFd;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;

use super::children::{Command, Notify, Process};
use super::state::{Action, Event, Monitor, Role};
use super::wire::MESSAGE_MAX;
use crate::machine::limits::WATCHDOG_INTERVAL;
use crate::machine::model::Exit;
use crate::os::fork::{fork_question, give_back_memory, take_signals};
use crate::os::notify_socket::{BURST, NotifySocket};
use crate::os::{boot_time, standby_lock, systemd};

/// After datagrams of others, lest they cost more than some hundred reads a second.
const NOTIFY_PAUSE: Duration = Duration::from_millis(100);
/// How long the report of an exit waits for the last lines. They are there in a millisecond, unless stderr is slow, or a
/// descendant of the kubelet lives on and keeps the pipe open.
const LAST_LINES: Duration = Duration::from_millis(250);
/// How long the end waits for the kubelet's output to be passed on.
const DRAIN: Duration = Duration::from_secs(1);
/// File descriptors for two kubelets and two workers that are started at once, and some more.
const DESCRIPTORS: u64 = 64;

const SIGNALS: [Signal; 7] = [SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGCHLD];

/// Supervises until it is told to end; gives the exit code. Nothing else may run in this process.
///
/// # Errors
/// If signals or a notify socket cannot be had, or file descriptors for what is to be started.
pub fn run(command: Command) -> io::Result<u8> {
    let (allowed, _) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if allowed < DESCRIPTORS {
        return Err(io::Error::other(format!("{allowed} file descriptors are allowed, and {DESCRIPTORS} are needed")));
    }
    let read = || (command.last_known_good)(&command.worker_args).and_then(|args| serde_json::to_vec(&args).ok());
    let question = fork_question(|| read().unwrap_or_default());
    let watchdog = systemd::watchdog();
    let socket = NotifySocket::bind()?;
    let monitor = Monitor::new(command.args.clone(), boot_time(), watchdog);
    let micros = watchdog.unwrap_or(WATCHDOG_INTERVAL).as_micros().to_string();
    let edge = Edge {
        command,
        notify: [("NOTIFY_SOCKET".into(), (&socket.name).into()), ("WATCHDOG_USEC".into(), micros.into())],
        children: BTreeMap::new(),
        events: question.as_ref().err().map(|_| Event::Boot(None)).into_iter().collect(),
        question: question.ok().map(|pipe| (pipe, Vec::new())),
        signals: take_signals(&SIGNALS)?, // last: what becomes the kubelet instead of the monitor blocks none
        socket,
        heard_until: Duration::ZERO,
    };
    Ok(edge.run(monitor))
}

struct Edge {
    command: Command,
    notify: Notify,
    /// Each under the role that it has in the state. A kubelet that has ended stays until the next one: its descendants may write.
    children: BTreeMap<Role, Process>,
    /// What a copy of this process says of last known good, and what it said so far.
    question: Option<(PipeReader, Vec<u8>)>,
    signals: SignalFd,
    socket: NotifySocket,
    /// The notify socket is not read before.
    heard_until: Duration,
    events: VecDeque<Event>,
}

impl Edge {
    fn run(mut self, mut monitor: Monitor) -> u8 {
        loop {
            while let Some(event) = self.events.pop_front() {
                for action in monitor.step(event, boot_time()) {
                    if let Action::Exit(code) = action {
                        self.children.values().flat_map(|child| &child.relay).for_each(|relay| relay.drain(DRAIN));
                        return code;
                    }
                    self.carry_out(action);
                }
            }
            self.children.values_mut().flat_map(|child| &mut child.link).for_each(|link| link.tell(&monitor));
            self.wait(&monitor);
            self.collect(&monitor);
        }
    }

    fn carry_out(&mut self, action: Action) {
        match action {
            Action::Start(role, args) => {
                self.forked(role, Process::kubelet(&self.command, &args, &self.notify, role == Role::Standby));
            }
            Action::Work { generation, own_binary } => {
                self.forked(Role::Worker(generation), Process::worker(&self.command, generation, own_binary));
            }
            Action::Promote => {
                let standby = self.children.remove(&Role::Standby).map(Process::promoted);
                self.children.extend(standby.map(|kubelet| (Role::Kubelet, kubelet)));
            }
            Action::Signal(role, signal) => {
                // Not one that is reaped: its number may be another's by now.
                let Some(Process { pid: pid @ 1.., ended: None, .. }) = self.children.get(&role) else { return };
                if let Err(error) = Signal::try_from(signal).and_then(|signal| kill(Pid::from_raw(*pid), signal)) {
                    tracing::warn!("cannot send signal {signal} to pid {pid}: {error}");
                }
            }
            Action::Systemd("RELOADING=1") => {
                let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from).unwrap_or_default();
                systemd::notify(&format!("RELOADING=1\nMONOTONIC_USEC={}", now.as_micros()));
            }
            Action::Systemd(notice) => systemd::notify(notice),
            Action::Show(text) => systemd::notify(&format!("STATUS={}", text.replace(char::is_control, " "))),
            Action::Log(line) => tracing::warn!("{line}"),
            Action::Exit(_) => {}
        }
    }

    /// What came of it is the next event: nothing else may come between a fork and the state's knowing of it.
    fn forked(&mut self, role: Role, forked: io::Result<Process>) {
        give_back_memory(); // what a start takes is not needed for as long as its child lives
        self.events.push_front(match forked {
            Ok(child) => {
                let output = child.relay.as_ref().map(|relay| relay.output.as_raw_fd());
                let event = Event::Forked(role, child.pid, output);
                self.children.insert(role, child);
                event
            }
            Err(error) => Event::Failed(role, error.to_string()),
        });
    }

    /// Waits until something can be read or written, or is due.
    fn wait(&self, monitor: &Monitor) {
        let now = boot_time();
        let read = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let mut fds = vec![read(self.signals.as_fd())];
        fds.extend((self.heard_until <= now).then(|| read(self.socket.as_fd())));
        fds.extend(self.question.iter().map(|(pipe, _)| read(pipe.as_fd())));
        fds.extend(self.children.values().flat_map(Process::awaited));
        let due = self.children.values().filter_map(|child| child.ended).map(|(_, until)| until);
        let due = due.chain(monitor.deadline()).chain((self.heard_until > now).then_some(self.heard_until));
        let due = due.chain(monitor.is_parking().then(|| now.saturating_add(standby_lock::POLL))).min();
        let _ = ppoll(&mut fds, due.map(|at| at.saturating_sub(now).into()), None); // an interruption is looked into next
    }

    /// What has happened, in this order: with KillMode=control-group systemd signals the kubelet, too, and its end must not be
    /// taken for a crash; what a child said comes before its end; a standby's end before the words of a worker, who may want it.
    fn collect(&mut self, monitor: &Monitor) {
        let now = boot_time();
        self.reap(now);
        while let Ok(Some(signal)) = self.signals.read_signal() {
            let signal = i32::try_from(signal.ssi_signo).ok().filter(|signal| *signal != SIGCHLD as i32);
            self.events.extend(signal.map(Event::Signal));
        }
        self.hear_question();
        self.hear_kubelet(now);
        self.children.retain(|role, child| {
            self.events.extend(child.begun(*role));
            self.events.extend(child.link.iter_mut().flat_map(|link| link.hear(now)));
            self.events.extend((monitor.is_parking() && child.is_parked()).then_some(Event::Lives(*role)));
            self.events.extend(child.end(*role, now));
            child.pid > 0 || *role == Role::Kubelet
        });
        self.events.push_back(Event::Tick);
    }

    /// Notes who has ended.
    fn reap(&mut self, now: Duration) {
        loop {
            let (pid, exit) = match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(pid, code)) => (pid.as_raw(), Exit::Code(code)),
                Ok(WaitStatus::Signaled(pid, signal, _)) => (pid.as_raw(), Exit::Signal(signal as i32)),
                _ => return,
            };
            if let Some(child) = self.children.values_mut().find(|child| child.pid == pid) {
                child.ended = Some((exit, now.saturating_add(LAST_LINES)));
            }
        }
    }

    /// Last known good, once all is said of it.
    fn hear_question(&mut self) {
        let Some((pipe, said)) = &mut self.question else { return };
        let room = MESSAGE_MAX.saturating_sub(said.len()) as u64;
        let read = pipe.take(room).read_to_end(said);
        if read.map_or_else(|error| error.kind() != io::ErrorKind::WouldBlock, |_| true) {
            self.events.push_back(Event::Boot(serde_json::from_slice(said).ok()));
            self.question = None;
        }
    }

    fn hear_kubelet(&mut self, now: Duration) {
        if self.heard_until > now {
            return;
        }
        let kubelet = self.children.get(&Role::Kubelet).filter(|kubelet| kubelet.pid > 0);
        let is_reaped = kubelet.is_some_and(|kubelet| kubelet.ended.is_some());
        let heard = self.socket.hear(kubelet.map(|kubelet| kubelet.pid), is_reaped, BURST);
        let (heard, others) = heard.unwrap_or_else(|error| {
            tracing::warn!("the notify socket: {error}");
            (Vec::new(), BURST)
        });
        if others > 0 {
            self.heard_until = now.saturating_add(NOTIFY_PAUSE);
        }
        self.events.extend(heard.into_iter().map(Event::Heard));
    }
}
