//! `kubectl kubelet-config rollout` over Node objects of the real API server, each with a supervisor of its own in this
//! process: real core, executor and API server adapter, and a kubelet that is played. All have the administrator's
//! credential: what a node may do is for other cases.
//!
//! Clients are run in this process too, with another patience than users': fifty of them are killed by dropping them in
//! mid-flight, and the next one would wait half a minute each time. On the second carrier it is the built binary, killed
//! with SIGKILL, and the true patience.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::{ExitCode, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use testkit::built::program;

use futures_util::TryStreamExt as _;
use kube::api::{Patch, PatchParams, PostParams, WatchParams};
use kube::client::ClientBuilder;
use kube::core::WatchEvent;
use kube::core::request::Request;
use kubectl_plugin::{Context, Failure, LockTiming};
use kubelet_supervisor::adapters::kube::ClientLayer;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::assignment::Carrier;
use crate::supervisor::Case;
use testkit::fleet::log::{Expectation, Log};
use testkit::fleet::{Fleet, Outcome, Pace, Surroundings};

/// No assertion is about time; this only ends a test that would wait for ever.
const PATIENCE_LONG: Duration = Duration::from_secs(600);
const CANARIES: usize = 3;
const NAMESPACE: &str = "kubelet-config";
const NODES: &str = "/api/v1/nodes";
const MAPS: &str = "/api/v1/namespaces/kubelet-config/configmaps";
const SELECTOR: &str = "simulated=yes";
/// A watch tells of a change some milliseconds later; a busy machine needs some more to do what follows from it.
const LAG: Duration = Duration::from_secs(2);
/// Several connections each: 1,024 are too few.
const FILES: u64 = 4096;
const SEED: u64 = 5;
const KILLS: usize = 50;

/// About a tenth of what users have.
const IMPATIENT: LockTiming = LockTiming {
    lease_duration: Duration::from_secs(3),
    renew_interval: Duration::from_millis(500),
    renew_deadline: Duration::from_millis(1500),
    retry_period: Duration::from_millis(130),
    answer_timeout: Duration::from_secs(1),
};

fn node(number: usize) -> String {
    format!("simulated-{number:03}")
}

/// A generator that needs no crate: SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }
}

