//! `kubectl kubelet-config rollout`: a pool from a terminal, which follows whoever carries it out.

use std::process::ExitCode;
use std::time::Duration;

use kubectl_plugin::Failure;
use serde_json::{Value, json};

use testkit::api_server::{Fault, FaultKind, Verb};
use testkit::pools::{NAMESPACE, Outcome, TARGET, World, content, name};

use super::{POOL, condition, with_controller};

const COUNT: usize = 12;
const ALL: [&str; 10] =
    ["rollout", TARGET, "-l", "all=yes", "--name", POOL, "--canaries", "2", "--max-unavailable=25%", "--min-trial=1m"];
/// 25 % of [`COUNT`].
const MAX: usize = 3;

/// With an immutable [`TARGET`].
fn world() -> World {
    let world = World::new(COUNT);
    world.server.patch_config_map(NAMESPACE, TARGET, json!({"immutable": true}));
    world.expect_pool(TARGET, 2, MAX);
    world
}

/// A ConfigMap that takes the place of the target.
fn next(world: &World, map: &str) {
    world.server.put_config_map(NAMESPACE, map, &[("kubelet", &content(map))]);
    world.server.patch_config_map(NAMESPACE, map, json!({"immutable": true}));
    world.expect_pool(map, 2, MAX);
}

async fn run(world: &World, args: &[&str]) -> Result<ExitCode, Failure> {
    let day = Duration::from_secs(86_400);
    let ran = tokio::time::timeout(day, world.command(args)).await;
    ran.unwrap_or_else(|_| panic!("{args:?} has no end: {:#?}", world.server.pool(POOL)))
}

async fn good(world: &World, args: &[&str]) {
    let code = run(world, args).await.unwrap_or_else(|failure| panic!("{args:?}: {failure:?}"));
    assert_eq!(code, ExitCode::SUCCESS, "{args:?}");
}

/// What it says, all of which must be in it, and the exit code 1.
async fn fails(world: &World, args: &[&str], words: &[&str]) {
    let failure = run(world, args).await.expect_err("it must not be done");
    assert_eq!(failure.code, 1, "{failure:?}");
    for word in words {
        assert!(failure.message.contains(word), "{word:?} is not in {}", failure.message);
    }
}

fn pool(world: &World) -> Value {
    world.server.pool(POOL).unwrap()
}

fn lease(world: &World) -> Value {
    let is_it = |object: &&Value| object["metadata"]["name"] == "kubelet-config-controller";
    world.server.read(|s| s.list(|_, _| true).find(is_it).cloned()).unwrap_or_default()
}

