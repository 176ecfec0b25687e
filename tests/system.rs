//! System tests: the built binary, the tests' own API server and the stand-in kubelet. Each test has a directory and
//! ports of its own; they run beside each other.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::string_slice,
    clippy::unwrap_used,
    reason = "in a test a panic is the way to say that something is wrong"
)]

mod support;

#[path = "system/carriers.rs"]
mod carriers;
#[path = "system/changes.rs"]
mod changes;
#[path = "system/child.rs"]
mod child;
#[path = "system/cli.rs"]
mod cli;
#[path = "system/command_lines.rs"]
mod command_lines;
#[path = "system/credentials.rs"]
mod credentials;
#[path = "system/evidence.rs"]
mod evidence;
#[path = "system/faults.rs"]
mod faults;
#[path = "system/flaws.rs"]
mod flaws;
#[path = "system/hands.rs"]
mod hands;
#[path = "system/operate.rs"]
mod operate;
#[path = "system/process.rs"]
mod process;
#[path = "system/rejects.rs"]
mod rejects;
#[path = "system/reload.rs"]
mod reload;
#[path = "system/restart_by.rs"]
mod restart_by;
#[path = "system/rig.rs"]
mod rig;
#[path = "system/source_dir.rs"]
mod source_dir;
#[path = "system/sources.rs"]
mod sources;
#[path = "system/store.rs"]
mod store;
#[path = "system/trials.rs"]
mod trials;
#[path = "system/watchdog.rs"]
mod watchdog;
