//! The port to the API server against the tests' own API server: what it asks, what it tells the machine.

use std::time::{Duration, Instant};

use kubelet_config::assignment::Assignment;
use kubelet_config::pods::PodInventory;
use kubelet_supervisor::adapters::kube::{KubeCluster, KubeconfigAccess};
use kubelet_supervisor::adapters::metrics::Metrics;
use kubelet_supervisor::machine::evidence::{LeaseObservation, NodeReadiness};
use kubelet_supervisor::machine::history::HistoryEntry;
use kubelet_supervisor::machine::{Answer, Input};
use kubelet_supervisor::ports::{Cluster as _, ClusterQuery, ClusterRequest};
use serde_json::json;
use testkit::api_server::{ApiServer, Fault, FaultKind, Verb};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::{NODE, SOON, next};

/// A port at work, and what it says.
struct Bench {
    server: ApiServer,
    dir: tempfile::TempDir,
    cluster: KubeCluster,
    inputs: UnboundedReceiver<Input>,
}

impl Bench {
    /// With a Node, and after its first sight.
    async fn connected() -> Bench {
        let server = ApiServer::start();
        server.create_node(NODE);
        let mut bench = Bench::start(server, true);
        assert_eq!(next(&mut bench.inputs).await, Input::Node(Assignment::Local));
        // That nothing is asked for is said as well: an earlier life may have known of something.
        assert_eq!(next(&mut bench.inputs).await, Input::NodeAnnotations { retry: None, confirm: None });
        bench
    }

    fn start(server: ApiServer, credentials: bool) -> Bench {
        let dir = tempfile::tempdir().unwrap();
        let kubeconfig = dir.path().join("kubeconfig");
        if credentials {
            server.write_kubeconfig(&kubeconfig);
        }
        let (node_name, metrics) = (Some(NODE.to_owned()), Metrics::new());
        let access = KubeconfigAccess { kubeconfig, node_name, hostname_override: None, metrics: metrics.clone() };
        let (sender, inputs) = unbounded_channel();
        Bench { server, dir, cluster: KubeCluster::start(access, "kube-system".to_owned(), sender, metrics), inputs }
    }

    /// The next input that is not about the Node.
    async fn answer(&mut self) -> Input {
        loop {
            match next(&mut self.inputs).await {
                Input::Node(_) | Input::NodeObserved(_) | Input::NodeAnnotations { .. } => {}
                input => return input,
            }
        }
    }

    async fn lease(&mut self) -> LeaseObservation {
        self.cluster.submit(ClusterRequest::Query(ClusterQuery::Lease(7)));
        match self.answer().await {
            Input::Answer(7, Answer::LeaseObserved(sight)) => sight,
            other => panic!("{other:?}"),
        }
    }

