//! What the monitor knows of itself and its children, and when what is due.

use std::collections::BTreeMap;
use std::time::Duration;

use super::wire::{Child, IN_USE, PROTOCOL, Phase, Request, Status, WRONG_OPTIONS};
use crate::machine::limits;
use crate::machine::model::Exit;
use crate::os::notify_socket::Message;
use kubelet_config::duration::backoff;

/// A worker says hello within this time, or it cannot run. It takes 20 ms; a cold disk some seconds.
pub const HELLO: Duration = Duration::from_secs(10);
/// A worker that says nothing for so long hangs. It says something every 10 s.
pub const SILENCE: Duration = Duration::from_secs(30);
/// From SIGTERM to SIGKILL, and from *retire* to SIGKILL; as long again, and what cannot be killed is not waited for.
pub const GRACE: Duration = limits::STOP_GRACE;
/// The worker may write for so long once the kubelet has ended for good.
pub const LAST_WORDS: Duration = Duration::from_secs(5);
/// A worker that speaks may leave the node without a kubelet for so long. It reads its store for 5 s at the most.
pub const ABSENCE: Duration = Duration::from_secs(60);
/// Last known good is waited for so long: its disk may stall.
pub const READ: Duration = Duration::from_secs(5);
/// A standby that waits is started within this time, or ended.
pub const CLAIM: Duration = Duration::from_secs(60);
/// What lives for so long did not end early.
pub const SETTLED: Duration = Duration::from_secs(60);
/// Without any kubelet systemd's watchdog is fed for so long: then systemd may try.
pub const FEED_MAX: Duration = Duration::from_secs(600);
/// So many workers end early before the monitor's own binary is the worker.
pub(super) const EARLY_ENDS: u32 = 3;
/// So many workers that cannot be killed, as on a disk that hangs, are enough.
const STUCK: usize = 2;

pub(super) const KUBELET_PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));
pub(super) const WORKER_PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(60));

/// Exit codes of a worker that must not run here, and the monitor's own for each.
pub(super) const REFUSALS: [(u8, u8); 2] = [(WRONG_OPTIONS, 64), (IN_USE, 1)];

/// What a child is for. There is one of each at the most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// It acts.
    Kubelet,
    /// It waits.
    Standby,
    /// It thinks; its generation.
    Worker(u64),
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Time passed.
    Tick,
    /// Last known good has these arguments, or there is none that can be used.
    Boot(Option<Vec<String>>),
    /// A signal came: SIGTERM and SIGINT end the supervisor, SIGHUP replaces the worker, all others are the kubelet's.
    Signal(i32),
    /// A child was forked: its process id, and the file that its output goes to.
    Forked(Role, i32, Option<i32>),
    /// Why a child cannot be forked, or cannot run its program.
    Failed(Role, String),
    /// The kubelet runs its program; the standby waits for its lock.
    Lives(Role),
    /// A child ended.
    Reaped(i32, Exit),
    /// A worker said this, or why that cannot be understood.
    Said(u64, Result<Request, String>),
    /// The kubelet said this to its notify socket.
    Heard(Message),
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Fork the kubelet, or the standby, with these arguments.
    Start(Role, Vec<String>),
    /// The standby goes on as the kubelet.
    Promote,
    /// Fork a worker.
    Work {
        /// Which one it is.
        generation: u64,
        /// Of this very binary, not of the installed one.
        own_binary: bool,
    },
    /// Send a signal.
    Signal(Role, i32),
    /// Tell systemd, as sd_notify(3) has it.
    Systemd(&'static str),
    /// Tell systemd in words.
    Show(String),
    /// A line for the journal.
    Log(String),
    /// The end.
    Exit(u8),
}

/// The pause before another attempt. It grows with each that did not last.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pause {
    /// Attempts in a row that did not last.
    pub(super) early: u32,
    until: Duration,
}

impl Pause {
    /// An attempt that began then has ended.
    pub(super) fn after(&mut self, began: Duration, now: Duration, (first, most): (Duration, Duration)) {
        self.early = if now.saturating_sub(began) >= SETTLED { 0 } else { self.early.saturating_add(1) };
        self.until = now.saturating_add(backoff(first, most, self.early.saturating_sub(1)));
    }
}

