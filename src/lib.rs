//! # kubelet-supervisor
//!
//! Dynamic kubelet configuration around an unmodified kubelet, that cannot take a node down.
//!
//! ## Theory of operation
//!
//! The supervisor owns the kubelet process. One static thread runs one loop ([`daemon`]): an input
//! (the Node changed, the kubelet exited, a preflight gave its verdict, a deadline passed) goes
//! into a pure state machine ([`core::machine`]), which answers with effects; the executor
//! ([`daemon::exec`]) carries them out through ports ([`ports`]) that adapters ([`adapters`])
//! implement, and what comes of them are inputs again.
//!
//! Long work (watches, preflights, probes) runs in tasks on the same thread and reports through
//! one queue. The store is written synchronously, because the order of its writes is what makes a
//! crash harmless.
//!
//! Rooms know only the rooms below them: `main` → [`cli`] → [`daemon`] → [`adapters`] → [`ports`]
//! → [`core`]. `tests/architecture.rs` reads the `use` lines and enforces it.

pub mod adapters;
pub mod cli;
pub mod daemon;
pub mod kubelet_log;
pub mod machine;
pub mod ports;
pub(crate) mod unit;
