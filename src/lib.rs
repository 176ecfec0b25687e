//! # kubelet-supervisor
//!
//! Dynamic kubelet configuration around an unmodified kubelet, that cannot take a node down. This is the daemon; beside
//! it are `crates/config` (what daemon and plugin both know), `crates/exposition` (how both show things),
//! `crates/kubectl-plugin` and `crates/testkit`.
//!
//! ## Two processes
//!
//! `kubelet-supervisor run` is the [`monitor`]: it owns the kubelet, and does not think. Its child `kubelet-supervisor worker` is
//! everything else, and may die, hang or be replaced at any time; the kubelet goes on. They speak by
//! [`monitor::wire`] alone.
//!
//! ## Rooms
//!
//! | room | what it does | knows |
//! |---|---|---|
//! | [`cli`] | one verb a file; `run` starts the monitor, `worker` the daemon | all |
//! | [`daemon`] | the worker: its loop, the executor of effects, the wiring | adapters (`wire.rs` alone), monitor (its wire), ports, machine |
//! | [`adapters`] | one outside thing each: API server, kubelet, store, … | os, monitor (its wire), ports, machine |
//! | [`monitor`] | owns the kubelet: a pure transition, and one poll loop | os, machine (its words) |
//! | [`os`] | forks, descriptors, sockets: what both processes need, without a runtime | `kubelet_log` |
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
//! loop in [`daemon`] reads beside the next deadline. A question has a ticket, which its answer brings back, and
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
//!    bytes, then `Stop` and `Start` switch the kubelet (`machine/process.rs`, `adapters/kubelet_process.rs`, the monitor).
//! 5. `machine/health.rs` and `machine/trial.rs` hold the kubelet against its baseline until it is proven: last known
//!    good. Or the version is bad: last known good runs again, as the control test.
//! 6. After each step the status goes to the Node, to systemd, to metrics and to `status` (`machine/status.rs`).
//!
//! ## Threads
//!
//! The monitor has one thread, and one more for each start of the kubelet, which passes its standard error on
//! (`os/stderr_relay.rs`). In the worker one thread runs the machine, on a single-threaded runtime: the kernel ties a child's
//! parent-death signal to the thread that forks it. Long work is a task on that thread. The store has a thread of its own, which
//! serves one request at a time (`adapters/store_thread.rs`): the order of its writes is what makes a crash harmless, and a disk
//! that stalls stalls nothing else. Beside them there are the runtime's short threads for what may block.
//!
//! ## When something fails
//!
//! What cannot be read or reached is an outcome like others, and the kubelet goes on with the best configuration known.
//! A panic ends the worker, and another one goes on from the record. Without any worker the monitor starts what was started
//! last; after a boot what was last known good, else the unit's own command. A monitor that cannot begin becomes the
//! kubelet, by `exec` (`cli/run.rs`).

pub mod adapters;
pub mod cli;
pub mod daemon;
pub mod kubelet_log;
pub mod machine;
pub mod monitor;
pub mod os;
pub mod ports;
pub mod unit;
