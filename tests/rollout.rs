//! `kubectl kubelet-config rollout` over two hundred simulated nodes, in simulated time: the client is the real one,
//! the API server the tests' own, each node a supervisor (the real core and API server adapter) over a played kubelet.
//! What the client promises is held against the log of all changes, at each assignment.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "in a test a panic is the way to say that something is wrong"
)]

mod support;

#[path = "support/fleet/mod.rs"]
mod fleet;

#[path = "rollout/carriers.rs"]
mod carriers;
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
#[path = "rollout/promises.rs"]
mod promises;
#[path = "rollout/records.rs"]
mod records;
#[path = "rollout/selection.rs"]
mod selection;
#[path = "rollout/world.rs"]
mod world;
