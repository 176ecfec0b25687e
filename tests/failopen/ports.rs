//! Ports of which a chosen call panics: the real kubelet process, store and files; the rest plays along.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use kubelet_config::rendering::HealthzTarget;
use kubelet_config::source::{ConfigMapRef, Merge, Payload, Source};
use kubelet_config::status::NodeConfigStatus;
use kubelet_supervisor::adapters::fsx::RealDisk;
use kubelet_supervisor::adapters::local_files::LocalFiles;
use kubelet_supervisor::adapters::process::KubeletProcess;
use kubelet_supervisor::adapters::store::FsStore;
use kubelet_supervisor::machine::evidence::{Environment, LeaseObservation};
use kubelet_supervisor::machine::model::{KubeletId, RenderError, Rendered, StateFiles, Verdict};
use kubelet_supervisor::machine::record::HistoryEntry;
use kubelet_supervisor::machine::{Counter, Input, Level, Records, State, Stored};
use kubelet_supervisor::ports::{self, Checkpoint, LocalError, SpawnError, StoreError};
use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedSender;

/// Every method of a port that an effect, the boot or a rendering calls.
pub const METHODS: [&str; 32] = [
    "store.load",
    "store.save",
    "store.open",
    "store.write_rendered",
    "store.record",
    "store.collect",
    "store.swap_state_files",
    "store.append",
    "store.reported",
    "local.config",
    "local.drop_ins",
    "local.kubelet_id",
    "local.default_merge",
    "kubelet.start",
    "kubelet.stop",
    "kubelet.kill",
    "kubelet.log_tail",
    "preflight.judge",
    "preflight.self_test",
    "probe.probe",
    "host.observe",
    "cluster.watch",
    "cluster.publish",
    "cluster.emit",
    "cluster.observe_lease",
    "cluster.observe_pods",
    "notifier.publish",
    "notifier.count",
    "notifier.answer",
    "notifier.log",
    "reexec.prove",
    "reexec.replace",
];

/// Which call panics.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// The n-th of all, from 1; 0: none.
    pub at: u32,
    /// After it has done its work, not before.
    pub after: bool,
    /// The next so many starts of the kubelet panic too.
    pub starts: u32,
}

/// What is seen of a story from outside.
pub struct World {
    fault: Fault,
    calls: Cell<u32>,
    starts: Cell<u32>,
    /// The method that panicked.
    pub fired: Cell<Option<&'static str>>,
    pub called: RefCell<Vec<&'static str>>,
    pub ready: Cell<bool>,
    pub status: RefCell<NodeConfigStatus>,
    pub news: Notify,
    pub inputs: UnboundedSender<Input>,
}

impl World {
    pub fn new(fault: Fault, inputs: UnboundedSender<Input>) -> Rc<World> {
        Rc::new(World {
            fault,
            calls: Cell::new(0),
            starts: Cell::new(fault.starts),
            fired: Cell::new(None),
            called: RefCell::default(),
            ready: Cell::new(false),
            status: RefCell::default(),
            news: Notify::new(),
            inputs,
        })
    }

    fn call<T>(&self, method: &'static str, work: impl FnOnce() -> T) -> T {
        self.calls.set(self.calls.get() + 1);
        self.called.borrow_mut().push(method);
        let due = self.calls.get() == self.fault.at;
        let again = self.fired.get().is_some() && method == "kubelet.start" && self.starts.get() > 0;
        if again {
            self.starts.set(self.starts.get() - 1);
        }
        let panic = |world: &World| {
            world.fired.set(world.fired.get().or(Some(method)));
            world.news.notify_one();
            panic!("fault: {method}");
        };
        if again || due && !self.fault.after {
            panic(self);
        }
        let result = work();
        if due {
            panic(self);
        }
        self.news.notify_one();
        result
    }

    /// The answer of a fake, through the queue.
    fn answer(&self, input: Input) {
        let _ = self.inputs.send(input);
    }
}

/// A port, or what it would talk to.
pub struct Tap<T>(pub Rc<World>, pub T);

pub struct Faulty {
    pub store: Tap<FsStore<RealDisk>>,
    pub local: Tap<LocalFiles>,
    pub kubelet: Tap<KubeletProcess>,
    pub rest: Tap<()>,
    pub cluster: Tap<()>,
    pub notifier: Tap<()>,
    pub probe: Tap<()>,
    pub host: Tap<()>,
}

impl ports::Ports for Faulty {
    fn store(&mut self) -> &mut dyn ports::Store {
        &mut self.store
    }
    fn local(&self) -> &dyn ports::Local {
        &self.local
    }
    fn kubelet(&mut self) -> &mut dyn ports::Kubelet {
        &mut self.kubelet
    }
    fn preflight(&mut self) -> &mut dyn ports::Preflight {
        &mut self.rest
    }
    fn probe(&mut self) -> &mut dyn ports::Probe {
        &mut self.probe
    }
    fn host(&mut self) -> &mut dyn ports::Host {
        &mut self.host
    }
    fn cluster(&mut self) -> &mut dyn ports::Cluster {
        &mut self.cluster
    }
    fn notifier(&mut self) -> &mut dyn ports::Notifier {
        &mut self.notifier
    }
    fn reexec(&mut self) -> &mut dyn ports::Reexec {
        &mut self.rest
    }
}

