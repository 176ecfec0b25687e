//! The loop: waits for signals, children, workers, the kubelet's words and the next deadline, all at once; has the state take each
//! event, and carries out what that gives.

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd as _;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::signal::Signal::{self, SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use nix::sys::signal::kill;
use nix::sys::signalfd::SignalFd;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;

use super::children::{Children, Command};
use super::links::Link;
use super::state::{Action, Event, Monitor, Role, notice};
use crate::machine::limits::WATCHDOG_INTERVAL;
use crate::machine::model::Exit;
use crate::os::fork::{fork_question, take_signals};
use crate::os::notify_socket::{BURST, Message, NotifySocket};
use crate::os::stderr_relay::StderrRelay;
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
    let question = {
        let (read, args) = (command.last_known_good, &command.worker_args);
        fork_question(|| read(args).and_then(|args| serde_json::to_vec(&args).ok()).unwrap_or_default())
    };
    let watchdog = systemd::watchdog();
    let socket = NotifySocket::bind()?;
    let monitor = Monitor::new(command.args.clone(), boot_time(), watchdog);
    let notify = (socket.name.clone(), watchdog.unwrap_or(WATCHDOG_INTERVAL));
    let mut edge = Edge {
        children: Children::new(command, notify),
        links: Vec::new(),
        signals: take_signals(&SIGNALS)?, // last: what becomes the kubelet instead of the monitor blocks none
        socket,
        heard_until: Duration::ZERO,
        reaped: None,
        events: VecDeque::from([Event::Tick]),
    };
    match question {
        Ok(question) => edge.children.ask(None, question),
        Err(_) => edge.events.push_back(Event::Boot(None)),
    }
    Ok(edge.run(monitor))
}

struct Edge {
    children: Children,
    links: Vec<Link>,
    signals: SignalFd,
    socket: NotifySocket,
    /// The notify socket is not read before.
    heard_until: Duration,
    /// A kubelet that was reaped, whose last lines may be on their way: how it ended, and until when they are waited for.
    reaped: Option<(i32, Exit, Duration)>,
    events: VecDeque<Event>,
}

impl Edge {
    fn run(&mut self, mut monitor: Monitor) -> u8 {
        loop {
            while let Some(event) = self.events.pop_front() {
                for action in monitor.step(event, boot_time()) {
                    if let Action::Exit(code) = action {
                        self.children.relay.iter().for_each(|relay| relay.drain(DRAIN));
                        return code;
                    }
                    self.carry_out(action);
                }
            }
            self.links.retain(|link| monitor.generations().any(|generation| generation == link.generation));
            self.links.iter_mut().for_each(|link| link.tell(&monitor));
            self.wait(&monitor);
            self.collect(&monitor);
        }
    }

    /// What comes of it is the next event: nothing else may come between a fork and the state's knowing of it.
    fn carry_out(&mut self, action: Action) {
        match action {
            Action::Start(args) => self.events.push_front(self.children.start(Role::Kubelet, &args)),
            Action::Park(args) => self.events.push_front(self.children.start(Role::Standby, &args)),
            Action::Promote => self.children.promote(),
            Action::Work { generation, own_binary } => {
                self.events.push_front(self.children.work(generation, own_binary, &mut self.links));
            }
            Action::Signal(pid, signal) => self.signal(pid, signal),
            Action::Systemd(notice::RELOADING) => systemd::notify(&reloading()),
            Action::Systemd(notice) => systemd::notify(notice),
            Action::Show(text) => systemd::notify(&format!("STATUS={}", text.replace(char::is_control, " "))),
            Action::Log(line) => tracing::warn!("{line}"),
            Action::Exit(_) => {}
        }
    }

    fn signal(&self, pid: i32, signal: i32) {
        let is_its_end = |event: &Event| matches!(event, Event::Reaped(reaped, _) if *reaped == pid);
        if self.reaped.is_some_and(|(reaped, ..)| reaped == pid) || self.events.iter().any(is_its_end) {
            return; // the number may be another's by now
        }
        if let Err(error) = Signal::try_from(signal).and_then(|signal| kill(Pid::from_raw(pid), signal)) {
            tracing::warn!("cannot send signal {signal} to pid {pid}: {error}");
        }
    }

