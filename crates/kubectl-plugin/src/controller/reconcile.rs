//! One pool: its revision, its status, its Nodes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kube::ResourceExt as _;
use kube::api::{Api, GetParams, Patch, PatchParams, PostParams};
use kube::core::request::Request as Path;
use kube::runtime::controller::Action;
use kube::runtime::reflector::Store;
use serde_json::{Value, json};

use super::leadership::Term;
use super::nodes::NodeStore;
use crate::Failure;
use crate::api::client::{ApiError, Client};
use crate::api::nodes;
use crate::api::watch::older;
use crate::api::write::{AssignmentWriter, Goal, Mode, NOT_KEPT, Target, WriteError};
use crate::clock::Clock;
use crate::fleet::assign::WrittenAssignment;
use crate::fleet::node::NodeRow;
use crate::fleet::pool::decide::{Cluster, Decision, Pool, decide, max_unavailable};
use crate::fleet::pool::revision::{Revision, check_stored};
use crate::fleet::pool::types::{KubeletConfigPool, KubeletConfigPoolSpec, KubeletConfigPoolStatus};
use kubelet_config::source::ConfigMapRef;

/// Whose fields these are, in `metadata.managedFields`.
const MANAGER: &str = "kubelet-config-controller";
/// Annotation of a pool: the revision whose canaries somebody looked at.
const APPROVED: &str = "kubelet-supervisor.io/approved-revision";
/// After an error, and while a revision is not there.
const AGAIN: Duration = Duration::from_secs(10);
/// Two carriers, a contradiction to remove, and as many troubles.
const PATCHES: u32 = 6;

/// What a reconciliation needs.
pub(super) struct Reconciler {
    client: Client,
    nodes: NodeStore,
    pools: Store<KubeletConfigPool>,
    term: Term,
    clock: Clock,
    /// By pool: as it was answered, until the watch has it too.
    answered: Mutex<HashMap<String, KubeletConfigPool>>,
    /// By pool: the generation whose revision is known to be there.
    revisions: Mutex<HashMap<String, (i64, ConfigMapRef)>>,
    keeps_source: Mutex<Option<bool>>,
}

/// Why a pool could not be reconciled.
#[derive(Debug)]
pub(super) struct ReconcileError(Failure);

impl ReconcileError {
    pub(super) fn message(&self) -> &str {
        &self.0.message
    }
}

impl std::fmt::Display for ReconcileError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.message())
    }
}

impl std::error::Error for ReconcileError {}

impl<F: Into<Failure>> From<F> for ReconcileError {
    fn from(failure: F) -> Self {
        Self(failure.into())
    }
}

pub(super) async fn reconcile(
    pool: Arc<KubeletConfigPool>,
    reconciler: Arc<Reconciler>,
) -> Result<Action, ReconcileError> {
    reconciler.reconcile(&pool).await
}

pub(super) fn on_error(_: Arc<KubeletConfigPool>, _: &ReconcileError, _: Arc<Reconciler>) -> Action {
    Action::requeue(AGAIN)
}

impl Reconciler {
    pub(super) fn new(client: Client, nodes: NodeStore, pools: Store<KubeletConfigPool>, term: Term) -> Self {
        Self {
            client,
            nodes,
            pools,
            term,
            clock: Clock::new(),
            answered: Mutex::default(),
            revisions: Mutex::default(),
            keeps_source: Mutex::default(),
        }
    }

    async fn reconcile(&self, seen: &KubeletConfigPool) -> Result<Action, ReconcileError> {
        let pool = self.newest(seen);
        if !self.term.holds() || pool.metadata.deletion_timestamp.is_some() {
            return Ok(Action::await_change());
        }
        let name = pool.name_any();
        let update = self.revision(&pool).await?;
        let decision = self.decide(&pool, &name, update.as_ref().map_err(String::as_str));
        if pool.status.as_ref() != Some(&decision.status) {
            self.write_status(&pool, &decision.status).await?;
        }
        // One that cannot be written to keeps no other one back.
        let mut failed = None;
        for (node, to) in &decision.assign {
            if !self.term.holds() {
                return Ok(Action::await_change());
            }
            failed = self.assign(node, to.as_ref()).await.err().or(failed);
        }
        if let Some(error) = failed {
            return Err(error);
        }
        let next = decision.next.or_else(|| update.is_err().then_some(AGAIN));
        Ok(next.map_or_else(Action::await_change, Action::requeue))
    }

    fn decide(&self, pool: &KubeletConfigPool, name: &str, update: Result<&ConfigMapRef, &str>) -> Decision {
        let pools: Vec<(String, KubeletConfigPoolSpec)> =
            self.pools.state().iter().map(|pool| (pool.name_any(), pool.spec.clone())).collect();
        let unseen = KubeletConfigPoolStatus { observed_generation: -1, ..KubeletConfigPoolStatus::default() };
        let view = Pool {
            name,
            generation: pool.metadata.generation.unwrap_or_default(),
            spec: &pool.spec,
            status: pool.status.as_ref().unwrap_or(&unseen),
            approved: pool.annotations().get(APPROVED).map(String::as_str),
            update,
            namespace: &self.client.namespace,
        };
        self.nodes.read(|nodes| decide(&view, &Cluster { nodes, pools: &pools, now: self.clock.now() }))
    }

