//! One pool: its revision, its status, its Nodes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kube::ResourceExt as _;
use kube::api::{Api, GetParams, Patch, PatchParams, PostParams};
use kube::core::request::Request as Path;
use kube::runtime::controller::Action;
use kube::runtime::reflector::{ObjectRef, Store};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::events::EventRecorder;
use super::leader_elector::LeadershipGuard;
use super::nodes::NodeStore;
use super::static_pods;
use crate::Failure;
use crate::api::client::{ApiError, Client};
use crate::api::nodes;
use crate::api::watch::older;
use crate::api::write::{AssignmentWriter, Goal, Mode, Target, patch_node};
use crate::clock::Clock;
use crate::fleet::assign::WrittenAssignment;
use crate::fleet::node::NodeRow;
use crate::fleet::pool::decide::{Cluster, Decision, NodeAssignment, Pool, decide, max_unavailable};
use crate::fleet::pool::node::{PoolNode, without_taint};
use crate::fleet::pool::report;
use crate::fleet::pool::revision::{APPROVED_REVISION, Revision, check_stored};
use crate::fleet::pool::types::{KubeletConfigPool, KubeletConfigPoolSpec, KubeletConfigPoolStatus};
use kubelet_config::source::ConfigMapRef;

/// Whose fields these are, in `metadata.managedFields`.
const MANAGER: &str = "kubelet-config-controller";
/// After an error, and while a revision is not there.
const REQUEUE_AFTER: Duration = Duration::from_secs(10);
/// After a write that did not take effect.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// A revision that was there so long ago is looked at again before a Node gets it.
const REVISION_KNOWN: Duration = Duration::from_secs(30);
/// Counts alone are written so often: each Node on its way changes some, and who watches needs none of them at once.
const COUNTS_EVERY: Duration = Duration::from_secs(10);
/// Patches of one Node: two carriers and a clean-up, each tried again once.
const PATCHES: u32 = 6;

