//! What each class of Nodes votes, gets and counts for: decisions that were wrong before there were classes, by their numbers in
//! the review.

use serde_json::json;

use super::super::node::request;
use super::super::types::FailureKind;
use super::*;
use crate::fleet::assign::ASSIGNED;

const SECOND: fn(u64) -> Duration = Duration::from_secs;

/// All have proven a revision, and the next one is in its waves.
pub(super) fn in_waves(count: usize, rollout: &Value) -> (World, ConfigMapRef, ConfigMapRef) {
    let mut world = World::new(count, json!({"rollout": rollout}));
    world.prove_all();
    let old = world.update();
    world.set(json!({"kubeletConfiguration": {"maxPods": 61}, "rollout": rollout}));
    for _ in 0..3 {
        world.settle();
        world.prove();
    }
    let new = world.update();
    (world, old, new)
}

fn bad() -> Progress {
    Progress::Bad("no".to_owned())
}

#[test]
fn p1_a_scale_up_in_the_waves_takes_no_node_back() {
    let (mut world, _, new) = in_waves(100, &json!({"maxUnavailable": 10}));
    let before = world.with(&new);
    world.joins("young");
    world.at("young").ready = false;
    assert!(world.settle().contains(&"young".to_owned()));
    assert_eq!(world.nodes["young"].desired, Some(new.clone()), "once, and what the others get");
    world.dies("young", 65);
    for _ in 0..20 {
        world.settle();
        world.prove();
        world.at("young").progress = Progress::Updating;
    }
    assert!(world.status.bad_revisions.is_empty());
    assert!(world.with(&new) > before);
    assert_eq!((world.ready(), world.with(&new)), (("True", "Complete"), 101));
}

#[test]
fn p2_a_dead_node_and_a_held_one_keep_no_revision_from_being_current() {
    let mut world = World::new(20, json!({"rollout": {"maxUnavailable": 5}}));
    world.prove_all();
    world.dies("n000", 86_400);
    world.at("n001").held = true;
    world.set(json!({"kubeletConfiguration": {"maxPods": 61}, "rollout": {"maxUnavailable": 5}}));
    world.prove_all();
    let new = world.update();
    assert_eq!(world.status.current_revision, Some(revision_name(&new)));
    assert_eq!((world.ready(), world.with(&new)), (("True", "Complete"), 18));
    assert_eq!(
        (world.status.stragglers.count, &world.status.stragglers.nodes[..]),
        (2, &["n000".to_owned(), "n001".to_owned()][..])
    );
    assert!(world.message().contains("n000, n001"), "{}", world.message());
    world.joins("young");
    world.settle();
    assert_eq!(world.nodes["young"].desired, Some(new));
}

#[test]
fn p3_a_node_that_leaves_neither_votes_nor_is_a_canary() {
    let mut world = World::new(10, json!({}));
    world.prove_all();
    world.set(json!({"kubeletConfiguration": {"maxPods": 61}}));
    let canary = world.settle().remove(0);
    world.at(&canary).leaving = true;
    world.dies(&canary, 3600);
    assert!(world.settle().is_empty(), "it has the only place");
    world.at(&canary).ready = true;
    world.at(&canary).progress = bad();
    assert_eq!(world.settle().len(), 1, "another one is a canary");
    assert!(world.status.bad_revisions.is_empty() && world.status.rollout.as_ref().unwrap().failures.is_empty());
    for (taint, leaves) in [
        ("ToBeDeletedByClusterAutoscaler", true),
        ("DeletionCandidateOfClusterAutoscaler", true),
        ("karpenter.sh/disrupted", true),
        ("karpenter.sh/disruption", true),
        ("node.kubernetes.io/not-ready", false),
    ] {
        let object = json!({"metadata": {"name": "n"}, "spec": {"taints": [{"key": taint, "effect": "NoSchedule"}]}});
        assert_eq!(PoolNode::from_node(&object, "ns").leaving, leaves, "{taint}");
    }
    let object = json!({"metadata": {"name": "n", "deletionTimestamp": OLD}});
    assert!(PoolNode::from_node(&object, "ns").leaving);
}

#[test]
fn p4_what_is_current_has_a_brake_and_rolled_back_nodes_are_told() {
    let mut world = World::new(10, json!({"rollout": {"maxUnavailable": 1, "maxFailures": 2}}));
    world.prove_all();
    for number in 0..50 {
        let gpu = node(&format!("gpu{number:02}"), OLD, json!({}));
        world.nodes.insert(gpu.name.clone(), gpu);
    }
    let mut given = 0;
    loop {
        let got = world.settle();
        if got.is_empty() {
            break;
        }
        assert_eq!(got.len(), 1, "maxUnavailable");
        for name in &got {
            world.at(name).progress = bad();
        }
        given += got.len();
    }
    assert_eq!(given, 2, "maxFailures");
    assert_eq!((world.ready(), world.condition("Stalled").status.as_str()), (("False", "Degraded"), "True"));
    assert!(world.message().contains("gpu"), "{}", world.message());
    world.nodes.retain(|name, _| !name.starts_with("gpu"));
    world.at("n003").progress = bad();
    world.settle();
    assert_eq!(world.ready(), ("True", "Degraded"), "as many as may");
}

