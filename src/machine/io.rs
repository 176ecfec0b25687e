//! What goes into the machine and what comes out of it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::command::Command;
use super::events::Event;
use super::evidence::{Environment, Failure, LeaseObservation, NodeReadiness, Query};
use super::model::{Exit, KubeletId, PreflightResult, RenderError, Rendered, RestartCause, StateFiles, Verdict};
use super::{Handover, Records, Stored};
use kubelet_config::assignment::Assignment;
use kubelet_config::pods::PodInventory;
use kubelet_config::rendering::HealthzTarget;
use kubelet_config::source::{ConfigMapRef, Payload, Source};

/// Why something was rendered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To start the kubelet with it now.
    Launch,
    /// To see what a change would do.
    Change,
}

/// Why records were written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordReason {
    /// A change is about to be switched to.
    Switch,
    /// Equal content under a new source.
    Adopt,
    /// The local configuration is assigned.
    Reset,
    /// The trial was passed.
    Proven,
    /// Anything that must be remembered but holds nothing up: bad versions, tries.
    Memory,
}

/// An input of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// First of all: the store's content and the kubelet binary's identity.
    Boot(Box<Stored>, KubeletId),
    /// The name of the own Node.
    NodeName(String),
    /// First of all, after a reload: the state of the supervisor that handed over. Its kubelet runs.
    Resume(Box<Handover>),
    /// SIGHUP: the installed binary shall go on in our place.
    Reload,
    /// Outcome of [`Effect::ProveReload`]: the version of the binary that can go on.
    ReloadProven(Result<String, String>),
    /// [`Effect::Reexec`] failed, and why: we are still in charge.
    ReloadFailed(String),
    /// The own Node, or its absence.
    Node(Assignment),
    /// The watched ConfigMap is this.
    ConfigMap(Arc<Payload>),
    /// The watched ConfigMap cannot be had; `definite` if the API server itself said so.
    ConfigMapFailed {
        /// What the API server or the network said.
        why: String,
        /// False for a lost connection, which says nothing about a version seen before.
        definite: bool,
    },
    /// Outcome of [`Effect::Save`].
    Saved(Source, Result<(), String>),
    /// Outcome of [`Effect::Render`].
    Rendered(Purpose, Option<Source>, KubeletId, Result<Rendered, RenderError>),
    /// Outcome of [`Effect::Preflight`].
    Judged(u64, Verdict),
    /// Outcome of [`Effect::Record`].
    Recorded(RecordReason, Result<Records, String>),
    /// Outcome of [`Effect::Start`].
    Started(Result<u32, String>),
    /// The kubelet said READY=1.
    Ready,
    /// The kubelet's process is gone.
    Exited(Exit),
    /// Outcome of [`Effect::Probe`].
    Probed(bool),
    /// The kubelet said WATCHDOG=1.
    Watchdog,
    /// The own Node's condition Ready.
    NodeObserved(NodeReadiness),
    /// What the Node's annotations ask for: a version to try again, a version to confirm.
    NodeAnnotations {
        /// `kubelet-supervisor.io/retry`, verbatim.
        retry: Option<String>,
        /// `kubelet-supervisor.io/confirm`, verbatim.
        confirm: Option<String>,
    },
    /// Outcome of [`Query::Lease`].
    LeaseObserved(LeaseObservation),
    /// Outcome of [`Query::Pods`]; `None` if they could not be listed.
    PodsObserved(Option<PodInventory>),
    /// Outcome of [`Query::Environment`].
    EnvironmentObserved(Environment),
    /// Outcome of [`Effect::ReadLogTail`].
    LogTail(Vec<String>),
    /// The version of the kubelet binary, once it is known.
    Version(String),
    /// An operator's command, with the ticket of its answer.
    Operator(u64, Command),
    /// The API server has the events up to this number of the history.
    Reported(u64),
    /// SIGTERM or SIGINT came.
    Shutdown,
    /// A deadline may have passed.
    Tick,
}

/// An effect for the executor. None of them blocks the loop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Watch this ConfigMap (afresh, if it is watched already), or none.
    Watch(Option<ConfigMapRef>),
    /// Checkpoint a payload durably.
    Save(Source, Arc<Payload>),
    /// Verify and render a checkpoint, or the local configuration.
    Render(Purpose, Option<Source>),
    /// Have the kubelet judge a rendered configuration; an earlier one still running is dropped.
    Preflight(u64, Rendered),
    /// See whether the kubelet binary can be a judge, while there is time.
    SelfTest,
    /// Write the records that differ, in the order local state, assigned, last known good.
    Record(RecordReason, Records),
    /// Start the kubelet, its state files in order; no path leaves its own `--config`.
    Start(Option<String>, Option<StateFiles>),
    /// SIGTERM to the kubelet.
    Stop,
    /// SIGKILL to the kubelet.
    Kill,
    /// Ask healthz once.
    Probe(HealthzTarget),
    /// Observe the node around the kubelet once.
    Query(Query),
    /// Give back what the kubelet wrote last.
    ReadLogTail,
    /// Remember how far the API server has the history.
    Reported(u64),
    /// Answer an operator's command.
    Answer(u64, Result<String, String>),
    /// Remove checkpoints other than these.
    Collect(BTreeSet<Source>),
    /// Publish an event and log it.
    Emit(Event),
    /// Log a line.
    Log(Level, String),
    /// Count something.
    Count(Counter),
    /// See whether the binary that is installed now can read this and go on from it.
    ProveReload(Box<Handover>),
    /// Become that binary, as soon as nothing is left to be read.
    Reexec,
    /// Ping systemd's watchdog.
    PingWatchdog,
    /// End the supervisor.
    Quit,
}

/// Severity of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Something happened as it should.
    Info,
    /// Something failed, or needs an operator.
    Warn,
}

/// Something to count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Counter {
    /// `kubelet_restarts_total{cause}`.
    Restart(RestartCause),
    /// `preflight_total{result}`.
    Preflight(PreflightResult),
    /// `rollbacks_total{reason}`.
    Rollback(Failure),
    /// `store_errors_total`.
    StoreError,
    /// `config_apply_duration_seconds`, from seeing a version to its kubelet being ready.
    Applied(Duration),
}

/// A line for the journal.
pub(super) fn log(fx: &mut Vec<Effect>, level: Level, text: impl Into<String>) {
    fx.push(Effect::Log(level, text.into()));
}
