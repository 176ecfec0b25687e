//! All Nodes, as they were last seen, and since when.

use std::collections::{BTreeMap, BTreeSet, HashMap};
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
use crate::fleet::pool::node::{NodePreflight, PoolNode};
use crate::fleet::pool::revision::{is_of_revision, revision_name};
use crate::fleet::pool::types::Proof;
use crate::output;
use kubelet_config::source::ConfigMapRef;

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
    since: HashMap<String, Since>,
}

#[derive(Default)]
struct Since {
    unready: Option<Instant>,
    updating: Option<Instant>,
    /// What it is assigned now.
    assigned: Option<Instant>,
    unanswered: Option<Instant>,
    unasked: Option<Instant>,
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

    /// With all Nodes, as they are at this time of day, which says whose proof is too early; whatever other clocks said, none
    /// that was seen to be assigned for `min_trial`. Of `current`, which all Nodes of a pool have finished, none is.
    pub(super) fn read_at<T>(
        &self,
        now: Timestamp,
        min_trial: Duration,
        current: Option<&ConfigMapRef>,
        read: impl FnOnce(&BTreeMap<String, PoolNode>) -> T,
    ) -> T {
        let current = current.map(revision_name);
        let mut nodes = self.nodes.lock();
        let Nodes { known, since } = &mut *nodes;
        for (name, node) in known.iter_mut() {
            let seen =
                since.get(name).and_then(|since| since.assigned).map(|since| since.elapsed()).unwrap_or_default();
            let is_current = matches!((&node.desired, &current), (Some(desired), Some(current))
                if is_of_revision(desired, current, &self.namespace));
            let most = if is_current { Duration::ZERO } else { min_trial.saturating_sub(seen) };
            node.lasts.proof_waits = node.proof_waits_at(now).min(most);
        }
        drop(nodes);
        self.read(read)
    }

    /// With all Nodes, as they are now.
    pub(super) fn read<T>(&self, read: impl FnOnce(&BTreeMap<String, PoolNode>) -> T) -> T {
        let mut nodes = self.nodes.lock();
        let Nodes { known, since } = &mut *nodes;
        let now = Instant::now();
        for (name, node) in known.iter_mut() {
            let times = since.entry(name.clone()).or_default();
            let passed = |since: Option<Instant>| since.map(|since| now - since).unwrap_or_default();
            node.lasts.unready = passed(times.unready);
            node.lasts.updating = passed(times.updating);
            node.lasts.unanswered = passed(times.unanswered);
            node.lasts.unasked = passed(times.unasked);
        }
        read(known)
    }

    /// A Node as it is now, or was: an older one than the one that is known is passed over.
    pub(super) fn observe(&self, node: &Value) {
        let node = PoolNode::from_node(node, &self.namespace);
        let mut nodes = self.nodes.lock();
        let former = nodes.known.get(&node.name);
        if former.is_some_and(|former| older(&node.resource_version, &former.resource_version)) {
            return;
        }
        let moved = former.is_none_or(|former| former.desired != node.desired);
        let same = former.is_some_and(|former| former.differs_only_in_version(&node));
        let request = (former.and_then(|former| former.preflight.as_ref()), node.preflight.as_ref());
        let is_same_request = matches!(request, (Some(one), Some(other)) if one.is_same_request(other));
        let now = Instant::now();
        let since = nodes.since.entry(node.name.clone()).or_default();
        let keep = |since: &mut Option<Instant>, holds: bool| *since = holds.then(|| since.unwrap_or(now));
        if moved {
            (since.updating, since.assigned) = (None, Some(now));
        }
        if !is_same_request {
            (since.unanswered, since.unasked) = (None, None);
        }
        keep(&mut since.unanswered, node.preflight.as_ref().is_some_and(NodePreflight::is_open));
        keep(&mut since.unready, !node.ready);
        keep(&mut since.updating, !node.waits && (node.is_in_flight(Proof::Proven) || node.is_returning()));
        nodes.known.insert(node.name.clone(), node);
        drop(nodes);
        if !same {
            self.changed.notify_one();
        }
    }

    /// It could not be asked for its preflight: it is waited for no longer than one that does not answer.
    pub(super) fn could_not_ask(&self, name: &str) {
        if let Some(since) = self.nodes.lock().since.get_mut(name) {
            since.unasked.get_or_insert_with(Instant::now);
        }
    }

    /// Nodes that are assigned such a version are on their way to it since now.
    pub(super) fn restart_updates(&self, is_tried_again: impl Fn(&ConfigMapRef) -> bool) {
        let mut nodes = self.nodes.lock();
        let Nodes { known, since } = &mut *nodes;
        for node in known.values().filter(|node| node.desired.as_ref().is_some_and(&is_tried_again)) {
            if let Some(updating) = since.get_mut(&node.name).and_then(|since| since.updating.as_mut()) {
                *updating = Instant::now();
            }
        }
    }

    fn forget(&self, gone: impl Fn(&str) -> bool) {
        let mut nodes = self.nodes.lock();
        let before = nodes.known.len();
        nodes.known.retain(|name, _| !gone(name));
        nodes.since.retain(|name, _| !gone(name));
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
