//! A comparison, observation by observation.

use serde_json::json;

use super::*;
use crate::fleet::node::NodeRow;

const NOW: &str = "2026-01-10T00:00:00Z";

/// Nodes, the first of which are canaries.
struct Story {
    nodes: BTreeMap<String, PoolNode>,
    comparison: CanaryComparison,
    asked: CompareStrategy,
}

fn node(name: &str, unready_at: Option<&str>) -> PoolNode {
    let ready =
        json!({"type": "Ready", "status": "True", "lastTransitionTime": unready_at.unwrap_or("2026-01-01T00:00:00Z")});
    let node = json!({"metadata": {"name": name}, "status": {"conditions": [ready]}});
    PoolNode::from_row(NodeRow::from_node(&node, "ns"))
}

fn minutes(after: i64) -> Timestamp {
    NOW.parse::<Timestamp>().unwrap() + SignedDuration::from_mins(after)
}

impl Story {
    fn new(canaries: usize, controls: usize) -> Story {
        let all: Vec<PoolNode> = (0..canaries + controls).map(|number| node(&format!("n{number:03}"), None)).collect();
        let refs: Vec<&PoolNode> = all.iter().collect();
        let asked = CompareStrategy::default();
        let (first, others) = refs.split_at(canaries);
        let comparison = CanaryComparison::new("r".to_owned(), &asked, first, others, minutes(0));
        let nodes = all.iter().map(|node| (node.name.clone(), node.clone())).collect();
        Story { nodes, comparison, asked }
    }

    fn observe(&mut self, at: i64, signal: Signal, on: &[usize]) {
        let seen = on.iter().map(|number| (format!("n{number:03}"), BTreeSet::from([signal]))).collect();
        self.update(at, Ok(seen));
    }

    fn update(&mut self, at: i64, seen: Result<BTreeMap<String, BTreeSet<Signal>>, String>) {
        let observed = PodObservation { started: self.comparison.started.clone(), at: minutes(at), seen };
        self.comparison.update(&self.asked, Some(&observed), &self.nodes, minutes(at));
    }

    fn signal(&self, wanted: Signal) -> &ComparedSignal {
        self.comparison.signals.iter().find(|signal| signal.type_ == wanted).unwrap()
    }
}

#[test]
fn trouble_of_canaries_alone_is_harm() {
    let mut story = Story::new(3, 50);
    assert_eq!((story.comparison.canaries, story.comparison.controls), (3, 30));
    story.observe(5, Signal::OomKills, &[0]);
    story.observe(6, Signal::OomKills, &[0, 1]);
    assert_eq!(story.signal(Signal::OomKills).sequence, "cc", "a Node counts once");
    assert!(story.comparison.is_open());
    story.observe(7, Signal::OomKills, &[2]);
    assert_eq!(story.comparison.outcome, ComparisonOutcome::HarmFound, "what is no more to be seen counts too");
    let message = &story.comparison.message;
    assert!(message.contains("OOMKills on 3 of 3 canaries and 0 of 30 unchanged Nodes"), "{message}");
    assert!(!message.contains("PodRestarts"), "{message}");
    let harmed: Vec<(String, String)> = story.comparison.harmed().collect();
    assert_eq!((harmed.len(), harmed[0].1.as_str()), (3, "OOMKills"));
    assert!(story.signal(Signal::OomKills).chance_percent <= 5);
}

#[test]
fn trouble_of_all_is_none_of_the_canaries() {
    let mut story = Story::new(5, 30);
    let all: Vec<usize> = (0..35).collect();
    story.observe(5, Signal::PodRestarts, &all);
    assert!(story.comparison.is_open());
    assert!(story.signal(Signal::PodRestarts).sequence.starts_with('o'), "others first: that claims the least");
    assert_eq!(story.signal(Signal::PodRestarts).smallest_harm_percent, None);
    story.observe(31, Signal::PodRestarts, &all);
    assert!(story.comparison.is_open(), "thirty minutes from when they had settled");
    story.observe(32, Signal::PodRestarts, &all);
    assert_eq!(story.comparison.outcome, ComparisonOutcome::NoHarmFound);
    assert_eq!(story.comparison.nodes.len(), MAX_KEPT_NODES);
    let message = &story.comparison.message;
    assert!(message.contains("PodRestarts 5 and 30") && message.contains("PodRestarts none"), "{message}");
}

#[test]
fn it_does_not_end_before_pods_were_seen_at_its_end() {
    let mut story = Story::new(5, 30);
    story.observe(20, Signal::PodRestarts, &[]);
    for at in [40, 50] {
        story.update(at, Err("no right".to_owned()));
        assert!(story.comparison.is_open());
    }
    let of_another = PodObservation { started: "then".to_owned(), at: minutes(60), seen: Ok(BTreeMap::new()) };
    story.comparison.update(&story.asked, Some(&of_another), &story.nodes, minutes(60));
    story.comparison.update(&story.asked, None, &story.nodes, minutes(60));
    assert!(story.comparison.is_open());
    story.observe(61, Signal::PodRestarts, &[]);
    assert_eq!(story.comparison.outcome, ComparisonOutcome::NoHarmFound);
}

#[test]
fn a_node_that_was_not_ready_counts_from_the_start_on() {
    let mut story = Story::new(3, 30);
    let during = minutes(3).to_string();
    for (name, at) in [("n000", NOW), ("n001", &during), ("n007", &during)] {
        story.nodes.insert(name.to_owned(), node(name, Some(at)));
    }
    story.observe(1, Signal::PodRestarts, &[0]);
    assert!(story.comparison.signals.iter().all(|signal| signal.sequence.is_empty()), "they settle");
    story.observe(4, Signal::PodRestarts, &[]);
    assert_eq!(story.signal(Signal::NotReady).sequence, "oc");
    story.nodes.clear();
    story.observe(5, Signal::PodRestarts, &[]);
    assert_eq!(story.signal(Signal::NotReady).sequence, "oc", "Nodes that are gone had none");
}

#[test]
fn so_few_are_not_waited_for() {
    for (canaries, controls) in [(0, 100), (1, 100), (2, 3), (50, 0)] {
        let story = Story::new(canaries, controls);
        assert_eq!(story.comparison.outcome, ComparisonOutcome::TooFewNodes, "{canaries}, {controls}");
        assert!(story.comparison.message.contains("spec.rollout.canaries") && story.comparison.nodes.is_empty());
        assert_eq!(story.comparison.next(), None);
    }
    assert!(Story::new(2, 30).comparison.is_open());
}

#[test]
fn it_is_bounded() {
    let story = Story::new(300, 300);
    assert_eq!((story.comparison.canaries, story.comparison.controls), (100, 100));
    let mut story = Story { asked: CompareStrategy { minutes: u32::MAX, max_error_percent: 0 }, ..story };
    let all: Vec<usize> = (0..600).collect();
    for signal in Signal::ALL {
        story.observe(9, signal, &all);
    }
    let size = serde_json::to_string(&story.comparison).unwrap().len();
    assert!(size < 32 << 10, "{size}");
}
