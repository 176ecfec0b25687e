//! An API server with troubles, and Nodes that others write.

use std::time::Duration;

use serde_json::json;

use super::kills::Random;
use testkit::api_server::{Fault, FaultKind, Verb};
use testkit::rollout::{TARGET, World, content, name};

const ALL: &[&str] = &[TARGET, "-l", "all=yes", "--canary", "3", "--max-unavailable", "10", "--quiet"];

#[tokio::test(start_paused = true)]
async fn lost_answers_errors_and_cut_watches_change_nothing() {
    let world = World::new(100);
    world.expect(&[0, 1, 2], 10);
    let mut random = Random(7);
    let troubles = async {
        loop {
            let (verb, path) = match random.below(5) {
                0 => (Verb::Patch, "/nodes/"),
                1 => (Verb::Put, "/configmaps/rollout-"),
                2 => (Verb::Watch, "/nodes"),
                3 => (Verb::Watch, "/configmaps"),
                _ => (Verb::Any, ""),
            };
            let kind = match random.below(6) {
                0 => FaultKind::Status(500),
                1 => FaultKind::Throttle(3),
                2 => FaultKind::Garbage,
                3 if verb == Verb::Watch => FaultKind::GoneInStream,
                3 => FaultKind::Slow(Duration::from_secs(12)),
                _ => FaultKind::CutMidLine,
            };
            world.server.faults().push(Fault::once(verb, path, kind));
            if random.below(4) == 0 {
                world.server.compact();
            }
            if random.below(4) == 0 {
                world.server.door().end_watches();
            }
            tokio::time::sleep(Duration::from_secs(1 + random.below(20))).await;
        }
    };
    tokio::select! {
        () = world.good(ALL) => {}
        () = troubles => unreachable!(),
    }
    world.promises_held();
    assert_eq!((world.count(TARGET), world.phase(TARGET).as_deref()), (100, Some("Done")));
}

#[tokio::test(start_paused = true)]
async fn what_others_write_meanwhile_is_left_alone() {
    let world = World::new(60);
    world.expect(&[], 10);
    let mine =
        |map: &str| json!({"metadata": {"labels": {format!("{}name", kubelet_config::assignment::LABELS): map}}});
    world.server.put_config_map(testkit::rollout::NAMESPACE, "mine", &[("kubelet", &content("mine"))]);
    let others = async {
        let mut random = Random(3);
        tokio::time::sleep(Duration::from_secs(30)).await;
        // One that has it, one on its way, and one that waits; and all Nodes are touched all the time.
        for number in [0, 4, 50] {
            world.server.patch_node(&name(number), mine("mine"));
        }
        // And one that has it gets back, by hand, what it had.
        world.server.patch_node(&name(1), mine("pool-a"));
        loop {
            let touched = usize::try_from(random.below(60)).unwrap();
            let label = json!({"metadata": {"labels": {"touched": random.below(1_000_000).to_string()}}});
            world.server.patch_node(&name(touched), label);
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    tokio::select! {
        () = world.good(&["pool-b", "-l", "all=yes", "--canary", "0", "--max-unavailable", "10", "--quiet"]) => {}
        () = others => unreachable!(),
    }
    world.promises_held();
    assert_eq!((world.count("mine"), world.count("pool-a"), world.count(TARGET)), (3, 1, 56));
    world.good(&["undo", TARGET, "--quiet"]).await;
    assert_eq!((world.count("mine"), world.count("pool-a")), (3, 57));
}

/// What is sent takes the node out of the selection.
#[tokio::test(start_paused = true)]
async fn a_selector_on_the_assignment_itself_keeps_the_promises() {
    let world = World::new(12);
    world.expect(&[0], 2);
    let label = format!("{}name=pool-a", kubelet_config::assignment::LABELS);
    world.good(&[TARGET, "-l", &label, "--canary", "1", "--max-unavailable", "2", "--quiet"]).await;
    world.promises_held();
    assert_eq!(world.count(TARGET), 12);
}

#[tokio::test(start_paused = true)]
async fn a_record_that_is_deleted_ends_its_client() {
    let world = World::new(20);
    let deleted = async {
        world.until(TARGET, "Running").await;
        tokio::time::sleep(Duration::from_secs(70)).await;
        world.server.delete_config_map(testkit::rollout::NAMESPACE, "rollout-pool-b");
        world.sent().len()
    };
    let (said, before) =
        tokio::join!(world.bad(&[TARGET, "-l", "all=yes", "--max-unavailable", "2", "--quiet"]), deleted);
    assert!(said.contains("was deleted: rollout pool-b is no more") && !said.contains("Go on"), "{said}");
    assert_eq!(world.sent().len(), before);
}
