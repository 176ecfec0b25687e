//! Pools in a small world: Nodes that take what they are assigned, and what a rollout promises held against it.

mod canaries;
mod class_order;
mod classes;
mod drain;
mod expressions;
mod jitter;
mod joined;
mod leave;
mod outages;
mod promises;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::{Value, json};

use super::decide::{Cluster, Decision, Pool, decide};
use super::drain::NodeDrain;
use super::node::{Given, PoolNode, Progress};
use super::renderings::NodeAssignment;
use super::renderings::StoredRevision;
use super::revision::{Revision, RevisionFault, revision_name};
use super::types::{KubeletConfigPoolSpec, KubeletConfigPoolStatus, PoolCondition, Proof};
use kubelet_config::source::ConfigMapRef;

const NOW: &str = "2026-01-10T00:00:00Z";
const OLD: &str = "2026-01-01T00:00:00Z";

struct World {
    nodes: BTreeMap<String, PoolNode>,
    pools: Vec<(String, KubeletConfigPoolSpec)>,
    /// What the pool's spec was before.
    specs: Vec<KubeletConfigPoolSpec>,
    status: KubeletConfigPoolStatus,
    approved: Option<String>,
    static_pods: BTreeMap<String, String>,
    now: jiff::Timestamp,
    drains: BTreeMap<String, NodeDrain>,
}

fn spec(more: impl Into<Value>) -> KubeletConfigPoolSpec {
    let mut spec = json!({"nodeSelector": {"matchLabels": {"pool": "a"}}, "kubeletConfiguration": {"maxPods": 60}});
    for (field, value) in more.into().as_object().unwrap() {
        spec[field] = value.clone();
    }
    serde_json::from_value(spec).unwrap()
}

fn node(name: &str, created: &str, labels: impl Into<Value>) -> PoolNode {
    let mut all = json!({"pool": "a"});
    for (label, value) in labels.into().as_object().unwrap() {
        all[label] = value.clone();
    }
    let ready = json!({"type": "Ready", "status": "True"});
    // A kubelet that keeps its status itself: it is asked for no preflight.
    let node = json!({"metadata": {"name": name, "uid": format!("uid-{name}"), "labels": all, "creationTimestamp": created},
        "status": {"conditions": [ready], "config": {}}});
    PoolNode::from_node(&node, "ns")
}

impl World {
    fn new(count: usize, more: impl Into<Value>) -> World {
        let zone = |number: usize| json!({"topology.kubernetes.io/zone": format!("zone-{}", number % 3)});
        let nodes = (0..count).map(|number| node(&format!("n{number:03}"), OLD, zone(number)));
        World {
            nodes: nodes.map(|node| (node.name.clone(), node)).collect(),
            pools: vec![("pool-a".to_owned(), spec(more))],
            specs: Vec::new(),
            status: KubeletConfigPoolStatus::default(),
            approved: None,
            static_pods: BTreeMap::new(),
            now: NOW.parse().unwrap(),
            drains: BTreeMap::new(),
        }
    }

    fn update(&self) -> ConfigMapRef {
        Revision::of_spec("pool-a", &self.pools[0].1, "ns").unwrap().reference().clone()
    }

    fn set(&mut self, more: impl Into<Value>) {
        self.specs.push(std::mem::replace(&mut self.pools[0].1, spec(more)));
    }

    /// The revision of a spec that is or was the pool's, by its name.
    fn stored(&self, name: &str) -> StoredRevision {
        let revisions = self.specs.iter().chain([&self.pools[0].1]);
        let mut revisions = revisions.map(|spec| Revision::of_spec("pool-a", spec, "ns").unwrap());
        revisions.find(|revision| revision_name(revision.reference()) == name).unwrap().into()
    }

