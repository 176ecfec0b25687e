//! What is counted of the events of the watches.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::Value;

/// All is calm after so long without a change: one turn of the kubelet's status of the node, or of a probe.
const QUIET: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug)]
pub enum Resource {
    Node,
    Pod,
    Endpoints,
    EndpointSlice,
    Event,
}

/// For how long something was not ready.
#[derive(Default)]
struct Readiness {
    since: Option<Instant>,
    /// The longest time without a break.
    longest: Duration,
    /// All together.
    lasted: Duration,
}

impl Readiness {
    /// True if that is new.
    fn note(&mut self, is_ready: bool, at: Instant) -> bool {
        match (is_ready, self.since) {
            (true, Some(since)) => {
                self.since = None;
                self.lasted += at - since;
                self.longest = self.longest.max(at - since);
            }
            (false, None) => self.since = Some(at),
            _ => return false,
        }
        true
    }
}

#[derive(Default)]
struct Pod {
    readiness: Readiness,
    restarts: u64,
    restarts_before: u64,
}

/// What pods and their clients noticed.
#[derive(Clone, Debug, Default)]
pub struct Noticed {
    pub node_not_ready: Duration,
    pub pods_lost_readiness: usize,
    pub longest_not_ready: Duration,
    pub endpoints_writes: u32,
    pub slice_writes: u32,
    pub restarts: u64,
    pub probe_kills: u32,
    /// Names of streams that ended before their time.
    pub cut: Vec<&'static str>,
}

pub struct Tally {
    node: Readiness,
    /// When the kubelet last said how its node is, in its own words.
    heartbeat: String,
    heartbeat_before: String,
    pods: BTreeMap<String, Pod>,
    /// Written since the begin.
    endpoints: u32,
    slices: u32,
    probe_kills: u32,
    last_change: Instant,
}

impl Tally {
    pub fn new() -> Self {
        Self {
            node: Readiness::default(),
            heartbeat: String::new(),
            heartbeat_before: String::new(),
            pods: BTreeMap::new(),
            endpoints: 0,
            slices: 0,
            probe_kills: 0,
            last_change: Instant::now(),
        }
    }

    /// Counts from now on. All that is watched is ready.
    pub fn begin(&mut self) {
        self.node = Readiness::default();
        for pod in self.pods.values_mut() {
            *pod = Pod { restarts: pod.restarts, restarts_before: pod.restarts, ..Pod::default() };
        }
        (self.endpoints, self.slices, self.probe_kills) = (0, 0, 0);
    }

    /// What the kubelet said of its node so far does not count for the next one.
    pub fn expect_heartbeat(&mut self) {
        self.heartbeat_before.clone_from(&self.heartbeat);
    }

    /// The kubelet that runs now has said that its node is Ready, all pods are, and nothing has happened for a while.
    pub fn is_calm(&self, pods: usize) -> bool {
        let is_ready = self.heartbeat != self.heartbeat_before && self.node.since.is_none() && self.are_ready(pods);
        is_ready && self.last_change.elapsed() > QUIET
    }

    pub fn has_node(&self) -> bool {
        !self.heartbeat.is_empty()
    }

    /// There are so many pods, and all are ready.
    pub fn are_ready(&self, pods: usize) -> bool {
        self.pods.len() == pods && self.pods.values().all(|pod| pod.readiness.since.is_none())
    }

    pub fn noticed(&self) -> Noticed {
        let pods = || self.pods.values();
        Noticed {
            node_not_ready: self.node.lasted,
            pods_lost_readiness: pods().filter(|pod| !pod.readiness.lasted.is_zero()).count(),
            longest_not_ready: pods().map(|pod| pod.readiness.longest).max().unwrap_or_default(),
            endpoints_writes: self.endpoints,
            slice_writes: self.slices,
            restarts: pods().map(|pod| pod.restarts.saturating_sub(pod.restarts_before)).sum(),
            probe_kills: self.probe_kills,
            cut: Vec::new(),
        }
    }

    /// An event of a watch.
    pub fn note(&mut self, resource: Resource, at: Instant, event: &Value) {
        let (kind, object) = (event["type"].as_str().unwrap_or_default(), &event["object"]);
        let is_change = match resource {
            Resource::Node => self.note_node(object, at),
            Resource::Pod => self.note_pod(object, at),
            // The first state of each comes as ADDED.
            Resource::Endpoints => count(&mut self.endpoints, kind == "MODIFIED"),
            Resource::EndpointSlice => count(&mut self.slices, kind == "MODIFIED"),
            Resource::Event => count(&mut self.probe_kills, is_probe_kill(object)),
        };
        if is_change {
            self.last_change = at;
        }
    }

    fn note_node(&mut self, node: &Value, at: Instant) -> bool {
        let Some(condition) = ready_condition(node) else { return false };
        // The first heartbeat of the next kubelet counts as a change: what pods notice comes after it.
        let was_silent = self.heartbeat == self.heartbeat_before;
        condition["lastHeartbeatTime"].as_str().unwrap_or_default().clone_into(&mut self.heartbeat);
        let speaks = was_silent && self.heartbeat != self.heartbeat_before;
        self.node.note(condition["status"] == "True", at) || speaks
    }

    fn note_pod(&mut self, pod: &Value, at: Instant) -> bool {
        let name = pod.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
        let known = self.pods.entry(name.to_owned()).or_default();
        let is_ready = ready_condition(pod).is_some_and(|condition| condition["status"] == "True");
        known.readiness.note(is_ready, at);
        let containers = pod.pointer("/status/containerStatuses").and_then(Value::as_array);
        if let Some(containers) = containers {
            known.restarts = containers.iter().filter_map(|container| container["restartCount"].as_u64()).sum();
        }
        true
    }
}

fn count(number: &mut u32, is_one: bool) -> bool {
    *number += u32::from(is_one);
    is_one
}

fn ready_condition(object: &Value) -> Option<&Value> {
    object.pointer("/status/conditions")?.as_array()?.iter().find(|condition| condition["type"] == "Ready")
}

/// The kubelet's words for it: pkg/kubelet/kuberuntime/kuberuntime_manager.go, `computePodActions`, v1.20.2.
fn is_probe_kill(event: &Value) -> bool {
    let message = event["message"].as_str().unwrap_or_default();
    event["reason"] == "Killing"
        && (message.contains("failed liveness probe") || message.contains("failed startup probe"))
}
