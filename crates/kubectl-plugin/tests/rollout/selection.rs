//! Nodes are listed once and watched by the rollout's selector; those that lose its labels stay in sight.

use std::time::Duration;

use serde_json::{Value, json};

use testkit::api_server::{Fault, FaultKind, Request, Verb};
use testkit::rollout::{NAMESPACE, NODES, Outcome, TARGET, World, name};

/// Every second node has these labels.
const EVEN: &[&str] =
    &[TARGET, "-l", "pool=even", "--canary", "2", "--max-unavailable", "5", "--name", "even", "--quiet"];
const RESUME: &[&str] = &["resume", "even", "--quiet"];

/// Lists of Nodes: each first page's selector.
fn lists(world: &World) -> Vec<Option<&'static str>> {
    let is_list = |it: &Request| it.method == "GET" && it.path == "/api/v1/nodes" && !it.is_watch();
    let first = |it: &Request| is_list(it) && !it.query.contains("continue=");
    let selector = |it: Request| if it.query.contains("labelSelector=pool%3Deven&") { SELECTED } else { ALL };
    world.server.requests().into_iter().filter(first).map(selector).collect()
}

/// A list of all nodes, and one by the selector.
const ALL: Option<&str> = None;
const SELECTED: Option<&str> = Some("pool=even");

/// Reads of one Node.
fn gets(world: &World) -> usize {
    let one = |it: &Request| it.method == "GET" && it.path.starts_with("/api/v1/nodes/");
    world.server.requests().iter().filter(|it| one(it)).count()
}

fn lose_labels(world: &World, number: usize) {
    world.server.patch_node(&name(number), json!({"metadata": {"labels": {"pool": null}}}));
}

