//! The stand-in kubelet as an executable of its own (`[[example]] name = "stand-in-kubelet"`).
// Test support may panic, and its threads hold no process of ours.
#![allow(
    clippy::cast_precision_loss,
    clippy::default_trait_access,
    clippy::format_push_string,
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::needless_pass_by_value,
    clippy::panic,
    clippy::string_slice,
    clippy::unwrap_used
)]

#[allow(dead_code, unused_imports)] // the tests' half of the module: installing, reading the journal
#[path = "kubelet/mod.rs"]
mod kubelet;

fn main() {
    kubelet::run(std::env::args_os().collect())
}
