//! Drains in the small world: what is looked at, cordoned, emptied and opened when.

use serde_json::json;

use super::super::drain::{Cordon, Drain, NodeDrain};
use super::super::draining::DrainDecision;
use super::*;

const GOING: fn() -> Drain = || Drain::Going { left: 2, next: None, such: "Pod n/a: no".to_owned() };

fn with_drain(pods: u32, max: usize) -> Value {
    json!({"kubeletConfiguration": {"maxPods": pods},
        "rollout": {"canaries": 0, "maxUnavailable": max, "maxFailures": 1, "drain": "Careful"}})
}

impl World {
    fn set_drain(&mut self, name: &str, state: Drain, seconds: u64) {
        self.drains.insert(name.to_owned(), NodeDrain { state, lasts: Duration::from_secs(seconds) });
    }

    fn set_cordon(&mut self, name: &str, by: Option<&str>) {
        let node = self.at(name);
        (node.unschedulable, node.cordoned_by) = (true, by.map(|by| format!("pool/{by}")));
    }

    /// Carries out one decision about drains, as the controller does: what is followed anew is being listed, and so is what was
    /// cordoned.
    fn drain(&mut self) -> DrainDecision {
        let Decision { drain: decision, keeps_drains, .. } = self.decide();
        assert!(!keeps_drains, "the status is written");
        self.drains.retain(|name, it| decision.follow.contains_key(name) || matches!(it.state, Drain::GaveUp(_)));
        for (name, why) in &decision.give_up {
            self.set_drain(name, Drain::GaveUp(why.clone()), 0);
        }
        let fresh: Vec<_> = decision.follow.keys().filter(|name| !self.drains.contains_key(*name)).collect();
        for name in fresh.into_iter().chain(&decision.cordon) {
            self.set_drain(name, Drain::Listing, 0);
        }
        for name in &decision.cordon {
            self.set_cordon(name, Some("pool-a"));
        }
        for name in &decision.uncordon {
            (self.at(name).unschedulable, self.at(name).cordoned_by) = (false, None);
        }
        decision
    }

    fn cordoned(&self) -> Vec<&str> {
        let ours = self.nodes.values().filter(|node| node.cordon("pool-a") == Cordon::Ours);
        ours.map(|node| node.name.as_str()).collect()
    }

    /// All Pods are listed, and gone where they are evicted.
    fn pods_go(&mut self) {
        let decision = self.decide().drain;
        for (name, it) in &mut self.drains {
            match (&it.state, decision.follow.get(name)) {
                (Drain::Listing, _) => it.state = GOING(),
                (Drain::Going { .. }, Some(true)) => it.state = Drain::Empty,
                _ => {}
            }
        }
    }
}

/// A pool whose Nodes have all proven a revision, and are to be drained for the next one.
fn world(count: usize, max: usize) -> World {
    let mut world = World::new(count, json!({}));
    world.prove_all();
    world.set(with_drain(61, max));
    assert!(world.settle().is_empty(), "none is empty");
    world
}

#[test]
fn a_node_is_listed_and_cordoned_and_emptied_before_it_is_assigned_anything() {
    let mut world = world(1, 1);
    let follows = |evicts: bool| BTreeMap::from([("n000".to_owned(), evicts)]);
    assert_eq!(world.drain(), DrainDecision { follow: follows(false), ..DrainDecision::default() });
    assert!(world.drain().cordon.is_empty(), "its Pods are not known");
    world.pods_go();
    let decision = world.drain();
    assert_eq!((decision.follow, decision.cordon), (follows(false), vec!["n000".to_owned()]));
    assert_eq!(world.drain().follow, follows(false), "one may have come before the cordon");
    world.pods_go();
    assert_eq!(world.drain().follow, follows(true));
    assert!(world.settle().is_empty());
    assert_eq!(world.ready(), ("False", "Waves"));
    assert!(world.message().contains("being drained: n000 (2 Pods, such as Pod n/a: no)"), "{}", world.message());
    assert_eq!(world.status.unavailable, 1);
    world.pods_go();
    assert_eq!(world.settle(), ["n000"]);
    assert!(world.drain().uncordon.is_empty(), "it has not proven it");
    world.prove();
    world.settle();
    world.at("n000").ready = false;
    assert!(world.drain().uncordon.is_empty(), "it is not Ready");
    world.at("n000").ready = true;
    assert_eq!((world.drain().uncordon, world.cordoned().len()), (vec!["n000".to_owned()], 0));
    world.settle();
    assert_eq!(world.ready(), ("True", "Complete"));
}

