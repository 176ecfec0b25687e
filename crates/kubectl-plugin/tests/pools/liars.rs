//! Nodes that lie: each has one vote, and what they say is bounded.

use std::time::Duration;

use kubelet_config::assignment::LABELS;
use kubelet_config::status::{CONDITION, STATUS_ANNOTATION};
use serde_json::{Value, json};

use testkit::pools::{NAMESPACE, NODES, World, name};

use super::{POOL, condition, prepared, settled, spec, with_controller};

const ALL: usize = 40;
/// The status is written every few seconds, and all who follow pools read it.
const STATUS_MAX: usize = 32 * 1024;

/// A revision, as nodes name it.
fn source(world: &World, revision: &str) -> Value {
    let metadata = world.server.config_map(NAMESPACE, revision)["metadata"].clone();
    json!({"configMap": {"namespace": NAMESPACE, "name": revision, "kubeletConfigKey": "kubelet",
        "uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}})
}

/// The node calls a revision bad, in 90 KB that would also steer a terminal.
fn lie(world: &World, number: usize, revision: &str) {
    let source = source(world, revision);
    let said = json!({"assigned": source, "error": "failed to validate config, see Kubelet log for details"});
    let message = "\u{1b}]0;lies\u{7}\"\\".repeat(6_000);
    let ours = json!({"type": CONDITION, "status": "False", "reason": "Rejected", "message": message});
    let ready = json!({"type": "Ready", "status": "True"});
    world.server.patch_node(
        &name(number),
        json!({"metadata": {"annotations": {STATUS_ANNOTATION: said.to_string()}}, "status": {"conditions": [ready, ours]}}),
    );
}

/// Lives until all Nodes are assigned that, those without a machine too.
async fn until_all_have(world: &World, revision: &str) {
    let has = |number: usize| {
        let labels = &world.server.node(&name(number))["metadata"]["labels"];
        labels[format!("{LABELS}name")] == *revision
    };
    while !(0..ALL).all(has) {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn nodes_that_say_too_much_stop_nobody() {
    let world = World::new(ALL);
    let script = async {
        let good = settled(&world).await;
        let bad = prepared(&world, 61).await;
        world.server.put_pool(POOL, &spec(61, &json!({"rollout": {"canaries": 0, "maxUnavailable": "100%"}})));
        until_so_many_have(&world, &bad, ALL).await;
        // The machines are somebody else's from now on.
        (0..ALL).for_each(|number| world.stop(number));
        (0..ALL).for_each(|number| lie(&world, number, &bad));
        let pool = world.until_pool(POOL, |pool| condition(pool, "Stalled") == ("True", "FailuresExceeded")).await;
        let status = pool["status"].to_string();
        assert!(status.len() < STATUS_MAX, "{} bytes", status.len());
        let messages = pool["status"]["badRevisions"][0]["nodes"].as_array().unwrap().iter().map(|it| &it["message"]);
        let steers = |message: &Value| message.as_str().unwrap().chars().any(char::is_control);
        assert_eq!(messages.filter(|message| steers(message)).count(), 0);
        until_all_have(&world, &good).await;
    };
    with_controller(&world, script).await;
}

/// The machine that this pool assigned something is somebody else's from now on, and says that it has proven what it never ran.
fn lie_that_it_is_proven(world: &World, revision: &str) {
    let desired = |number: &usize| {
        let labels = world.server.node(&name(*number))["metadata"]["labels"].to_string();
        labels.contains(revision)
    };
    let liar = (0..NODES).find(desired).unwrap();
    world.stop(liar);
    let source = source(world, revision);
    let said = json!({"assigned": source, "active": source, "lastKnownGood": source}).to_string();
    let ours = json!({"type": CONDITION, "status": "True", "reason": "LastKnownGood", "message": "so I say"});
    let conditions = json!([{"type": "Ready", "status": "True"}, ours]);
    let node = json!({"metadata": {"annotations": {STATUS_ANNOTATION: said}}, "status": {"conditions": conditions}});
    world.server.patch_node(&name(liar), node);
}

async fn until_so_many_have(world: &World, revision: &str, count: usize) {
    while world.count(revision) < count {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Not by this controller, nor by the one that takes over.
#[tokio::test(start_paused = true)]
async fn nothing_is_proven_sooner_than_a_trial_lasts() {
    const TRIAL: Duration = Duration::from_secs(600);
    let world = World::with_trial(NODES, TRIAL);
    let rollout = json!({"canaries": 1, "maxUnavailable": 1, "minTrialSeconds": TRIAL.as_secs()});
    let first = async {
        let revision = prepared(&world, 60).await;
        world.server.put_pool(POOL, &spec(60, &json!({ "rollout": rollout })));
        until_so_many_have(&world, &revision, 1).await;
        lie_that_it_is_proven(&world, &revision);
        tokio::time::sleep(TRIAL / 2).await;
        revision
    };
    let revision = with_controller(&world, first).await;
    with_controller(&world, until_so_many_have(&world, &revision, 2)).await;
    let sent = world.sent();
    assert!(sent[1].at - sent[0].at >= TRIAL, "{:?} after the liar", sent[1].at - sent[0].at);
}

/// Once it is a canary it may say, a trial later, that it has proven what it never ran: that opens the waves, and no more. The
/// others still have to prove it, or not.
#[tokio::test(start_paused = true)]
async fn a_forged_proof_is_one_vote() {
    let world = World::new(ALL);
    let script = async {
        let good = settled(&world).await;
        let bad = prepared(&world, 61).await;
        let outcomes = (0..ALL).map(|number| (number, testkit::pools::Outcome::RollsBack));
        outcomes.for_each(|(number, outcome)| world.set_outcome_with(number, &bad, outcome));
        world.server.put_pool(POOL, &spec(61, &json!({"rollout": {"canaries": 1, "maxUnavailable": 1}})));
        until_so_many_have(&world, &bad, 1).await;
        lie_that_it_is_proven(&world, &bad);
        world.until_pool(POOL, |pool| condition(pool, "Stalled") == ("True", "FailuresExceeded")).await;
        let sent = world.sent().into_iter().filter(|sent| sent.to == bad).count();
        assert_eq!(sent, 3, "the next two say what it is");
        until_all_have(&world, &good).await;
    };
    with_controller(&world, script).await;
}
