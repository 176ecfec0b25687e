//! Static pods of control planes: an API server may be away although its Node is Ready.

use std::collections::BTreeMap;

use crate::api::client::{ApiError, Client};
use crate::api::list::{Selector, list};
use crate::fleet::pool::node::{StaticPod, static_pod};

/// Where kubeadm and others have them.
const PODS: &str = "/api/v1/namespaces/kube-system/pods";

/// Of these Nodes, those with a static pod that is not Ready, and which; or without any, where others have some.
pub(super) async fn unready(client: &Client, nodes: &[String]) -> Result<BTreeMap<String, String>, ApiError> {
    let (mut unready, mut without) = (BTreeMap::new(), Vec::new());
    for node in nodes {
        let selector = Selector::default().fields(&format!("spec.nodeName={node}"));
        let read = |pod| static_pod(&pod);
        let pods = list(client, PODS, "list pods in namespace kube-system", selector, read).await?;
        if pods.is_empty() {
            without.push(node);
        }
        let away = pods.into_iter().find(|pod| !pod.is_ready);
        unready.extend(away.map(|StaticPod { name, .. }| (node.clone(), format!("{name} is not Ready"))));
    }
    if without.len() < nodes.len() {
        unready.extend(without.into_iter().map(|node| (node.clone(), "it has no static pod".to_owned())));
    }
    Ok(unready)
}
