//! Many nodes at once, as an administrator sees them through the API server: `kubectl kubelet-config`.

pub(crate) mod assign;
pub(crate) mod compare;
pub(crate) mod config_ref;
pub mod configmap_name;
pub mod doctor;
pub(crate) mod events;
pub(crate) mod explain;
pub(crate) mod field_paths;
pub(crate) mod leader_election;
pub mod node;
pub mod pool;
pub(crate) mod preflight;
pub(crate) mod view;
pub(crate) mod wait;
pub(crate) mod way_back;

/// So far the clocks of two machines may be apart.
const MAX_CLOCK_SKEW: jiff::SignedDuration = jiff::SignedDuration::from_secs(60);

/// A Node that is younger has just joined. Its first kubelet pulls images of static pods and waits for its network, so that it
/// may not have said anything; and it has no pods yet that a change could hurt.
const YOUNG: std::time::Duration = std::time::Duration::from_secs(600);
