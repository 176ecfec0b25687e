//! Nodes that are well with a bad revision go back one after the other.

use serde_json::json;

use super::*;

fn with(pods: u32) -> Value {
    let rollout = json!({"canaries": 0, "maxUnavailable": "100%", "maxFailures": 1});
    json!({"kubeletConfiguration": {"maxPods": pods}, "rollout": rollout})
}

/// All have a revision, and one of them called it bad; the revision before.
fn world(proven: bool) -> (World, ConfigMapRef) {
    let mut world = World::new(40, with(60));
    world.prove_all();
    let good = world.update();
    world.set(with(61));
    assert_eq!(world.settle().len(), 40);
    if proven {
        // Not all at once, or it would be what all have.
        world.nodes.values_mut().skip(1).for_each(|node| node.progress = Progress::Proven);
    }
    world.at("n000").progress = Progress::Bad("no".to_owned());
    (world, good)
}

impl World {
    /// As long as nothing but time passes; how many went at each moment.
    fn wait(&mut self) -> Vec<(i64, usize)> {
        let (begun, mut went) = (self.now, Vec::new());
        loop {
            let assigned = self.settle().len();
            went.push((self.now.duration_since(begun).as_secs(), assigned));
            self.nodes.values_mut().filter(|node| node.progress == Progress::Updating).for_each(|node| {
                node.progress = Progress::Proven;
            });
            match self.decide().next {
                Some(next) => self.now += next,
                None => return went,
            }
        }
    }
}

#[test]
fn they_are_spread_over_a_second_for_each_node_of_the_pool() {
    let (mut world, good) = world(true);
    let went = world.wait();
    assert_eq!(world.with(&good), 40);
    assert!(went.iter().all(|(at, nodes)| *at < 40 && *nodes <= 6), "{went:?}");
    assert!(went.len() > 15, "{went:?}");
    assert_eq!(world.ready(), ("False", "FailuresExceeded"));
}

#[test]
fn those_that_are_not_well_go_at_once() {
    let (mut world, good) = world(false);
    assert_eq!(world.settle().len(), 40);
    assert_eq!(world.with(&good), 40);
}

#[test]
fn whoever_takes_it_back_by_hand_meanwhile_changes_nothing() {
    let (mut world, good) = world(true);
    let first = world.settle().len();
    world.set(with(60));
    world.settle();
    assert!(world.with(&good) < 10, "{first}, and {}", world.with(&good));
    world.prove();
    world.settle();
    assert_eq!(world.ready(), ("False", "Waves"), "time alone is what they wait for");
    world.now += Duration::from_secs(40);
    world.settle();
    assert_eq!(world.with(&good), 40);
}

#[test]
fn what_mends_it_waits_for_nothing() {
    let (mut world, _) = world(true);
    world.settle();
    world.set(with(62));
    assert!(world.settle().len() > 30);
}
