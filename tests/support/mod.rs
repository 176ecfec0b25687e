//! What the system tests and the README's demo share: a small Kubernetes API server and a stand-in kubelet.
//!
//! Every test binary includes this module and uses a part of it, hence the `allow`.
#![allow(dead_code, unused_imports)]
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

pub mod api_server;
pub mod kubelet;
pub mod port;