/// Somebody holds the Lease.
async fn is_held(world: &World) {
    while lease(world)["spec"]["holderIdentity"].as_str().is_none_or(str::is_empty) {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn it_is_written_and_followed_to_its_end() {
    let world = world();
    let script = async {
        good(&world, &ALL).await;
        world.promises_held();
        assert_eq!(world.count(TARGET), COUNT);
        let now = pool(&world);
        assert_eq!(now["spec"]["configMap"], json!({"name": TARGET, "key": "kubelet"}));
        assert_eq!(
            now["spec"]["rollout"],
            json!({"canaries": 2, "maxUnavailable": "25%", "minTrialSeconds": 60}),
            "what was said, and no more"
        );
        assert_eq!(
            (condition(&now, "Ready"), &now["status"]["currentRevision"]),
            (("True", "Complete"), &json!(TARGET))
        );
        // The pool of these nodes is found without its name; what it has beside stays.
        world.server.patch_pool(POOL, &json!({"spec": {"startupTaint": "example.com/t"}}));
        next(&world, "pool-c");
        good(&world, &["rollout", "pool-c", "-l", "all==yes"]).await;
        world.promises_held();
        let now = pool(&world);
        assert_eq!(
            (&now["spec"]["startupTaint"], &now["status"]["history"]),
            (&json!("example.com/t"), &json!([TARGET]))
        );
        assert_eq!(world.server.read(|s| s.list(|key, _| key.name == "pool-c").count()), 1, "no other pool was made");
        // The same once more is done at once.
        let sent = world.sent().len();
        good(&world, &["rollout", "pool-c", "-l", "all=yes", "-q"]).await;
        assert_eq!(world.sent().len(), sent);
    };
    with_controller(&world, script).await;
}

/// A controller begins a minute after a terminal resumes the pool, which all nodes have in the end.
async fn resumed_before_a_controller(world: &World) {
    let later = async {
        tokio::time::sleep(Duration::from_secs(60)).await;
        world.controller().await
    };
    tokio::select! {
        () = good(world, &["rollout", "resume", POOL]) => {}
        ended = later => panic!("{ended:?}"),
    }
    assert_eq!(world.count(TARGET), COUNT);
}

/// It writes the pool, and waits; it carries nothing out itself.
#[tokio::test(start_paused = true)]
async fn without_a_controller_it_waits_for_one() {
    let world = world();
    let waits = tokio::time::timeout(Duration::from_secs(600), world.command(&ALL)).await;
    assert!(waits.is_err(), "{waits:?}");
    assert_eq!((world.sent().len(), &pool(&world)["spec"]["configMap"]["name"]), (0, &json!(TARGET)));
    assert_eq!(lease(&world), Value::Null);
    resumed_before_a_controller(&world).await;
    world.promises_held();
}

#[tokio::test(start_paused = true)]
async fn what_a_former_controller_said_is_not_believed() {
    let world = world();
    world
        .server
        .put_pool("others", &json!({"nodeSelector": {"matchLabels": {"also": "yes"}}, "kubeletConfiguration": {}}));
    let in_conflict = async {
        world.until_pool(POOL, |pool| pool["metadata"]["name"] == POOL).await;
        world.server.patch_node(&name(3), json!({"metadata": {"labels": {"also": "yes"}}}));
    };
    let script = async { tokio::join!(fails(&world, &ALL, &["Conflict"]), in_conflict) };
    with_controller(&world, script).await;
    world.server.patch_node(&name(3), json!({"metadata": {"labels": {"also": null}}}));
    resumed_before_a_controller(&world).await;
}

#[tokio::test(start_paused = true)]
async fn a_bad_canary_stalls_it_and_the_way_out_is_said() {
    let world = world();
    for number in 0..COUNT {
        world.set_outcome(number, Outcome::RollsBack);
    }
    let script = async {
        fails(&world, &ALL, &["goes no further (FailuresExceeded)", "rollout undo workers", "rollout retry workers"])
            .await;
        world.promises_held();
        assert!((1..=2).contains(&world.count(TARGET)), "canaries alone, and none goes back to what nobody knows");
        // It has no revision to go back to, and nodes would say the same again.
        fails(&world, &["rollout", "undo", POOL], &["no revision to go back to"]).await;
        fails(&world, &["rollout", "retry", POOL], &["says that it is bad", "`kubectl kubelet-config retry node-"])
            .await;
        assert_eq!(pool(&world)["status"]["badRevisions"][0]["revision"], TARGET);
        good(&world, &["rollout", "status", POOL, "-o", "json"]).await;
    };
    with_controller(&world, script).await;
}

#[tokio::test(start_paused = true)]
async fn nodes_go_back_before_it_ends_and_undo_settles_it() {
    let world = world();
    let script = async {
        good(&world, &ALL).await;
        next(&world, "pool-c");
        for number in 0..COUNT {
            world.set_outcome_with(number, "pool-c", Outcome::RollsBack);
        }
        let again = ["rollout", "pool-c", "-l", "all=yes"];
        fails(&world, &again, &["FailuresExceeded", "pool-c is not tried again"]).await;
        assert_eq!((world.count(TARGET), world.count("pool-c")), (COUNT, 0), "none is left behind");
        good(&world, &["rollout", "undo", POOL]).await;
        assert_eq!(pool(&world)["spec"]["configMap"]["name"], TARGET);
        fails(&world, &["rollout", "retry", POOL], &["not marked bad"]).await;
        world.promises_held();
    };
    with_controller(&world, script).await;
}

#[tokio::test(start_paused = true)]
async fn what_is_stopped_by_silence_goes_its_way_once_it_is_retried() {
    let world = world();
    let script = async {
        // All machines are off, and nobody has noticed.
        (0..COUNT).for_each(|number| world.stop(number));
        let short = [&ALL[..], &["--node-timeout", "2m"]].concat();
        let words = ["ProgressDeadlineExceeded", "NodesSilent", "rollout retry workers"];
        fails(&world, &short, &words).await;
        let status = pool(&world)["status"].clone();
        let failures = status["rollout"]["failures"].as_array().unwrap();
        assert!(failures.len() == 1 || failures.len() == 2, "{failures:#?}");
        assert!(failures[0]["kind"] == "Silent" && status["badRevisions"].is_null(), "{status:#}");
        (0..COUNT).for_each(|number| world.start(number));
        good(&world, &["rollout", "retry", POOL]).await;
        assert_eq!((world.count(TARGET), &pool(&world)["status"]["rollout"]["failures"]), (COUNT, &Value::Null));
        fails(&world, &["rollout", "retry", POOL], &["nothing to try again"]).await;
    };
    with_controller(&world, script).await;
}

#[tokio::test(start_paused = true)]
async fn another_replica_takes_over_within_twenty_seconds() {
    let world = world();
    let dies = tokio::time::Instant::now() + Duration::from_secs(45);
    let first = tokio::time::timeout_at(dies, world.controller());
    let second = async {
        is_held(&world).await;
        world.controller().await
    };
    let followed = async {
        while lease(&world)["spec"]["leaseTransitions"] != 1 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        dies.elapsed()
    };
    let after = tokio::select! {
        after = followed => after,
        ended = async { tokio::join!(first, second) } => panic!("{ended:?}"),
    };
    assert!(after > Duration::ZERO && after <= Duration::from_secs(20), "{after:?}");
}

#[tokio::test(start_paused = true)]
async fn it_waits_for_people_and_says_so() {
    let world = world();
    let script = async {
        let careful = [&ALL[..], &["--pause-after-canaries"]].concat();
        good(&world, &careful).await;
        assert_eq!((condition(&pool(&world), "Ready").1, world.count(TARGET)), ("AwaitingApproval", 2));
        good(&world, &["rollout", "pause", POOL]).await;
        assert_eq!(pool(&world)["spec"]["paused"], true);
        // Only what was seen is approved.
        good(&world, &["rollout", "resume", POOL]).await;
        assert_eq!((condition(&pool(&world), "Ready").1, world.count(TARGET)), ("AwaitingApproval", 2));
        good(&world, &["rollout", "resume", &format!("pool/{POOL}")]).await;
        assert_eq!(world.count(TARGET), COUNT);
        world.promises_held();
    };
    with_controller(&world, script).await;
}

/// What the controller made of a spec, and a ConfigMap that is named: one after the other, and back.
#[tokio::test(start_paused = true)]
async fn undo_goes_back_to_what_the_spec_was() {
    let world = world();
    let configuration = json!({"maxPods": "${node.cpu < 8 ? 60 : 61}"});
    for number in 0..COUNT {
        world.server.set_capacity(&name(number), "4", "8Gi", "110");
        world.server.patch_node(&name(number), json!({"status": {"nodeInfo": {"kubeletVersion": "v1.29.0"}}}));
    }
    let spec = json!({"nodeSelector": {"matchLabels": {"all": "yes"}}, "kubeletConfiguration": configuration,
        "merge": "overlay", "rollout": {"maxUnavailable": "100%", "proof": "Active"}});
    world.server.put_pool(POOL, &spec);
    world.expect_pool("", 0, COUNT);
    let script = async {
        good(&world, &["rollout", "resume", POOL]).await;
        let first = pool(&world)["status"]["currentRevision"].as_str().unwrap().to_owned();
        good(&world, &["rollout", TARGET, "-l", "all=yes"]).await;
        assert!(pool(&world)["spec"]["kubeletConfiguration"].is_null());
        good(&world, &["rollout", "undo", POOL]).await;
        let now = pool(&world);
        assert_eq!((&now["spec"]["kubeletConfiguration"], &now["spec"]["merge"]), (&configuration, &json!("overlay")));
        assert_eq!(now["status"]["currentRevision"], *first);
        good(&world, &["rollout", "undo", POOL, "--to-revision", TARGET]).await;
        assert_eq!(world.count(TARGET), COUNT);
        fails(&world, &["rollout", "undo", POOL, "--to-revision", "x"], &["--to-revision x", &first]).await;
        world.server.delete_config_map(NAMESPACE, &first);
        fails(&world, &["rollout", "undo", POOL], &[&first, "not in namespace kubelet-config any more"]).await;
    };
    with_controller(&world, script).await;
}

#[tokio::test(start_paused = true)]
async fn what_makes_no_sense_is_refused_before_anything_is_written() {
    let world = world();
    world
        .server
        .put_pool("even", &json!({"nodeSelector": {"matchLabels": {"pool": "even"}}, "kubeletConfiguration": {}}));
    let cases: [(&[&str], &str); 7] = [
        (&["rollout", "none", "-l", "all=yes"], "there is no ConfigMap kubelet-config/none"),
        (&["rollout", "pool-a", "-l", "all=yes"], "`kubectl kubelet-config push FILE`"),
        (&["rollout", TARGET, "-l", "all=yes", "--key", "x"], "name one with --key"),
        (&["rollout", TARGET, "-l", "all=no"], "no node has the labels"),
        (&["rollout", TARGET, "-l", "all=yes"], "is in pool even already"),
        (&["rollout", TARGET, "-l", "all=yes", "--name", "even"], "selects other nodes than -l all=yes"),
        (&["rollout", "resume", "none"], "there is no pool \"none\""),
    ];
    for (args, words) in cases {
        fails(&world, args, &[words]).await;
    }
    let usage: [&[&str]; 5] = [
        &["rollout", TARGET, "-l", "a in b"],
        &["rollout", TARGET, "-l", ""],
        &["rollout", TARGET, "-l", "a=b", "--max-unavailable", "0"],
        &["rollout", TARGET, "-l", "a=b", "--node-timeout", "10s"],
        &["rollout"],
    ];
    for args in usage {
        assert_eq!(run(&world, args).await.expect_err("a usage error").code, 2, "{args:?}");
    }
    let odd = ["rollout", TARGET, "-l", "pool=odd"];
    world.server.faults().push(Fault::new(Verb::List, "kubeletconfigpools", FaultKind::Status(404)));
    fails(&world, &odd, &["kubectl create --validate=false -f packaging/manifests/pools/crd.yaml"]).await;
    let writes = world
        .server
        .requests()
        .into_iter()
        .filter(|request| request.method != "GET" && request.path.contains("kubeletconfigpools"));
    assert_eq!(writes.count(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_node_whose_trial_goes_on_is_not_silent() {
    let world = World::with_trial(COUNT, Duration::from_secs(600));
    world.server.patch_config_map(NAMESPACE, TARGET, json!({"immutable": true}));
    world.expect_pool(TARGET, 2, MAX);
    let short = [&ALL[..], &["--node-timeout", "6m"]].concat();
    let script = async {
        good(&world, &short).await;
        assert_eq!(world.count(TARGET), COUNT);
    };
    with_controller(&world, script).await;
    world.promises_held();
}
