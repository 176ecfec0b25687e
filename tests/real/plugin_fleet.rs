//! A pool of two hundred Node objects of the real API server, each with a supervisor of its own in this process: real core,
//! executor and API server adapter, and a kubelet that is played. All have the administrator's credential: what a node may
//! do is for other cases. Two controllers carry it out, as built, with the rights that packaging gives them; they are
//! killed, and stopped for longer than their Lease.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::TryStreamExt as _;
use kube::api::{Patch, PatchParams, PostParams, WatchParams};
use kube::client::ClientBuilder;
use kube::core::WatchEvent;
use kube::core::request::Request;
use kubelet_supervisor::adapters::kube::ClientLayer;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde_json::{Value, json};
use testkit::built::program;
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::assignment::Carrier;
use crate::plugin_pools::{ACCOUNT, POOLS, install, uninstall};
use crate::supervisor::{Case, signal};
use testkit::fleet::log::Log;
use testkit::fleet::{Fleet, Outcome, Pace, Surroundings};

/// No assertion is about time; this only ends a test that would wait for ever.
const PATIENCE_LONG: Duration = Duration::from_secs(600);
const CANARIES: usize = 3;
const MAX: usize = 20;
const NODES: &str = "/api/v1/nodes";
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kubelet-config/leases/kubelet-config-controller";
const POOL: &str = "simulated";
/// A watch tells of a change some milliseconds later; a busy machine needs some more to do what follows from it.
const LAG: Duration = Duration::from_secs(2);
/// Several connections each: 1,024 are too few.
const FILES: u64 = 4096;

fn node(number: usize) -> String {
    format!("simulated-{number:03}")
}

struct World<'a> {
    case: &'a Case<'a>,
    client: kube::Client,
    nodes: usize,
    fleet: Fleet,
    log: Arc<Mutex<Log>>,
    /// The resourceVersion up to which the watch of Nodes has told.
    told: watch::Receiver<u64>,
    _watches: JoinSet<()>,
}