#[test]
fn an_administrators_cordon_is_used_and_stays() {
    let mut world = world(1, 1);
    world.set_cordon("n000", None);
    world.drain();
    world.pods_go();
    let decision = world.drain();
    assert_eq!((decision.cordon.len(), decision.follow["n000"]), (0, true));
    world.pods_go();
    assert_eq!(world.settle(), ["n000"]);
    world.prove_all();
    assert!(world.drain().uncordon.is_empty());
    // Nor is one ended whose annotation names no pool.
    (world.at("n000").unschedulable, world.at("n000").cordoned_by) = (true, Some("pool-a".to_owned()));
    assert!(world.drain().uncordon.is_empty());
}

#[test]
fn drains_take_places_and_few_are_listed_at_once() {
    let mut world = world(40, 12);
    assert_eq!(world.drain().follow.len(), 8);
    world.pods_go();
    assert_eq!(world.drain().follow.len(), 12, "no more than may be unavailable");
    for _ in 0..4 {
        world.pods_go();
        world.drain();
        assert!(world.cordoned().len() <= 12);
    }
    let sent = world.settle();
    assert_eq!((sent.len(), world.drain().follow.len()), (12, 0), "what is on its way has their places");
    world.prove();
    assert!(world.settle().is_empty());
    assert_eq!(world.drain().uncordon.len(), 12);
}

#[test]
fn one_that_cannot_be_drained_is_left_and_the_next_one_goes() {
    let mut world = World::new(3, json!({}));
    world.prove_all();
    world.set(json!({"kubeletConfiguration": {"maxPods": 61}, "rollout": {"drain": "Careful"}}));
    world.settle();
    let canary = world.drain().follow.into_keys().next().unwrap();
    world.set_cordon(&canary, Some("pool-a"));
    world.set_drain(&canary, Drain::Refused("Pod n/a has no controller".to_owned()), 0);
    let decision = world.drain();
    assert_eq!(decision.uncordon, std::slice::from_ref(&canary));
    assert_eq!((decision.follow.len(), decision.follow[&canary]), (2, false), "its Pods are still followed");
    for _ in 0..20 {
        world.drain();
        world.pods_go();
        world.settle();
        world.prove();
    }
    world.settle();
    assert_eq!((world.ready(), world.with(&world.update())), (("False", "DrainBlocked"), 2));
    assert!(world.message().contains(&format!("{canary}: Pod n/a has no controller")), "{}", world.message());
    // When that Pod is gone it goes by itself.
    world.set_drain(&canary, GOING(), 0);
    assert_eq!(world.drain().cordon, [canary]);
}

#[test]
fn what_takes_too_long_is_given_up_for_now() {
    let mut world = world(2, 1);
    let name = world.drain().follow.into_keys().next().unwrap();
    world.set_cordon(&name, Some("pool-a"));
    world.set_drain(&name, GOING(), 3599);
    assert_eq!((world.drain().give_up.len(), world.decide().next), (0, Some(Duration::from_secs(1))));
    world.set_drain(&name, GOING(), 3600);
    let decision = world.drain();
    assert_eq!(decision.uncordon, std::slice::from_ref(&name));
    assert!(decision.give_up[&name].contains("after 3600 s (spec.rollout.nodeTimeoutSeconds)"), "{decision:?}");
    assert!(!world.drain().follow.contains_key(&name), "the other one has its turn");
}

#[test]
fn many_that_cannot_be_drained_are_enough() {
    let mut world = world(80, 1);
    for _ in 0..80 {
        for name in world.drain().follow.into_keys() {
            world.set_drain(&name, Drain::Refused("no".to_owned()), 0);
        }
    }
    assert_eq!(world.drain().follow.len(), 50);
}

#[test]
fn nodes_that_join_or_are_not_well_are_not_drained() {
    let mut world = world(3, 3);
    world.nodes.insert("young".to_owned(), node("young", NOW, json!({})));
    world.at("n000").progress = Progress::Bad("no".to_owned());
    world.at("n001").progress = Progress::Updating;
    let mut assigned = world.settle();
    assigned.sort();
    assert_eq!(assigned, ["n000", "n001", "young"]);
}

