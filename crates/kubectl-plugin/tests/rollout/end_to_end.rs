//! Whole rollouts, good and bad.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};

use testkit::api_server::{Fault, FaultKind, Request, State, Verb};
use testkit::rollout::{NAMESPACE, NODES, Outcome, TARGET, World, name, number};

const ALL: &[&str] = &[TARGET, "-l", "all=yes", "--canary", "3", "--max-unavailable", "5%", "--quiet"];

/// As they are where nobody asks for others.
const TEN_MINUTES: Duration = Duration::from_secs(600);

/// The first three of round the zones are the first three nodes.
fn world() -> World {
    expecting(World::new(NODES))
}

fn expecting(world: World) -> World {
    world.expect(&[0, 1, 2], 10);
    world
}

fn with(more: &[&'static str]) -> Vec<&'static str> {
    ALL.iter().chain(more).copied().collect()
}

#[tokio::test(start_paused = true)]
async fn a_good_one_reaches_all_nodes() {
    let world = expecting(World::with_trial(NODES, TEN_MINUTES));
    world.good(ALL).await;
    world.promises_held();
    assert_eq!(world.count(TARGET), NODES);
    assert_eq!(world.phase(TARGET).as_deref(), Some("Done"));
    let sent = world.sent();
    assert_eq!(sent.len(), NODES, "each node once");
    let zones: Vec<usize> = sent[..3].iter().map(|sent| number(&sent.node) % 3).collect();
    assert_eq!(zones, [0, 1, 2], "a canary in each zone");
    let (requests, bytes) = world.traffic();
    println!("{NODES} nodes: {requests} requests, {bytes} bytes");
    // Two for each wave and a beat every eight seconds come to each node's one.
    let hours = sent[0].at.elapsed().as_secs() / 8;
    assert!(requests < NODES as u64 + hours + 250, "{requests} requests, {hours} beats");
    // What is done is not done again.
    world.good(ALL).await;
    assert_eq!(world.sent().len(), NODES);
    // And it can be taken back.
    world.good(&["undo", TARGET, "--quiet"]).await;
    assert_eq!((world.count(TARGET), world.count("pool-a")), (0, NODES));
    assert_eq!(world.phase(TARGET).as_deref(), Some("Reverted"));
}

#[tokio::test(start_paused = true)]
async fn a_canary_that_rejects_it_stops_it() {
    let world = expecting(World::with_trial(NODES, TEN_MINUTES));
    world.set_outcome(1, Outcome::Rejects);
    let said = world.bad(ALL).await;
    assert!(said.contains("stopped: node node-0001 called it bad: in my words"), "{said}");
    world.promises_held();
    assert_eq!(world.count(TARGET), 3);
    // Nobody else gets that version: not by resume, not by another rollout, not after an undo.
    assert!(world.bad(&["resume", TARGET, "--quiet"]).await.contains("called pool-b bad"));
    let other = [TARGET, "-l", "all=yes", "--name", "other", "--quiet"];
    assert!(world.bad(&other).await.contains("called pool-b bad"));
    world.good(&["undo", TARGET, "--quiet"]).await;
    assert_eq!(world.count(TARGET), 0);
    assert!(world.bad(&other).await.contains("node node-0001 called pool-b bad"));
    assert_eq!(world.sent().iter().filter(|sent| sent.to == TARGET).count(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_third_wave_that_breaks_is_the_last_one() {
    for (outcome, why) in [(Outcome::RollsBack, "called it bad"), (Outcome::GoesNotReady, "is not Ready")] {
        let world = expecting(World::with_trial(NODES, TEN_MINUTES));
        world.set_outcome(3 + 25, outcome);
        let said = world.bad(ALL).await;
        assert!(said.contains("node-0028") && said.contains(why), "{said}");
        world.promises_held();
        assert_eq!(world.count(TARGET), 3 + 30, "canaries and three waves");
    }
}

#[tokio::test(start_paused = true)]
async fn on_failure_revert_gives_all_nodes_back_what_they_had() {
    let world = world();
    world.set_outcome(3 + 25, Outcome::RollsBack);
    let said = world.bad(&with(&["--on-failure", "revert"])).await;
    assert!(said.contains("is reverted: node node-0028 called it bad"), "{said}");
    world.promises_held();
    assert_eq!((world.count(TARGET), world.count("pool-a")), (0, NODES));
}

#[tokio::test(start_paused = true)]
async fn it_waits_for_active_alone_if_asked_to() {
    let world = world();
    world.expect_active();
    world.set_outcome(100, Outcome::RollsBack);
    let said = world.bad(&with(&["--wait-for", "active"])).await;
    assert!(said.contains("node-0100 called it bad"), "{said}");
    world.promises_held();
    assert!(world.count(TARGET) > 110, "by then others have it");
}

#[tokio::test(start_paused = true)]
async fn nodes_that_are_not_ready_count_and_are_left_out_in_the_end() {
    let world = world();
    for number in [40, 41, 42, 43] {
        world.unready(number, 500_000);
    }
    for number in 60..66 {
        world.unready(number, 300);
    }
    world.good(ALL).await;
    world.promises_held();
    assert_eq!(world.count(TARGET), NODES - 4);
    let why = world.server.read(|s| s.config_map(NAMESPACE, "rollout-pool-b").unwrap()["data"]["rollout"].to_string());
    assert!(why.contains("left out") && why.contains(&name(43)), "{why}");
}

#[tokio::test(start_paused = true)]
async fn it_pauses_after_the_canaries_and_on_request() {
    let world = world();
    let commands = with(&["--pause-after", "canary"]);
    let told = async {
        world.until(TARGET, "Paused").await;
        assert_eq!(world.count(TARGET), 3);
        tokio::time::sleep(Duration::from_secs(1000)).await;
        assert_eq!(world.count(TARGET), 3);
        // The client that drives it goes on; this one only says so.
        world.good(&["resume", TARGET, "--quiet"]).await;
        tokio::time::sleep(Duration::from_secs(200)).await;
        let before = world.sent().len();
        assert!(before > 10, "{before}");
        world.good(&["pause", TARGET]).await;
        let before = world.sent().len();
        tokio::time::sleep(Duration::from_secs(1000)).await;
        assert_eq!(world.sent().len(), before, "nothing is sent in a pause");
        world.good(&["resume", TARGET, "--quiet"]).await;
    };
    tokio::join!(world.good(&commands), told);
    world.promises_held();
    assert_eq!(world.count(TARGET), NODES);
}

#[tokio::test(start_paused = true)]
async fn abort_leaves_all_as_it_is() {
    let world = world();
    let told = async {
        tokio::time::sleep(Duration::from_secs(300)).await;
        world.good(&["abort", TARGET]).await;
        world.sent().len()
    };
    let (said, before) = tokio::join!(world.bad(ALL), told);
    assert!(said.contains("is aborted"), "{said}");
    assert_eq!((world.sent().len(), world.count(TARGET)), (before, before));
}

#[tokio::test(start_paused = true)]
async fn two_may_run_on_different_nodes_only() {
    let world = World::new(40);
    let even = ["pool-b", "-l", "pool=even", "--name", "even", "--max-unavailable", "5", "--quiet"];
    let odd = ["pool-b", "-l", "pool=odd", "--name", "odd", "--max-unavailable", "5", "--quiet"];
    let both = ["pool-b", "-l", "all=yes", "--name", "both", "--quiet"];
    let refused = async {
        world.until("even", "Running").await;
        let said = world.bad(&both).await;
        assert!(said.contains("are in rollout even, which is running"), "{said}");
        assert_eq!(world.phase("both"), None, "nothing is left of it");
        // The same rollout by a second client while the first one lives.
        let before = world.sent().len();
        world.good(&even).await;
        assert!(world.sent().len() >= before);
    };
    tokio::join!(world.good(&even), world.good(&odd), refused);
    assert_eq!((world.count(TARGET), world.sent().len()), (40, 40));
}

#[tokio::test(start_paused = true)]
async fn of_two_that_begin_at_once_one_at_the_most_goes_on() {
    let world = World::new(40);
    let one = ["pool-b", "-l", "all=yes", "--name", "one", "--max-unavailable", "5", "--quiet"];
    let two = ["pool-b", "-l", "pool=odd", "--name", "two", "--max-unavailable", "5", "--quiet"];
    let (first, second) = tokio::join!(world.client(&one), world.client(&two));
    let went_on = [first, second].into_iter().filter(|it| it.as_ref().is_some_and(Result::is_ok)).count();
    assert!(went_on <= 1);
    let mut nodes: Vec<String> = world.sent().into_iter().map(|sent| sent.node).collect();
    nodes.sort();
    nodes.dedup();
    assert_eq!(nodes.len(), world.sent().len(), "no node twice");
}

/// What the manifests grant, as `VERB RESOURCE NAMESPACE`.
fn granted() -> BTreeSet<String> {
    let files = ["rollout-job/rbac.yaml", "rollout-job/payload/rbac.yaml", "rollout-job-drain/rbac.yaml"];
    let read = |file| std::fs::read_to_string(testkit::built::file(&format!("packaging/manifests/{file}"))).unwrap();
    let texts: Vec<String> = files.map(read).to_vec();
    let documents = texts.iter().flat_map(|text| text.split("\n---\n"));
    let documents: Vec<Value> = documents.map(|text| serde_yaml::from_str(text).unwrap()).collect();
    let words = |list: &Value| -> Vec<String> {
        list.as_array().unwrap().iter().map(|word| word.as_str().unwrap().to_owned()).collect()
    };
    let mut granted = BTreeSet::new();
    for binding in documents.iter().filter(|it| it["kind"].as_str().unwrap().ends_with("Binding")) {
        assert_eq!(binding["subjects"].as_array().unwrap().len(), 1, "{binding}");
        assert_eq!(binding["subjects"][0]["namespace"], "kubelet-config-rollout");
        let is_role = |it: &&Value| {
            it["kind"] == binding["roleRef"]["kind"] && it["metadata"]["name"] == binding["roleRef"]["name"]
        };
        let role = documents.iter().find(is_role).unwrap();
        for rule in role["rules"].as_array().unwrap() {
            for (verb, resource) in words(&rule["verbs"])
                .iter()
                .flat_map(|verb| words(&rule["resources"]).into_iter().map(move |it| (verb, it)))
            {
                granted.insert(format!(
                    "{verb} {resource} {}",
                    binding["metadata"]["namespace"].as_str().unwrap_or_default()
                ));
            }
        }
    }
    granted
}

#[tokio::test(start_paused = true)]
async fn the_job_may_do_what_it_does_and_nothing_else() {
    let world = World::new(6);
    let kept = ["--records-namespace", "kubelet-config-rollout", "--quiet"];
    let begin = [&[TARGET, "-l", "all=yes", "--max-unavailable", "6"], kept.as_slice()].concat();
    world.good(&begin).await;
    world.good(&[&["undo", TARGET], kept.as_slice()].concat()).await;
    // Somebody takes hold of a Node between a look and a write, which has to look again.
    world.server.faults().push(Fault::once(Verb::Patch, "/api/v1/nodes/node-0003?", FaultKind::Status(409)));
    let why = world.bad(&begin).await;
    assert!(why.contains("was reverted; to begin it anew"), "a Job's next Pod ends there: {why}");
    let owner = json!([{"kind": "ReplicaSet", "controller": true}]);
    world.server.put_pod(&name(2), "apps", "web", json!({"metadata": {"ownerReferences": owner}}));
    let kubelet = async {
        let ends = |s: &State| s.list(|_, object| object["metadata"]["deletionTimestamp"].is_string()).next().is_some();
        while !world.server.read(ends) {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        world.server.delete_pod("apps", "web");
    };
    let drained = [&[TARGET, "-l", "all", "--max-unavailable", "6", "--drain"], kept.as_slice()].concat();
    tokio::join!(world.good(&drained), kubelet);
    let right = |request: &Request| {
        let last = request.path.split('/').next_back().unwrap();
        let is_one = !["nodes", "configmaps", "pods"].contains(&last);
        let verb = match request.method.as_str() {
            "GET" if request.is_watch() => "watch",
            "GET" if is_one => "get",
            "GET" => "list",
            "POST" => "create",
            "PUT" => "update",
            "PATCH" => "patch",
            _ => "delete",
        };
        let resource = ["/eviction", "/pods", "/nodes", "/configmaps"].into_iter().find(|it| request.path.contains(it));
        let resource = resource.unwrap().replace("/eviction", "pods/eviction");
        let resource = resource.trim_start_matches('/');
        let namespace = request.path.split('/').skip_while(|part| *part != "namespaces").nth(1).unwrap_or_default();
        let namespace = if resource == "configmaps" { namespace } else { "" };
        format!("{verb} {resource} {namespace}")
    };
    let requests = world.server.requests();
    // What there is, everybody who is known may ask.
    let used: BTreeSet<String> = requests.iter().filter(|request| request.path != "/api/v1").map(right).collect();
    assert_eq!(used, granted());
}