    fn cluster(&self) -> Cluster<'_> {
        let Self { nodes, pools, static_pods, drains, now, .. } = self;
        Cluster { nodes, pools, static_pods, drains, now: *now }
    }

    fn decide(&self) -> Decision {
        let stored = self.stored(&revision_name(&self.update()));
        let (update, fault) = stored.target(self.nodes.values());
        let current = self.status.current_revision.as_deref().map(|name| self.stored(name));
        let current = current.as_ref().map(|current| current.target(self.nodes.values()).0);
        let pool = Pool {
            name: "pool-a",
            generation: 1,
            spec: &self.pools[0].1,
            status: &self.status,
            approved: self.approved.as_deref(),
            update: fault.as_ref().map(|()| &update),
            current: current.as_ref(),
            namespace: "ns",
        };
        decide(&pool, &self.cluster())
    }

    /// Carries out one decision; the Nodes that were assigned something.
    fn step(&mut self) -> Vec<String> {
        let Decision { status, assign, reset, untaint, .. } = self.decide();
        self.status = status;
        for node in &reset {
            self.at(node).desired = None;
        }
        for node in &untaint {
            self.nodes.get_mut(node).unwrap().taints.clear();
        }
        for NodeAssignment { node, to, given } in &assign {
            let node = self.nodes.get_mut(node).unwrap();
            (node.given, node.assigned_at) = (Some(*given), Some(self.now));
            (node.desired, node.progress, node.lasts.updating) = (Some(to.clone()), Progress::Updating, Duration::ZERO);
        }
        assign.into_iter().map(|it| it.node).collect()
    }

    /// Until nothing more is assigned.
    fn settle(&mut self) -> Vec<String> {
        let mut all = Vec::new();
        loop {
            let before = self.status.clone();
            let assigned = self.step();
            if assigned.is_empty() && before == self.status {
                return all;
            }
            all.extend(assigned);
        }
    }

    /// All that are on their way prove what they have.
    fn prove(&mut self) {
        for node in self.nodes.values_mut().filter(|node| node.progress == Progress::Updating && node.desired.is_some())
        {
            node.progress = Progress::Proven;
        }
    }

    fn prove_all(&mut self) {
        for _ in 0..2 * self.nodes.len() {
            self.settle();
            self.prove();
        }
        self.settle();
    }

    fn at(&mut self, name: &str) -> &mut PoolNode {
        self.nodes.get_mut(name).unwrap()
    }

    /// It is not Ready for so long, and was given what it has before.
    fn dies(&mut self, name: &str, seconds: u64) {
        self.now += Duration::from_secs(seconds);
        let node = self.at(name);
        (node.ready, node.lasts.unready, node.lasts.updating) =
            (false, Duration::from_secs(seconds), Duration::from_secs(seconds));
    }

    fn joins(&mut self, name: &str) {
        self.nodes.insert(name.to_owned(), node(name, NOW, json!({})));
    }

    fn with(&self, revision: &ConfigMapRef) -> usize {
        self.nodes.values().filter(|node| node.desired.as_ref() == Some(revision)).count()
    }

    fn condition(&self, type_: &str) -> &PoolCondition {
        self.status.conditions.iter().find(|condition| condition.type_ == type_).unwrap()
    }

    fn ready(&self) -> (&str, &str) {
        let ready = self.condition("Ready");
        (&ready.status, &ready.reason)
    }

    fn message(&self) -> &str {
        &self.condition("Ready").message
    }
}

#[test]
fn canaries_are_of_different_zones_and_prove_it_before_others_get_it() {
    let mut world = World::new(30, json!({"rollout": {"canaries": 3, "maxUnavailable": 4}}));
    let canaries = world.settle();
    assert_eq!(canaries.len(), 3);
    let zones: BTreeSet<&str> =
        canaries.iter().map(|name| world.nodes[name].zone("topology.kubernetes.io/zone")).collect();
    assert_eq!(zones.len(), 3);
    assert_eq!(world.ready(), ("False", "Canaries"));
    world.at(&canaries[0]).progress = Progress::Proven;
    world.at(&canaries[1]).progress = Progress::Proven;
    world.at(&canaries[2]).progress = Progress::Active;
    assert!(world.settle().is_empty(), "one has not proven it");
    world.at(&canaries[2]).progress = Progress::Proven;
    assert_eq!(world.settle().len(), 4);
    assert_eq!(world.ready(), ("False", "Waves"));
    world.prove_all();
    assert_eq!(world.ready(), ("True", "Complete"));
    assert_eq!(world.status.current_revision, Some(revision_name(&world.update())));
    assert_eq!((world.status.nodes, world.status.proven, world.status.updating), (30, 30, 0));
}

