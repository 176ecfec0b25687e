//! What an API server was told, in its order; and what a rollout promises, held against that.

use std::collections::BTreeMap;
use std::time::Duration;

use kubelet_config::assignment::LABELS;
use kubelet_config::status::STATUS_ANNOTATION;
use serde_json::Value;
use tokio::time::Instant;

/// A Node at a resourceVersion.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct NodeSnapshot {
    /// Names of ConfigMaps, or nothing.
    desired: String,
    assigned: String,
    active: String,
    proven: String,
    failed: bool,
    ready: bool,
}

impl NodeSnapshot {
    fn from_node(node: &Value) -> NodeSnapshot {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let native = &node["spec"]["configSource"]["configMap"]["name"];
        let desired = if native.is_string() { native } else { &node["metadata"]["labels"][format!("{LABELS}name")] };
        let said = node["metadata"]["annotations"][STATUS_ANNOTATION].as_str().unwrap_or("null");
        let said: Value = serde_json::from_str(said).unwrap_or_default();
        let map = |field: &str| text(&said[field]["configMap"]["name"]);
        let conditions = node["status"]["conditions"].as_array().into_iter().flatten();
        NodeSnapshot {
            desired: text(desired),
            assigned: map("assigned"),
            active: map("active"),
            proven: map("lastKnownGood"),
            failed: said["error"].is_string(),
            ready: conditions.into_iter().any(|it| it["type"] == "Ready" && it["status"] == "True"),
        }
    }

    /// It, or what expressions in it come to for this node.
    fn has(&self, target: &str) -> bool {
        self.desired.strip_prefix(target).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    }

    /// It has it, and is done with it.
    fn is_settled(&self, target: &str, by_active: bool) -> bool {
        let desired = &self.desired;
        let runs = self.has(target) && self.assigned == *desired && self.active == *desired && !self.failed;
        runs && (self.proven == *desired || (by_active && self.ready))
    }

    fn calls_bad(&self, target: &str) -> bool {
        self.has(target) && self.assigned == self.desired && self.failed
    }
}

#[derive(Clone, Debug)]
enum LogEntry {
    Node(String, Option<NodeSnapshot>),
    Expect(Expectation),
}

/// What a rollout was asked for.
#[derive(Clone, Debug, Default)]
pub struct Expectation {
    /// What is rolled out.
    pub target: String,
    /// Who is to prove it before all others.
    pub canaries: Vec<String>,
    pub max_unavailable: usize,
    /// `spec.rollout.proof: Active`.
    pub active: bool,
    /// So many, whichever they are, are to prove it before all others.
    pub any_canaries: usize,
}

struct Line {
    version: u64,
    at: Instant,
    entry: LogEntry,
}

/// Lines in the order of their versions.
#[derive(Default)]
pub struct Log {
    lines: Vec<Line>,
    version: u64,
    /// Each Node's latest snapshot.
    last: BTreeMap<String, NodeSnapshot>,
}

/// A node, while the log is read.
#[derive(Default)]
struct Seen {
    snapshot: NodeSnapshot,
    unready: Option<Instant>,
    bad: Option<Instant>,
}

impl Log {
    /// A change, of a Node; others are passed over.
    pub fn note(&mut self, object: &Value, deleted: bool) {
        let meta = &object["metadata"];
        let name = meta["name"].as_str().unwrap_or_default();
        if object["kind"] != "Node" {
            return;
        }
        let snapshot = (!deleted).then(|| NodeSnapshot::from_node(object));
        // What says the same as before is of no interest here, and most of what is written.
        if snapshot.is_some() && self.last.get(name) == snapshot.as_ref() {
            return;
        }
        match &snapshot {
            Some(snapshot) => drop(self.last.insert(name.to_owned(), snapshot.clone())),
            None => drop(self.last.remove(name)),
        }
        let entry = LogEntry::Node(name.to_owned(), snapshot);
        let version = meta["resourceVersion"].as_str().and_then(|it| it.parse().ok()).unwrap_or(self.version);
        self.version = self.version.max(version);
        self.lines.push(Line { version, at: Instant::now(), entry });
    }

    /// From here on this holds.
    pub fn expect(&mut self, expectation: Expectation) {
        self.lines.push(Line { version: self.version, at: Instant::now(), entry: LogEntry::Expect(expectation) });
    }

    /// From here on a pool rolls this revision out.
    pub fn expect_pool(&mut self, revision: &str, canaries: usize, max: usize) {
        self.expect(Expectation {
            target: revision.to_owned(),
            any_canaries: canaries,
            max_unavailable: max,
            ..Expectation::default()
        });
    }

