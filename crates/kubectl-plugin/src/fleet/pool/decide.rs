//! What is to be written next, from a pool's spec and status and from what the Nodes say.
//!
//! Every count is made anew of the Nodes each time: there is nothing that could be out of date. What is decided once and
//! for all (a revision is bad, a revision is current) is written into the status, and nothing is done by it before it
//! stands there.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use sha2::{Digest as _, Sha256};

use super::node::PoolNode;
use super::report::{self, Counts, Situation};
use super::revision::{from_label, is_of_pool, label};
use super::types::{
    BadRevision, BadRevisionNode, KubeletConfigPoolSpec, KubeletConfigPoolStatus, OnFailure, OnLeave, Proof,
    RolloutStrategy,
};
use crate::fleet::rollout::observed::Progress;
use kubelet_config::source::ConfigMapRef;

/// A Node on its way may be not Ready for so long: a kubelet that starts says so for some seconds.
const NOT_READY: Duration = Duration::from_secs(60);
/// Bad and former revisions that the status keeps.
const KEPT: usize = 10;
/// Nodes whose words a bad revision keeps.
const WORDS: usize = 10;

/// A pool, as it is decided about.
#[derive(Clone, Copy)]
pub(crate) struct Pool<'a> {
    pub(crate) name: &'a str,
    /// Of its spec.
    pub(crate) generation: i64,
    pub(crate) spec: &'a KubeletConfigPoolSpec,
    pub(crate) status: &'a KubeletConfigPoolStatus,
    /// The annotation `kubelet-supervisor.io/approved-revision`.
    pub(crate) approved: Option<&'a str>,
    /// What the spec says, and is there; or why it is not, for people.
    pub(crate) update: Result<&'a ConfigMapRef, &'a str>,
    /// Of ConfigMaps.
    pub(crate) namespace: &'a str,
}

/// All Nodes and pools of the cluster.
#[derive(Clone, Copy)]
pub(crate) struct Cluster<'a> {
    pub(crate) nodes: &'a BTreeMap<String, PoolNode>,
    /// Names and specs.
    pub(crate) pools: &'a [(String, KubeletConfigPoolSpec)],
    pub(crate) now: Timestamp,
}

/// What is to be written.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Decision {
    /// The pool's status, before anything else.
    pub(crate) status: KubeletConfigPoolStatus,
    /// Assignments by Node; none: the assignment is withdrawn. In this order.
    pub(crate) assign: Vec<(String, Option<ConfigMapRef>)>,
    /// When time alone may change something.
    pub(crate) next: Option<Duration>,
}

/// Decides.
pub(crate) fn decide(pool: &Pool<'_>, cluster: &Cluster<'_>) -> Decision {
    let mut status = KubeletConfigPoolStatus { observed_generation: pool.generation, ..pool.status.clone() };
    let members = Members::new(pool, cluster);
    let update = match pool.update {
        Ok(update) => update,
        Err(why) => {
            let situation = Situation::Invalid(why.to_owned());
            report::fill(&mut status, &members.counts(None, Proof::Active), &situation, cluster.now);
            let assign = members.joined(cluster.now).into_iter().chain(members.left()).collect();
            return Decision { status, assign, next: None };
        }
    };
    let rollout = Rollout { pool, cluster, members: &members, strategy: &pool.spec.rollout, update };
    status.update_revision = Some(label(update));
    let (situation, mut assign, next) = if rollout.note_facts(&mut status) {
        // What is done by it is decided when it stands in the status.
        (rollout.situation(&status), Vec::new(), None)
    } else {
        let (situation, assign) = rollout.moves(&status);
        (situation, assign, rollout.next_timeout())
    };
    assign.extend(members.left());
    report::fill(&mut status, &members.counts(Some(update), pool.spec.rollout.proof), &situation, cluster.now);
    Decision { status, assign, next }
}

/// The Nodes of a pool.
struct Members<'a> {
    pool: &'a Pool<'a>,
    /// Selected by this pool alone.
    own: Vec<&'a PoolNode>,
    /// Selected by another pool too, whose name it is.
    shared: Vec<(&'a PoolNode, &'a str)>,
    /// Assigned a revision of this pool, and not selected any more.
    left: Vec<&'a PoolNode>,
}

