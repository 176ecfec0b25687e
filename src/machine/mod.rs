//! The state machine: `step(state, input, now) -> effects`. Every decision is taken here.
//!
//! Seven rules, from which the laws follow:
//! - Content is identity: verdict, standing and evidence belong to a digest; a source is a name for it.
//! - What runs is computed: [`ladder`] is pure, and `reconcile` compares it with what runs.
//! - One phase, in the durable record, with evidence that lives as long as the version ([`records`]).
//! - One record, replaced atomically: propose, write, apply, then answer ([`record_writer`]).
//! - All open questions are one table: who asks, the ticket, the deadline ([`asks`]).
//! - Who is judged, and the verdict, are pure functions of one view ([`judgement`], [`verdict`]).
//! - Time is asked for: what is still to come when it is asked for is when the machine is woken ([`clock`]).
//!
//! A component (`process`, `launch`, `change`, …) is a file with private fields and what the state does with them; only it and
//! the files below it can change them. But for the evidence ([`Run`] and the record's attempt): it is written where health
//! and trial are judged. An input changes what one of them knows, then `reconcile` starts whatever is due in the state as a
//! whole. It is level-triggered: an input that comes twice, late, or not at all cannot leave a half-done change behind.

pub mod command;
pub mod events;
pub mod evidence;
pub mod history;
pub mod limits;
pub mod model;
pub mod records;
pub mod status;

mod asks;
mod boot;
mod change;
mod clock;
mod collect;
mod drift;
mod fallback;
mod health;
mod io;
mod judgement;
mod ladder;
mod launch;
mod liveness;
mod local_files;
mod namespace;
mod on_request;
mod operate;
pub mod pause;
mod payloads;
mod policy;
mod process;
mod proposal;
mod publication;
mod record_writer;
mod reset;
mod run;
mod running;
mod settings;
mod standby;
mod state;
mod stored;
mod sync;
mod trial;
mod verdict;
mod versions;

pub use change::Waiting;
pub use io::{Afterwards, Answer, Counter, Effect, FetchError, Input, Level, StoreOperation, StoreRequest, Ticket};
pub(crate) use operate::offline;
pub use process::Kubelet;
pub use records::{Records, RunningConfig, Stored};
pub use run::Run;
pub use settings::{Settings, parse_courtesy};
pub use state::State;
pub use sync::ConfigMapState;
