//! What the tests share: a small Kubernetes API server, a stand-in kubelet, the simulator, a fleet of supervisors in one
//! process, and rigs that start the built programs.
#![allow(missing_docs, reason = "for tests alone")]
#![allow(
    clippy::cast_precision_loss,
    clippy::default_trait_access,
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::format_push_string,
    clippy::indexing_slicing,
    clippy::missing_errors_doc,
    clippy::missing_panics_doc,
    clippy::must_use_candidate,
    clippy::needless_for_each,
    clippy::needless_pass_by_value,
    clippy::new_without_default,
    clippy::panic,
    clippy::return_self_not_must_use,
    clippy::should_implement_trait,
    clippy::single_match_else,
    clippy::string_slice,
    clippy::unchecked_time_subtraction,
    clippy::unnecessary_wraps,
    clippy::unwrap_used,
    reason = "test support may panic, its threads hold no process of ours, and brevity wins"
)]

pub mod api_server;
pub mod built;
pub mod document;
pub mod fleet;
pub mod interrupt;
pub mod kubelet;
pub mod node;
pub mod pools;
pub mod port;
pub mod restarted;
pub mod rig;
pub mod sim;
