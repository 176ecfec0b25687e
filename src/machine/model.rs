//! The node's plain types: moments, rendered configurations, verdicts, exits.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use kubelet_config::bounds::first_of;
use kubelet_config::digest::Digest;
use kubelet_config::flags::{ConfigDir, FlagOverrides};
use kubelet_config::named;
use kubelet_config::policy::Admission;
use kubelet_config::rendering::HealthzTarget;
use kubelet_config::schema::FieldProblem;
use kubelet_config::source::{ConfigAnnotations, Payload, Source};
use kubelet_config::status;

/// What tells one kubelet binary from another (path, inode, size, modification time).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct KubeletId(pub String);

impl KubeletId {
    /// Matches every kubelet binary.
    pub const ANY: Self = Self(String::new());
}

/// A point in time: the boot clock decides, the wall clock is only for people.
#[derive(Clone, Copy, Debug, Default)]
pub struct Moment {
    /// Time since boot (CLOCK_BOOTTIME); never jumps.
    pub boot: Duration,
    /// Wall clock, nanoseconds since 1970; may jump, decides nothing but whether a signature is out of date.
    pub wall_nanos: u64,
}

// Not derived: of two moments at the same boot time the wall clock must not decide either.
impl PartialEq for Moment {
    fn eq(&self, other: &Self) -> bool {
        self.boot == other.boot
    }
}

impl Eq for Moment {}

impl PartialOrd for Moment {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Moment {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.boot.cmp(&other.boot)
    }
}

impl Moment {
    /// Time from `earlier` to `self`; zero if `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        self.boot.saturating_sub(earlier.boot)
    }

    /// The wall clock, seconds since 1970.
    #[must_use]
    pub fn wall_seconds(self) -> u64 {
        self.wall_nanos / 1_000_000_000
    }
}

/// For people the wall clock goes on as the boot clock does.
pub(crate) fn later(moment: Moment, by: Duration) -> Moment {
    let nanos = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
    Moment { boot: moment.boot.saturating_add(by), wall_nanos: moment.wall_nanos.saturating_add(nanos) }
}

/// The same the other way.
pub(crate) fn earlier(moment: Moment, by: Duration) -> Moment {
    let nanos = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
    Moment { boot: moment.boot.saturating_sub(by), wall_nanos: moment.wall_nanos.saturating_sub(nanos) }
}

/// One process of the kubelet: no other has the same process id and time of start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunId {
    /// Its process id.
    pub pid: u32,
    /// CLOCK_BOOTTIME at its start.
    pub started: Duration,
}

/// A kubelet that was started, or that went on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StartedKubelet {
    /// Tells it from all others.
    pub id: RunId,
    /// It ran already, with these very arguments: nothing was started.
    pub adopted: bool,
    /// READY=1 was heard then, of one that goes on: the boot's clock.
    pub ready: Option<Duration>,
}

/// Who begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Beginning {
    /// The supervisor: no kubelet runs.
    Supervisor,
    /// A worker after another one.
    Worker {
        /// The kubelet that runs, if one does that was not told to end.
        running: Option<RunId>,
        /// Why the worker before ended; `None`: it was replaced on request.
        why: Option<String>,
        /// Which worker this is, counted from the start of the supervisor: 1 is the first.
        generation: u64,
    },
}

/// A rendered configuration that is durably on disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rendered {
    /// Equal digests mean equal content.
    pub digest: Digest,
    /// What `--config` is given.
    pub path: String,
    /// What becomes of the unit's own flags.
    pub overrides: FlagOverrides,
    /// What becomes of the unit's `--config-dir`.
    pub config_dir: ConfigDir,
    /// Where the kubelet will answer healthz; `None` where it is off.
    pub healthz: Option<HealthzTarget>,
    /// Remarks for the journal.
    pub notes: Vec<String>,
    /// Fields of the payload that this kubelet may ignore.
    pub problems: Vec<FieldProblem>,
    /// Payload fields without effect, because a command-line flag wins: `maxPods (--max-pods)`.
    pub shadowed: Vec<String>,
    /// What the kubelet will go by: the configuration with flags laid over it. Null if unknown.
    pub effective: Arc<Value>,
    /// Its hard eviction thresholds are not kept from pods, by a flag that is no field.
    pub ignores_eviction: bool,
    /// What the ConfigMap's annotations ask for.
    pub annotations: ConfigAnnotations,
    /// It is made of the local files alone: that the kubelet refuses those in the same way does not excuse it.
    pub is_local_files: bool,
    /// The container runtime's socket, if known.
    pub runtime: Option<String>,
    /// What the node's policy says of it, when it was loaded.
    pub admission: Admission,
}

/// The kubelet's state files that belong to one set of resource manager policies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StateFiles {
    /// The policies and their options, as one key that changes when a kubelet would refuse the
    /// other's files.
    pub policy: String,
    /// Put back what was moved aside when this policy was left; else the kubelet starts afresh.
    pub restore: bool,
    /// Change nothing: a kubelet runs that may be of another policy.
    pub look: bool,
    /// CLOCK_BOOTTIME until which the next start waits for the files. The store does not begin later: another kubelet may run by
    /// then.
    pub until: Duration,
}

/// What became of the kubelet's state files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StateFilesFound {
    /// They are those of the policy.
    InOrder,
    /// The same, once these were put aside: they said another policy than the one that was known to have run.
    PutAside(String),
    /// They are another policy's, and stay until nothing runs.
    OfAnother,
}

