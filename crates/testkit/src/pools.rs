//! The cluster: nodes with supervisors, simulated time, and a way in that counts and cuts.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kube::client::{Body, ClientBuilder};
use kubectl_plugin::{Context, Failure};
use kubelet_config::assignment::LABELS;
use kubelet_config::source::{ConfigMapRef, Payload, Source};
use kubelet_config::status::{Condition, ConditionReason, ConditionStatus, NodeConfigStatus, PublishedStatus};
use kubelet_supervisor::adapters::kube::ClientLayer;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::api_server::{ApiServer, Door};
use crate::fleet::log::{Expectation, Log};
use crate::fleet::{Fleet, Pace, Surroundings};

pub use crate::fleet::Outcome;

pub const NAMESPACE: &str = "kubelet-config";
/// What is rolled out.
pub const TARGET: &str = "pool-b";
/// What all nodes have before.
const BEFORE: &str = "pool-a";
pub const NODES: usize = 200;
/// A trial, where nobody says how long: simulated time costs something too.
const TRIAL: Duration = Duration::from_secs(60);
/// What a client may not have heard of. No time passes on the way, but things happen at the same moment.
const LAG: Duration = Duration::from_millis(1);

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
    sent: Vec<Sent>,
}

pub struct World {
    pub server: ApiServer,
    fleet: Fleet,
    log: Arc<Mutex<Log>>,
    wire: Arc<Mutex<Wire>>,
    /// Requests of supervisors.
    asked: Arc<AtomicU64>,
    began: Instant,
}

/// A ConfigMap's content; no two are the same, or going from one to the other would be nothing.
pub fn content(map: &str) -> String {
    let number = map.bytes().fold(0_u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into())) % 10_000;
    format!("kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\neventBurst: {number}\n")
}

impl World {
    /// In three zones and two pools, all with [`BEFORE`] proven.
    pub fn new(count: usize) -> World {
        World::with_trial(count, TRIAL)
    }

    /// The same with trials of this length.
    pub fn with_trial(count: usize, trial: Duration) -> World {
        let server = ApiServer::start();
        server.drop_dynamic_config(true);
        for map in [BEFORE, TARGET] {
            server.put_config_map(NAMESPACE, map, &[("kubelet", &content(map))]);
        }
        let before = server.config_map(NAMESPACE, BEFORE);
        for number in 0..count {
            server.put_node(&name(number), node(number, &source(&before)));
        }
        let log = Arc::new(Mutex::new(Log::default()));
        let listener = Arc::clone(&log);
        let nodes = server.read(|s| (0..count).filter_map(|number| s.node(&name(number)).cloned()).collect::<Vec<_>>());
        for node in &nodes {
            log.lock().unwrap().note(node, false);
        }
        server.listen(move |change| listener.lock().unwrap().note(&change.object, change.kind == "DELETED"));
        let expected = Expectation { target: TARGET.to_owned(), max_unavailable: usize::MAX, ..Expectation::default() };
        log.lock().unwrap().expect(expected);
        let asked = Arc::new(AtomicU64::new(0));
        let world = World {
            fleet: Fleet::new(surroundings(&server.door().quiet(), trial, &asked)),
            server,
            log,
            wire: Arc::default(),
            asked,
            began: Instant::now(),
        };
        for number in 0..count {
            world.fleet.add(&name(number), Some((source(&before), payload(&before))));
        }
        world
    }

    /// The machine is off, and its Node as it was.
    pub fn stop(&self, number: usize) {
        self.fleet.remove(&name(number));
    }

    /// A machine with an empty disk.
    pub fn start(&self, number: usize) {
        self.fleet.add(&name(number), None);
    }

    /// The Node and its supervisor go.
    pub fn delete(&self, number: usize) {
        self.stop(number);
        self.server.delete_node(&name(number));
    }

    /// A Node with these labels, and a supervisor that knows nothing.
    pub fn create(&self, number: usize, labels: &Value) {
        let ready = json!({"type": "Ready", "status": "True"});
        // Time is simulated, and the API server's clock is not.
        let now = jiff::Timestamp::now() + self.began.elapsed();
        let metadata = json!({"labels": labels, "creationTimestamp": format!("{now:.0}")});
        let node = json!({"metadata": metadata, "spec": {}, "status": {"conditions": [ready]}});
        self.server.put_node(&name(number), node);
        self.fleet.add(&name(number), None);
    }

    /// What a node does with [`TARGET`].
    pub fn set_outcome(&self, number: usize, outcome: Outcome) {
        self.set_outcome_with(number, TARGET, outcome);
    }

    /// The same with the ConfigMap of this name.
    pub fn set_outcome_with(&self, number: usize, map: &str, outcome: Outcome) {
        self.fleet.control(&name(number), |node| {
            node.outcomes.insert(map.to_owned(), outcome);
        });
    }

    /// From now on a pool rolls this revision out.
    pub fn expect_pool(&self, revision: &str, canaries: usize, max: usize) {
        self.log.lock().unwrap().expect_pool(revision, canaries, max);
    }

    /// A controller of pools, until it ends or is dropped.
    pub async fn controller(&self) -> Result<ExitCode, Failure> {
        self.controller_with(&[]).await
    }

    /// The same with these options.
    pub async fn controller_with(&self, options: &[&str]) -> Result<ExitCode, Failure> {
        self.fleet.is_up().await;
        let context = context(self.connect());
        Box::pin(kubectl_plugin::run(&context, &[&["controller"], options].concat())).await
    }

