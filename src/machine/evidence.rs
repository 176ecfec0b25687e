//! Evidence: the signals a trial judges by, and what is seen of the node around the kubelet.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::limits;
use kubelet_config::bounds::first_of;
use kubelet_config::named;
use kubelet_config::readmission::Supplies;

named! {
    /// A sign of a healthy kubelet, beside its process and READY=1, which every kubelet gives.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum Signal by label {
        /// The plain healthz listener answers 200.
        Healthz = "healthz",
        /// `WATCHDOG=1` keeps coming; kubelets from v1.32 send it after checking their sync loop
        /// (pkg/kubelet/watchdog/watchdog_linux.go, v1.36).
        Watchdog = "watchdog",
        /// The Node's condition Ready is True, with a heartbeat newer than the start.
        NodeReady = "node-ready",
        /// The Node's Lease is renewed.
        Lease = "lease",
        /// The API server answers the kubelet's own credentials.
        ApiServer = "api-server",
        /// The container runtime answers on its socket.
        Runtime = "runtime",
        /// No running pod was turned away by admission.
        Pods = "pods",
    }
}

impl Signal {
    /// How long it may be bad without a break.
    #[must_use]
    pub fn patience(self, isolation: Duration) -> Duration {
        match self {
            Self::Healthz => limits::HEALTHZ_PATIENCE,
            Self::Watchdog => limits::WATCHDOG_PATIENCE,
            Self::NodeReady | Self::Lease | Self::ApiServer | Self::Runtime => isolation,
            Self::Pods => Duration::ZERO,
        }
    }
}

/// How a configuration failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Failure {
    /// The kubelet ended before it was ready.
    ExitBeforeReady,
    /// The kubelet ended again and again.
    Exits,
    /// It was not ready in time.
    StartTimeout,
    /// A signal that was good before was bad for too long.
    Signal(Signal),
    /// The supervisor was started too often without proof.
    Boots,
    /// Nobody confirmed it in time.
    Unconfirmed,
    /// An operator left it.
    Operator,
}

/// Failures of a family have one cause: if last known good shows another of the same family, the
/// configuration was not at fault for the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureFamily {
    /// The process does not live or answer.
    Process,
    /// The process lives, and has lost contact with the API server.
    Contact,
    /// The container runtime is gone.
    Runtime,
}

impl Failure {
    /// All of them.
    pub fn all() -> impl Iterator<Item = Self> {
        let process = [Self::ExitBeforeReady, Self::Exits, Self::StartTimeout];
        let others = [Self::Boots, Self::Unconfirmed, Self::Operator];
        process.into_iter().chain(Signal::ALL.into_iter().map(Self::Signal)).chain(others)
    }

    /// The label of `rollbacks_total{reason}`.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::ExitBeforeReady => "exit-before-ready",
            Self::Exits => "exits",
            Self::StartTimeout => "start-timeout",
            Self::Signal(signal) => signal.label(),
            Self::Boots => "boots",
            Self::Unconfirmed => "unconfirmed",
            Self::Operator => "operator",
        }
    }

    /// True if this one shows that the node, and no configuration, is to blame for the other. A runtime that is gone
    /// explains them all.
    #[must_use]
    pub fn is_like(self, other: Self) -> bool {
        let alike = self.family().is_some() && self.family() == other.family();
        alike || self == Self::Signal(Signal::Runtime)
    }

    /// Its family; `None` where there is nothing to find out.
    #[must_use]
    pub fn family(self) -> Option<FailureFamily> {
        match self {
            Self::ExitBeforeReady | Self::Exits | Self::StartTimeout => Some(FailureFamily::Process),
            Self::Signal(Signal::Healthz | Signal::Watchdog) => Some(FailureFamily::Process),
            Self::Signal(Signal::NodeReady | Signal::Lease | Signal::ApiServer) => Some(FailureFamily::Contact),
            Self::Signal(Signal::Runtime) => Some(FailureFamily::Runtime),
            Self::Signal(Signal::Pods) | Self::Boots | Self::Unconfirmed | Self::Operator => None,
        }
    }
}

/// What is known of how a version failed, to compare last known good with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FailedRun {
    /// Its kubelet lived for so long.
    pub lived: Duration,
    /// It could not even be started.
    pub unstarted: bool,
    /// The API server was away, and not for the version.
    pub in_outage: bool,
    /// The API server could not be reached when it ended, for whatever reason.
    pub lacked_contact: bool,
    /// What it lacked, the API server or the container runtime, last known good lacked as well.
    pub control_lacked_it: bool,
}

