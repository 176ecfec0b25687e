//! What the machine's effects need of the outside: a trait for each outside thing, implemented by an adapter, by the
//! simulator and by tests. Signatures use the machine's types only.
//!
//! What takes time answers later with an [`Input`](crate::machine::Input) through the daemon's queue. One call waits:
//! the store's `finish` when we leave. `daemon/exec.rs` carries out the effects;
//! beside it the main loop ends or saves the process, and nothing else calls them.
//!
//! The errors of this module keep path and cause; their text is what status and journal show.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::machine::evidence::LeaseObservation;
use crate::machine::history::HistoryEntry;
use crate::machine::model::{KubeletId, Moment, Rendered, RunId};
use crate::machine::{Answer, FetchError, Input, Ticket};

pub use crate::machine::StoreRequest;
use kubelet_config::own_files::DropIn;
use kubelet_config::policy::NodePolicy;
use kubelet_config::rendering::HealthzTarget;
use kubelet_config::schema;
use kubelet_config::source::{ConfigAnnotations, ConfigMapRef, Merge};
use kubelet_config::status::NodeConfigStatus;

/// CLOCK_BOOTTIME and the wall clock.
pub trait Clock {
    /// Both clocks, read now.
    fn now(&self) -> Moment;
}

/// The durable store and the local files. One request at a time is served, in order; each that has a ticket is
/// answered by one input, in its own time: a disk may stall.
pub trait Store {
    /// Takes a request; gives the answers that are there already (from a thread: none).
    fn submit(&mut self, request: StoreRequest) -> Vec<Input>;
    /// Waits until all requests are served, but no longer than this: the supervisor ends.
    fn finish(&mut self, _limit: Duration) {}
}

/// Why something was not made durable; with the file or directory that it is about.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct StoreError(String);

impl StoreError {
    /// In these words.
    pub fn new(why: impl Into<String>) -> Self {
        Self(why.into())
    }

    /// What the disk says of a file or directory.
    pub fn disk(path: &Path, cause: impl Display) -> Self {
        Self(format!("{}: {cause}", path.display()))
    }
}

/// A verified checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checkpoint {
    /// Its directory, absolute.
    pub dir: String,
    /// Content by key.
    pub files: BTreeMap<String, String>,
    /// Keys of the ConfigMap's `binaryData`, whose content is not kept.
    pub binary_keys: BTreeSet<String>,
    /// What the ConfigMap's annotations ask for.
    pub annotations: ConfigAnnotations,
}

/// The local files: what the kubelet would use without us.
pub trait Local {
    /// The `--config` file: its text and directory; `None` if the kubelet has none.
    ///
    /// # Errors
    /// Why it cannot be read.
    fn config(&self) -> Result<Option<(String, String)>, LocalError>;
    /// The `--config-dir` drop-ins, in the kubelet's order.
    ///
    /// # Errors
    /// What cannot be read: the directory, or a file of it. The kubelet would not start.
    fn drop_ins(&self) -> Result<Vec<DropIn>, LocalError>;
    /// Followed files at one moment: what is read between two that are equal is whole. Empty if they are not followed.
    ///
    /// # Errors
    /// Somebody has one open for writing, or others than root can change it.
    fn snapshot(&self) -> Result<Snapshot, LocalError> {
        Ok(Snapshot::default())
    }
    /// CLOCK_BOOTTIME; zero where nothing is ever late.
    fn boot_time(&self) -> Duration {
        Duration::ZERO
    }
    /// The identity of the kubelet binary.
    fn kubelet_id(&self) -> KubeletId;
    /// The kubelet's minor version, if it is known by now.
    fn kubelet_minor(&self) -> Option<u64> {
        None
    }
    /// The merge mode of ConfigMaps that say nothing.
    fn default_merge(&self) -> Merge;
    /// The node's policy, read now.
    ///
    /// # Errors
    /// Why it cannot be read, or what in it is wrong.
    fn policy(&self) -> Result<LocalPolicy, String> {
        Ok(LocalPolicy::default())
    }
}

/// The version of the kubelet's binary, once it has said so: `v1.30.2`. What a configuration means depends on it, and a kubelet
/// is started before there is time to ask. So what a binary said is kept for the next supervisor.
#[derive(Clone, Debug, Default)]
pub struct KubeletVersion {
    said: Arc<Mutex<Option<(KubeletId, String)>>>,
    /// Where that is kept, with the binary's identity; `None`: nowhere.
    kept: Option<PathBuf>,
}

impl KubeletVersion {
    /// One that is kept in this private directory.
    pub(crate) fn kept_in(dir: &Path) -> Self {
        Self { kept: Some(dir.join("kubelet-version")), ..Self::default() }
    }

    /// The file that it is kept in.
    pub(crate) fn file(&self) -> Option<&Path> {
        self.kept.as_deref()
    }

