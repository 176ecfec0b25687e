//! The kubelet's credentials: files of every kind and state, TLS and its errors, and two simulated days of rotation.

mod files;
mod rotation_48h;
mod tls;
mod transport;
