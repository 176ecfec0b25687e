//! A world for the monitor: processes that live and die as chance has it, and a record of what was done to them.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use fastrand::Rng;
use kubelet_supervisor::machine::model::Exit;
use kubelet_supervisor::monitor::wire::{PROTOCOL, Request};
use kubelet_supervisor::monitor::{Action, Event, Monitor, Role};
use kubelet_supervisor::os::notify_socket::Message;

pub const INTERVAL: Duration = Duration::from_secs(20);
pub const SIGHUP: i32 = 1;
pub const SIGKILL: i32 = 9;
pub const SIGTERM: i32 = 15;

pub fn own() -> Vec<String> {
    vec!["--config=/own".to_owned()]
}

#[derive(Clone, Debug)]
pub struct Process {
    pub role: Role,
    pub alive: bool,
    /// The kernel holds it: no signal ends it.
    pub held: bool,
    /// It does not mind SIGTERM.
    pub deaf: bool,
    pub pings: bool,
}

/// What chance may do.
#[derive(Clone, Copy, Debug, Default)]
pub struct Chances {
    pub forks_fail: bool,
    pub held: bool,
    pub sane_workers: bool,
}

pub struct World {
    pub monitor: Monitor,
    pub now: Duration,
    pub rng: Rng,
    pub chances: Chances,
    pub processes: BTreeMap<i32, Process>,
    pub unreaped: Vec<(i32, Exit)>,
    pub starts: usize,
    /// Workers: generation, and whether of the own binary.
    pub works: Vec<(u64, bool)>,
    pub kubelet_ends: usize,
    pub failed_forks: usize,
    pub exit: Option<u8>,
    pub told: Vec<(Duration, &'static str)>,
    pub log: Vec<String>,
    /// Since when no kubelet is alive and forks work.
    pub none_since: Option<Duration>,
    pub longest_none: Duration,
    next_pid: i32,
    parked: Option<i32>,
    tickets: u64,
}

impl World {
    pub fn new(seed: u64, chances: Chances) -> Self {
        Self {
            monitor: Monitor::new(own(), Duration::ZERO, Some(INTERVAL)),
            now: Duration::ZERO,
            rng: Rng::with_seed(seed),
            chances,
            processes: BTreeMap::new(),
            unreaped: Vec::new(),
            starts: 0,
            works: Vec::new(),
            kubelet_ends: 0,
            failed_forks: 0,
            exit: None,
            told: Vec::new(),
            log: Vec::new(),
            none_since: Some(Duration::ZERO),
            longest_none: Duration::ZERO,
            next_pid: 100,
            parked: None,
            tickets: 0,
        }
    }

