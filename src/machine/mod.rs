//! The state machine: `step(state, input, now) -> effects`. Every decision is taken here.
//!
//! Shape: inputs change the state, then [`State::settle`] looks at the whole of it and starts what
//! is due. It is level-triggered: an input that comes twice, late, or not at all cannot leave a
//! half-done change behind. Effects are data; those with an outcome come back as an input.
//!
//! Invariants, checked by `tests/machine/random_inputs.rs` after every step:
//! - at most one kubelet process is asked for;
//! - what is started is local, assigned or last known good, and durably saved;
//! - last known good moves only to what was healthy without a break for the whole trial;
//! - a version marked bad is not started until source, content or kubelet change;
//! - every input in every state gives a next state, no panic.

pub mod command;
pub mod events;
pub mod evidence;
pub mod limits;
pub mod model;
pub mod preflight;
pub mod record;
pub mod status;

mod bad_versions;
mod boot;
mod change;
mod health;
mod io;
mod operate;
mod process;
mod reload;
mod restart;
mod run;
mod settings;
mod trial;
mod watchdog;
mod weigh;

use kubelet_config::duration;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

pub use io::{Counter, Effect, Input, Level, Purpose, RecordReason};
pub use operate::offline;
pub use reload::{Handover, Reload, ReloadStage};
use restart::Ending;
pub use restart::{RESTART, RestartBy};
pub use run::Run;
pub use settings::Settings;
pub use trial::PendingFailure;

use kubelet_config::assignment::Assignment;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::machine::evidence::{Baseline, Environment, NodeReadiness, Suspension};
use crate::machine::model::{KubeletId, Moment, Rendered};
use crate::machine::record::Ledger;
use kubelet_config::digest::Digest;
use kubelet_config::pods::PodInventory;
use kubelet_config::rendering::HealthzTarget;
use kubelet_config::source::{ConfigAnnotations, Payload, Source};
use kubelet_config::status::SyncError;

/// What the store held when we started; an unreadable record says why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// `meta/assigned`.
    pub assigned: Result<Option<Source>, String>,
    /// `meta/last-known-good`.
    pub last_known_good: Result<Option<Source>, String>,
    /// Our own `state.json`.
    pub ledger: Result<Ledger, String>,
}

/// The durable records: `None` is the local configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Durable {
    /// `meta/assigned`.
    pub assigned: Option<Source>,
    /// `meta/last-known-good`.
    pub last_known_good: Option<Source>,
    /// Attempts and bad versions.
    pub ledger: Ledger,
}

/// What is known of the wanted ConfigMap.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ConfigMapState {
    /// Not heard of since the watch began.
    Pending,
    /// This version; the bytes are let go once they are checkpointed.
    #[serde(skip)]
    Present(Arc<Payload>),
    /// Checkpointed; only the identity is kept.
    Checkpointed(Source),
    /// Not there, not allowed, or no connection.
    Failed {
        /// What the API server or the network said.
        why: String,
        /// When it began.
        since: Moment,
    },
}

/// The kubelet process as the machine sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kubelet {
    /// Before [`Input::Boot`].
    Down,
    /// The choice is being rendered or judged, a start follows.
    Launching,
    /// [`Effect::Start`] is out.
    Starting,
    /// A process exists.
    Running(Run),
    /// SIGTERM was sent, SIGKILL follows at the moment given.
    Stopping {
        /// When patience ends; `None` after SIGKILL.
        kill_at: Option<Moment>,
    },
    /// It ended by itself; the next start is due at the moment given.
    Waiting {
        /// When.
        until: Moment,
    },
    /// We are leaving.
    Gone,
}

/// A configuration that is being tried.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Trial {
    /// Exits so far.
    pub exits: u32,
    /// The content is the very one that is last known good under another source: its failures
    /// are not the configuration's, and there is nothing to roll back to.
    pub adopted: bool,
    /// Health earned before the clock was last stopped.
    pub banked: Duration,
    /// The clock was stopped for the surroundings' sake: what is banked counts.
    pub excused: bool,
}

/// A change on its way, up to the switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Where to.
    pub to: Option<Source>,
    /// When it was first seen.
    pub seen: Moment,
    /// How far it is.
    pub stage: Stage,
    /// Signals found good so far.
    pub baseline: Baseline,
    /// Signals that were asked for and have not answered.
    pub unanswered: Baseline,
    /// They are waited for until then.
    pub baseline_until: Moment,
    /// This node's turn among the many that have the same change; `None`: now.
    pub turn: Option<Moment>,
    /// The pods before the change.
    pub inventory: Option<PodInventory>,
}

