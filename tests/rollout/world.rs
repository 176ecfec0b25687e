//! The cluster: nodes with simulated supervisors, and a way in that counts, checks and cuts.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kube::client::Body;
use kubelet_supervisor::core::carrier::LABELS;
use kubelet_supervisor::plugin::{self, Context, Failure};
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::support::api_server::{ApiServer, Door, State};

pub const NAMESPACE: &str = "kubelet-config";
/// What is rolled out.
pub const TARGET: &str = "pool-b";
/// What all nodes have before.
const BEFORE: &str = "pool-a";
pub const NODES: usize = 200;

/// What a node does with [`TARGET`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Good,
    Rejects,
    RollsBack,
    GoesNotReady,
}

/// Assigned, active, reason, error, and whether the node is Ready.
type Said = (String, String, &'static str, Option<&'static str>, bool);

/// A supervisor as the API server sees it: it takes up what its Node is assigned after some seconds, refuses it or
/// runs it, and proves it or goes back.
struct Supervisor {
    fate: Fate,
    /// What it has heard of, and when.
    heard: (String, Instant),
    proven: String,
    bad: Vec<String>,
    /// What it said last, in short and in full.
    said: Said,
    shown: Value,
    ready: bool,
    unready_until: Option<Instant>,
    unready_since: Option<Instant>,
    slow: u64,
}

impl Supervisor {
    fn new(number: usize) -> Supervisor {
        Supervisor {
            fate: Fate::Good,
            heard: (BEFORE.to_owned(), Instant::now()),
            proven: BEFORE.to_owned(),
            bad: Vec::new(),
            said: Said::default(),
            shown: Value::Null,
            ready: true,
            unready_until: None,
            unready_since: None,
            slow: (number % 7) as u64,
        }
    }

    /// What it says now of what it is assigned: assigned, active, reason, error.
    fn says(&mut self, wanted: &str) -> (String, String, &'static str, Option<&'static str>) {
        if self.heard.0 != wanted {
            self.heard = (wanted.to_owned(), Instant::now());
        }
        let passed = self.heard.1.elapsed().as_secs();
        let (wanted, proven) = (wanted.to_owned(), self.proven.clone());
        let fate = if wanted == TARGET { self.fate } else { Fate::Good };
        let error = Some("failed to load config, see Kubelet log for details");
        if wanted == proven {
            return (wanted.clone(), wanted, "LastKnownGood", None);
        }
        if passed < 2 + self.slow {
            return (proven.clone(), proven, "LastKnownGood", None);
        }
        if self.bad.contains(&wanted) || (fate == Fate::Rejects && passed >= 4) {
            return (wanted, proven, if fate == Fate::Rejects { "Rejected" } else { "RolledBack" }, error);
        }
        if fate == Fate::RollsBack && passed >= 40 {
            self.bad.push(wanted.clone());
            return (wanted, proven, "RolledBack", error);
        }
        if fate == Fate::GoesNotReady && passed >= 20 {
            self.unready_until = Some(Instant::now() + Duration::from_secs(86_400));
        }
        if fate == Fate::Good && passed >= 60 {
            self.proven.clone_from(&wanted);
            return (wanted.clone(), wanted, "LastKnownGood", None);
        }
        (wanted.clone(), wanted, "OnTrial", None)
    }
}

pub fn name(number: usize) -> String {
    format!("node-{number:04}")
}

pub fn number(name: &str) -> usize {
    name.strip_prefix("node-").and_then(|number| number.parse().ok()).expect("a node's name")
}

/// A write of an assignment that the API server carried out.
#[derive(Clone, Debug)]
pub struct Sent {
    pub node: String,
    pub to: String,
    pub at: Instant,
}

#[derive(Default)]
struct Wire {
    requests: u64,
    bytes: u64,
    /// The client dies at this request; with true, after it was carried out.
    dies_at: Option<(u64, bool)>,
    sent: Vec<Sent>,
    broken: Vec<String>,
    canaries: Vec<String>,
    max: usize,
    active: bool,
}