    /// Lives until a pool is so; how it is then.
    pub async fn until_pool(&self, pool: &str, so: impl Fn(&Value) -> bool) -> Value {
        loop {
            match self.server.pool(pool) {
                Some(pool) if so(&pool) => return pool,
                _ => tokio::time::sleep(Duration::from_secs(1)).await,
            }
        }
    }

    pub fn unready(&self, number: usize, seconds: u64) {
        let until = Instant::now() + Duration::from_secs(seconds);
        self.fleet.control(&name(number), |node| node.unready_until = Some(until));
    }

    /// A command of the plugin, until it ends.
    pub async fn command(&self, args: &[&str]) -> Result<ExitCode, Failure> {
        self.fleet.is_up().await;
        Box::pin(kubectl_plugin::run(&context(self.connect()), args)).await
    }

    pub fn connect(&self) -> kube::Client {
        let (wire, door) = (Arc::clone(&self.wire), self.server.door());
        let service = tower::service_fn(move |request: hyper::Request<Body>| {
            let (wire, door) = (Arc::clone(&wire), door.clone());
            async move {
                wire.lock().unwrap().requests += 1;
                let node = assigned_node(&request);
                let desired_now = |node: &str| door.read(|s| s.node(node).map(desired));
                let before = node.as_deref().and_then(desired_now);
                let response = door.answer(request).await;
                if let (Some(node), true) = (node, response.status().is_success())
                    && let Some(to) = desired_now(&node).filter(|to| Some(to) != before.as_ref())
                {
                    wire.lock().unwrap().sent.push(Sent { node, to, at: Instant::now() });
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

    /// How many requests all supervisors have made.
    pub fn supervisors_traffic(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }

    pub fn sent(&self) -> Vec<Sent> {
        self.wire.lock().unwrap().sent.clone()
    }

    /// No promise was broken.
    pub fn promises_held(&self) {
        let broken = self.log.lock().unwrap().broken(LAG);
        assert!(broken.is_empty(), "{broken:#?}");
    }

    pub fn count(&self, map: &str) -> usize {
        let names = self.fleet.names();
        self.server.read(|s| names.iter().filter(|node| desired(s.node(node).unwrap()) == map).count())
    }
}

/// A user's, with this client.
pub fn context(client: kube::Client) -> Context {
    Context { client, namespace: NAMESPACE.to_owned(), impersonates: false }
}

fn desired(node: &Value) -> String {
    let native = node["spec"]["configSource"]["configMap"]["name"].as_str();
    let label = node["metadata"]["labels"][format!("{LABELS}name")].as_str();
    native.or(label).unwrap_or_default().to_owned()
}

/// The node that a request assigns something.
fn assigned_node(request: &hyper::Request<Body>) -> Option<String> {
    let is_write = request.method() == "PATCH" && !request.uri().query().unwrap_or_default().contains("dryRun");
    request.uri().path().strip_prefix("/api/v1/nodes/").filter(|_| is_write).map(str::to_owned)
}

/// Supervisors and kubelets come in by this door.
fn surroundings(door: &Door, trial: Duration, asked: &Arc<AtomicU64>) -> Surroundings {
    let service = |door: &Door, count: Arc<AtomicU64>| {
        let door = door.clone();
        tower::service_fn(move |request: hyper::Request<Body>| {
            let door = door.clone();
            count.fetch_add(1, Ordering::Relaxed);
            async move { Ok::<_, tower::BoxError>(door.answer(request).await) }
        })
    };
    let kubelets = kube::Client::new(service(door, Arc::default()), "default");
    let (door, asked) = (door.clone(), Arc::clone(asked));
    let connect = move |layer: ClientLayer| {
        ClientBuilder::new(service(&door, Arc::clone(&asked)), "default").with_layer(&layer).build()
    };
    let pace = Pace {
        trial,
        preflight: Duration::from_secs(2),
        ready: Duration::from_secs(3),
        trouble: Duration::from_secs(5),
    };
    Surroundings { connect: Arc::new(connect), kubelets, namespace: NAMESPACE.to_owned(), pace }
}

/// A Node as its supervisor and its kubelet left it when they were last seen.
fn node(number: usize, before: &Source) -> Value {
    let status = NodeConfigStatus {
        assigned: Some(before.clone()),
        active: Some(before.clone()),
        last_known_good: Some(before.clone()),
        condition: Condition {
            status: ConditionStatus::True,
            reason: ConditionReason::LastKnownGood,
            message: format!("Proven: {before}"),
        },
        ..NodeConfigStatus::default()
    };
    let mut node = status.patch(&PublishedStatus::default(), "2026-01-01T00:00:00Z");
    node["spec"] = json!({});
    node["metadata"]["labels"] = json!({
        format!("{LABELS}name"): BEFORE, "topology.kubernetes.io/zone": format!("z{}", number % 3),
        "all": "yes", "pool": if number.is_multiple_of(2) { "even" } else { "odd" },
    });
    let ready = json!({"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-01T00:00:00Z"});
    node["status"]["conditions"].as_array_mut().unwrap().push(ready);
    node
}

fn source(map: &Value) -> Source {
    let text = |field: &str| map["metadata"][field].as_str().unwrap().to_owned();
    let reference =
        ConfigMapRef { namespace: text("namespace"), name: text("name"), kubelet_config_key: "kubelet".to_owned() };
    Source { reference, resource_version: text("resourceVersion"), uid: text("uid") }
}

fn payload(map: &Value) -> Payload {
    let Source { reference, resource_version, uid } = source(map);
    let data: BTreeMap<String, String> = serde_json::from_value(map["data"].clone()).unwrap();
    let ConfigMapRef { namespace, name, .. } = reference;
    let (binary_keys, annotations) = Default::default();
    Payload { namespace, name, uid, resource_version, data, binary_keys, annotations }
}