impl<'a> Members<'a> {
    fn new(pool: &'a Pool<'a>, cluster: &Cluster<'a>) -> Self {
        let mut members = Self { pool, own: Vec::new(), shared: Vec::new(), left: Vec::new() };
        let others: Vec<_> = cluster.pools.iter().filter(|(name, _)| name != pool.name).collect();
        for node in cluster.nodes.values() {
            let other = others.iter().find(|(_, spec)| spec.node_selector.selects(&node.labels));
            if pool.spec.node_selector.selects(&node.labels) {
                match other {
                    None => members.own.push(node),
                    Some((other, _)) => members.shared.push((node, other)),
                }
            } else if other.is_none() && members.is_assigned_here(node) {
                members.left.push(node);
            }
        }
        members
    }

    /// It has a revision of this pool.
    fn is_assigned_here(&self, node: &PoolNode) -> bool {
        let Pool { name, namespace, status, .. } = *self.pool;
        node.desired.as_ref().is_some_and(|desired| {
            let here = label(desired);
            desired.namespace == namespace
                && (is_of_pool(&desired.name, name)
                    || status.current_revision.as_ref() == Some(&here)
                    || status.update_revision.as_ref() == Some(&here)
                    || status.history.contains(&here))
        })
    }

    /// Nodes that have just joined get what the others have.
    fn joined(&self, now: Timestamp) -> Vec<(String, Option<ConfigMapRef>)> {
        let Some(current) = self.pool.status.current_revision.as_deref() else { return Vec::new() };
        let current = from_label(current, self.pool.namespace);
        let is_new = |node: &&&PoolNode| node.desired.is_none() && node.is_young(now);
        self.own.iter().filter(is_new).map(|node| (node.name.clone(), Some(current.clone()))).collect()
    }

    fn left(&self) -> Vec<(String, Option<ConfigMapRef>)> {
        match self.pool.spec.on_leave {
            OnLeave::Keep => Vec::new(),
            OnLeave::Reset => self.left.iter().map(|node| (node.name.clone(), None)).collect(),
        }
    }

    fn counts(&self, update: Option<&ConfigMapRef>, proof: Proof) -> Counts {
        let mut counts = Counts { nodes: self.own.len() + self.shared.len(), ..Counts::default() };
        counts.conflicts = self.shared.iter().map(|(node, other)| (node.name.clone(), (*other).to_owned())).collect();
        for node in &self.own {
            let has = update.is_some() && node.desired.as_ref() == update;
            counts.updated += usize::from(has);
            counts.proven += usize::from(has && node.progress == Progress::Proven);
            counts.failed += usize::from(has && matches!(node.progress, Progress::Bad(_)));
            counts.updating += usize::from(self.is_in_flight(node, proof));
            counts.unavailable += usize::from(!node.ready || self.is_in_flight(node, proof));
        }
        counts
    }

    /// It has a revision of this pool, and is not done with it. One that is bad there runs its last known good.
    fn is_in_flight(&self, node: &PoolNode, proof: Proof) -> bool {
        self.is_assigned_here(node)
            && match node.progress {
                Progress::Updating => true,
                Progress::Active => proof == Proof::Proven || !node.ready,
                Progress::Proven | Progress::Bad(_) => false,
            }
    }
}

/// A change on its way to a pool's Nodes.
struct Rollout<'a> {
    pool: &'a Pool<'a>,
    cluster: &'a Cluster<'a>,
    members: &'a Members<'a>,
    strategy: &'a RolloutStrategy,
    update: &'a ConfigMapRef,
}

