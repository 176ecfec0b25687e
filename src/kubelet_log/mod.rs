//! What the kubelet writes to its log: how its lines are read, which one tells why it died, and what of a line may be
//! shown. Pure.

mod cause;
pub(crate) mod parse;
mod redact;

pub use cause::fatal;
pub(crate) use cause::is_stack_frame;
pub(crate) use redact::redact;
