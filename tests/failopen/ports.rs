//! Ports of which a chosen call ends the worker: the real kubelet process, store and files; the rest plays along.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use kubelet_config::rendering::HealthzTarget;
use kubelet_config::source::Source;
use kubelet_config::status::{NodeConfigStatus, PreflightAnswer};
use kubelet_supervisor::adapters::kubelet_process::{KubeletProcess, MonitorLink};
use kubelet_supervisor::adapters::store_thread::StoreThread;
use kubelet_supervisor::machine::evidence::{Environment, LeaseObservation};
use kubelet_supervisor::machine::model::{Rendered, RunId, Verdict};
use kubelet_supervisor::machine::{Answer, Counter, Input, Level, State, Ticket};
use kubelet_supervisor::monitor::wire::Request;
use kubelet_supervisor::ports::{
    self, Cluster, ClusterQuery, ClusterRequest, Host, Kubelet, Notifier, Preflight, Probe, Store, StoreRequest,
};
use tokio::sync::mpsc::UnboundedSender;

use crate::worker::{Gate, payload};

/// Every method of a port that an effect or the boot calls; of the store's, every request: when it is asked, and when its thread
/// serves it.
pub fn methods() -> Vec<String> {
    let requests = "ReadRecords Record Save Load Verify SwapStateFiles Append Unreported Reported ProbeDisk Collect";
    let others = "kubelet.start kubelet.stop kubelet.dump_stacks kubelet.log_tail preflight.judge \
                  preflight.self_test probe.probe host.observe cluster.watch cluster.publish cluster.emit \
                  cluster.observe_lease cluster.observe_pods cluster.fetch notifier.publish notifier.count \
                  notifier.answer notifier.log";
    let of_store = requests.split(' ').flat_map(|name| [format!("store.{name}"), format!("disk.{name}")]);
    of_store.chain(others.split(' ').map(str::to_owned)).collect()
}

/// The method's name that a request stands for.
pub fn method(of: &str, request: &StoreRequest) -> String {
    let text = format!("{request:?}");
    format!("{of}.{}", text.split(|char: char| !char.is_alphanumeric()).next().unwrap())
}

pub struct Faulty {
    pub gate: Arc<Gate>,
    pub store: StoreThread,
    pub kubelet: KubeletProcess,
    pub link: MonitorLink,
    pub inputs: UnboundedSender<Input>,
    /// What the kubelet's healthz says.
    pub healthz: Arc<AtomicBool>,
    pub ready: bool,
}

macro_rules! all_are_this {
    ($($method:ident: $port:ident),*) => {
        impl ports::Ports for Faulty {
            $(fn $method(&mut self) -> &mut dyn $port { self })*
        }
    };
}
all_are_this!(store: Store, kubelet: Kubelet, preflight: Preflight, probe: Probe, host: Host, cluster: Cluster, notifier: Notifier);

impl Faulty {
    /// A call that is answered through the queue.
    fn reply(&self, method: &str, input: Input) {
        self.gate.call(method, || self.inputs.send(input).unwrap());
    }
}

impl Store for Faulty {
    fn submit(&mut self, request: StoreRequest) -> Vec<Input> {
        self.gate.call(&method("store", &request), || self.store.submit(request))
    }
    fn finish(&mut self, limit: Duration) {
        self.gate.call("store.finish", || self.store.finish(limit));
    }
}

impl Kubelet for Faulty {
    fn start(&mut self, config: Option<&Rendered>) -> Vec<Input> {
        self.gate.call("kubelet.start", || self.kubelet.start(config))
    }
    fn go_on(&mut self, run: RunId) -> Vec<Input> {
        self.gate.call("kubelet.go_on", || self.kubelet.go_on(run))
    }
    fn stop(&mut self) {
        self.gate.call("kubelet.stop", || self.kubelet.stop());
    }
    fn dump_stacks(&mut self) {
        self.gate.call("kubelet.dump_stacks", || self.kubelet.dump_stacks());
    }
    fn log_tail(&self) -> Vec<String> {
        self.gate.call("kubelet.log_tail", || self.kubelet.log_tail())
    }
}