pub struct World {
    pub server: ApiServer,
    nodes: Arc<Mutex<BTreeMap<String, Supervisor>>>,
    wire: Arc<Mutex<Wire>>,
    died: Arc<Notify>,
}

impl World {
    /// In three zones and two pools, all with [`BEFORE`] proven.
    pub fn new(count: usize) -> World {
        let server = ApiServer::start();
        server.drop_dynamic_config(true);
        for map in [BEFORE, TARGET] {
            server.put_config_map(NAMESPACE, map, &[("kubelet", "kind: KubeletConfiguration")]);
        }
        let mut nodes = BTreeMap::new();
        for number in 0..count {
            let node = name(number);
            server.create_node(&node);
            let labels = json!({
                format!("{LABELS}name"): BEFORE, "topology.kubernetes.io/zone": format!("z{}", number % 3),
                "all": "yes", "pool": if number % 2 == 0 { "even" } else { "odd" },
            });
            server.patch_node(&node, json!({"metadata": {"labels": labels}}));
            nodes.insert(node, Supervisor::new(number));
        }
        let world = World {
            server,
            nodes: Arc::new(Mutex::new(nodes)),
            wire: Arc::new(Mutex::new(Wire { max: usize::MAX, ..Wire::default() })),
            died: Arc::default(),
        };
        world.second();
        world
    }

    pub fn expect(&self, canaries: &[usize], max: usize) {
        let mut wire = self.wire.lock().unwrap();
        (wire.canaries, wire.max) = (canaries.iter().map(|number| name(*number)).collect(), max);
    }

    pub fn expect_active(&self) {
        self.wire.lock().unwrap().active = true;
    }

    /// The Node and its supervisor go.
    pub fn delete(&self, number: usize) {
        self.nodes.lock().unwrap().remove(&name(number));
        self.server.delete_node(&name(number));
    }

    /// A Node with these labels, and a supervisor that knows nothing.
    pub fn create(&self, number: usize, labels: &Value) {
        self.server.put_node(&name(number), json!({"metadata": {"labels": labels}, "spec": {}, "status": {}}));
        self.nodes.lock().unwrap().insert(name(number), Supervisor::new(number));
    }

    pub fn fate(&self, number: usize, fate: Fate) {
        self.nodes.lock().unwrap().get_mut(&name(number)).unwrap().fate = fate;
    }

    pub fn unready(&self, number: usize, seconds: u64) {
        let until = Instant::now() + Duration::from_secs(seconds);
        self.nodes.lock().unwrap().get_mut(&name(number)).unwrap().unready_until = Some(until);
    }

    /// All supervisors look at their Nodes, and say what is new.
    fn second(&self) {
        let mut nodes = self.nodes.lock().unwrap();
        for (name, node) in nodes.iter_mut() {
            let wanted = self.server.read(|s| wanted(s.node(name).unwrap()));
            let (assigned, active, reason, error) = node.says(&wanted);
            node.ready = node.unready_until.is_none_or(|until| Instant::now() >= until);
            node.unready_since = if node.ready { None } else { node.unready_since.or(Some(Instant::now())) };
            let said = (assigned.clone(), active.clone(), reason, error, node.ready);
            if said == node.said {
                continue;
            }
            node.said = said;
            let source = |map: &str| {
                let identity = self.server.read(|s| s.config_map(NAMESPACE, map).unwrap()["metadata"].clone());
                json!({"configMap": {"namespace": NAMESPACE, "name": map, "kubeletConfigKey": "kubelet",
                    "uid": identity["uid"], "resourceVersion": identity["resourceVersion"]}})
            };
            let mut status = json!({"assigned": source(&assigned), "active": source(&active), "lastKnownGood": source(&node.proven)});
            if let Some(error) = error {
                status["error"] = error.into();
            }
            let ready = if node.ready { "True" } else { "Unknown" };
            let shown = json!({
                "metadata": {"annotations": {"kubelet-supervisor.io/config-status": status.to_string()}},
                "status": {"conditions": [
                    {"type": "KubeletConfigOk", "status": "Unknown", "reason": reason, "message": "in my words"},
                    {"type": "Ready", "status": ready},
                ]},
            });
            node.shown = shown.clone();
            self.server.patch_node(name, shown);
        }
    }

