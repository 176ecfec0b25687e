//! What goes into the machine and what comes out of it.
//!
//! A question of the outside carries a ticket, which its answer brings back. An answer that nobody waits for decides nothing;
//! but that content could be read, and which binary is there, counts all the same. All open questions are in
//! [`asks`](super::asks).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::command::Command;
use super::events::Event;
use super::evidence::{Environment, Failure, LeaseObservation, NodeReadiness, Query, Suspension};
use super::history::HistoryEntry;
use super::model::{
    Beginning, Exit, KubeletId, LoadTarget, PreflightResult, RenderError, Rendered, RestartCause, RunId,
    StartedKubelet, StateFiles, StateFilesFound, TrialResult, Verdict, Verification,
};
use super::records::{Records, Stored, Version};
use kubelet_config::assignment::Assignment;
use kubelet_config::digest::Digest;
use kubelet_config::hazard::HazardClass;
use kubelet_config::named;
use kubelet_config::pods::PodInventory;
use kubelet_config::policy::Admission;
use kubelet_config::rendering::HealthzTarget;
use kubelet_config::source::{ConfigMapRef, Payload, Source};

/// Tells the answer to one question from the answers to others.
pub type Ticket = u64;

/// An input of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// First of all.
    Boot(Beginning),
    /// The answer to the question with this ticket.
    Answer(Ticket, Answer),
    /// The name of the own Node.
    NodeName(String),
    /// The node's policy may be another one.
    PolicyChanged,
    /// The wall clock was set, such as by NTP after a boot.
    ClockSet,
    /// Comes before [`Input::Node`]: labels assign, and no `configSource`.
    AssignedByLabels(bool),
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
    /// Something was written in the store, by us or behind our back.
    StoreTouched,
    /// Something was written in the local files, or their place.
    LocalFilesTouched,
    /// Outcome of [`Effect::Start`] or [`Effect::GoOn`]. The former takes its time where another kubelet is ended first.
    Started(Result<StartedKubelet, String>),
    /// The kubelet said READY=1.
    Ready,
    /// The kubelet's process is gone. Between [`Effect::Start`] and [`Input::Started`] it is nobody's.
    Exited(Exit),
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
    /// What the Node's annotations ask to have judged, and the answer that they show, verbatim.
    PreflightRequested {
        /// `kubelet-supervisor.io/preflight`.
        request: Option<String>,
        /// `kubelet-supervisor.io/preflight-status`.
        answer: Option<String>,
    },
    /// Outcome of [`Effect::ReadLogTail`]; it comes at once.
    LogTail(Vec<String>),
    /// The version of the kubelet binary, once it is known.
    KubeletVersion(String),
    /// An operator's command, with the number of its answer.
    Operator(u64, Command),
    /// The history has an entry for an event, or why it has none.
    Appended(Box<HistoryEntry>, Result<(), String>),
    /// The API server has the events up to this number of the history.
    Reported(u64),
    /// SIGTERM or SIGINT came.
    Shutdown,
    /// Another worker takes over: this one ends, and the kubelet goes on.
    Retire,
    /// A deadline may have passed.
    Tick,
}

/// The answer to a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Outcome of [`StoreRequest::ReadRecords`], and the identity of the kubelet binary.
    RecordsRead(Box<Stored>, KubeletId),
    /// Outcome of [`StoreRequest::Save`] and [`StoreRequest::SaveAnew`].
    Saved(Result<(), String>),
    /// The other outcome of [`StoreRequest::Save`]: other bytes were saved under this uid and resourceVersion before, and stay.
    OtherBytesSaved,
    /// Outcome of [`StoreRequest::JudgeNamespace`]; or why nobody can say.
    NamespaceJudged(Result<Admission, String>),
    /// Outcome of [`StoreRequest::Load`], and the identity of the kubelet binary.
    Loaded(KubeletId, Result<Rendered, RenderError>),
    /// Outcome of [`Effect::Preflight`].
    PreflightDone(Verdict),
    /// Outcome of [`StoreRequest::Record`].
    Recorded(Result<(), String>),
    /// Outcome of [`StoreRequest::Verify`].
    Verified(Verification),
    /// Outcome of [`StoreRequest::SwapStateFiles`].
    StateFilesSwapped(Result<StateFilesFound, String>),
    /// Outcome of [`Effect::Probe`].
    Probed(bool),
    /// Outcome of [`Query::Lease`].
    LeaseObserved(LeaseObservation),
    /// Outcome of [`Query::Pods`]; `None` if they could not be listed.
    PodsObserved(Option<PodInventory>),
    /// Outcome of [`Effect::Fetch`].
    ConfigMapFetched(Result<Arc<Payload>, FetchError>),
    /// Outcome of [`Query::Environment`].
    EnvironmentObserved(Environment),
    /// Outcome of [`Query::Streams`]; `None` if they cannot be seen.
    StreamsObserved(Option<u32>),
}

