//! The kubelet's credentials: files of every kind and state, TLS and its errors, and two simulated days of rotation.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "in a test a panic is the way to say that something is wrong"
)]

mod files;
mod rotation_48h;
mod tls;
