//! Pools with values that are computed from what each node reports.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{POOL, condition, spec, with_controller};
use testkit::pools::{NAMESPACE, World, name};

const CPUS: [&str; 3] = ["2", "8", "96"];
const MEMORY: [&str; 3] = ["8Gi", "32Gi", "384Gi"];

/// What a kubelet says of its machine when it registers.
fn report(world: &World, number: usize, size: usize) {
    let capacity = json!({"cpu": CPUS[size], "memory": MEMORY[size], "pods": "110"});
    let status = json!({"capacity": capacity, "nodeInfo": {"kubeletVersion": "v1.29.3"}});
    world.server.patch_node(&name(number), json!({"status": status}));
}

/// Nodes of 2, 8 and 96 CPU.
fn sized(count: usize) -> World {
    let world = World::new(count);
    (0..count).for_each(|number| report(&world, number, number % 3));
    world
}

fn with(configuration: &Value) -> Value {
    spec(60, &json!({"kubeletConfiguration": configuration}))
}

fn gke() -> Value {
    let reserved = json!({"cpu": "${gke.cpuReserved(node.cpu)}", "memory": "${gke.memoryReserved(node.memory)}"});
    json!({"kubeReserved": reserved})
}

/// What each ConfigMap says that a node is assigned, and how many are.
fn assigned(world: &World, numbers: impl Iterator<Item = usize>) -> BTreeMap<(String, String), usize> {
    let mut maps = BTreeMap::new();
    for number in numbers {
        let labels = world.server.node(&name(number))["metadata"]["labels"].clone();
        let map = labels["kubelet-config.node-restriction.kubernetes.io/name"].as_str().unwrap().to_owned();
        let stored = world.server.config_map(NAMESPACE, &map);
        assert_eq!(stored["immutable"], true);
        let text: Value = serde_json::from_str(stored["data"]["kubelet"].as_str().unwrap()).unwrap();
        let reserved = format!("{} {}", text["kubeReserved"]["cpu"], text["kubeReserved"]["memory"]).replace('"', "");
        *maps.entry((map, reserved)).or_default() += 1;
    }
    maps
}

#[tokio::test(start_paused = true)]
async fn each_machine_size_gets_its_own_config_map_of_one_revision() {
    let world = sized(30);
    let script = async {
        world.server.put_pool(POOL, &with(&gke()));
        let pool = world.until_pool(POOL, |pool| condition(pool, "Ready") == ("True", "Complete")).await;
        let revision = pool["status"]["currentRevision"].as_str().unwrap().to_owned();
        assert_eq!(pool["status"]["proven"], 30);
        let maps = assigned(&world, 0..30);
        let values: Vec<(&str, usize)> =
            maps.iter().map(|((_, reserved), count)| (reserved.as_str(), *count)).collect();
        assert_eq!(values.len(), 3);
        for expected in [("70m 1843Mi", 10), ("90m 3645Mi", 10), ("310m 14786Mi", 10)] {
            assert!(values.contains(&expected), "{expected:?}: {values:?}");
        }
        assert!(maps.keys().all(|(map, _)| map.starts_with(&format!("{revision}-"))), "{revision}: {maps:?}");
        let template = world.server.config_map(NAMESPACE, &revision);
        assert_eq!((&template["immutable"], template["data"].get("kubelet")), (&json!(true), None));
    };
    with_controller(&world, script).await;
}

/// The update is held up by canaries that somebody is to look at; who joins gets what the others have, made for it from what
/// is stored, by a controller that has never seen that spec.
#[tokio::test(start_paused = true)]
async fn a_node_of_another_size_joins_while_an_update_is_on_its_way() {
    let world = World::new(8);
    (0..8).for_each(|number| report(&world, number, 0));
    let current = async {
        world.server.put_pool(POOL, &with(&gke()));
        let pool = world.until_pool(POOL, |pool| condition(pool, "Ready").0 == "True").await;
        pool["status"]["currentRevision"].as_str().unwrap().to_owned()
    };
    let current = with_controller(&world, current).await;
    assert_eq!(assigned(&world, 0..8).len(), 1);
    let script = async {
        let mut next = with(&json!({"kubeReserved": {"cpu": "${eks.cpuReserved(node.cpu)}", "memory": "1Gi"}}));
        next["rollout"]["pauseAfterCanaries"] = json!(true);
        world.server.put_pool(POOL, &next);
        world.until_pool(POOL, |pool| condition(pool, "Ready").1 == "AwaitingApproval").await;
        world.create(8, &json!({"all": "yes"}));
        report(&world, 8, 2);
        let is_assigned = |pool: &Value| {
            let labels = &world.server.node(&name(8))["metadata"]["labels"];
            pool["status"]["nodes"] == 9 && labels.get("kubelet-config.node-restriction.kubernetes.io/name").is_some()
        };
        world.until_pool(POOL, is_assigned).await;
        let maps = assigned(&world, 8..9);
        let ((map, reserved), _) = maps.iter().next().unwrap();
        assert_eq!(reserved, "310m 14786Mi");
        assert!(map.starts_with(&format!("{current}-")), "{current}: {map}");
    };
    with_controller(&world, script).await;
}

