//! Rollouts with `--drain`: what Pods are made to leave, what is sent when, and whose cordon is whose. Each write is
//! checked against what the API server knows at that moment.

use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kube::client::Body;
use kubectl_plugin::Failure;
use kubectl_plugin::fleet::rollout::drain::CORDONED_BY;
use kubelet_config::assignment::LABELS;
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::kills::Random;
use testkit::api_server::{Door, Fault, FaultKind, Resource, State, Verb};
use testkit::rollout::{NAMESPACE, Outcome, TARGET, World, context, name};

const MAX: usize = 3;
const ALL: &[&str] = &[
    TARGET,
    "-l",
    "all=yes",
    "--canary",
    "1",
    "--max-unavailable",
    "3",
    "--quiet",
    "--drain",
    "--timeout-per-node",
    "10m",
];

#[derive(Default)]
struct Seen {
    broken: Vec<String>,
    evicted: Vec<String>,
    most: usize,
    writes: u64,
    /// The client dies at this write; with true, after it was carried out.
    dies_at: Option<(u64, bool)>,
}

/// The world, with Pods, a kubelet that lets them end, and a way in that looks.
struct Drained {
    world: World,
    seen: Arc<Mutex<Seen>>,
    died: Arc<Notify>,
}

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn wanted(node: &Value) -> &str {
    node["metadata"]["labels"][format!("{LABELS}name")].as_str().unwrap_or_default()
}

fn cordoned_by(node: &Value) -> Option<&str> {
    node["metadata"]["annotations"][CORDONED_BY].as_str()
}

fn status(node: &Value) -> Value {
    let said = node["metadata"]["annotations"]["kubelet-supervisor.io/config-status"].as_str().unwrap_or_default();
    serde_json::from_str(said).unwrap_or_default()
}

fn is_ready(node: &Value) -> bool {
    let conditions = node["status"]["conditions"].as_array().unwrap();
    conditions.iter().any(|it| it["type"] == "Ready" && it["status"] == "True")
}

/// In flight, forth or back, or cordoned for that, or not Ready.
fn is_busy(node: &Value) -> bool {
    let status = status(node);
    let source = |which: &str| text(&status, &format!("/{which}/configMap/name")).to_owned();
    let on_its_way = if wanted(node) == TARGET {
        source("assigned") != TARGET || source("active") != source("lastKnownGood")
    } else {
        source("assigned") == TARGET || source("active") == TARGET
    };
    cordoned_by(node).is_some() || on_its_way || !is_ready(node)
}

/// Pods that have to be gone before anything changes on this node.
fn pods(state: &State, node: &str) -> Vec<String> {
    let stays = |pod: &Value| {
        let owner = &pod["metadata"]["ownerReferences"][0]["kind"];
        owner == "DaemonSet" || owner == "Node" || pod["status"]["phase"] == "Succeeded"
    };
    let all = state.list(|key, pod| key.resource == Resource::Pod && pod["spec"]["nodeName"] == node && !stays(pod));
    all.map(|pod| text(pod, "/metadata/name").to_owned()).collect()
}

fn nodes(state: &State) -> impl Iterator<Item = &Value> {
    state.list(|key, _| key.resource == Resource::Node)
}

impl Drained {
    fn new(count: usize) -> Drained {
        Drained::of(World::new(count), count)
    }

    fn of(world: World, count: usize) -> Drained {
        let drained = Drained { world, seen: Arc::default(), died: Arc::default() };
        for number in 0..count {
            drained.pod(number, "web", json!({}));
            let owner = |kind: &str| json!({"metadata": {"ownerReferences": [{"kind": kind, "controller": true}]}});
            drained.pod(number, "daemon", owner("DaemonSet"));
            let mut mirror = owner("Node");
            mirror["metadata"]["annotations"]["kubernetes.io/config.mirror"] = "x".into();
            drained.pod(number, "static", mirror);
            drained.pod(
                number,
                "done",
                json!({"metadata": {"ownerReferences": null}, "status": {"phase": "Succeeded"}}),
            );
        }
        drained
    }