named! {
    /// Why nothing is judged for now.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Suspension by message {
        /// The container runtime does not answer.
        Runtime = "the container runtime does not answer",
        /// The API server went away after the kubelet had been in contact with it, or answers that it is overloaded.
        ApiServer = "the API server is not reachable",
        /// There is no room on the disk.
        DiskFull = "the disk is full",
        /// The system is on its way down.
        ShuttingDown = "the system is shutting down",
    }
}

impl Suspension {
    /// The label of `suspensions_total{reason}`.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Runtime => Signal::Runtime.label(),
            Self::ApiServer => Signal::ApiServer.label(),
            Self::DiskFull => "disk-full",
            Self::ShuttingDown => "shutting-down",
        }
    }
}

/// The signals that were good before a change: only these are judged after it.
pub type Baseline = BTreeSet<Signal>;

/// True if the API server saw the node: its Lease was renewed, or it was Ready.
pub(super) fn tells_of_contact(signals: &Baseline) -> bool {
    signals.contains(&Signal::Lease) || signals.contains(&Signal::NodeReady)
}

/// The Node's condition Ready, and what beside it a restart goes by, as the API server shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeReadiness {
    /// Its status is "True".
    pub ready: bool,
    /// `lastHeartbeatTime`, verbatim: it is compared with itself only, never with a clock.
    pub heartbeat: String,
    /// Its reason and message, for people.
    pub message: String,
    /// What the Node is under, by conditions that are True.
    pub pressure: BTreeSet<NodePressure>,
}

named! {
    /// A condition of the Node for which its kubelet evicts pods, and turns pods away that it is given.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum NodePressure by condition {
        /// `MemoryPressure`.
        Memory = "MemoryPressure",
        /// `DiskPressure`.
        Disk = "DiskPressure",
        /// `PIDPressure`.
        Pid = "PIDPressure",
    }
}

/// Answer to a query for the own Lease, which tells of the API server as well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseObservation {
    /// `spec.renewTime`, verbatim.
    Renewed(String),
    /// The API server answered; there is no Lease, or it is not ours to read.
    Absent,
    /// The API server, or what stands before it, answered that it is overloaded or out of order; with its message.
    Busy(String),
    /// The API server did not answer in time, or refused the credentials; with its message.
    Unreachable(String),
    /// It was not sent in time, for the API server has answered with `Retry-After`.
    HeldBack,
}

/// The node without its kubelet: what is no configuration's fault.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment {
    /// The container runtime answered; `None` where its socket is not known.
    pub runtime: Option<bool>,
    /// The file system of the kubelet's root directory, or of the store, has nothing left.
    pub disk_full: bool,
    /// The system is on its way down.
    pub shutting_down: bool,
    /// What it has left. What cannot be read is left out.
    pub supplies: Supplies,
}

/// What an accepted change waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hold {
    /// So many streams of exec, attach and port-forward run.
    Streams(u32),
    /// The Node is under pressure.
    Pressure(BTreeSet<NodePressure>),
    /// Any restart would cost these pods (with the kubelet's reason); what to write where to accept that, if it can be.
    PodsLost(Vec<String>, Option<&'static str>),
    /// The API server, from which the change came, is away.
    ApiServer,
}

impl Hold {
    /// The label of `change_held{reason}`.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match self {
            Self::Streams(_) => "streams",
            Self::Pressure(_) => "pressure",
            Self::PodsLost(..) => "pods-lost",
            Self::ApiServer => Signal::ApiServer.label(),
        }
    }

    /// All labels.
    pub const LABELS: [&str; 4] = ["streams", "pressure", "pods-lost", "api-server"];
}

impl std::fmt::Display for Hold {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Streams(1) => f.write_str("an exec, attach or port-forward stream runs"),
            Self::Streams(count) => write!(f, "{count} exec, attach or port-forward streams run"),
            Self::Pressure(conditions) => {
                let conditions: Vec<&str> = conditions.iter().map(|it| it.condition()).collect();
                write!(f, "the Node has {}", conditions.join(" and "))
            }
            Self::ApiServer => f.write_str(Suspension::ApiServer.message()),
            Self::PodsLost(pods, acknowledged_by) => {
                // A pod's name may have 253 characters, its namespace 63.
                write!(f, "any restart would cost pods (move them away")?;
                if let Some(how) = acknowledged_by {
                    write!(f, ", or accept it: {how}")?;
                }
                write!(f, "): {}", first_of(pods, 3))
            }
        }
    }
}

/// A question about the node around the kubelet; the answer comes as an input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Query {
    /// The own Lease.
    Lease,
    /// The pods of this node.
    Pods,
    /// The node itself; with the runtime's socket, if known.
    Environment(Option<String>),
    /// The streams through the kubelet of this process id; with the same socket.
    Streams(u32, Option<String>),
}