/// How long a child may be in a phase, and what is wrong after that; `None`: as long as it likes. Then it is sent SIGKILL. One
/// that was sent it is left alone.
pub(super) fn limit(role: Role, phase: Phase) -> Option<(Duration, &'static str)> {
    match (phase, role) {
        (Phase::Begins | Phase::Lives, Role::Kubelet) | (Phase::Left, _) => None,
        (Phase::Begins, Role::Standby) => Some((CLAIM, "it does not wait for its lock")),
        (Phase::Lives, Role::Standby) => Some((CLAIM, "nobody claims it")),
        (Phase::Begins, Role::Worker(_)) => Some((HELLO, "it says no hello")),
        (Phase::Lives, Role::Worker(_)) => Some((SILENCE, "it says nothing any more")),
        (Phase::Ends, _) => Some((GRACE, "it does not end")),
        (Phase::Killed, _) => Some((GRACE, "it cannot be killed, and is left alone")),
    }
}

/// All that the monitor knows.
#[derive(Clone, Debug, Default)]
pub struct Monitor {
    pub(super) now: Duration,
    /// systemd's watchdog interval.
    pub(super) watchdog: Option<Duration>,
    /// Until it is reaped, each is here.
    pub(super) children: BTreeMap<Role, Child>,
    /// What all workers are told alike.
    pub(super) told: Status,
    /// Until it is reaped: why a child was killed.
    pub(super) killed: BTreeMap<Role, String>,
    /// What is started if no worker says what.
    pub(super) last: Vec<String>,
    pub(super) runs: u64,
    /// Since when there is no kubelet.
    pub(super) absent: Duration,
    /// At first for last known good to be read.
    pub(super) kubelet_pause: Pause,
    pub(super) worker_pause: Pause,
    pub(super) generation: u64,
    /// The first worker that had its turn.
    pub(super) turned: Option<u64>,
    /// SIGHUP came, when this was the last generation: a later one is the successor.
    pub(super) reloading: Option<u64>,
    pub(super) fed_until: Duration,
    /// When systemd was pinged last; `None`: it is to be pinged.
    pub(super) pinged: Option<Duration>,
    pub(super) was_ready: bool,
    /// When SIGTERM came.
    pub(super) leaving: Option<Duration>,
    pub(super) out: Vec<Action>,
}

impl Monitor {
    /// One that has done nothing. `own` are the unit's own arguments; `watchdog` is systemd's interval.
    #[must_use]
    pub fn new(own: Vec<String>, now: Duration, watchdog: Option<Duration>) -> Self {
        let told = Status { protocol: PROTOCOL, ..Status::default() };
        let kubelet_pause = Pause { early: 0, until: now.saturating_add(READ) };
        Self { now, watchdog, told, kubelet_pause, last: own, absent: now, ..Self::default() }
    }

    pub(super) fn kubelet(&self) -> Option<&Child> {
        self.children.get(&Role::Kubelet)
    }

    /// The workers that count, by their generation.
    pub fn workers(&self) -> impl Iterator<Item = (u64, &Child)> {
        self.children.iter().filter_map(|(role, child)| match role {
            Role::Worker(generation) if child.phase < Phase::Left => Some((*generation, child)),
            _ => None,
        })
    }

    /// The worker that is obeyed: the first one, once it has said hello.
    pub(super) fn obeyed(&self) -> Option<u64> {
        self.workers().next().filter(|(_, worker)| worker.phase == Phase::Lives).map(|(generation, _)| generation)
    }

    /// True before anything was started.
    pub(super) fn is_new(&self) -> bool {
        self.runs == 0 && self.kubelet().is_none()
    }

    /// Whose time in a phase is over first: when, who, in which phase, and what is wrong then.
    pub(super) fn next_lapse(&self) -> Option<(Duration, Role, Phase, &'static str)> {
        let lapse = |(role, child): (&Role, &Child)| {
            let (limit, why) = limit(*role, child.phase)?;
            Some((child.heard.saturating_add(limit), *role, child.phase, why))
        };
        self.children.iter().filter_map(lapse).min()
    }