    fn pod(&self, number: usize, kind: &str, more: Value) {
        let pod = json!({"metadata": {"ownerReferences": [{"kind": "ReplicaSet", "controller": true}]}});
        let pod_name = format!("{kind}-{number}");
        self.world.server.put_pod(&name(number), "apps", &pod_name, pod);
        self.world.server.put_pod(&name(number), "apps", &pod_name, more);
    }

    /// Pods that are to end do; what a ReplicaSet misses comes elsewhere.
    async fn live(&self) {
        let mut count = 0;
        loop {
            tokio::time::sleep(Duration::from_secs(2)).await;
            let ending = |s: &State| -> Vec<String> {
                let all = s
                    .list(|key, pod| key.resource == Resource::Pod && pod["metadata"]["deletionTimestamp"].is_string());
                all.map(|pod| text(pod, "/metadata/name").to_owned()).collect()
            };
            for pod in self.world.server.read(ending) {
                self.world.server.delete_pod("apps", &pod);
                let open = |s: &State| {
                    let open = nodes(s).filter(|node| node["spec"]["unschedulable"] != true);
                    open.map(|node| text(node, "/metadata/name").to_owned()).last()
                };
                if let Some(node) = self.world.server.read(open) {
                    count += 1;
                    let number = testkit::rollout::number(&node);
                    self.pod(number, &format!("moved-{count}"), json!({}));
                }
            }
        }
    }

    fn connect(&self) -> kube::Client {
        let (seen, died) = (Arc::clone(&self.seen), Arc::clone(&self.died));
        let (door, state) = (self.world.server.door(), self.world.server.door());
        let service = tower::service_fn(move |request: hyper::Request<Body>| {
            let (seen, died) = (Arc::clone(&seen), Arc::clone(&died));
            let (door, state) = (door.clone(), state.clone());
            async move {
                let path = request.uri().path().to_owned();
                let is_write =
                    request.method() != "GET" && !request.uri().query().unwrap_or_default().contains("dryRun");
                let dying = {
                    let mut seen = seen.lock().unwrap();
                    seen.writes += u64::from(is_write);
                    seen.dies_at.filter(|(at, _)| is_write && *at <= seen.writes)
                };
                if dying.is_some_and(|(_, after)| !after) {
                    died.notify_one();
                    std::future::pending::<()>().await;
                }
                let before = path.strip_prefix("/api/v1/nodes/").filter(|_| is_write).map(|node| before(&state, node));
                let response = door.answer(request).await;
                if response.status().is_success() {
                    let mut seen = seen.lock().unwrap();
                    if let Some(before) = before {
                        after(&state, &before, &mut seen);
                    }
                    if let Some(path) = path.strip_suffix("/eviction") {
                        seen.evicted.push(path.rsplit('/').next().unwrap().to_owned());
                    }
                }
                if dying.is_some() {
                    died.notify_one();
                    std::future::pending::<()>().await;
                }
                Ok::<_, std::convert::Infallible>(response)
            }
        });
        kube::Client::new(service, "default")
    }

    /// The client, until it ends; None if it died.
    async fn client(&self, args: &[&str]) -> Option<Result<ExitCode, Failure>> {
        let context = context(self.connect());
        let args: Vec<&str> = ["rollout"].into_iter().chain(args.iter().copied()).collect();
        tokio::select! {
            biased;
            () = self.died.notified() => None,
            result = kubectl_plugin::run(&context, &args) => Some(result),
            () = self.live() => unreachable!("life goes on"),
            () = tokio::time::sleep(Duration::from_secs(86_400)) => panic!("no end: {:?}", self.world.phase(TARGET)),
        }
    }

    async fn good(&self, args: &[&str]) {
        self.client(args).await.expect("alive").unwrap_or_else(|failure| panic!("{args:?}: {}", failure.message));
    }

    async fn bad(&self, args: &[&str]) -> String {
        self.client(args).await.expect("alive").expect_err("a failure").message
    }

    /// Nodes that are cordoned, and by whom.
    fn cordoned(&self) -> Vec<(String, Option<String>)> {
        self.world.server.read(|s| {
            let cordoned = nodes(s).filter(|node| node["spec"]["unschedulable"] == true || cordoned_by(node).is_some());
            let row = |node: &Value| (text(node, "/metadata/name").to_owned(), cordoned_by(node).map(str::to_owned));
            cordoned.map(row).collect()
        })
    }

