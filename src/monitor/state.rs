//! What the monitor knows, and until when it waits for each thing.

use std::time::Duration;

use super::wire::{Ended, IN_USE, PROTOCOL, Request, Running, Standby, Status, WRONG_OPTIONS};
use crate::machine::limits;
use crate::machine::model::Exit;
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

const KUBELET_PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));
const WORKER_PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(60));

/// Exit codes of a worker that must not run here, and the monitor's own for each.
pub(super) const REFUSALS: [(u8, u8); 2] = [(WRONG_OPTIONS, 64), (IN_USE, 1)];

/// What a child is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// SIGTERM or SIGINT.
    End,
    /// SIGHUP.
    Reload,
    /// A signal that is the kubelet's.
    Forward(i32),
    /// A child was forked: its process id, and the file that its output goes to; or why there is none.
    Forked(Role, Result<(i32, Option<i32>), String>),
    /// The child runs its program, or why it cannot.
    Executed(i32, Result<(), String>),
    /// A child ended.
    Reaped(i32, Exit),
    /// A worker said this.
    Said(u64, Request),
    /// A worker cannot be understood any more.
    Broken(u64, String),
    /// The kubelet said READY=1.
    Ready,
    /// The kubelet said WATCHDOG=1.
    Ping,
    /// The standby waits for its lock.
    Waits,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Fork the kubelet with these arguments.
    Start(Vec<String>),
    /// Fork a standby with these arguments.
    Park(Vec<String>),
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
    Signal(i32, i32),
    /// Tell systemd: one of [`notice`].
    Systemd(&'static str),
    /// Tell systemd in words.
    Show(String),
    /// A line for the journal.
    Log(String),
    /// The end.
    Exit(u8),
}

/// What systemd is told (sd_notify(3)).
pub mod notice {
    #![allow(missing_docs, reason = "as sd_notify(3) has them")]
    pub const READY: &str = "READY=1";
    pub const RELOADING: &str = "RELOADING=1";
    pub const STOPPING: &str = "STOPPING=1";
    pub const WATCHDOG: &str = "WATCHDOG=1";
}

/// A pause that grows with each attempt that did not last.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pause {
    times: u32,
    pub(super) until: Duration,
}

impl Pause {
    pub(super) fn begin(&mut self, now: Duration, (first, most): (Duration, Duration)) {
        self.until = now.saturating_add(backoff(first, most, self.times));
        self.times = self.times.saturating_add(1);
    }
}

#[derive(Clone, Debug)]
pub(super) struct Kubelet {
    pub(super) now: Running,
    pub(super) since: Duration,
    /// It was sent SIGTERM or SIGQUIT: SIGKILL follows then.
    pub(super) kill_at: Option<Duration>,
}

#[derive(Clone, Debug)]
pub(super) struct Parked {
    pub(super) pid: i32,
    pub(super) args: Vec<String>,
    pub(super) now: Standby,
    pub(super) claim_by: Duration,
}

/// How far a worker is; each phase has an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Starting,
    Speaks,
    Retires,
    Killed,
}

#[derive(Clone, Debug)]
pub(super) struct Worker {
    pub(super) generation: u64,
    pub(super) pid: i32,
    pub(super) since: Duration,
    pub(super) phase: Phase,
    pub(super) until: Duration,
}

/// All that the monitor knows.
#[derive(Clone, Debug, Default)]
pub struct Monitor {
    pub(super) now: Duration,
    /// systemd's watchdog interval.
    pub(super) watchdog: Option<Duration>,
    /// When last known good is given up; `None`: it was answered.
    pub(super) reading: Option<Duration>,
    /// The kubelet was asked for and not forked yet: with which ticket and arguments.
    pub(super) starting: Option<(Option<u64>, Vec<String>)>,
    /// The standby was asked for and not forked yet.
    pub(super) parking: Option<(u64, Vec<String>)>,
    pub(super) kubelet: Option<Kubelet>,
    pub(super) standby: Option<Parked>,
    pub(super) ended: Option<Ended>,
    pub(super) refused: Option<(u64, String)>,
    /// What is started if no worker says what.
    pub(super) last: Vec<String>,
    pub(super) runs: u64,
    /// Since when there is no kubelet.
    pub(super) absent: Duration,
    pub(super) kubelet_pause: Pause,
    pub(super) workers: Vec<Worker>,
    pub(super) generation: u64,
    pub(super) worker_pause: Pause,
    pub(super) early_ends: u32,
    pub(super) before: Option<String>,
    pub(super) fed_until: Duration,
    pub(super) pinged: Option<Duration>,
    pub(super) was_ready: bool,
    /// SIGHUP came: the successor's generation, 0 while there is none yet.
    pub(super) reloading: Option<u64>,
    /// The first worker that had its turn; 0: none.
    pub(super) turned: u64,
    /// Workers that cannot be killed, and are not reaped yet.
    pub(super) stuck: Vec<i32>,
    /// SIGTERM came: when the end comes, whatever is left.
    pub(super) leaving: Option<Duration>,
}