    /// When the monitor starts a kubelet by itself, if nobody else does.
    pub(super) fn start_at(&self) -> Option<Duration> {
        let by_itself = match self.workers().next().map(|(_, worker)| worker.phase) {
            Some(Phase::Lives) => ABSENCE,
            Some(Phase::Begins) if self.runs == 0 && self.generation == 1 => HELLO,
            _ => Duration::ZERO,
        };
        let at = self.absent.saturating_add(by_itself).max(self.kubelet_pause.until);
        (self.kubelet().is_none() && self.leaving.is_none()).then_some(at)
    }

    /// Nobody is on the way.
    fn is_calm(&self) -> bool {
        self.workers().count() <= 1 && self.workers().all(|(_, worker)| worker.phase == Phase::Lives)
    }

    /// When another worker is started: none is there, or SIGHUP asks for a successor.
    pub(super) fn work_at(&self) -> Option<Duration> {
        let at = match self.workers().next() {
            _ if self.reloading == Some(self.generation) && self.is_calm() => self.now,
            None if self.children.range(Role::Worker(0)..).count() < STUCK => self.worker_pause.until,
            _ => return None,
        };
        self.leaving.is_none().then_some(at)
    }

    /// When a reload is over: the successor has its turn, or is none.
    pub(super) fn reloaded_at(&self) -> Option<Duration> {
        let is_begun = self.reloading.is_some_and(|before| before < self.generation);
        (is_begun && self.is_calm() && self.leaving.is_none()).then_some(self.now)
    }

    /// When systemd is pinged: for the kubelet at once; by the monitor itself in half of the interval.
    pub(super) fn ping_at(&self) -> Option<Duration> {
        let half = self.watchdog? / 2;
        let Some(pinged) = self.pinged else { return Some(self.now) };
        let next = pinged.saturating_add(half);
        let is_ours = match self.kubelet() {
            None => self.now < self.absent.saturating_add(FEED_MAX),
            Some(kubelet) => kubelet.pings == 0 || next < self.fed_until || self.leaving.is_some(),
        };
        is_ours.then_some(next)
    }

    /// When the end comes, whatever is left.
    pub(super) fn end_at(&self) -> Option<Duration> {
        let asked = self.leaving?;
        let most = asked.saturating_add(GRACE * 2);
        Some(match (self.kubelet(), self.workers().next()) {
            (Some(_), _) => most,
            (None, Some(_)) => asked.max(self.absent).saturating_add(LAST_WORDS).min(most),
            (None, None) => asked,
        })
    }

    /// Which child this is.
    pub(super) fn role_of(&self, pid: i32) -> Option<Role> {
        self.children.iter().find(|(_, child)| child.pid == pid).map(|(role, _)| *role)
    }

    /// The monitor's own exit code, if this end of a worker is a refusal that is heeded.
    pub(super) fn refusal(&self, role: Role, exit: Exit) -> Option<u8> {
        let is_first = self.workers().next().is_some_and(|(first, _)| role == Role::Worker(first));
        let refusal = REFUSALS.iter().find(|(code, _)| exit == Exit::Code(i32::from(*code)));
        refusal.filter(|_| is_first && self.is_new()).map(|(_, code)| *code)
    }

    /// The child in words.
    pub(super) fn name(&self, role: Role) -> String {
        let pid = self.children.get(&role).map(|child| child.pid).unwrap_or_default();
        match role {
            Role::Kubelet => format!("the kubelet (pid {pid})"),
            Role::Standby => format!("the standby (pid {pid})"),
            Role::Worker(generation) => format!("worker {generation} (pid {pid})"),
        }
    }

    /// True while a standby is on its way to its lock.
    pub(super) fn is_parking(&self) -> bool {
        self.children.get(&Role::Standby).is_some_and(|standby| standby.phase == Phase::Begins)
    }

    /// What this worker is to know; `None`: it is not there.
    #[must_use]
    pub fn status(&self, generation: u64) -> Option<Status> {
        let (_, worker) = self.workers().find(|(it, _)| *it == generation)?;
        Some(Status {
            generation,
            first: self.turned.is_none_or(|turned| turned == generation),
            turn: self.obeyed() == Some(generation),
            retire: worker.phase == Phase::Ends,
            leaving: self.leaving.is_some(),
            kubelet: self.kubelet().copied(),
            standby: self.children.get(&Role::Standby).copied(),
            ..self.told.clone()
        })
    }
}
