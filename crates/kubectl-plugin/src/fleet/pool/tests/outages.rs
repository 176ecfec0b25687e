//! Nodes that are away, cannot be written to, or never speak: what they said and were before a revision says nothing of it.

use serde_json::json;

use super::super::node::{NodePreflight, PreflightAnswer, request};
use super::classes::in_waves;
use super::*;

const SECOND: fn(u64) -> Duration = Duration::from_secs;

/// Nodes that answered before an outage are not given the revision in it, all at once.
#[test]
fn a_zone_that_is_away_gets_nothing() {
    let (mut world, _, new) = in_waves(30, &json!({"maxUnavailable": 3}));
    let behind: Vec<String> =
        world.nodes.values().filter(|node| node.desired.as_ref() != Some(&new)).map(|node| node.name.clone()).collect();
    let answer = Some(PreflightAnswer::Valid);
    for name in behind.iter().take(10) {
        let preflight = NodePreflight { request: request(&new), answer: answer.clone() };
        world.at(name).preflight = Some(preflight);
        (world.at(name).ready, world.at(name).lasts.unready) = (false, SECOND(65));
    }
    assert_eq!(world.settle(), Vec::<String>::new());
}

/// They died long before, with the revision to which the pool goes back.
#[test]
fn who_died_long_ago_does_not_stop_the_way_back() {
    let (mut world, old, _) = in_waves(60, &json!({"maxUnavailable": 10}));
    let with = |world: &World, it: &ConfigMapRef| -> Vec<String> {
        world.nodes.values().filter(|node| node.desired.as_ref() == Some(it)).map(|node| node.name.clone()).collect()
    };
    let dead: Vec<String> = with(&world, &old).into_iter().take(2).collect();
    for name in &dead {
        world.at(name).given = Some(Given::Wave);
        world.dies(name, 86_400);
    }
    world.prove_all();
    world.set(json!({"kubeletConfiguration": {"maxPods": 60}, "rollout": {"maxUnavailable": 10}}));
    assert_eq!(world.update(), old);
    world.prove_all();
    assert!(world.status.rollout.as_ref().unwrap().failures.is_empty(), "{:?}", world.status.rollout);
    assert_eq!(with(&world, &old).len(), 60, "{}", world.message());
}

/// They proved what later took them down.
#[test]
fn nodes_that_a_proven_revision_took_down_get_the_one_before() {
    let (mut world, old, new) = in_waves(20, &json!({"maxUnavailable": 3}));
    let hurt: Vec<String> = {
        let is_hurt = |it: &&PoolNode| it.given == Some(Given::Wave) && it.desired.as_ref() == Some(&new);
        world.nodes.values().filter(is_hurt).map(|it| it.name.clone()).collect()
    };
    for name in &hurt {
        world.dies(name, 120);
    }
    assert!(!hurt.is_empty());
    world.set(json!({"kubeletConfiguration": {"maxPods": 60}, "rollout": {"maxUnavailable": 3}}));
    world.settle();
    for name in &hurt {
        assert_eq!(world.nodes[name].desired.as_ref(), Some(&old), "{name}: {}", world.message());
    }
}

#[test]
fn a_node_that_never_speaks_takes_no_place() {
    let mut world = World::new(5, json!({"rollout": {"maxUnavailable": 1}}));
    world.prove_all();
    world.joins("windows");
    world.settle();
    world.now += SECOND(3600);
    let silent = world.at("windows");
    (silent.is_managed, silent.has_supervisor, silent.progress) = (false, false, Progress::Updating);
    world.set(json!({"kubeletConfiguration": {"maxPods": 61}, "rollout": {"maxUnavailable": 1}}));
    assert_eq!(world.settle().len(), 1, "{}", world.message());
}

/// A policy keeps the revision from most Nodes.
#[test]
fn what_most_nodes_cannot_be_given_is_not_current() {
    let (mut world, old, new) = in_waves(20, &json!({"maxUnavailable": 3}));
    let names: Vec<String> = world.nodes.keys().cloned().collect();
    for name in
        names.iter().filter(|name| world.nodes[*name].desired.as_ref() == Some(&old)).cloned().collect::<Vec<_>>()
    {
        world.at(&name).unwritable = true;
    }
    for _ in 0..5 {
        world.settle();
        world.prove();
    }
    assert_ne!(world.status.current_revision, Some(revision_name(&new)));
}