impl<'a> World<'a> {
    async fn new(case: &'a Case<'a>, nodes: usize) -> World<'a> {
        let file = kube::config::Kubeconfig::read_from(case.var("KUBECONFIG")).unwrap();
        let config = kube::Config::from_custom_kubeconfig(file, &kube::config::KubeConfigOptions::default()).await;
        let mut config = config.unwrap();
        config.default_retry = false;
        let client = kube::Client::try_from(config.clone()).unwrap();
        let log = Arc::new(Mutex::new(Log::default()));
        let mut watches = JoinSet::new();
        let (sender, told) = watch::channel(0);
        watches.spawn(follow(client.clone(), Arc::clone(&log), sender));
        let connect =
            move |layer: ClientLayer| ClientBuilder::try_from(config.clone()).unwrap().with_layer(&layer).build();
        let pace = Pace {
            trial: Duration::from_secs(1),
            preflight: Duration::from_millis(50),
            ready: Duration::from_millis(100),
            trouble: Duration::from_millis(300),
        };
        let fleet = Fleet::new(Surroundings {
            connect: Arc::new(connect),
            kubelets: client.clone(),
            namespace: "kubelet-config".to_owned(),
            pace,
        });
        let world = World { case, client, nodes, fleet, log, told, _watches: watches };
        for number in 0..nodes {
            let name = node(number);
            let body = json!({"metadata": {"name": name, "labels":
                {"simulated": "yes", "topology.kubernetes.io/zone": format!("z{}", number % 3)}},
                "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
            let request = Request::new(NODES).create(&PostParams::default(), body.to_string().into_bytes()).unwrap();
            let _: Value = world.client.request(request).await.unwrap();
            world.fleet.add(&name, None);
        }
        tokio::time::timeout(PATIENCE_LONG, world.fleet.is_up()).await.unwrap();
        world
    }

    async fn patch(&self, path: &str, change: &Value) -> Value {
        let (path, name) = path.rsplit_once('/').unwrap();
        let request = Request::new(path).patch(name, &PatchParams::default(), &Patch::Merge(change)).unwrap();
        self.client.request(request).await.unwrap()
    }

    async fn pool(&self) -> Value {
        let request = Request::new(POOLS).get(POOL, &kube::api::GetParams::default()).unwrap();
        self.client.request(request).await.unwrap()
    }

    /// Lives until the controller has observed the pool's spec, and finds it there.
    async fn until_pool(&self, reason: &str) -> Value {
        let params = WatchParams::default().fields(&format!("metadata.name={POOL}"));
        let is = |pool: &Value| {
            let conditions = pool["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
            let observed = pool["status"]["observedGeneration"] == pool["metadata"]["generation"];
            observed && conditions.iter().any(|it| it["type"] == "Ready" && it["reason"] == reason)
        };
        let wait = async {
            loop {
                let pool = self.pool().await;
                if is(&pool) {
                    return pool;
                }
                let request = Request::new(POOLS).watch(&params, &version(&pool).to_string()).unwrap();
                let mut events = Box::pin(self.client.request_events::<Value>(request).await.unwrap());
                while let Ok(Some(WatchEvent::Modified(pool))) = events.try_next().await {
                    if is(&pool) {
                        return pool;
                    }
                }
            }
        };
        if let Ok(pool) = tokio::time::timeout(PATIENCE_LONG, wait).await {
            return pool;
        }
        panic!("waited in vain for {reason}: {:#}", self.pool().await["status"])
    }

    /// Another content, not yet moving; the revision that the controller makes of it.
    async fn prepared(&self, pods: u32) -> String {
        let spec = json!({
            "nodeSelector": {"matchLabels": {"simulated": "yes"}}, "kubeletConfiguration": {"maxPods": pods},
            "rollout": {"canaries": CANARIES, "maxUnavailable": MAX, "minTrialSeconds": 1}, "paused": true,
        });
        let pool = json!({"apiVersion": "kubelet-supervisor.io/v1alpha1", "kind": "KubeletConfigPool",
            "metadata": {"name": POOL}, "spec": spec});
        let request = Request::new(POOLS).create(&PostParams::default(), pool.to_string().into_bytes()).unwrap();
        if self.client.request::<Value>(request).await.is_err() {
            self.patch(&format!("{POOLS}/{POOL}"), &json!({ "spec": spec })).await;
        }
        let pool = self.until_pool("Paused").await;
        let revision = pool["status"]["updateRevision"].as_str().unwrap().to_owned();
        self.log.lock().unwrap().expect_pool(&revision, CANARIES, MAX);
        revision
    }

    async fn pause(&self, paused: bool) {
        self.patch(&format!("{POOLS}/{POOL}"), &json!({"spec": {"paused": paused}})).await;
    }

    /// Lives until the log is so.
    async fn until(&self, what: &str, is: impl Fn(&Log) -> bool) {
        let mut told = self.told.clone();
        let wait = async {
            while !is(&self.log.lock().unwrap()) {
                told.changed().await.unwrap();
            }
        };
        assert!(tokio::time::timeout(PATIENCE_LONG, wait).await.is_ok(), "waited in vain: {what}");
    }

    fn has(&self, revision: &str) -> usize {
        self.log.lock().unwrap().count(revision)
    }

    /// Lives until all that was written up to now is in the log. `point` names this moment, and no other.
    async fn all_told(&self, point: &str) {
        let note = json!({"metadata": {"annotations": {"marker": point}}});
        let marked = self.patch(&format!("{NODES}/{}", node(0)), &note).await;
        let mut told = self.told.clone();
        let wait = told.wait_for(|told| *told >= version(&marked));
        tokio::time::timeout(PATIENCE_LONG, wait).await.unwrap().unwrap();
    }

    /// No promise was broken up to now. Says how many nodes got it, each once.
    async fn promises_held(&self, revision: &str) -> usize {
        self.all_told(&format!("end of {revision}")).await;
        let mut log = self.log.lock().unwrap();
        let broken = log.broken(LAG);
        assert!(broken.is_empty(), "{broken:#?}");
        let assigned = log.assigned(revision);
        assert!(assigned.values().all(|times| *times == 1), "no node gets it twice: {assigned:?}");
        assigned.len()
    }

    /// A controller as built, with the rights of its ServiceAccount.
    fn controller(&self) -> Child {
        let path = self.case.cluster.dir.join("logs").join(format!("{}-controllers.log", self.case.name));
        let log = std::fs::File::options().create(true).append(true).open(path).unwrap();
        let mut command = Command::new(program("kubectl-kubelet_config"));
        command.args(["--kubeconfig", self.case.var("KUBECONFIG"), "--as", ACCOUNT, "controller"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).kill_on_drop(true).spawn().unwrap()
    }

    /// Which of these holds the Lease, once one does that is not this one.
    async fn leader(&self, controllers: &[Child], other: Option<usize>) -> usize {
        let (path, name) = LEASE.rsplit_once('/').unwrap();
        let find = async {
            loop {
                let get = Request::new(path).get(name, &kube::api::GetParams::default()).unwrap();
                let lease: Value = self.client.request(get).await.unwrap_or_default();
                let holder = lease["spec"]["holderIdentity"].as_str().unwrap_or_default();
                let is = |controller: &Child| holder.contains(&format!("({},", controller.id().unwrap()));
                if let Some(leader) = controllers.iter().position(is).filter(|leader| Some(*leader) != other) {
                    return leader;
                }
                let params = WatchParams::default().fields(&format!("metadata.name={name}"));
                let watch = Request::new(path).watch(&params, &version(&lease).to_string()).unwrap();
                let mut events = Box::pin(self.client.request_events::<Value>(watch).await.unwrap());
                let _ = events.try_next().await;
            }
        };
        tokio::time::timeout(PATIENCE_LONG, find).await.expect("one of them holds the Lease")
    }
}

impl Drop for World<'_> {
    fn drop(&mut self) {
        // Also while it fails: a second panic would leave the clusters behind.
        let delete = || self.case.api("DELETE", "/api/v1/nodes?labelSelector=simulated%3Dyes", None);
        let _ = catch_unwind(AssertUnwindSafe(delete));
    }
}

fn version(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"].as_str().and_then(|it| it.parse().ok()).unwrap_or_default()
}

/// Every change of the Nodes from now on, into the log.
async fn follow(client: kube::Client, log: Arc<Mutex<Log>>, told: watch::Sender<u64>) {
    let list = Request::new(NODES).list(&kube::api::ListParams::default().limit(1)).unwrap();
    let list: Value = client.request(list).await.unwrap();
    let mut from = list["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    loop {
        let request = Request::new(NODES).watch(&WatchParams::default().labels("simulated=yes"), &from).unwrap();
        let mut events = Box::pin(client.request_events::<Value>(request).await.unwrap());
        // It ends after some minutes, and then goes on where it was.
        while let Ok(Some(event)) = events.try_next().await {
            match event {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                    log.lock().unwrap().note(&object, false);
                    from = version(&object).to_string();
                }
                WatchEvent::Deleted(object) => {
                    log.lock().unwrap().note(&object, true);
                    from = version(&object).to_string();
                }
                WatchEvent::Bookmark(bookmark) => from = bookmark.metadata.resource_version,
                WatchEvent::Error(error) => panic!("{error:?}"),
            }
            told.send_replace(from.parse().unwrap());
        }
    }
}

pub fn fleet(case: &Case) {
    // Each supervisor has some connections, and 1024 files are all that many shells allow.
    let (now, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    assert!(most >= FILES, "200 supervisors need {FILES} files open, and `ulimit -Hn` allows {most}");
    setrlimit(Resource::RLIMIT_NOFILE, now.max(FILES), most).unwrap();
    install(case);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let world = World::new(case, if case.carrier == Carrier::Labels { 200 } else { 60 }).await;
        case.say(&format!("{} supervisors are up", world.nodes));
        let mut controllers = [world.controller(), world.controller()];
        good_and_paused(&world).await;
        canaries_roll_back(&world).await;
        killed_and_stopped(&world, &mut controllers).await;
    });
    uninstall(case);
}

