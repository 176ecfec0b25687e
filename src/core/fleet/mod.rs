//! Many nodes at once, as an administrator sees them through the API server: `kubectl kubelet-config`.

pub mod node;
pub mod rollout;