    fn promises_held(&self) {
        let seen = self.seen.lock().unwrap();
        assert!(seen.broken.is_empty(), "{:#?}", seen.broken);
        assert!(seen.most <= MAX, "{} at once", seen.most);
    }

    fn evicted(&self) -> Vec<String> {
        self.seen.lock().unwrap().evicted.clone()
    }

    fn why(&self) -> String {
        let map = self.world.server.config_map(NAMESPACE, "rollout-pool-b");
        let record: Value = serde_json::from_str(map["data"]["rollout"].as_str().unwrap()).unwrap();
        record["why"].as_str().unwrap().to_owned()
    }

    /// Until so many nodes are cordoned by the rollout.
    async fn until_cordoned(&self, count: usize) {
        while self.cordoned().iter().filter(|(_, by)| by.is_some()).count() != count {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
}

fn before(door: &Door, node: &str) -> (Value, Vec<String>) {
    door.read(|s| (s.node(node).unwrap().clone(), pods(s, node)))
}

fn after(door: &Door, (before, pods): &(Value, Vec<String>), seen: &mut Seen) {
    let name = text(before, "/metadata/name");
    door.read(|s| {
        let node = s.node(name).unwrap();
        let unwell = !is_ready(before) || status(before)["error"].is_string();
        if wanted(before) != wanted(node) && !(unwell && wanted(node) != TARGET) {
            if before["spec"]["unschedulable"] != true {
                seen.broken.push(format!("{name}: given {} while it was not cordoned", wanted(node)));
            }
            if !pods.is_empty() {
                seen.broken.push(format!("{name}: given {} while it has {pods:?}", wanted(node)));
            }
        }
        if wanted(before) != wanted(node) || cordoned_by(before) != cordoned_by(node) {
            seen.most = seen.most.max(nodes(s).filter(|node| is_busy(node)).count());
        }
    });
}

#[tokio::test(start_paused = true)]
async fn each_node_is_emptied_before_it_gets_it_and_open_again_after() {
    let drained = Drained::new(12);
    drained.good(ALL).await;
    drained.promises_held();
    assert_eq!(drained.world.count(TARGET), 12);
    assert_eq!(drained.cordoned(), []);
    assert_eq!(drained.seen.lock().unwrap().most, MAX, "as many at once as may be");
    let evicted = drained.evicted();
    assert!((0..12).all(|number| evicted.contains(&format!("web-{number}"))), "{evicted:?}");
    assert!(evicted.iter().all(|pod| pod.starts_with("web-") || pod.starts_with("moved-")), "{evicted:?}");
    // Back again, by the same care.
    drained.good(&["undo", TARGET, "--quiet"]).await;
    drained.promises_held();
    assert_eq!((drained.world.count("pool-a"), drained.cordoned()), (12, Vec::new()));
    assert!(drained.evicted().len() > evicted.len());
}

#[tokio::test(start_paused = true)]
async fn what_an_administrator_cordoned_stays_cordoned() {
    let drained = Drained::new(6);
    drained.world.server.patch_node(&name(3), json!({"spec": {"unschedulable": true}}));
    drained.good(ALL).await;
    drained.promises_held();
    assert_eq!(drained.world.count(TARGET), 6);
    assert_eq!(drained.cordoned(), [(name(3), None)]);
    assert!(drained.evicted().contains(&"web-3".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn a_disruption_budget_is_waited_for() {
    let drained = Drained::new(6);
    let deny = |times| Fault::new(Verb::Post, "/pods/web-2/eviction", FaultKind::Status(429)).times(times);
    drained.world.server.faults().push(deny(7));
    drained.good(ALL).await;
    drained.promises_held();
    assert_eq!((drained.world.count(TARGET), drained.cordoned()), (6, Vec::new()));
}

#[tokio::test(start_paused = true)]
async fn a_budget_that_never_yields_stops_it_and_nothing_stays_cordoned() {
    let drained = Drained::new(6);
    let deny = Fault::new(Verb::Post, "/pods/web-2/eviction", FaultKind::Status(429));
    drained.world.server.faults().push(deny);
    let said = drained.bad(ALL).await;
    assert!(said.contains("stopped: node node-0002 cannot be drained: 1 Pods are still there after 600 s"), "{said}");
    assert!(said.contains("such as Pod apps/web-2: scripted"), "{said}");
    drained.promises_held();
    assert_eq!(drained.cordoned(), []);
    drained.world.server.faults().clear();
    drained.good(&["resume", TARGET, "--quiet"]).await;
    drained.promises_held();
    assert_eq!((drained.world.count(TARGET), drained.cordoned()), (6, Vec::new()));
}

#[tokio::test(start_paused = true)]
async fn pods_that_nobody_would_start_again_or_that_would_lose_data_refuse() {
    let bare = json!({"metadata": {"ownerReferences": null}});
    let scratch = json!({"spec": {"volumes": [{"name": "scratch", "emptyDir": {}}]}});
    for (pod, why) in [(bare, "has no controller"), (scratch, "has an emptyDir")] {
        let drained = Drained::new(4);
        drained.pod(2, "odd", pod);
        let said = drained.bad(ALL).await;
        assert!(said.contains("node node-0002 cannot be drained: Pod apps/odd-2") && said.contains(why), "{said}");
        drained.promises_held();
        assert_eq!(drained.cordoned(), []);
        let left = drained.world.server.read(|s| pods(s, &name(2)));
        assert!(left.contains(&"odd-2".to_owned()) && left.contains(&"web-2".to_owned()), "left alone: {left:?}");
        drained.good(&["abort", TARGET]).await;
        let force: Vec<&str> = ALL
            .iter()
            .map(|arg| if *arg == "--drain" { "--drain=force" } else { arg })
            .chain(["--name", "two"])
            .collect();
        drained.good(&force).await;
        drained.promises_held();
        assert_eq!((drained.world.count(TARGET), drained.cordoned()), (4, Vec::new()));
    }
}

#[tokio::test(start_paused = true)]
async fn a_missing_right_is_reported_and_leaves_nothing_cordoned() {
    let drained = Drained::new(4);
    drained.world.server.faults().push(Fault::new(Verb::Post, "/eviction", FaultKind::Status(403)));
    let said = drained.bad(ALL).await;
    assert!(said.contains("Pod apps/web-0 cannot be evicted") && said.contains("pods/eviction"), "{said}");
    assert_eq!((drained.world.count(TARGET), drained.cordoned()), (0, Vec::new()));
}

#[tokio::test(start_paused = true)]
async fn killed_at_many_moments_it_goes_on_and_forgets_no_cordon() {
    for seed in 1..4 {
        let drained = Drained::new(15);
        let mut random = Random(seed);
        let mut died = 0;
        let end = loop {
            {
                let mut seen = drained.seen.lock().unwrap();
                seen.dies_at = (died < 15).then(|| (seen.writes + 1 + random.below(14), random.below(2) == 0));
            }
            match drained.client(ALL).await {
                None => died += 1,
                Some(end) => break end,
            }
        };
        assert!(end.is_ok(), "seed {seed}: {end:?}");
        drained.promises_held();
        assert_eq!((died, drained.world.count(TARGET), drained.cordoned()), (15, 15, Vec::new()), "seed {seed}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_goes_back_is_open_again_when_it_stops() {
    for outcome in [Outcome::Rejects, Outcome::RollsBack] {
        let drained = Drained::new(9);
        drained.world.set_outcome(5, outcome);
        assert!(drained.bad(ALL).await.contains("node-0005 called it bad"));
        drained.promises_held();
        assert_eq!(drained.cordoned(), [], "nor one that was in flight beside it");
        drained.good(&["undo", TARGET, "--quiet"]).await;
        drained.promises_held();
        assert_eq!((drained.world.count("pool-a"), drained.cordoned()), (9, Vec::new()));
    }
}

#[tokio::test(start_paused = true)]
async fn revert_drains_too_but_not_what_is_unwell() {
    let drained = Drained::new(9);
    drained.world.set_outcome(5, Outcome::RollsBack);
    let args: Vec<&str> = ALL.iter().copied().chain(["--on-failure", "revert"]).collect();
    assert!(drained.bad(&args).await.contains("is reverted: node node-0005 called it bad"));
    drained.promises_held();
    assert_eq!((drained.world.count("pool-a"), drained.cordoned()), (9, Vec::new()));
}

#[tokio::test(start_paused = true)]
async fn one_that_never_comes_back_stays_cordoned_and_is_named() {
    // The trial is longer than what a node may be not Ready.
    let drained = Drained::of(World::with_trial(6, Duration::from_secs(600)), 6);
    drained.world.set_outcome(0, Outcome::GoesNotReady);
    // By itself it would go back, and be well: it is not Ready whatever it runs.
    let lost = async {
        while drained.world.server.read(|s| s.node(&name(0)).is_some_and(is_ready)) {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        drained.world.unready(0, 100_000);
    };
    let (said, ()) = tokio::join!(drained.bad(ALL), lost);
    assert!(said.contains("node-0000 is not Ready"), "{said}");
    assert_eq!(drained.cordoned(), [(name(0), Some(TARGET.to_owned()))]);
    // Whoever goes on has it, too: it is given back what it had without a drain, and is open when it is well.
    drained.world.set_outcome(0, Outcome::Good);
    drained.world.unready(0, 5);
    drained.good(&["undo", TARGET, "--quiet"]).await;
    assert_eq!((drained.world.count("pool-a"), drained.cordoned()), (6, Vec::new()));
}

#[tokio::test(start_paused = true)]
async fn a_pause_takes_back_drains_that_have_begun() {
    let drained = Drained::new(9);
    for number in 1..9 {
        let path = format!("/pods/web-{number}/eviction");
        drained.world.server.faults().push(Fault::new(Verb::Post, &path, FaultKind::Status(429)).times(6));
    }
    let told = async {
        // The canary is done; the next nodes are being drained.
        while drained.world.count(TARGET) < 1 {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        drained.until_cordoned(MAX).await;
        let sent = drained.world.count(TARGET);
        drained.world.good(&["pause", TARGET]).await;
        drained.until_cordoned(0).await;
        tokio::time::sleep(Duration::from_secs(3600)).await;
        assert_eq!((drained.world.count(TARGET), drained.cordoned()), (sent, Vec::new()));
        drained.world.good(&["resume", TARGET, "--quiet"]).await;
    };
    tokio::join!(drained.good(ALL), told);
    drained.promises_held();
    assert_eq!((drained.world.count(TARGET), drained.cordoned()), (9, Vec::new()));
}

#[tokio::test(start_paused = true)]
async fn abort_opens_what_a_dead_client_left_cordoned() {
    let drained = Drained::new(9);
    drained.seen.lock().unwrap().dies_at = Some((20, true));
    let dies = async {
        assert!(drained.client(ALL).await.is_none());
        drained.seen.lock().unwrap().dies_at = None;
    };
    dies.await;
    assert!(!drained.cordoned().is_empty());
    drained.good(&["abort", TARGET]).await;
    drained.promises_held();
    assert_eq!(drained.cordoned(), []);
    // And another rollout takes over a cordon of one that is over.
    drained.world.server.patch_node(
        &name(7),
        json!({"metadata": {"annotations": {CORDONED_BY: "former"}}, "spec": {"unschedulable": true}}),
    );
    let anew: Vec<&str> = ALL.iter().copied().chain(["--name", "two"]).collect();
    drained.good(&anew).await;
    assert_eq!((drained.world.count(TARGET), drained.cordoned()), (9, Vec::new()));
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_drained_on_the_way_back_is_left_and_named() {
    let drained = Drained::new(6);
    drained.good(ALL).await;
    drained.pod(2, "odd", json!({"metadata": {"ownerReferences": null}}));
    let said = drained.bad(&["undo", TARGET, "--quiet"]).await;
    assert!(said.contains("cannot be drained: node-0002: Pod apps/odd-2 has no controller"), "{said}");
    drained.promises_held();
    assert_eq!((drained.world.count("pool-a"), drained.cordoned()), (5, Vec::new()));
    drained.world.server.delete_pod("apps", "odd-2");
    drained.good(&["undo", TARGET, "--quiet"]).await;
    assert_eq!((drained.world.count("pool-a"), drained.why()), (6, String::new()));
}
