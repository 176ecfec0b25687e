//! The judge of all other tests here: each broken promise is found, and nothing else.

use std::time::Duration;

use kubelet_config::assignment::LABELS;
use serde_json::{Value, json};

use testkit::fleet::log::{Expectation, Log};

const LAG: Duration = Duration::from_secs(1);

struct Story {
    log: Log,
    version: u64,
}

impl Story {
    /// Four nodes, the first of which is the canary.
    fn new() -> Story {
        let mut story = Story { log: Log::default(), version: 0 };
        (0..4).for_each(|node| story.node(node, "old", ["old", "old"], false, true));
        let canaries = vec!["n0".to_owned()];
        story.log.expect(Expectation {
            target: "new".to_owned(),
            canaries,
            max_unavailable: 2,
            active: false,
            ..Expectation::default()
        });
        story
    }

    fn note(&mut self, mut object: Value) {
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        self.log.note(&object, false);
    }

    fn node(&mut self, number: usize, wanted: &str, [active, proven]: [&str; 2], failed: bool, ready: bool) {
        let map = |name: &str| json!({"configMap": {"name": name}});
        let assigned = if failed || active == "new" { "new" } else { "old" };
        let mut said = json!({"assigned": map(assigned), "active": map(active), "lastKnownGood": map(proven)});
        if failed {
            said["error"] = "failed".into();
        }
        self.note(json!({"kind": "Node", "metadata": {"name": format!("n{number}"), "labels": {format!("{LABELS}name"): wanted},
                "annotations": {"kubelet-supervisor.io/config-status": said.to_string()}},
            "status": {"conditions": [{"type": "Ready", "status": if ready { "True" } else { "Unknown" }}]}}));
    }

    fn send(&mut self, number: usize) {
        self.node(number, "new", ["old", "old"], false, true);
    }

    fn prove(&mut self, number: usize) {
        self.node(number, "new", ["new", "new"], false, true);
    }

    fn broken(mut self) -> String {
        self.log.broken(LAG).join("; ")
    }
}

#[tokio::test(start_paused = true)]
async fn a_good_story_breaks_none() {
    let mut story = Story::new();
    story.send(0);
    story.prove(0);
    for node in [1, 2] {
        story.send(node);
    }
    story.prove(2);
    story.send(3);
    assert_eq!(story.broken(), "");
}

#[tokio::test(start_paused = true)]
async fn too_many_at_once() {
    let mut story = Story::new();
    story.send(0);
    story.prove(0);
    for node in [1, 2, 3] {
        story.send(node);
    }
    assert!(story.broken().contains("n3 at 9: 2 are in flight or not Ready, of 2"));
    let mut story = Story::new();
    story.send(0);
    story.prove(0);
    story.node(3, "old", ["old", "old"], false, false);
    tokio::time::sleep(LAG).await;
    story.send(1);
    story.send(2);
    assert!(story.broken().contains("n2 at 9: 2 are in flight or not Ready, of 2"));
}

#[tokio::test(start_paused = true)]
async fn before_the_canary() {
    let mut story = Story::new();
    story.send(0);
    story.node(0, "new", ["new", "old"], false, true); // on trial
    story.send(1);
    assert_eq!(story.broken(), "n1 at 7: before the canary n0");
}

#[tokio::test(start_paused = true)]
async fn what_a_node_called_bad() {
    for (wait, found) in [(0, ""), (2, "n1 called it bad")] {
        let mut story = Story::new();
        story.send(0);
        story.prove(0);
        story.send(1);
        story.node(1, "new", ["old", "old"], true, true);
        tokio::time::sleep(Duration::from_secs(wait)).await;
        story.send(2);
        let broken = story.broken();
        assert!(broken.contains(found) && broken.is_empty() == found.is_empty(), "{broken}");
    }
}