#[test]
fn the_first_words_against_it_take_it_back_where_it_was_sent() {
    let mut world = World::new(20, json!({"rollout": {"canaries": 2, "maxUnavailable": 5}}));
    world.prove_all();
    let good = world.update();
    world.set(json!({"kubeletConfiguration": {"maxPods": 61}, "rollout": {"canaries": 2, "maxUnavailable": 5}}));
    let bad = world.update();
    let canaries = world.settle();
    world.at(&canaries[0]).progress = Progress::Bad("maxPods: no".to_owned());
    let back = world.settle();
    assert_eq!(world.status.bad_revisions[0].revision, revision_name(&bad));
    assert_eq!(world.status.bad_revisions[0].nodes[0].message, "maxPods: no");
    assert_eq!(back.iter().collect::<BTreeSet<_>>(), canaries.iter().collect());
    assert_eq!((world.with(&good), world.with(&bad)), (20, 0));
    assert_eq!(world.ready(), ("False", "FailuresExceeded"));
    world.prove();
    assert!(world.settle().is_empty(), "it is not tried again");
    world.set(json!({}));
    world.settle();
    assert_eq!(world.ready(), ("True", "Complete"), "the spec says again what all have");
}

#[test]
fn a_bad_revision_is_written_down_before_anything_is_done_by_it() {
    let mut world = World::new(5, json!({}));
    world.prove_all();
    world.set(json!({"kubeletConfiguration": {"maxPods": 61}}));
    let canary = world.settle().remove(0);
    world.at(&canary).progress = Progress::Bad("no".to_owned());
    let first = world.decide();
    assert_eq!((first.assign.len(), first.status.bad_revisions.len()), (0, 1));
    assert_eq!(world.decide(), first, "a controller that died before it wrote decides the same");
}

#[test]
fn stop_leaves_nodes_as_they_are() {
    let stop = |pods: u32| json!({"kubeletConfiguration": {"maxPods": pods}, "rollout": {"onFailure": "Stop"}});
    let mut world = World::new(5, stop(60));
    world.prove_all();
    world.set(stop(61));
    let canary = world.settle().remove(0);
    world.at(&canary).progress = Progress::Bad("no".to_owned());
    assert!(world.settle().is_empty());
    assert_eq!(world.with(&world.update()), 1);
}

#[test]
fn one_vote_is_not_enough_where_two_are_asked_for() {
    let two = |pods: u32| json!({"kubeletConfiguration": {"maxPods": pods}, "rollout": {"maxFailures": 2}});
    let mut world = World::new(9, two(60));
    world.prove_all();
    world.set(two(61));
    let liar = world.settle().remove(0);
    world.at(&liar).progress = Progress::Bad("no".to_owned());
    world.prove_all();
    assert!(world.status.bad_revisions.is_empty());
    assert_eq!(world.ready(), ("True", "Degraded"));
    assert_eq!((world.status.failed, world.status.proven), (1, 8));
}

#[test]
fn what_all_nodes_refuse_is_bad_however_many_may() {
    let mut world = World::new(2, json!({"rollout": {"maxFailures": 3, "maxUnavailable": "100%", "canaries": 0}}));
    assert_eq!(world.settle().len(), 2);
    for node in world.nodes.values_mut() {
        node.progress = Progress::Bad("no".to_owned());
    }
    world.settle();
    assert_eq!((world.status.bad_revisions.len(), &world.status.current_revision), (1, &None));
    assert_eq!(world.ready().0, "False");
}

