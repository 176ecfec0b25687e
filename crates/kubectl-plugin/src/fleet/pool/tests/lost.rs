//! Nodes that are gone, that were not Ready before, and that join while a revision is on its way.

use std::time::Duration;

use serde_json::{Value, json};

use super::super::node::Progress;
use super::super::revision::revision_name;
use super::{NOW, World, node};

fn pods(pods: u32, rollout: &Value) -> Value {
    json!({"kubeletConfiguration": {"maxPods": pods}, "rollout": rollout})
}

/// A selector with a mistake in it, or a pool whose only node is made anew.
#[test]
fn a_revision_that_no_node_has_replaces_none() {
    let mut world = World::new(3, json!({}));
    world.prove_all();
    let good = Some(revision_name(&world.update()));
    let nodes = std::mem::take(&mut world.nodes);
    world.set(pods(61, &json!({})));
    world.settle();
    assert_eq!((world.ready(), &world.status.current_revision), (("True", "NoNodes"), &good));
    world.nodes = nodes;
    assert_eq!(world.settle().len(), 1, "one canary");
    assert_eq!(world.status.current_revision, good);
}

#[test]
fn what_all_nodes_refuse_is_bad_however_many_may() {
    let mut world = World::new(2, pods(60, &json!({"maxFailures": 3, "maxUnavailable": "100%", "canaries": 0})));
    assert_eq!(world.settle().len(), 2);
    for node in world.nodes.values_mut() {
        node.progress = Progress::Bad("no".to_owned());
    }
    world.settle();
    assert_eq!((world.status.bad_revisions.len(), &world.status.current_revision), (1, &None));
    assert_eq!(world.ready().0, "False");
}

/// It hangs with what all others run, or its machine is gone: it would show nothing of what is new.
#[test]
fn a_node_that_was_lost_before_is_no_canary_and_no_vote() {
    let mut world = World::new(9, pods(60, &json!({"maxUnavailable": 2})));
    world.prove_all();
    let lost = world.at("n004");
    (lost.progress, lost.ready) = (Progress::Updating, false);
    (lost.unready_for, lost.updating_for) = (Duration::from_secs(7200), Duration::from_secs(7300));
    world.set(pods(61, &json!({"maxUnavailable": 2})));
    let update = world.update();
    for _ in 0..10 {
        world.settle();
        assert_ne!(world.at("n004").desired.as_ref(), Some(&update));
        for node in world.nodes.values_mut().filter(|node| node.desired.as_ref() == Some(&update)) {
            node.progress = Progress::Proven;
        }
    }
    assert!(world.status.bad_revisions.is_empty());
    assert_eq!((world.with(&update), world.ready()), (8, ("False", "NodesNotReady")));
    // It is back, and goes the way of the others.
    let back = world.at("n004");
    (back.ready, back.progress) = (true, Progress::Proven);
    world.prove_all();
    assert_eq!(world.ready(), ("True", "Complete"));
}

#[test]
fn nodes_that_joined_get_what_is_new_as_there_is_room() {
    let mut world = World::new(4, pods(60, &json!({"maxUnavailable": 1})));
    world.prove_all();
    for number in 0..20 {
        let name = format!("young{number}");
        world.nodes.insert(name.clone(), node(&name, NOW, json!({})));
    }
    assert_eq!(world.settle().len(), 20, "what the others have");
    world.set(pods(61, &json!({"maxUnavailable": 1})));
    for _ in 0..3 {
        assert!(world.settle().len() <= 1);
        let update = world.update();
        for node in world.nodes.values_mut().filter(|node| node.desired.as_ref() == Some(&update)) {
            node.progress = Progress::Proven;
        }
    }
}
