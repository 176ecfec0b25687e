//! Many supervisors in one process: the real core, executor and API server adapter each, over a kubelet, a disk and a
//! node that are played.
//!
//! Time is tokio's, so that it may be a simulated one. What a kubelet does with a ConfigMap is its node's [`Outcome`].

pub mod log;
mod stand_in;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use kube::api::{Patch, PatchParams};
use kube::core::request::Request;
use kubelet_config::source::{Payload, Source};
use kubelet_supervisor::adapters::kube::{Access, ClientLayer, Connected, Fingerprint, KubeCluster};
use kubelet_supervisor::adapters::metrics::Metrics;
use kubelet_supervisor::daemon::exec::Executor;
use kubelet_supervisor::machine::model::{Beginning, Moment};
use kubelet_supervisor::machine::{Input, Settings, State};
use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use stand_in::StandIn;

/// What a node's kubelet does with a ConfigMap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Outcome {
    #[default]
    Good,
    /// It does not pass the preflight.
    Rejects,
    /// It dies some time after its start, again and again.
    RollsBack,
}

/// How long things take.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// `--trial-duration`.
    pub trial: Duration,
    /// A preflight.
    pub preflight: Duration,
    /// From its start until a kubelet is ready.
    pub ready: Duration,
    /// From there until one dies whose outcome that is.
    pub trouble: Duration,
}

/// A node, as the test has a hand in it.
#[derive(Debug, Default)]
pub struct Control {
    /// By the name of a ConfigMap.
    pub outcomes: BTreeMap<String, Outcome>,
    /// Its Node is not Ready until then, whatever its kubelet does.
    pub unready_until: Option<Instant>,
}

/// A node, as its parts share it.
#[derive(Debug, Default)]
struct Node {
    name: String,
    control: Mutex<Control>,
    poke: Notify,
    up: AtomicBool,
}

impl Node {
    fn control(&self) -> MutexGuard<'_, Control> {
        self.control.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// What a kubelet tells of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Report {
    /// It is up. Before, it says nothing, and its Node stays as it is.
    up: bool,
    /// Counts on with each start.
    start: u64,
}

/// Where API server and time come from.
#[derive(Clone)]
pub struct Surroundings {
    /// Makes the client of one supervisor, with this layer around it.
    pub connect: Arc<dyn Fn(ClientLayer) -> kube::Client + Send + Sync>,
    /// That of all kubelets.
    pub kubelets: kube::Client,
    /// `--config-namespace`.
    pub namespace: String,
    pub pace: Pace,
}

/// Dropping it ends them all.
pub struct Fleet {
    surroundings: Surroundings,
    nodes: Mutex<BTreeMap<String, Member>>,
    /// Some kubelet has come up.
    news: Arc<Notify>,
    /// All machines have the same time.
    clock: Clock,
}

struct Member {
    node: Arc<Node>,
    _tasks: JoinSet<()>,
}

impl Fleet {
    pub fn new(surroundings: Surroundings) -> Fleet {
        Fleet { surroundings, nodes: Mutex::default(), news: Arc::default(), clock: Clock::new() }
    }

    /// A further node, with this proven on its disk. Its Node is there.
    pub fn add(&self, name: &str, proven: Option<(Source, Payload)>) {
        let Surroundings { connect, kubelets, namespace, pace } = self.surroundings.clone();
        let node = Arc::new(Node { name: name.to_owned(), ..Node::default() });
        let (inputs, queue) = unbounded_channel();
        let access = Given { connect, node_name: name.to_owned() };
        let cluster = KubeCluster::start(access, namespace, inputs.clone(), Metrics::new());
        let (report, reports) = watch::channel(Report::default());
        let stand_in = StandIn::new(Arc::clone(&node), pace, cluster, inputs, report, proven);
        let settings = Settings { trial_duration: pace.trial, ..Settings::default() };
        let executor = Executor::new(State::new(settings), stand_in);
        let mut tasks = JoinSet::new();
        tasks.spawn(supervise(executor, queue, self.clock));
        tasks.spawn(report_on(Arc::clone(&node), reports, kubelets, Arc::clone(&self.news), self.clock));
        self.nodes().insert(name.to_owned(), Member { node, _tasks: tasks });
    }

    /// A node goes, in good time or not.
    pub fn remove(&self, name: &str) {
        self.nodes().remove(name);
        self.news.notify_one();
    }

    fn nodes(&self) -> MutexGuard<'_, BTreeMap<String, Member>> {
        self.nodes.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// All kubelets have come up once.
    pub async fn is_up(&self) {
        while self.nodes().values().any(|member| !member.node.up.load(Ordering::Relaxed)) {
            self.news.notified().await;
        }
    }

