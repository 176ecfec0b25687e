//! Many nodes at once, as an administrator sees them through the API server: `kubectl kubelet-config`.

pub mod assign;
pub mod doctor;
pub mod node;
pub mod view;
pub mod wait;