#[test]
fn p5_a_proven_node_that_cannot_sync_condemns_nothing() {
    let (mut world, _, new) = in_waves(20, &json!({"maxUnavailable": 2}));
    let source = |name: &str| json!({"configMap": {"namespace": "ns", "name": name, "kubeletConfigKey": "kubelet", "uid": "u", "resourceVersion": "1"}});
    let object = |good: &str| {
        let own = source(&new.name);
        let said = json!({"assigned": own, "active": own, "lastKnownGood": source(good), "error": "failed to sync: internal failure"});
        let condition = json!({"type": kubelet_config::status::CONDITION, "status": "False", "reason": "SyncFailed", "message": "no space left on device"});
        let label = |part: &str| format!("{}{part}", kubelet_config::assignment::LABELS);
        json!({
            "metadata": {"name": "n", "uid": "u", "creationTimestamp": OLD, "labels": {"pool": "a", label("name"): new.name, label("namespace"): "ns"},
                "annotations": {kubelet_config::status::STATUS_ANNOTATION: said.to_string()}},
            "status": {"conditions": [{"type": "Ready", "status": "True"}, condition]}})
    };
    let full = PoolNode::from_node(&object(&new.name), "ns");
    assert_eq!(full.progress, Progress::Proven);
    world.nodes.insert("n".to_owned(), full);
    world.settle();
    let mut young = PoolNode::from_node(&object("other"), "ns");
    (young.given, young.lasts.updating, young.name) = (Some(Given::Wave), SECOND(3600), "m".to_owned());
    assert_eq!(young.progress, Progress::Updating);
    world.nodes.insert("m".to_owned(), young);
    world.now += SECOND(3600);
    world.settle();
    assert!(world.status.bad_revisions.is_empty() && world.status.rollout.as_ref().unwrap().failures.is_empty());
    assert_eq!(world.status.stragglers.nodes, ["m"], "nobody waits for it either");
}

#[test]
fn p6_a_failure_outlives_its_node() {
    let strategy = |pods: u32| json!({"kubeletConfiguration": {"maxPods": pods}, "rollout": {"maxFailures": 2, "maxUnavailable": 1}});
    for says in [false, true] {
        let mut world = World::new(20, strategy(60));
        world.prove_all();
        world.set(strategy(61));
        let mut killed = 0;
        for number in 0..19 {
            let sent = world.settle().into_iter().next();
            let Some(name) = sent.filter(|_| world.status.bad_revisions.is_empty()) else { break };
            if says {
                world.at(&name).progress = bad();
            } else {
                world.dies(&name, 120);
            }
            world.step();
            // Node repair: a new machine under another name.
            world.nodes.remove(&name);
            let new = node(&format!("new{number:02}"), OLD, json!({}));
            world.nodes.insert(new.name.clone(), new);
            killed += 1;
        }
        assert_eq!((killed, world.status.bad_revisions.len()), (2, usize::from(says)));
        if !says {
            world.settle();
            assert_eq!(world.ready(), ("False", "NodesSilent"));
            // What is tried again begins anew.
            world.status.rollout = None;
            assert_eq!(world.settle().len(), 1);
        }
    }
}

#[test]
fn p7_a_held_node_and_one_without_a_supervisor_condemn_nothing() {
    let mut world = World::new(10, json!({}));
    world.prove_all();
    world.set(json!({"kubeletConfiguration": {"maxPods": 61}}));
    let canary = world.settle().remove(0);
    world.at(&canary).held = true;
    world.at(&canary).lasts.updating = SECOND(3600);
    world.now += SECOND(3600);
    world.settle();
    assert!(world.status.bad_revisions.is_empty() && world.status.rollout.as_ref().unwrap().failures.is_empty());
    let mut world = World::new(10, json!({}));
    world.at("n003").is_managed = false;
    world.prove_all();
    assert_eq!((world.with(&world.update()), world.nodes["n003"].desired.as_ref()), (9, None));
    assert_eq!((world.ready().1, &world.status.unsupervised.nodes[..]), ("Complete", &["n003".to_owned()][..]));
}

