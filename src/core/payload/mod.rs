//! From a payload's text to the configuration the kubelet is given.

pub mod duration;
pub mod merge;
pub mod render;
pub mod yaml;
