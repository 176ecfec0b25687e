//! `spec.rollout.canarySelector`.

use serde_json::json;

use super::*;

fn chosen(pods: u32, more: impl Into<Value>) -> Value {
    let mut rollout = json!({"canaries": 2, "maxUnavailable": 5, "canarySelector": {"matchLabels": {"canary": "yes"}}});
    for (field, value) in more.into().as_object().unwrap() {
        rollout[field] = value.clone();
    }
    json!({"kubeletConfiguration": {"maxPods": pods}, "rollout": rollout})
}

fn world(canaries: &[&str], more: Value) -> World {
    let mut world = World::new(20, chosen(60, more));
    for name in canaries {
        world.at(name).labels.insert("canary".to_owned(), "yes".to_owned());
    }
    world
}

#[test]
fn canaries_are_those_that_it_matches() {
    let mut world = world(&["n003", "n007", "n011"], json!({}));
    let canaries = world.settle();
    assert_eq!((canaries.len(), world.ready()), (2, ("False", "Canaries")));
    assert!(canaries.iter().all(|name| world.nodes[name].labels.contains_key("canary")), "{canaries:?}");
    world.at(&canaries[0]).progress = Progress::Proven;
    assert!(world.settle().is_empty(), "the other one has not proven it");
    world.at(&canaries[1]).progress = Progress::Proven;
    assert_eq!(world.settle().len(), 5);
    world.prove_all();
    assert_eq!(world.ready(), ("True", "Complete"));
}

#[test]
fn fewer_than_are_wanted_are_all() {
    let mut world = world(&["n003"], json!({}));
    assert_eq!(world.settle(), ["n003"]);
    world.prove();
    assert_eq!(world.settle().len(), 5);
}

#[test]
fn without_a_canary_nothing_moves() {
    let mut world = world(&[], json!({}));
    assert!(world.settle().is_empty());
    assert_eq!(world.ready(), ("False", "NoCanaries"));
    world.at("n003").labels.insert("canary".to_owned(), "yes".to_owned());
    assert_eq!(world.settle(), ["n003"]);
    world.set(chosen(60, json!({"canaries": 0, "canarySelector": {"matchLabels": {"canary": "no"}}})));
    world.prove();
    assert_eq!(world.settle().len(), 5, "none are wanted");
}

#[test]
fn one_that_fails_stands_for_no_other() {
    let mut world = world(&["n003"], json!({"maxFailures": 2}));
    world.settle();
    world.at("n003").progress = Progress::Bad("no".to_owned());
    assert!(world.settle().is_empty());
    assert_eq!(world.ready(), ("False", "NoCanaries"));
}

#[test]
fn the_way_back_asks_for_no_canary() {
    let mut world = world(&["n003"], json!({}));
    world.prove_all();
    world.set(chosen(61, json!({})));
    world.settle();
    world.prove();
    assert_eq!(world.settle().len(), 5);
    world.set(chosen(60, json!({})));
    world.at("n003").labels.clear();
    world.prove_all();
    let old = world.update();
    assert_eq!(world.with(&old), 19, "all but the one that has left");
}
