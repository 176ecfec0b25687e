//! A hung kubelet outside a trial: its stacks are dumped, and it is restarted with the same configuration.
//!
//! systemd's watchdog sees to it where the unit has one and the kubelet pings (from v1.32 on): its time is the shorter one,
//! and it ends supervisor and kubelet. This is for all others, and for a unit without a watchdog.
//!
//! - **What is observed.** A kubelet that has pinged is alive while it pings: its pings stand for its sync loop. One that never
//!   pinged is asked for healthz, four times in `--hung-after` and every 15 s at most. One that did neither in its life
//!   cannot be told from one that nobody can reach, and is never called hung.
//! - **How long.** It must have been unresponsive at each observation for the whole of `--hung-after`. A time in which nobody observed (sleep, a
//!   supervisor that stood still) begins that anew, and so does one that finds it alive.
//! - **Who is at fault.** When the time is over the store is asked for what would be started, and then the node is observed. The restart
//!   waits while the machine is ill, the container runtime or the disk does not answer, or nobody can tell; and if it was so, for
//!   the whole time again.
//! - **How often.** Each restart doubles the time that the next one takes, up to an hour; an hour of life undoes that.
//! - **What it is not.** No failure, no exit, no try: nothing is held against any version. Where a trial or a control test comes
//!   to a verdict on a kubelet that hangs, that verdict stands alone.

use std::time::Duration;

use super::evidence::{Environment, Signal, Suspension};
use super::limits;
use super::model::Moment;
use kubelet_config::duration;

mod step;

/// What is seen of a kubelet that nobody judges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Hung {
    /// The process that is observed, by its start.
    process: Option<Moment>,
    /// When it is observed next.
    next_observation: Option<Moment>,
    /// When it was observed last.
    last_observation: Option<Moment>,
    /// It was alive at some time of its life.
    was_alive: bool,
    /// Alive at each observation since then.
    alive_since: Option<Moment>,
    /// Unresponsive at each observation since then.
    unresponsive_since: Option<Moment>,
    /// Why it was not restarted; said once.
    not_restarted: Option<NoRestart>,
    /// Restarts, each within an hour of life of the one before.
    restarts: u32,
    /// What would be started was loaded, and need not be again while the kubelet gives no sign of life.
    is_loaded: bool,
    /// The observation of the node is waited for until then: the kubelet is restarted, or not.
    observing: Option<Moment>,
}

/// Why a kubelet that gives no sign of life is not restarted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NoRestart {
    /// How the node does could not be found out.
    Unobserved,
    /// The container runtime's socket is named nowhere.
    UnknownRuntime,
    /// Another configuration would have to be started.
    Damaged,
    /// The store does not give the next start's content.
    Unreadable,
    /// The node's policy lets it not start again.
    Forbidden,
    /// The store does not answer.
    Stalled,
    /// The machine is short of memory.
    Memory,
    /// The machine is short of process ids.
    ProcessIds,
    /// What also suspends a trial.
    Node(Suspension),
}

impl NoRestart {
    /// What is wrong with the node, if anything is.
    fn by(seen: &Environment) -> Option<Self> {
        let is_short_of = |supply: &str, least: u64| seen.supplies.get(supply).is_some_and(|it| it.available < least);
        match seen.runtime {
            _ if seen.shutting_down => Some(Self::Node(Suspension::ShuttingDown)),
            _ if seen.disk_full => Some(Self::Node(Suspension::DiskFull)),
            _ if is_short_of("memory.available", limits::HUNG_MIN_MEMORY) => Some(Self::Memory),
            _ if is_short_of("pid.available", limits::HUNG_MIN_PIDS) => Some(Self::ProcessIds),
            Some(false) => Some(Self::Node(Suspension::Runtime)),
            None => Some(Self::UnknownRuntime),
            Some(true) => None,
        }
    }

    fn message(self) -> &'static str {
        match self {
            Self::Unobserved => "the node could not be observed",
            Self::UnknownRuntime => {
                "nobody can tell whether the container runtime answers: name its socket by --container-runtime-endpoint or containerRuntimeEndpoint"
            }
            Self::Damaged => "what it runs is damaged in the store, and another configuration would have to be started",
            Self::Unreadable => {
                "what it runs cannot be loaded from the store, and another configuration would have to be started"
            }
            Self::Forbidden => {
                "the node's policy does not let it start again, and another configuration would have to be started"
            }
            Self::Stalled => "the store does not answer: the disk may stall, and the kubelet wait for it",
            Self::Memory => "the machine is short of memory",
            Self::ProcessIds => "the machine is short of process ids",
            Self::Node(suspension) => suspension.message(),
        }
    }
}

impl Hung {
    /// True if it gave no sign of life when it was observed last.
    pub(super) fn is_unresponsive(&self) -> bool {
        self.unresponsive_since.is_some()
    }

    /// Nobody observes it now; what was seen says nothing of what comes.
    fn stop_observing(&mut self) {
        *self = Self { process: self.process, was_alive: self.was_alive, restarts: self.restarts, ..Self::default() };
    }

    /// It is this process that is observed.
    fn observe_process(&mut self, process: Moment, now: Moment) {
        self.reset_for(process);
        self.next_observation.get_or_insert(now);
    }

    /// This process gave a sign of life.
    fn note_alive(&mut self, process: Moment) {
        self.reset_for(process);
        self.was_alive = true;
    }

    fn reset_for(&mut self, process: Moment) {
        if self.process != Some(process) {
            *self = Self { process: Some(process), restarts: self.restarts, ..Self::default() };
        }
    }

    /// An observation, `most` after the one before, or that one counts for nothing. True if an hour of life is full.
    fn note(&mut self, alive: bool, now: Moment, most: Duration) -> bool {
        if self.last_observation.replace(now).is_none_or(|before| now.since(before) > most) {
            (self.alive_since, self.unresponsive_since, self.is_loaded) = (None, None, false);
        }
        if alive {
            (self.was_alive, self.unresponsive_since, self.not_restarted) = (true, None, None);
            (self.observing, self.is_loaded) = (None, false);
            return now.since(*self.alive_since.get_or_insert(now)) >= limits::HUNG_BACKOFF_RESET;
        }
        self.alive_since = None;
        if self.was_alive {
            self.unresponsive_since.get_or_insert(now);
        }
        false
    }

    /// How long it must be unresponsive.
    fn patience(&self, hung_after: Duration) -> Duration {
        duration::backoff(hung_after, limits::HUNG_BACKOFF_MAX.max(hung_after), self.restarts)
    }

    pub(super) fn deadlines(&self, due: &mut Vec<Moment>) {
        due.extend(self.next_observation.into_iter().chain(self.observing));
    }
}

/// What a kubelet that does not answer is missed by.
fn missing(signal: Signal) -> &'static str {
    if signal == Signal::Watchdog { "no WATCHDOG=1" } else { "no healthz" }
}