/// What is told of a question that was given up.
pub(super) fn no_answer(within: Duration) -> String {
    format!("no answer within {} s", within.as_secs())
}

/// Why a ConfigMap cannot be had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchError {
    /// What the API server or the network said.
    pub why: String,
    /// The API server itself said so.
    pub definite: bool,
}

/// An effect for the executor. None of them waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Ask the store.
    Store(StoreRequest),
    /// Watch this ConfigMap (afresh, if it is watched already), or none.
    Watch(Option<ConfigMapRef>),
    /// Have the kubelet judge a rendered configuration; an earlier one still running is dropped.
    Preflight(Ticket, Rendered, Afterwards),
    /// End the standby kubelet.
    DiscardStandby,
    /// See whether the kubelet binary can be a judge, while there is time.
    SelfTest,
    /// Have the kubelet run with this; with nothing, as the unit has it. One that runs so goes on, another one is ended first.
    Start(Option<Box<Rendered>>),
    /// Go on with the kubelet that a worker before us left; the answer comes at once.
    GoOn(RunId),
    /// SIGTERM to the kubelet, and SIGKILL after [`limits::STOP_GRACE`](super::limits::STOP_GRACE).
    Stop,
    /// SIGQUIT to the kubelet: the Go runtime writes the stacks of all goroutines to stderr and ends the process with code 2
    /// (runtime/signal_unix.go).
    DumpStacks,
    /// Ask healthz once.
    Probe(Ticket, HealthzTarget),
    /// Observe the node around the kubelet once.
    Query(Ticket, Query),
    /// Get this ConfigMap once, whatever is watched.
    Fetch(Ticket, ConfigMapRef),
    /// Give back what the kubelet wrote last.
    ReadLogTail,
    /// Answer an operator's command.
    Answer(u64, Result<String, String>),
    /// Log an event and append it to the history.
    Emit(Event),
    /// Send an event to the API server.
    Send(Box<HistoryEntry>),
    /// Log a line.
    Log(Level, String),
    /// Count something.
    Count(Counter),
    /// Ping systemd's watchdog.
    PingWatchdog,
    /// End the supervisor.
    Quit,
}

impl Effect {
    /// What counts as the answer to this question if none comes within that time; `None`: it is no question, or whoever asks
    /// it gives it up.
    pub(super) fn unanswered(&self, within: Duration) -> Option<Answer> {
        let why = no_answer(within);
        Some(match self {
            Self::Store(StoreRequest::Record(..)) => Answer::Recorded(Err(why)),
            Self::Store(StoreRequest::Save(..) | StoreRequest::SaveAnew(..)) => Answer::Saved(Err(why)),
            Self::Store(StoreRequest::JudgeNamespace(..)) => {
                Answer::NamespaceJudged(Err(format!("the node's policy cannot be asked: the store: {why}")))
            }
            Self::Store(StoreRequest::Load(..)) => {
                Answer::Loaded(KubeletId::default(), Err(RenderError::NoAnswer(format!("the store: {why}"))))
            }
            Self::Store(StoreRequest::Verify(..)) => {
                Answer::Verified(Verification { is_partial: true, ..Verification::default() })
            }
            Self::Store(StoreRequest::SwapStateFiles(..)) => Answer::StateFilesSwapped(Err(why)),
            Self::Preflight(..) => Answer::PreflightDone(Verdict::Inconclusive(why)),
            Self::Probe(..) => Answer::Probed(false),
            Self::Fetch(..) => Answer::ConfigMapFetched(Err(FetchError { why, definite: false })),
            Self::Query(_, Query::Pods) => Answer::PodsObserved(None),
            Self::Query(_, Query::Environment(_)) => Answer::EnvironmentObserved(Environment::default()),
            _ => return None,
        })
    }
}

