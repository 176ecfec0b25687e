//! Pools: which Nodes are to have which configuration, and how a change gets there.
//!
//! Nothing but the API server remembers how far a pool is: what it is to have stands in its spec, what it has had and what
//! failed in its status, and how far each Node is the Node says itself. [`decide`] is a function of these, so a controller
//! that takes over from a dead one goes on as that one would have.

mod canaries;
mod class;
pub(crate) mod collect;
pub(crate) mod decide;
pub mod drain;
pub(crate) mod draining;
pub(crate) mod edit;
mod expressions;
mod jitter;
pub(crate) mod leave;
pub(crate) mod node;
pub(crate) mod preflight;
mod profiles;
pub(crate) mod progress;
pub(crate) mod remaining;
pub(crate) mod renderings;
pub(crate) mod report;
pub(crate) mod revision;
mod selector;
pub(crate) mod selector_text;
mod status;
mod template;
pub(crate) mod template_revision;
#[cfg(test)]
mod template_tests;
#[cfg(test)]
mod tests;
pub mod types;
mod windows;