    /// What this controller wrote last may not have come back yet.
    fn newest(&self, seen: &KubeletConfigPool) -> KubeletConfigPool {
        let version = |pool: &KubeletConfigPool| pool.resource_version().unwrap_or_default();
        let mut answered = self.answered.lock().unwrap_or_else(PoisonError::into_inner);
        match answered.get(&seen.name_any()) {
            Some(ours) if ours.uid() == seen.uid() && older(&version(seen), &version(ours)) => ours.clone(),
            _ => {
                answered.remove(&seen.name_any());
                seen.clone()
            }
        }
    }

    /// The revision that the spec says, which is there then; else why it is not, for people.
    async fn revision(&self, pool: &KubeletConfigPool) -> Result<Result<ConfigMapRef, String>, ReconcileError> {
        let (name, generation) = (pool.name_any(), pool.metadata.generation.unwrap_or_default());
        let known = self.revisions.lock().unwrap_or_else(PoisonError::into_inner).get(&name).cloned();
        if let Some((_, revision)) = known.filter(|(of, _)| *of == generation) {
            return Ok(Ok(revision));
        }
        let fault =
            pool.spec.node_selector.fault().or_else(|| max_unavailable(&pool.spec.rollout.max_unavailable, 1).err());
        let revision = match fault.map_or_else(|| Revision::of_spec(&name, &pool.spec, &self.client.namespace), Err) {
            Ok(revision) => revision,
            Err(why) => return Ok(Err(why)),
        };
        let Some(stored) = self.stored(&revision).await? else {
            return Ok(Err(format!(
                "there is no ConfigMap {} in namespace {}",
                revision.reference().name,
                self.client.namespace
            )));
        };
        Ok(check_stored(&stored, &revision).map(|()| {
            let reference = revision.reference().clone();
            let mut known = self.revisions.lock().unwrap_or_else(PoisonError::into_inner);
            known.insert(name, (generation, reference.clone()));
            reference
        }))
    }

    /// The ConfigMap of a revision as it is there; one that the controller makes is made.
    async fn stored(&self, revision: &Revision) -> Result<Option<Value>, ApiError> {
        let path = Path::new(format!("/api/v1/namespaces/{}/configmaps", self.client.namespace));
        let name = &revision.reference().name;
        if let Revision::Rendered(rendered) = revision {
            let params = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
            let create = path.create(&params, rendered.object.to_string().into_bytes());
            match self.client.request(&format!("create ConfigMap {name}"), create).await {
                Ok(stored) => return Ok(Some(stored)),
                Err(error) if error.is_conflict() => {}
                Err(error) => return Err(error),
            }
        }
        self.client.optional(&format!("get ConfigMap {name}"), path.get(name, &GetParams::default())).await
    }

    /// The status, if the pool is still the one that was decided about.
    async fn write_status(
        &self,
        pool: &KubeletConfigPool,
        status: &KubeletConfigPoolStatus,
    ) -> Result<(), ReconcileError> {
        let name = pool.name_any();
        let object = json!({
            "apiVersion": "kubelet-supervisor.io/v1alpha1", "kind": "KubeletConfigPool",
            "metadata": {"name": name, "resourceVersion": pool.resource_version()}, "status": status,
        });
        let pools: Api<KubeletConfigPool> = Api::all(self.client.streaming().clone());
        let written = pools.patch_status(&name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(&object)).await;
        let written =
            written.map_err(|error| ApiError::from_kube(&format!("write the status of pool {name}"), error))?;
        self.answered.lock().unwrap_or_else(PoisonError::into_inner).insert(name, written);
        Ok(())
    }

    /// Assigns, or withdraws, if the Node is still the one that was decided about.
    async fn assign(&self, name: &str, to: Option<&ConfigMapRef>) -> Result<(), ReconcileError> {
        let Some((written, version)) =
            self.nodes.read(|nodes| nodes.get(name).map(|node| (node.written.clone(), node.version.clone())))
        else {
            return Ok(());
        };
        let keeps = *self.keeps_source.lock().unwrap_or_else(PoisonError::into_inner);
        let mut writer = AssignmentWriter { keeps_source: keeps, ..AssignmentWriter::new(None, Mode::Real) };
        let mut node = FollowedNode { reconciler: self, name, now: Some((written, version)) };
        let result = writer.write(&self.client, name, Goal::Assign(to), &mut node, PATCHES).await;
        *self.keeps_source.lock().unwrap_or_else(PoisonError::into_inner) = writer.keeps_source;
        result.map_err(|error| {
            ReconcileError(match error {
                WriteError::Refused(why) => Failure::new(format!("node {name}: {why}")),
                WriteError::NoSource => {
                    Failure::new(format!("patch node {name}: the API server refuses its spec.configSource"))
                }
                WriteError::NotKept => Failure::new(format!("patch node {name}: {NOT_KEPT}")),
                WriteError::Failed(failure) => failure,
            })
        })
    }
}

/// A Node while it is written to.
struct FollowedNode<'a> {
    reconciler: &'a Reconciler,
    name: &'a str,
    now: Option<(WrittenAssignment, String)>,
}

impl Target for FollowedNode<'_> {
    fn current(&self) -> Option<(WrittenAssignment, String)> {
        self.now.clone().filter(|_| self.reconciler.term.holds())
    }

    fn answered(&mut self, node: &Value, _: Mode) -> WrittenAssignment {
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