#[test]
fn the_way_back_of_what_is_well_is_drained_too() {
    let mut world = World::new(6, json!({"rollout": {"canaries": 0, "maxUnavailable": 3}}));
    world.prove_all();
    let good = world.update();
    world.set(json!({"kubeletConfiguration": {"maxPods": 61}, "rollout": {"canaries": 0, "maxUnavailable": 3}}));
    let sent = world.settle();
    world.set(with_drain(61, 3));
    world.prove();
    world.at(&sent[0]).progress = Progress::Bad("no".to_owned());
    assert_eq!(world.settle(), [sent[0].clone()], "it is not well");
    assert_eq!(world.ready(), ("False", "FailuresExceeded"));
    for _ in 0..20 {
        world.now += Duration::from_secs(1); // they do not all go back at once
        world.prove();
        world.drain();
        world.pods_go();
        world.settle();
        assert!(world.cordoned().len() <= 3);
    }
    assert_eq!((world.with(&good), world.cordoned().len()), (6, 0));
}

#[test]
fn no_cordon_stays_without_need() {
    let paused = || json!({"kubeletConfiguration": {"maxPods": 61}, "paused": true, "rollout": {"drain": "Careful"}});
    let window = json!({"kubeletConfiguration": {"maxPods": 61},
        "rollout": {"drain": "Careful", "windows": [{"start": "01:00", "hours": 1}]}});
    let never = json!({"kubeletConfiguration": {"maxPods": 61}, "rollout": {"canaries": 0}});
    let invalid = json!({"kubeletConfiguration": {"maxPods": 61}, "rollout": {"windows": [{"start": "01:00", "hours": 1, "timeZone": "No"}]}});
    for change in [json!({}), paused(), window, never, invalid] {
        let mut world = world(3, 1);
        world.set_cordon("n001", Some("pool-a"));
        world.drain();
        assert_eq!(world.cordoned(), ["n001"], "it goes on where a dead controller was");
        world.set(change.clone());
        let Decision { status, drain, keeps_drains, .. } = world.decide();
        if keeps_drains {
            assert_eq!(drain, DrainDecision::ending(vec!["n001".to_owned()]), "before the status says that it is over");
            world.status = status;
        }
        assert_eq!(world.drain().uncordon, ["n001"], "{change}");
    }
    // Another pool selects it too.
    let mut world = world(3, 1);
    world.set_cordon("n001", Some("pool-a"));
    world.pools.push(("pool-b".to_owned(), spec(json!({}))));
    assert_eq!(world.drain().uncordon, ["n001"]);
}

#[test]
fn what_was_emptied_waits_for_others_that_are_not_ready() {
    let mut world = world(6, 1);
    let name = world.drain().follow.into_keys().next().unwrap();
    world.set_cordon(&name, Some("pool-a"));
    world.set_drain(&name, Drain::Empty, 100);
    let other = world.nodes.keys().find(|other| **other != name).unwrap().clone();
    world.at(&other).ready = false;
    assert!(world.settle().is_empty(), "two would be unavailable");
    let decision = world.drain();
    assert_eq!((decision.follow.get(&name), decision.uncordon.len()), (Some(&false), 0));
    world.set_drain(&name, Drain::Empty, 3600);
    assert_eq!(world.drain().uncordon, [name], "not for ever");
}

#[test]
fn one_control_plane_is_drained_at_a_time() {
    let mut world = control_planes(json!({}));
    world.prove_all();
    world.set(with_drain(61, 3));
    world.settle();
    assert_eq!(world.drain().follow.len(), 1);
    let mut world = control_planes(json!({}));
    world.prove_all();
    world.set(with_drain(61, 3));
    world.settle();
    let mut other = node("other", OLD, json!({"pool": "b", "node-role.kubernetes.io/control-plane": ""}));
    (other.unschedulable, other.cordoned_by) = (true, Some("pool/b".to_owned()));
    world.nodes.insert("other".to_owned(), other);
    assert!(world.drain().follow.is_empty(), "another pool's is drained");
}

#[test]
fn one_that_leaves_is_not_reset_beside_one_that_is_drained() {
    let mut world = World::new(4, json!({"onLeave": "Reset", "rollout": {"maxUnavailable": 1}}));
    world.prove_all();
    world.at("n003").labels.remove("pool");
    let rollout = json!({"canaries": 0, "maxUnavailable": 1, "drain": "Careful"});
    world.set(json!({"onLeave": "Reset", "kubeletConfiguration": {"maxPods": 61}, "rollout": rollout}));
    let status = world.decide().status;
    world.status = status;
    let Decision { drain, reset, .. } = world.decide();
    assert_eq!((drain.follow.len(), reset), (1, Vec::<String>::new()));
}
