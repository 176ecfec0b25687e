//! `preflight` with the real core on each node: what it costs, and that it changes nothing.

use std::process::ExitCode;
use std::time::Duration;

use kubelet_config::preflight::{ANSWER_ANNOTATION, REQUEST_ANNOTATION};
use testkit::pools::{NAMESPACE, NODES, Outcome, World, content, name};
use tokio::time::Instant;

const ASKED: &str = "pool-c";

fn world() -> World {
    let world = World::new(NODES);
    world.server.put_config_map(NAMESPACE, ASKED, &[("kubelet", &content(ASKED))]);
    world
}

async fn ask(world: &World, selector: &str) -> String {
    let code = world.command(&["preflight", ASKED, "-l", selector]).await;
    format!("{:?}", code.unwrap_or_else(|failure| panic!("{}", failure.message)))
}

/// Nodes with one of the annotations.
fn annotated(world: &World) -> usize {
    let is = |number: &usize| {
        let annotations = world.server.node(&name(*number))["metadata"]["annotations"].clone();
        [REQUEST_ANNOTATION, ANSWER_ANNOTATION].iter().any(|it| annotations.get(it).is_some())
    };
    (0..NODES).filter(is).count()
}

#[tokio::test(start_paused = true)]
async fn each_node_costs_two_patches_and_nothing_stays() {
    let world = world();
    world.set_outcome_with(1, ASKED, Outcome::Rejects);
    let starts = |world: &World| {
        let writes = world.server.requests();
        writes.iter().filter(|it| it.body["reason"] == "KubeletConfigChanged").count()
    };
    let (before, begun) = (world.traffic().0, Instant::now());
    assert_eq!(ask(&world, "all=yes").await, format!("{:?}", ExitCode::FAILURE), "one refuses it");
    let (requests, took) = (world.traffic().0 - before, begun.elapsed());
    println!("{NODES} nodes: {requests} requests in {took:?}");
    // Two for each node; the ConfigMap, a page of the list, a watch.
    assert!((2 * NODES as u64..=2 * NODES as u64 + 5).contains(&requests), "{requests}");
    // Asked one after the other, so that 5,000 answer within two minutes and not at once.
    assert!((Duration::from_secs(4)..Duration::from_secs(15)).contains(&took), "{took:?}");
    assert_eq!(ask(&world, "pool=even").await, format!("{:?}", ExitCode::SUCCESS));
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(annotated(&world), 0);
    assert_eq!((world.count("pool-a"), starts(&world)), (NODES, 0));
    world.promises_held();
}

#[tokio::test(start_paused = true)]
async fn what_somebody_else_asks_meanwhile_is_not_taken_off() {
    let world = world();
    // It asks the nodes one by one: this one was asked, and has not answered.
    world.stop(0);
    let theirs = "kubelet-config/theirs/kubelet";
    let other = async {
        loop {
            let node = world.server.node(&name(0));
            if node["metadata"]["annotations"][REQUEST_ANNOTATION].is_string() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        world
            .server
            .patch_node(&name(0), serde_json::json!({"metadata": {"annotations": {REQUEST_ANNOTATION: theirs}}}));
    };
    let (code, ()) = tokio::join!(world.command(&["preflight", ASKED, "-l", "all=yes"]), other);
    assert_eq!(format!("{:?}", code.unwrap()), format!("{:?}", ExitCode::FAILURE));
    assert_eq!(world.server.node(&name(0))["metadata"]["annotations"][REQUEST_ANNOTATION], theirs);
    assert_eq!(annotated(&world), 1);
}
