//! Many nodes at once, as an administrator sees them through the API server: `kubectl kubelet-config`.

pub mod assign;
pub mod compare;
pub mod config_ref;
pub mod configmap_name;
pub mod defaults;
pub mod doctor;
pub mod events;
pub mod explain;
pub(crate) mod fields;
pub mod node;
pub mod rollout;
pub mod schema;
pub mod view;
pub mod wait;