    /// Time passes, and the nodes live.
    pub async fn live(&self) {
        loop {
            tokio::time::sleep(Duration::from_secs(1)).await;
            self.second();
        }
    }

    /// The client with these arguments, until it ends; None if it died.
    pub async fn client(&self, args: &[&str]) -> Option<Result<ExitCode, Failure>> {
        let context = Context { client: self.connect(), namespace: NAMESPACE.to_owned(), impersonates: false };
        let args: Vec<&str> = ["rollout"].into_iter().chain(args.iter().copied()).collect();
        tokio::select! {
            biased;
            () = self.died.notified() => None,
            result = plugin::run(&context, &args) => Some(result),
            () = self.live() => unreachable!("life goes on"),
            () = tokio::time::sleep(Duration::from_secs(3 * 86_400)) => panic!("no end: {:?}", self.phase(TARGET)),
        }
    }

    /// The same, if it is to end well.
    pub async fn good(&self, args: &[&str]) {
        self.client(args).await.expect("alive").unwrap_or_else(|failure| panic!("{args:?}: {}", failure.message));
    }

    /// The same, if it is to fail; what it says.
    pub async fn bad(&self, args: &[&str]) -> String {
        self.client(args).await.expect("alive").expect_err("a failure").message
    }

    /// The client dies at its so many-eth request from now, before or after that is carried out.
    pub fn die_at(&self, number: u64, after: bool) {
        let mut wire = self.wire.lock().unwrap();
        wire.dies_at = Some((wire.requests + number, after));
    }

    pub fn live_on(&self) {
        self.wire.lock().unwrap().dies_at = None;
    }

    pub fn connect(&self) -> kube::Client {
        let (wire, nodes, died) = (Arc::clone(&self.wire), Arc::clone(&self.nodes), Arc::clone(&self.died));
        let door = self.server.door();
        let state = self.server.door();
        let service = tower::service_fn(move |request: hyper::Request<Body>| {
            let (wire, nodes, died) = (Arc::clone(&wire), Arc::clone(&nodes), Arc::clone(&died));
            let (door, state) = (door.clone(), state.clone());
            async move {
                let number = {
                    let mut wire = wire.lock().unwrap();
                    wire.requests += 1;
                    wire.requests
                };
                let dying = wire.lock().unwrap().dies_at.filter(|(at, _)| *at <= number);
                if dying.is_some_and(|(_, after)| !after) {
                    died.notify_one();
                    std::future::pending::<()>().await;
                }
                let node = assigned_node(&request);
                let problems =
                    node.as_ref().map(|node| check(&wire.lock().unwrap(), &state, &nodes.lock().unwrap(), node));
                let response = door.answer(request).await;
                if let (Some(node), true) = (&node, response.status().is_success()) {
                    let to = state.read(|s| wanted(s.node(node).unwrap()));
                    let mut wire = wire.lock().unwrap();
                    if to == TARGET {
                        wire.broken.extend(problems.unwrap_or_default());
                    }
                    wire.sent.push(Sent { node: node.clone(), to, at: Instant::now() });
                }
                if dying.is_some() {
                    died.notify_one();
                    std::future::pending::<()>().await;
                }
                let counted = Arc::clone(&wire);
                let response = response.map(|body| {
                    use http_body_util::BodyExt as _;
                    body.map_frame(move |frame| {
                        let bytes = frame.data_ref().map_or(0, |data| data.len() as u64);
                        counted.lock().unwrap().bytes += bytes;
                        frame
                    })
                });
                Ok::<_, std::convert::Infallible>(response)
            }
        });
        kube::Client::new(service, "default")
    }

