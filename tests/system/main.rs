//! System tests: the built binary, the tests' own API server and the stand-in kubelet. Each test has a directory and
//! ports of its own; they run beside each other.
#![cfg(test)]

mod carriers;
mod changes;
mod cli;
mod command_lines;
mod credentials;
mod drift;
mod drop_ins;
mod evidence;
mod faults;
mod flag_overrides;
mod hung;
mod last_words;
mod local_files;
mod native_flaws;
mod operate;
mod operator_verbs;
mod policy;
mod preflight;
mod process;
mod rejects;
mod reports;
mod sources;
mod standby;
mod store;
mod trials;
mod watchdog;
mod workers;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use testkit::rig::Rig;

/// It dies without a word.
fn kill_kubelet(rig: &Rig) {
    kill(Pid::from_raw(i32::try_from(rig.last_pid()).unwrap()), Signal::SIGKILL).unwrap();
}
