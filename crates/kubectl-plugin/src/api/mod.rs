//! The API server as every command uses it: one client with one mapping of errors, one pager, one watch, one loop that
//! writes assignments. How long a command waits is a parameter of the client.

pub(crate) mod client;
pub(crate) mod list;
pub(crate) mod nodes;
pub(crate) mod pools;
pub(crate) mod watch;
pub(crate) mod write;
