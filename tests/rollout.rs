//! `kubectl kubelet-config rollout` over two hundred simulated nodes, in simulated time: the client is the real one,
//! the API server the tests' own, each node a simulated supervisor. What the client promises is checked at each of its
//! writes, against what the API server knows at that moment.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "in a test a panic is the way to say that something is wrong"
)]

mod support;

#[path = "rollout/drain.rs"]
mod drain;
#[path = "rollout/faults.rs"]
mod faults;
#[path = "rollout/kills.rs"]
mod kills;
#[path = "rollout/life.rs"]
mod life;
#[path = "rollout/look.rs"]
mod look;
#[path = "rollout/marks.rs"]
mod marks;
#[path = "rollout/world.rs"]
mod world;