struct World<'a> {
    case: &'a Case<'a>,
    config: kube::Config,
    client: kube::Client,
    nodes: usize,
    fleet: Fleet,
    log: Arc<Mutex<Log>>,
    /// Resourceversions up to which the watches of Nodes and ConfigMaps have told.
    told: [watch::Receiver<u64>; 2],
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
        let mut follow = |path: &'static str, params: WatchParams| {
            let (sender, told) = watch::channel(0);
            watches.spawn(self::follow(client.clone(), path, params, Arc::clone(&log), sender));
            told
        };
        let told = [follow(NODES, WatchParams::default().labels(SELECTOR)), follow(MAPS, WatchParams::default())];
        let each = config.clone();
        let connect =
            move |layer: ClientLayer| ClientBuilder::try_from(each.clone()).unwrap().with_layer(&layer).build();
        let pace = Pace {
            trial: Duration::from_secs(1),
            preflight: Duration::from_millis(50),
            ready: Duration::from_millis(100),
            trouble: Duration::from_millis(300),
        };
        let fleet = Fleet::new(Surroundings {
            connect: Arc::new(connect),
            kubelets: client.clone(),
            namespace: NAMESPACE.to_owned(),
            pace,
        });
        let world = World { case, config, client, nodes, fleet, log, told, _watches: watches };
        for number in 0..nodes {
            let name = node(number);
            let body = json!({"metadata": {"name": name, "labels":
                {"simulated": "yes", "topology.kubernetes.io/zone": format!("z{}", number % 3)}},
                "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
            world.post(NODES, &body).await;
            world.fleet.add(&name, None);
        }
        tokio::time::timeout(PATIENCE_LONG, world.fleet.is_up()).await.unwrap();
        world
    }

    async fn post(&self, path: &str, body: &Value) {
        let request = Request::new(path).create(&PostParams::default(), body.to_string().into_bytes()).unwrap();
        let _: Value = self.client.request(request).await.unwrap();
    }

    async fn map(&self, name: &str, number: u32) {
        let text =
            format!("kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\neventBurst: {number}\n");
        let body = json!({"metadata": {"name": name}, "immutable": true, "data": {"kubelet": text}});
        self.post(MAPS, &body).await;
    }

    /// A client in this process.
    async fn client(&self, args: &[&str]) -> Result<ExitCode, Failure> {
        let client = kube::Client::try_from(self.config.clone()).unwrap();
        let context = Context { client, namespace: NAMESPACE.to_owned(), impersonates: false, lock_timing: IMPATIENT };
        let args = [&["rollout"], args].concat();
        let run = Box::pin(kubectl_plugin::run(&context, &args));
        tokio::time::timeout(PATIENCE_LONG, run).await.unwrap()
    }

    async fn good(&self, args: &[&str]) {
        let result = self.client(args).await;
        result.unwrap_or_else(|failure| panic!("{args:?}: {}", failure.message));
    }

    async fn bad(&self, args: &[&str], words: &str) {
        let Err(Failure { message: said, .. }) = self.client(args).await else { panic!("{args:?} did it") };
        assert!(said.contains(words), "{args:?}: {said}");
    }

    /// Lives until the log is so.
    async fn until(&self, what: &str, is: impl Fn(&Log) -> bool) {
        let mut told = self.told[0].clone();
        let wait = async {
            while !is(&self.log.lock().unwrap()) {
                told.changed().await.unwrap();
            }
        };
        assert!(tokio::time::timeout(PATIENCE_LONG, wait).await.is_ok(), "waited in vain: {what}");
    }

    fn has(&self, map: &str) -> usize {
        self.log.lock().unwrap().count(map)
    }

    fn expect(&self, target: &str, max_unavailable: usize) {
        let canaries = (0..CANARIES).map(node).collect();
        let expectation = Expectation {
            target: target.to_owned(),
            canaries,
            max_unavailable,
            active: false,
            ..Expectation::default()
        };
        self.log.lock().unwrap().expect(expectation);
    }

    /// All that was written up to now is in the log, and no promise was broken. Says how many nodes got it.
    async fn promises_held(&self, target: &str) -> usize {
        let marker = Patch::Merge(json!({"metadata": {"annotations": {"marker": target}}}));
        let maps = format!("{MAPS}/{target}");
        for (path, mut told) in [format!("{NODES}/{}", node(0)), maps].into_iter().zip(self.told.clone()) {
            let (path, name) = path.rsplit_once('/').unwrap();
            let request = Request::new(path).patch(name, &PatchParams::default(), &marker).unwrap();
            let object: Value = self.client.request(request).await.unwrap();
            let wait = told.wait_for(|told| *told >= version(&object));
            tokio::time::timeout(PATIENCE_LONG, wait).await.unwrap().unwrap();
        }
        let mut log = self.log.lock().unwrap();
        let broken = log.broken(LAG);
        assert!(broken.is_empty(), "{broken:#?}");
        let assigned = log.assigned(target);
        assert!(assigned.values().all(|times| *times == 1), "no node gets it twice: {assigned:?}");
        assigned.len()
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

/// Every change from now on, into the log.
async fn follow(
    client: kube::Client,
    path: &'static str,
    params: WatchParams,
    log: Arc<Mutex<Log>>,
    told: watch::Sender<u64>,
) {
    let list = Request::new(path).list(&kube::api::ListParams::default().limit(1)).unwrap();
    let list: Value = client.request(list).await.unwrap();
    let mut from = list["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    loop {
        let request = Request::new(path).watch(&params, &from).unwrap();
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
                WatchEvent::Error(error) => panic!("{path}: {error:?}"),
            }
            told.send_replace(from.parse().unwrap());
        }
    }
}

pub fn rollout(case: &Case) {
    let begun = Instant::now();
    // Each supervisor has some connections, and 1024 files are all that many shells allow.
    let (now, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    assert!(most >= FILES, "200 supervisors need {FILES} files open, and `ulimit -Hn` allows {most}");
    setrlimit(Resource::RLIMIT_NOFILE, now.max(FILES), most).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        match case.carrier {
            Carrier::Native => in_this_process(case).await,
            Carrier::Labels => the_binary(case).await,
        }
    });
    case.say(&format!("took {:.0} s", begun.elapsed().as_secs_f64()));
}