impl Preflight for Faulty {
    fn judge(&mut self, ticket: Ticket, _candidate: &Rendered) {
        self.reply("preflight.judge", Input::Answer(ticket, Answer::PreflightDone(Verdict::Valid(Vec::new()))));
    }
    fn self_test(&mut self) {
        self.reply("preflight.self_test", Input::KubeletVersion("v1.20.2".to_owned()));
    }
}

impl Probe for Faulty {
    fn probe(&mut self, ticket: Ticket, _target: &HealthzTarget) {
        self.reply("probe.probe", Input::Answer(ticket, Answer::Probed(self.healthz.load(SeqCst))));
    }
}

impl Host for Faulty {
    fn observe(&mut self, ticket: Ticket, _runtime: Option<&str>) {
        let environment = Environment { runtime: Some(true), ..Environment::default() };
        self.reply("host.observe", Input::Answer(ticket, Answer::EnvironmentObserved(environment)));
    }
    fn observe_streams(&mut self, ticket: Ticket, _pid: u32, _runtime: Option<&str>) {
        self.reply("host.observe_streams", Input::Answer(ticket, Answer::StreamsObserved(None)));
    }
}

impl Cluster for Faulty {
    fn submit(&mut self, request: ClusterRequest) {
        match request {
            ClusterRequest::Watch(Some(map)) => {
                self.reply("cluster.watch", Input::ConfigMap(Arc::new(payload(&map.name))));
            }
            ClusterRequest::Watch(None) => self.gate.call("cluster.watch", || ()),
            ClusterRequest::Publish(status) => self.tell(&status),
            ClusterRequest::Emit(entry) => self.reply("cluster.emit", Input::Reported(entry.number)),
            ClusterRequest::Query(ClusterQuery::Lease(ticket)) => {
                self.reply(
                    "cluster.observe_lease",
                    Input::Answer(ticket, Answer::LeaseObserved(LeaseObservation::Absent)),
                );
            }
            ClusterRequest::Query(ClusterQuery::Pods(ticket)) => {
                self.reply("cluster.observe_pods", Input::Answer(ticket, Answer::PodsObserved(None)));
            }
            ClusterRequest::Query(ClusterQuery::ConfigMap(ticket, map)) => {
                self.reply(
                    "cluster.fetch",
                    Input::Answer(ticket, Answer::ConfigMapFetched(Ok(Arc::new(payload(&map.name))))),
                );
            }
        }
    }
}

impl Faulty {
    fn tell(&self, status: &NodeConfigStatus) {
        let name = |source: &Option<Source>| source.as_ref().map_or("local".into(), |it| it.reference.name.clone());
        let said = matches!(status.preflight, PreflightAnswer::Said(_));
        let (active, good, failed) = (name(&status.active), name(&status.last_known_good), status.error.is_some());
        let line = format!("status active={active} good={good} failed={failed} said={said}");
        self.gate.call("cluster.publish", || self.gate.tell(&line));
    }
}

impl Notifier for Faulty {
    fn publish(&mut self, state: &State) {
        let is_news = state.is_ready() != std::mem::replace(&mut self.ready, state.is_ready());
        self.gate.call("notifier.publish", || {
            self.link.send(&Request::Beat);
            if is_news {
                self.gate.tell(&format!("ready {}", state.is_ready()));
            }
        });
    }
    fn count(&mut self, _counter: &Counter) {
        self.gate.call("notifier.count", || ());
    }
    fn answer(&mut self, _ticket: u64, _result: &Result<String, String>) {
        self.gate.call("notifier.answer", || ());
    }
    fn ping_watchdog(&mut self) {}
    fn log(&mut self, _level: Level, line: &str) {
        self.gate.call("notifier.log", || eprintln!("{line}"));
    }
}
