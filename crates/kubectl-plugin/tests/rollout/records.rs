//! What nodes had before is known to the records alone: what becomes of them when a rollout takes the place of another
//! one, and when a client ends too early.

use std::time::Duration;

use kubectl_plugin::fleet::rollout::drain::CORDONED_BY;
use serde_json::{Value, json};

use testkit::api_server::{Fault, FaultKind, Verb};
use testkit::rollout::{NAMESPACE, TARGET, World, content, name};

const EVEN: &[&str] = &[TARGET, "-l", "pool=even", "--canary", "0", "--max-unavailable", "100%", "--quiet"];
const ALL: &[&str] = &[TARGET, "-l", "all=yes", "--max-unavailable", "100%", "--quiet"];

/// Four nodes of eight have it from a rollout that is done, and a fifth has joined them.
async fn done() -> World {
    let world = World::new(8);
    world.good(EVEN).await;
    world.create(8, &json!({"pool": "even", "new": "yes"}));
    tokio::time::sleep(Duration::from_secs(30)).await;
    world
}

/// All but the new one, which had nothing, have what they had.
fn is_back(world: &World) -> bool {
    (world.count("pool-a"), world.count("")) == (8, 1)
}

/// The ConfigMaps of rollouts.
fn records(world: &World) -> Vec<String> {
    let names = |object: &Value| object["metadata"]["name"].as_str().unwrap().to_owned();
    let all: Vec<String> = world.server.read(|s| s.list(|_, _| true).map(names).collect());
    all.into_iter().filter(|name| name.starts_with("rollout-")).collect()
}

fn record(world: &World) -> Value {
    let map = world.server.config_map(NAMESPACE, "rollout-pool-b");
    serde_json::from_str(map["data"]["rollout"].as_str().unwrap()).unwrap()
}

