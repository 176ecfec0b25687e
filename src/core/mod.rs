//! Decisions. Pure: no IO, clock, environment, tokio, kube or tracing (`tests/architecture.rs`).

pub mod carrier;
pub mod census;
pub mod command;
pub mod directory;
pub mod evidence;
pub mod flags;
pub mod fleet;
pub mod hazard;
pub mod machine;
pub mod model;
pub mod payload;
pub mod policy;
pub mod preflight;
pub mod record;
pub mod report;
pub mod unit;
pub mod words;