impl ports::Reexec for Tap<()> {
    fn prove(&mut self, _document: &str) {
        self.0.call("reexec.prove", || {
            let _ = self.0.inputs.send(Input::ReloadProven(Ok("0".to_owned())));
        });
    }
    fn replace(&mut self, _document: &str) -> Result<(), ports::ReexecError> {
        self.0.call("reexec.replace", || Err(ports::ReexecError::OutputBlocked))
    }
}

impl ports::Store for Tap<FsStore<RealDisk>> {
    fn load(&mut self) -> Stored {
        self.0.call("store.load", || self.1.load())
    }
    fn assume(&mut self, records: &Records) {
        self.0.call("store.assume", || self.1.assume(records));
    }
    fn save(&mut self, source: &Source, payload: &Payload) -> Result<(), StoreError> {
        self.0.call("store.save", || self.1.save(source, payload))
    }
    fn open(&mut self, source: &Source) -> Result<Checkpoint, RenderError> {
        self.0.call("store.open", || self.1.open(source))
    }
    fn write_rendered(&mut self, source: &Source, text: &str) -> Result<String, StoreError> {
        self.0.call("store.write_rendered", || self.1.write_rendered(source, text))
    }
    fn record(&mut self, records: &Records) -> Result<(), StoreError> {
        self.0.call("store.record", || self.1.record(records))
    }
    fn collect(&mut self, keep: &BTreeSet<Source>) -> Result<(), StoreError> {
        self.0.call("store.collect", || self.1.collect(keep))
    }
    fn swap_state_files(&mut self, files: &StateFiles) -> Result<(), StoreError> {
        self.0.call("store.swap_state_files", || self.1.swap_state_files(files))
    }
    fn append(&mut self, entry: &HistoryEntry) -> Result<u64, StoreError> {
        self.0.call("store.append", || self.1.append(entry))
    }
    fn history(&mut self) -> Vec<HistoryEntry> {
        self.1.history()
    }
    fn reported(&mut self, number: u64) {
        self.0.call("store.reported", || self.1.reported(number));
    }
    fn unreported(&mut self) -> Vec<HistoryEntry> {
        self.1.unreported()
    }
}

impl ports::Local for Tap<LocalFiles> {
    fn config(&self) -> Result<Option<(String, String)>, LocalError> {
        self.0.call("local.config", || self.1.config())
    }
    fn drop_ins(&self) -> Vec<String> {
        self.0.call("local.drop_ins", || self.1.drop_ins())
    }
    fn kubelet_id(&self) -> KubeletId {
        self.0.call("local.kubelet_id", || self.1.kubelet_id())
    }
    fn default_merge(&self) -> Merge {
        self.0.call("local.default_merge", || self.1.default_merge())
    }
}

impl ports::Kubelet for Tap<KubeletProcess> {
    fn start(&mut self, config: Option<&str>) -> Result<u32, SpawnError> {
        self.0.call("kubelet.start", || self.1.start(config))
    }
    fn stop(&mut self) {
        self.0.call("kubelet.stop", || self.1.stop());
    }
    fn kill(&mut self) {
        self.0.call("kubelet.kill", || self.1.kill());
    }
    fn log_tail(&self) -> Vec<String> {
        self.0.call("kubelet.log_tail", || self.1.log_tail())
    }
}

impl ports::Preflight for Tap<()> {
    fn judge(&mut self, ticket: u64, _candidate: &Rendered) {
        self.0.call("preflight.judge", || self.0.answer(Input::Judged(ticket, Verdict::Valid(Vec::new()))));
    }
    fn self_test(&mut self) {
        self.0.call("preflight.self_test", || self.0.answer(Input::Version("v1.20.2".to_owned())));
    }
}

impl ports::Probe for Tap<()> {
    fn probe(&mut self, _target: &HealthzTarget) {
        self.0.call("probe.probe", || self.0.answer(Input::Probed(true)));
    }
}

impl ports::Host for Tap<()> {
    fn observe(&mut self, _runtime: Option<&str>) {
        self.0.call("host.observe", || self.0.answer(Input::EnvironmentObserved(Environment::default())));
    }
}

impl ports::Cluster for Tap<()> {
    fn watch(&mut self, _map: Option<&ConfigMapRef>) {
        self.0.call("cluster.watch", || ());
    }
    fn publish(&mut self, status: &NodeConfigStatus) {
        self.0.call("cluster.publish", || self.0.status.replace(status.clone()));
    }
    fn emit(&mut self, entry: &HistoryEntry) {
        self.0.call("cluster.emit", || self.0.answer(Input::Reported(entry.number)));
    }
    fn observe_lease(&mut self) {
        self.0.call("cluster.observe_lease", || self.0.answer(Input::LeaseObserved(LeaseObservation::Absent)));
    }
    fn observe_pods(&mut self) {
        self.0.call("cluster.observe_pods", || self.0.answer(Input::PodsObserved(None)));
    }
}

impl ports::Notifier for Tap<()> {
    fn publish(&mut self, state: &State) {
        self.0.call("notifier.publish", || self.0.ready.set(state.is_ready()));
    }
    fn count(&mut self, _counter: &Counter) {
        self.0.call("notifier.count", || ());
    }
    fn answer(&mut self, _ticket: u64, _result: &Result<String, String>) {
        self.0.call("notifier.answer", || ());
    }
    fn ping_watchdog(&mut self) {}
    fn log(&mut self, _level: Level, _line: &str) {
        self.0.call("notifier.log", || ());
    }
}
