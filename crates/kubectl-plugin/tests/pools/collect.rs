//! Revisions that nobody needs any more.

use std::time::Duration;

use serde_json::{Value, json};

use testkit::api_server::{Fault, FaultKind, Verb};
use testkit::pools::{NAMESPACE, World};

use super::{completed, with_controller};

/// A ConfigMap of a pool that is there no more.
pub(crate) fn old_revision(name: &str) -> Value {
    json!({
        "metadata": {"name": name, "namespace": NAMESPACE, "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"kubelet-supervisor.io/pool": "gone"}},
        "immutable": true, "data": {"kubelet": "{}"},
    })
}

fn there(world: &World) -> usize {
    (0..12).filter(|number| world.server.has_config_map(NAMESPACE, &format!("gone-bcdfghkm{number:02}"))).count()
}

fn world() -> World {
    let world = World::new(3);
    for number in 0..12 {
        world.server.create_config_map(&old_revision(&format!("gone-bcdfghkm{number:02}")));
    }
    world
}

#[tokio::test(start_paused = true)]
async fn old_ones_are_deleted_some_an_hour_and_others_stay() {
    let world = world();
    let mut pushed = old_revision("pushed-bcdfghkmtt");
    pushed["metadata"]["labels"] = json!({});
    world.server.create_config_map(&pushed);
    let script = async {
        let pool = completed(&world, 60).await;
        assert_eq!(there(&world), 2);
        while there(&world) > 0 {
            tokio::time::sleep(Duration::from_secs(60)).await;
        }
        pool["status"]["currentRevision"].as_str().unwrap().to_owned()
    };
    let current = with_controller(&world, script).await;
    for name in [&current, "pushed-bcdfghkmtt", "pool-a"] {
        assert!(world.server.has_config_map(NAMESPACE, name), "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn without_the_right_they_stay_and_pools_go_on() {
    for verb in [Verb::List, Verb::Delete] {
        let world = world();
        world.server.faults().push(Fault::new(verb, "/configmaps", FaultKind::Status(403)));
        let script = async {
            completed(&world, 60).await;
        };
        with_controller(&world, script).await;
        assert_eq!(there(&world), 12);
    }
}