/// Nothing is remembered: how long something is so follows from Node, status and time of day.
#[test]
fn p8_a_leader_that_is_new_each_time_decides_as_one_that_stays() {
    let at = |seconds: u64| NOW.parse::<jiff::Timestamp>().unwrap() + SECOND(seconds);
    let object = |since: u64, ready: &str| {
        json!({"metadata": {"name": "n", "labels": {ASSIGNED: Given::Wave.label(at(0))}},
            "status": {"conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": at(since).to_string()}]}})
    };
    for (since, ready, now, expected) in
        [(0, "True", 3600, (3600, 0)), (30, "False", 90, (90, 60)), (30, "True", 90, (90, 0))]
    {
        let node = PoolNode::from_node(&object(since, ready), "ns");
        let lasts = node.lasting_at(at(now), SECOND(600), false);
        assert_eq!((lasts.updating.as_secs(), lasts.unready.as_secs()), expected);
    }
    // The timeout of a canary is reached, whoever looks.
    let mut world = World::new(5, json!({}));
    let canary = world.settle().remove(0);
    for _ in 0..60 {
        world.now += SECOND(60);
        let node = world.at(&canary);
        let now = node.assigned_at.map(|_| SECOND(60)).unwrap_or_default();
        node.lasts.updating += now;
        world.settle();
    }
    assert_eq!(world.ready(), ("False", "NodesSilent"));
    assert!(world.status.bad_revisions.is_empty(), "silence takes nothing back");
    world.at(&canary).progress = Progress::Proven;
    assert_eq!(world.settle().len(), 1, "its own proof takes its failure out");
}

#[test]
fn p9_canaries_that_die_after_their_trial_stop_the_wave() {
    let rollout = json!({"canaries": 5, "maxUnavailable": 10});
    let mut world = World::new(100, json!({"rollout": rollout}));
    world.prove_all();
    world.set(json!({"kubeletConfiguration": {"maxPods": 61}, "rollout": rollout}));
    let canaries = world.settle();
    world.prove();
    for name in &canaries {
        world.dies(name, 600);
    }
    assert!(world.settle().is_empty());
    assert_eq!((world.ready(), world.with(&world.update())), (("False", "NodesSilent"), 5));
    let failures = &world.status.rollout.as_ref().unwrap().failures;
    assert!(failures.len() == 5 && failures.iter().all(|failure| failure.kind == FailureKind::Silent), "{failures:?}");
    for name in &canaries {
        world.at(name).ready = true;
    }
    assert_eq!(world.settle().len(), 10, "they live");
}

#[test]
fn p10_who_joined_takes_places_with_what_it_gets_later() {
    let mut world = World::new(20, json!({"rollout": {"maxUnavailable": 1}}));
    world.prove_all();
    (0..50).for_each(|number| world.joins(&format!("young{number:02}")));
    assert_eq!(world.settle().len(), 50, "they have nothing yet");
    world.set(json!({"kubeletConfiguration": {"maxPods": 61}, "rollout": {"maxUnavailable": 1}}));
    assert_eq!(world.settle().len(), 1);
    let new = world.update();
    let has_it: Vec<String> =
        world.nodes.values().filter(|node| node.desired.as_ref() == Some(&new)).map(|node| node.name.clone()).collect();
    world.at(&has_it[0]).progress = Progress::Proven;
    assert_eq!(world.settle().len(), 1);
}

#[test]
fn p10_an_empty_pool_makes_no_revision_current() {
    let mut world = World::new(0, json!({"rollout": {"maxUnavailable": 1}}));
    world.settle();
    assert_eq!((world.ready(), &world.status.current_revision), (("True", "NoNodes"), &None));
    (0..30).for_each(|number| world.joins(&format!("young{number:02}")));
    assert_eq!((world.settle().len(), world.ready()), (1, ("False", "Canaries")));
}

#[test]
fn p10_a_node_that_refuses_writes_is_named_and_another_one_has_its_turn() {
    let mut world = World::new(5, json!({"rollout": {"maxUnavailable": 1}}));
    world.settle();
    let first = world.decide().assign.into_iter().map(|it| it.node).chain(world.nodes.keys().cloned()).next().unwrap();
    let mut world = World::new(5, json!({"rollout": {"maxUnavailable": 1}}));
    world.at(&first).unwritable = true;
    let canary = world.settle();
    assert!(canary.len() == 1 && canary[0] != first);
    assert_eq!(world.status.unwritable.nodes, [first.as_str()]);
    world.prove_all();
    assert_eq!((world.ready(), world.with(&world.update())), (("True", "Complete"), 4));
    assert!(world.message().contains(&format!("refuse writes: {first}")), "{}", world.message());
}

