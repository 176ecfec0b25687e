//! The kubelet's command line, read the way pflag reads it.
//!
//! Syntax measured on v1.20.2: `--a=b`, `--a b`, `-v2`, booleans never take the next argument, `_` in names
//! is `-`, the last occurrence of a scalar wins, `--` ends the flags, leading arguments are
//! sub-commands (`hyperkube kubelet …`).

mod args;
mod overlay;
mod overrides;
mod refused;
mod table;
#[cfg(test)]
mod tests;

pub(crate) use args::NATIVE_GATE;
pub use args::{ConfigDir, KubeletArgs};
pub use overlay::Setting;
pub(crate) use overlay::set;
pub use overrides::{FlagOverrides, KEY_SUFFIX};
pub(crate) use refused::IDENTITY_LABELS;
pub use refused::{LEFT_TO_POLICY, refused_for_good};