    /// That file's content.
    pub(crate) fn text(id: &KubeletId, version: &str) -> String {
        format!("{version}\n{}\n", id.0)
    }

    /// What this binary said, by that file's content. Another binary may be another version.
    pub(crate) fn learn(&self, id: &KubeletId, text: &str) {
        if let Some((version, of)) = text.split_once('\n')
            && of.trim_end_matches('\n') == id.0
        {
            self.set(id, Some(version.to_owned()));
        }
    }

    pub(crate) fn set(&self, id: &KubeletId, version: Option<String>) {
        *self.said.lock() = version.map(|version| (id.clone(), version));
    }

    /// `None`: it did not say so yet, or does not.
    pub(crate) fn get(&self) -> Option<String> {
        self.said.lock().clone().map(|(_, version)| version)
    }

    /// The same, if it was this binary that said so.
    pub(crate) fn of(&self, id: &KubeletId) -> Option<String> {
        self.said.lock().clone().filter(|(of, _)| of == id).map(|(_, version)| version)
    }

    /// The same as a minor version.
    pub(crate) fn minor_of(&self, id: &KubeletId) -> Option<u64> {
        schema::minor(&self.of(id)?).ok()
    }
}

/// What is read of followed local files: of none that is half written, or that others than root can change.
///
/// # Errors
/// What the reader says; or that the files are not whole.
pub fn read_whole<T, E: From<LocalError>>(local: &impl Local, read: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    let before = local.snapshot()?;
    let found = read()?;
    if local.snapshot()? == before {
        return Ok(found);
    }
    Err(LocalError::Unfinished("the local files change while they are read".to_owned()).into())
}

/// Of each file what differs once it is another, or was written.
pub type Snapshot = Vec<[u64; 7]>;

/// The node's policy, and what of the supervisor's options it is read with.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LocalPolicy {
    /// `None`: there is none.
    pub policy: Option<NodePolicy>,
    /// Where there is none: why one could not be used, for who else could put it there.
    pub unguarded: Option<String>,
    /// Namespaces that a label may name where the policy names none.
    pub label_namespaces: BTreeSet<String>,
}

/// Why the kubelet's own files cannot be read; with the file or directory that it is about.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub enum LocalError {
    /// The disk does not give them, or they cannot be a kubelet's.
    Unreadable(String),
    /// Others than root can change it.
    Unsafe(String),
    /// Whoever writes it is not done.
    Unfinished(String),
}

impl LocalError {
    /// What the disk says of a file or directory.
    pub fn disk(path: &Path, cause: impl Display) -> Self {
        Self::Unreadable(format!("{}: {cause}", path.display()))
    }
}

/// The kubelet process. Its end and its READY=1 come as inputs.
pub trait Kubelet {
    /// Has it run with this configuration and its flags, or with the unit's own. One that runs with these very arguments goes
    /// on, and says READY=1 once more if it did; another one is ended first. A standby is it, or is ended. Gives
    /// [`Input::Started`] if that is known at once; else it comes later.
    fn start(&mut self, config: Option<&Rendered>) -> Vec<Input>;
    /// Goes on with the kubelet that a worker before left; it says READY=1 once more if it did. Gives [`Input::Started`] at once:
    /// an error if that kubelet is no more.
    fn go_on(&mut self, run: RunId) -> Vec<Input>;
    /// SIGTERM to the kubelet that runs, whichever worker had it started, and SIGKILL after [`STOP_GRACE`](crate::machine::limits::STOP_GRACE).
    fn stop(&mut self);
    /// SIGQUIT: it writes its stacks to stderr, and ends, as with [`Kubelet::stop`].
    fn dump_stacks(&mut self);
    /// The last lines it wrote to its standard error, oldest first.
    fn log_tail(&self) -> Vec<String>;
}

/// The kubelet's own binary, which judges candidates.
pub trait Preflight {
    /// Begins to judge, an earlier run is dropped; [`Answer::PreflightDone`](crate::machine::Answer) has the verdict and the
    /// ticket.
    fn judge(&mut self, ticket: Ticket, candidate: &Rendered);
    /// The same by a kubelet that may then stand by: started with this configuration, and waiting for its lock file, it is what
    /// [`Kubelet::start`] lets go on if that is what is to be started. An earlier standby is ended.
    fn judge_for_standby(&mut self, ticket: Ticket, candidate: &Rendered) {
        self.judge(ticket, candidate);
    }
    /// Ends the standby, if there is one or one is on its way; the verdict comes all the same.
    fn discard_standby(&mut self) {}
    /// Finds out whether this binary tells good from bad, before a change needs it.
    fn self_test(&mut self);
}

