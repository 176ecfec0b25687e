//! `spec.rollout.canarySelector`.

use serde_json::json;

use super::*;
use crate::fleet::assign::ASSIGNED;

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
fn until_when_a_proof_is_too_early_follows_from_the_nodes_label() {
    let now: jiff::Timestamp = NOW.parse().unwrap();
    let waits = |label: &str| {
        let node = node("n", OLD, json!({ASSIGNED: label}));
        node.lasting_at(now, Duration::from_secs(600), false).proof_waits.as_secs()
    };
    let at = |seconds: i64| format!("{}.w", now.as_second() + seconds);
    assert_eq!([at(0), at(-1), at(-600), at(-601)].map(|label| waits(&label)), [601, 600, 1, 0]);
    assert_eq!((waits(&at(86_400)), waits("soon.w"), waits(""), waits(&format!("{}.w", i64::MAX))), (0, 0, 0, 0));
    let labelled = node("n", OLD, json!({ASSIGNED: at(-5)}));
    assert_eq!(
        (labelled.given, labelled.lasting_at(now, Duration::ZERO, true).updating.as_secs()),
        (Some(Given::Wave), 5)
    );
    for given in [Given::Canary, Given::Wave, Given::Joined, Given::Back] {
        assert_eq!(node("n", OLD, json!({ASSIGNED: given.label(now)})).given, Some(given));
    }
    assert!(
        node("n", OLD, json!({})).lasting_at(now, Duration::from_secs(600), false).proof_waits.is_zero(),
        "no pool"
    );
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
