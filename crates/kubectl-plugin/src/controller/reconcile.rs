//! One pool: its revision, its status, its Nodes.

mod collect;
mod node_writes;
mod renderings;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use kube::api::{Patch, PatchParams};
use kube::core::request::Request as Path;
use kube::runtime::controller::Action;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Resource as _, ResourceExt as _};
use parking_lot::{MappedMutexGuard, Mutex, MutexGuard};
use serde_json::json;
use tokio::time::Instant;

use super::drains::Drains;
use super::events;
use super::leader_elector::LeadershipGuard;
use super::nodes::NodeStore;
use crate::Failure;
use crate::api::client::Client;
use crate::api::pools::{POOLS, StoredPool};
use crate::api::watch::older;
use crate::clock::Clock;
use crate::fleet::pool::decide::{Cluster, Decision, Pool, decide};
use crate::fleet::pool::renderings::{RevisionTarget, StoredRevision};
use crate::fleet::pool::report;
use crate::fleet::pool::revision::{APPROVED_REVISION, RenderedRevision, Revision, RevisionFault, check_stored};
use crate::fleet::pool::types::{KubeletConfigPool, KubeletConfigPoolSpec, KubeletConfigPoolStatus};

/// After an error, and while a revision is not there, or a static pod.
const REQUEUE_AFTER: Duration = Duration::from_secs(10);
/// After a write that did not take effect.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// A revision that was there so long ago is looked at again before a Node gets it.
const REVISION_KNOWN: Duration = Duration::from_secs(30);
/// Counts alone are written so often: each Node on its way changes some, and who watches needs none of them at once.
const COUNTS_EVERY: Duration = Duration::from_secs(10);
/// 5,000 Nodes are asked within a minute, each of which reads the ConfigMap.
const ASKED_AT_ONCE: usize = 100;
/// Patches of one Node: two carriers and a clean-up, each tried again once.
const PATCHES: u32 = 6;

/// A list of all revisions is not to be had at each change; what is too much hurts nobody for an hour.
const COLLECT_EVERY: Duration = Duration::from_secs(3600);

/// When old revisions were deleted last, and whether it is known that they may not be.
#[derive(Debug, Default)]
struct Collection {
    at: Option<Instant>,
    is_refused: bool,
}

/// What a reconciliation needs.
pub(super) struct Reconciler {
    pub(super) client: Client,
    pub(super) nodes: NodeStore,
    pub(super) pools: Store<KubeletConfigPool>,
    pub(super) guard: LeadershipGuard,
    pub(super) drains: Drains,
    pub(super) clock: Clock,
    pub(super) memory: Mutex<Memory>,
}

/// What earlier reconciliations saw and did.
#[derive(Default)]
pub(super) struct Memory {
    /// By uid of a pool.
    pools: HashMap<String, PoolMemory>,
    /// ConfigMaps of single results, and when they were there.
    rendered: HashMap<String, Instant>,
    collection: Collection,
    keeps_source: Option<bool>,
    /// Control-plane Nodes with a static pod that was not Ready, and which.
    static_pods: BTreeMap<String, String>,
}

#[derive(Default)]
struct PoolMemory {
    /// As it was answered, until the watch has it too, and when.
    written: Option<(KubeletConfigPool, Instant)>,
    revision: Option<SeenRevision>,
    /// What its status names as current.
    current: Option<Arc<StoredRevision>>,
}

/// A generation's revision, which was there then.
#[derive(Clone)]
struct SeenRevision {
    generation: i64,
    at: Instant,
    revision: Arc<StoredRevision>,
}

/// The revision that a spec describes, or why it is not there.
type UpdateRevision = Result<Arc<StoredRevision>, RevisionFault>;

pub(super) async fn reconcile(pool: Arc<KubeletConfigPool>, reconciler: Arc<Reconciler>) -> Result<Action, Failure> {
    reconciler.reconcile(&pool).await
}

pub(super) fn on_error(_: Arc<KubeletConfigPool>, _: &Failure, _: Arc<Reconciler>) -> Action {
    Action::requeue(REQUEUE_AFTER)
}

