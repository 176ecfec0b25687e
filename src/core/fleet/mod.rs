//! Many nodes at once, as an administrator sees them through the API server: `kubectl kubelet-config`.

pub mod doctor;
pub mod node;