fn begin<'a>(map: &'a str, max: &'a str) -> [&'a str; 8] {
    [map, "-l", SELECTOR, "--canary", "3", "--max-unavailable", max, "--quiet"]
}

async fn in_this_process(case: &Case<'_>) {
    let world = World::new(case, 200).await;
    for (name, number) in [("sim-a", 11), ("sim-b", 12), ("sim-c", 13), ("sim-d", 14)] {
        world.map(name, number).await;
    }
    case.say("200 supervisors are up");
    good_paused_and_alone(&world).await;
    a_canary_rejects(&world).await;
    the_third_wave_breaks(&world).await;
    killed_at_fifty_moments(&world).await;
}

async fn good_paused_and_alone(world: &World<'_>) {
    world.expect("sim-a", 20);
    let told = async {
        world.until("the second wave", |log| log.count("sim-a") > CANARIES + 20).await;
        world.good(&["pause", "sim-a"]).await;
        world.until("nobody in flight", |log| log.in_flight("sim-a") == 0).await;
        let before = world.has("sim-a");
        assert!(before < world.nodes, "paused in time: {before}");
        world.bad(&[&begin("sim-b", "20")[..], &["--name", "other"]].concat(), "are in rollout sim-a").await;
        assert_eq!(world.has("sim-a"), before, "nothing is sent in a pause");
        world.good(&["resume", "sim-a", "--quiet"]).await;
    };
    let all = begin("sim-a", "20");
    tokio::join!(world.good(&all), told);
    assert_eq!(world.promises_held("sim-a").await, world.nodes);
    world.case.say("a good one, paused and resumed; a second one was refused");
}

async fn a_canary_rejects(world: &World<'_>) {
    world.fleet.control(&node(1), |node| {
        node.outcomes.insert("sim-b".to_owned(), Outcome::Rejects);
    });
    world.expect("sim-b", 20);
    world.bad(&begin("sim-b", "20"), "simulated-001 called it bad").await;
    let sent = world.promises_held("sim-b").await;
    assert!((2..=CANARIES).contains(&sent), "{sent}");
    world.good(&["undo", "sim-b", "--quiet"]).await;
    world.until("all are back", |log| log.count("sim-b") == 0).await;
    world.bad(&[&begin("sim-b", "20")[..], &["--name", "other"]].concat(), "called sim-b bad").await;
    assert_eq!(world.promises_held("sim-b").await, sent);
    world.case.say("a canary rejected one; nobody else gets it, whatever is tried");
}

async fn the_third_wave_breaks(world: &World<'_>) {
    let number = CANARIES + 45;
    world.fleet.control(&node(number), |node| {
        node.outcomes.insert("sim-c".to_owned(), Outcome::RollsBack);
    });
    world.expect("sim-c", 20);
    world.bad(&begin("sim-c", "20"), &format!("{} called it bad", node(number))).await;
    let sent = world.promises_held("sim-c").await;
    assert!((number..=CANARIES + 60).contains(&sent), "canaries and three waves: {sent}");
    world.good(&["undo", "sim-c", "--quiet"]).await;
    world.until("all are back", |log| log.count("sim-c") == 0 && log.count("sim-a") == 200).await;
    world.case.say("the third wave of one broke; all have back what they had");
}

