//! All Nodes, as they were last seen, and since when.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::Stream;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::Failure;
use crate::api::client::Client;
use crate::api::list::Selector;
use crate::api::watch::{Event, Watcher, older};
use crate::fleet::pool::node::PoolNode;
use crate::fleet::pool::revision::{is_of_revision, revision_name};
use crate::output;
use kubelet_config::source::ConfigMapRef;

/// A Node that refused a write is written to again after this.
const UNWRITABLE: Duration = Duration::from_secs(300);

/// Shared by what follows the Nodes and what decides.
#[derive(Clone)]
pub(super) struct NodeStore {
    nodes: Arc<Mutex<Nodes>>,
    changed: Arc<Notify>,
    namespace: String,
}

#[derive(Default)]
struct Nodes {
    known: BTreeMap<String, PoolNode>,
    /// When a write into a Node was refused last. Whoever takes over finds that out again.
    refused: BTreeMap<String, Instant>,
}

/// Takes in what the API server says of Nodes.
pub(super) struct NodeReflector {
    store: NodeStore,
    watcher: Watcher,
    /// Names of a list that is being read.
    listed: BTreeSet<String>,
}

impl NodeStore {
    pub(super) fn follow(client: &Client) -> (Self, NodeReflector) {
        let store = Self { nodes: Arc::default(), changed: Arc::default(), namespace: client.namespace.clone() };
        let watcher = Watcher::new::<Node>(&client.for_reading(), "nodes", Selector::default());
        (store.clone(), NodeReflector { store, watcher, listed: BTreeSet::new() })
    }

    /// Whenever something changed that pools go by.
    pub(super) fn changes(&self) -> impl Stream<Item = ()> + Send + 'static {
        notified(Arc::clone(&self.changed))
    }

    /// Whether this Node is cordoned, for this pool or by an administrator.
    pub(super) fn cordon_holds(&self, name: &str, pool: &str) -> bool {
        self.nodes.lock().known.get(name).is_some_and(|node| node.cordon(pool).holds())
    }

    /// With all Nodes, as their clocks say it at this time of day. Of `current`, which all Nodes of a pool have finished, none
    /// waits until its proof is believed.
    pub(super) fn read_at<T>(
        &self,
        now: Timestamp,
        min_trial: Duration,
        current: Option<&ConfigMapRef>,
        read: impl FnOnce(&BTreeMap<String, PoolNode>) -> T,
    ) -> T {
        let current = current.map(revision_name);
        let mut nodes = self.nodes.lock();
        let Nodes { known, refused } = &mut *nodes;
        refused.retain(|_, at| at.elapsed() < UNWRITABLE);
        for (name, node) in known.iter_mut() {
            let is_current = matches!((&node.desired, &current), (Some(desired), Some(current))
                if is_of_revision(desired, current, &self.namespace));
            node.lasts = node.lasting_at(now, min_trial, is_current);
            node.unwritable = refused.contains_key(name);
        }
        read(known)
    }

    /// With all Nodes, as they were last seen.
    pub(super) fn read<T>(&self, read: impl FnOnce(&BTreeMap<String, PoolNode>) -> T) -> T {
        read(&self.nodes.lock().known)
    }

    /// A Node as it is now, or was: an older one than the one that is known is passed over.
    pub(super) fn observe(&self, node: &Value) {
        let node = PoolNode::from_node(node, &self.namespace);
        let mut nodes = self.nodes.lock();
        let former = nodes.known.get(&node.name);
        if former.is_some_and(|former| older(&node.resource_version, &former.resource_version)) {
            return;
        }
        let same = former.is_some_and(|former| former.differs_only_in_version(&node));
        nodes.known.insert(node.name.clone(), node);
        drop(nodes);
        if !same {
            self.changed.notify_one();
        }
    }

    /// It refuses to be written to: others have its turn for a while.
    pub(super) fn refused(&self, name: &str) {
        self.nodes.lock().refused.insert(name.to_owned(), Instant::now());
    }

    fn forget(&self, gone: impl Fn(&str) -> bool) {
        let mut nodes = self.nodes.lock();
        let before = nodes.known.len();
        nodes.known.retain(|name, _| !gone(name));
        nodes.refused.retain(|name, _| !gone(name));
        if nodes.known.len() != before {
            self.changed.notify_one();
        }
    }
}