/// What a reconciliation needs.
pub(super) struct Reconciler {
    client: Client,
    nodes: NodeStore,
    pools: Store<KubeletConfigPool>,
    guard: LeadershipGuard,
    events: EventRecorder,
    clock: Clock,
    /// By uid of a pool: as it was answered, until the watch has it too, and when.
    written: Mutex<HashMap<String, (KubeletConfigPool, Instant)>>,
    /// By uid of a pool: the generation whose revision was there, and when.
    revisions: Mutex<HashMap<String, (i64, Instant, ConfigMapRef)>>,
    keeps_source: Mutex<Option<bool>>,
    /// Control-plane Nodes with a static pod that was not Ready, and which.
    static_pods: Mutex<BTreeMap<String, String>>,
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

/// The revision that a spec describes.
enum UpdateRevision {
    Present(ConfigMapRef),
    /// Why it is not there, for people.
    Invalid(String),
}

impl UpdateRevision {
    fn as_result(&self) -> Result<&ConfigMapRef, &str> {
        match self {
            Self::Present(reference) => Ok(reference),
            Self::Invalid(why) => Err(why),
        }
    }
}

pub(super) async fn reconcile(
    pool: Arc<KubeletConfigPool>,
    reconciler: Arc<Reconciler>,
) -> Result<Action, ReconcileError> {
    reconciler.reconcile(&pool).await
}

pub(super) fn on_error(_: Arc<KubeletConfigPool>, _: &ReconcileError, _: Arc<Reconciler>) -> Action {
    Action::requeue(REQUEUE_AFTER)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Reconciler {
    pub(super) fn new(
        client: Client,
        nodes: NodeStore,
        pools: Store<KubeletConfigPool>,
        guard: LeadershipGuard,
    ) -> Self {
        let (written, revisions, keeps_source, static_pods) = Default::default();
        let events = EventRecorder::new(client.streaming().clone(), MANAGER);
        Self { client, nodes, pools, guard, events, clock: Clock::new(), written, revisions, keeps_source, static_pods }
    }

    /// Decides anew before each write of a Node: what changed meanwhile, of the pool or of any Node, counts.
    async fn reconcile(&self, seen: &KubeletConfigPool) -> Result<Action, ReconcileError> {
        let mut tried = BTreeSet::new();
        let (mut failed, mut next) = (None, None);
        // What waited for them is decided by what they are now.
        if !lock(&self.static_pods).is_empty() {
            self.look_at_static_pods().await?;
            next = Some(RETRY_AFTER);
        }
        loop {
            let pool = self.newest(seen);
            if !self.guard.is_leader() || pool.metadata.deletion_timestamp.is_some() {
                return Ok(Action::await_change());
            }
            let update = self.ensure_revision(&pool).await?;
            let decision = self.decide(&pool, &update);
            next = earliest([next, decision.next, update.as_result().err().map(|_| REQUEUE_AFTER)]);
            let assignment = decision.assign.iter().find(|it| !tried.contains(&it.node));
            // The counts of each step between are of no interest to anybody.
            let is_last = assignment.is_none() || tried.is_empty();
            if is_last && pool.status.as_ref() != Some(&decision.status) {
                match self.counts_wait(&pool, &decision.status) {
                    Some(wait) => next = earliest([next, Some(wait)]),
                    None => self.write_status(&pool, &decision.status).await?,
                }
            }
            let Some(assignment) = assignment else {
                for node in &decision.untaint {
                    failed = self.remove_startup_taint(&pool, node).await.err().or(failed);
                }
                break;
            };
            tried.insert(assignment.node.clone());
            if self.is_control_plane(&assignment.node) {
                self.look_at_static_pods().await?;
                if lock(&self.static_pods).keys().any(|node| *node != assignment.node) {
                    next = Some(RETRY_AFTER);
                    continue;
                }
            }
            match self.assign(assignment).await {
                Ok(true) => {}
                Ok(false) => next = earliest([next, Some(RETRY_AFTER)]),
                // One that cannot be written to keeps no other one back.
                Err(error) => failed = Some(error),
            }
        }
        match failed {
            Some(error) => Err(error),
            None => Ok(next.map_or_else(Action::await_change, Action::requeue)),
        }
    }

    fn is_control_plane(&self, node: &str) -> bool {
        self.nodes.read(|nodes| nodes.get(node).is_some_and(PoolNode::is_control_plane))
    }

    /// Looks at the static pods of all control-plane Nodes; what was seen counts in what is decided next. Where that may
    /// not be looked at, the Nodes' condition Ready has to do.
    async fn look_at_static_pods(&self) -> Result<(), ReconcileError> {
        let nodes: Vec<String> = self.nodes.read(|nodes| {
            nodes.values().filter(|node| node.is_control_plane()).map(|node| node.name.clone()).collect()
        });
        let unready = match static_pods::unready(&self.client, &nodes).await {
            Err(error) if error.code() == 403 => BTreeMap::new(),
            result => result?,
        };
        *lock(&self.static_pods) = unready;
        Ok(())
    }

    fn decide(&self, pool: &KubeletConfigPool, update: &UpdateRevision) -> Decision {
        // What selects Nodes by a requirement that makes no sense selects none.
        let pools = self.pools.state().into_iter().filter(|pool| pool.spec.node_selector.fault().is_none());
        let pools: Vec<(String, KubeletConfigPoolSpec)> =
            pools.map(|pool| (pool.name_any(), pool.spec.clone())).collect();
        let unseen = KubeletConfigPoolStatus { observed_generation: -1, ..KubeletConfigPoolStatus::default() };
        let name = pool.name_any();
        let view = Pool {
            name: &name,
            generation: pool.metadata.generation.unwrap_or_default(),
            spec: &pool.spec,
            status: pool.status.as_ref().unwrap_or(&unseen),
            approved: pool.annotations().get(APPROVED_REVISION).map(String::as_str),
            update: update.as_result(),
            namespace: &self.client.namespace,
        };
        let static_pods = lock(&self.static_pods).clone();
        let now = self.clock.now();
        self.nodes.read(|nodes| decide(&view, &Cluster { nodes, pools: &pools, static_pods: &static_pods, now }))
    }

    /// The pool as the watch has it, or as it was written last, which may not have come back yet.
    fn newest(&self, seen: &KubeletConfigPool) -> KubeletConfigPool {
        let watched = self.pools.get(&ObjectRef::from_obj(seen)).filter(|pool| pool.uid() == seen.uid());
        let pool = watched.map_or_else(|| seen.clone(), |pool| (*pool).clone());
        let version = |pool: &KubeletConfigPool| pool.resource_version().unwrap_or_default();
        match lock(&self.written).get(&pool.uid().unwrap_or_default()) {
            Some((ours, _)) if older(&version(&pool), &version(ours)) => ours.clone(),
            _ => pool,
        }
    }

    /// The revision that the spec describes: one that the controller makes is there then.
    async fn ensure_revision(&self, pool: &KubeletConfigPool) -> Result<UpdateRevision, ReconcileError> {
        let (uid, generation) = (pool.uid().unwrap_or_default(), pool.metadata.generation.unwrap_or_default());
        let known = lock(&self.revisions).get(&uid).cloned();
        if let Some((_, _, revision)) = known.filter(|(of, at, _)| *of == generation && at.elapsed() < REVISION_KNOWN) {
            return Ok(UpdateRevision::Present(revision));
        }
        let strategy = &pool.spec.rollout;
        let fault = pool.spec.node_selector.fault().or_else(|| max_unavailable(&strategy.max_unavailable, 1).err());
        let revision =
            fault.map_or_else(|| Revision::of_spec(&pool.name_any(), &pool.spec, &self.client.namespace), Err);
        let revision = match revision {
            Ok(revision) => revision,
            Err(why) => return Ok(UpdateRevision::Invalid(why)),
        };
        let checked = match self.ensure_config_map(&revision).await {
            Ok(Some(stored)) => check_stored(&stored, &revision),
            Ok(None) => {
                let (name, namespace) = (&revision.reference().name, &self.client.namespace);
                Err(format!(
                    "spec.configMap.name: there is no ConfigMap {name} in namespace {namespace}: make it with \
                     `kubectl kubelet-config push FILE -n {namespace}`, or correct the name"
                ))
            }
            // No right, too large, no such namespace, a policy: that stays so, and is for the pool to say.
            Err(error) if (400..500).contains(&error.code()) && error.code() != 429 => {
                Err(Failure::from(error).message)
            }
            Err(error) => return Err(error.into()),
        };
        Ok(match checked {
            Ok(()) => {
                let reference = revision.reference().clone();
                lock(&self.revisions).insert(uid, (generation, Instant::now(), reference.clone()));
                UpdateRevision::Present(reference)
            }
            Err(why) => UpdateRevision::Invalid(why),
        })
    }

    /// The ConfigMap of a revision; one that the controller makes is made, if it is not there.
    async fn ensure_config_map(&self, revision: &Revision) -> Result<Option<Value>, ApiError> {
        let path = Path::new(format!("/api/v1/namespaces/{}/configmaps", self.client.namespace));
        let name = &revision.reference().name;
        let stored =
            self.client.optional(&format!("get ConfigMap {name}"), path.get(name, &GetParams::default())).await?;
        let (None, Revision::Rendered(rendered)) = (&stored, revision) else { return Ok(stored) };
        let params = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
        let create = path.create(&params, rendered.object.to_string().into_bytes());
        self.client.request(&format!("create ConfigMap {name}"), create).await.map(Some)
    }

    /// For how long this status may wait: nothing but counts is new, and some were written a moment ago.
    fn counts_wait(&self, pool: &KubeletConfigPool, status: &KubeletConfigPoolStatus) -> Option<Duration> {
        let written = lock(&self.written);
        let (_, at) = written.get(&pool.uid().unwrap_or_default())?;
        let wait = COUNTS_EVERY.checked_sub(at.elapsed()).filter(|wait| !wait.is_zero())?;
        pool.status.as_ref().is_some_and(|before| report::differs_in_counts_only(before, status)).then_some(wait)
    }

    /// The status, if the pool is still the one that was decided about.
    async fn write_status(
        &self,
        pool: &KubeletConfigPool,
        status: &KubeletConfigPoolStatus,
    ) -> Result<(), ReconcileError> {
        let name = pool.name_any();
        let what = format!("write the status of pool {name}");
        let object = json!({
            "apiVersion": "kubelet-supervisor.io/v1alpha1", "kind": "KubeletConfigPool",
            "metadata": {"name": name, "resourceVersion": pool.resource_version()}, "status": status,
        });
        let pools: Api<KubeletConfigPool> = Api::all(self.client.streaming().clone());
        let params = PatchParams::apply(MANAGER).force();
        let patch = Patch::Apply(&object);
        let answer = pools.patch_status(&name, &params, &patch);
        let written = tokio::time::timeout(self.client.retry_policy.answer, answer).await;
        let written = written.map_err(|_| ApiError::no_answer(&what))?;
        let written = written.map_err(|error| ApiError::from_kube(&what, error))?;
        lock(&self.written).insert(pool.uid().unwrap_or_default(), (written, Instant::now()));
        self.events.tell(pool, status).await;
        Ok(())
    }

    /// Takes the pool's startup taint from a Node, whatever its effects. Taints are one list, so the write holds for the
    /// version of the Node that was read.
    async fn remove_startup_taint(&self, pool: &KubeletConfigPool, name: &str) -> Result<(), ReconcileError> {
        let node = nodes::get(&self.client, name).await?;
        let taint = pool.spec.startup_taint.as_deref().unwrap_or_default();
        if let Some(patch) = without_taint(&node, taint).filter(|_| self.guard.is_leader()) {
            let answer = self.client.once(&format!("patch node {name}"), patch_node(name, &patch, false)).await?;
            self.nodes.observe(&answer);
        }
        Ok(())
    }

    /// Assigns, if the Node is still the one that was decided about; whether it is assigned that now.
    async fn assign(&self, NodeAssignment { node: name, to }: &NodeAssignment) -> Result<bool, ReconcileError> {
        let now = |nodes: &NodeStore| {
            nodes.read(|nodes| nodes.get(name).map(|node| (node.written.clone(), node.resource_version.clone())))
        };
        let Some(now) = now(&self.nodes) else { return Ok(true) };
        let keeps_source = *lock(&self.keeps_source);
        let mut writer = AssignmentWriter { keeps_source, ..AssignmentWriter::new(None, Mode::Real) };
        let mut node = PoolWriteTarget { reconciler: self, name, now: Some(now) };
        let result = writer.write(&self.client, name, Goal::Assign(Some(to)), &mut node, PATCHES).await;
        *lock(&self.keeps_source) = writer.keeps_source;
        result.map_err(|error| ReconcileError(error.into_failure(name)))?;
        Ok(self.nodes.read(|nodes| nodes.get(name).is_none_or(|node| node.desired.as_ref() == Some(to))))
    }
}

fn earliest<const N: usize>(of: [Option<Duration>; N]) -> Option<Duration> {
    of.into_iter().flatten().min()
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