#[test]
fn p10_what_nobody_wants_to_know_any_more_is_asked_no_further() {
    let mut world = World::new(2, json!({}));
    world.prove_all();
    let old = world.update();
    world.at("n000").has_supervisor = true;
    world.set(json!({"kubeletConfiguration": {"maxPods": 61}, "paused": true}));
    let ask = world.decide().ask;
    assert_eq!((ask.len(), &ask[0].of), (1, &Some(world.update())));
    let asked = |text: String| Some(super::super::node::NodePreflight { request: text, answer: None });
    world.at("n000").preflight = asked(request(&world.update()));
    world.step();
    assert!(world.decide().ask.is_empty());
    world.set(json!({}));
    world.step();
    assert_eq!(world.update(), old);
    let ask = world.decide().ask;
    assert_eq!((ask.len(), &ask[0].of), (1, &None));
    world.at("n000").preflight = asked(format!("{}#mine", request(&old)));
    assert!(world.decide().ask.is_empty(), "somebody else's question");
}

#[test]
fn a_node_that_is_not_ready_gets_it_after_the_canaries_if_its_supervisor_speaks() {
    let (mut world, _, new) = in_waves(20, &json!({"maxUnavailable": 1}));
    let name = world.nodes.values().find(|node| node.desired.as_ref() != Some(&new)).unwrap().name.clone();
    world.dies(&name, 600);
    world.settle();
    assert_ne!(world.nodes[&name].desired, Some(new.clone()));
    let answer = Some(super::super::node::PreflightAnswer::Valid);
    world.at(&name).preflight = Some(super::super::node::NodePreflight { request: request(&new), answer });
    assert_eq!(world.settle(), [name.as_str()], "it takes no place");
    assert_eq!(world.nodes[&name].given, Some(Given::Back));
    world.dies(&name, 3600);
    world.settle();
    assert!(world.status.rollout.as_ref().unwrap().failures.is_empty(), "and its silence is none");
}

#[test]
fn a_pool_that_gets_no_further_says_so_and_goes_on() {
    let mut world = World::new(5, json!({"rollout": {"progressDeadlineSeconds": 600}}));
    let canary = world.settle().remove(0);
    assert_eq!(world.decide().next, Some(SECOND(600)));
    world.now += SECOND(600);
    world.settle();
    assert_eq!(
        (world.ready(), world.condition("Stalled").status.as_str()),
        (("False", "ProgressDeadlineExceeded"), "True")
    );
    assert!(world.message().contains("0 of 1 canaries"), "{}", world.message());
    world.at(&canary).progress = Progress::Proven;
    assert_eq!(world.settle().len(), 1);
    assert_eq!(world.ready(), ("False", "Waves"));
    world.set(json!({"paused": true, "rollout": {"progressDeadlineSeconds": 600}}));
    world.settle();
    world.now += SECOND(86_400);
    world.settle();
    assert_eq!(world.ready(), ("False", "Paused"));
}

#[test]
fn by_default_one_canary_or_two_others_take_it_back() {
    for (canaries, votes) in [(1, 1), (0, 2)] {
        let spec = |pods: u32| json!({"kubeletConfiguration": {"maxPods": pods}, "rollout": {"canaries": canaries, "maxUnavailable": 5}});
        let mut world = World::new(20, spec(60));
        world.prove_all();
        world.set(spec(61));
        let mut said = 0;
        for name in world.settle() {
            world.at(&name).progress = bad();
            world.settle();
            said += 1;
            if !world.status.bad_revisions.is_empty() {
                break;
            }
        }
        assert_eq!(said, votes);
    }
}

/// Its only Node can be no canary.
#[test]
fn a_pool_of_one_node_that_would_refuse_it_says_so() {
    let mut world = World::new(1, json!({}));
    world.prove_all();
    world.set(json!({"kubeletConfiguration": {"maxPods": 61}}));
    let answer = Some(super::super::node::PreflightAnswer::Refused("no".to_owned()));
    let request = request(&world.update());
    world.at("n000").preflight = Some(super::super::node::NodePreflight { request, answer });
    assert!(world.settle().is_empty());
    assert_eq!(world.ready(), ("False", "PreflightRefused"));
    world.joins("young");
    let old = world.nodes["n000"].desired.clone();
    assert_eq!(
        (world.settle(), &world.nodes["young"].desired),
        (vec!["young".to_owned()], &old),
        "nobody has proven it"
    );
}

#[test]
fn messages_are_bounded() {
    let mut world = World::new(40, json!({"rollout": {"canaries": 0, "maxUnavailable": "100%", "maxFailures": 20}}));
    world.settle();
    for node in world.nodes.values_mut() {
        node.progress = Progress::Bad("x".repeat(512));
    }
    world.settle();
    assert!(world.status.conditions.iter().all(|condition| condition.message.len() <= 1024));
    assert_eq!(world.status.bad_revisions.len(), 1);
}