#[test]
fn nodes_that_are_not_ready_take_places() {
    let mut world = World::new(10, json!({"rollout": {"canaries": 0, "maxUnavailable": 2}}));
    world.at("n000").ready = false;
    assert_eq!(world.settle().len(), 1);
    world.prove();
    world.at("n001").ready = false;
    world.settle();
    let unready = world.nodes.values().filter(|node| !node.ready).count();
    assert_eq!(unready, 2);
    assert_eq!(world.ready(), ("False", "MaxUnavailableReached"));
}

#[test]
fn a_node_that_stays_away_with_it_stops_it_and_takes_nothing_back() {
    for (unready_for, updating_for) in [(61, 61), (0, 3600)] {
        let mut world = World::new(3, json!({"rollout": {"maxUnavailable": 2}}));
        let canary = world.settle().remove(0);
        let node = world.at(&canary);
        node.ready = unready_for == 0;
        node.lasts.unready = Duration::from_secs(unready_for);
        node.lasts.updating = Duration::from_secs(updating_for);
        world.now += Duration::from_secs(updating_for);
        assert!(world.settle().is_empty());
        assert_eq!((world.ready(), world.status.bad_revisions.len()), (("False", "NodesSilent"), 0));
        assert!(world.message().contains(&canary), "{}", world.message());
    }
}

#[test]
fn a_spec_that_makes_no_sense_keeps_no_node_from_joining() {
    let mut world = World::new(4, json!({}));
    world.prove_all();
    world.nodes.insert("young".to_owned(), node("young", NOW, json!({})));
    let fault = RevisionFault::invalid("no".to_owned());
    let pool = Pool {
        name: "pool-a",
        generation: 2,
        spec: &world.pools[0].1,
        status: &world.status,
        approved: None,
        update: Err(&fault),
        current: None,
        namespace: "ns",
    };
    let decision = decide(&pool, &world.cluster());
    assert_eq!(
        decision.assign,
        [NodeAssignment { node: "young".to_owned(), to: world.update(), given: Given::Joined }]
    );
}

/// One that joined a moment ago and was a canary is no news: it has something, and goes back from it.
#[test]
fn young_nodes_go_back_too() {
    let mut world = World::new(0, json!({}));
    world.nodes.insert("young".to_owned(), node("young", NOW, json!({})));
    world.prove_all();
    let good = world.update();
    world.set(json!({"kubeletConfiguration": {"maxPods": 61}}));
    world.settle();
    assert_eq!(world.with(&world.update()), 1);
    world.at("young").progress = Progress::Bad("no".to_owned());
    world.settle();
    assert_eq!(world.with(&good), 1);
}

#[test]
fn a_node_of_two_pools_stops_both() {
    let mut world = World::new(4, json!({}));
    world.pools.push(("pool-b".to_owned(), spec(json!({"nodeSelector": {"matchLabels": {"gpu": "yes"}}}))));
    world.at("n002").labels.insert("gpu".to_owned(), "yes".to_owned());
    assert!(world.settle().is_empty());
    assert_eq!(world.ready(), ("False", "Conflict"));
    let conflict = world.condition("Conflicting");
    assert_eq!((conflict.status.as_str(), conflict.message.contains("n002 (pool-b)")), ("True", true));
}

#[test]
fn control_planes_go_one_at_a_time_whatever_their_pool() {
    let mut world = World::new(6, json!({"rollout": {"canaries": 0, "maxUnavailable": "100%"}}));
    let role = "node-role.kubernetes.io/control-plane";
    for name in ["n000", "n001", "n002"] {
        world.at(name).labels.insert(role.to_owned(), String::new());
    }
    let mut other = node("other", OLD, json!({"pool": "b", role: ""}));
    other.ready = false;
    world.nodes.insert("other".to_owned(), other);
    assert_eq!(world.settle().len(), 3, "the other pool's is not Ready");
    world.at("other").ready = true;
    for left in [2, 1, 0] {
        assert_eq!(world.settle().len(), 1);
        world.prove();
        assert_eq!(
            world.nodes.values().filter(|node| node.is_control_plane() && node.desired.is_none()).count(),
            left + 1
        );
    }
}

