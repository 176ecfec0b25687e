//! Forty-eight hours of hourly rotation under a simulated clock, while ConfigMaps change, assignments change, events
//! flow, watches are cut, and old credentials are refused: before, with and after the rotation.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt as _};
use kube::client::{Body, ClientBuilder};
use kubelet_config::assignment::Assignment;
use kubelet_config::source::{ConfigMapRef, Source};
use kubelet_config::status::{Condition, ConditionReason, ConditionStatus, NodeConfigStatus};
use kubelet_supervisor::adapters::kube::{Access, ClientLayer, Connected, Fingerprint, KubeCluster};
use kubelet_supervisor::adapters::metrics::Metrics;
use kubelet_supervisor::machine::Input;
use kubelet_supervisor::machine::history::HistoryEntry;
use kubelet_supervisor::ports::{Cluster as _, ClusterRequest};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use testkit::api_server::{ApiServer, Door};

const NODE: &str = "n1";
const NAMESPACE: &str = "kube-system";
const HOURS: u64 = 48;

/// What is on the node's disk, and what the API server thinks of it.
#[derive(Default)]
struct World {
    /// The credentials on disk: they are numbered.
    on_disk: u64,
    /// The API server refuses those up to here.
    refused: Option<u64>,
    /// The credentials each client was built from.
    built: Vec<u64>,
    /// The credentials of every request that was not refused, watches among them.
    used: Vec<(u64, bool)>,
}

#[derive(Clone)]
struct Rotating {
    world: Arc<Mutex<World>>,
    door: Door,
}

impl Access for Rotating {
    fn fingerprint(&self) -> BoxFuture<'_, Fingerprint> {
        let fingerprint = fingerprint(self.world.lock().unwrap().on_disk);
        async move { fingerprint }.boxed()
    }

    fn connect(&self, layer: ClientLayer) -> BoxFuture<'_, Result<Connected, String>> {
        let number = {
            let mut world = self.world.lock().unwrap();
            let number = world.on_disk;
            world.built.push(number);
            number
        };
        let (world, door) = (Arc::clone(&self.world), self.door.clone());
        let service = tower::service_fn(move |request: hyper::Request<Body>| {
            let (world, door) = (Arc::clone(&world), door.clone());
            async move {
                let refused = {
                    let mut world = world.lock().unwrap();
                    let refused = world.refused.is_some_and(|refused| number <= refused);
                    let watch = request.uri().query().is_some_and(|query| query.contains("watch="));
                    if !refused {
                        world.used.push((number, watch));
                    }
                    refused
                };
                let answer = if refused { unauthorized() } else { door.answer(request).await };
                Ok::<_, tower::BoxError>(answer)
            }
        });
        let client = ClientBuilder::new(service, "default").with_layer(&layer).build();
        let connected = Connected {
            client,
            fingerprint: fingerprint(number),
            node_name: NODE.to_owned(),
            origin: "simulated".to_owned(),
            renew_at: None,
            notices: Vec::new(),
        };
        async move { Ok(connected) }.boxed()
    }
}

fn fingerprint(number: u64) -> Fingerprint {
    let mut fingerprint = [0; 32];
    fingerprint[..8].copy_from_slice(&number.to_le_bytes());
    fingerprint
}

fn unauthorized() -> hyper::Response<http_body_util::combinators::BoxBody<hyper::body::Bytes, std::io::Error>> {
    use http_body_util::{BodyExt as _, Full};
    let body = r#"{"kind":"Status","apiVersion":"v1","status":"Failure","message":"Unauthorized","reason":"Unauthorized","code":401}"#;
    let body = Full::from(body).map_err(|never: Infallible| match never {}).boxed();
    hyper::Response::builder().status(401).body(body).unwrap()
}

/// The machine's side, as far as it goes here: what it was told, and what it said.
struct Machine {
    cluster: KubeCluster,
    inputs: UnboundedReceiver<Input>,
    nodes: usize,
    assigned: Vec<String>,
    versions: Vec<(String, String)>,
    emitted: u64,
    reported: Vec<u64>,
}

impl Machine {
    /// Takes in what has come, and asks for what is assigned, as the machine does.
    fn take_in(&mut self) {
        while let Ok(input) = self.inputs.try_recv() {
            match input {
                Input::Node(Assignment::Map(map)) => {
                    self.nodes += 1;
                    if self.assigned.last() != Some(&map.name) {
                        self.assigned.push(map.name.clone());
                        self.cluster.submit(ClusterRequest::Watch(Some(map)));
                    }
                }
                Input::NodeName(name) => assert_eq!(name, NODE),
                Input::AssignedByLabels(_) | Input::PreflightRequested { .. } | Input::NodeAnnotations { .. } => {}
                Input::Node(_) => self.nodes += 1,
                Input::ConfigMap(payload) => {
                    let version = (payload.name.clone(), payload.resource_version.clone());
                    if self.versions.last() != Some(&version) {
                        self.versions.push(version);
                        self.publish();
                    }
                }
                Input::Reported(number) => self.reported.push(number),
                Input::ConfigMapFailed { why, definite } => assert!(!definite, "{why}"),
                other => panic!("{other:?}"),
            }
        }
    }