    /// How many requests, and bytes of answers.
    pub fn traffic(&self) -> (u64, u64) {
        let wire = self.wire.lock().unwrap();
        (wire.requests, wire.bytes)
    }

    pub fn sent(&self) -> Vec<Sent> {
        self.wire.lock().unwrap().sent.clone()
    }

    /// No promise was broken.
    pub fn promises_held(&self) {
        let wire = self.wire.lock().unwrap();
        assert!(wire.broken.is_empty(), "{:#?}", wire.broken);
    }

    pub fn count(&self, map: &str) -> usize {
        self.server.read(|s| {
            let nodes = self.nodes.lock().unwrap();
            nodes.keys().filter(|node| wanted(s.node(node).unwrap()) == map).count()
        })
    }

    pub fn phase(&self, rollout: &str) -> Option<String> {
        let map = self.server.read(|s| s.config_map(NAMESPACE, &format!("rollout-{rollout}")).cloned())?;
        let record: Value = serde_json::from_str(map["data"]["rollout"].as_str()?).ok()?;
        Some(record["phase"].as_str()?.to_owned())
    }

    /// Lives until the rollout is there.
    pub async fn until(&self, rollout: &str, phase: &str) {
        while self.phase(rollout).as_deref() != Some(phase) {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }
}

fn wanted(node: &Value) -> String {
    let native = node["spec"]["configSource"]["configMap"]["name"].as_str();
    let label = node["metadata"]["labels"][format!("{LABELS}name")].as_str();
    native.or(label).unwrap_or_default().to_owned()
}

/// The node that a request assigns something.
fn assigned_node(request: &hyper::Request<Body>) -> Option<String> {
    let is_write = request.method() == "PATCH" && !request.uri().query().unwrap_or_default().contains("dryRun");
    request.uri().path().strip_prefix("/api/v1/nodes/").filter(|_| is_write).map(str::to_owned)
}

/// What would be wrong with assigning the target to this node now.
fn check(wire: &Wire, door: &Door, nodes: &BTreeMap<String, Supervisor>, node: &str) -> Vec<String> {
    let mut problems = Vec::new();
    if wire.max == usize::MAX {
        return problems; // nobody asked, and with thousands of nodes it takes long
    }
    door.read(|s: &State| {
        let is_settled = |name: &str| {
            let says = &nodes[name].shown["status"]["conditions"][0]["reason"];
            let caught_up = nodes[name].shown["metadata"]["annotations"]["kubelet-supervisor.io/config-status"]
                .as_str()
                .and_then(|text| serde_json::from_str::<Value>(text).ok())
                .is_some_and(|status| status["assigned"]["configMap"]["name"] == TARGET && status["error"].is_null());
            caught_up && (says == "LastKnownGood" || (wire.active && says == "OnTrial"))
        };
        let has = |name: &str| s.node(name).is_some_and(|node| wanted(node) == TARGET);
        let busy = |name: &&String| {
            // What happened at this very moment nobody can know.
            let unready = nodes[*name].unready_since.is_some_and(|since| since.elapsed() >= Duration::from_secs(1));
            unready || (has(name) && !is_settled(name))
        };
        let busy = nodes.keys().filter(busy).count();
        if busy >= wire.max {
            problems.push(format!("{node}: {busy} are in flight or not Ready, of {} that may be", wire.max));
        }
        if !wire.canaries.iter().any(|canary| canary == node) {
            let open = wire.canaries.iter().find(|canary| !(has(canary) && is_settled(canary)));
            problems.extend(open.map(|open| format!("{node}: before the canary {open}")));
        }
        let bad = nodes.iter().find(|(name, it)| has(name) && it.shown.to_string().contains("failed to load"));
        problems.extend(bad.map(|(bad, _)| format!("{node}: {bad} called it bad")));
    });
    problems
}
