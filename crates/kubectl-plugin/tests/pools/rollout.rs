//! `kubectl kubelet-config rollout`: a pool from a terminal, with and without a controller.

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
async fn a_terminal_brings_it_to_its_end() {
    let world = world();
    world
        .server
        .put_pool("others", &json!({"nodeSelector": {"matchLabels": {"pool": "none"}}, "kubeletConfiguration": {}}));
    let others = world.server.pool("others");
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
    assert_eq!((condition(&now, "Ready"), &now["status"]["currentRevision"]), (("True", "Complete"), &json!(TARGET)));
    assert_eq!(world.server.pool("others"), others, "only its own pool is carried out");
    assert_eq!(lease(&world)["spec"]["holderIdentity"], "", "others need not wait");
    // The pool of these nodes is found without its name; what it has beside stays.
    world.server.patch_pool(POOL, &json!({"spec": {"startupTaint": "example.com/t"}}));
    next(&world, "pool-c");
    good(&world, &["rollout", "pool-c", "-l", "all==yes"]).await;
    world.promises_held();
    let now = pool(&world);
    assert_eq!((&now["spec"]["startupTaint"], &now["status"]["history"]), (&json!("example.com/t"), &json!([TARGET])));
    assert_eq!(world.server.read(|s| s.list(|key, _| key.name == "pool-c").count()), 1, "no other pool was made");
    // The same once more is done at once.
    let sent = world.sent().len();
    good(&world, &["rollout", "pool-c", "-l", "all=yes", "-q"]).await;
    assert_eq!(world.sent().len(), sent);
    // What the pool said then is not believed of nodes that have joined since.
    for number in COUNT..COUNT + 3 {
        world.create(number, &json!({"all": "yes"}));
    }
    good(&world, &["rollout", "pool-c", "-l", "all=yes", "-q"]).await;
    assert_eq!(world.count("pool-c"), COUNT + 3);
}

#[tokio::test(start_paused = true)]
async fn what_stalled_it_once_is_not_believed_for_ever() {
    let world = world();
    world
        .server
        .put_pool("others", &json!({"nodeSelector": {"matchLabels": {"also": "yes"}}, "kubeletConfiguration": {}}));
    let in_conflict = async {
        world.until_pool(POOL, |pool| pool["metadata"]["name"] == POOL).await;
        world.server.patch_node(&name(3), json!({"metadata": {"labels": {"also": "yes"}}}));
    };
    tokio::join!(fails(&world, &ALL, &["Conflict"]), in_conflict);
    world.server.patch_node(&name(3), json!({"metadata": {"labels": {"also": null}}}));
    good(&world, &["rollout", "resume", POOL]).await;
    assert_eq!(world.count(TARGET), COUNT);
}

#[tokio::test(start_paused = true)]
async fn nobody_is_left_behind_when_the_terminal_ends() {
    let world = world();
    let taint = json!({"spec": {"taints": [{"key": "example.com/t", "effect": "NoSchedule"}]}});
    (0..COUNT).for_each(|number| drop(world.server.patch_node(&name(number), taint.clone())));
    good(&world, &[&ALL[..], &["--drain=careful"]].concat()).await;
    let nodes = || (0..COUNT).map(|number| world.server.node(&name(number)));
    let cordoned: Vec<Value> = nodes().filter(|node| node["spec"]["unschedulable"] == true).collect();
    assert!(cordoned.is_empty(), "{cordoned:#?}");
    let mut spec = pool(&world)["spec"].clone();
    spec["startupTaint"] = json!("example.com/t");
    world.server.put_pool(POOL, &spec);
    good(&world, &["rollout", "resume", POOL]).await;
    assert!(nodes().all(|node| node["spec"]["taints"].as_array().is_none_or(Vec::is_empty)));
}

#[tokio::test(start_paused = true)]
async fn a_bad_canary_stalls_it_and_the_way_out_is_said() {
    let world = world();
    for number in 0..COUNT {
        world.set_outcome(number, Outcome::RollsBack);
    }
    fails(&world, &ALL, &["goes no further (FailuresExceeded)", "rollout undo workers", "rollout retry workers"]).await;
    world.promises_held();
    assert!((1..=2).contains(&world.count(TARGET)), "canaries alone, and none goes back to what nobody knows");
    // It has no revision to go back to, and nodes would say the same again.
    fails(&world, &["rollout", "undo", POOL], &["no revision to go back to"]).await;
    fails(&world, &["rollout", "retry", POOL], &["says that it is bad", "`kubectl kubelet-config retry node-"]).await;
    assert_eq!(pool(&world)["status"]["badRevisions"][0]["revision"], TARGET);
    good(&world, &["rollout", "status", POOL, "-o", "json"]).await;
}

#[tokio::test(start_paused = true)]
async fn nodes_go_back_before_it_ends_and_undo_settles_it() {
    let world = world();
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
}