#[test]
fn paused_means_that_nothing_moves_but_what_joins() {
    let mut world = World::new(4, json!({}));
    world.prove_all();
    world.set(json!({"kubeletConfiguration": {"maxPods": 61}, "paused": true}));
    world.nodes.insert("young".to_owned(), node("young", NOW, json!({})));
    assert_eq!(world.settle(), ["young"]);
    assert_eq!(world.ready(), ("False", "Paused"));
    assert!(world.message().contains(&revision_name(&world.update())), "{}", world.message());
}

#[test]
fn the_canaries_are_looked_at_by_revision() {
    let with = |pods: u32| json!({"kubeletConfiguration": {"maxPods": pods}, "rollout": {"pauseAfterCanaries": true}});
    let mut world = World::new(9, with(60));
    world.prove_all();
    assert_eq!((world.with(&world.update()), world.ready()), (1, ("False", "AwaitingApproval")));
    world.approved = Some(revision_name(&world.update()));
    world.prove_all();
    assert_eq!(world.ready(), ("True", "Complete"));
    world.set(with(61));
    world.prove_all();
    assert_eq!(world.ready(), ("False", "AwaitingApproval"), "another revision was approved");
    world.set(with(60));
    world.prove_all();
    assert_eq!((world.ready(), world.with(&world.update())), (("True", "Complete"), 9), "the way back needs none");
}

#[test]
fn what_hangs_with_a_superseded_revision_comes_back() {
    for pods in [60, 62] {
        let mut world = World::new(10, json!({}));
        world.prove_all();
        let good = world.update();
        world.set(json!({"kubeletConfiguration": {"maxPods": 61}}));
        let canary = world.settle().remove(0);
        world.dies(&canary, 61);
        world.set(json!({"kubeletConfiguration": {"maxPods": pods}}));
        assert_eq!(world.settle(), std::slice::from_ref(&canary), "it takes no place that it does not have already");
        assert_eq!((&world.nodes[&canary].desired, world.nodes[&canary].given), (&Some(good), Some(Given::Back)));
        world.at(&canary).ready = true;
        world.prove_all();
        assert_eq!((world.ready(), world.with(&world.update())), (("True", "Complete"), 10));
    }
}

fn control_planes(more: Value) -> World {
    let mut world = World::new(3, more);
    for node in world.nodes.values_mut() {
        node.labels.insert("node-role.kubernetes.io/control-plane".to_owned(), String::new());
    }
    world
}

#[test]
fn a_control_plane_that_hangs_does_not_wait_for_itself() {
    let mut world = control_planes(json!({}));
    world.prove_all();
    world.set(json!({"kubeletConfiguration": {"maxPods": 61}}));
    let canary = world.settle().remove(0);
    let node = world.at(&canary);
    (node.ready, node.lasts.unready, node.lasts.updating) = (false, Duration::from_secs(61), Duration::from_secs(61));
    assert!(world.settle().is_empty());
    world.set(json!({}));
    assert_eq!(world.settle(), [canary]);
}

#[test]
fn nodes_that_wait_for_as_long_as_it_takes_are_named() {
    let mut world = World::new(3, json!({}));
    world.prove_all();
    world.set(json!({"kubeletConfiguration": {"maxPods": 61}}));
    let canary = world.settle().remove(0);
    world.at(&canary).waits = true;
    world.settle();
    let waits = format!("waiting (`kubectl kubelet-config status` says for what): {canary}");
    assert!(world.message().ends_with(&waits), "{}", world.message());
}

#[test]
fn control_planes_on_trial_are_waited_for() {
    let mut world = control_planes(json!({"rollout": {"canaries": 0, "maxUnavailable": "100%", "proof": "Active"}}));
    let first = world.settle().remove(0);
    world.at(&first).progress = Progress::Active;
    assert!(world.settle().is_empty());
    assert_eq!(world.ready(), ("False", "ControlPlaneBusy"));
}

