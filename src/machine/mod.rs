//! The state machine: `step(state, input, now) -> effects`. Every decision is taken here.
//!
//! Shape: inputs change the state, then `State::settle` takes the whole of it and starts what
//! is due. It is level-triggered: an input that comes twice, late, or not at all cannot leave a
//! half-done change behind. Effects are data; those with an outcome come back as an input.
//!
//! Invariants, checked by `tests/machine/random_inputs.rs` after every step:
//! - at most one kubelet process is asked for;
//! - what is started is local, assigned or last known good, and durably saved;
//! - last known good moves only to what was healthy without a break for the whole trial;
//! - a bad version is not started until source, content or kubelet change;
//! - every input in every state gives a next state, no panic.

pub mod command;
pub mod events;
pub mod evidence;
pub mod limits;
pub mod model;
pub mod preflight;
pub mod record;
pub mod status;

mod bad_versions;
mod baseline;
mod boot;
mod change;
mod confirm;
mod control_test;
mod handover;
mod health;
mod impact;
mod io;
mod operate;
mod process;
mod reload;
mod restart_by_exit;
mod rollback;
mod run;
mod settings;
mod spread;
mod state;
mod state_parts;
mod step;
mod suspension;
mod trial;
mod watchdog;

pub use handover::Handover;
pub use io::{Counter, Effect, Input, Level, Purpose, RecordReason};
pub(crate) use operate::offline;
pub use record::{Records, Stored};
pub use restart_by_exit::EXIT_FOR_RESTART;
pub use run::Run;
pub use settings::{RestartBy, Settings};
pub use state::State;
pub(crate) use state_parts::ExitForRestart;
pub use state_parts::{
    Change, ConfigMapState, Kubelet, PendingFailure, Reload, ReloadStage, RunningConfig, Stage, Trial, TrialEnd,
};
