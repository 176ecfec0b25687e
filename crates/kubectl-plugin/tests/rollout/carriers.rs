//! What is written into Nodes, on servers that keep `spec.configSource` and on those that do not.

use std::collections::BTreeMap;

use kubelet_config::assignment::LABELS;
use serde_json::{Value, json};

use super::kills::Random;
use testkit::api_server::Request;
use testkit::rollout::{NAMESPACE, TARGET, World, content, name};

const COUNT: usize = 12;
const ALL: &[&str] = &[TARGET, "-l", "all=yes", "--canary", "1", "--max-unavailable", "4", "--quiet"];

/// A server that keeps the field, and nodes that were assigned "pool-a" by a source, by labels in different ways, and
/// by a source that shadows labels.
fn native() -> World {
    let world = World::new(COUNT);
    world.server.drop_dynamic_config(false);
    let source = json!({"configMap": {"namespace": NAMESPACE, "name": "pool-a", "kubeletConfigKey": "kubelet"}});
    let label = |name: &str| format!("{LABELS}{name}");
    for number in 0..COUNT {
        let patch = match number % 4 {
            0 => json!({"metadata": {"labels": {label("name"): null}}, "spec": {"configSource": source}}),
            1 => json!({}),
            2 => json!({"metadata": {"labels": {label("namespace"): NAMESPACE, label("key"): "kubelet"}}}),
            _ => json!({"metadata": {"labels": {label("name"): "shadowed"}}, "spec": {"configSource": source}}),
        };
        world.server.patch_node(&name(number), patch);
    }
    world
}

/// The source's name, and the labels of an assignment.
fn written(world: &World, number: usize) -> (Option<String>, BTreeMap<String, Value>) {
    let node = world.server.node(&name(number));
    let source = node["spec"]["configSource"]["configMap"]["name"].as_str().map(str::to_owned);
    let labels = node["metadata"]["labels"].as_object().unwrap().clone();
    (source, labels.into_iter().filter(|(name, _)| name.starts_with(LABELS)).collect())
}

fn all(world: &World) -> Vec<(Option<String>, BTreeMap<String, Value>)> {
    (0..COUNT).map(|number| written(world, number)).collect()
}

#[tokio::test(start_paused = true)]
async fn the_source_is_written_where_it_is_kept_and_nothing_shadows_another() {
    let world = native();
    world.expect(&[0], 4);
    let before = all(&world);
    world.good(ALL).await;
    world.promises_held();
    assert!(all(&world).iter().all(|it| *it == (Some(TARGET.to_owned()), BTreeMap::new())), "{:#?}", all(&world));
    assert!(world.sent().len() <= COUNT + 1, "one a node, and one more to find out: {:#?}", world.sent());
    let sent = world.sent().len();
    world.good(&["undo", TARGET, "--quiet"]).await;
    assert_eq!(all(&world), before, "label by label");
    assert_eq!(world.sent().len() - sent, COUNT);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_drops_the_source_costs_no_request_to_find_out() {
    let world = World::new(COUNT);
    let before = all(&world);
    world.good(ALL).await;
    let label = |name: &str, value: &str| (format!("{LABELS}{name}"), Value::from(value));
    let labels = BTreeMap::from([label("name", TARGET), label("namespace", NAMESPACE)]);
    assert!(all(&world).iter().all(|it| *it == (None, labels.clone())), "{:#?}", all(&world));
    world.good(&["undo", TARGET, "--quiet"]).await;
    assert_eq!(all(&world), before);
    let patches = world.server.requests().iter().filter(|it| it.method == "PATCH").count();
    assert_eq!(patches, 2 * COUNT);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_dies_leaves_no_contradiction() {
    let mut random = Random(11);
    for _ in 0..12 {
        let world = native();
        world.expect(&[0], 4);
        let before = all(&world);
        // Where it sends its canary and the first wave.
        world.die_at(8 + random.below(24), random.below(2) == 0);
        assert!(world.client(ALL).await.is_none());
        for (number, now) in all(&world).iter().enumerate() {
            let by_label = now.1.get(&format!("{LABELS}name")).and_then(Value::as_str);
            let agree = by_label.is_none() || now.0.as_deref().is_none_or(|source| Some(source) == by_label);
            assert!(agree || *now == before[number], "{now:#?}");
        }
        world.live_on();
        world.good(ALL).await;
        world.promises_held();
        assert_eq!(world.count(TARGET), COUNT);
        world.good(&["undo", TARGET, "--quiet"]).await;
        assert_eq!(all(&world), before);
    }
}

#[tokio::test(start_paused = true)]
async fn a_long_name_is_refused_before_anything_is_written_unless_the_source_is_kept() {
    let long = "x".repeat(70);
    let args = [&long, "-l", "all=yes", "--name", "long", "--max-unavailable", "12", "--quiet"];
    for keeps in [false, true] {
        let world = if keeps { native() } else { World::new(COUNT) };
        world.server.put_config_map(NAMESPACE, &long, &[("kubelet", &content(&long))]);
        if keeps {
            world.good(&args).await;
            assert_eq!(world.count(&long), COUNT);
        } else {
            let said = world.bad(&args).await;
            assert!(said.contains("70 characters") && said.contains("give the ConfigMap a shorter name"), "{said}");
            assert_eq!(world.phase("long"), None);
        }
        let requests = world.server.requests();
        assert_eq!(requests.iter().filter(|it| it.query.contains("dryRun")).count(), 1);
        let writes = |it: &Request| it.method != "GET" && !it.query.contains("dryRun");
        assert_eq!(requests.iter().any(writes), keeps);
    }
}
