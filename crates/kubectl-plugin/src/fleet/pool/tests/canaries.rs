//! `spec.rollout.canarySelector`.

use serde_json::json;

use super::*;
use crate::fleet::assign::UNPROVEN_UNTIL;

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
fn a_proof_that_is_too_early_is_none_yet() {
    let mut world = World::new(20, json!({"rollout": {"canaries": 1, "maxUnavailable": 5}}));
    let canary = world.settle().remove(0);
    let early = Duration::from_secs(300);
    (world.at(&canary).progress, world.at(&canary).lasts.proof_waits) = (Progress::Proven, early);
    assert!(world.settle().is_empty(), "nobody proves it so soon");
    assert_eq!((world.status.proven, world.status.updating, world.ready().1), (0, 1, "Canaries"));
    assert_eq!(world.decide().next, Some(early));
    world.at(&canary).lasts.updating = Duration::from_secs(7200);
    assert!(world.settle().is_empty(), "it is not late: it has long said so");
    assert_eq!(world.ready().1, "Canaries");
    world.at(&canary).lasts.proof_waits = Duration::ZERO;
    assert_eq!(world.settle().len(), 5);
}

#[test]
fn until_when_a_proof_is_too_early_stands_on_the_node() {
    let now: jiff::Timestamp = NOW.parse().unwrap();
    let waits = |until: &str| node("n", OLD, json!({UNPROVEN_UNTIL: until})).proof_waits_at(now).as_secs();
    let after = |seconds: i64| (now.as_second() + seconds).to_string();
    assert_eq!([after(600), after(0), after(-600), after(86_400)].map(|until| waits(&until)), [600, 0, 0, 86_400]);
    assert_eq!((waits("soon"), waits(""), waits(&i64::MAX.to_string())), (0, 0, 0));
    assert!(node("n", OLD, json!({})).proof_waits_at(now).is_zero(), "no pool assigned it");
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
