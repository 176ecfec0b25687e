//! Nodes that join a pool.

use std::time::Duration;

use serde_json::json;

use super::super::node::Progress;
use super::{NOW, World, node};

#[test]
fn nodes_that_join_get_what_the_others_have() {
    let mut world = World::new(4, json!({}));
    world.prove_all();
    let good = world.update();
    world.set(json!({"kubeletConfiguration": {"maxPods": 61}}));
    let canaries = world.settle();
    world.nodes.extend((0..50).map(|number| {
        let mut node = node(&format!("young{number}"), NOW, json!({}));
        node.ready = false;
        (node.name.clone(), node)
    }));
    let joined = world.settle();
    assert!(joined.iter().all(|name| name.starts_with("young")), "{joined:?}");
    assert_eq!(world.with(&good), 50 + 4 - canaries.len());
    assert_eq!(world.with(&world.update()), canaries.len());
    world.set(json!({}));
    world.settle();
    world.prove();
    world.at("young3").progress = Progress::Updating;
    world.settle();
    assert_eq!(world.ready(), ("True", "Complete"), "a scale-up does not unsettle a pool");
}

#[test]
fn a_node_that_joins_and_does_not_come_up_condemns_nothing() {
    let mut world = World::new(4, json!({}));
    world.prove_all();
    let mut young = node("young", NOW, json!({}));
    young.ready = false;
    world.nodes.insert(young.name.clone(), young);
    assert_eq!(world.settle(), ["young"]);
    world.at("young").lasts.unready = Duration::from_secs(3600);
    world.at("young").progress = Progress::Bad("no".to_owned());
    world.settle();
    assert!(world.status.bad_revisions.is_empty());
    assert_eq!((world.ready(), world.status.failed), (("True", "Degraded"), 1));
}

/// Its clock, or that of the controller, is wrong: it would be young for as long as they are apart.
#[test]
fn a_node_that_is_yet_to_be_made_did_not_join() {
    let mut world = World::new(4, json!({}));
    world.prove_all();
    for (name, created) in [("near", "2026-01-10T00:00:30Z"), ("far", "2026-01-10T00:05:00Z")] {
        let mut node = node(name, created, json!({}));
        node.ready = false;
        world.nodes.insert(name.to_owned(), node);
    }
    assert_eq!(world.settle(), ["near"], "a minute is what clocks are apart");
}