#[test]
fn a_control_plane_whose_api_server_is_away_is_waited_for() {
    let mut world = control_planes(json!({"rollout": {"canaries": 0, "maxUnavailable": "100%"}}));
    world.static_pods.insert("n001".to_owned(), "kube-apiserver-n001 is not Ready".to_owned());
    assert_eq!(world.settle(), ["n001"], "it may be what mends it");
    world.prove();
    assert!(world.settle().is_empty());
    assert!(world.message().contains("n001 (kube-apiserver-n001 is not Ready)"), "{}", world.message());
    world.static_pods.clear();
    assert_eq!(world.settle().len(), 1);
}

#[test]
fn what_others_assigned_takes_places_too() {
    let mut world = World::new(10, json!({"rollout": {"canaries": 0, "maxUnavailable": 2}}));
    let by_hand = ConfigMapRef { namespace: "ns".into(), name: "m".into(), kubelet_config_key: "kubelet".into() };
    (world.at("n000").desired, world.at("n000").progress) = (Some(by_hand), Progress::Updating);
    assert_eq!(world.settle().len(), 2, "itself, and one more");
}

#[test]
fn a_new_revision_waits_for_a_window_and_the_way_back_does_not() {
    // It is midnight, on a Saturday.
    let at = |start: &str, pods: u32| json!({"kubeletConfiguration": {"maxPods": pods}, "rollout": {"windows": [{"start": start, "hours": 2}]}});
    let mut world = World::new(9, at("23:00", 60));
    world.prove_all();
    assert_eq!(world.ready(), ("True", "Complete"));
    let good = world.update();
    world.set(at("01:00", 61));
    assert!(world.settle().is_empty());
    assert_eq!(world.ready(), ("False", "OutsideWindow"));
    assert!(world.message().contains("2026-01-10T01:00:00Z"), "{}", world.message());
    assert_eq!(world.decide().next, Some(Duration::from_secs(3600)));
    world.nodes.insert("young".to_owned(), node("young", NOW, json!({})));
    assert_eq!(world.settle(), ["young"]);
    assert_eq!(world.nodes["young"].desired, Some(good.clone()));
    world.set(at("23:00", 61));
    let canary = world.settle().remove(0);
    world.set(at("01:00", 61));
    world.at(&canary).progress = Progress::Bad("no".to_owned());
    assert_eq!(world.settle(), [canary]);
    assert_eq!(world.with(&good), 10);
}

#[test]
fn a_window_that_makes_no_sense_stops_the_pool() {
    let mut world =
        World::new(3, json!({"rollout": {"windows": [{"start": "23:00", "hours": 2, "timeZone": "Nowhere"}]}}));
    assert!(world.settle().is_empty());
    assert_eq!(world.ready(), ("False", "RevisionInvalid"));
}

#[test]
fn a_startup_taint_goes_when_the_node_runs_the_revision() {
    let taint = "startup-taint.cluster-autoscaler.kubernetes.io/kubelet-config";
    for paused in [false, true] {
        let mut world = World::new(4, json!({"startupTaint": taint}));
        world.prove_all();
        world.set(json!({"startupTaint": taint, "kubeletConfiguration": {"maxPods": 61}, "paused": paused}));
        for name in ["young", "bad"] {
            let mut node = node(name, NOW, json!({}));
            node.taints = vec!["other".to_owned(), taint.to_owned()];
            world.nodes.insert(name.to_owned(), node);
        }
        assert!(world.decide().untaint.is_empty(), "they have nothing");
        world.settle();
        assert!(world.decide().untaint.is_empty(), "they are assigned it, and do not run it");
        world.at("bad").progress = Progress::Bad("no".to_owned());
        world.at("young").progress = Progress::Active;
        assert_eq!(world.decide().untaint, ["young"]);
        world.at("young").labels.remove("pool");
        assert!(world.decide().untaint.is_empty(), "it is not the pool's");
    }
}