async fn dies_when(world: &World, args: &[&str], now: impl Fn() -> bool) {
    let told = async {
        while !now() {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        world.die_at(1, false);
    };
    let (end, ()) = tokio::join!(world.client(args), told);
    assert!(end.is_none(), "{end:?}");
    world.live_on();
}

/// It ends well. Of two requests that are on their way when a client dies, the second one's death is still to be heard.
async fn goes_on(world: &World, args: &[&str]) {
    loop {
        if let Some(end) = world.client(args).await {
            return end.map_or_else(|failure| panic!("{args:?}: {}", failure.message), drop);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn one_that_is_refused_leaves_the_one_before_it_as_it_was() {
    let world = done().await;
    world.server.put_config_map(NAMESPACE, "pool-c", &[("kubelet", &content("pool-c"))]);
    dies_when(&world, &["pool-c", "-l", "new=yes", "--quiet"], || world.phase("pool-c").as_deref() == Some("Running"))
        .await;
    let before = records(&world);
    let said = world.bad(EVEN).await;
    assert!(said.contains("1 nodes, such as node-0008, are in rollout pool-c"), "{said}");
    assert_eq!(records(&world), before);
    world.good(&["abort", "pool-c", "--quiet"]).await;
    // And what is refused at the last moment, when it is written already.
    world.server.faults().push(Fault::once(Verb::Post, "/configmaps", FaultKind::Slow(Duration::from_secs(3))));
    let refused = async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        world.server.faults().push(Fault::once(Verb::List, "/configmaps", FaultKind::Status(403)));
    };
    let (said, ()) = tokio::join!(world.bad(EVEN), refused);
    assert!(said.contains("list ConfigMaps"), "{said}");
    assert_eq!(records(&world), before);
    world.good(&["undo", TARGET, "--quiet"]).await;
    assert_eq!(world.count("pool-a"), 8);
}

#[tokio::test(start_paused = true)]
async fn a_client_killed_while_it_begins_anew_loses_nothing() {
    for after in [false, true] {
        let mut starting = 0;
        for number in 1..40 {
            let world = done().await;
            world.die_at(number, after);
            if world.client(EVEN).await.is_some() {
                assert!(number > 15, "{number} requests are all it makes");
                break;
            }
            world.live_on();
            starting += usize::from(world.phase(TARGET).as_deref() == Some("Starting"));
            if number % 2 == 0 {
                // The same command goes on, and what it knows is what the first one knew.
                goes_on(&world, EVEN).await;
                assert_eq!((world.count(TARGET), world.phase(TARGET).as_deref()), (5, Some("Done")));
            }
            goes_on(&world, &["undo", TARGET, "--quiet"]).await;
            assert!(is_back(&world), "killed at request {number}");
        }
        assert!(starting > 1, "it was killed in the midst of it");
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_left_of_the_one_before() {
    let world = done().await;
    world.good(EVEN).await;
    assert_eq!(records(&world), ["rollout-pool-b", "rollout-pool-b-nodes-again-0"]);
    assert_eq!(record(&world)["replaces"], Value::Null);
    world.create(9, &json!({"pool": "even"}));
    world.good(EVEN).await;
    assert_eq!(records(&world), ["rollout-pool-b", "rollout-pool-b-nodes-0"]);
    world.good(&["undo", TARGET, "--quiet"]).await;
    assert_eq!((world.count("pool-a"), world.count("")), (8, 2));
}

fn cordoned(world: &World) -> usize {
    let is_ours = |node: &Value| node["metadata"]["annotations"][CORDONED_BY] == TARGET;
    (0..8).filter(|number| is_ours(&world.server.node(&name(*number)))).count()
}

fn advised(said: &str) -> Vec<&str> {
    let quoted = said.split('`').skip(1).step_by(2);
    quoted.filter_map(|line| line.strip_prefix("kubectl kubelet-config rollout ")).collect()
}

#[tokio::test(start_paused = true)]
async fn abort_again_opens_what_an_abort_that_died_left_cordoned() {
    let world = World::new(8);
    let drained: Vec<&str> = ALL.iter().copied().chain(["--canary", "0", "--drain"]).collect();
    dies_when(&world, &drained, || cordoned(&world) > 2).await;
    let left = cordoned(&world);
    dies_when(&world, &["abort", TARGET, "--quiet"], || world.phase(TARGET).as_deref() == Some("Aborted")).await;
    assert_eq!(cordoned(&world), left);
    // One that may not patch nodes says what goes on with it, and that is so.
    world.server.faults().push(Fault::once(Verb::Patch, "/nodes/", FaultKind::Status(403)));
    let said = world.bad(&["abort", TARGET, "--quiet"]).await;
    assert!(said.contains("stay cordoned until somebody goes on"), "{said}");
    assert_eq!(advised(&said), ["abort pool-b"]);
    world.good(&["abort", TARGET, "--quiet"]).await;
    assert_eq!(cordoned(&world), 0);
    // If its nodes are not known any more, it does not send in circles.
    world.server.delete_config_map(NAMESPACE, "rollout-pool-b-nodes-0");
    let said = world.bad(&["abort", TARGET, "--quiet"]).await;
    assert!(said.contains("not all there") && said.contains("`kubectl uncordon`"), "{said}");
    assert!(!said.contains("rollout abort"), "{said}");
}

#[tokio::test(start_paused = true)]
async fn an_undo_that_meets_another_rollout_at_that_moment_is_put_back() {
    let world = done().await;
    world.good(EVEN).await;
    world.server.put_config_map(NAMESPACE, "pool-c", &[("kubelet", &content("pool-c"))]);
    let slow = FaultKind::Slow(Duration::from_secs(5));
    world.server.faults().push(Fault::once(Verb::Put, "/configmaps/rollout-pool-b", slow));
    let other = async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        world.good(&["pool-c", "-l", "new=yes", "--quiet"]).await;
    };
    let (said, ()) = tokio::join!(world.bad(&["undo", TARGET, "--quiet"]), other);
    assert!(said.contains("are in rollout pool-c, which is running"), "{said}");
    assert_eq!((world.phase(TARGET).as_deref(), world.count(TARGET)), (Some("Done"), 4));
    assert_eq!(record(&world)["undone"], false);
    world.good(&["undo", TARGET, "--quiet"]).await;
    assert_eq!(world.count("pool-a"), 8);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_forgets_at_once_is_not_listed_without_end() {
    let world = World::new(8);
    world.server.faults().push(Fault::new(Verb::Watch, "labelSelector=pool", FaultKind::GoneInStream));
    let mended = async {
        tokio::time::sleep(Duration::from_secs(600)).await;
        world.server.faults().clear();
    };
    tokio::join!(world.good(EVEN), mended);
    let requests = world.server.requests();
    let lists = requests.iter().filter(|it| it.query.contains("labelSelector=pool") && !it.is_watch()).count();
    assert!((5..40).contains(&lists), "{lists} lists");
}