    async fn pods(&mut self) -> Option<PodInventory> {
        self.cluster.submit(ClusterRequest::Query(ClusterQuery::Pods(8)));
        match self.answer().await {
            Input::Answer(8, Answer::PodsObserved(inventory)) => inventory,
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn the_lease_as_it_stands() {
    let mut bench = Bench::connected().await;
    assert_eq!(bench.lease().await, LeaseObservation::Absent);
    bench.server.set_lease(NODE, "2026-01-01T00:00:00.000000Z");
    assert_eq!(bench.lease().await, LeaseObservation::Renewed("2026-01-01T00:00:00.000000Z".to_owned()));
    bench.server.delete_lease(NODE);
    assert_eq!(bench.lease().await, LeaseObservation::Absent);
}

/// Whichever request it said so to: one that is held back for that shows nothing of the API server.
#[tokio::test]
async fn a_server_that_asks_to_wait_is_not_out_of_reach() {
    let mut bench = Bench::connected().await;
    bench.server.faults().push(Fault::once(Verb::List, "/pods", FaultKind::Throttle(60)));
    assert_eq!(bench.pods().await, None);
    assert_eq!(bench.lease().await, LeaseObservation::HeldBack);
}

#[tokio::test]
async fn each_query_has_one_answer_whatever_the_server_does() {
    let mut bench = Bench::connected().await;
    bench.server.set_lease(NODE, "x");
    let faults = [
        (FaultKind::Status(403), "absent"),
        (FaultKind::Status(500), "scripted"),
        (FaultKind::Garbage, ""),
        (FaultKind::CutMidLine, ""),
        (FaultKind::Hang, "no answer within 5 s"),
    ];
    for (kind, expected) in faults {
        let what = format!("{kind:?}");
        bench.server.faults().push(Fault::once(Verb::Any, "/leases/", kind));
        let began = Instant::now();
        match bench.lease().await {
            LeaseObservation::Absent => assert_eq!(expected, "absent", "{what}"),
            LeaseObservation::Busy(why) | LeaseObservation::Unreachable(why) => {
                assert!(why.contains(expected), "{what}: {why}");
            }
            LeaseObservation::Renewed(_) | LeaseObservation::HeldBack => panic!("{what}"),
        }
        assert!(began.elapsed() < Duration::from_secs(8), "{what}");
    }
    bench.server.faults().push(Fault::once(Verb::List, "/pods", FaultKind::Status(500)));
    assert_eq!(bench.pods().await, None);
    assert!(bench.pods().await.is_some());
    bench.server.stop();
    assert!(matches!(bench.lease().await, LeaseObservation::Unreachable(_)));
    assert_eq!(bench.pods().await, None);
    let left = tokio::time::timeout(Duration::from_millis(100), bench.answer()).await;
    assert!(left.is_err(), "{left:?}");
}

#[tokio::test]
async fn without_credentials_a_query_is_answered_at_once() {
    let mut bench = Bench::start(ApiServer::start(), false);
    assert!(matches!(bench.lease().await, LeaseObservation::Unreachable(_)));
    assert_eq!(bench.pods().await, None);
    bench.server.set_lease(NODE, "x");
    bench.server.write_kubeconfig(bench.dir.path().join("kubeconfig"));
    let deadline = Instant::now() + SOON;
    while bench.lease().await != LeaseObservation::Renewed("x".to_owned()) {
        assert!(Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test]
async fn the_pods_of_this_node_and_no_other() {
    let mut bench = Bench::connected().await;
    bench.server.set_capacity(NODE, "2", "8010444Ki", "110");
    assert_eq!(next(&mut bench.inputs).await, Input::Node(Assignment::Local));
    let requests = json!({"metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "250m", "memory": "64Mi"}}}]}});
    bench.server.put_pod(NODE, "a", "p1", requests);
    bench.server.put_pod(NODE, "b", "p2", json!({"status": {"phase": "Failed", "reason": "OutOfpods"}}));
    bench.server.put_pod("n2", "b", "p3", json!({}));
    let inventory = bench.pods().await.unwrap();
    assert_eq!((inventory.node.name.as_str(), inventory.node.capacity["memory"].as_str()), (NODE, "8010444Ki"));
    assert!(inventory.node.labels.is_some());
    let names: Vec<&str> = inventory.pods.iter().map(|pod| pod.name.as_str()).collect();
    assert_eq!(names, ["a/p1", "b/p2"]);
    let pod = &inventory.pods[0];
    assert_eq!(
        (pod.created.as_str(), pod.requests["cpu"], pod.requests["memory"]),
        ("2026-01-01T00:00:00Z", 250, 64 << 20)
    );
    assert!(pod.is_live() && !pod.uid.is_empty());
    assert_eq!((inventory.pods[1].is_live(), inventory.pods[1].reason.as_str()), (false, "OutOfpods"));
    let asked = bench.server.requests().into_iter().find(|request| request.path.ends_with("/pods")).unwrap();
    assert!(
        asked.query.contains("fieldSelector=spec.nodeName%3Dn1") && asked.query.contains("resourceVersion=0"),
        "{}",
        asked.query
    );
}

#[tokio::test]
async fn the_condition_comes_before_and_the_annotations_after_the_node() {
    let mut bench = Bench::connected().await;
    let annotate = |name: &str, value: Option<&str>| {
        let annotations = json!({format!("kubelet-supervisor.io/{name}"): value});
        bench.server.patch_node(NODE, json!({"metadata": {"annotations": annotations}}));
    };
    let condition = |status: &str, heartbeat: &str| {
        let ready =
            json!({"type": "Ready", "status": status, "lastHeartbeatTime": heartbeat, "reason": "R", "message": "m"});
        bench.server.patch_node(NODE, json!({"status": {"conditions": [{"type": "X"}, ready]}}));
    };
    let sight = |ready, heartbeat: &str| {
        let (heartbeat, message) = (heartbeat.to_owned(), "R: m".to_owned());
        Input::NodeObserved(NodeReadiness { ready, heartbeat, message, ..NodeReadiness::default() })
    };
    let asked = |retry: Option<&str>, confirm: Option<&str>| Input::NodeAnnotations {
        retry: retry.map(str::to_owned),
        confirm: confirm.map(str::to_owned),
    };
    let node = || Input::Node(Assignment::Local);

    condition("True", "1");
    annotate("retry", Some("7"));
    condition("False", "2");
    annotate("confirm", Some("8"));
    annotate("unrelated", Some("9"));
    annotate("retry", None);
    let expected = [
        sight(true, "1"),
        node(),
        node(),
        asked(Some("7"), None),
        sight(false, "2"),
        node(),
        node(),
        asked(Some("7"), Some("8")),
        node(),
        asked(Some("7"), Some("8")), // said as long as it stands: what it confirms may come later
        node(),
        asked(None, Some("8")),
    ];
    for expected in expected {
        let is_node = matches!(expected, Input::Node(_));
        // How it is assigned goes before what is.
        for expected in is_node.then_some(Input::AssignedByLabels(true)).into_iter().chain([expected]) {
            let next = async |inputs: &mut UnboundedReceiver<Input>| loop {
                match inputs.recv().await.unwrap() {
                    Input::PreflightRequested { request: None, answer: None } => {}
                    input => return input,
                }
            };
            assert_eq!(tokio::time::timeout(SOON, next(&mut bench.inputs)).await.unwrap(), expected);
        }
    }
}

fn entry(number: u64) -> HistoryEntry {
    HistoryEntry { number, nanos: 1_000_000 + number, reason: format!("R{number}"), ..HistoryEntry::default() }
}

#[tokio::test]
async fn an_event_is_reported_by_its_number_once_the_server_has_had_it() {
    let mut bench = Bench::connected().await;
    let unwritten = HistoryEntry { number: 0, nanos: 5, reason: "R0".to_owned(), ..HistoryEntry::default() };
    bench.server.faults().push(Fault::once(Verb::Post, "/events", FaultKind::Status(500)));
    bench.cluster.submit(ClusterRequest::Emit(Box::new(entry(1))));
    bench.cluster.submit(ClusterRequest::Emit(Box::new(unwritten)));
    bench.cluster.submit(ClusterRequest::Emit(Box::new(entry(2))));
    for number in [1, 2] {
        assert_eq!(bench.answer().await, Input::Reported(number));
    }
    bench.server.faults().push(Fault::once(Verb::Post, "/events", FaultKind::Status(403)));
    bench.cluster.submit(ClusterRequest::Emit(Box::new(entry(3))));
    bench.cluster.submit(ClusterRequest::Emit(Box::new(entry(4))));
    for number in [3, 4] {
        assert_eq!(bench.answer().await, Input::Reported(number));
    }
    let reasons: Vec<String> =
        bench.server.events().iter().map(|event| event["reason"].as_str().unwrap().to_owned()).collect();
    assert_eq!(reasons, ["R1", "R0", "R2", "R4"]);
}

#[tokio::test]
async fn a_flood_of_events_while_the_first_is_under_way() {
    let mut bench = Bench::connected().await;
    bench.server.faults().push(Fault::once(Verb::Post, "/events", FaultKind::Slow(Duration::from_secs(1))));
    bench.cluster.submit(ClusterRequest::Emit(Box::new(entry(1))));
    // Not `wait_request`: that would block the port's own thread.
    while !bench.server.requests().iter().any(|request| request.method == "POST") {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    for number in 2..=40 {
        bench.cluster.submit(ClusterRequest::Emit(Box::new(entry(number))));
    }
    let mut reported = Vec::new();
    while reported.last() != Some(&40) {
        match bench.answer().await {
            Input::Reported(number) => reported.push(number),
            other => panic!("{other:?}"),
        }
    }
    let kept: Vec<u64> = std::iter::once(1).chain(9..=40).collect();
    assert_eq!(reported, kept, "the oldest had to go, the one under way was told nevertheless");
}