/// Stages of a [`Change`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stage {
    /// [`Effect::Save`] or [`Effect::Render`] is out.
    Preparing,
    /// The preflight with this ticket is out.
    Judging(u64, Rendered),
    /// Accepted; this node's turn is waited for.
    Spread(Rendered),
    /// Accepted; the baseline is waited for.
    Weighing(Rendered),
    /// [`Effect::Record`] is out; switch when it is durable.
    Recording(Rendered),
}

/// What the running process was given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct InForce {
    /// The source it was rendered from.
    pub source: Option<Source>,
    /// Its content; unknown if the local file could not be read.
    pub digest: Option<Digest>,
    /// Where to probe.
    pub healthz: Option<HealthzTarget>,
    /// Fields that flags override.
    pub shadowed: Vec<String>,
    /// What the kubelet goes by; null if unknown.
    pub effective: Arc<Value>,
    /// What its ConfigMap's annotations ask for.
    #[serde(rename = "wishes")]
    pub annotations: ConfigAnnotations,
    /// The container runtime's socket, if known.
    pub runtime: Option<String>,
}

/// The last trial's end, for `status`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum TrialEnd {
    /// There was none.
    #[default]
    None,
    /// Passed.
    Passed,
    /// Failed.
    Failed,
}

/// Everything the machine knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct State {
    /// The operator's choices.
    #[serde(skip)]
    pub settings: Settings,
    /// The records as they are on disk.
    pub saved: Durable,
    /// The version that waits for its turn, and when it was first seen.
    first_seen: Option<(Source, Moment)>,
    /// Records that could not be written yet.
    pub unsaved: Option<Durable>,
    /// What the Node asks for.
    pub wanted: Assignment,
    /// Its name, once known: tells its turn from other nodes'.
    pub node_name: String,
    /// The wanted ConfigMap.
    pub map: ConfigMapState,
    /// The kubelet process.
    pub kubelet: Kubelet,
    /// The kubelet binary.
    pub kubelet_id: KubeletId,
    /// What the next start will run.
    pub target: Option<Source>,
    /// What runs, or ran last.
    pub active: Option<Source>,
    /// What the process was given.
    pub in_force: InForce,
    /// What the next start was rendered to.
    #[serde(skip)]
    pub launching: Option<(u64, Rendered)>,
    /// The change under way.
    #[serde(skip)]
    pub change: Option<Change>,
    /// The trial under way; its source is `active`.
    pub trial: Option<Trial>,
    /// How the last trial ended.
    pub trial_end: TrialEnd,
    /// A failure that waits for a look at the surroundings.
    #[serde(skip)]
    pub pending_failure: Option<PendingFailure>,
    /// Nobody is blamed for now, because.
    pub suspended: Option<Suspension>,
    /// Last known good has been healthy: a pardoned version may be tried again.
    pub recovered: bool,
    /// The pin was switched to; if it did not come up it is not tried for ever.
    pub pin_tried: bool,
    /// The Node's condition Ready, as last seen.
    pub node: Option<NodeReadiness>,
    /// What was last seen of the surroundings, and when.
    pub environment: Option<(Environment, Moment)>,
    /// The kubelet's last lines, when they were last asked for; without secrets.
    #[serde(rename = "words")]
    pub log_tail: Vec<String>,
    /// Error of the configuration in the status, with the words behind it.
    pub error: Option<(String, String)>,
    /// Error of synchronisation, which hides `error` while it lasts.
    pub sync_error: Option<(SyncError, String)>,
    /// The assigned checkpoint is damaged and must be downloaded again.
    pub damaged: bool,
    /// Verdicts known good: content and binary.
    pub judged: Vec<(Digest, KubeletId)>,
    /// A content that could not be judged and is to be tried all the same: asking again at its
    /// start would only lengthen the outage.
    pub waived: Option<(Digest, KubeletId)>,
    /// Version of the kubelet binary.
    pub version: Option<String>,
    /// Kubelet starts so far.
    pub starts: u32,
    /// Unasked exits in a row.
    pub crashes: u32,
    /// Our own failures in a row, and when to try again.
    pub retry: Option<(u32, Moment)>,
    /// When the version that is being applied was first seen.
    pub applying_since: Option<Moment>,
    /// We are told to leave.
    pub leaving: bool,
    /// The next ping to systemd is due.
    beat_at: Option<Moment>,
    /// When this supervisor, or the one whose place it took, began.
    began: Moment,
    /// The next start follows a crash too early to leave it to systemd.
    in_place: bool,
    /// The end for the sake of a restart by systemd.
    ending: Ending,
    /// The wish for another supervisor in our place.
    pub reload: Reload,
    /// A record was unreadable at boot: what it names is unknown, and the store leaves it as it is
    /// where only ignorance would replace it. No checkpoint is removed until the next start.
    keep_all: bool,
    /// Last known good could not be run, so that local runs.
    stranded: bool,
    /// The Lease's renew time as last seen.
    lease: Option<String>,
    /// The runtime's socket, of the configuration before the change.
    runtime: Option<String>,
    /// It has answered.
    runtime_answered: bool,
    /// Uids of the pods that ran before the change.
    pods_before: BTreeSet<String>,
    /// Those of them that admission turned away.
    lost_pods: Vec<String>,
    tested: Option<KubeletId>,
    ticket: u64,
    now: Moment,
}

