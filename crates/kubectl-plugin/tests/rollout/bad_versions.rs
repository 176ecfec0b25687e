//! What a rollout remembers: bad versions, what nodes had before, and what somebody took back by hand.

use std::process::ExitCode;
use std::time::Duration;

use kubectl_plugin::Failure;
use kubelet_config::assignment::LABELS;
use serde_json::{Value, json};

use testkit::rollout::{NAMESPACE, Outcome, TARGET, World, context, name};

const ALL: &[&str] = &[TARGET, "-l", "all=yes", "--canary", "2", "--max-unavailable", "4", "--quiet"];

fn with(more: &[&'static str]) -> Vec<&'static str> {
    ALL.iter().chain(more).copied().collect()
}

/// Any command of the plugin.
async fn command(world: &World, line: &str) -> Result<ExitCode, Failure> {
    let args: Vec<&str> = line.split_whitespace().map(|word| word.trim_matches('\'')).collect();
    kubectl_plugin::run(&context(world.connect()), &args).await
}

/// The commands within backquotes, without `kubectl kubelet-config`.
fn advised(said: &str) -> Vec<String> {
    let quoted = said.split('`').skip(1).step_by(2);
    quoted.map(|line| line.strip_prefix("kubectl kubelet-config ").expect("a command of ours").to_owned()).collect()
}

fn record(world: &World, rollout: &str) -> Value {
    let map = world.server.config_map(NAMESPACE, &format!("rollout-{rollout}"));
    serde_json::from_str(map["data"]["rollout"].as_str().unwrap()).unwrap()
}

/// By hand, with nothing but the name.
fn assign(world: &World, number: usize, map: &str) {
    let label = |label: &str| format!("{LABELS}{label}");
    let labels = json!({label("name"): map, label("namespace"): null, label("key"): null});
    world.server.patch_node(&name(number), json!({"metadata": {"labels": labels}}));
}

#[tokio::test(start_paused = true)]
async fn after_an_abort_it_begins_anew_once_the_node_has_proven_it() {
    let world = World::new(12);
    world.set_outcome(1, Outcome::Rejects);
    assert!(world.bad(ALL).await.contains("node-0001 called it bad"));
    world.good(&["abort", TARGET]).await;
    // Neither verb does it; what they advise is the same command.
    let said = world.bad(&["resume", TARGET, "--quiet"]).await;
    let anew = advised(&said).remove(0);
    assert_eq!(anew, "rollout pool-b -l 'all=yes' --name pool-b-2");
    assert!(world.bad(ALL).await.contains(&anew));
    let refused = command(&world, &anew).await.unwrap_err().message;
    assert!(refused.contains("node node-0001 called pool-b bad: in my words"), "{refused}");
    // It still has it, and is to try again.
    world.set_outcome(1, Outcome::Good);
    let advice = advised(&refused);
    assert_eq!(advice, ["retry node-0001"]);
    command(&world, &advice[0]).await.unwrap();
    tokio::time::sleep(Duration::from_secs(200)).await;
    command(&world, &anew).await.unwrap_or_else(|failure| panic!("{}", failure.message));
    assert_eq!(world.count(TARGET), 12);
    for rollout in [TARGET, "pool-b-2"] {
        assert_eq!(record(&world, rollout)["bad"], json!([]), "{rollout}");
    }
    assert_eq!(record(&world, TARGET)["lifted"][0]["how"], "it has proven it since");
    // What nodes had before the first one is what they get back.
    world.good(&["undo", "pool-b-2", "--quiet"]).await;
    assert_eq!((world.count(TARGET), world.count("pool-a")), (0, 12));
}

#[tokio::test(start_paused = true)]
async fn after_an_undo_the_node_is_given_it_by_hand_first() {
    let world = World::new(12);
    world.set_outcome(1, Outcome::Rejects);
    world.bad(ALL).await;
    world.good(&["undo", TARGET, "--quiet"]).await;
    let again = with(&["--name", "again"]);
    let refused = world.bad(&again).await;
    let advice = advised(&refused);
    assert_eq!(advice, ["assign pool-b node-0001", "retry node-0001"]);
    world.set_outcome(1, Outcome::Good);
    for line in &advice {
        command(&world, line).await.unwrap_or_else(|failure| panic!("{}", failure.message));
        tokio::time::sleep(Duration::from_secs(200)).await;
    }
    world.good(&again).await;
    assert_eq!(world.count(TARGET), 12);
    world.good(&["undo", "again", "--quiet"]).await;
    assert_eq!(world.count("pool-a"), 11, "the one that somebody gave it by hand keeps it");
}

#[tokio::test(start_paused = true)]
async fn a_node_at_fault_is_excluded() {
    let world = World::new(12);
    world.set_outcome(1, Outcome::Rejects);
    world.bad(ALL).await;
    let said = world.bad(&["resume", TARGET, "--quiet"]).await;
    assert!(said.contains("If the node alone was to blame, add --despite node-0001"), "{said}");
    assert_eq!(world.phase(TARGET).as_deref(), Some("Stopped"));
    let wrong = world.bad(&["resume", TARGET, "--despite", "node-0001,node-0005"]).await;
    assert!(wrong.contains("node node-0005 did not call pool-b bad"), "{wrong}");
    let same = world.bad(&with(&["--despite", "node-0001"])).await;
    assert_eq!(advised(&same), ["rollout resume pool-b --despite node-0001"]);
    command(&world, &advised(&same)[0]).await.unwrap_or_else(|failure| panic!("{}", failure.message));
    let record = record(&world, TARGET);
    assert_eq!((record["phase"].as_str(), record["despite"][0].as_str()), (Some("Done"), Some("node-0001")));
    assert!(record["why"].as_str().unwrap().contains("node-0001"), "{record:#}");
    let lifted = &record["lifted"][0];
    assert_eq!((lifted["node"].as_str(), lifted["why"].as_str()), (Some("node-0001"), Some("in my words")));
    assert!(lifted["how"].as_str().unwrap().starts_with("--despite, by "), "{lifted}");
    // In the place of a canary that proves nothing there was another one.
    let order: Vec<String> = world.sent().iter().take(3).map(|sent| sent.node.clone()).collect();
    assert_eq!(order, [name(0), name(1), name(2)]);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_gone_can_only_be_excluded() {
    let world = World::new(6);
    world.set_outcome(1, Outcome::Rejects);
    world.bad(ALL).await;
    world.good(&["undo", TARGET, "--quiet"]).await;
    world.delete(1);
    let said = world.bad(&with(&["--name", "again"])).await;
    assert!(said.contains("it is gone. If the node alone was to blame, add --despite node-0001"), "{said}");
    world.good(&with(&["--name", "again", "--despite", "node-0001"])).await;
    assert_eq!(world.count(TARGET), 5);
    assert_eq!(record(&world, TARGET)["bad"], json!([]));
}

#[tokio::test(start_paused = true)]
async fn what_a_node_of_another_rollout_calls_bad_stops_this_one() {
    let world = World::new(40);
    world.set_outcome(20, Outcome::RollsBack);
    let of = |pool: &'static str, name: &'static str| {
        [TARGET, "-l", pool, "--name", name, "--max-unavailable", "2", "--quiet"]
    };
    let (even, odd) = (of("pool=even", "even"), of("pool=odd", "odd"));
    let (even, odd) = tokio::join!(world.bad(&even), world.bad(&odd));
    assert!(even.contains("node node-0020 called it bad"), "{even}");
    assert!(odd.contains("node node-0020 of rollout even called it bad"), "{odd}");
    let sent = world.sent().len();
    assert!(world.bad(&["resume", "odd", "--quiet"]).await.contains("node-0020 called pool-b bad"));
    assert_eq!(world.sent().len(), sent);
    world.good(&["resume", "even", "--despite", "node-0020", "--quiet"]).await;
    world.good(&["resume", "odd", "--quiet"]).await;
    assert_eq!(world.count(TARGET), 40);
}

#[tokio::test(start_paused = true)]
async fn a_record_with_a_bad_version_is_not_written_over() {
    let world = World::new(6);
    world.set_outcome(1, Outcome::Rejects);
    world.bad(&with(&["--name", "weekly"])).await;
    world.good(&["undo", "weekly", "--quiet"]).await;
    let other = ["pool-a", "-l", "all=yes", "--name", "weekly", "--quiet"];
    let said = world.bad(&other).await;
    assert!(
        said.contains("remembers that node node-0001 called pool-b bad") && said.contains("--name weekly-2"),
        "{said}"
    );
    world.server.delete_config_map(NAMESPACE, TARGET);
    world.good(&other).await;
}

#[tokio::test(start_paused = true)]
async fn what_is_taken_back_by_hand_is_not_sent_again_by_the_next_client() {
    let world = World::new(20);
    let hand = async {
        while world.count(TARGET) < 6 {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        assign(&world, 0, "pool-a");
        tokio::time::sleep(Duration::from_secs(5)).await;
        world.die_at(1, false);
    };
    let (died, ()) = tokio::join!(world.client(ALL), hand);
    assert!(died.is_none());
    world.live_on();
    assert_eq!(record(&world, TARGET)["withdrawn"], json!(["node-0000"]));
    world.good(&["resume", TARGET, "--quiet"]).await;
    assert_eq!((world.count(TARGET), world.count("pool-a")), (19, 1));
    assert_eq!(world.sent().len(), 20, "no node twice");
    assert!(record(&world, TARGET)["why"].as_str().unwrap().contains("node-0000"));
}

#[tokio::test(start_paused = true)]
async fn undo_ends_well_if_all_that_should_be_back_is_back() {
    let world = World::new(12);
    world.good(ALL).await;
    world.server.put_config_map(NAMESPACE, "mine", &[("kubelet", "kind: KubeletConfiguration")]);
    assign(&world, 3, "mine");
    // Two ask for it at once: one drives, the other one waits for the end.
    let (one, two) = tokio::join!(world.client(&["undo", TARGET]), world.client(&["undo", TARGET]));
    for end in [one, two] {
        end.unwrap().unwrap_or_else(|failure| panic!("{}", failure.message));
    }
    assert_eq!((world.count("pool-a"), world.count("mine")), (11, 1));
    let why = record(&world, TARGET)["why"].to_string();
    assert!(why.contains("left alone, as somebody assigned them something else: node-0003"), "{why}");
    let before = world.sent().len();
    world.good(&["undo", TARGET]).await;
    assert_eq!(world.sent().len(), before, "there is nothing to do");
}

#[tokio::test(start_paused = true)]
async fn undo_fails_if_nodes_do_not_come_back() {
    let world = World::new(6);
    world.good(ALL).await;
    // Their machines are off, and nobody has noticed: they say what they said.
    for number in 0..6 {
        world.stop(number);
    }
    let said = world.bad(&["undo", TARGET, "--quiet"]).await;
    assert!(
        said.contains("is reverted, but for 6 nodes: did not come back within --timeout-per-node: node-0000"),
        "{said}"
    );
    assert_eq!(advised(&said), ["status", "rollout undo pool-b"]);
    // And now they are back, with new disks.
    for number in 0..6 {
        world.start(number);
    }
    world.good(&["undo", TARGET, "--quiet"]).await;
    assert_eq!(record(&world, TARGET)["behind"], 0);
}