async fn good_and_paused(world: &World<'_>) {
    let revision = world.prepared(51).await;
    world.pause(false).await;
    world.until("the wave after the canaries", |log| log.count(&revision) > CANARIES).await;
    world.pause(true).await;
    world.until_pool("Paused").await;
    // The pool's watch may be ahead of that of the Nodes.
    world.all_told(&format!("pause of {revision}")).await;
    let before = world.has(&revision);
    assert!(before < world.nodes, "paused in time: {before}");
    world.until("nobody in flight", |log| log.in_flight(&revision) == 0).await;
    assert_eq!(world.has(&revision), before, "nothing is assigned in a pause");
    world.pause(false).await;
    world.until_pool("Complete").await;
    assert_eq!(world.promises_held(&revision).await, world.nodes);
    world.case.say("a good one, paused and resumed");
}

async fn canaries_roll_back(world: &World<'_>) {
    let good = world.pool().await["status"]["currentRevision"].as_str().unwrap().to_owned();
    let revision = world.prepared(52).await;
    for number in 0..world.nodes {
        world.fleet.control(&node(number), |node| {
            node.outcomes.insert(revision.clone(), Outcome::RollsBack);
        });
    }
    world.pause(false).await;
    world.until_pool("FailuresExceeded").await;
    world.until("all are back", |log| log.count(&good) == world.nodes).await;
    let sent = world.promises_held(&revision).await;
    assert!((1..=CANARIES).contains(&sent), "{sent}");
    world.case.say("canaries went back; nobody else got it");
}

/// The one that acts is killed as the first canaries have it and in the third wave, and stopped until its Lease is over.
async fn killed_and_stopped(world: &World<'_>, controllers: &mut [Child; 2]) {
    let revision = world.prepared(53).await;
    world.pause(false).await;
    for count in [1, CANARIES + 2 * MAX + 1] {
        world.until("enough nodes have it", |log| log.count(&revision) >= count.min(world.nodes - MAX)).await;
        let leader = world.leader(controllers, None).await;
        controllers[leader].kill().await.unwrap();
        controllers[leader] = world.controller();
    }
    world.case.say("killed twice");
    let leader = world.leader(controllers, None).await;
    let pid = controllers[leader].id().unwrap();
    signal(pid, "STOP");
    world.leader(controllers, Some(leader)).await;
    signal(pid, "CONT");
    world.until_pool("Complete").await;
    assert!(controllers[leader].try_wait().unwrap().is_none(), "it lives on, and waits");
    assert_eq!(world.promises_held(&revision).await, world.nodes);
    world.case.say("stopped until its Lease was over, and each node got it once");
}
