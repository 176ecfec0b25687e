//! What the system tests and the README's demo share: a small Kubernetes API server and a stand-in kubelet.
//!
//! Every test binary includes this module and uses a part of it, hence the `allow`.
#![allow(dead_code, unused_imports)]

pub mod api_server;
pub mod kubelet;
pub mod port;
