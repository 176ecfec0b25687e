//! What is written into a Node, and what is looked at before.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{ASKED_AT_ONCE, PATCHES, Reconciler};
use crate::Failure;
use crate::api::client::ApiError;
use crate::api::nodes;
use crate::api::write::{AssignmentWriter, DryRun, Target, WriteError, patch_node};
use crate::controller::cordons::write_cordon;
use crate::controller::nodes::NodeStore;
use crate::controller::static_pods;
use crate::fleet::assign::{ASSIGNED, WrittenAssignment};
use crate::fleet::node::NodeRow;
use crate::fleet::pool::draining::DrainDecision;
use crate::fleet::pool::node::{Given, PoolNode, request, without_taint};
use crate::fleet::pool::preflight::Question;
use crate::fleet::pool::renderings::NodeAssignment;
use crate::fleet::pool::revision::RenderedRevision;
use crate::fleet::pool::types::KubeletConfigPool;
use kubelet_config::preflight::REQUEST_ANNOTATION;
use kubelet_config::source::ConfigMapRef;

impl Reconciler {
    /// Assigns, if the Node is still the one that was decided about; whether it is assigned that now.
    pub(super) async fn assign(
        &self,
        NodeAssignment { node: name, to, given }: &NodeAssignment,
        rendering: Option<&RenderedRevision>,
    ) -> Result<bool, Failure> {
        if let Some(rendering) = rendering {
            self.ensure_rendering(rendering).await?.map_err(Failure::new)?;
        }
        self.write(name, Some(to), *given).await
    }

    /// Withdraws the assignment of a Node; whether it has none now.
    pub(super) async fn reset(&self, name: &str) -> Result<bool, Failure> {
        self.write(name, None, Given::Back).await
    }

    async fn write(&self, name: &str, to: Option<&ConfigMapRef>, given: Given) -> Result<bool, Failure> {
        let now = |nodes: &NodeStore| {
            nodes.read(|nodes| {
                let node = nodes.get(name)?;
                let was_asked = node.preflight.as_ref().is_some_and(|it| Some(&it.request) == to.map(request).as_ref());
                Some((node.written.clone(), node.resource_version.clone(), was_asked))
            })
        };
        let Some((written, version, was_asked)) = now(&self.nodes) else { return Ok(true) };
        let now = (written, version);
        let keeps_source = self.memory.lock().keeps_source;
        // What it was asked before has its answer.
        let answered = if was_asked { json!({ REQUEST_ANNOTATION: null }) } else { json!({}) };
        let metadata = json!({"labels": {ASSIGNED: given.label(self.clock.now())}, "annotations": answered});
        let mut writer = AssignmentWriter { keeps_source, metadata, ..AssignmentWriter::new(None, DryRun::None) };
        let mut node = PoolWriteTarget { reconciler: self, name, now: Some(now) };
        let result = writer.write(&self.client, name, to, &mut node, PATCHES).await;
        self.memory.lock().keeps_source = writer.keeps_source;
        result.map_err(|error| match error {
            WriteError::Refused(why) => Failure::new(format!("node {name}: {why}")),
            WriteError::Failed(failure) => failure,
        })?;
        Ok(self.nodes.read(|nodes| nodes.get(name).is_none_or(|node| node.desired.as_ref() == to)))
    }

    /// Writes the first of these cordons that was not tried yet, those that end before those that begin; whether it was
    /// still the Node that was decided about. None: all were tried.
    pub(super) async fn next_cordon(
        &self,
        pool: &str,
        drain: &DrainDecision,
        tried: &mut BTreeSet<String>,
    ) -> Option<Result<bool, Failure>> {
        let ends = drain.uncordon.iter().map(|node| (node, None));
        let begins = drain.cordon.iter().map(|node| (node, Some(pool)));
        let (node, pool) = ends.chain(begins).find(|(node, _)| !tried.contains(*node))?;
        tried.insert(node.clone());
        let written = write_cordon(&self.client, &self.nodes, &self.guard, node, pool).await;
        if written.is_err() {
            self.nodes.refused(node); // it keeps no other one back
        }
        Some(written.map_err(Into::into))
    }

