//! Whatever happens to a pool's Nodes, in whatever order.

use proptest::prelude::*;
use serde_json::json;

use super::*;

#[derive(Clone, Debug)]
enum Happens {
    Proves(usize),
    Refuses(usize),
    NotReady(usize),
    Ready(usize),
    Leaves(usize),
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
        1 => (60..63u32).prop_map(Happens::Edit),
        4 => Just(Happens::Nothing),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Whatever happens: never more than maxUnavailable are out through us, nothing but canaries before they have proven
    /// it, and nobody gets what is known to be bad.
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
                Happens::Leaves(number) => { drop(world.at(&at(number)).labels.remove("pool")) }
                Happens::Edit(pods) => world.set(strategy(pods)),
                Happens::Nothing => {}
            }
            let update = world.update();
            let own = |world: &World| world.nodes.values().filter(|node| node.labels.contains_key("pool")).cloned().collect::<Vec<_>>();
            let out = |nodes: &[PoolNode]| nodes.iter().filter(|node| !node.ready || node.is_in_flight(Proof::Proven)).count();
            let (before, known_bad) = (own(&world), world.status.bad_revisions.clone());
            let proven = before.iter().filter(|node| node.desired.as_ref() == Some(&update) && node.progress == Progress::Proven).count();
            let with = before.iter().filter(|node| node.desired.as_ref() == Some(&update) && !matches!(node.progress, Progress::Bad(_))).count();
            let assigned = world.step();
            let sent = assigned.iter().filter(|name| world.nodes[*name].desired.as_ref() == Some(&update)).count();
            if !assigned.is_empty() {
                prop_assert!(out(&own(&world)) <= max.max(out(&before)), "{} out, {max} may be", out(&own(&world)));
            }
            if sent > 0 && proven < canaries.min(before.len()) {
                prop_assert!(with + sent <= canaries, "{with} and {sent} before the canaries proved it");
            }
            prop_assert!(sent == 0 || known_bad.iter().all(|bad| bad.revision != revision_name(&update)), "a bad one was sent");
        }
    }
}
