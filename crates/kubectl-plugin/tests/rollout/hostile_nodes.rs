//! Nodes that lie, and records that cannot be written: neither stops the others' way back.

use std::time::Duration;

use kubelet_config::status::{CONDITION, STATUS_ANNOTATION};
use serde_json::{Value, json};

use testkit::api_server::{Fault, FaultKind, Verb};
use testkit::rollout::{NAMESPACE, Outcome, TARGET, World, name};

const NODES: usize = 40;
const AT_ONCE: &[&str] = &[TARGET, "-l", "all=yes", "--canary", "0", "--max-unavailable", "100%", "--quiet"];
const UNDO: &[&str] = &["undo", TARGET, "--quiet"];
/// A record is written every few seconds.
const RECORD_MAX: usize = 128 * 1024;

fn record(world: &World) -> String {
    let map = world.server.config_map(NAMESPACE, &format!("rollout-{TARGET}"));
    map["data"]["rollout"].as_str().unwrap().to_owned()
}

fn unwritable(world: &World, code: u16) {
    world.server.faults().push(Fault::new(Verb::Put, "/configmaps/rollout-", FaultKind::Status(code)));
}

fn is_back(world: &World) -> bool {
    (world.count(TARGET), world.count("pool-a")) == (0, NODES)
}

/// The node calls the target bad, in 90 KB that would also steer a terminal.
fn lie(world: &World, number: usize) {
    let map = world.server.config_map(NAMESPACE, TARGET);
    let target = json!({"configMap": {"namespace": NAMESPACE, "name": TARGET, "kubeletConfigKey": "kubelet",
        "uid": map["metadata"]["uid"], "resourceVersion": map["metadata"]["resourceVersion"]}});
    let said = json!({"assigned": target, "error": "failed to validate config, see Kubelet log for details"});
    let message = "\u{1b}]0;lies\u{7}\"\\".repeat(6_000);
    let ours = json!({"type": CONDITION, "status": "False", "reason": "Rejected", "message": message});
    let ready = json!({"type": "Ready", "status": "True"});
    world.server.patch_node(
        &name(number),
        json!({"metadata": {"annotations": {STATUS_ANNOTATION: said.to_string()}}, "status": {"conditions": [ready, ours]}}),
    );
}

