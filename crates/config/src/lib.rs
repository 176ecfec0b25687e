//! What both sides know of kubelet configurations: sources and payloads, rendering, flags, hazards, assignments, and
//! the status document. Pure: no IO, clock or environment.

pub mod assignment;
pub mod digest;
pub mod duration;
pub mod flags;
pub mod hazard;
pub mod merge;
pub mod pods;
pub mod rendering;
pub mod source;
pub mod source_dir;
pub mod status;
pub mod yaml;
