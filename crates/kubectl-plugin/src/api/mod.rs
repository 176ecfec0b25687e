//! The API server as every command uses it.

pub(crate) mod client;
pub(crate) mod follow;
pub(crate) mod list;
pub(crate) mod nodes;
pub(crate) mod pace;
pub(crate) mod watch;
pub(crate) mod write;