impl Monitor {
    /// One that has done nothing. `own` are the unit's own arguments; `watchdog` is systemd's interval.
    #[must_use]
    pub fn new(own: Vec<String>, now: Duration, watchdog: Option<Duration>) -> Self {
        let reading = Some(now.saturating_add(READ));
        Self { now, watchdog, reading, last: own, absent: now, ..Self::default() }
    }

    /// The worker that is obeyed: the first one, once it has said hello.
    pub(super) fn obeyed(&self) -> Option<&Worker> {
        self.workers.first().filter(|worker| worker.phase == Phase::Speaks)
    }

    pub(super) fn worker_mut(&mut self, generation: u64) -> Option<&mut Worker> {
        self.workers.iter_mut().find(|worker| worker.generation == generation)
    }

    pub(super) fn pause_kubelet(&mut self) {
        self.kubelet_pause.begin(self.now, KUBELET_PAUSES);
    }

    pub(super) fn pause_worker(&mut self) {
        self.worker_pause.begin(self.now, WORKER_PAUSES);
    }

    /// When the monitor starts a kubelet by itself, if nobody else does.
    pub(super) fn start_at(&self) -> Option<Duration> {
        if self.leaving.is_some() || self.kubelet.is_some() || self.starting.is_some() {
            return None;
        }
        let by_itself = match self.workers.first().map(|worker| worker.phase) {
            Some(Phase::Speaks) => self.absent.saturating_add(ABSENCE),
            Some(Phase::Starting) if self.runs == 0 && self.generation == 1 => self.absent.saturating_add(HELLO),
            _ => Duration::ZERO,
        };
        let read = self.reading.filter(|_| self.runs == 0).unwrap_or_default();
        Some(by_itself.max(self.kubelet_pause.until).max(read))
    }

    /// When another worker is started, if none is there.
    pub(super) fn work_at(&self) -> Option<Duration> {
        let may = self.workers.is_empty() && self.stuck.len() < STUCK && self.leaving.is_none();
        may.then_some(self.worker_pause.until)
    }

    /// When the monitor pings systemd by itself.
    pub(super) fn ping_at(&self) -> Option<Duration> {
        let half = self.watchdog? / 2;
        let next = self.pinged.map_or(self.now, |at| at.saturating_add(half));
        let is_ours = match &self.kubelet {
            None => self.now < self.absent.saturating_add(FEED_MAX),
            Some(kubelet) => kubelet.now.pings == 0 || next < self.fed_until || self.leaving.is_some(),
        };
        is_ours.then_some(next)
    }

    /// When something is due; `None`: never.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        let claim = self.standby.as_ref().filter(|standby| !standby.now.stopping).map(|standby| standby.claim_by);
        let kill = self.kubelet.as_ref().and_then(|kubelet| kubelet.kill_at);
        let workers = self.workers.iter().map(|worker| worker.until);
        let due = [self.start_at(), self.work_at(), self.ping_at(), claim, kill, self.leaving, self.reading];
        due.into_iter().flatten().chain(workers).min()
    }

    /// The kubelet's process id, while it is not reaped.
    #[must_use]
    pub fn kubelet_pid(&self) -> Option<i32> {
        self.kubelet.as_ref().map(|kubelet| kubelet.now.pid)
    }

    /// True while a worker is obeyed and a kubelet is ready: nothing is to be started.
    #[must_use]
    pub fn is_at_rest(&self) -> bool {
        self.obeyed().is_some() && self.kubelet.as_ref().is_some_and(|kubelet| kubelet.now.ready.is_some())
    }

    /// True if this process is a worker.
    #[must_use]
    pub fn is_worker(&self, pid: i32) -> bool {
        self.workers.iter().any(|worker| worker.pid == pid)
    }

    /// True while a standby is on its way to its lock.
    #[must_use]
    pub fn is_parking(&self) -> bool {
        self.standby.as_ref().is_some_and(|standby| !standby.now.waits && !standby.now.stopping)
    }

    /// The workers that are there.
    pub fn generations(&self) -> impl Iterator<Item = u64> {
        self.workers.iter().map(|worker| worker.generation)
    }

    /// What this worker is to know; `None`: it is not there.
    #[must_use]
    pub fn status(&self, generation: u64) -> Option<Status> {
        let worker = self.workers.iter().find(|worker| worker.generation == generation)?;
        Some(Status {
            protocol: PROTOCOL,
            generation,
            first: self.turned == 0 || self.turned == generation,
            turn: self.obeyed().is_some_and(|obeyed| obeyed.generation == generation),
            retire: worker.phase == Phase::Retires,
            leaving: self.leaving.is_some(),
            before: self.before.clone(),
            kubelet: self.kubelet.as_ref().map(|kubelet| kubelet.now.clone()),
            ended: self.ended.clone(),
            refused: self.refused.clone(),
            standby: self.standby.as_ref().map(|standby| standby.now.clone()),
        })
    }
}
