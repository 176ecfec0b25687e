//! A kubelet's unit as systemd reads it, and the drop-in that puts the supervisor into it.
//!
//! Grammar: systemd.syntax(7) and config_parse of systemd's src/shared/conf-parser.c (v252): a
//! line that ends in a backslash goes on in the next one, whose indentation is dropped; comments
//! between the two are skipped; `Key=` empties what was set before.

mod command;
mod launcher;
mod plan;
mod service;
#[cfg(test)]
mod tests;

pub(crate) use command::distribution;
pub use command::split_command;
pub use plan::{Plan, Request, ServiceType, plan};
pub(crate) use service::{DROP_IN, drop_in_path, unit_name};
pub use service::{Properties, UnitFile};
