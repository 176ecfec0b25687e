//! The loop: waits for signals, children, workers, the kubelet's words and the next deadline, all at once; has the state take each
//! event, and carries out what that gives.

use std::collections::VecDeque;
use std::io::{self, PipeReader, Read as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::time::{ClockId, clock_gettime};
use signal_hook::flag;
use signal_hook::low_level::pipe;

use super::children::{Children, Command};
use super::links::{self, Link};
use super::state::{Action, Event, Monitor, notice};
use super::wire::MESSAGE_MAX;
use crate::machine::limits::WATCHDOG_INTERVAL;
use crate::machine::model::Exit;
use crate::os::fork::{fork_question, give_back_memory, set_nonblocking};
use crate::os::notify_socket::{BURST, Message, NotifySocket};
use crate::os::{boot_time, standby_lock, systemd};

/// After a burst of others' datagrams, lest they cost more than some hundred reads a second.
const NOTIFY_PAUSE: Duration = Duration::from_millis(100);
/// How long the report of an exit waits for the last lines. They are there in a millisecond, unless stderr is slow, or a
/// descendant of the kubelet lives on and keeps the pipe open.
const LAST_LINES: Duration = Duration::from_millis(250);
/// What the reader of last known good may say.
const BOOT_MAX: usize = MESSAGE_MAX;

const SIGNALS: [(Signal, fn() -> Event); 6] = [
    (Signal::SIGTERM, || Event::End),
    (Signal::SIGINT, || Event::End),
    (Signal::SIGHUP, || Event::Reload),
    (Signal::SIGQUIT, || Event::Forward(Signal::SIGQUIT as i32)),
    (Signal::SIGUSR1, || Event::Forward(Signal::SIGUSR1 as i32)),
    (Signal::SIGUSR2, || Event::Forward(Signal::SIGUSR2 as i32)),
];

/// Supervises until it is told to end; gives the exit code. Nothing else may run in this process.
///
/// # Errors
/// If signals or a notify socket cannot be had.
pub fn run(command: Command) -> io::Result<u8> {
    let question = {
        let (read, args) = (command.last_known_good, &command.worker_args);
        fork_question(|| read(args).and_then(|args| serde_json::to_vec(&args).ok()).unwrap_or_default())
    };
    let (wake, writer) = UnixStream::pair()?;
    wake.set_nonblocking(true)?;
    let mut signals: Vec<Arrival> = Vec::new();
    for (signal, event) in SIGNALS {
        let arrived = Arc::new(AtomicBool::new(false));
        // Handlers run in this order: the loop that is woken finds the flag.
        flag::register(signal as i32, Arc::clone(&arrived))?;
        pipe::register(signal as i32, writer.try_clone()?)?;
        signals.push((arrived, event));
    }
    pipe::register(Signal::SIGCHLD as i32, writer)?;
    let watchdog = systemd::watchdog();
    let socket = NotifySocket::bind()?;
    let monitor = Monitor::new(command.args.clone(), boot_time(), watchdog);
    let notify = (socket.name.clone(), watchdog.unwrap_or(WATCHDOG_INTERVAL));
    let mut edge = Edge {
        children: Children::new(command, notify),
        links: Vec::new(),
        signals,
        wake,
        socket,
        heard_until: Duration::ZERO,
        strangers: 0,
        question: None,
        answer: Vec::new(),
        reaped: None,
        events: VecDeque::from([Event::Tick]),
        grown: true,
    };
    match question.and_then(|question| set_nonblocking(&question).map(|()| question)) {
        Ok(question) => edge.question = Some(question),
        Err(_) => edge.events.push_back(Event::Boot(None)),
    }
    Ok(edge.run(monitor))
}

/// A kubelet that was reaped, whose last lines may be on their way: how it ended, and until when they are waited for.
type Reaped = (i32, Exit, Duration);

/// A signal that may have arrived, and what that means.
type Arrival = (Arc<AtomicBool>, fn() -> Event);

struct Edge {
    children: Children,
    links: Vec<Link>,
    signals: Vec<Arrival>,
    wake: UnixStream,
    socket: NotifySocket,
    /// The notify socket is not read before.
    heard_until: Duration,
    /// Datagrams of others since the last pause.
    strangers: u32,
    /// The reader of last known good, and what it said so far.
    question: Option<PipeReader>,
    answer: Vec<u8>,
    reaped: Option<Reaped>,
    events: VecDeque<Event>,
    /// Something was started since memory was given back.
    grown: bool,
}

impl Edge {
    fn run(&mut self, mut monitor: Monitor) -> u8 {
        loop {
            while let Some(event) = self.events.pop_front() {
                if let Event::Reaped(told, _) = &event {
                    self.children.reaped.retain(|pid| pid != told);
                }
                for action in monitor.step(event, boot_time()) {
                    if let Action::Exit(code) = action {
                        self.children.drain();
                        return code;
                    }
                    self.carry_out(action);
                }
            }
            links::retain(&mut self.links, &monitor);
            self.links.iter_mut().for_each(|link| link.tell(&monitor));
            if self.grown && monitor.is_at_rest() {
                self.grown = false;
                give_back_memory();
            }
            self.wait(&monitor);
            self.collect(&monitor);
        }
    }

    /// What comes of it is the next event: nothing else may come between a fork and the state's knowing of it.
    fn carry_out(&mut self, action: Action) {
        match action {
            Action::Start(args) => self.events.push_front(self.children.start(&args)),
            Action::Park(args) => self.events.push_front(self.children.park(&args)),
            Action::Promote => self.children.promote(),
            Action::Work { generation, own_binary } => {
                self.grown = true;
                let (event, link) = self.children.work(generation, own_binary, boot_time());
                self.links.extend(link);
                self.events.push_front(event);
            }
            Action::Signal(pid, signal) => self.children.signal(pid, signal),
            Action::Systemd(notice::RELOADING) => systemd::notify(&reloading()),
            Action::Systemd(notice) => systemd::notify(notice),
            Action::Show(text) => systemd::notify(&format!("STATUS={}", text.replace(char::is_control, " "))),
            Action::Log(line) => tracing::warn!("{line}"),
            Action::Exit(_) => {}
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
        let mut fds = vec![read(self.wake.as_fd())];
        fds.extend(hears.then(|| read(self.socket.as_fd())));
        fds.extend(self.question.as_ref().map(|question| read(question.as_fd())));
        fds.extend(self.children.executing.iter().map(|(_, pipe, _)| read(pipe.as_fd())));
        fds.extend(self.reaped.and(self.children.last_words()).map(read));
        let links = self.links.iter().filter(|link| !link.is_closed);
        fds.extend(links.map(|link| PollFd::new(link.as_fd(), poll_flags(link.is_full))));
        let _ = poll(&mut fds, timeout); // an interruption is a signal, which is looked for next
    }

    /// What has happened, in this order: with KillMode=control-group systemd signals the kubelet, too, and its end must not be
    /// taken for a crash; what it said comes before its end; a standby's end before its promotion; a worker's last words before
    /// its end.
    fn collect(&mut self, monitor: &Monitor) {
        let now = boot_time();
        let (workers, others): (Vec<_>, Vec<_>) =
            self.reap(monitor, now).into_iter().partition(|(pid, _)| monitor.is_worker(*pid));
        let told = |ended: Vec<(i32, Exit)>| ended.into_iter().map(|(pid, exit)| Event::Reaped(pid, exit));
        while matches!((&self.wake).read(&mut [0; 64]), Ok(1..)) {}
        let arrived = self.signals.iter().filter(|(arrived, _)| arrived.swap(false, SeqCst));
        self.events.extend(arrived.map(|(_, event)| event()));
        self.events.extend(self.children.executed());
        self.hear_kubelet(monitor, now);
        self.events.extend(told(others));
        for link in self.links.iter_mut().filter(|link| !link.is_closed) {
            self.events.extend(link.hear(now));
        }
        self.hear_answer();
        if monitor.is_parking() && self.children.is_parked() {
            self.events.push_back(Event::Waits);
        }
        self.events.extend(told(workers));
        let is_told = self.reaped.is_some_and(|(.., until)| now >= until || !self.children.has_last_words());
        if let Some((pid, exit, _)) = self.reaped.take_if(|_| is_told) {
            self.events.push_back(Event::Reaped(pid, exit));
        }
        self.events.push_back(Event::Tick);
    }

    fn reap(&mut self, monitor: &Monitor, now: Duration) -> Vec<(i32, Exit)> {
        let mut ended = Vec::new();
        loop {
            let (pid, exit) = match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(pid, code)) => (pid.as_raw(), Exit::Code(code)),
                Ok(WaitStatus::Signaled(pid, signal, _)) => (pid.as_raw(), Exit::Signal(signal as i32)),
                _ => return ended,
            };
            self.children.reaped.push(pid);
            if monitor.kubelet_pid() == Some(pid) {
                self.reaped = Some((pid, exit, now.saturating_add(LAST_LINES)));
            } else {
                ended.push((pid, exit));
            }
        }
    }

    fn hear_kubelet(&mut self, monitor: &Monitor, now: Duration) {
        if self.heard_until > now {
            return;
        }
        let most = BURST.saturating_sub(self.strangers);
        let heard = self.socket.hear(monitor.kubelet_pid(), self.reaped.is_some(), most);
        let (heard, others) = heard.unwrap_or_else(|error| {
            tracing::warn!("the notify socket: {error}");
            (Vec::new(), BURST)
        });
        self.strangers = self.strangers.saturating_add(others);
        if self.strangers >= BURST {
            self.strangers = 0;
            self.heard_until = now.saturating_add(NOTIFY_PAUSE);
        }
        self.events.extend(heard.into_iter().map(|message| match message {
            Message::Ready => Event::Ready,
            Message::Ping => Event::Ping,
        }));
    }

    fn hear_answer(&mut self) {
        let Some(question) = &mut self.question else { return };
        let mut chunk = [0; 4096];
        match question.read(&mut chunk) {
            Ok(count @ 1..) if self.answer.len() < BOOT_MAX => {
                self.answer.extend_from_slice(chunk.get(..count).unwrap_or_default());
                return;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            _ => {}
        }
        self.question = None;
        let answer = std::mem::take(&mut self.answer);
        self.events.push_back(Event::Boot(serde_json::from_slice(&answer).ok()));
    }
}

fn poll_flags(is_full: bool) -> PollFlags {
    if is_full { PollFlags::POLLIN | PollFlags::POLLOUT } else { PollFlags::POLLIN }
}

fn reloading() -> String {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from).unwrap_or_default();
    format!("{}\nMONOTONIC_USEC={}", notice::RELOADING, now.as_micros())
}