impl Default for State {
    fn default() -> Self {
        Self::new(Settings::default())
    }
}

impl State {
    /// A machine that waits for [`Input::Boot`] or [`Input::Resume`].
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            saved: Durable::default(),
            first_seen: None,
            unsaved: None,
            wanted: Assignment::Unknown,
            node_name: String::new(),
            map: ConfigMapState::Pending,
            kubelet: Kubelet::Down,
            kubelet_id: KubeletId::default(),
            target: None,
            active: None,
            in_force: InForce::default(),
            launching: None,
            change: None,
            trial: None,
            trial_end: TrialEnd::None,
            pending_failure: None,
            suspended: None,
            recovered: false,
            pin_tried: false,
            node: None,
            environment: None,
            log_tail: Vec::new(),
            error: None,
            sync_error: None,
            damaged: false,
            judged: Vec::new(),
            waived: None,
            version: None,
            starts: 0,
            crashes: 0,
            retry: None,
            applying_since: None,
            leaving: false,
            beat_at: None,
            began: Moment::default(),
            in_place: false,
            ending: Ending::None,
            reload: Reload::default(),
            keep_all: false,
            stranded: false,
            lease: None,
            runtime: None,
            runtime_answered: false,
            pods_before: BTreeSet::new(),
            lost_pods: Vec::new(),
            tested: None,
            ticket: 0,
            now: Moment::default(),
        }
    }

    /// Takes one step.
    pub fn step(&mut self, input: Input, now: Moment) -> Vec<Effect> {
        self.advance(now);
        let mut fx = Vec::new();
        match input {
            Input::Boot(stored, id) => self.boot(*stored, id, &mut fx),
            Input::NodeName(name) => self.node_name = name,
            Input::Resume(handover) => self.resume(*handover, &mut fx),
            Input::Reload => drop(self.ask_reload()),
            Input::ReloadProven(result) => self.successor_judged(result, &mut fx),
            Input::ReloadFailed(why) => self.stayed(&why, &mut fx),
            Input::Node(wanted) => self.node(wanted, &mut fx),
            Input::ConfigMap(payload) => self.map_seen(payload),
            Input::ConfigMapFailed { why, definite } => self.map_failed(why, definite),
            Input::Saved(source, result) => self.saved_checkpoint(&source, result, &mut fx),
            Input::Rendered(Purpose::Launch, source, id, result) => self.launch_rendered(source, id, result, &mut fx),
            Input::Rendered(Purpose::Change, source, id, result) => {
                self.change_rendered(source.as_ref(), id, result, &mut fx);
            }
            Input::Judged(ticket, verdict) => self.verdict(ticket, verdict, &mut fx),
            Input::Recorded(because, result) => self.recorded(because, result, &mut fx),
            Input::Started(result) => self.started(result, &mut fx),
            Input::Ready => self.ready(&mut fx),
            Input::Exited(exit) => self.exited(exit, &mut fx),
            Input::Probed(ok) => self.probed(ok),
            Input::Watchdog => {
                self.watchdog();
                self.relay_beat(&mut fx);
            }
            Input::NodeObserved(sight) => self.node_observed(sight),
            Input::NodeAnnotations { retry, confirm } => self.asked(retry.as_deref(), confirm.as_deref(), &mut fx),
            Input::LeaseObserved(sight) => self.lease_observed(&sight),
            Input::PodsObserved(inventory) => self.pods_observed(inventory),
            Input::EnvironmentObserved(environment) => self.environment_observed(environment, &mut fx),
            Input::LogTail(lines) => self.heard(&lines),
            Input::Operator(ticket, command) => self.operate(ticket, &command, &mut fx),
            Input::Version(version) => self.version = Some(version),
            Input::Reported(number) => fx.push(Effect::Reported(number)),
            Input::Shutdown => self.shutdown(&mut fx),
            Input::Tick => {}
        }
        self.settle(&mut fx);
        self.tick_reload(&mut fx);
        self.tick_beat(&mut fx);
        fx
    }

    /// A clock that stands still or runs back must not undo what was decided.
    fn advance(&mut self, now: Moment) {
        let before = self.now;
        let quiet = now.since(before) > limits::LOOK_HOLDS;
        let due = if quiet { self.deadline() } else { None };
        self.now = Moment { boot: now.boot.max(before.boot), wall_nanos: now.wall_nanos };
        if due.is_some_and(|due| self.now.boot.saturating_sub(due) > limits::LOOK_HOLDS) {
            self.woke_up();
        }
    }

    /// Starts whatever is due in the state as it is now.
    fn settle(&mut self, fx: &mut Vec<Effect>) {
        self.tick_process(fx);
        if fx.iter().any(|effect| matches!(effect, Effect::Record(..))) {
            return; // its answer settles the rest: two records from one state would undo each other
        }
        self.tick_trial(fx);
        if fx.iter().any(|effect| matches!(effect, Effect::Record(..))) {
            return;
        }
        if self.retry.is_none_or(|(_, at)| self.now >= at) {
            if let Some(unsaved) = self.unsaved.clone() {
                self.back_off();
                fx.push(Effect::Record(RecordReason::Memory, unsaved));
            } else {
                self.tick_change(fx);
            }
        }
    }

    /// When the next [`Input::Tick`] is needed; `None` if only an input can change anything.
    ///
    /// What is due now was done by the step that made it due, or waits for an answer or for
    /// `retry`; so only later moments count, and the loop cannot spin.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        let mut due = Vec::new();
        match &self.kubelet {
            Kubelet::Stopping { kill_at } => due.extend(*kill_at),
            Kubelet::Waiting { until } => due.push(*until),
            Kubelet::Running(run) => self.trial_deadlines(run, &mut due),
            Kubelet::Down | Kubelet::Launching | Kubelet::Starting | Kubelet::Gone => {}
        }
        if let Some((_, at)) = self.retry {
            due.push(at);
        }
        due.extend(self.pending_failure.as_ref().map(|pending_failure| later(pending_failure.at, limits::CONSULT)));
        self.confirm_deadlines(&mut due);
        due.extend(self.beat_deadline());
        if let Some(Change { stage: Stage::Weighing(_), baseline_until, .. }) = &self.change {
            due.push(*baseline_until);
        }
        due.extend(self.waits_for_turn());
        if let (ConfigMapState::Failed { since, .. }, None) = (&self.map, &self.sync_error) {
            due.push(later(*since, limits::DOWNLOAD_PATIENCE));
        }
        due.into_iter().map(|at| at.boot).filter(|at| *at > self.now.boot).min()
    }

    fn next_ticket(&mut self) -> u64 {
        self.ticket += 1;
        self.ticket
    }

    fn back_off(&mut self) {
        let failures = self.retry.map_or(0, |(failures, _)| failures + 1);
        let pause = duration::backoff(limits::RETRY_FIRST, limits::RETRY_MAX, failures);
        self.retry = Some((failures, later(self.now, pause)));
    }

    /// The configuration that was proven: what we fall back to.
    fn fallback(&self) -> Option<Source> {
        self.saved.last_known_good.clone()
    }

    /// The newest records, durable or not.
    fn records(&self) -> &Durable {
        self.unsaved.as_ref().unwrap_or(&self.saved)
    }

    /// True while a trial's clock runs.
    #[must_use]
    pub fn is_counting(&self) -> bool {
        self.trial.is_some() && matches!(&self.kubelet, Kubelet::Running(run) if run.healthy_since.is_some())
    }

    /// True once the kubelet said READY=1 and runs.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        matches!(&self.kubelet, Kubelet::Running(run) if run.ready)
    }

    /// The kubelet's process id, while there is one.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        match &self.kubelet {
            Kubelet::Running(run) => Some(run.pid),
            _ => None,
        }
    }

    /// The moment of the latest step.
    #[must_use]
    pub fn now(&self) -> Moment {
        self.now
    }
}

/// For people the wall clock goes on as the boot clock does.
fn later(moment: Moment, by: Duration) -> Moment {
    let nanos = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
    Moment { boot: moment.boot.saturating_add(by), wall_nanos: moment.wall_nanos.saturating_add(nanos) }
}

fn say(fx: &mut Vec<Effect>, level: Level, text: impl Into<String>) {
    fx.push(Effect::Log(level, text.into()));
}