impl Rollout<'_> {
    /// Writes down what is decided once and for all; whether there was something.
    fn note_facts(&self, status: &mut KubeletConfigPoolStatus) -> bool {
        let update = label(self.update);
        let is_bad = status.bad_revisions.iter().any(|bad| bad.revision == update);
        let failed = self.failed();
        // What all Nodes had is not bad because of one that joined, or that broke since.
        let is_new = status.current_revision.as_ref() != Some(&update);
        if !is_bad && is_new && failed.len() >= self.strategy.max_failures as usize {
            status
                .bad_revisions
                .push(BadRevision { revision: update, nodes: failed.into_iter().take(WORDS).collect() });
            let surplus = status.bad_revisions.len().saturating_sub(KEPT);
            status.bad_revisions.drain(..surplus);
            return true;
        }
        if is_new && !is_bad && self.has_all() {
            let former = status.current_revision.replace(update.clone());
            status.history.retain(|revision| *revision != update);
            status.history.extend(former);
            let surplus = status.history.len().saturating_sub(KEPT);
            status.history.drain(..surplus);
            return true;
        }
        // A pool's first status names what is on its way before a Node has it.
        self.pool.status.update_revision != status.update_revision
    }

    /// Nodes that speak, or are, against the revision.
    fn failed(&self) -> Vec<BadRevisionNode> {
        let on_update = self.members.own.iter().filter(|node| node.desired.as_ref() == Some(self.update));
        on_update
            .filter_map(|node| {
                let message = self.failure(node)?;
                Some(BadRevisionNode { name: node.name.clone(), message })
            })
            .collect()
    }

    fn failure(&self, node: &PoolNode) -> Option<String> {
        if let Progress::Bad(why) = &node.progress {
            return Some(why.clone());
        }
        if !self.members.is_in_flight(node, self.strategy.proof) {
            return None;
        }
        if node.unready_for >= NOT_READY {
            return Some(format!("it is not Ready for more than {} s", NOT_READY.as_secs()));
        }
        (node.updating_for >= self.node_timeout()).then(|| {
            let words = if node.message.is_empty() { String::new() } else { format!("; it says: {}", node.message) };
            format!(
                "it did not come to an end within {} s (spec.rollout.nodeTimeoutSeconds){words}",
                self.strategy.node_timeout_seconds
            )
        })
    }

    /// Every Node has the revision, and none is on its way.
    fn has_all(&self) -> bool {
        let Members { own, shared, .. } = self.members;
        !own.is_empty()
            && shared.is_empty()
            && own.iter().all(|node| {
                node.desired.as_ref() == Some(self.update) && !self.members.is_in_flight(node, self.strategy.proof)
            })
    }

    fn situation(&self, status: &KubeletConfigPoolStatus) -> Situation {
        self.moves(status).0
    }

    /// Where the pool is, and what is to be assigned.
    fn moves(&self, status: &KubeletConfigPoolStatus) -> (Situation, Vec<(String, Option<ConfigMapRef>)>) {
        let current = status.current_revision.as_deref().map(|label| from_label(label, self.pool.namespace));
        let joined = self.members.joined(self.cluster.now);
        let bad = status.bad_revisions.iter().find(|bad| bad.revision == label(self.update));
        let (situation, target) = match bad {
            Some(bad) => {
                let to =
                    current.filter(|current| self.strategy.on_failure == OnFailure::Revert && *current != *self.update);
                (Situation::bad(bad), to)
            }
            None => (Situation::Complete, Some(self.update.clone())),
        };
        if let Some((node, other)) = self.members.shared.first() {
            return (Situation::Conflict { node: node.name.clone(), pool: (*other).to_owned() }, joined);
        }
        if self.pool.spec.paused {
            let behind = self.members.own.iter().filter(|node| node.desired != target && target.is_some()).count();
            return (Situation::Paused { behind, to: label(self.update) }, joined);
        }
        let Some(target) = target else { return (situation, joined) };
        let (progress, mut assign) = self.towards(&target, bad.is_some());
        assign.extend(
            joined.into_iter().filter(|(name, _)| !assign.iter().any(|(other, _)| other == name)).collect::<Vec<_>>(),
        );
        (if bad.is_some() { situation } else { progress }, assign)
    }

    /// The next Nodes that get `target`, as far as there is room for them.
    fn towards(&self, target: &ConfigMapRef, back: bool) -> (Situation, Vec<(String, Option<ConfigMapRef>)>) {
        let Members { own, .. } = self.members;
        let proof = if back { Proof::Active } else { self.strategy.proof };
        let behind: Vec<&PoolNode> = own.iter().filter(|node| node.desired.as_ref() != Some(target)).copied().collect();
        let out = own.iter().filter(|node| self.is_out(node, target, proof)).count();
        let max = self.max_unavailable();
        let mut room = max.saturating_sub(out);
        let with: Vec<&&PoolNode> = own.iter().filter(|node| node.desired.as_ref() == Some(target)).collect();
        let in_flight = with.iter().filter(|node| self.members.is_in_flight(node, proof)).count();
        let done = with.iter().filter(|node| matches!(node.progress, Progress::Proven | Progress::Active)).count()
            - with
                .iter()
                .filter(|node| node.progress == Progress::Active && self.members.is_in_flight(node, proof))
                .count();
        // Nodes that join a settled pool do not unsettle it: whoever waits for Ready would wait at each scale-up.
        let unsettled =
            own.iter().filter(|node| node.desired.as_ref() != Some(target) || self.members.is_in_flight(node, proof));
        let is_settled = self.pool.status.current_revision.as_ref() == Some(&label(target))
            && unsettled.clone().all(|node| node.is_young(self.cluster.now));
        if is_settled || unsettled.count() == 0 {
            return (Situation::complete(own), Vec::new());
        }
        let canaries = (self.strategy.canaries as usize).min(own.len());
        let mut situation = Situation::waves(own.len(), with.len(), in_flight);
        if !back && done < canaries {
            room = room.min(canaries.saturating_sub(done + in_flight));
            situation = Situation::Canaries { canaries, done, in_flight };
        } else if !back && self.strategy.pause_after_canaries && self.pool.approved != Some(label(target).as_str()) {
            return (Situation::AwaitingApproval { revision: label(target) }, Vec::new());
        }
        let able = self.in_order(&behind).into_iter().filter(|node| node.ready && !node.held);
        let assign: Vec<_> =
            self.spare_control_plane(able).take(room).map(|node| (node.name.clone(), Some(target.clone()))).collect();
        if assign.is_empty() && in_flight == 0 {
            let unready = own.iter().filter(|node| !node.ready).map(|node| node.name.clone()).collect();
            situation = Situation::Blocked { unready, max, behind: behind.len() };
        }
        (situation, assign)
    }

    /// It takes a place among those that may be unavailable. One that joined has no pods yet: it does so only with what is
    /// being rolled out.
    fn is_out(&self, node: &PoolNode, target: &ConfigMapRef, proof: Proof) -> bool {
        let is_new = self.pool.status.current_revision.as_ref() != Some(&label(target));
        let counts = !node.is_young(self.cluster.now) || (is_new && node.desired.as_ref() == Some(target));
        counts && (!node.ready || self.members.is_in_flight(node, proof))
    }

    /// Control-plane Nodes of all pools go one at a time, the next when all others are Ready and done.
    fn spare_control_plane<'n>(&self, nodes: impl Iterator<Item = &'n PoolNode>) -> impl Iterator<Item = &'n PoolNode> {
        let is_busy = |node: &PoolNode| node.is_control_plane() && (!node.ready || node.is_updating());
        let mut busy = self.cluster.nodes.values().any(is_busy);
        nodes.filter(move |node| !node.is_control_plane() || !std::mem::replace(&mut busy, true))
    }

    /// Round the zones, in each by chance: a hash, so that every controller has the same.
    fn in_order<'n>(&self, nodes: &[&'n PoolNode]) -> Vec<&'n PoolNode> {
        let mut zones: BTreeMap<&str, Vec<([u8; 8], &'n PoolNode)>> = BTreeMap::new();
        for node in nodes {
            let draw = Sha256::digest(format!("{}\n{}\n{}", self.pool.name, self.update, node.name));
            let mut key = [0; 8];
            key.iter_mut().zip(draw.iter()).for_each(|(key, byte)| *key = *byte);
            zones.entry(node.zone(&self.strategy.zone_key)).or_default().push((key, node));
        }
        let mut ranked: Vec<(usize, [u8; 8], &PoolNode)> = Vec::with_capacity(nodes.len());
        for zone in zones.values_mut() {
            zone.sort_by_key(|(key, _)| *key);
            ranked.extend(zone.iter().enumerate().map(|(rank, (key, node))| (rank, *key, *node)));
        }
        ranked.sort_by_key(|(rank, key, _)| (*rank, *key));
        ranked.into_iter().map(|(_, _, node)| node).collect()
    }

    fn max_unavailable(&self) -> usize {
        max_unavailable(&self.strategy.max_unavailable, self.members.own.len()).unwrap_or(1)
    }

    fn node_timeout(&self) -> Duration {
        Duration::from_secs(self.strategy.node_timeout_seconds.into())
    }

    /// When a Node's time is over.
    fn next_timeout(&self) -> Option<Duration> {
        let in_flight = self.members.own.iter().filter(|node| self.members.is_in_flight(node, self.strategy.proof));
        let left = in_flight.flat_map(|node| {
            let unready = (!node.ready).then(|| NOT_READY.saturating_sub(node.unready_for));
            [unready, Some(self.node_timeout().saturating_sub(node.updating_for))]
        });
        left.flatten().filter(|left| !left.is_zero()).min()
    }
}

/// A number, or a share of so many Nodes, rounded down; at least one.
///
/// # Errors
/// What it should be.
pub(crate) fn max_unavailable(value: &serde_json::Value, nodes: usize) -> Result<usize, String> {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    crate::fleet::rollout::plan::unavailable(&text, nodes)
        .map_err(|_| format!("spec.rollout.maxUnavailable {value}: a number from 1, or a share such as 10%"))
}
