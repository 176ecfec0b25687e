//! What the kubelet writes to its log: one grammar of its records, for all who read it. Pure.
//!
//! Lines become records (`reader.rs`); a record is one of a logger, an end, a line of a stack, or plain. Of those that may tell why
//! the kubelet ended the strongest counts (`cause.rs`):
//!
//! | strength | records | of several |
//! |---|---|---|
//! | crash | `panic: `, `fatal error: ` with the `runtime: ` lines before it, `runtime/cgo: `, the C library, the dynamic linker | the first |
//! | farewell | severity F, `command failed` and other errors after which kubelets leave, v1.20's JSON before stacks | the first |
//! | bare | `Error: `, of the command line or of a credential plugin | the first |
//! | signal | `SIGQUIT: quit`, `Killed` | the first |
//! | caught | `Observed a panic`, `runtime error` in an error | the last |
//! | complaint | any other error; a line of no logger that begins as one, or is the last | the last |
//!
//! A record is none of these if the last one is over 10 s younger, or if over 32 records of loggers follow (over 8, from *caught*
//! on). Stacks, registers and memory are never a reason, nor is information. An indented line belongs to the record before it:
//! it is the rest of a panic, an error or a value (`err=<` to ` >`), or the candidate's.

mod cause;
mod dump;
mod line;
mod pairs;
mod reader;
mod record;
mod redact;
mod time;

pub use cause::fatal;
pub(crate) use cause::{Strength, ended, last_error};
pub(crate) use line::{Severity, is_trace};
pub(crate) use reader::{records, vendor};
pub(crate) use record::{Kind, Record};
pub(crate) use redact::{redact, shown};
