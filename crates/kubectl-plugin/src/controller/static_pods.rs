//! Static pods of control planes: an API server may be away although its Node is Ready.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::api::client::{ApiError, Client};
use crate::api::list::{Pager, Selector};
use crate::fleet::pool::node::unready_static_pod;

/// Where kubeadm and others have them.
const PODS: &str = "/api/v1/namespaces/kube-system/pods";

/// Of these Nodes, those with a static pod that is not Ready, and which.
pub(super) async fn unready(client: &Client, nodes: &[String]) -> Result<BTreeMap<String, String>, ApiError> {
    let mut unready = BTreeMap::new();
    for node in nodes {
        let selector = Selector::fields(format!("spec.nodeName={node}"));
        let read = |pod: &Value| Ok::<_, ApiError>(unready_static_pod(pod));
        let (pods, _) = Pager::new(client, PODS, "list pods in namespace kube-system", &selector).all(read).await?;
        unready.extend(pods.into_iter().next().map(|pod| (node.clone(), pod)));
    }
    Ok(unready)
}