named! {
    /// Native's errors of a configuration, as they stand in the status, with native's texts.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(try_from = "String", into = "String")]
    pub enum ConfigError by text {
        /// It cannot be loaded, or failed its trial.
        Load = status::LOAD_ERROR,
        /// The kubelet, or we, refused it.
        Validate = status::VALIDATE_ERROR,
        /// Our own trouble with it.
        Internal = status::INTERNAL_ERROR,
    }
}

impl From<ConfigError> for String {
    fn from(error: ConfigError) -> Self {
        error.text().to_owned()
    }
}

impl TryFrom<String> for ConfigError {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let found = Self::ALL.into_iter().find(|error| error.text() == text);
        found.ok_or_else(|| format!("{text:?} is no error of a configuration"))
    }
}

/// What is to be loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoadTarget {
    /// The local files.
    Local,
    /// The checkpoint of this source, rendered with the local files.
    Source(Source),
    /// What this source, or the local files alone, would be rendered to now: nothing is stored, so it cannot be started.
    DryRun(Option<Source>),
    /// This version, which is not assigned and has no checkpoint: written to be judged.
    Unassigned(Source, Arc<Payload>),
    /// These very bytes; where they are damaged, the checkpoint of this source if it renders to the same content.
    Content(Digest, Source),
}

/// Why a checkpoint could not be turned into a rendered configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub enum RenderError {
    /// The payload is not something the kubelet could load.
    Load(String),
    /// The checkpoint is missing or its checksum is wrong: it must be downloaded again.
    Checkpoint(String),
    /// Our own trouble: disk, permissions, the local file.
    Internal(String),
    /// Followed local files are not whole: they are still being written.
    Unfinished(String),
    /// The node's policy refuses it as it is, unread.
    Policy(String),
    /// The store gave no answer in time: it may be slow.
    NoAnswer(String),
}

/// What the store was found to be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verification {
    /// What is not as it was written.
    pub damage: Vec<Damage>,
    /// Something could not be read: it may be whole, or not.
    pub is_partial: bool,
}

/// Something in the store that is not as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The file, and what is wrong with it.
    pub what: String,
    /// The version whose checkpoint or content it is.
    pub source: Option<Source>,
    /// The content that cannot be started as it is.
    pub content: Option<Digest>,
    /// It was written anew, or why it could not be.
    pub mended: Result<(), String>,
}

/// How what the local files say differs from what runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LocalFilesDifference {
    /// Fields that the kubelet would go by with other values; none if only that it would is known.
    Fields(Vec<String>),
    /// They cannot be used as they are, and why.
    Unusable(String),
}

impl LocalFilesDifference {
    /// Why they cannot be used, if they cannot.
    #[must_use]
    pub fn unusable(&self) -> Option<&str> {
        match self {
            Self::Unusable(why) => Some(why),
            Self::Fields(_) => None,
        }
    }
}

/// So many fields are named.
const NAMED: usize = 10;

impl fmt::Display for LocalFilesDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unusable(why) => write!(f, "the local files cannot be used: {why}"),
            Self::Fields(fields) if fields.is_empty() => {
                f.write_str("the local files differ from what the kubelet runs")
            }
            Self::Fields(fields) => {
                write!(f, "the local files differ from what the kubelet runs: {}", first_of(fields, NAMED))
            }
        }
    }
}

/// What the preflight says of a candidate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The kubelet loads and validates it; with its remarks, such as unknown fields.
    Valid(Vec<String>),
    /// The kubelet cannot load it (native's LoadError); with the kubelet's own message.
    Load(String),
    /// The kubelet refuses it (native's ValidateError); with the kubelet's own message.
    Validate(String),
    /// No judgement to be had; the trial decides. With the reason.
    Inconclusive(String),
    /// The kubelet refuses its own command line, or its local configuration in the same way: no
    /// start could succeed now, and the candidate is not at fault. With the kubelet's message.
    NotItsFault(String),
}

impl Verdict {
    /// What it is counted as.
    #[must_use]
    pub fn result(&self) -> PreflightResult {
        match self {
            Self::Valid(_) => PreflightResult::Valid,
            Self::Load(_) => PreflightResult::Load,
            Self::Validate(_) => PreflightResult::Validate,
            Self::Inconclusive(_) | Self::NotItsFault(_) => PreflightResult::Inconclusive,
        }
    }
}

named! {
    /// The `result` label of `trial_duration_seconds`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum TrialResult by as_str {
        /// It became last known good.
        Proven = "proven",
        /// It failed, was not confirmed in time, or an operator left it.
        RolledBack = "rolled-back",
        /// Something else came first: another version, a reset, a pin, a refusal by another kubelet binary.
        NoVerdict = "no-verdict",
    }
}

named! {
    /// The `result` label of `preflight_total`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum PreflightResult by as_str {
        /// The kubelet accepts the candidate.
        Valid = "valid",
        /// The kubelet cannot load it.
        Load = "load",
        /// The kubelet refuses it.
        Validate = "validate",
        /// There was no verdict on it.
        Inconclusive = "inconclusive",
    }
}

named! {
    /// Why the kubelet is restarted: the `cause` label of `kubelet_restarts_total`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum RestartCause by as_str {
        /// Another configuration is assigned.
        Config = "config",
        /// It ended by itself.
        Exit = "exit",
        /// The assignment was taken away.
        Reset = "reset",
        /// The configuration failed, or was refused.
        Rollback = "rollback",
        /// An operator's command.
        Operator = "operator",
        /// It hung outside a trial and a control test.
        Hung = "hung",
    }
}

/// How the kubelet ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Exit {
    /// `exit(code)`.
    Code(i32),
    /// Killed by this signal.
    Signal(i32),
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Signal(signal) => write!(f, "signal {signal}"),
        }
    }
}
