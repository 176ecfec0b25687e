//! Nodes that leave a pool.

use serde_json::json;

use super::*;

fn resets(more: impl Into<Value>) -> World {
    let mut spec = json!({"onLeave": "Reset", "rollout": {"maxUnavailable": 2}});
    for (field, value) in more.into().as_object().unwrap() {
        spec[field] = value.clone();
    }
    let mut world = World::new(10, spec);
    world.prove_all();
    world.report();
    world
}

impl World {
    /// All say that they run what they are assigned.
    fn report(&mut self) {
        for node in self.nodes.values_mut() {
            node.reported = node.desired.iter().cloned().collect();
        }
    }

    fn leave(&mut self, names: &[&str]) {
        for name in names {
            self.at(name).labels.remove("pool");
        }
    }

    fn assigned_nothing(&self) -> Vec<&str> {
        self.nodes.values().filter(|node| node.desired.is_none()).map(|node| node.name.as_str()).collect()
    }
}

#[test]
fn they_are_reset_as_far_as_there_is_room() {
    let mut world = resets(json!({}));
    world.leave(&["n001", "n002", "n003", "n004"]);
    world.settle();
    assert_eq!(world.assigned_nothing(), ["n001", "n002"], "two, until they are done");
    world.set(json!({"onLeave": "Reset", "rollout": {"maxUnavailable": 2, "canaries": 0}, "kubeletConfiguration": {"maxPods": 61}}));
    assert!(world.settle().is_empty(), "they take the places of the pool's own");
    world.at("n001").reported.clear();
    assert_eq!(world.settle().len(), 1);
    world.prove();
    world.report();
    world.prove_all();
    world.report();
    world.settle();
    assert_eq!(world.assigned_nothing(), ["n001", "n002", "n003", "n004"], "whatever the pool had meanwhile");
    assert_eq!(world.ready(), ("True", "Complete"));
}

#[test]
fn by_default_they_keep_what_they_have() {
    let mut world = World::new(3, json!({}));
    world.prove_all();
    world.leave(&["n001"]);
    world.settle();
    assert!(world.assigned_nothing().is_empty());
}

#[test]
fn those_of_others_are_left_alone() {
    let mut world = resets(json!({}));
    world.pools.push(("pool-b".to_owned(), spec(json!({"nodeSelector": {"matchLabels": {"pool": "b"}}}))));
    world.leave(&["n001", "n002", "n003"]);
    world.at("n001").labels.insert("pool".to_owned(), "b".to_owned());
    let other = |name: &str| ConfigMapRef { name: name.to_owned(), ..world.update() };
    let (by_hand, of_b) = (other("pushed-bcdfghkmtt"), other("pool-b-bcdfghkmtt"));
    world.at("n002").desired = Some(by_hand);
    world.at("n003").desired = Some(of_b);
    world.settle();
    assert!(world.assigned_nothing().is_empty());
}

#[test]
fn what_stops_a_pool_stops_resets_too() {
    for more in [json!({"paused": true}), json!({"rollout": {"windows": [{"start": "01:00", "hours": 2}]}})] {
        let mut world = resets(json!({}));
        let mut spec = more.clone();
        spec["onLeave"] = "Reset".into();
        world.set(spec);
        world.leave(&["n001"]);
        world.settle();
        assert!(world.assigned_nothing().is_empty(), "{more}");
    }
}

#[test]
fn one_that_hangs_takes_no_place_and_one_that_is_held_waits() {
    let mut world = resets(json!({"rollout": {"maxUnavailable": 1}}));
    world.leave(&["n001", "n002", "n003"]);
    let hangs = world.at("n002");
    (hangs.progress, hangs.ready) = (Progress::Updating, false);
    world.at("n001").held = true;
    world.at("n005").ready = false;
    world.settle();
    assert_eq!(world.assigned_nothing(), ["n002"], "a node of the pool has the only place");
}

#[test]
fn control_planes_that_leave_go_one_at_a_time() {
    let mut world = resets(json!({"rollout": {"maxUnavailable": "100%"}}));
    for name in ["n001", "n002", "n003"] {
        world.at(name).labels.insert("node-role.kubernetes.io/control-plane".to_owned(), String::new());
    }
    world.leave(&["n001", "n002"]);
    world.settle();
    assert_eq!(world.assigned_nothing(), ["n001"]);
    world.at("n001").reported.clear();
    world.settle();
    assert_eq!(world.assigned_nothing(), ["n001", "n002"]);
}

#[test]
fn one_that_never_says_that_it_is_done_is_not_waited_for_for_ever() {
    let mut world = resets(json!({"rollout": {"maxUnavailable": 1}}));
    world.leave(&["n001", "n002"]);
    world.settle();
    assert_eq!((world.assigned_nothing(), world.decide().next), (vec!["n001"], Some(Duration::from_secs(3600))));
    world.at("n001").lasts.updating = Duration::from_secs(3600);
    world.settle();
    assert_eq!(world.assigned_nothing(), ["n001", "n002"]);
}

#[test]
fn results_of_expressions_are_the_pools_too() {
    let mut world = resets(json!({}));
    let name = format!("{}-2456789bcd", world.update().name);
    let rendering = ConfigMapRef { name, ..world.update() };
    world.at("n001").desired = Some(rendering);
    world.leave(&["n001"]);
    world.settle();
    assert_eq!(world.assigned_nothing(), ["n001"]);
}

#[test]
fn a_control_plane_that_left_another_pool_is_waited_for() {
    let mut world = resets(json!({"rollout": {"canaries": 0}}));
    let role = "node-role.kubernetes.io/control-plane";
    world.at("n001").labels.insert(role.to_owned(), String::new());
    let mut other = node("other", OLD, json!({"pool": "b", role: ""}));
    other.reported = vec![world.update()];
    world.nodes.insert("other".to_owned(), other);
    world.set(json!({"kubeletConfiguration": {"maxPods": 61}, "rollout": {"canaries": 0, "maxUnavailable": "100%"}}));
    assert!(!world.settle().contains(&"n001".to_owned()), "it was reset, and has not gone yet");
    world.at("other").reported.clear();
    assert_eq!(world.settle(), ["n001"]);
}
