//! Where an assignment is written, who may write and read it, and what the API server keeps of it.

use crate::cluster::Cluster;

const MANIFESTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/packaging/manifests");

/// Lets every node read the ConfigMaps of the namespace `kubelet-config`.
pub fn grant(cluster: &Cluster) {
    cluster.kubectl(&["apply", "-k", &format!("{MANIFESTS}/base")]);
}