    fn publish(&mut self) {
        let Some((name, version)) = self.versions.last() else { return };
        let reference = ConfigMapRef {
            namespace: NAMESPACE.to_owned(),
            name: name.clone(),
            kubelet_config_key: "kubelet".to_owned(),
        };
        let source = Source { reference, resource_version: version.clone(), uid: format!("uid of {name}") };
        self.cluster.submit(ClusterRequest::Publish(Box::new(NodeConfigStatus {
            assigned: Some(source.clone()),
            active: Some(source),
            condition: Condition {
                status: ConditionStatus::True,
                reason: ConditionReason::LastKnownGood,
                message: version.clone(),
            },
            ..NodeConfigStatus::default()
        })));
    }

    fn emit(&mut self) {
        self.emitted += 1;
        let number = self.emitted;
        let nanos = 1_000_000_000 * number;
        self.cluster.submit(ClusterRequest::Emit(Box::new(HistoryEntry {
            number,
            nanos,
            reason: format!("R{number}"),
            ..HistoryEntry::default()
        })));
    }
}

/// Lets the port work for some simulated time.
async fn pass(machine: &mut Machine, seconds: u64) {
    for _ in 0..seconds {
        tokio::time::sleep(Duration::from_secs(1)).await;
        machine.take_in();
    }
}

#[tokio::test(start_paused = true)]
async fn two_days_of_hourly_rotation_lose_nothing() {
    let server = ApiServer::start();
    server.create_node(NODE);
    let world = Arc::new(Mutex::new(World::default()));
    let (sender, inputs) = unbounded_channel();
    let access = Rotating { world: Arc::clone(&world), door: server.door() };
    let cluster = KubeCluster::start(access, "kube-system".to_owned(), sender, Metrics::new());
    let mut machine =
        Machine { cluster, inputs, nodes: 0, assigned: vec![], versions: vec![], emitted: 0, reported: vec![] };

    let (mut expected, mut edits, mut cuts, mut early) = (Vec::<String>::new(), Vec::new(), 0, 0);
    for minute in 0..HOURS * 60 {
        if minute % 11 == 0 {
            let name = format!("map-{minute}");
            edits.push((name.clone(), server.put_config_map(NAMESPACE, &name, &[("kubelet", "0")]).1));
            server.assign(NODE, NAMESPACE, &name, "kubelet");
            expected.push(name);
        } else if minute % 7 == 0 {
            let name = expected.last().unwrap();
            let text = minute.to_string();
            edits.push((name.clone(), server.put_config_map(NAMESPACE, name, &[("kubelet", &text)]).1));
        }
        if minute % 3 == 0 {
            machine.emit();
        }
        if minute % 5 == 0 {
            server.door().end_watches();
            cuts += 1;
        }
        if minute % 60 == 59 {
            rotate(&mut machine, &world, minute / 60, &mut early).await;
        } else {
            pass(&mut machine, 60).await;
        }
    }
    pass(&mut machine, 60).await;

    let reasons: Vec<String> =
        server.events().iter().map(|event| event["reason"].as_str().unwrap().to_owned()).collect();
    let emitted: Vec<String> = (1..=machine.emitted).map(|number| format!("R{number}")).collect();
    assert_eq!(reasons, emitted, "each event once, in order");
    assert_eq!(machine.reported, (1..=machine.emitted).collect::<Vec<_>>());
    assert_eq!(machine.assigned, expected, "each assignment, in order");
    assert_eq!(machine.versions, edits, "each version, in order");
    let shown = &server.node(NODE)["status"]["config"]["active"]["configMap"];
    assert_eq!(
        (&shown["name"], &shown["resourceVersion"]),
        (&edits.last().unwrap().0.clone().into(), &edits.last().unwrap().1.clone().into())
    );

    let world = world.lock().unwrap();
    assert_eq!(server.watches(), 2, "the old ones are gone");
    let last = world.built.last().copied();
    assert_eq!(last, Some(HOURS));
    // One for each rotation, the first one, and one more where the API server refuses before the rotation.
    assert_eq!(world.built.len() as u64, HOURS + 1 + early, "{:?}", world.built);
    assert!(world.used.is_sorted_by_key(|(number, _)| *number), "nothing goes back to old credentials");
    // One when a session begins, one for each assignment and each status of ours, one when a watch is begun anew.
    let reasons_to_say_so = world.built.len() + expected.len() + 2 * edits.len() + cuts;
    assert!(machine.nodes <= reasons_to_say_so, "{} sights of the Node for {reasons_to_say_so} reasons", machine.nodes);
}

/// One hour's rotation, in the midst of a minute with an event on its way.
async fn rotate(machine: &mut Machine, world: &Arc<Mutex<World>>, hour: u64, early: &mut u64) {
    let number = world.lock().unwrap().on_disk;
    let write = || world.lock().unwrap().on_disk = number + 1;
    let refuse = || world.lock().unwrap().refused = Some(number);
    match hour % 4 {
        // At once.
        0 => {
            write();
            refuse();
            machine.emit();
            pass(machine, 60).await;
        }
        // After it was noticed.
        1 => {
            write();
            pass(machine, 30).await;
            refuse();
            machine.emit();
            pass(machine, 30).await;
        }
        // Never.
        2 => {
            machine.emit();
            write();
            pass(machine, 60).await;
        }
        // Before there are others.
        _ => {
            refuse();
            machine.emit();
            pass(machine, 5).await;
            write();
            pass(machine, 55).await;
            *early += 1;
        }
    }
}
