//! The API server: watches in, status and events out, queries for Lease and pods.

mod access;
mod backoff;
mod client_layer;
mod cluster;
mod credentials;
mod decode;
mod exec_credential;
mod identity;
mod outbox;
mod proxy;
mod rate_limiter;
mod requests;
mod search;
mod session;
mod standalone;
mod transport;
mod types;
mod watch;

pub use access::{Access, Connected, KubeconfigAccess};
pub use client_layer::{ClientLayer, ClientSignals};
pub use cluster::KubeCluster;
pub use credentials::{CredentialFiles, Fingerprint, Login};
pub use standalone::Standalone;