    /// Nodes that have been assigned something, by what it was and how often.
    pub fn assigned(&self, target: &str) -> BTreeMap<String, usize> {
        let mut last: BTreeMap<&str, &str> = BTreeMap::new();
        let mut found: BTreeMap<String, usize> = BTreeMap::new();
        for line in &self.lines {
            let LogEntry::Node(name, Some(snapshot)) = &line.entry else { continue };
            let before = last.insert(name, &snapshot.desired);
            if snapshot.has(target) && before.is_some_and(|before| before != target) {
                *found.entry(name.clone()).or_default() += 1;
            }
        }
        found
    }

    /// Nodes that want it now.
    pub fn count(&self, map: &str) -> usize {
        self.last.values().filter(|snapshot| snapshot.has(map)).count()
    }

    /// Those of them that are not done with it.
    pub fn in_flight(&self, map: &str) -> usize {
        self.last.values().filter(|snapshot| snapshot.has(map) && !snapshot.is_settled(map, false)).count()
    }

    /// Every promise that was broken. `lag`: what happened so shortly before a write its sender may not have heard of.
    pub fn broken(&mut self, lag: Duration) -> Vec<String> {
        self.lines.sort_by_key(|line| line.version); // stable
        let mut nodes: BTreeMap<&str, Seen> = BTreeMap::new();
        let mut expected: Option<&Expectation> = None;
        let mut broken = Vec::new();
        for Line { version, at, entry } in &self.lines {
            match entry {
                LogEntry::Expect(expectation) => expected = Some(expectation),
                LogEntry::Node(name, None) => drop(nodes.remove(name.as_str())),
                LogEntry::Node(name, Some(snapshot)) => {
                    if let Some(expectation) = expected
                        && nodes.get(name.as_str()).is_some_and(|seen| !seen.snapshot.has(&expectation.target))
                        && snapshot.has(&expectation.target)
                    {
                        let problems = Sending { expectation, nodes: &nodes, node: name, at: *at, lag };
                        broken.extend(problems.all().map(|problem| format!("{name} at {version}: {problem}")));
                    }
                    let seen = nodes.entry(name).or_default();
                    seen.unready = if snapshot.ready { None } else { seen.unready.or(Some(*at)) };
                    let bad = expected.is_some_and(|expectation| snapshot.calls_bad(&expectation.target));
                    seen.bad = if bad { seen.bad.or(Some(*at)) } else { None };
                    seen.snapshot = snapshot.clone();
                }
            }
        }
        broken
    }
}

/// The target is written to this node.
struct Sending<'a> {
    expectation: &'a Expectation,
    nodes: &'a BTreeMap<&'a str, Seen>,
    node: &'a str,
    at: Instant,
    lag: Duration,
}

impl Sending<'_> {
    fn is_recent(&self, since: Instant) -> bool {
        self.at.saturating_duration_since(since) < self.lag
    }

    fn all(&self) -> impl Iterator<Item = String> {
        [self.too_many(), self.before_canaries(), self.called_bad()].into_iter().flatten()
    }

    /// In flight, which the client knows for it has sent them, or not Ready.
    fn too_many(&self) -> Option<String> {
        let Expectation { target, max_unavailable, active, .. } = self.expectation;
        let is_busy = |seen: &&Seen| {
            let unready = seen.unready.is_some_and(|since| !self.is_recent(since));
            unready || (seen.snapshot.has(target) && !seen.snapshot.is_settled(target, *active))
        };
        let busy = self.nodes.values().filter(is_busy).count();
        (busy >= *max_unavailable)
            .then(|| format!("{busy} are in flight or not Ready, of {max_unavailable} that may be"))
    }

    fn before_canaries(&self) -> Option<String> {
        let Expectation { target, canaries, active, any_canaries, .. } = self.expectation;
        let with = self.nodes.values().filter(|it| it.snapshot.has(target) && !it.snapshot.calls_bad(target));
        let settled = with.clone().filter(|it| it.snapshot.is_settled(target, *active)).count();
        if settled < *any_canaries && with.count() >= *any_canaries {
            return Some(format!("{settled} of {any_canaries} canaries are done"));
        }
        if canaries.iter().any(|canary| canary == self.node) {
            return None;
        }
        let proven = |canary: &str| self.nodes.get(canary).is_some_and(|it| it.snapshot.is_settled(target, *active));
        let open = canaries.iter().find(|canary| !proven(canary))?;
        Some(format!("before the canary {open}"))
    }

    fn called_bad(&self) -> Option<String> {
        let bad = self.nodes.iter().find(|(_, seen)| seen.bad.is_some_and(|since| !self.is_recent(since)))?.0;
        Some(format!("{bad} called it bad"))
    }
}