/// A node that joins without the label that all others have stops neither them nor the way back from a bad revision.
#[tokio::test(start_paused = true)]
async fn one_node_without_a_value_stops_itself_alone() {
    let world = sized(9);
    let size = |number: usize, size: &str| {
        world.server.patch_node(&name(number), json!({"metadata": {"labels": {"size": size}}}));
    };
    (0..9).for_each(|number| size(number, "60"));
    let pods = |more: u32| with(&json!({"maxPods": format!("${{int(node.labels['size']) + {more}}}")}));
    let script = async {
        world.server.put_pool(POOL, &pods(0));
        let pool = world.until_pool(POOL, |pool| condition(pool, "Ready").0 == "True").await;
        let good = pool["status"]["currentRevision"].as_str().unwrap().to_owned();
        world.create(9, &json!({"all": "yes"}));
        report(&world, 9, 0);
        // A scale-up does not unsettle the pool, and what the spec says next is held up before it goes anywhere.
        let pool = world.until_pool(POOL, |pool| pool["status"]["nodes"] == 10).await;
        assert_eq!(condition(&pool, "Ready").0, "True");
        world.server.put_pool(POOL, &pods(1));
        world.until_pool(POOL, |pool| condition(pool, "Stalled") == ("True", "ExpressionFailed")).await;
        size(9, "60");
        world.until_pool(POOL, |pool| condition(pool, "Ready").1 == "Canaries").await;
        // It loses its label while canaries run, which have to come back from what they have.
        let canary = (0..9).find(|number| !assigned_to(&world, *number).starts_with(&good)).unwrap();
        world.server.patch_node(&name(9), json!({"metadata": {"labels": {"size": null}}}));
        world.unready(canary, 600);
        world.until_pool(POOL, |pool| condition(pool, "Ready").1 == "NodesSilent").await;
        world.server.put_pool(POOL, &pods(0));
        world.until_pool(POOL, |_| (0..9).all(|number| assigned_to(&world, number).starts_with(&good))).await;
    };
    with_controller(&world, script).await;
}

/// A label changes what an expression comes to: what no node has proven yet goes to one, and to the others after it.
#[tokio::test(start_paused = true)]
async fn what_a_label_makes_new_is_tried_by_one_node() {
    let world = sized(9);
    let label = |value: &str| {
        for number in 0..9 {
            world.server.patch_node(&name(number), json!({"metadata": {"labels": {"tier": value}}}));
        }
    };
    label("a");
    let script = async {
        let mut pool = with(&json!({"maxPods": "${node.labels['tier'] == 'a' ? 60 : 61}"}));
        pool["rollout"] = json!({"maxUnavailable": "100%"});
        world.server.put_pool(POOL, &pool);
        let pool = world.until_pool(POOL, |pool| condition(pool, "Ready").0 == "True").await;
        let maps = |world: &World| (0..9).map(|number| assigned_to(world, number)).collect::<Vec<_>>();
        let before = maps(&world);
        label("b");
        let mut most_unproven = 0;
        loop {
            let new: Vec<usize> = (0..9).filter(|number| maps(&world)[*number] != before[*number]).collect();
            let proven = |number: &&usize| {
                let node = world.server.node(&name(**number));
                let status = node["metadata"]["annotations"]["kubelet-supervisor.io/config-status"].as_str().unwrap();
                let status: Value = serde_json::from_str(status).unwrap();
                status["lastKnownGood"]["configMap"]["name"] == assigned_to(&world, **number)
            };
            if !new.iter().any(|number| proven(&number)) {
                most_unproven = most_unproven.max(new.len());
            }
            if new.len() == 9 {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        }
        assert_eq!(most_unproven, 1, "{pool:#}");
    };
    with_controller(&world, script).await;
}

fn assigned_to(world: &World, number: usize) -> String {
    let node = world.server.node(&name(number));
    let map = &node["metadata"]["labels"]["kubelet-config.node-restriction.kubernetes.io/name"];
    map.as_str().unwrap_or_default().to_owned()
}
