//! What the core's effects need of the outside. Signatures use core types only.
//!
//! Every call returns at once; what takes time answers later with an [`Input`](crate::core::machine::Input)
//! through the daemon's queue.

use std::collections::BTreeSet;

use crate::core::machine::{Durable, Stored};
use crate::core::model::{
    ConfigMapRef, HealthzTarget, KubeletId, Merge, Moment, Payload, RenderError, Rendered, Source,
};
use crate::core::report::{Event, NodeConfigStatus};

/// Time.
pub trait Clock {
    /// The present moment.
    fn now(&self) -> Moment;
}

/// The durable store. Synchronous: files of a few KiB, and order matters.
pub trait Store {
    /// Reads the records; unreadable ones say why.
    fn load(&mut self) -> Stored;
    /// Makes a checkpoint durable.
    ///
    /// # Errors
    /// What failed, with the path.
    fn save(&mut self, source: &Source, payload: &Payload) -> Result<(), String>;
    /// Verifies a checkpoint against its checksums and gives its texts.
    ///
    /// # Errors
    /// [`RenderError::Checkpoint`] if it is missing or damaged.
    fn open(&mut self, source: &Source) -> Result<Checkpoint, RenderError>;
    /// Makes a rendered configuration durable and gives its path.
    ///
    /// # Errors
    /// What failed, with the path.
    fn write_rendered(&mut self, source: &Source, text: &str) -> Result<String, String>;
    /// Writes the records that differ from those last written: ledger, assigned, last known good.
    ///
    /// # Errors
    /// What failed, with the path; the records before it are written.
    fn record(&mut self, records: &Durable) -> Result<(), String>;
    /// Removes the checkpoints of all other sources.
    ///
    /// # Errors
    /// What failed, with the path.
    fn collect(&mut self, keep: &BTreeSet<Source>) -> Result<(), String>;
}

/// A verified checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checkpoint {
    /// Its directory, absolute.
    pub dir: String,
    /// Content by key.
    pub files: std::collections::BTreeMap<String, String>,
    /// The ConfigMap's merge annotation.
    pub merge: Option<String>,
}

/// The node's own files: what the kubelet would use without us.
pub trait Local {
    /// The `--config` file: its text and directory; `None` if the kubelet has none.
    ///
    /// # Errors
    /// Why it cannot be read.
    fn config(&self) -> Result<Option<(String, String)>, String>;
    /// Texts of the `--config-dir` drop-ins, in the kubelet's order; unreadable ones are left out.
    fn drop_ins(&self) -> Vec<String>;
    /// The identity of the kubelet binary.
    fn kubelet_id(&self) -> KubeletId;
    /// The merge mode of ConfigMaps that say nothing.
    fn default_merge(&self) -> Merge;
}

/// The kubelet process. Its end and its READY=1 come as inputs.
pub trait Kubelet {
    /// Starts it with this `--config`, or with its own.
    ///
    /// # Errors
    /// Why it cannot be started.
    fn start(&mut self, config: Option<&str>) -> Result<u32, String>;
    /// SIGTERM.
    fn stop(&mut self);
    /// SIGKILL.
    fn kill(&mut self);
}

/// The kubelet as a judge. Its verdict comes as an input with the ticket.
pub trait Preflight {
    /// Begins to judge; an earlier run is dropped.
    fn judge(&mut self, ticket: u64, candidate: &Rendered);
    /// Finds out, at leisure, whether this kubelet binary can serve as a judge.
    fn self_test(&mut self);
}

/// healthz. The answer comes as an input.
pub trait Probe {
    /// Asks once.
    fn probe(&mut self, target: &HealthzTarget);
}

/// The API server. Nodes and ConfigMaps come as inputs.
pub trait Cluster {
    /// Watches this ConfigMap, or none.
    fn watch(&mut self, map: Option<&ConfigMapRef>);
    /// The status to bring to the Node, sooner or later.
    fn publish(&mut self, status: &NodeConfigStatus);
    /// Sends an event, best effort.
    fn emit(&mut self, event: &Event);
}

/// Whoever started us, and whoever scrapes us.
pub trait Notifier {
    /// The state changed: READY and STATUS to systemd, metrics, the status document.
    fn observe(&mut self, state: &crate::core::machine::State);
    /// Something to count.
    fn count(&mut self, counter: &crate::core::machine::Counter);
    /// A line for the journal.
    fn say(&mut self, level: crate::core::machine::Level, line: &str);
}

/// All of them.
pub trait Ports {
    /// The store.
    fn store(&mut self) -> &mut dyn Store;
    /// The node's files.
    fn local(&self) -> &dyn Local;
    /// The process.
    fn kubelet(&mut self) -> &mut dyn Kubelet;
    /// The judge.
    fn preflight(&mut self) -> &mut dyn Preflight;
    /// healthz.
    fn probe(&mut self) -> &mut dyn Probe;
    /// The API server.
    fn cluster(&mut self) -> &mut dyn Cluster;
    /// systemd, metrics, journal.
    fn notifier(&mut self) -> &mut dyn Notifier;
}
