//! Many nodes at once, as an administrator sees them through the API server: `kubectl kubelet-config`.

pub mod assign;
pub mod compare;
pub mod defaults;
pub mod doctor;
pub mod explain;
pub mod happened;
pub mod hash;
pub mod node;
pub mod place;
pub mod rollout;
pub mod schema;
pub mod view;
pub mod wait;
