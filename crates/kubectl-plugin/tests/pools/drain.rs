//! Pools with `spec.rollout.drain`: what Pods are made to leave, what is assigned when, and whose cordon is whose. Each write is
//! checked against what the API server knows at that moment.

use std::cell::Cell;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kube::client::Body;
use kubectl_plugin::fleet::pool::drain::CORDONED_BY;
use kubelet_config::assignment::LABELS;
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::{POOL, condition, observed, spec};
use testkit::api_server::{Answer, Door, Fault, FaultKind, Resource, State, Then, Verb};
use testkit::pools::{Outcome, World, context, name, number};

const MAX: usize = 3;

#[derive(Default)]
struct Seen {
    /// The revision that is on its way.
    target: String,
    broken: Vec<String>,
    evicted: Vec<String>,
    most: usize,
    writes: u64,
    /// The controller dies at this write; with true, after it was carried out.
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
fn is_busy(node: &Value, target: &str) -> bool {
    let status = status(node);
    let source = |which: &str| text(&status, &format!("/{which}/configMap/name")).to_owned();
    let on_its_way = if wanted(node) == target {
        source("assigned") != target || source("active") != source("lastKnownGood")
    } else {
        source("assigned") == target || source("active") == target
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

fn drained_spec(pods: u32, more: &Value) -> Value {
    let mut spec = spec(pods, &json!({"rollout": {"canaries": 1, "maxUnavailable": MAX, "nodeTimeoutSeconds": 600}}));
    spec["rollout"]["drain"] = "Careful".into();
    for (field, value) in more.as_object().unwrap() {
        let part = if field == "paused" { &mut spec } else { &mut spec["rollout"] };
        part[field] = value.clone();
    }
    spec
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
            let done = json!({"metadata": {"ownerReferences": null}, "status": {"phase": "Succeeded"}});
            drained.pod(number, "done", done);
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
                let ends = |pod: &Value| pod["metadata"]["deletionTimestamp"].is_string();
                let all = s.list(|key, pod| key.resource == Resource::Pod && ends(pod));
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
                    self.pod(number(&node), &format!("moved-{count}"), json!({}));
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
                let is_write = request.method() != "GET" && !path.contains("/leases");
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
                let evicted = path.strip_suffix("/eviction").and_then(|path| path.rsplit('/').next());
                if let Some(pod) = evicted {
                    not_before_the_cordon(&state, pod, &mut seen.lock().unwrap());
                }
                let response = door.answer(request).await;
                if response.status().is_success() {
                    let mut seen = seen.lock().unwrap();
                    if let Some(before) = before {
                        after(&state, &before, &mut seen);
                    }
                    seen.evicted.extend(evicted.map(str::to_owned));
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

    /// A controller; when it dies, another one takes over.
    async fn controllers(&self) {
        loop {
            let context = context(self.connect());
            tokio::select! {
                biased;
                () = self.died.notified() => {}
                result = kubectl_plugin::run(&context, &["controller"]) => panic!("the controller ended: {result:?}"),
            }
        }
    }

    /// With controllers, in simulated time.
    async fn run<T>(&self, script: impl Future<Output = T>) -> T {
        let done = tokio::select! {
            biased;
            done = script => done,
            () = self.controllers() => unreachable!("one after the other"),
            () = self.live() => unreachable!("life goes on"),
            () = tokio::time::sleep(Duration::from_secs(86_400)) => panic!("no end: {:#?}", self.world.server.pool(POOL)),
        };
        let seen = self.seen.lock().unwrap();
        assert!(seen.broken.is_empty(), "{:#?}", seen.broken);
        assert!(seen.most <= MAX, "{} at once", seen.most);
        done
    }

    /// The pool as `spec` has it, not yet moving; the revision that it makes of that.
    async fn prepared(&self, pods: u32) -> String {
        self.world.server.put_pool(POOL, &drained_spec(pods, &json!({"paused": true})));
        let is_paused = |pool: &Value| observed(pool) && condition(pool, "Ready").1 == "Paused";
        let pool = self.world.until_pool(POOL, is_paused).await;
        let revision = text(&pool, "/status/updateRevision").to_owned();
        self.seen.lock().unwrap().target.clone_from(&revision);
        revision
    }

    /// The same, on its way.
    async fn begun(&self, pods: u32, more: &Value) -> String {
        let revision = self.prepared(pods).await;
        self.world.server.put_pool(POOL, &drained_spec(pods, more));
        revision
    }

    async fn until(&self, kind: &str, reason: &str) -> Value {
        let so = |pool: &Value| observed(pool) && condition(pool, kind) == ("True", reason);
        self.world.until_pool(POOL, so).await
    }

    /// All have it, and all are open.
    async fn complete(&self) {
        self.until("Ready", "Complete").await;
        self.until_cordoned(0).await;
    }

    /// Until it waits for a drain, nodes are open, and its message has these words.
    async fn blocked(&self, words: &[&str]) {
        let pool = self.until("Reconciling", "DrainBlocked").await;
        let said = pool["status"]["conditions"].to_string();
        assert!(words.iter().all(|word| said.contains(word)), "{said}");
        self.until_cordoned(0).await;
    }

    /// Nodes that are cordoned, and by whom.
    fn cordoned(&self) -> Vec<(String, Option<String>)> {
        self.world.server.read(|s| {
            let cordoned = nodes(s).filter(|node| node["spec"]["unschedulable"] == true || cordoned_by(node).is_some());
            let row = |node: &Value| (text(node, "/metadata/name").to_owned(), cordoned_by(node).map(str::to_owned));
            cordoned.map(row).collect()
        })
    }

    fn evicted(&self) -> Vec<String> {
        self.seen.lock().unwrap().evicted.clone()
    }

    /// Until so many nodes are cordoned by the pool.
    async fn until_cordoned(&self, count: usize) {
        while self.cordoned().iter().filter(|(_, by)| by.is_some()).count() != count {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
}

/// A disruption budget says no.
fn deny(path: &str) -> Fault {
    Fault::new(Verb::Post, path, FaultKind::Status(429))
}

fn before(door: &Door, node: &str) -> (Value, Vec<String>) {
    door.read(|s| (s.node(node).unwrap().clone(), pods(s, node)))
}

fn not_before_the_cordon(door: &Door, pod: &str, seen: &mut Seen) {
    door.read(|s| {
        let node = s.list(|key, it| key.resource == Resource::Pod && text(it, "/metadata/name") == pod).next();
        let node = node.and_then(|pod| s.node(text(pod, "/spec/nodeName")));
        if node.is_some_and(|node| node["spec"]["unschedulable"] != true) {
            seen.broken.push(format!("{pod}: evicted while its node was not cordoned"));
        }
    });
}

fn after(door: &Door, (before, pods): &(Value, Vec<String>), seen: &mut Seen) {
    let (name, target) = (text(before, "/metadata/name"), seen.target.clone());
    door.read(|s| {
        let node = s.node(name).unwrap();
        let unwell = !is_ready(before) || status(before)["error"].is_string();
        if wanted(before) != wanted(node) && !(unwell && wanted(node) != target) {
            if before["spec"]["unschedulable"] != true {
                seen.broken.push(format!("{name}: given {} while it was not cordoned", wanted(node)));
            }
            if !pods.is_empty() {
                seen.broken.push(format!("{name}: given {} while it has {pods:?}", wanted(node)));
            }
        }
        if wanted(before) != wanted(node) || cordoned_by(before) != cordoned_by(node) {
            seen.most = seen.most.max(nodes(s).filter(|node| is_busy(node, &target)).count());
        }
    });
}

#[tokio::test(start_paused = true)]
async fn each_node_is_emptied_before_it_gets_it_and_open_again_after() {
    let drained = Drained::new(12);
    let script = async {
        let revision = drained.begun(60, &json!({})).await;
        drained.complete().await;
        assert_eq!(drained.world.count(&revision), 12);
        assert_eq!(drained.seen.lock().unwrap().most, MAX, "as many at once as may be");
        let evicted = drained.evicted();
        assert!((0..12).all(|number| evicted.contains(&format!("web-{number}"))), "{evicted:?}");
        assert!(evicted.iter().all(|pod| pod.starts_with("web-") || pod.starts_with("moved-")), "{evicted:?}");
        evicted.len()
    };
    let evicted = drained.run(script).await;
    // The way back is as hazardous.
    let script = async {
        drained.begun(61, &json!({})).await;
        drained.complete().await;
    };
    drained.run(script).await;
    assert!(drained.evicted().len() > evicted);
}

#[tokio::test(start_paused = true)]
async fn a_budget_that_never_yields_keeps_one_node_back_and_leaves_it_open() {
    let drained = Drained::new(6);
    drained.world.server.faults().push(deny("/pods/web-2/eviction"));
    let script = async {
        let revision = drained.begun(60, &json!({})).await;
        drained.blocked(&["node-0002: 1 Pods are still there after 600 s", "Pod apps/web-2: scripted"]).await;
        assert_eq!(drained.world.count(&revision), 5);
        drained.world.server.faults().clear();
        drained.complete().await;
    };
    drained.run(script).await;
}

#[tokio::test(start_paused = true)]
async fn pods_that_nobody_would_start_again_or_that_would_lose_data_refuse() {
    let bare = json!({"metadata": {"ownerReferences": null}});
    let scratch = json!({"spec": {"volumes": [{"name": "scratch", "emptyDir": {}}]}});
    for (pod, why) in [(bare, "has no controller"), (scratch, "has an emptyDir")] {
        for by_force in [false, true] {
            let drained = Drained::new(4);
            drained.pod(2, "odd", pod.clone());
            let script = async {
                let revision = drained.begun(60, &json!({})).await;
                drained.blocked(&["cannot be drained", "node-0002: Pod apps/odd-2", why]).await;
                assert_eq!(drained.world.count(&revision), 3, "the others went on");
                let left = drained.world.server.read(|s| pods(s, &name(2)));
                assert!(["odd-2", "web-2"].iter().all(|pod| left.contains(&(*pod).to_owned())), "{left:?}");
                if by_force {
                    drained.world.server.put_pool(POOL, &drained_spec(60, &json!({"drain": "Force"})));
                } else {
                    drained.world.server.delete_pod("apps", "odd-2");
                }
                drained.complete().await;
            };
            drained.run(script).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_missing_right_is_reported_and_leaves_nothing_cordoned() {
    for fault in [(Verb::Post, "/eviction"), (Verb::List, "/api/v1/pods")] {
        let drained = Drained::new(4);
        drained.world.server.faults().push(Fault::new(fault.0, fault.1, FaultKind::Status(403)));
        let script = async {
            let revision = drained.begun(60, &json!({})).await;
            let right = if fault.0 == Verb::Post { "create pods/eviction" } else { "list pods" };
            drained.blocked(&[right, "packaging/manifests/pools-drain"]).await;
            assert_eq!(drained.world.count(&revision), 0);
            drained.world.server.faults().clear();
            drained.complete().await;
        };
        drained.run(script).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_api_server_in_trouble_costs_time_only() {
    let drained = Drained::new(9);
    let script = async {
        drained.prepared(60).await;
        for (verb, path, kind) in [
            (Verb::Patch, "/api/v1/nodes/", FaultKind::Status(409)),
            (Verb::Patch, "/api/v1/nodes/", FaultKind::CutMidLine),
            (Verb::Post, "/eviction", FaultKind::Status(500)),
            (Verb::Post, "/eviction", FaultKind::CutMidLine),
            (Verb::List, "/api/v1/pods", FaultKind::Status(503)),
            (Verb::Watch, "/api/v1/pods", FaultKind::GoneInStream),
        ] {
            drained.world.server.faults().push(Fault::new(verb, path, kind).times(9));
        }
        drained.world.server.put_pool(POOL, &drained_spec(60, &json!({})));
        drained.complete().await;
    };
    drained.run(script).await;
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_ends_as_soon_as_it_begins_is_not_asked_for_without_a_pause() {
    let drained = Drained::new(3);
    let script = async {
        let ends = FaultKind::Answer(Answer::new(200, "", Then::End));
        drained.world.server.faults().push(Fault::new(Verb::Watch, "/api/v1/pods", ends));
        drained.begun(60, &json!({})).await;
        tokio::time::sleep(Duration::from_secs(300)).await;
        let requests = drained.world.server.requests();
        let watches = requests.iter().filter(|request| request.is_watch() && request.path == "/api/v1/pods").count();
        assert!((10..=151 * MAX).contains(&watches), "{watches}");
        drained.world.server.faults().clear();
        drained.complete().await;
    };
    drained.run(script).await;
}

#[tokio::test(start_paused = true)]
async fn killed_at_many_moments_it_goes_on_and_forgets_no_cordon() {
    for seed in 1..4_u64 {
        let drained = Drained::new(15);
        let mut random = seed;
        let mut below = move |limit: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % limit
        };
        let died = Cell::new(0);
        let kills = async {
            while died.get() < 15 {
                let at = {
                    let mut seen = drained.seen.lock().unwrap();
                    let at = seen.writes + 1 + below(9);
                    seen.dies_at = Some((at, below(2) == 0));
                    at
                };
                while drained.seen.lock().unwrap().writes < at {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                died.set(died.get() + 1);
            }
            drained.seen.lock().unwrap().dies_at = None;
            std::future::pending::<()>().await;
        };
        let script = async {
            let revision = drained.begun(60, &json!({})).await;
            tokio::select! {
                () = drained.complete() => {}
                () = kills => unreachable!("it waits"),
            }
            assert_eq!(drained.world.count(&revision), 15, "seed {seed}");
            assert!(died.get() > 9, "seed {seed}: {died:?}");
        };
        drained.run(script).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_bad_revision_goes_back_drained_and_leaves_nothing_cordoned() {
    for on_failure in ["Revert", "Stop"] {
        let drained = Drained::new(9);
        let script = async {
            let good = drained.begun(60, &json!({})).await;
            drained.complete().await;
            let bad = drained.prepared(61).await;
            drained.world.set_outcome_with(5, &bad, Outcome::RollsBack);
            drained.world.server.put_pool(POOL, &drained_spec(61, &json!({"onFailure": on_failure})));
            let is_over = |pool: &Value| {
                let is_back = on_failure == "Stop" || pool["status"]["updated"] == 0;
                condition(pool, "Stalled") == ("True", "FailuresExceeded") && is_back
            };
            drained.world.until_pool(POOL, is_over).await;
            drained.until_cordoned(0).await;
            assert!(on_failure == "Stop" || drained.world.count(&good) == 9);
        };
        drained.run(script).await;
    }
}

#[tokio::test(start_paused = true)]
async fn no_cordon_outlives_its_pool_or_a_node_that_leaves_it() {
    for leaves in [false, true] {
        let drained = Drained::new(4);
        drained.world.server.faults().push(deny("/eviction"));
        let script = async {
            drained.begun(60, &json!({})).await;
            drained.until_cordoned(1).await;
            // The controller that knew of it is gone, too.
            drained.died.notify_one();
            if leaves {
                let (node, _) = drained.cordoned().remove(0);
                drained.world.server.patch_node(&node, json!({"metadata": {"labels": {"all": null}}}));
                while drained.cordoned().iter().any(|(name, _)| *name == node) {
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
            } else {
                drained.world.server.delete_pool(POOL);
                drained.until_cordoned(0).await;
            }
        };
        drained.run(script).await;
    }
}
