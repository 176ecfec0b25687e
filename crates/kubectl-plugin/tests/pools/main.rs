//! `kubectl kubelet-config controller` over two hundred simulated nodes, in simulated time: the controller is the real one,
//! the API server the tests' own, each node a supervisor (the real core and API server adapter) over a played kubelet.
//! What a pool promises is held against the log of all changes, at each assignment.
#![cfg(test)]

mod collect;
mod crd;
mod drain;
mod expressions;
mod gitops;
mod leave;
mod liars;
mod metrics;
mod preflight;
mod promises;
mod rights;
mod rollout;

use std::time::Duration;

use serde_json::{Value, json};

use testkit::api_server::{Fault, FaultKind, Verb};
use testkit::pools::{NAMESPACE, NODES, Outcome, World, name, number};

const POOL: &str = "workers";
const TAINT: &str = "startup-taint.cluster-autoscaler.kubernetes.io/kubelet-config";
const CANARIES: usize = 3;
/// 5 % of 200.
const MAX: usize = 10;

fn spec(pods: u32, more: &Value) -> Value {
    let mut spec = json!({
        "nodeSelector": {"matchLabels": {"all": "yes"}}, "kubeletConfiguration": {"maxPods": pods},
        "rollout": {"canaries": CANARIES, "maxUnavailable": "5%"},
    });
    for (field, value) in more.as_object().unwrap() {
        spec[field] = value.clone();
    }
    if spec["rollout"]["minTrialSeconds"].is_null() {
        spec["rollout"]["minTrialSeconds"] = json!(60);
    }
    spec
}