#[tokio::test(start_paused = true)]
async fn what_is_retried_goes_its_way() {
    let world = world();
    // A trial takes that long, which is nobody's word against it.
    let short = [&ALL[..], &["--node-timeout", "1m", "--on-failure", "stop"]].concat();
    fails(&world, &short, &["has not finished within 60 s", "rollout retry workers"]).await;
    assert_eq!(world.count(TARGET), 2);
    world.server.patch_pool(POOL, &json!({"spec": {"rollout": {"nodeTimeoutSeconds": 3600}}}));
    good(&world, &["rollout", "retry", POOL]).await;
    assert_eq!((world.count(TARGET), &pool(&world)["status"]["badRevisions"]), (COUNT, &Value::Null));
    world.promises_held();
}

#[tokio::test(start_paused = true)]
async fn terminals_die_and_others_go_on() {
    let world = world();
    for seconds in [3, 40, 100] {
        let lives = tokio::time::timeout(Duration::from_secs(seconds), world.command(&ALL)).await;
        assert!(lives.is_err(), "{lives:?}");
    }
    assert!((1..COUNT).contains(&world.count(TARGET)), "{}", world.count(TARGET));
    let here = tokio::time::timeout(Duration::from_secs(100), world.command(&["rollout", "resume", POOL]));
    let there = world.until_pool(POOL, |_| world.count(TARGET) > 4);
    let (_, _) = tokio::join!(here, there);
    let script = world.until_pool(POOL, |pool| condition(pool, "Ready") == ("True", "Complete"));
    with_controller(&world, script).await;
    world.promises_held();
    assert_eq!(world.sent().len(), COUNT, "each node once");
}

#[tokio::test(start_paused = true)]
async fn a_controller_that_is_there_is_followed() {
    let world = world();
    let script = async {
        is_held(&world).await;
        let holder = lease(&world)["spec"]["holderIdentity"].clone();
        good(&world, &ALL).await;
        let spec = &lease(&world)["spec"];
        assert_eq!((&spec["holderIdentity"], &spec["leaseTransitions"]), (&holder, &json!(0)), "it was not disturbed");
    };
    with_controller(&world, script).await;
    world.promises_held();
    assert_eq!(world.count(TARGET), COUNT);
}

/// It dies: the terminal that follows takes over.
#[tokio::test(start_paused = true)]
async fn a_controller_that_dies_is_followed_by_the_terminal() {
    let world = world();
    let controller = tokio::time::timeout(Duration::from_secs(60), world.controller());
    let (_, ended) = tokio::join!(controller, run(&world, &ALL));
    assert_eq!(ended.unwrap(), ExitCode::SUCCESS);
    world.promises_held();
    assert_eq!(world.count(TARGET), COUNT);
}

/// Of a Lease that its holder has let go of: other pools would wait for a terminal.
#[tokio::test(start_paused = true)]
async fn another_replica_goes_first() {
    let world = world();
    let first = tokio::time::timeout(Duration::from_secs(45), world.controller());
    let second = async {
        is_held(&world).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        world.controller().await
    };
    let terminal = async {
        is_held(&world).await;
        good(&world, &ALL).await;
        lease(&world)["spec"].clone()
    };
    let lease = tokio::select! {
        lease = terminal => lease,
        ended = async { tokio::join!(first, second) } => panic!("{ended:?}"),
    };
    assert_ne!(lease["holderIdentity"], "", "a terminal would have released it");
    assert_eq!(lease["leaseTransitions"], 1);
    world.promises_held();
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
    // Nobody can carry it out: neither this user nor anybody else.
    world.server.judge_access(|spec| spec["resourceAttributes"]["resource"] != "leases");
    let odd = ["rollout", TARGET, "-l", "pool=odd"];
    fails(&world, &odd, &["nobody carries out pools", "get leases", "nothing was written"]).await;
    world.server.judge_access(|_| true);
    world.server.faults().push(Fault::new(Verb::List, "kubeletconfigpools", FaultKind::Status(404)));
    fails(&world, &odd, &["kubectl create --validate=false -f packaging/manifests/pools/crd.yaml"]).await;
    let writes = world.server.requests().into_iter().filter(|request| {
        request.method != "GET" && (request.path.contains("kubeletconfigpools") || request.path.contains("leases"))
    });
    assert_eq!(writes.count(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_retry_after_a_time_out_gives_the_nodes_their_time_again() {
    let world = World::with_trial(COUNT, Duration::from_secs(600));
    world.server.patch_config_map(NAMESPACE, TARGET, json!({"immutable": true}));
    world.expect_pool(TARGET, 2, MAX);
    let short = [&ALL[..], &["--node-timeout", "6m", "--on-failure", "stop"]].concat();
    let script = async {
        tokio::time::sleep(Duration::from_secs(30)).await; // it has the Lease
        fails(&world, &short, &["has not finished within 360 s", "rollout retry workers"]).await;
        // The trial takes ten minutes: the canaries need four of another six.
        let _ = run(&world, &["rollout", "retry", POOL]).await;
        assert!(world.count(TARGET) > 2, "it failed again at once: {:#}", pool(&world)["status"]["badRevisions"]);
    };
    with_controller(&world, script).await;
}
