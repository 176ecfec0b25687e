//! Ports of which a chosen call panics: the real kubelet process, store and files; the rest plays along.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use kubelet_config::rendering::HealthzTarget;
use kubelet_config::source::ConfigMapRef;
use kubelet_config::status::NodeConfigStatus;
use kubelet_supervisor::adapters::kubelet_process::KubeletProcess;
use kubelet_supervisor::machine::evidence::{Environment, LeaseObservation};
use kubelet_supervisor::machine::history::HistoryEntry;
use kubelet_supervisor::machine::model::{Rendered, Verdict};
use kubelet_supervisor::machine::{Counter, Input, Level, State, Ticket};
use kubelet_supervisor::ports::{self, SpawnError, Store, StoreRequest};
use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedSender;

/// Every method of a port that an effect or the boot calls; of the store's, every request.
pub const METHODS: [&str; 30] = [
    "store.read_records",
    "store.record",
    "store.save",
    "store.load",
    "store.verify",
    "store.swap_state_files",
    "store.append",
    "store.unreported",
    "store.reported",
    "store.probe_disk",
    "store.collect",
    "kubelet.start",
    "kubelet.stop",
    "kubelet.dump_stacks",
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
    "cluster.fetch",
    "notifier.publish",
    "notifier.count",
    "notifier.answer",
    "notifier.log",
];

/// Which call panics.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fault {
    /// The n-th of all, from 1; 0: none.
    pub at: u32,
    /// The first of this method.
    pub method: Option<&'static str>,
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
    /// The kubelet answers healthz.
    pub healthz: Cell<bool>,
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
            healthz: Cell::new(true),
            status: RefCell::default(),
            news: Notify::new(),
            inputs,
        })
    }

    fn call<T>(&self, method: &'static str, work: impl FnOnce() -> T) -> T {
        self.calls.set(self.calls.get() + 1);
        self.called.borrow_mut().push(method);
        let first = self.fault.method == Some(method) && self.fired.get().is_none();
        let due = self.calls.get() == self.fault.at || first;
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
    store: Tap<Box<dyn Store>>,
    kubelet: Tap<KubeletProcess>,
    rest: Tap<()>,
    cluster: Tap<()>,
    notifier: Tap<()>,
    probe: Tap<()>,
    host: Tap<()>,
}

impl Faulty {
    pub fn new(world: &Rc<World>, store: Box<dyn Store>, kubelet: KubeletProcess) -> Self {
        let rest = || Tap(world.clone(), ());
        Self {
            store: Tap(world.clone(), store),
            kubelet: Tap(world.clone(), kubelet),
            rest: rest(),
            cluster: rest(),
            notifier: rest(),
            probe: rest(),
            host: rest(),
        }
    }
}

impl ports::Ports for Faulty {
    fn store(&mut self) -> &mut dyn ports::Store {
        &mut self.store
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
}

/// The name of a request, as a method.
pub fn method(request: &StoreRequest) -> &'static str {
    match request {
        StoreRequest::ReadRecords(_) => "store.read_records",
        StoreRequest::Record(..) => "store.record",
        StoreRequest::Save(..) => "store.save",
        StoreRequest::Load(..) => "store.load",
        StoreRequest::Verify(..) => "store.verify",
        StoreRequest::SwapStateFiles(..) => "store.swap_state_files",
        StoreRequest::Append(_) => "store.append",
        StoreRequest::Unreported => "store.unreported",
        StoreRequest::Reported(_) => "store.reported",
        StoreRequest::ProbeDisk => "store.probe_disk",
        StoreRequest::Collect(..) => "store.collect",
    }
}

impl Store for Tap<Box<dyn Store>> {
    fn submit(&mut self, request: StoreRequest) -> Vec<Input> {
        self.0.call(method(&request), || self.1.submit(request))
    }
    fn finish(&mut self, limit: Duration) {
        self.0.call("store.finish", || self.1.finish(limit));
    }
}

impl ports::Kubelet for Tap<KubeletProcess> {
    fn start(&mut self, config: Option<&Rendered>) -> Result<u32, SpawnError> {
        self.0.call("kubelet.start", || self.1.start(config))
    }
    fn stop(&mut self) {
        self.0.call("kubelet.stop", || self.1.stop());
    }
    fn dump_stacks(&mut self) {
        self.0.call("kubelet.dump_stacks", || self.1.dump_stacks());
    }
    fn kill(&mut self) {
        self.0.call("kubelet.kill", || self.1.kill());
    }
    fn log_tail(&self) -> Vec<String> {
        self.0.call("kubelet.log_tail", || self.1.log_tail())
    }
}

impl ports::Preflight for Tap<()> {
    fn judge(&mut self, ticket: Ticket, _candidate: &Rendered) {
        self.0.call("preflight.judge", || self.0.answer(Input::PreflightDone(ticket, Verdict::Valid(Vec::new()))));
    }
    fn self_test(&mut self) {
        self.0.call("preflight.self_test", || self.0.answer(Input::KubeletVersion("v1.20.2".to_owned())));
    }
}

impl ports::Probe for Tap<()> {
    fn probe(&mut self, ticket: Ticket, _target: &HealthzTarget) {
        self.0.call("probe.probe", || self.0.answer(Input::Probed(ticket, self.0.healthz.get())));
    }
}

impl ports::Host for Tap<()> {
    fn observe(&mut self, ticket: Ticket, _runtime: Option<&str>) {
        let environment = Environment { runtime: Some(true), ..Environment::default() };
        self.0.call("host.observe", || self.0.answer(Input::EnvironmentObserved(ticket, environment)));
    }
    fn observe_streams(&mut self, ticket: Ticket, _pid: u32, _runtime: Option<&str>) {
        self.0.call("host.observe_streams", || self.0.answer(Input::StreamsObserved(ticket, None)));
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
    fn observe_lease(&mut self, ticket: Ticket) {
        self.0.call("cluster.observe_lease", || self.0.answer(Input::LeaseObserved(ticket, LeaseObservation::Absent)));
    }
    fn observe_pods(&mut self, ticket: Ticket) {
        self.0.call("cluster.observe_pods", || self.0.answer(Input::PodsObserved(ticket, None)));
    }
    fn fetch(&mut self, ticket: Ticket, _map: &ConfigMapRef) {
        let payload = std::sync::Arc::new(super::payload("good", "startDelay: 1ms"));
        self.0.call("cluster.fetch", || self.0.answer(Input::ConfigMapFetched(ticket, Ok(payload))));
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
