//! # kubelet-supervisor
//!
//! Dynamic kubelet configuration around an unmodified kubelet, that cannot take a node down. This is the daemon; beside
//! it are `crates/config` (what daemon and plugin both know), `crates/exposition` (how both show things),
//! `crates/kubectl-plugin` and `crates/testkit`.
//!
//! ## Rooms
//!
//! | room | what it does | knows |
//! |---|---|---|
//! | [`cli`] | one verb a file; `run` starts the daemon | all |
//! | [`daemon`] | the loop, the executor of effects, the wiring, what is left after a panic | adapters (`wire.rs` alone), ports, machine |
//! | [`adapters`] | one outside thing each: API server, kubelet process, store, systemd, … | ports, machine |
//! | [`ports`] | what effects need of the outside, as traits, and their errors | machine |
//! | [`machine`] | decides everything on a node; pure | `kubelet_log` |
//! | [`kubelet_log`], [`mod@unit`] | the kubelet's log lines, systemd's unit files; pure | nothing |
//!
//! Below all of them is `kubelet_config`: sources, payloads, rendering, flags, hazards, the status document. Pure rooms
//! have no IO, clock or environment. `tests/architecture/main.rs` reads the source and enforces all this.
//! `docs/development/architecture.md` has the file of each behaviour.
//!
//! ## Theory of operation
//!
//! The machine is a function: [`State::step`](machine::State::step) takes an input and the time, changes the state, and
//! gives effects. Inputs say what happened (a Node, a ConfigMap, an exit, a verdict, a signal, a deadline). The
//! [`Executor`](daemon::exec::Executor) turns effects into calls of ports, which answer later, through the one queue that the
//! loop in [`daemon`] reads beside signals and the next deadline. A question has a ticket, which its answer brings back, and
//! a deadline in the machine: an answer may never come.
//!
//! What happens to a change:
//!
//! 1. `adapters/kube` (or `adapters/local_files`) watches the own Node and its ConfigMap: `Input::Node`, `ConfigMap`.
//! 2. `machine/change.rs` asks for each step, and goes on with its outcome: `Save` writes a checkpoint (`adapters/store`),
//!    `Load` puts payload, local file and flags together (`kubelet_config::rendering`) and keeps what comes out under its
//!    digest, `Preflight` lets the kubelet's own binary load and validate it (`adapters/preflight`). Equal content is only
//!    recorded under its new name (`machine/change/candidate.rs`).
//! 3. The baseline is taken: which health signals are good before the change.
//! 4. `Record` makes the decision durable. From then on `machine/ladder.rs` wants the version: `machine/launch.rs` loads its
//!    bytes, then `Stop` and `Start` switch the kubelet (`machine/process.rs`, `adapters/process`).
//! 5. `machine/health.rs` and `machine/trial.rs` hold the kubelet against its baseline until it is proven: last known
//!    good. Or the version is bad: last known good runs again, as the control test.
//! 6. After each step the status goes to the Node, to systemd, to metrics and to `status` (`machine/status.rs`).
//!
//! ## Threads
//!
//! One thread runs the machine, on a single-threaded runtime: the kernel ties a child's parent-death signal to the thread
//! that spawned it. Long work is a task on that thread. The store has a thread of its own, which serves one request at a
//! time (`adapters/store_thread.rs`): the order of its writes is what makes a crash harmless, and a disk that stalls stalls
//! nothing else. Beside them there are the runtime's short threads for what may block, and one for each start of the
//! kubelet that passes its standard error on (`adapters/stderr_relay.rs`).
//!
//! ## When something fails
//!
//! What cannot be read or reached is an outcome like others, and the kubelet goes on with the best configuration known.
//! A panic ends the machine and not the kubelet (`daemon/failopen.rs`). A supervisor that cannot begin becomes the
//! kubelet, by `exec` (`daemon/wire.rs`).

pub mod adapters;
pub mod cli;
pub mod daemon;
pub mod kubelet_log;
pub mod machine;
pub mod ports;
pub mod unit;