/// What becomes of a kubelet that found a candidate valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Afterwards {
    /// It ends.
    Ends,
    /// It may wait for its lock file, to be the next kubelet.
    StandsBy,
}

/// What the store is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreRequest {
    /// [`Answer::RecordsRead`] is the answer.
    ReadRecords(Ticket),
    /// Replaces the record, then native's `meta` files; [`Answer::Recorded`].
    Record(Ticket, Box<Records>),
    /// Makes a checkpoint durable, unless one with other bytes is there; [`Answer::Saved`] or [`Answer::OtherBytesSaved`].
    Save(Ticket, Source, Arc<Payload>),
    /// The same of bytes that are on record as this version's: what is there in their place is damaged. [`Answer::Saved`].
    SaveAnew(Ticket, Source, Arc<Payload>),
    /// Asks the node's policy whether ConfigMaps of this namespace may be looked at; [`Answer::NamespaceJudged`].
    JudgeNamespace(Ticket, String),
    /// Verifies a configuration, or renders it and makes it durable; [`Answer::Loaded`].
    Load(Ticket, LoadTarget),
    /// Reads the record, and checkpoints and contents of these versions, and writes anew what can be made again;
    /// [`Answer::Verified`].
    Verify(Ticket, BTreeSet<Version>),
    /// Puts the kubelet's state files in order for a start with these policies; nothing happens if they are in order.
    /// Whatever is interrupted is taken up again by the next one. [`Answer::StateFilesSwapped`].
    SwapStateFiles(Ticket, StateFiles),
    /// Appends to the history, which gives the entry its number; [`Input::Appended`].
    Append(Box<HistoryEntry>),
    /// Gives what the API server may lack of the history, oldest first, each as [`Input::Appended`].
    Unreported,
    /// Notes that the API server has all events up to this number.
    Reported(u64),
    /// Writes, syncs and removes a file. It has no answer of its own: requests are served in order, so an answer to the next
    /// one shows that the disk does not stall. Reads alone may come from the page cache.
    ProbeDisk,
    /// Removes the checkpoints of all other sources, and all other configurations.
    Collect(BTreeSet<Source>, BTreeSet<Digest>),
}

named! {
    /// The label of `store_request_duration_seconds{operation}`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum StoreOperation by as_str {
        /// Of records or history.
        Read = "read",
        /// Verify or render a configuration.
        Load = "load",
        /// Verify all that the record names.
        Verify = "verify",
        /// Of anything.
        Write = "write",
    }
}

impl StoreRequest {
    /// What the disk does for it.
    #[must_use]
    pub fn operation(&self) -> StoreOperation {
        match self {
            Self::ReadRecords(_) | Self::Unreported | Self::JudgeNamespace(..) => StoreOperation::Read,
            Self::Verify(..) => StoreOperation::Verify,
            Self::Load(..) => StoreOperation::Load,
            Self::Record(..)
            | Self::Save(..)
            | Self::SaveAnew(..)
            | Self::SwapStateFiles(..)
            | Self::Append(_)
            | Self::Reported(_)
            | Self::ProbeDisk
            | Self::Collect(..) => StoreOperation::Write,
        }
    }
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
    /// `trial_duration_seconds{result}`, from the decision to switch to the end of the trial.
    Trial(TrialResult, Duration),
    /// `suspensions_total{reason}`.
    Suspension(Suspension),
    /// `adoptions_total`.
    Adoption,
    /// `hazards_refused_total{class}`.
    HazardRefused(HazardClass),
    /// `policy_refused_total`.
    PolicyRefused,
}