    pub fn control(&self, name: &str, change: impl FnOnce(&mut Control)) {
        let node = Arc::clone(&self.nodes().get(name).expect("a node of the fleet").node);
        change(&mut node.control());
        node.poke.notify_one();
    }

    pub fn names(&self) -> Vec<String> {
        self.nodes().keys().cloned().collect()
    }
}

/// The credentials of a supervisor: they never change.
struct Given {
    connect: Arc<dyn Fn(ClientLayer) -> kube::Client + Send + Sync>,
    node_name: String,
}

impl Access for Given {
    fn fingerprint(&self) -> BoxFuture<'_, Fingerprint> {
        async { Fingerprint::default() }.boxed()
    }

    fn connect(&self, layer: ClientLayer) -> BoxFuture<'_, Result<Connected, String>> {
        let connected = Connected {
            client: (self.connect)(layer),
            fingerprint: Fingerprint::default(),
            node_name: self.node_name.clone(),
            origin: "the test".to_owned(),
            renew_at: None,
            notices: Vec::new(),
        };
        async { Ok(connected) }.boxed()
    }
}

/// tokio's time; the wall clock runs with it.
#[derive(Clone, Copy)]
struct Clock {
    began: Instant,
    wall: i128,
}

impl Clock {
    fn new() -> Clock {
        Clock { began: Instant::now(), wall: jiff::Timestamp::now().as_nanosecond() }
    }

    fn time(&self) -> jiff::Timestamp {
        jiff::Timestamp::from_nanosecond(self.now().wall_nanos.into()).expect("a time")
    }

    fn now(&self) -> Moment {
        // A machine is not younger than its supervisor.
        let passed = self.began.elapsed();
        let wall_nanos = u64::try_from(self.wall).unwrap_or_default().saturating_add(nanos(passed));
        Moment { boot: passed + Duration::from_secs(1000), wall_nanos }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Lives until then, or for ever.
async fn reached(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// The daemon's loop, without signals: nobody sends these supervisors any.
async fn supervise(mut executor: Executor<StandIn>, mut queue: UnboundedReceiver<Input>, clock: Clock) {
    let mut go_on = executor.boot(clock.now(), Beginning::Supervisor);
    while go_on {
        let left = executor.state.deadline().map(|at| at.saturating_sub(clock.now().boot));
        let due = reached(left.map(|left| Instant::now() + left + Duration::from_millis(1)));
        let happens = reached(executor.ports.next());
        let input = tokio::select! {
            biased;
            input = queue.recv() => input,
            () = happens => executor.ports.happen(),
            () = due => Some(Input::Tick),
        };
        if let Some(input) = input {
            go_on = executor.handle(input, clock.now());
        }
    }
}

/// Writes the Node's condition Ready, as its kubelet does.
async fn report_on(
    node: Arc<Node>,
    mut reports: watch::Receiver<Report>,
    client: kube::Client,
    news: Arc<Notify>,
    clock: Clock,
) {
    let mut said = (true, 0);
    let mut heartbeat = 0;
    loop {
        let report = *reports.borrow_and_update();
        let until = node.control().unready_until.filter(|until| *until > Instant::now());
        let ready = until.is_none();
        if (report.up || !ready) && said != (ready, report.start) {
            // Heartbeats are told apart by the second.
            heartbeat = clock.time().as_second().max(heartbeat + 1);
            if say(&client, &node.name, ready, heartbeat).await.is_err() {
                tokio::time::sleep(Duration::from_millis(500)).await;
                continue;
            }
            if report.up {
                node.up.store(true, Ordering::Relaxed);
                news.notify_one();
            }
            said = (ready, report.start);
        }
        tokio::select! {
            changed = reports.changed() => if changed.is_err() { return },
            () = node.poke.notified() => {}
            () = reached(until) => {}
        }
    }
}

async fn say(client: &kube::Client, name: &str, ready: bool, heartbeat: i64) -> kube::Result<()> {
    let status = if ready { "True" } else { "Unknown" }; // as the node controller has it
    let time = jiff::Timestamp::from_second(heartbeat).expect("a time").to_string();
    let ready = json!({"type": "Ready", "status": status, "lastHeartbeatTime": time, "lastTransitionTime": time,
        "reason": "Played", "message": "the kubelet is played"});
    let patch = Patch::Strategic(json!({"status": {"conditions": [ready]}}));
    let request = Request::new("/api/v1/nodes").patch_subresource("status", name, &PatchParams::default(), &patch);
    client.request::<Value>(request.expect("a request")).await.map(drop)
}
