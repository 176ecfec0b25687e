//! Whatever happens to a pool's Nodes, in whatever order.

use proptest::prelude::*;
use serde_json::json;

use super::super::types::FailureKind;
use super::*;

#[derive(Clone, Debug)]
enum Happens {
    Proves(usize),
    Refuses(usize),
    NotReady(usize),
    Ready(usize),
    Leaves(usize),
    /// It is off for two minutes.
    Dies(usize),
    /// An autoscaler has marked it.
    IsMarked(usize),
    IsHeld(usize),
    Joins(usize),
    Edit(u32),
    /// The status that was written is lost with the controller: the next one reads what stands there.
    Nothing,
}

fn happens() -> impl Strategy<Value = Happens> {
    prop_oneof![
        8 => (0..40usize).prop_map(Happens::Proves),
        1 => (0..40usize).prop_map(Happens::Refuses),
        1 => (0..40usize).prop_map(Happens::NotReady),
        2 => (0..40usize).prop_map(Happens::Ready),
        1 => (0..40usize).prop_map(Happens::Leaves),
        1 => (0..40usize).prop_map(Happens::Dies),
        1 => (0..40usize).prop_map(Happens::IsMarked),
        1 => (0..40usize).prop_map(Happens::IsHeld),
        1 => (0..40usize).prop_map(Happens::Joins),
        1 => (60..63u32).prop_map(Happens::Edit),
        4 => Just(Happens::Nothing),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Whatever happens: never more than maxUnavailable are out through us, nothing but canaries before they have proven
    /// it, nobody gets what is known to be bad, nothing is bad without a Node that says so, and no Node that leaves or is held is
    /// given anything.
    #[test]
    fn promises(events in prop::collection::vec(happens(), 1..200), canaries in 0..4usize, max in 1..5usize) {
        let strategy = |pods: u32| json!({"kubeletConfiguration": {"maxPods": pods},
            "rollout": {"canaries": canaries, "maxUnavailable": max, "maxFailures": 1}});
        let mut world = World::new(40, strategy(60));
        for event in events {
            let at = |number: usize| format!("n{:03}", number % 40);
            match event {
                Happens::Proves(number) => { if world.at(&at(number)).is_in_flight(Proof::Proven) { world.at(&at(number)).progress = Progress::Proven; } }
                Happens::Refuses(number) => { if world.at(&at(number)).is_in_flight(Proof::Proven) { world.at(&at(number)).progress = Progress::Bad("no".to_owned()); } }
                Happens::NotReady(number) => { world.at(&at(number)).ready = false }
                Happens::Ready(number) => { world.at(&at(number)).ready = true }
                Happens::Dies(number) => world.dies(&at(number), 120),
                Happens::IsMarked(number) => world.at(&at(number)).leaving = true,
                Happens::IsHeld(number) => world.at(&at(number)).held ^= true,
                Happens::Joins(number) => world.joins(&format!("young{number}")),
                Happens::Leaves(number) => { drop(world.at(&at(number)).labels.remove("pool")) }
                Happens::Edit(pods) => world.set(strategy(pods)),
                Happens::Nothing => {}
            }
            let update = world.update();
            let own = |world: &World| world.nodes.values().filter(|node| node.labels.contains_key("pool")).cloned().collect::<Vec<_>>();
            // One that joined has nothing to lose yet.
            let is_fresh = |node: &&PoolNode| node.name.starts_with("young") && matches!(node.given, None | Some(Given::Joined));
            let is_out = |node: &&PoolNode| !is_fresh(node) && (!node.ready || node.is_in_flight(Proof::Proven));
            let out = |nodes: &[PoolNode]| nodes.iter().filter(is_out).count();
            let (before, known_bad) = (own(&world), world.status.bad_revisions.clone());
            let proven = before.iter().filter(|node| node.desired.as_ref() == Some(&update) && node.progress == Progress::Proven).count();
            let is_well = |node: &&PoolNode| node.ready && !node.leaving && !node.held && !matches!(node.progress, Progress::Bad(_));
            let with = before.iter().filter(|node| node.desired.as_ref() == Some(&update)).filter(is_well).count();
            let said = |world: &World| world.status.rollout.iter().flat_map(|it| &it.failures).any(|it| it.kind == FailureKind::Bad);
            let assigned = world.step();
            let sent = assigned.iter().filter(|name| world.nodes[*name].desired.as_ref() == Some(&update)).count();
            if !assigned.is_empty() {
                prop_assert!(out(&own(&world)) <= max.max(out(&before)), "{} out, {max} may be", out(&own(&world)));
            }
            for name in &assigned {
                prop_assert!(!world.nodes[name].leaving && !world.nodes[name].held, "{name} was given something");
            }
            let is_news = world.status.bad_revisions.len() > known_bad.len();
            prop_assert!(!is_news || said(&world), "nobody said that it is bad");
            if sent > 0 && proven < canaries.min(before.iter().filter(is_well).count()) {
                prop_assert!(with + sent <= canaries, "{with} and {sent} before the canaries proved it");
            }
            prop_assert!(sent == 0 || known_bad.iter().all(|bad| bad.revision != revision_name(&update)), "a bad one was sent");
        }
    }
}
