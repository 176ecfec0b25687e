//! Pools whose values are computed for each Node.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;

use super::{NOW, Progress, World, node};
use crate::fleet::pool::node::PoolNode;

/// Machines of 2, 8 and 96 cores.
fn sized(mut node: PoolNode, number: usize) -> PoolNode {
    (node.kubelet, node.cpu) = ("v1.29.3".to_owned(), Some([2, 8, 96][number % 3]));
    node
}

impl World {
    fn sized(count: usize, expression: &str) -> World {
        let mut world = World::new(count, json!({"kubeletConfiguration": {"maxPods": expression}}));
        let nodes = std::mem::take(&mut world.nodes).into_values().enumerate();
        world.nodes = nodes.map(|(number, it)| (it.name.clone(), sized(it, number))).collect();
        world
    }

    fn maps(&self) -> BTreeMap<String, usize> {
        let mut maps = BTreeMap::new();
        for node in self.nodes.values() {
            *maps.entry(node.desired.as_ref().unwrap().name.clone()).or_default() += 1;
        }
        maps
    }
}

#[test]
fn machines_of_three_sizes_have_three_config_maps_of_one_revision() {
    let mut world = World::sized(30, "${node.cpu * 10 + 30}");
    world.prove_all();
    assert_eq!(world.ready(), ("True", "Complete"));
    let revision = world.status.current_revision.clone().unwrap();
    assert_eq!(world.status.update_revision.as_ref(), Some(&revision));
    let maps = world.maps();
    assert_eq!(maps.values().copied().collect::<Vec<_>>(), [10, 10, 10]);
    assert!(maps.keys().all(|name| name.starts_with(&format!("{revision}-"))), "{revision}: {maps:?}");
    assert_eq!((world.status.updated, world.status.proven), (30, 30));
    // Equal results share one, whatever the revision.
    world.set(json!({"kubeletConfiguration": {"maxPods": "${node.cpu < 96 ? 60 : 250}"}}));
    world.prove_all();
    assert_eq!(world.maps().into_values().collect::<BTreeSet<_>>(), BTreeSet::from([10, 20]));
}

#[test]
fn a_node_that_joins_meanwhile_gets_its_own_result_of_what_all_have() {
    let mut world = World::sized(12, "${node.cpu * 10 + 30}");
    world.prove_all();
    let maps = world.maps();
    let current = world.status.current_revision.clone().unwrap();
    world.set(json!({"kubeletConfiguration": {"maxPods": "${node.cpu * 10 + 31}"}}));
    world.settle();
    world.nodes.insert("young".to_owned(), sized(node("young", NOW, json!({})), 2));
    assert_eq!(world.settle(), ["young"]);
    assert_eq!(world.status.current_revision.as_ref(), Some(&current));
    let young = world.nodes["young"].desired.clone().unwrap().name;
    assert!(maps.contains_key(&young) && young.starts_with(&current), "{young}");
    // And back again, each to its own.
    let bad = world.update();
    for node in world.nodes.values_mut().filter(|node| node.progress == Progress::Updating && node.name != "young") {
        node.progress = Progress::Bad("no".to_owned());
    }
    world.prove_all();
    assert_eq!(world.status.bad_revisions[0].revision, bad.name);
    world.nodes.remove("young");
    assert_eq!(world.maps(), maps);
}

/// It is as if it were behind: the pool's other Nodes take their turns with it.
#[test]
fn a_node_that_becomes_another_machine_waits_for_its_turn() {
    let mut world = World::sized(30, "${node.labels['kubernetes.io/arch'] == 'arm64' ? 60 : node.cpu}");
    for node in world.nodes.values_mut() {
        node.labels.insert("kubernetes.io/arch".to_owned(), "amd64".to_owned());
    }
    world.prove_all();
    for node in world.nodes.values_mut() {
        node.labels.insert("kubernetes.io/arch".to_owned(), "arm64".to_owned());
    }
    // A tenth, and no canaries: the revision is the current one.
    assert_eq!(world.settle().len(), 3);
    world.prove_all();
    assert_eq!((world.ready(), world.maps().len()), (("True", "Complete"), 1));
}

#[test]
fn an_expression_that_fails_on_one_node_moves_none() {
    let mut world = World::sized(6, "${node.cpu * 10 + 30}");
    world.prove_all();
    let maps = world.maps();
    world.set(json!({"kubeletConfiguration": {"maxPods": "${node.cpu / (node.cpu - 8)}"}}));
    assert!(world.settle().is_empty());
    assert_eq!(world.ready(), ("False", "ExpressionFailed"));
    let message = &world.status.conditions[0].message;
    let expected = "Node n001: spec.kubeletConfiguration.maxPods: ${node.cpu / (node.cpu - 8)}: division by zero";
    assert_eq!(message, expected);
    // Who joins gets what the others have, be it that very machine.
    world.nodes.insert("young".to_owned(), sized(node("young", NOW, json!({})), 1));
    assert_eq!(world.settle(), ["young"]);
    world.nodes.remove("young");
    assert_eq!(world.maps(), maps);
}
