//! Cordons of Nodes that are drained, and those that are left: the Node left the pool's selector, or the pool was deleted. No pool
//! that is reconciled would end these, so they are looked for apart.

use std::time::Duration;

use kube::ResourceExt as _;
use kube::runtime::reflector::Store;

use super::leader_elector::LeadershipGuard;
use super::nodes::NodeStore;
use crate::Failure;
use crate::api::client::{ApiError, Client};
use crate::api::nodes;
use crate::api::write::patch_node;
use crate::fleet::pool::drain::Cordon;
use crate::fleet::pool::node::PoolNode;
use crate::fleet::pool::types::KubeletConfigPool;
use crate::output;

/// They are looked for so often, among what is known anyway.
const EVERY: Duration = Duration::from_secs(10);

/// Cordons a Node for a pool, or ends that, if it is the one that was decided about; whether it is.
pub(super) async fn write_cordon(
    client: &Client,
    store: &NodeStore,
    guard: &LeadershipGuard,
    node: &str,
    pool: Option<&str>,
) -> Result<bool, ApiError> {
    let version = store.read(|nodes| nodes.get(node).map(|node| node.resource_version.clone()));
    let Some(version) = version.filter(|_| guard.is_leader()) else { return Ok(true) };
    let patch = Cordon::patch(pool, &version);
    match patch_node(client, node, &patch, false).await {
        Ok(answer) => {
            store.observe(&answer);
            Ok(true)
        }
        // It is another one by now: decided anew, by what it is then.
        Err(error) if matches!(error.code(), 404 | 409) => {
            if let Ok(node) = nodes::get(client, node).await {
                store.observe(&node);
            }
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// Never ends.
pub(super) async fn end_orphaned(
    client: &Client,
    store: &NodeStore,
    pools: &Store<KubeletConfigPool>,
    guard: &LeadershipGuard,
) {
    if pools.wait_until_ready().await.is_err() {
        return std::future::pending().await;
    }
    loop {
        let orphaned: Vec<String> = store.read(|nodes| {
            let orphaned = nodes.values().filter(|node| is_orphaned(node, pools));
            orphaned.map(|node| node.name.clone()).collect()
        });
        for node in orphaned {
            if let Err(error) = write_cordon(client, store, guard, &node, None).await {
                output::note(&format!("warning: {}", Failure::from(error).message));
            }
        }
        tokio::time::sleep(EVERY).await;
    }
}

/// It is cordoned for a pool that does not select it, or that is not there.
fn is_orphaned(node: &PoolNode, pools: &Store<KubeletConfigPool>) -> bool {
    let selects = |by: &str| {
        let is_that = |pool: &KubeletConfigPool| pool.name_any() == by && pool.metadata.deletion_timestamp.is_none();
        pools.find(|pool| is_that(pool) && pool.spec.node_selector.selects(&node.labels)).is_some()
    };
    node.cordoned_for().is_some_and(|by| !selects(by))
}