#[tokio::test(start_paused = true)]
async fn nodes_that_say_too_much_stop_nobody() {
    let world = World::new(NODES);
    let liars = async {
        while world.count(TARGET) < NODES {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        // The machines are somebody else's from now on.
        (0..NODES).for_each(|number| world.stop(number));
        (0..NODES).for_each(|number| lie(&world, number));
    };
    let (said, ()) = tokio::join!(world.bad(AT_ONCE), liars);
    assert!(said.contains("called it bad") && said.len() < 2_000, "{} bytes: {said:.300}", said.len());
    assert!(!said.chars().any(|c| c.is_control() && c != '\n'), "{said:?}");
    let record = record(&world);
    assert!(record.len() < RECORD_MAX, "{} bytes", record.len());
    let bad: Value = serde_json::from_str(&record).unwrap();
    assert!(bad["bad"].as_array().unwrap().len() > 30, "{} of them are remembered", bad["bad"]);
    world.bad(UNDO).await; // none says that it is back
    let back = world.sent().into_iter().filter(|sent| sent.to == "pool-a").count();
    assert_eq!(back, NODES);
}

#[tokio::test(start_paused = true)]
async fn a_record_that_cannot_be_written_does_not_stop_an_undo() {
    for code in [403, 413, 422] {
        let world = World::new(NODES);
        world.good(AT_ONCE).await;
        assert_eq!(world.count(TARGET), NODES);
        unwritable(&world, code);
        world.good(UNDO).await;
        assert!(is_back(&world), "{code}");
        assert_eq!(world.phase(TARGET).as_deref(), Some("Done"), "nothing was written");
        world.server.faults().clear();
        world.good(UNDO).await;
        assert_eq!(world.phase(TARGET).as_deref(), Some("Reverted"), "it is written down once it can be");
    }
}

#[tokio::test(start_paused = true)]
async fn nor_one_of_a_rollout_that_was_given_up() {
    let world = World::new(NODES);
    let (end, ()) =
        tokio::join!(world.client(&[TARGET, "-l", "all=yes", "--max-unavailable", "4", "--quiet"]), async {
            world.until(TARGET, "Running").await;
            tokio::time::sleep(Duration::from_secs(60)).await;
            world.good(&["abort", TARGET, "--quiet"]).await;
        });
    assert!(end.unwrap().is_err() && world.count(TARGET) > 0);
    unwritable(&world, 403);
    world.good(UNDO).await;
    assert!(is_back(&world));
}

#[tokio::test(start_paused = true)]
async fn nor_one_that_is_under_way_or_by_itself() {
    let world = World::new(NODES);
    world.good(AT_ONCE).await;
    let full = async {
        while world.count("pool-a") < 4 {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        unwritable(&world, 413);
    };
    tokio::join!(world.good(UNDO), full);
    assert!(is_back(&world));

    let world = World::new(NODES);
    world.set_outcome(0, Outcome::Rejects);
    let args = [TARGET, "-l", "all=yes", "--canary", "1", "--on-failure", "revert", "--quiet"];
    let (said, ()) = tokio::join!(world.bad(&args), async {
        world.until(TARGET, "Running").await;
        while world.count(TARGET) < 1 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        unwritable(&world, 422);
    });
    assert!(said.contains("reverted") && is_back(&world), "{said}");
}

#[tokio::test(start_paused = true)]
async fn but_nothing_is_sent_that_cannot_be_remembered_and_two_do_not_fight() {
    let world = World::new(NODES);
    world.set_outcome(0, Outcome::Rejects);
    world.bad(&[TARGET, "-l", "all=yes", "--quiet"]).await;
    let sent = world.count(TARGET);
    unwritable(&world, 403);
    let said = world.bad(&["resume", TARGET, "--despite", "node-0000", "--quiet"]).await;
    assert!(said.contains("you have no right to update the ConfigMap rollout-pool-b"), "{said}");
    assert_eq!(world.count(TARGET), sent);

    let world = World::new(NODES);
    world.good(&[TARGET, "-l", "all=yes", "--max-unavailable", "10", "--quiet"]).await;
    unwritable(&world, 403);
    let taken = async {
        while world.count("pool-a") < 1 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let mut record: Value = serde_json::from_str(&record(&world)).unwrap();
        record["holder"] = json!({"id": "another client", "beat": 1});
        let data = json!({"data": {"rollout": record.to_string()}});
        world.server.patch_config_map(NAMESPACE, &format!("rollout-{TARGET}"), data);
    };
    let (said, ()) = tokio::join!(world.bad(UNDO), taken);
    assert!(said.contains("driven by another client now"), "{said}");
}

#[tokio::test(start_paused = true)]
async fn records_are_kept_where_nodes_do_not_read() {
    let world = World::new(NODES);
    let kept = ["--records-namespace", "kubelet-config-rollout"];
    world.good(&[AT_ONCE, &kept].concat()).await;
    let records = |namespace: &str| {
        let names = |object: &Value| object["metadata"]["name"].as_str().unwrap().starts_with("rollout-");
        world.server.read(|s| s.list(|key, object| key.namespace == namespace && names(object)).count())
    };
    assert_eq!((world.count(TARGET), records(NAMESPACE), records("kubelet-config-rollout")), (NODES, 0, 2));
    world.good(&[UNDO, &kept].concat()).await;
    assert!(is_back(&world));
}

/// What the Pod Security Standard `restricted` asks of a Pod, and where this one runs.
#[test]
fn the_job_runs_restricted_and_on_the_control_plane() {
    let read = |file: &str| -> Value {
        let text =
            std::fs::read_to_string(testkit::built::file(&format!("packaging/manifests/rollout-job/{file}"))).unwrap();
        serde_yaml::from_str(&text).unwrap()
    };
    let (job, namespace, kustomization) = (read("job.yaml"), read("namespace.yaml"), read("kustomization.yaml"));
    let pod = &job["spec"]["template"]["spec"];
    assert_eq!(pod["nodeSelector"], json!({"node-role.kubernetes.io/control-plane": ""}));
    assert_eq!((&pod["securityContext"]["runAsNonRoot"], &pod["hostNetwork"]), (&json!(true), &Value::Null));
    assert_eq!(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
    let container = &pod["containers"][0]["securityContext"];
    assert_eq!(container["allowPrivilegeEscalation"], false);
    assert_eq!(container["capabilities"], json!({"drop": ["ALL"]}));
    assert_eq!(namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"], "restricted");
    assert_eq!(job["metadata"]["namespace"], namespace["metadata"]["name"]);
    let image = &kustomization["images"][0];
    assert!(image["digest"].as_str().unwrap().starts_with("sha256:") && image["newTag"].is_null(), "{image}");
    let args = pod["containers"][0]["args"].as_array().unwrap();
    assert!(args.contains(&json!("--records-namespace=kubelet-config-rollout")) && !args.contains(&json!("--drain")));
}
