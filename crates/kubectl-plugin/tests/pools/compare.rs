//! `rollout.compare`: canaries are held against Nodes that have not changed, by the real controller in simulated time.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};

use testkit::api_server::{Fault, FaultKind, Verb};
use testkit::pools::{Outcome, World, number};

use super::{CANARIES, POOL, condition, prepared, settled, spec, with_controller};

const ALL: usize = 40;

fn rollout(canaries: usize) -> Value {
    json!({"rollout": {"canaries": canaries, "maxUnavailable": "20%", "compare": {}}})
}

/// All have one revision; the name of the next one, and its pool when its canaries are compared.
async fn compared(world: &World) -> (String, String, Value) {
    let good = settled(world).await;
    let next = prepared(world, 61).await;
    world.server.put_pool(POOL, &spec(61, &rollout(CANARIES)));
    let pool = world.until_pool(POOL, |pool| condition(pool, "Ready").1 == "Comparing").await;
    (good, next, pool)
}

fn names(pool: &Value, canaries: bool) -> Vec<String> {
    let nodes = pool["status"]["comparison"]["nodes"].as_array().unwrap();
    nodes
        .iter()
        .filter(|node| node["canary"] == canaries)
        .map(|node| node["name"].as_str().unwrap().to_owned())
        .collect()
}

/// A container of each Node's Pod ends a minute after the comparison began.
fn crash(world: &World, pool: &Value, nodes: &[String]) {
    let started: jiff::Timestamp = pool["status"]["comparison"]["started"].as_str().unwrap().parse().unwrap();
    let end = json!({"reason": "Error", "finishedAt": (started + Duration::from_secs(60)).to_string()});
    for node in nodes {
        let status = json!({"status": {"containerStatuses": [{"lastState": {"terminated": end}}]}});
        world.server.put_pod(node, "tenants", &format!("web-{node}"), status);
    }
}

fn outcome(pool: &Value) -> &str {
    pool["status"]["comparison"]["outcome"].as_str().unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn harm_among_the_canaries_stops_it() {
    let world = World::new(ALL);
    let script = async {
        let (good, bad, pool) = compared(&world).await;
        let canaries = names(&pool, true);
        assert_eq!((canaries.len(), names(&pool, false).len()), (CANARIES, 30));
        crash(&world, &pool, &canaries);
        let is_back =
            |pool: &Value| condition(pool, "Stalled") == ("True", "HarmFound") && pool["status"]["updated"] == 0;
        let pool = world.until_pool(POOL, is_back).await;
        let found = &pool["status"]["badRevisions"][0];
        assert_eq!((&found["revision"], outcome(&pool)), (&json!(bad), "HarmFound"));
        let message = found["message"].as_str().unwrap();
        assert!(message.contains("PodRestarts on 3 of 3 canaries and 0 of 30 unchanged Nodes"), "{message}");
        let with_it = found["nodes"].as_array().unwrap().iter().map(|node| node["name"].as_str().unwrap().to_owned());
        assert_eq!(with_it.collect::<BTreeSet<_>>(), canaries.into_iter().collect());
        tokio::time::sleep(Duration::from_secs(7200)).await;
        assert_eq!(world.count(&good), ALL);
        let sent = world.sent();
        assert_eq!(sent.iter().filter(|sent| sent.to == bad).count(), CANARIES, "no other Node had it");
        let events = world.server.events();
        assert!(events.iter().any(|event| event["reason"] == "HarmFound" && event["type"] == "Warning"));
        // Whoever has mended the cause tries it again: it is compared anew, and not what was found then.
        world.command(&["rollout", "retry", POOL]).await.unwrap();
        let again = world.server.pool(POOL).unwrap();
        assert_eq!((condition(&again, "Ready").1, outcome(&again)), ("Complete", "NoHarmFound"));
        assert_ne!(again["status"]["comparison"]["started"], pool["status"]["comparison"]["started"]);
        assert_eq!(world.count(&bad), ALL);
    };
    with_controller(&world, script).await;
    world.promises_held();
}

#[tokio::test(start_paused = true)]
async fn trouble_on_all_nodes_is_no_harm_and_the_waves_wait_for_that() {
    let world = World::new(ALL);
    let script = async {
        let (_, next, pool) = compared(&world).await;
        let all: Vec<String> = [names(&pool, true), names(&pool, false)].concat();
        crash(&world, &pool, &all);
        let pool = world.until_pool(POOL, |pool| condition(pool, "Ready") == ("True", "Complete")).await;
        let comparison = &pool["status"]["comparison"];
        assert_eq!(outcome(&pool), "NoHarmFound");
        let restarts = &comparison["signals"][0];
        assert_eq!(
            (&restarts["type"], &restarts["canaries"], &restarts["controls"]),
            (&json!("PodRestarts"), &json!(3), &json!(30))
        );
        assert!(restarts["smallestHarmPercent"].is_null() && restarts["chancePercent"] == 100, "{restarts}");
        assert!(comparison["signals"][2]["smallestHarmPercent"].as_u64() < Some(100), "{comparison:#}");
        next
    };
    let next = with_controller(&world, script).await;
    world.promises_held();
    let sent: Vec<_> = world.sent().into_iter().filter(|sent| sent.to == next).collect();
    assert_eq!(sent.len(), ALL);
    let waited = sent[CANARIES].at - sent[CANARIES - 1].at;
    assert!(waited > Duration::from_secs(1920), "{waited:?}");
    // Each compared Node once a minute, and one look at the end.
    let lists = world.server.requests().iter().filter(|request| request.path == "/api/v1/pods").count();
    assert!((33 * 29..=33 * 33).contains(&lists), "{lists}");
}

#[tokio::test(start_paused = true)]
async fn what_a_controller_saw_outlives_it() {
    let world = World::new(ALL);
    let seen = async {
        let (_, bad, pool) = compared(&world).await;
        let canaries = names(&pool, true);
        crash(&world, &pool, &canaries[..2]);
        let restarts = |pool: &Value| pool["status"]["comparison"]["signals"][0]["canaries"] == 2;
        let pool = world.until_pool(POOL, restarts).await;
        for node in &canaries[..2] {
            world.server.delete_pod("tenants", &format!("web-{node}"));
        }
        (bad, pool, canaries)
    };
    let (bad, pool, canaries) = with_controller(&world, seen).await;
    crash(&world, &pool, &canaries[2..]);
    let found = world.until_pool(POOL, |pool| outcome(pool) == "HarmFound");
    let found = with_controller(&world, found).await;
    assert_eq!(found["status"]["badRevisions"][0]["revision"], *bad);
    let same = |pool: &Value| pool["status"]["comparison"]["started"].clone();
    assert_eq!(same(&found), same(&pool), "it is the same comparison");
}

#[tokio::test(start_paused = true)]
async fn without_the_right_to_list_pods_nothing_goes_on() {
    let world = World::new(ALL);
    let script = async {
        world.server.faults().push(Fault::new(Verb::List, "/api/v1/pods", FaultKind::Status(403)));
        let (_, next, _) = compared(&world).await;
        let pool = world.until_pool(POOL, |pool| condition(pool, "Reconciling") == ("True", "CannotCompare")).await;
        let text = pool["status"]["conditions"].to_string();
        assert!(text.contains("list pods") && text.contains("packaging/manifests/pools-compare"), "{text}");
        tokio::time::sleep(Duration::from_secs(7200)).await;
        assert_eq!(world.count(&next), CANARIES);
        world.server.faults().clear();
        let pool = world.until_pool(POOL, |pool| condition(pool, "Ready") == ("True", "Complete")).await;
        assert_eq!(outcome(&pool), "NoHarmFound");
    };
    with_controller(&world, script).await;
}

#[tokio::test(start_paused = true)]
async fn so_few_nodes_are_not_compared_and_that_is_said() {
    let world = World::new(6);
    let script = async {
        // Nodes that have just joined are not compared.
        tokio::time::sleep(Duration::from_secs(600)).await;
        world.server.put_pool(POOL, &spec(60, &rollout(2)));
        let pool = world.until_pool(POOL, |pool| condition(pool, "Ready") == ("True", "Complete")).await;
        assert_eq!(outcome(&pool), "TooFewNodes");
        let message = pool["status"]["comparison"]["message"].as_str().unwrap();
        assert!(message.contains("2 canaries and 4 unchanged Nodes could not show any harm"), "{message}");
    };
    with_controller(&world, script).await;
    assert!(world.server.requests().iter().all(|request| request.path != "/api/v1/pods"));
}

#[test]
fn the_right_that_it_takes_is_an_overlay() {
    let documents = |directory: &str| -> Vec<Value> {
        let file = testkit::built::file(&format!("packaging/manifests/{directory}/rbac.yaml"));
        let text = std::fs::read_to_string(file).unwrap();
        text.split("\n---\n").map(|text| serde_yaml::from_str(text).unwrap()).collect()
    };
    let [role, binding] = &documents("pools-compare")[..] else { panic!("two documents") };
    assert_eq!(role["rules"], json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]));
    let reference =
        json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role["metadata"]["name"]});
    assert_eq!(binding["roleRef"], reference);
    let controllers = documents("pools").into_iter().find(|it| it["kind"] == "ClusterRoleBinding").unwrap();
    assert_eq!(binding["subjects"], controllers["subjects"]);
}

