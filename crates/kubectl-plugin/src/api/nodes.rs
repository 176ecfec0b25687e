//! Nodes: which ones a command is about, read by pages or followed, and no more kept of them than is shown.

use std::collections::{BTreeSet, VecDeque};

use k8s_openapi::api::core::v1::Node;
use kube::api::GetParams;
use kube::core::request::Request as Path;
use serde_json::Value;

use super::client::{ApiError, Client, segment};
use super::list::{Selector, list};
use super::watch::{Event, Watcher};
use crate::failure::Failure;
use crate::fleet::node::NodeRow;

pub(crate) const NODES: &str = "/api/v1/nodes";

/// Which nodes a command is about.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodeSelection {
    /// These.
    pub(crate) names: Vec<String>,
    /// Those with these labels.
    pub(crate) labels: Option<String>,
}

impl NodeSelection {
    /// As the user has them: `node/NAME` is `NAME`.
    pub(crate) fn new(names: Vec<String>, labels: Option<String>) -> Self {
        Self { names: names.into_iter().map(|name| bare_name(&name).to_owned()).collect(), labels }
    }

    /// No node is selected, though names may be of some.
    pub(crate) fn nothing(&self) -> Failure {
        let selector = self.labels.as_deref().unwrap_or_default();
        Failure::new(format!("no node has the labels {selector:?}: kubectl get nodes --show-labels"))
    }

    /// A single name the API server can select.
    fn selector(&self) -> Selector {
        let field_selector =
            if let [name] = self.names.as_slice() { Some(format!("metadata.name={name}")) } else { None };
        Selector { label_selector: self.labels.clone(), field_selector, ..Selector::default() }
    }
}

/// `node/NAME` is `NAME`.
pub(crate) fn bare_name(name: &str) -> &str {
    match name.split_once('/') {
        Some(("node" | "nodes" | "no", bare)) => bare,
        _ => name,
    }
}

/// Reads the nodes, all if nothing is selected, sorted by name. A name that is no node's keeps no other from being read.
pub(crate) async fn read_each(
    client: &Client,
    selection: &NodeSelection,
) -> Result<(Vec<NodeRow>, Vec<Failure>), Failure> {
    let (mut rows, mut failed) = (Vec::new(), Vec::new());
    if selection.names.is_empty() {
        let read = |node| Some(NodeRow::from_node(&node, &client.namespace));
        rows = list(client, NODES, "list nodes", selection.selector(), read).await?;
    } else {
        for name in &selection.names {
            match get(client, name).await {
                Ok(node) => rows.push(NodeRow::from_node(&node, &client.namespace)),
                Err(error) => failed.push(error.into()),
            }
        }
    }
    rows.sort_by(|one, other| one.name.cmp(&other.name));
    rows.dedup_by(|one, other| one.name == other.name);
    Ok((rows, failed))
}

/// One Node as it is.
pub(crate) async fn get(client: &Client, name: &str) -> Result<Value, ApiError> {
    // Names come from users, records and other nodes: what cannot be one is no part of a path.
    let request = segment(name, "node").and_then(|name| Path::new(NODES).get(name, &GetParams::default()));
    client.request(&format!("get node {name}"), request).await
}

/// What became of a node.
pub(crate) enum NodeEvent {
    /// It is so now.
    Applied(Box<NodeRow>),
    /// It is gone, or not selected any more.
    Deleted(String),
}

/// Selected nodes, followed.
pub(crate) struct NodeWatcher {
    watcher: Watcher,
    namespace: String,
    selection: NodeSelection,
    /// Names of the nodes that were shown.
    known: BTreeSet<String>,
    due: VecDeque<NodeEvent>,
}

impl NodeWatcher {
    /// Lists the nodes, sorted by name.
    pub(crate) async fn new(client: &Client, selection: NodeSelection) -> Result<(Self, Vec<NodeRow>), Failure> {
        let watcher = Watcher::new::<Node>(client, "nodes", selection.selector());
        let (namespace, known) = (client.namespace.clone(), BTreeSet::new());
        let mut nodes = Self { watcher, namespace, selection, known, due: VecDeque::new() };
        let rows = nodes.list().await?;
        nodes.known = rows.iter().map(|row| row.name.clone()).collect();
        Ok((nodes, rows))
    }

    /// The next change, for as long as that takes. After a gap that the API server cannot bridge (410) each node is
    /// shown as it is. An API server that is away is waited for, and said to be once.
    ///
    /// # Errors
    /// A refusal that will stay one.
    pub(crate) async fn next(&mut self) -> Result<NodeEvent, Failure> {
        loop {
            if let Some(event) = self.due.pop_front() {
                return Ok(event);
            }
            match self.watcher.next().await? {
                Event::Init => {
                    let rows = self.list().await?;
                    let known = rows.iter().map(|row| row.name.clone()).collect();
                    let gone = self.known.difference(&known).cloned().map(NodeEvent::Deleted);
                    self.due.extend(gone.chain(rows.into_iter().map(|row| NodeEvent::Applied(Box::new(row)))));
                    self.known = known;
                }
                Event::Apply(node) => {
                    if let Some(row) = self.row(&node) {
                        self.known.insert(row.name.clone());
                        return Ok(NodeEvent::Applied(Box::new(row)));
                    }
                }
                Event::Delete(node) => {
                    let name = node.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
                    if self.known.remove(name) {
                        return Ok(NodeEvent::Deleted(name.to_owned()));
                    }
                }
                Event::Interrupted(failure) => eprintln!("warning: {}; trying on", failure.message),
                Event::InitDone => {}
            }
        }
    }

    /// All of a list that begins, or has begun.
    async fn list(&mut self) -> Result<Vec<NodeRow>, Failure> {
        let mut rows = Vec::new();
        loop {
            match self.watcher.next().await? {
                Event::Init => rows.clear(),
                Event::Apply(node) => rows.extend(self.row(&node)),
                Event::InitDone => {
                    rows.sort_by(|one: &NodeRow, other| one.name.cmp(&other.name));
                    return Ok(rows);
                }
                Event::Delete(_) | Event::Interrupted(_) => {}
            }
        }
    }

    fn row(&self, node: &Value) -> Option<NodeRow> {
        let names = &self.selection.names;
        Some(NodeRow::from_node(node, &self.namespace)).filter(|row| names.is_empty() || names.contains(&row.name))
    }
}
