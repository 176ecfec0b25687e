//! One outside thing each. They do not know each other, but for the exceptions that
//! `tests/architecture` lists.

pub mod clock;
pub(crate) mod file_watch;
pub mod fsx;
pub(crate) mod host;
pub(crate) mod http;
pub(crate) mod inotify;
pub mod kube;
pub mod kubelet_process;
pub mod local_files;
pub(crate) mod lock;
pub(crate) mod log;
pub mod metrics;
pub mod policy;
pub mod preflight;
pub(crate) mod probe;
pub mod process;
pub mod store;
pub mod store_thread;
pub(crate) mod systemctl;
mod tcp_table;