#[tokio::test(start_paused = true)]
async fn with_a_selector_both_groups_are_of_those_that_it_matches() {
    let world = World::new(80);
    let script = async {
        tokio::time::sleep(Duration::from_secs(600)).await;
        // More canaries than the selector matches: those that there are have to do.
        for (canaries, compared) in [(CANARIES, (CANARIES, 30)), (60, (0, 0))] {
            let mut asked = rollout(canaries);
            asked["rollout"]["canarySelector"] = json!({"matchLabels": {"pool": "even"}});
            let pods = 60 + u32::try_from(canaries).unwrap();
            world.server.put_pool(POOL, &spec(pods, &asked));
            let said = if compared.0 == 0 { "TooFewNodes" } else { "Comparing" };
            let pool = world.until_pool(POOL, |pool| outcome(pool) == said).await;
            assert_eq!((names(&pool, true).len(), names(&pool, false).len()), compared);
            let all = [names(&pool, true), names(&pool, false)].concat();
            assert!(all.iter().all(|name| number(name).is_multiple_of(2)), "{all:?}");
        }
    };
    with_controller(&world, script).await;
}

#[tokio::test(start_paused = true)]
async fn a_revision_that_turns_bad_is_compared_no_more() {
    let world = World::new(ALL);
    let script = async {
        settled(&world).await;
        let next = prepared(&world, 61).await;
        (0..ALL).for_each(|node| world.set_outcome_with(node, &next, Outcome::RollsBack));
        let rollout = json!({"canaries": CANARIES, "maxUnavailable": "20%", "compare": {}, "proof": "Active", "maxFailures": CANARIES});
        world.server.put_pool(POOL, &spec(61, &json!({ "rollout": rollout })));
        world.until_pool(POOL, |pool| pool["status"]["comparison"]["revision"] == *next).await;
        let pool = world.until_pool(POOL, |pool| condition(pool, "Ready").1 == "FailuresExceeded").await;
        assert!(pool["status"]["comparison"].is_null(), "{pool:#}");
    };
    with_controller(&world, script).await;
}