/// The first ones while it begins, the fifth part of the others while they wait for the lock, and the rest as they drive.
async fn killed_at_fifty_moments(world: &World<'_>) {
    world.case.say(&format!("seed {SEED}"));
    let mut random = Random(SEED);
    world.expect("sim-d", 5);
    let all = begin("sim-d", "5");
    let lock = u64::try_from(IMPATIENT.lease_duration.as_millis()).unwrap();
    let mut drove = 0;
    for kill in 0..KILLS {
        let before = world.has("sim-d");
        let moment = match kill {
            0..8 => random.below(100),
            _ if kill % 5 == 0 => random.below(lock),
            _ => lock + random.below(1200),
        };
        let moment = Duration::from_millis(moment);
        let resume = world.log.lock().unwrap().phase("sim-d").as_deref() == Some("Running") && random.below(2) == 0;
        let args = if resume { &["resume", "sim-d", "--quiet"][..] } else { &all };
        if let Ok(end) = tokio::time::timeout(moment, world.client(args)).await {
            panic!("it ended before it was killed {KILLS} times ({kill}): {:?}", end.map_err(|it| it.message));
        }
        drove += usize::from(world.has("sim-d") > before);
    }
    let reached = world.has("sim-d");
    assert!(drove >= 5, "{drove} of them sent anything");
    world.good(&all).await;
    assert_eq!(world.promises_held("sim-d").await, world.nodes);
    world.case.say(&format!("killed {KILLS} times ({drove} of them had sent something, and {reached} nodes had it by then), one came to its end"));
    world.good(&["undo", "sim-d", "--quiet"]).await;
    world.until("all are back", |log| log.count("sim-a") == 200).await;
    world.case.say("and was undone");
}

/// The built binary, as users have it.
struct Built<'a> {
    world: &'a World<'a>,
    log: PathBuf,
}

impl Built<'_> {
    fn run(&self, args: &[&str]) -> tokio::process::Child {
        let file = std::fs::File::options().create(true).append(true).open(&self.log).unwrap();
        tokio::process::Command::new(program("kubectl-kubelet_config"))
            .args(["--kubeconfig", self.world.case.var("KUBECONFIG"), "rollout"])
            .args(args)
            .stdin(Stdio::null())
            .stdout(file.try_clone().unwrap())
            .stderr(file)
            .kill_on_drop(true)
            .spawn()
            .unwrap()
    }

    async fn ends(&self, args: &[&str]) -> Option<i32> {
        let mut client = self.run(args);
        let status = tokio::time::timeout(PATIENCE_LONG, client.wait()).await.unwrap();
        status.unwrap().code()
    }

    /// SIGKILL once so many nodes have it.
    async fn dies(&self, args: &[&str], map: &str, count: usize) {
        let mut client = self.run(args);
        self.world.until("enough nodes have it", |log| log.count(map) >= count).await;
        assert!(client.try_wait().unwrap().is_none(), "it lives");
        client.kill().await.unwrap();
    }
}

async fn the_binary(case: &Case<'_>) {
    let world = World::new(case, 60).await;
    for (name, number) in [("sim-a", 11), ("sim-b", 12)] {
        world.map(name, number).await;
    }
    let built = Built { world: &world, log: case.cluster.dir.join("logs").join(format!("{}.log", case.name)) };
    let all = |map: &'static str| begin(map, "10");
    world.expect("sim-a", 10);
    built.dies(&all("sim-a"), "sim-a", 1).await;
    built.dies(&all("sim-a"), "sim-a", CANARIES + 21).await;
    assert_eq!(built.ends(&["resume", "sim-a"]).await, Some(0));
    assert_eq!(world.promises_held("sim-a").await, world.nodes);
    case.say("killed with its canaries on trial, and in the third wave, and resumed");

    world.fleet.control(&node(1), |node| {
        node.outcomes.insert("sim-b".to_owned(), Outcome::Rejects);
    });
    world.expect("sim-b", 10);
    assert_eq!(built.ends(&all("sim-b")).await, Some(1));
    assert!(world.promises_held("sim-b").await <= CANARIES);
    assert_eq!(built.ends(&["undo", "sim-b"]).await, Some(0));
    world.until("all are back", |log| log.count("sim-a") == world.nodes).await;
    assert_eq!(built.ends(&all("sim-b")).await, Some(1), "a version that a node called bad is not sent again");

    assert_eq!(built.ends(&["undo", "sim-a"]).await, Some(0));
    world.until("none has one", |log| log.count("") == world.nodes).await;
    case.say("a canary rejected one; all was undone");
    let said = std::fs::read_to_string(&built.log).unwrap();
    for line in said.lines().filter(|line| line.contains(" requests)")) {
        case.say(line);
    }
}