/// The kubelet's healthz.
pub trait Probe {
    /// Asks once; [`Answer::Probed`](crate::machine::Answer) is the answer.
    fn probe(&mut self, ticket: Ticket, target: &HealthzTarget);
}

/// The API server. Nodes and ConfigMaps come as inputs.
pub trait Cluster {
    /// Takes a request; what has an answer is answered by one input.
    fn submit(&mut self, request: ClusterRequest);
}

/// What the API server is asked for, or is to be told.
#[derive(Clone, Debug)]
pub enum ClusterRequest {
    /// Watch this ConfigMap, or none.
    Watch(Option<ConfigMapRef>),
    /// The status that the Node is to show; the latest counts, and is written once the API server takes it.
    Publish(Box<NodeConfigStatus>),
    /// Send an event, in order; [`Input::Reported`](crate::machine::Input) when it is there.
    Emit(Box<HistoryEntry>),
    /// A question that has exactly one answer.
    Query(ClusterQuery),
}

/// What the API server is asked once.
#[derive(Clone, Debug)]
pub enum ClusterQuery {
    /// The own Lease; [`Answer::LeaseObserved`](crate::machine::Answer) is the answer.
    Lease(Ticket),
    /// The pods of the own Node; [`Answer::PodsObserved`](crate::machine::Answer) is the answer.
    Pods(Ticket),
    /// This ConfigMap; [`Answer::ConfigMapFetched`](crate::machine::Answer) is the answer.
    ConfigMap(Ticket, ConfigMapRef),
}

impl ClusterQuery {
    /// The answer without a connection.
    pub(crate) fn without_answer(self, why: &str) -> Input {
        match self {
            Self::Lease(ticket) => {
                Input::Answer(ticket, Answer::LeaseObserved(LeaseObservation::Unreachable(why.to_owned())))
            }
            Self::Pods(ticket) => Input::Answer(ticket, Answer::PodsObserved(None)),
            Self::ConfigMap(ticket, _) => Input::Answer(
                ticket,
                Answer::ConfigMapFetched(Err(FetchError { why: why.to_owned(), definite: false })),
            ),
        }
    }
}

/// The node around the kubelet: its container runtime, disks, memory, shutdown.
pub trait Host {
    /// Observes them once, the runtime at this endpoint; [`Answer::EnvironmentObserved`](crate::machine::Answer) is the
    /// answer.
    fn observe(&mut self, ticket: Ticket, runtime: Option<&str>);
    /// Counts the streams of exec, attach and port-forward between the kubelet of this process id and that runtime;
    /// [`Answer::StreamsObserved`](crate::machine::Answer) is the answer.
    fn observe_streams(&mut self, ticket: Ticket, pid: u32, runtime: Option<&str>);
}

/// systemd, metrics, journal and the answers to operators.
pub trait Notifier {
    /// After each step: READY and STATUS to systemd, metrics, the status document.
    fn publish(&mut self, state: &crate::machine::State);
    /// Counts in the metrics.
    fn count(&mut self, counter: &crate::machine::Counter);
    /// What became of an operator's command.
    fn answer(&mut self, ticket: u64, result: &Result<String, String>);
    /// A ping for systemd's watchdog.
    fn ping_watchdog(&mut self);
    /// A line for the journal.
    fn log(&mut self, level: crate::machine::Level, line: &str);
}

/// All ports, as the executor has them.
#[allow(missing_docs, reason = "each gives the port that it is named after")]
pub trait Ports {
    fn store(&mut self) -> &mut dyn Store;
    fn kubelet(&mut self) -> &mut dyn Kubelet;
    fn preflight(&mut self) -> &mut dyn Preflight;
    fn probe(&mut self) -> &mut dyn Probe;
    fn host(&mut self) -> &mut dyn Host;
    fn cluster(&mut self) -> &mut dyn Cluster;
    fn notifier(&mut self) -> &mut dyn Notifier;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_believed_of_the_binary_that_said_so() {
        let (old, new) = (KubeletId("/k:1:2".to_owned()), KubeletId("/k:1:3".to_owned()));
        let version = KubeletVersion::default();
        let text = KubeletVersion::text(&old, "v1.26.3");
        version.learn(&new, &text);
        assert_eq!((version.minor_of(&old), version.minor_of(&new)), (None, None), "another one by now");
        version.learn(&old, &text);
        assert_eq!((version.minor_of(&old), version.minor_of(&new)), (Some(26), None));
        for torn in ["", "v1.26.3", "v1.26.3\n", "\n\n"] {
            let version = KubeletVersion::default();
            version.learn(&old, torn);
            assert_eq!(version.minor_of(&old), None, "{torn:?}");
        }
        version.set(&new, Some("v1.27.1".to_owned()));
        assert_eq!((version.minor_of(&new), version.get()), (Some(27), Some("v1.27.1".to_owned())));
    }
}