fn condition<'a>(pool: &'a Value, wanted: &str) -> (&'a str, &'a str) {
    let conditions = pool["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let found = conditions.iter().find(|condition| condition["type"] == wanted);
    let text = |field: &str| found.and_then(|it| it[field].as_str()).unwrap_or_default();
    (text("status"), text("reason"))
}

fn observed(pool: &Value) -> bool {
    pool["status"]["observedGeneration"] == pool["metadata"]["generation"]
}

/// The pool as `spec` has it, not yet moving; the revision that it makes of that.
async fn prepared(world: &World, pods: u32) -> String {
    world.server.put_pool(POOL, &spec(pods, &json!({"paused": true})));
    let pool = world.until_pool(POOL, |pool| observed(pool) && condition(pool, "Ready").1 == "Paused").await;
    let revision = pool["status"]["updateRevision"].as_str().unwrap().to_owned();
    world.expect_pool(&revision, CANARIES, MAX);
    revision
}

/// The pool as `spec` has it, at once; lives until all have it.
async fn completed(world: &World, pods: u32) -> Value {
    world.server.put_pool(POOL, &spec(pods, &json!({})));
    world.until_pool(POOL, |pool| condition(pool, "Ready") == ("True", "Complete")).await
}

/// The revision of a pool, from its first word until all have it.
async fn rolled_out(world: &World) -> String {
    let revision = prepared(world, 60).await;
    completed(world, 60).await;
    revision
}

/// All have the first revision.
async fn settled(world: &World) -> String {
    let revision = prepared(world, 60).await;
    world.server.put_pool(POOL, &spec(60, &json!({})));
    world.until_pool(POOL, |pool| condition(pool, "Ready").0 == "True").await;
    revision
}

/// With a controller, in simulated time.
async fn with_controller<T>(world: &World, script: impl Future<Output = T>) -> T {
    tokio::select! {
        biased;
        done = script => done,
        result = world.controller() => panic!("the controller ended: {result:?}"),
        () = tokio::time::sleep(Duration::from_secs(86_400)) => panic!("no end: {:#?}", world.server.pool(POOL)),
    }
}

#[tokio::test(start_paused = true)]
async fn a_pool_comes_to_have_what_it_says() {
    let world = World::with_trial(NODES, Duration::from_secs(600));
    let script = async {
        let revision = prepared(&world, 60).await;
        let pool = completed(&world, 60).await;
        assert_eq!(pool["status"]["currentRevision"], *revision);
        assert_eq!((&pool["status"]["nodes"], &pool["status"]["proven"]), (&json!(NODES), &json!(NODES)));
        assert_eq!(condition(&pool, "Reconciling").0, "False");
        revision
    };
    let revision = with_controller(&world, script).await;
    world.promises_held();
    assert_eq!(world.count(&revision), NODES);
    let sent = world.sent();
    assert_eq!(sent.len(), NODES, "each node once");
    let mut zones: Vec<usize> = sent[..CANARIES].iter().map(|sent| number(&sent.node) % 3).collect();
    zones.sort_unstable();
    assert_eq!(zones, [0, 1, 2], "a canary in each zone");
    let map = world.server.config_map(NAMESPACE, &revision);
    assert_eq!(
        (&map["immutable"], &map["metadata"]["labels"]["kubelet-supervisor.io/pool"]),
        (&json!(true), &json!(POOL))
    );
    let (requests, bytes) = world.traffic();
    println!("{NODES} nodes: {requests} requests, {bytes} bytes");
    // One a node to ask, and one to assign; a status every ten seconds while counts change, with an event for each new state; and the Lease every two.
    let lease = sent[0].at.elapsed().as_secs() / 2;
    assert!(requests < 3 * NODES as u64 + lease + 100, "{requests} requests, of which {lease} hold the Lease");
}

#[tokio::test(start_paused = true)]
async fn a_bad_revision_goes_back_by_itself_and_is_not_tried_again() {
    let world = World::new(NODES);
    let script = async {
        let good = settled(&world).await;
        let bad = prepared(&world, 61).await;
        for number in (0..NODES).filter(|number| number % 7 == 0) {
            world.set_outcome_with(number, &bad, if number % 2 == 0 { Outcome::Rejects } else { Outcome::RollsBack });
        }
        world.server.put_pool(POOL, &spec(61, &json!({})));
        let is_back =
            |pool: &Value| condition(pool, "Stalled") == ("True", "FailuresExceeded") && pool["status"]["updated"] == 0;
        let pool = world.until_pool(POOL, is_back).await;
        assert_eq!(pool["status"]["badRevisions"][0]["revision"], *bad);
        assert_eq!(pool["status"]["currentRevision"], *good);
        tokio::time::sleep(Duration::from_secs(3600)).await;
        assert_eq!((world.count(&good), world.count(&bad)), (NODES, 0));
        let events = world.server.events();
        let told = |event: &&Value| event["reason"] == "FailuresExceeded" && event["involvedObject"]["name"] == POOL;
        let event = events.iter().find(told).unwrap();
        assert_eq!((&event["type"], &event["metadata"]["namespace"]), (&json!("Warning"), &json!("default")));
        assert!(event["message"].as_str().unwrap().starts_with(&bad), "{event}");
        // One when it begins to be so, and not one a reconciliation.
        let pools = events.iter().filter(|event| event["involvedObject"]["kind"] == "KubeletConfigPool");
        assert!(pools.count() < 12, "{events:#?}");
        // What the spec said before is what all have.
        completed(&world, 60).await;
    };
    with_controller(&world, script).await;
    world.promises_held();
}

#[tokio::test(start_paused = true)]
async fn nodes_that_are_well_do_not_all_go_back_at_once() {
    let world = World::new(40);
    let script = async {
        let all_at_once = json!({"rollout": {"canaries": 0, "maxUnavailable": "100%", "maxFailures": 1}});
        let good = prepared(&world, 60).await;
        world.server.put_pool(POOL, &spec(60, &all_at_once));
        world.until_pool(POOL, |pool| condition(pool, "Ready").0 == "True").await;
        let bad = prepared(&world, 61).await;
        world.set_outcome_with(7, &bad, Outcome::RollsBack);
        let before = world.sent().len();
        world.server.put_pool(POOL, &spec(61, &all_at_once));
        let is_back = |pool: &Value| condition(pool, "Stalled").0 == "True" && pool["status"]["updated"] == 0;
        let pool = world.until_pool(POOL, is_back).await;
        assert!(pool["status"]["badRevisions"][0]["time"].is_string(), "{pool:#}");
        let mut back: Vec<_> = world.sent().drain(before..).filter(|sent| sent.to == good).collect();
        assert_eq!((back.len(), world.count(&good)), (40, 40));
        let took = back[39].at - back[0].at;
        assert!((Duration::from_secs(20)..Duration::from_secs(60)).contains(&took), "a second a node: {took:?}");
        back.dedup_by_key(|sent| sent.at);
        assert!(back.len() > 15, "{}", back.len());
    };
    with_controller(&world, script).await;
}

#[tokio::test(start_paused = true)]
async fn what_a_node_would_refuse_goes_nowhere() {
    // Its name is that of its content, in any cluster.
    let elsewhere = World::new(1);
    let bad = with_controller(&elsewhere, prepared(&elsewhere, 61)).await;
    let world = World::new(30);
    world.set_outcome_with(17, &bad, Outcome::Rejects);
    let script = async {
        let good = settled(&world).await;
        let sent = world.sent().len();
        world.server.put_pool(POOL, &spec(61, &json!({})));
        let pool = world.until_pool(POOL, |pool| condition(pool, "Stalled") == ("True", "PreflightRefused")).await;
        assert!(pool["status"]["conditions"].to_string().contains("node-0017: Invalid: "), "{pool:#}");
        assert_eq!(condition(&pool, "Preflighted"), ("False", "PreflightRefused"));
        tokio::time::sleep(Duration::from_secs(3600)).await;
        assert_eq!((world.count(&good), world.sent().len()), (30, sent), "no node was given it");
        let status = &world.server.pool(POOL).unwrap()["status"];
        assert!(status["badRevisions"].is_null() && status.to_string().contains("29 valid, 1 refuse it"), "{status:#}");
        // With two votes needed, one node's word does not count: it goes its way, and that node is left alone.
        let two = json!({"rollout": {"canaries": 3, "maxUnavailable": "20%", "maxFailures": 2}});
        world.server.put_pool(POOL, &spec(61, &two));
        let pool = world.until_pool(POOL, |pool| condition(pool, "Ready") == ("True", "Complete")).await;
        assert_eq!(pool["status"]["stragglers"], json!({"count": 1, "nodes": ["node-0017"]}));
    };
    with_controller(&world, script).await;
    assert_eq!(world.count(&bad), 29);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_cannot_be_asked_keeps_no_other_back() {
    let world = World::new(10);
    let script = async {
        world.server.faults().push(Fault::new(Verb::Patch, "/api/v1/nodes/node-0004", FaultKind::Status(403)));
        world.server.put_pool(POOL, &spec(60, &json!({})));
        let pool = world.until_pool(POOL, |pool| pool["status"]["proven"].as_u64() > Some(0)).await;
        assert!(pool["status"]["conditions"].to_string().contains("1 unknown, 0 waited for"), "{pool:#}");
    };
    with_controller(&world, script).await;
}

/// Replicas are killed at random moments, and another one goes on; two live at a time.
#[tokio::test(start_paused = true)]
async fn controllers_die_and_others_go_on() {
    for seed in 1..4_u64 {
        let world = World::new(NODES);
        let mut random = seed;
        let mut below = move |limit: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % limit
        };
        let replicas = async {
            loop {
                let lives = |seconds: u64| tokio::time::timeout(Duration::from_millis(seconds), world.controller());
                let (one, other) = tokio::join!(lives(500 + below(40_000)), lives(500 + below(40_000)));
                assert!(one.is_err() && other.is_err(), "a controller ended: {one:?} {other:?}");
            }
        };
        let revision = tokio::select! {
            biased;
            revision = rolled_out(&world) => revision,
            () = replicas => unreachable!(),
            () = tokio::time::sleep(Duration::from_secs(86_400)) => panic!("no end: {:#?}", world.server.pool(POOL)),
        };
        world.promises_held();
        assert_eq!(world.count(&revision), NODES, "seed {seed}");
        let sent = world.sent();
        assert_eq!(sent.len(), NODES, "seed {seed}: each node once");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_promised_is_kept_for_a_thousand() {
    let world = World::new(1000);
    let script = async {
        let revision = prepared(&world, 60).await;
        world.expect_pool(&revision, CANARIES, 50);
        completed(&world, 60).await;
        revision
    };
    let revision = with_controller(&world, script).await;
    world.promises_held();
    assert_eq!((world.count(&revision), world.sent().len()), (1000, 1000), "each node once");
}

#[tokio::test(start_paused = true)]
async fn nodes_that_join_have_it_at_once() {
    let world = World::new(20);
    let script = async {
        let revision = prepared(&world, 60).await;
        world.server.put_pool(POOL, &spec(60, &json!({"startupTaint": TAINT})));
        world.until_pool(POOL, |pool| condition(pool, "Ready").0 == "True").await;
        let taints = json!([{"key": TAINT, "effect": "NoSchedule"}, {"key": "gpu", "effect": "NoSchedule"}]);
        for number in 20..520 {
            world.create(number, &json!({"all": "yes"}));
            world.server.patch_node(&name(number), json!({"spec": {"taints": taints}}));
        }
        let pool = world.until_pool(POOL, |pool| pool["status"]["updated"] == 520).await;
        assert_eq!(condition(&pool, "Ready"), ("True", "Complete"), "it stays settled");
        // None loses its taint before it runs the revision, and all lose it.
        let has_taint = |node: &Value| node["spec"]["taints"].as_array().is_some_and(|taints| taints.len() == 2);
        loop {
            let nodes: Vec<Value> = (20..520).map(|number| world.server.node(&name(number))).collect();
            for node in nodes.iter().filter(|node| !has_taint(node)) {
                assert_eq!(node["spec"]["taints"][0]["key"], "gpu", "others' taints stay");
                let status = node["metadata"]["annotations"]["kubelet-supervisor.io/config-status"].to_string();
                assert!(status.contains(&revision), "{status}");
            }
            if !nodes.iter().any(has_taint) {
                return revision;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    let revision = with_controller(&world, script).await;
    assert_eq!(world.count(&revision), 520);
}

#[tokio::test(start_paused = true)]
async fn the_next_control_plane_waits_for_the_api_server_of_the_last() {
    let world = World::new(3);
    let role = "node-role.kubernetes.io/control-plane";
    let pod = |number: usize, ready: &str| {
        let more = json!({"metadata": {"annotations": {"kubernetes.io/config.mirror": "x"}},
            "status": {"conditions": [{"type": "Ready", "status": ready}]}});
        world.server.put_pod(&name(number), "kube-system", &format!("kube-apiserver-{number}"), more);
    };
    for number in 0..3 {
        world.server.patch_node(&name(number), json!({"metadata": {"labels": {role: ""}}}));
        pod(number, "True");
    }
    let script = async {
        let revision = prepared(&world, 60).await;
        pod(0, "False");
        world.server.put_pool(POOL, &spec(60, &json!({"rollout": {"canaries": 0, "maxUnavailable": "100%"}})));
        let pool = world.until_pool(POOL, |pool| condition(pool, "Ready").1 == "ControlPlaneBusy").await;
        assert!(pool["status"]["conditions"].to_string().contains("kube-apiserver-0 is not Ready"));
        assert!(world.count(&revision) <= 1, "none but the one that may be mended by it");
        pod(0, "True");
        world.until_pool(POOL, |pool| condition(pool, "Ready") == ("True", "Complete")).await;
        revision
    };
    let revision = with_controller(&world, script).await;
    assert_eq!(world.count(&revision), 3);
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_is_said() {
    let world = World::new(3);
    let script = async {
        let cases = [
            (json!({"kubeletConfiguration": null, "rollout": {}}), "exactly one of"),
            (json!({"kubeletConfiguration": {"kind": "Pod"}}), "kind is \"Pod\""),
            (json!({"kubeletConfiguration": {"maxPods": "${node.cpu"}}), "no closing brace"),
            (json!({"rollout": {"maxUnavailable": "0%"}}), "spec.rollout.maxUnavailable"),
            (
                json!({"rollout": {"canarySelector": {"matchExpressions": [{"key": "k", "operator": "In"}]}}}),
                "spec.rollout.canarySelector.matchExpressions[0] (k)",
            ),
            (json!({"kubeletConfiguration": null, "configMap": {"name": "pool-x"}}), "there is no ConfigMap pool-x"),
            (json!({"kubeletConfiguration": null, "configMap": {"name": "pool-a"}}), "can be edited"),
            (
                json!({"kubeletConfiguration": null, "configMap": {"name": "pool-a"}, "onLeave": "Reset"}),
                "spec.onLeave Reset",
            ),
        ];
        for (more, expected) in cases {
            world.server.put_pool(POOL, &spec(60, &more));
            let pool = world.until_pool(POOL, |pool| observed(pool) && condition(pool, "Stalled").0 == "True").await;
            let text = pool["status"]["conditions"].to_string();
            assert!(text.contains(&expected.replace('"', "\\\"")), "{text}");
        }
    };
    with_controller(&world, script).await;
    assert_eq!(world.count("pool-a"), 3, "nothing was touched");
}

#[tokio::test(start_paused = true)]
async fn an_api_server_in_trouble_costs_time_only() {
    let world = World::new(30);
    let script = async {
        let revision = prepared(&world, 60).await;
        for (verb, kind) in [
            (Verb::Patch, FaultKind::Status(409)),
            (Verb::Patch, FaultKind::Status(500)),
            (Verb::Patch, FaultKind::CutMidLine),
            (Verb::Watch, FaultKind::GoneInStream),
            (Verb::Put, FaultKind::Status(503)),
        ] {
            world.server.faults().push(Fault::new(verb, "", kind).times(3));
        }
        completed(&world, 60).await;
        revision
    };
    let revision = with_controller(&world, script).await;
    world.promises_held();
    assert_eq!(world.count(&revision), 30);
}
