//! `kubectl kubelet-config`: the administrator's side.
//!
//! A command line is read in `cli`, which calls one file of `commands`. A command reads and writes by `api`: one client,
//! whose patience is the command's; one way to list, one to watch, one to write an assignment. What it read goes to
//! [`fleet`], which is pure: what a Node says of its configuration, what to write into it, what two configurations
//! differ in, what a pool does next. What comes back is printed by `output` and `table`.
//!
//! | module | holds |
//! |---|---|
//! | `cli`, `context` | the command line; the kubeconfig that it names |
//! | `commands` | one command a file; `targets` and `wait` are what several of them share |
//! | `controller`, `clock` | what carries out pools: the Lease, the Nodes as they are followed, one pool at a time |
//! | `api` | `client`, `list`, `watch`, `write`, and `nodes` on top of them |
//! | [`fleet`] | decisions about nodes, without IO, clock or environment |
//! | `output`, `table`, `failure` | what the user sees, and the exit code |

mod api;
mod cli;
mod clock;
mod commands;
mod context;
mod controller;
mod failure;
pub mod fleet;
mod output;
mod table;

pub use cli::main;
#[doc(hidden)]
pub use cli::{command, run};
pub use context::Context;
#[doc(hidden)]
pub use controller::crd;
pub use failure::Failure;