    /// Takes an event through to its last consequence.
    pub fn event(&mut self, event: Event) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let actions = self.monitor.step(event.clone(), self.now);
            assert!(actions.len() < 12, "too much at once: {actions:?}");
            if let Event::Forked(Role::Kubelet, ..) = event {
                events.push_back(Event::Lives(Role::Kubelet));
            }
            for action in actions {
                if let Some(event) = self.carry_out(action) {
                    events.push_front(event);
                }
            }
            assert!(self.acting().len() <= 1, "two act: {:?}", self.processes);
            assert!(self.monitor.workers().count() <= 3, "workers gather");
        }
        self.note_absence();
    }

    fn note_absence(&mut self) {
        let absent = self.acting().is_empty() && self.exit.is_none() && !self.chances.forks_fail;
        if !absent {
            self.none_since = None;
        }
        let since = *self.none_since.get_or_insert(self.now);
        self.none_since = absent.then_some(since);
        if absent {
            self.longest_none = self.longest_none.max(self.now.saturating_sub(since));
        }
    }

    /// Kubelets that act.
    pub fn acting(&self) -> Vec<i32> {
        let acts = |process: &Process| process.alive && process.role == Role::Kubelet;
        self.processes.iter().filter(|(_, process)| acts(process)).map(|(pid, _)| *pid).collect()
    }

    pub fn alive(&self, wanted: impl Fn(Role) -> bool) -> Vec<i32> {
        let is = |process: &Process| process.alive && wanted(process.role);
        self.processes.iter().filter(|(_, process)| is(process)).map(|(pid, _)| *pid).collect()
    }

    pub fn worker(&self, pid: i32) -> u64 {
        match self.processes[&pid].role {
            Role::Worker(generation) => generation,
            role => panic!("{role:?} is no worker"),
        }
    }

    pub fn workers(&self) -> Vec<i32> {
        self.alive(|role| matches!(role, Role::Worker(_)))
    }

    fn carry_out(&mut self, action: Action) -> Option<Event> {
        match action {
            Action::Start(Role::Kubelet, _) => {
                assert!(
                    self.unreaped.iter().all(|(pid, _)| self.processes[pid].role != Role::Kubelet),
                    "one is not reaped"
                );
                let event = self.fork(Role::Kubelet);
                self.starts += usize::from(matches!(event, Event::Forked(..)));
                return Some(event);
            }
            Action::Start(_, args) => {
                assert!(args.iter().any(|arg| arg.starts_with("--lock-file")), "it would not wait: {args:?}");
                assert!(self.alive(|role| role == Role::Standby).is_empty(), "two stand by");
                let event = self.fork(Role::Standby);
                if let Event::Forked(_, pid, _) = event {
                    self.parked = Some(pid);
                }
                return Some(event);
            }
            Action::Promote => {
                self.starts += 1;
                let process = self.parked.take().and_then(|pid| self.processes.get_mut(&pid)).unwrap();
                process.role = Role::Kubelet;
            }
            Action::Work { generation, own_binary } => {
                self.works.push((generation, own_binary));
                return Some(self.fork(Role::Worker(generation)));
            }
            Action::Signal(role, signal) => {
                let is_it = |(_, process): &(&i32, &Process)| process.role == role && process.alive;
                let (pid, deaf) = self.processes.iter().find(is_it).map(|(pid, it)| (*pid, it.deaf || it.held))?;
                let held = self.processes[&pid].held;
                if !held && (signal == SIGKILL || signal == SIGTERM && !deaf) {
                    self.die(pid, Exit::Signal(signal));
                }
            }
            Action::Systemd(notice) => self.told.push((self.now, notice)),
            Action::Log(line) => self.log.push(line),
            Action::Show(_) => {}
            Action::Exit(code) => self.exit = self.exit.or(Some(code)),
        }
        None
    }

    fn fork(&mut self, role: Role) -> Event {
        if self.chances.forks_fail {
            self.failed_forks += 1;
            return Event::Failed(role, "no memory".to_owned());
        }
        self.next_pid += 1;
        let held = self.chances.held && self.rng.u8(..) < 8;
        let pings = self.rng.bool();
        self.processes.insert(self.next_pid, Process { role, alive: true, held, deaf: self.rng.bool(), pings });
        Event::Forked(role, self.next_pid, None)
    }

    /// It ends; that is told later.
    pub fn die(&mut self, pid: i32, exit: Exit) {
        let process = self.processes.get_mut(&pid).unwrap();
        if std::mem::replace(&mut process.alive, false) {
            self.kubelet_ends += usize::from(process.role == Role::Kubelet);
            self.unreaped.push((pid, exit));
        }
        self.note_absence();
    }

    pub fn reap(&mut self) {
        for (pid, exit) in std::mem::take(&mut self.unreaped) {
            self.event(Event::Reaped(pid, exit));
        }
    }

    /// Time passes up to then, with all that is due meanwhile.
    pub fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(at) = self.monitor.deadline().filter(|at| *at <= end && self.exit.is_none()) {
            self.now = self.now.max(at);
            self.note_absence();
            self.event(Event::Tick);
            self.reap();
        }
        self.now = end;
        self.note_absence();
    }

    pub fn hello(&mut self, pid: i32) {
        let version = "1".to_owned();
        self.say(pid, Request::Hello { protocol: PROTOCOL, version });
    }

    pub fn say(&mut self, pid: i32, request: Request) {
        self.event(Event::Said(self.worker(pid), Ok(request)));
    }

    /// Any message at all.
    pub fn anything(&mut self) -> Request {
        self.tickets += 1;
        let (ticket, run) = (self.tickets, self.rng.u64(0..5) + self.monitor_runs().saturating_sub(2));
        let args = vec![format!("--config=/{}", self.rng.u8(0..3))];
        match self.rng.u8(0..10) {
            0 => Request::Hello { protocol: PROTOCOL + u32::from(self.rng.u8(..) == 0), version: "x".to_owned() },
            1 | 2 => Request::Start { ticket, args },
            3 | 4 => Request::Park { ticket, args },
            5 => Request::Unpark,
            6 => Request::Stop(run),
            7 => Request::Dump(run),
            8 => Request::Feed(Duration::from_millis(self.rng.u64(..))),
            _ => Request::Show("a\nb".repeat(usize::from(self.rng.u8(..)) * 9)),
        }
    }

    fn monitor_runs(&self) -> u64 {
        let worker = self.monitor.workers().next();
        let status = worker.and_then(|(generation, _)| self.monitor.status(generation)).unwrap_or_default();
        status.kubelet.map(|kubelet| kubelet.run).or(status.ended.map(|ended| ended.run)).unwrap_or_default()
    }

    /// Something happens.
    pub fn chance(&mut self) {
        let workers = self.workers();
        let worker = (!workers.is_empty()).then(|| workers[self.rng.usize(..workers.len())]);
        match (self.rng.u8(0..20), worker) {
            (0..=4, Some(pid)) => {
                let generation = self.worker(pid);
                if self.monitor.workers().any(|(known, _)| known == generation) {
                    self.hello(pid);
                }
            }
            (5..=9, Some(pid)) => {
                let request = if self.chances.sane_workers { Request::Beat } else { self.anything() };
                self.say(pid, request);
            }
            (10, Some(pid)) => self.die(pid, Exit::Code(1)),
            (11, Some(pid)) => self.event(Event::Said(self.worker(pid), Err("nonsense".to_owned()))),
            (12, _) => {
                if let Some(pid) = self.acting().first() {
                    self.die(*pid, Exit::Code(2));
                }
            }
            (13, _) => self.event(Event::Signal(SIGHUP)),
            (14, _) => self.event(Event::Heard(Message::Ready)),
            (15, _) => {
                if let Some(pid) = self.alive(|role| role == Role::Standby).first().copied() {
                    if self.rng.bool() { self.event(Event::Lives(Role::Standby)) } else { self.die(pid, Exit::Code(3)) }
                }
            }
            (16, _) => {
                let args = self.rng.bool().then(own);
                self.event(Event::Boot(args));
            }
            _ => {}
        }
        if let Some(pid) = self.acting().first().filter(|pid| self.processes[pid].pings)
            && self.processes[pid].alive
        {
            self.event(Event::Heard(Message::Ping));
        }
        self.reap();
        let millis = if self.rng.bool() { 0 } else { self.rng.u64(0..8_000) };
        self.pass(Duration::from_millis(millis));
    }
}