/// Lives until so many nodes were sent to.
async fn until_sent(world: &World, count: usize) {
    while world.sent().len() < count {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_undisturbed_one_lists_once_and_asks_once_a_node() {
    let world = World::new(2 * NODES);
    world.good(EVEN).await;
    assert_eq!(world.count(TARGET), NODES);
    assert_eq!((lists(&world), gets(&world)), (vec![SELECTED], 0));
    let requests = world.server.requests();
    let watches = requests.iter().filter(|it| it.is_watch() && it.path == "/api/v1/nodes");
    assert!(watches.clone().count() > 1, "for longer than a watch lasts");
    assert!(watches.into_iter().all(|it| it.query.contains("labelSelector=pool%3Deven")));
    let patches = |node: usize| {
        let path = format!("/api/v1/nodes/{}", name(node));
        requests.iter().filter(|it| it.method == "PATCH" && it.path == path).count()
    };
    assert!((0..NODES).all(|node| patches(2 * node) == 1));
    assert!((0..NODES).all(|node| patches(2 * node + 1) == 0));
    // Beats and waves come on top, and two watches every four minutes.
    let maps = requests.iter().filter(|it| it.path.contains("/configmaps")).count();
    let watches = requests.iter().filter(|it| it.is_watch()).count();
    assert!(requests.len() <= NODES + 1 + maps + watches, "{} requests", requests.len());
}

#[tokio::test(start_paused = true)]
async fn one_that_loses_its_labels_in_flight_counts_on() {
    let world = World::new(40);
    let disturbed = async {
        until_sent(&world, 3).await;
        let sent = world.sent();
        let node = &sent.last().unwrap().node;
        // On its way, and one that waits for its turn.
        for node in [node.as_str(), &name(38)] {
            world.server.patch_node(node, json!({"metadata": {"labels": {"pool": null}}}));
        }
        testkit::rollout::number(node)
    };
    world.set_outcome(38, Outcome::RollsBack);
    world.expect(&[], 5);
    let (said, in_flight) = tokio::join!(world.bad(EVEN), disturbed);
    assert!(said.contains(&format!("node {} called it bad", name(38))), "{said}");
    world.promises_held();
    assert_eq!((lists(&world), gets(&world)), (vec![SELECTED, ALL], 1), "followed without the selector from then on");
    assert!(world.sent().iter().any(|sent| sent.node == name(38)), "its own all the same");
    assert_ne!(in_flight, 38);
    world.good(&["undo", "even", "--quiet"]).await;
    assert_eq!(world.count(TARGET), 0, "and gets back what it had");
}

#[tokio::test(start_paused = true)]
async fn one_in_flight_outside_the_selection_takes_up_its_place() {
    let world = World::new(20);
    world.expect(&[], 1);
    let disturbed = async {
        until_sent(&world, 1).await;
        let node = world.sent()[0].node.clone();
        world.server.patch_node(&node, json!({"metadata": {"labels": {"pool": null}}}));
    };
    let one = [TARGET, "-l", "pool=even", "--canary", "0", "--max-unavailable", "1", "--quiet"];
    tokio::join!(world.good(&one), disturbed);
    world.promises_held();
    assert_eq!((world.count(TARGET), lists(&world).len()), (10, 2));
}

#[tokio::test(start_paused = true)]
async fn one_that_is_deleted_is_gone_and_nothing_more_is_listed() {
    let world = World::new(40);
    let disturbed = async {
        until_sent(&world, 3).await;
        world.delete(30);
    };
    tokio::join!(world.good(EVEN), disturbed);
    assert_eq!((world.count(TARGET), lists(&world), gets(&world)), (19, vec![SELECTED], 1));
}

#[tokio::test(start_paused = true)]
async fn another_node_of_the_same_name_is_sent_to() {
    let world = World::new(40);
    let labels = world.server.node(&name(0))["metadata"]["labels"].clone();
    let disturbed = async {
        until_sent(&world, 6).await;
        // One that has it, and one that waits for its turn: at once, or after a while.
        for (pause, number) in [(0, 0), (20, 30)] {
            world.delete(number);
            tokio::time::sleep(Duration::from_secs(pause)).await;
            world.create(number, &labels);
        }
    };
    tokio::join!(world.good(EVEN), disturbed);
    assert_eq!((world.count(TARGET), lists(&world)), (20, vec![SELECTED]));
    assert_eq!(world.sent().iter().filter(|sent| sent.node == name(0)).count(), 2, "it is new, and has nothing");
}

#[tokio::test(start_paused = true)]
async fn resume_reads_those_that_its_list_does_not_have() {
    // One of them gone: one list. One of them there: a second list, of all.
    for (without_labels, expected) in [(&[][..], vec![SELECTED]), (&[2, 34, 36][..], vec![SELECTED, ALL])] {
        let world = World::new(40);
        world.die_at(20, true);
        assert!(world.client(EVEN).await.is_none(), "killed");
        world.live_on();
        world.delete(30);
        for number in without_labels {
            lose_labels(&world, *number);
        }
        let before = (lists(&world).len(), gets(&world));
        world.good(RESUME).await;
        assert_eq!(lists(&world)[before.0..], expected);
        assert!(gets(&world) - before.1 <= 2, "{} reads", gets(&world) - before.1);
        assert_eq!(world.count(TARGET), 19);
    }
}

#[tokio::test(start_paused = true)]
async fn status_sees_those_outside_the_selection() {
    let world = World::new(8);
    world.set_outcome(2, Outcome::Rejects);
    world.bad(EVEN).await;
    lose_labels(&world, 2);
    world.delete(6);
    let (shown, _, code) = super::output::plugin(&world, &["status", "even", "-o", "json"]);
    assert_eq!(code, Some(0));
    let shown: Value = serde_json::from_str(&shown).unwrap();
    let open: Vec<_> = shown["open"].as_array().unwrap().iter().map(|it| (&it["node"], &it["state"])).collect();
    assert!(open.contains(&(&name(2).into(), &"bad".into())), "{open:?}");
    assert!(open.contains(&(&name(6).into(), &"gone".into())), "{open:?}");
}

#[tokio::test(start_paused = true)]
async fn lists_that_expire_between_their_pages_begin_anew() {
    let world = World::new(520); // three pages of 250
    let all = [TARGET, "-l", "all=yes", "--canary", "0", "--max-unavailable", "520", "--quiet"];
    let expired = |path: &str| Fault::once(Verb::List, path, FaultKind::GoneInStream);
    let page = "all%3Dyes&limit=250&continue=";
    world.server.faults().push(expired(page).times(3));
    world.good(&all).await;
    assert_eq!(world.server.faults().left(), 0);
    assert_eq!((world.count(TARGET), lists(&world).len()), (520, 4), "the plan has each node once");
    assert_eq!(world.sent().len(), 520);

    // The same in the list of a client that goes on, and in a list of records.
    let record = world.server.config_map(NAMESPACE, "rollout-pool-b");
    for number in 0..260 {
        let map = format!("rollout-x{number}");
        world.server.put_config_map(NAMESPACE, &map, &[("rollout", record["data"]["rollout"].as_str().unwrap())]);
        world.server.label_config_map(NAMESPACE, &map, "kubelet-supervisor.io/rollout", &format!("x{number}"));
    }
    world.server.faults().push(expired(page).times(2));
    world.server.faults().push(expired("rollout&limit=250&continue="));
    world.good(&["undo", TARGET, "--quiet"]).await;
    assert_eq!((world.server.faults().left(), world.count(TARGET)), (0, 0));

    // For ever: it says so, and can be resumed.
    world.server.faults().push(Fault::new(Verb::List, page, FaultKind::GoneInStream));
    let said = world.bad(&["status", TARGET]).await;
    assert!(said.contains("list nodes: the API server forgets each list (410) before its last page"), "{said}");
}