    /// Takes the pool's startup taint from a Node, whatever its effects. Taints are one list, so the write holds for the
    /// version of the Node that was read.
    pub(super) async fn remove_startup_taint(&self, pool: &KubeletConfigPool, name: &str) -> Result<(), Failure> {
        let node = nodes::get(&self.client, name).await?;
        let taint = pool.spec.startup_taint.as_deref().unwrap_or_default();
        if let Some(patch) = without_taint(&node, taint).filter(|_| self.guard.is_leader()) {
            let answer = patch_node(&self.client, name, &patch, false).await?;
            self.nodes.observe(&answer);
        }
        Ok(())
    }

    /// Asks Nodes for their preflight, some at a time: other pools have their turn between. One that cannot be asked keeps
    /// no other from it.
    pub(super) async fn ask(&self, questions: &[Question]) -> Result<(), Failure> {
        let mut failed = None;
        for Question { node, of } in questions.iter().take(ASKED_AT_ONCE) {
            if !self.guard.is_leader() {
                break;
            }
            let patch = json!({"metadata": {"annotations": {REQUEST_ANNOTATION: of.as_ref().map(request)}}});
            match patch_node(&self.client, node, &patch, false).await {
                Ok(answer) => self.nodes.observe(&answer),
                // It is gone, and the watch says so.
                Err(error) if error.code() == 404 => {}
                Err(error) => {
                    self.nodes.refused(node);
                    failed = Some(error.into());
                }
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Whether a Node may be given something as far as the static pods of control planes go: of all others than itself, if it
    /// is one of them, they have to run.
    pub(super) async fn static_pods_allow(&self, node: &str) -> bool {
        if !self.nodes.read(|nodes| nodes.get(node).is_some_and(PoolNode::is_control_plane)) {
            return true;
        }
        self.observe_static_pods().await && self.memory.lock().static_pods.keys().all(|other| other == node)
    }

    /// One of them was away when it was last looked, and this pool has control-plane Nodes.
    pub(super) fn waits_for_static_pods(&self, pool: &KubeletConfigPool) -> bool {
        let selects = |node: &PoolNode| node.is_control_plane() && pool.spec.node_selector.selects(&node.labels);
        let waits = !self.memory.lock().static_pods.is_empty();
        waits && self.nodes.read(|nodes| nodes.values().any(selects))
    }

    /// What is seen of the static pods of all control-plane Nodes counts in what is decided next. Where that may not be looked
    /// at, the Nodes' condition Ready has to do. False: it could not be seen now.
    pub(super) async fn observe_static_pods(&self) -> bool {
        let nodes: Vec<String> = self.nodes.read(|nodes| {
            nodes.values().filter(|node| node.is_control_plane()).map(|node| node.name.clone()).collect()
        });
        let seen = static_pods::unready(&self.client, &nodes).await;
        let is_seen = seen.as_ref().err().is_none_or(|error| error.code() == 403);
        match seen {
            Ok(unready) => self.memory.lock().static_pods = unready,
            Err(error) => {
                let why = Failure::from(error).message;
                crate::output::note(&format!("warning: static pods of control planes: {why}"));
                if is_seen {
                    self.memory.lock().static_pods.clear();
                }
            }
        }
        is_seen
    }
}

/// A Node while it is written to.
struct PoolWriteTarget<'a> {
    reconciler: &'a Reconciler,
    name: &'a str,
    now: Option<(WrittenAssignment, String)>,
}

impl Target for PoolWriteTarget<'_> {
    fn current(&self) -> Option<(WrittenAssignment, String)> {
        self.now.clone().filter(|_| self.reconciler.guard.is_leader())
    }

    fn answered(&mut self, node: &Value, _: DryRun) -> WrittenAssignment {
        self.reconciler.nodes.observe(node);
        let row = NodeRow::from_node(node, &self.reconciler.client.namespace);
        let written = WrittenAssignment::from_row(&row);
        self.now = Some((written.clone(), row.version));
        written
    }

    fn planned(&mut self, _: &Value) {}

    /// It is another one by now: decided anew, by what it is then.
    async fn failed(&mut self, error: ApiError) -> Result<bool, Failure> {
        if !matches!(error.code(), 404 | 409) && !error.may_pass() {
            return Err(error.into());
        }
        if let Ok(node) = nodes::get(&self.reconciler.client, self.name).await {
            self.reconciler.nodes.observe(&node);
        }
        Ok(false)
    }
}
