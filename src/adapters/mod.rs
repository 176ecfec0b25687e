//! One outside thing each. They do not know each other, but for the exceptions that
//! `tests/architecture.rs` lists.

pub mod clock;
pub mod fsx;
pub mod host;
pub mod http;
pub mod kube;
pub mod local;
pub mod lock;
pub mod log;
pub mod metrics;
pub mod notify_socket;
pub mod preflight;
pub mod probe;
pub mod process;
pub mod reexec;
pub mod source_dir;
pub mod stderr_relay;
pub mod store;
pub mod systemd;
pub mod units;