    /// Waits until something can be read or written, or is due.
    fn wait(&self, monitor: &Monitor) {
        let now = boot_time();
        let parking = monitor.is_parking().then(|| now.saturating_add(standby_lock::POLL));
        let hears = self.heard_until <= now;
        let pause = (!hears).then_some(self.heard_until);
        let due =
            [monitor.deadline(), parking, pause, self.reaped.map(|(.., until)| until)].into_iter().flatten().min();
        // A moment more, so that the deadline has passed when it is looked at.
        let millis = due.map(|at| at.saturating_sub(now).as_millis().saturating_add(1));
        let timeout =
            millis.map_or(PollTimeout::NONE, |millis| PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX));
        let read = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let mut fds = vec![read(self.signals.as_fd())];
        fds.extend(hears.then(|| read(self.socket.as_fd())));
        fds.extend(self.children.questions.iter().map(|question| read(question.pipe.as_fd())));
        fds.extend(self.reaped.and(self.children.relay.as_ref()).map(|relay| read(relay.ended.as_fd())));
        let links = self.links.iter().filter(|link| !link.wants.is_empty());
        fds.extend(links.map(|link| PollFd::new(link.as_fd(), link.wants)));
        let _ = poll(&mut fds, timeout); // an interruption is looked into next
    }

    /// What has happened, in this order: with KillMode=control-group systemd signals the kubelet, too, and its end must not be
    /// taken for a crash; what it said comes before its end; a standby's end before its promotion; a worker's last words before
    /// its end.
    fn collect(&mut self, monitor: &Monitor) {
        let now = boot_time();
        let (workers, others) = self.reap(monitor, now);
        while let Ok(Some(signal)) = self.signals.read_signal() {
            self.events.extend(meaning(signal.ssi_signo));
        }
        self.events.extend(self.children.answers());
        self.hear_kubelet(monitor, now);
        self.events.extend(others);
        for link in self.links.iter_mut().filter(|link| !link.wants.is_empty()) {
            self.events.extend(link.hear(now));
        }
        if monitor.is_parking() && self.children.is_parked() {
            self.events.push_back(Event::Lives(Role::Standby));
        }
        self.events.extend(workers);
        let is_read = self.children.relay.as_ref().is_none_or(StderrRelay::is_ended);
        if let Some((pid, exit, _)) = self.reaped.take_if(|(.., until)| is_read || now >= *until) {
            self.events.push_back(Event::Reaped(pid, exit));
        }
        self.events.push_back(Event::Tick);
    }

    /// The ends of workers, and those of others but for the kubelet.
    fn reap(&mut self, monitor: &Monitor, now: Duration) -> (Vec<Event>, Vec<Event>) {
        let (mut workers, mut others) = (Vec::new(), Vec::new());
        loop {
            let (pid, exit) = match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(pid, code)) => (pid.as_raw(), Exit::Code(code)),
                Ok(WaitStatus::Signaled(pid, signal, _)) => (pid.as_raw(), Exit::Signal(signal as i32)),
                _ => return (workers, others),
            };
            match monitor.role_of(pid) {
                Some(Role::Kubelet) => self.reaped = Some((pid, exit, now.saturating_add(LAST_LINES))),
                Some(Role::Worker(_)) => workers.push(Event::Reaped(pid, exit)),
                _ => others.push(Event::Reaped(pid, exit)),
            }
        }
    }

    fn hear_kubelet(&mut self, monitor: &Monitor, now: Duration) {
        if self.heard_until > now {
            return;
        }
        let heard = self.socket.hear(monitor.kubelet_pid(), self.reaped.is_some(), BURST);
        let (heard, others) = heard.unwrap_or_else(|error| {
            tracing::warn!("the notify socket: {error}");
            (Vec::new(), BURST)
        });
        if others > 0 {
            self.heard_until = now.saturating_add(NOTIFY_PAUSE);
        }
        self.events.extend(heard.into_iter().map(|message| match message {
            Message::Ready => Event::Ready,
            Message::Ping => Event::Ping,
        }));
    }
}

/// What a signal is to the monitor. SIGCHLD is looked into anyway.
fn meaning(signal: u32) -> Option<Event> {
    let signal = Signal::try_from(i32::try_from(signal).ok()?).ok()?;
    match signal {
        SIGTERM | SIGINT => Some(Event::End),
        SIGHUP => Some(Event::Reload),
        SIGCHLD => None,
        _ => Some(Event::Forward(signal as i32)),
    }
}

fn reloading() -> String {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from).unwrap_or_default();
    format!("{}\nMONOTONIC_USEC={}", notice::RELOADING, now.as_micros())
}
