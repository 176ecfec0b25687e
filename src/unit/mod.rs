//! A kubelet's unit as systemd reads it, and the drop-in that puts the supervisor into it.
//!
//! Grammar: systemd.syntax(7) and config_parse of systemd's src/shared/conf-parser.c (v252): a
//! line that ends in a backslash goes on in the next one, whose indentation is dropped; comments
//! between the two are skipped; `Key=` empties what was set before.

mod command;
mod plan;
mod service;
#[cfg(test)]
mod tests;

pub use command::{Command, quote, split_command};
pub use plan::{Plan, Request, ServiceType, plan};
pub use service::{DROP_IN, Properties, UnitFile, drop_in_path, span, unit_name};
