//! The client is killed, and another one goes on.

use testkit::rollout::{NODES, Outcome, TARGET, World};

/// A generator that needs no crate: SplitMix64.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }
}

async fn killed(nodes: usize, seed: u64, kills: usize, good: bool) {
    let mut random = Random(seed);
    let world = World::new(nodes);
    world.expect(&[0, 1, 2], 10);
    if !good {
        world.set_outcome(111, Outcome::RollsBack);
    }
    let begin = [TARGET, "-l", "all=yes", "--canary", "3", "--max-unavailable", "10", "--quiet"];
    let mut died = 0;
    let end = loop {
        if died < kills {
            // The first ones while it begins, others anywhere in about two waves.
            let within = if died < 8 { 12 } else { 40 };
            world.die_at(1 + random.below(within), random.below(2) == 0);
        } else {
            world.live_on();
        }
        let running = world.phase(TARGET).is_some_and(|phase| phase == "Running");
        let resume = running && random.below(2) == 0;
        let result =
            if resume { world.client(&["resume", TARGET, "--quiet"]).await } else { world.client(&begin).await };
        match result {
            None => died += 1,
            Some(end) => break end,
        }
    };
    world.promises_held();
    let sent = world.sent();
    let mut names: Vec<&String> = sent.iter().map(|sent| &sent.node).collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), sent.len(), "seed {seed}: no node was sent to twice");
    if good {
        assert!(end.is_ok(), "seed {seed}: {end:?}");
        assert_eq!(world.count(TARGET), nodes);
        assert_eq!(died, kills);
        // What nodes had before is still known.
        world.good(&["undo", TARGET, "--quiet"]).await;
        assert_eq!(world.count("pool-a"), nodes);
    } else {
        let said = end.expect_err("it stops").message;
        assert!(said.contains("node-0111 called it bad"), "seed {seed}: {said}");
    }
}

#[tokio::test(start_paused = true)]
async fn killed_at_fifty_moments_it_goes_on_as_if_nothing_was() {
    killed(NODES, 1, 50, true).await;
}

#[tokio::test(start_paused = true)]
async fn killed_while_nodes_go_back_it_stops_all_the_same() {
    for seed in 2..6 {
        killed(120, seed, 20, false).await;
    }
}