impl NodeReflector {
    /// Until all Nodes were seen once: before, there is nothing to decide by.
    ///
    /// # Errors
    /// Nodes cannot be listed.
    pub(super) async fn wait_for_sync(&mut self) -> Result<(), Failure> {
        while !self.apply_next_event().await? {}
        Ok(())
    }

    /// Ends with a failure only.
    pub(super) async fn run(mut self) -> Failure {
        loop {
            if let Err(failure) = self.apply_next_event().await {
                return failure;
            }
        }
    }

    /// One event; whether a list is complete by it.
    async fn apply_next_event(&mut self) -> Result<bool, Failure> {
        match self.watcher.next().await? {
            Event::Init => self.listed.clear(),
            Event::Apply(node) => {
                self.listed.extend(name(&node).map(str::to_owned));
                self.store.observe(&node);
            }
            Event::Delete(node) => {
                let gone = name(&node).unwrap_or_default();
                self.store.forget(|name| name == gone);
            }
            Event::InitDone => {
                let listed = std::mem::take(&mut self.listed);
                self.store.forget(|name| !listed.contains(name));
                return Ok(true);
            }
            Event::Interrupted(failure) => output::note(&format!("warning: {}; trying on", failure.message)),
        }
        Ok(false)
    }
}

/// An item for each time that this is notified.
pub(super) fn notified(changed: Arc<Notify>) -> impl Stream<Item = ()> + Send + 'static {
    futures_util::stream::unfold(changed, |changed| async {
        changed.notified().await;
        Some(((), changed))
    })
}

fn name(node: &Value) -> Option<&str> {
    node.pointer("/metadata/name").and_then(Value::as_str)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::fleet::assign::ASSIGNED;
    use crate::fleet::pool::node::Given;

    fn store() -> NodeStore {
        NodeStore { nodes: Arc::default(), changed: Arc::default(), namespace: "ns".to_owned() }
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).unwrap()
    }

    proptest! {
        /// A leader that has followed the Nodes for a day sees nothing that one does not which has just listed them: how long
        /// something is so stands in the objects.
        #[test]
        fn a_leader_that_is_new_sees_what_one_sees_that_stays(
            changes in prop::collection::vec((0..3usize, any::<bool>(), any::<bool>(), 0..120i64), 1..60), min_trial in 1..900u64,
        ) {
            let (stays, mut now, mut version) = (store(), 0, 0);
            let mut objects: BTreeMap<usize, Value> = BTreeMap::new();
            for (number, ready, assigns, passes) in changes {
                (now, version) = (now + passes, version + 1);
                let node = objects.entry(number).or_insert_with(|| json!({
                    "metadata": {"name": format!("n{number}"), "uid": format!("u{number}"), "labels": {},
                        "creationTimestamp": at(now).to_string()},
                    "status": {"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": at(now).to_string()}]}}));
                node["metadata"]["resourceVersion"] = version.to_string().into();
                let status = if ready { "True" } else { "False" };
                if node["status"]["conditions"][0]["status"] != status {
                    node["status"]["conditions"][0] = json!({"type": "Ready", "status": status, "lastTransitionTime": at(now).to_string()});
                }
                if assigns {
                    let name = format!("{}name", kubelet_config::assignment::LABELS);
                    node["metadata"]["labels"] = json!({ASSIGNED: Given::Wave.label(at(now)), name: format!("m{version}")});
                }
                stays.observe(node);
                let new = store();
                for node in objects.values() {
                    new.observe(node);
                }
                let read = |store: &NodeStore| store.read_at(at(now), Duration::from_secs(min_trial), None, Clone::clone);
                prop_assert_eq!(read(&stays), read(&new));
            }
        }
    }
}