impl Reconciler {
    fn memory_of(&self, pool: &KubeletConfigPool) -> MappedMutexGuard<'_, PoolMemory> {
        let uid = pool.uid().unwrap_or_default();
        MutexGuard::map(self.memory.lock(), |memory| memory.pools.entry(uid).or_default())
    }

    /// Decides anew before each write of a Node: what changed meanwhile, of the pool or of any Node, counts.
    async fn reconcile(&self, seen: &KubeletConfigPool) -> Result<Action, Failure> {
        self.forget_deleted();
        let (mut tried, mut cordoned) = (BTreeSet::new(), BTreeSet::new());
        let (mut failed, mut next) = (None, None);
        // What waited for them is decided by what they are now.
        if self.waits_for_static_pods(seen) {
            self.observe_static_pods().await;
            next = Some(REQUEUE_AFTER);
        }
        loop {
            // One that is gone, or was made anew under its name, is carried out no further.
            let Some(pool) = self.newest(seen) else { return Ok(Action::await_change()) };
            if !self.guard.is_leader() || pool.metadata.deletion_timestamp.is_some() {
                return Ok(Action::await_change());
            }
            let update = self.ensure_revision(&pool).await?;
            let update = self.ensure_renderings(&pool, update).await?;
            let current = self.current_revision(&pool, update.as_ref().ok()).await?;
            let (decision, rendering) = self.decide(&pool, &update, current.as_deref(), &tried);
            next = earliest([next, decision.next, update.err().map(|_| REQUEUE_AFTER)]);
            let drain = &decision.drain;
            if !decision.keeps_drains {
                self.drains.follow(&pool.name_any(), pool.spec.rollout.drain, drain);
            }
            if let Some(written) = self.next_cordon(&pool.name_any(), drain, &mut cordoned).await {
                match written {
                    Ok(true) => {}
                    Ok(false) => next = earliest([next, Some(RETRY_AFTER)]),
                    Err(error) => failed = Some(error),
                }
                continue;
            }
            let assignment = decision.assign.iter().find(|it| !tried.contains(&it.node));
            // Before the status says that all is done: whoever waits for that finds none left.
            for node in decision.untaint.iter().filter(|_| assignment.is_none()) {
                failed = self.remove_startup_taint(&pool, node).await.err().or(failed);
            }
            // The counts of each step between are of no interest to anybody.
            let is_last = assignment.is_none() || tried.is_empty();
            if is_last && pool.status.as_ref() != Some(&decision.status) {
                match self.counts_wait(&pool, &decision.status) {
                    Some(wait) => next = earliest([next, Some(wait)]),
                    None => self.write_status(&pool, &decision.status).await?,
                }
            }
            let reset = decision.reset.iter().find(|node| !tried.contains(*node));
            let Some(node) = assignment.map(|it| &it.node).or(reset) else {
                failed = self.ask(&decision.ask).await.err().or(failed);
                if decision.ask.len() > ASKED_AT_ONCE {
                    next = Some(RETRY_AFTER);
                }
                break;
            };
            tried.insert(node.clone());
            if !self.static_pods_allow(node).await {
                next = Some(REQUEUE_AFTER);
                continue;
            }
            let written = match assignment {
                Some(assignment) => self.assign(assignment, rendering.as_deref()).await,
                None => self.reset(node).await,
            };
            match written {
                Ok(true) => {}
                Ok(false) => next = earliest([next, Some(RETRY_AFTER)]),
                // One that cannot be written to keeps no other one back.
                Err(error) => {
                    self.nodes.refused(node);
                    failed = Some(error);
                }
            }
        }
        self.collect().await;
        match failed {
            Some(error) => Err(error),
            None => Ok(Action::requeue(next.map_or(COLLECT_EVERY, |next| next.min(COLLECT_EVERY)))),
        }
    }

    /// What is remembered of pools that are there no more.
    fn forget_deleted(&self) {
        let pools = self.pools.state();
        self.drains.retain_pools(|name| pools.iter().any(|pool| pool.name_any() == name));
        let uids: BTreeSet<String> = pools.iter().filter_map(|pool| pool.uid()).collect();
        self.memory.lock().pools.retain(|uid, _| uids.contains(uid));
    }

    /// What is to be done, and the ConfigMap of the first assignment, if that is a result of expressions.
    fn decide(
        &self,
        pool: &KubeletConfigPool,
        update: &UpdateRevision,
        current: Option<&StoredRevision>,
        tried: &BTreeSet<String>,
    ) -> (Decision, Option<Arc<RenderedRevision>>) {
        let pools: Vec<(String, KubeletConfigPoolSpec)> =
            self.pools.state().iter().map(|pool| (pool.name_any(), pool.spec.clone())).collect();
        let unseen = KubeletConfigPoolStatus { observed_generation: -1, ..KubeletConfigPoolStatus::default() };
        let name = pool.name_any();
        let static_pods = self.memory.lock().static_pods.clone();
        let now = self.clock.now();
        let min_trial = Duration::from_secs(pool.spec.rollout.min_trial_seconds.into());
        self.nodes.read_at(now, min_trial, current.map(StoredRevision::reference), |nodes| {
            let selected = || nodes.values().filter(|node| pool.spec.node_selector.selects(&node.labels));
            let update = update.as_ref().map(|update| update.target(selected())).map_err(Clone::clone);
            let update = update.and_then(|(target, fault)| match fault {
                Err(fault) if !target.is_begun(pool.status.as_ref(), selected()) => Err(fault),
                _ => Ok(target),
            });
            // What a Node that joined cannot get keeps no other from getting it.
            let current = current.map(|current| current.target(selected()).0);
            let view = Pool {
                name: &name,
                generation: pool.metadata.generation.unwrap_or_default(),
                spec: &pool.spec,
                status: pool.status.as_ref().unwrap_or(&unseen),
                approved: pool.annotations().get(APPROVED_REVISION).map(String::as_str),
                update: update.as_ref(),
                current: current.as_ref(),
                namespace: &self.client.namespace,
            };
            let drains = self.drains.states(nodes);
            let cluster = Cluster { nodes, pools: &pools, static_pods: &static_pods, drains: &drains, now };
            let decision = decide(&view, &cluster);
            let first = decision.assign.iter().find(|it| !tried.contains(&it.node));
            let targets: [Option<&RevisionTarget<'_>>; 2] = [update.as_ref().ok(), current.as_ref()];
            let rendering = first.and_then(|first| {
                let renderings = targets.into_iter().flatten().filter_map(|target| target.rendering(&first.node));
                renderings.into_iter().find(|rendering| rendering.reference == first.to)
            });
            (decision, rendering)
        })
    }

    /// The pool as the watch has it, or as it was written last, which may not have come back yet; none: it is gone.
    fn newest(&self, seen: &KubeletConfigPool) -> Option<KubeletConfigPool> {
        let watched = self.pools.get(&ObjectRef::from_obj(seen)).filter(|pool| pool.uid() == seen.uid())?;
        let pool = (*watched).clone();
        let version = |pool: &KubeletConfigPool| pool.resource_version().unwrap_or_default();
        match &self.memory_of(&pool).written {
            Some((ours, _)) if older(&version(&pool), &version(ours)) => Some(ours.clone()),
            _ => Some(pool),
        }
    }

    /// The revision that the spec describes: one that the controller makes is there then.
    async fn ensure_revision(&self, pool: &KubeletConfigPool) -> Result<UpdateRevision, Failure> {
        let generation = pool.metadata.generation.unwrap_or_default();
        let known = self.memory_of(pool).revision.clone().filter(|seen| seen.generation == generation);
        if let Some(seen) = &known
            && seen.at.elapsed() < REVISION_KNOWN
        {
            return Ok(Ok(Arc::clone(&seen.revision)));
        }
        let revision = match Revision::of_spec(&pool.name_any(), &pool.spec, &self.client.namespace) {
            Ok(revision) => revision,
            Err(fault) => return Ok(Err(fault)),
        };
        let checked = match self.ensure_config_map(revision.reference(), revision.object()).await? {
            Err(why) => Err(why),
            Ok(Some(stored)) => check_stored(&stored, &revision),
            Ok(None) => {
                let (name, namespace) = (&revision.reference().name, &self.client.namespace);
                Err(format!(
                    "spec.configMap.name: there is no ConfigMap {name} in namespace {namespace}: make it with \
                     `kubectl kubelet-config push FILE -n {namespace}`, or correct the name"
                ))
            }
        };
        Ok(match checked {
            Ok(()) => {
                // With what it has evaluated.
                let revision = known.map_or_else(|| Arc::new(revision.into()), |seen| seen.revision);
                let seen = SeenRevision { generation, at: Instant::now(), revision: Arc::clone(&revision) };
                self.memory_of(pool).revision = Some(seen);
                Ok(revision)
            }
            Err(why) => Err(RevisionFault::invalid(why)),
        })
    }

    /// For how long this status may wait: nothing but counts is new, and some were written a moment ago.
    fn counts_wait(&self, pool: &KubeletConfigPool, status: &KubeletConfigPoolStatus) -> Option<Duration> {
        let since = self.memory_of(pool).written.as_ref().map(|(_, at)| at.elapsed())?;
        let wait = COUNTS_EVERY.checked_sub(since).filter(|wait| !wait.is_zero())?;
        pool.status.as_ref().is_some_and(|before| report::differs_in_counts_only(before, status)).then_some(wait)
    }

    /// The status, if the pool is still the one that was decided about.
    async fn write_status(&self, pool: &KubeletConfigPool, status: &KubeletConfigPoolStatus) -> Result<(), Failure> {
        let name = pool.name_any();
        let what = format!("write the status of pool {name}");
        let object = json!({
            "apiVersion": KubeletConfigPool::api_version(&()), "kind": KubeletConfigPool::kind(&()),
            "metadata": {"name": name, "resourceVersion": pool.resource_version()}, "status": status,
        });
        let params = PatchParams::apply(self.client.manager).force();
        let request = Path::new(POOLS).patch_subresource("status", &name, &params, &Patch::Apply(&object));
        let written = StoredPool::new(self.client.request(&what, request).await?)?;
        self.memory_of(pool).written = Some((written.pool, Instant::now()));
        events::tell(&self.client, pool, status).await;
        Ok(())
    }
}

fn earliest<const N: usize>(of: [Option<Duration>; N]) -> Option<Duration> {
    of.into_iter().flatten().min()
}
