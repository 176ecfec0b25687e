//! What is to be written next, from a pool's spec and status and from what the Nodes say.
//!
//! Every count is made anew of the Nodes each time: there is nothing that could be out of date. What is decided once and
//! for all (a revision is bad, a revision is current) is written into the status, and nothing is done by it before it
//! stands there.

mod compare;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use sha2::{Digest as _, Sha256};

use super::canaries::Canaries;
use super::comparison::Look;
use super::drain::{Cordon, NodeDrain};
use super::draining::{DrainDecision, Drained, Draining, uncordon};
use super::jitter;
use super::leave::Leavers;
use super::node::{PoolNode, Progress};
use super::preflight::{self, Preflight};
use super::renderings::{NodeAssignment, Target};
use super::report::{self, Blocker, Counts, PoolState, Preflighted};
use super::revision::{RevisionFault, is_of_revision, parse_revision_name, revision_name};
use super::types::comparison::Comparison;
use super::types::{
    BadRevision, BadRevisionNode, KubeletConfigPoolSpec, KubeletConfigPoolStatus, OnFailure, Proof, RolloutStrategy,
};
use super::windows::Windows;

/// A Node that has a new revision may be not Ready for so long. A kubelet that starts says so for some seconds, and the
/// supervisor itself puts a Node without contact back after 90 s.
const NOT_READY: Duration = Duration::from_secs(60);
/// Bad and former revisions that the status keeps.
const MAX_KEPT_REVISIONS: usize = 10;
/// Nodes that a bad revision names.
const MAX_NODES_PER_BAD_REVISION: usize = 10;

/// A pool, as it is decided about.
#[derive(Clone, Copy)]
pub(crate) struct Pool<'a> {
    pub(crate) name: &'a str,
    pub(crate) generation: i64,
    pub(crate) spec: &'a KubeletConfigPoolSpec,
    pub(crate) status: &'a KubeletConfigPoolStatus,
    /// The annotation `kubelet-supervisor.io/approved-revision`.
    pub(crate) approved: Option<&'a str>,
    /// The revision that the spec describes, which is there; or why it is not.
    pub(crate) update: Result<&'a Target<'a>, &'a RevisionFault>,
    /// That of `status.currentRevision`; none: Nodes get it as it is.
    pub(crate) current: Option<&'a Target<'a>>,
    /// What the Pods of compared Nodes showed last.
    pub(crate) look: Option<&'a Look>,
    /// The namespace of revisions.
    pub(crate) namespace: &'a str,
}

/// All Nodes and pools of the cluster.
#[derive(Clone, Copy)]
pub(crate) struct Cluster<'a> {
    pub(crate) nodes: &'a BTreeMap<String, PoolNode>,
    /// Names and specs.
    pub(crate) pools: &'a [(String, KubeletConfigPoolSpec)],
    /// Control-plane Nodes whose static pods do not all run, and why that is said, as it was last seen.
    pub(crate) static_pods: &'a BTreeMap<String, String>,
    /// Of Nodes whose Pods are followed, or were given up.
    pub(crate) drains: &'a BTreeMap<String, NodeDrain>,
    pub(crate) now: Timestamp,
}

/// What is to be written.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Decision {
    pub(crate) status: KubeletConfigPoolStatus,
    /// In this order; empty if the status has to be written first.
    pub(crate) assign: Vec<NodeAssignment>,
    /// Nodes that have left the pool, and are to be assigned nothing any more.
    pub(crate) reset: Vec<String>,
    /// Nodes that are to judge what they may be assigned later.
    pub(crate) ask: Vec<NodeAssignment>,
    /// None: drains stay as they are until the status is written.
    pub(crate) drain: Option<DrainDecision>,
    /// Nodes that are to lose `spec.startupTaint`.
    pub(crate) untaint: Vec<String>,
    /// When time alone may change something.
    pub(crate) next: Option<Duration>,
}

pub(crate) fn decide(pool: &Pool<'_>, cluster: &Cluster<'_>) -> Decision {
    let mut status = KubeletConfigPoolStatus { observed_generation: pool.generation, ..pool.status.clone() };
    let members = Members::new(pool, cluster);
    let strategy = &pool.spec.rollout;
    let windows = Windows::at(&strategy.windows, cluster.now);
    let (update, windows) = match (pool.update, windows) {
        (Ok(update), Ok(windows)) => (update, windows),
        (Err(why), _) => return members.only_joined(status, why),
        (_, Err(why)) => return members.only_joined(status, &RevisionFault::invalid(why)),
    };
    let is_new = members.shared.is_empty() && is_new(pool.status, update);
    let behind = members.own.iter().copied().filter(|node| is_new && !update.is_on(node));
    let preflight = Preflight::new(behind, update);
    let draining = members.draining(cluster, update);
    let rollout = Rollout { pool, cluster, members: &members, strategy, windows, preflight, draining, update };
    status.update_revision = Some(revision_name(&update.reference));
    let has_news = rollout.record_verdicts(&mut status) | rollout.compare(&mut status);
    let (state, planned) = rollout.plan(&status);
    let Drained { state, assign, decision, next } = rollout.draining.split(state, planned);
    let counts = members.counts(Some(update), pool.spec.rollout.proof);
    let reset = if has_news { Vec::new() } else { rollout.resets(assign.len()) };
    let preflighted = if is_new { rollout.preflighted(&state) } else { Preflighted::NotAsked };
    report::fill(&mut status, &counts, &state, &preflighted, cluster.now);
    Decision {
        next: rollout.next_timeout(&status).into_iter().chain(next).min(),
        status,
        assign: if has_news { Vec::new() } else { assign },
        reset,
        drain: (!has_news).then_some(decision),
        ask: rollout.preflight.ask,
        untaint: members.with_startup_taint(Some(update)),
    }
}

/// It is another revision than all have, and may go to Nodes.
fn is_new(status: &KubeletConfigPoolStatus, update: &Target<'_>) -> bool {
    let update = revision_name(&update.reference);
    let is_bad = status.bad_revisions.iter().any(|bad| bad.revision == update);
    !is_bad && status.current_revision.as_ref() != Some(&update)
}

/// The Nodes of a pool.
struct Members<'a> {
    pool: &'a Pool<'a>,
    now: Timestamp,
    /// Control-plane Nodes of the cluster that are not Ready, or are cordoned for a pool, or have not proven what they are
    /// assigned, or whose static pods do not all run.
    busy_control_plane: BTreeSet<&'a str>,
    /// Selected by this pool alone.
    own: Vec<&'a PoolNode>,
    /// Selected by another pool too, whose name it is.
    shared: Vec<(&'a PoolNode, &'a str)>,
    leavers: Leavers<'a>,
}

impl<'a> Members<'a> {
    fn new(pool: &'a Pool<'a>, cluster: &Cluster<'a>) -> Self {
        let is_busy = |node: &PoolNode| {
            let is_away = !node.ready || node.cordoned_for().is_some() || cluster.static_pods.contains_key(&node.name);
            is_away || node.is_in_flight(Proof::Proven)
        };
        let is_selected = |node: &PoolNode| {
            let mut specs = cluster.pools.iter().map(|(_, spec)| spec).chain([pool.spec]);
            specs.any(|spec| spec.node_selector.selects(&node.labels))
        };
        let of_no_pool = cluster.nodes.values().filter(|node| !is_selected(node));
        let leavers = Leavers::new(pool.name, pool.spec, pool.status, pool.namespace, of_no_pool);
        let is_busy = |node: &PoolNode| is_busy(node) || leavers.returning.iter().any(|other| other.name == node.name);
        let busy = cluster.nodes.values().filter(|node| node.is_control_plane() && is_busy(node));
        let busy_control_plane = busy.map(|node| node.name.as_str()).collect();
        let (mut own, mut shared) = (Vec::new(), Vec::new());
        let others: Vec<_> = cluster.pools.iter().filter(|(name, _)| name != pool.name).collect();
        for node in cluster.nodes.values().filter(|node| pool.spec.node_selector.selects(&node.labels)) {
            match others.iter().find(|(_, spec)| spec.node_selector.selects(&node.labels)) {
                None => own.push(node),
                Some((other, _)) => shared.push((node, other.as_str())),
            }
        }
        Self { pool, now: cluster.now, busy_control_plane, own, shared, leavers }
    }

    fn counts(&self, update: Option<&Target<'_>>, proof: Proof) -> Counts {
        let mut counts = Counts { nodes: self.own.len() + self.shared.len(), ..Counts::default() };
        counts.conflicts = self.shared.iter().map(|(node, other)| (node.name.clone(), (*other).to_owned())).collect();
        for node in &self.own {
            let has = update.is_some_and(|update| update.is_on(node));
            counts.updated += usize::from(has);
            counts.proven += usize::from(has && node.progress == Progress::Proven);
            counts.failed += usize::from(has && matches!(node.progress, Progress::Bad(_)));
            counts.updating += usize::from(node.is_in_flight(proof));
            let is_cordoned = node.cordon(self.pool.name) == Cordon::Ours;
            counts.unavailable += usize::from(!node.ready || is_cordoned || node.is_in_flight(proof));
        }
        counts
    }

    fn draining<'b>(&'b self, cluster: &'b Cluster<'_>, update: &'b Target<'_>) -> Draining<'b> {
        let Pool { name, spec, status, .. } = self.pool;
        // What all Nodes had needs no proof.
        let proof = if is_new(status, update) { spec.rollout.proof } else { Proof::Active };
        Draining {
            pool: name,
            strategy: &spec.rollout,
            nodes: cluster.nodes,
            own: &self.own,
            shared: &self.shared,
            drains: cluster.drains,
            update,
            proof,
            now: self.now,
        }
    }

    /// What is to be done while the spec makes no sense: nodes that join are not to wait for somebody who mends it.
    fn only_joined(&self, mut status: KubeletConfigPoolStatus, why: &RevisionFault) -> Decision {
        report::fill(
            &mut status,
            &self.counts(None, Proof::Active),
            &PoolState::Invalid(why.clone()),
            &Preflighted::NotAsked,
            self.now,
        );
        let (untaint, ask) = (self.with_startup_taint(None), Vec::new());
        let selected = self.own.iter().chain(self.shared.iter().map(|(node, _)| node)).copied();
        let uncordon = uncordon(selected, self.pool.name, &BTreeSet::new(), Proof::Active);
        let drain = Some(DrainDecision { uncordon, ..DrainDecision::default() });
        Decision { status, assign: self.joined(), reset: Vec::new(), ask, drain, untaint, next: None }
    }

    /// Nodes that have the startup taint, and run a revision of the pool by now.
    fn with_startup_taint(&self, update: Option<&Target<'_>>) -> Vec<String> {
        let Some(taint) = &self.pool.spec.startup_taint else { return Vec::new() };
        let current = self.current(self.pool.status);
        let is_configured = |node: &PoolNode| {
            update.into_iter().chain(&current).any(|target| target.is_on(node)) && node.is_done(Proof::Active)
        };
        let tainted = self.own.iter().filter(|node| node.taints.contains(taint) && is_configured(node));
        tainted.map(|node| node.name.clone()).collect()
    }

    /// Nodes that have just joined get what the others have.
    fn joined(&self) -> Vec<NodeAssignment> {
        let Some(current) = self.current(self.pool.status) else { return Vec::new() };
        let can_get = |node: &PoolNode| current.of(node).is_some();
        let is_new = |node: &&PoolNode| node.desired.is_none() && node.is_young(self.now) && can_get(node);
        let new = self.one_control_plane_at_a_time(self.own.iter().copied().filter(is_new));
        new.filter_map(|node| NodeAssignment::of(&current, node)).collect()
    }

    /// What all had last.
    fn current(&self, status: &KubeletConfigPoolStatus) -> Option<Target<'a>> {
        let reference = parse_revision_name(status.current_revision.as_deref()?, self.pool.namespace);
        let mut known = self.pool.current.into_iter().chain(self.pool.update.ok());
        let known = known.find(|target| target.reference == reference);
        Some(known.cloned().unwrap_or_else(|| Target::plain(reference)))
    }

    /// Control-plane Nodes of all pools: the next one when all others are Ready and have proven what they have.
    fn one_control_plane_at_a_time(
        &self,
        nodes: impl Iterator<Item = &'a PoolNode>,
    ) -> impl Iterator<Item = &'a PoolNode> {
        let mut busy = self.busy_control_plane.clone();
        nodes.filter(move |node| {
            let is_free = !node.is_control_plane() || busy.iter().all(|other| *other == node.name);
            if is_free && node.is_control_plane() {
                busy.insert(&node.name);
            }
            is_free
        })
    }
}

/// A change on its way to a pool's Nodes.
struct Rollout<'a> {
    pool: &'a Pool<'a>,
    cluster: &'a Cluster<'a>,
    members: &'a Members<'a>,
    strategy: &'a RolloutStrategy,
    windows: Windows,
    preflight: Preflight,
    draining: Draining<'a>,
    update: &'a Target<'a>,
}

impl<'a> Rollout<'a> {
    /// Writes down what is decided once and for all; whether there was something.
    fn record_verdicts(&self, status: &mut KubeletConfigPoolStatus) -> bool {
        let update = revision_name(&self.update.reference);
        let is_bad = status.bad_revisions.iter().any(|bad| bad.revision == update);
        // What all Nodes had is not bad because of one that joined, or that broke since.
        let is_new = status.current_revision.as_ref() != Some(&update);
        let failed = self.failed();
        if !is_bad && is_new && failed.len() >= self.strategy.max_failures as usize {
            self.record_bad(status, failed, String::new());
            return true;
        }
        if is_new && !is_bad && self.has_all() {
            let former = status.current_revision.replace(update.clone());
            status.history.retain(|revision| *revision != update);
            status.history.extend(former);
            let surplus = status.history.len().saturating_sub(MAX_KEPT_REVISIONS);
            status.history.drain(..surplus);
            return true;
        }
        self.pool.status.update_revision != status.update_revision
    }

    fn record_bad(&self, status: &mut KubeletConfigPoolStatus, mut nodes: Vec<BadRevisionNode>, message: String) {
        nodes.truncate(MAX_NODES_PER_BAD_REVISION);
        let revision = revision_name(&self.update.reference);
        let time = Some(report::rfc3339(self.cluster.now));
        status.bad_revisions.push(BadRevision { revision, time, nodes, message });
        let surplus = status.bad_revisions.len().saturating_sub(MAX_KEPT_REVISIONS);
        status.bad_revisions.drain(..surplus);
    }

    /// Nodes that failed with the revision, and how.
    fn failed(&self) -> Vec<BadRevisionNode> {
        let with_it = self.members.own.iter().filter(|node| self.update.is_on(node));
        with_it
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
        if !node.is_in_flight(self.strategy.proof) {
            return None;
        }
        // What it was before it had this revision is not held against it.
        if node.unready_for.min(node.updating_for) >= NOT_READY {
            return Some(format!("it is not Ready for more than {} s", NOT_READY.as_secs()));
        }
        (node.updating_for >= self.node_timeout()).then(|| {
            let reported = if node.message.is_empty() { "" } else { "; it reports: " };
            let seconds = self.strategy.node_timeout_seconds;
            format!(
                "it has not finished within {seconds} s (spec.rollout.nodeTimeoutSeconds){reported}{}",
                node.message
            )
        })
    }

    /// Every Node has the revision, and none is on its way.
    fn has_all(&self) -> bool {
        let Members { own, shared, .. } = self.members;
        shared.is_empty() && own.iter().all(|node| self.update.is_on(node) && !node.is_in_flight(self.strategy.proof))
    }

    /// Where the pool is, and which Nodes are assigned something next.
    fn plan(&self, status: &KubeletConfigPoolStatus) -> (PoolState, Vec<NodeAssignment>) {
        let current = self.members.current(status);
        let joined = self.members.joined();
        let update = revision_name(&self.update.reference);
        let bad = status.bad_revisions.iter().find(|bad| bad.revision == update);
        let back = current.as_ref().filter(|current| current.reference != self.update.reference);
        let target = match bad {
            None => Some(self.update),
            Some(_) if self.strategy.on_failure == OnFailure::Revert => back,
            Some(_) => None,
        };
        if let Some((node, other)) = self.members.shared.first() {
            return (PoolState::Conflict { node: node.name.clone(), pool: (*other).to_owned() }, joined);
        }
        if self.pool.spec.paused {
            let behind = self.members.own.iter().filter(|node| target.is_some_and(|target| !target.is_on(node)));
            return (PoolState::Paused { behind: behind.count(), update }, joined);
        }
        let (state, mut assign) = match target {
            Some(target) => self.plan_towards(target, status),
            None => (PoolState::Complete, Vec::new()),
        };
        let others: Vec<_> = joined.into_iter().filter(|it| assign.iter().all(|other| other.node != it.node)).collect();
        assign.extend(others);
        (bad.map_or(state, PoolState::bad), assign)
    }

    /// The next Nodes that get `target`, as far as there is room for them.
    fn plan_towards(&self, target: &Target<'_>, status: &KubeletConfigPoolStatus) -> (PoolState, Vec<NodeAssignment>) {
        let Members { own, .. } = self.members;
        // What all Nodes had needs neither canaries nor anybody's approval.
        let is_known = status.current_revision.as_ref() == Some(&revision_name(&target.reference));
        let proof = if is_known { Proof::Active } else { self.strategy.proof };
        let (with, mut behind): (Vec<&PoolNode>, Vec<&PoolNode>) =
            own.iter().copied().partition(|node| target.is_on(node));
        let in_flight = with.iter().filter(|node| node.is_in_flight(proof)).count();
        // Nodes that join a settled pool do not unsettle it: whoever waits for Ready would wait at each scale-up.
        // One that has something else does not join: it goes back.
        let is_new = |node: &PoolNode| node.desired.is_none() || target.is_on(node);
        let is_settled = |node: &&PoolNode| is_known && is_new(node) && node.is_young(self.cluster.now);
        if behind.iter().chain(with.iter().filter(|node| node.is_in_flight(proof))).all(is_settled) {
            return (PoolState::complete(own), Vec::new());
        }
        let mut state = PoolState::Waves { nodes: own.len(), with: with.len(), in_flight };
        // Canaries that are still to be sent; none: all are.
        let mut canaries_left = usize::MAX;
        if !is_known {
            let canaries = Canaries::new(self.strategy, own, target, proof);
            if let Some(by) = canaries.blocker() {
                return (PoolState::Blocked { behind: behind.len(), by }, Vec::new());
            }
            if let Some(left) = canaries.left() {
                behind.retain(|node| canaries.may_be(node));
                (canaries_left, state) = (left, canaries.state());
            } else if let Some(state) = self.comparing(status, behind.len()) {
                return (state, Vec::new());
            } else if self.strategy.pause_after_canaries
                && self.pool.approved != Some(revision_name(&target.reference).as_str())
            {
                return (PoolState::AwaitingApproval { revision: revision_name(&target.reference) }, Vec::new());
            }
        }
        if !is_known && let Some(why) = self.keeps_back(&with) {
            let is_final = matches!(why, PoolState::PreflightRefused(_));
            return (if in_flight == 0 || is_final { why } else { state }, Vec::new());
        }
        let assign = self.next_nodes(&behind, target, proof, canaries_left);
        let waits = |node: &&PoolNode| !self.wait(node, target).is_zero();
        if assign.is_empty() && in_flight == 0 && !behind.is_empty() && !behind.iter().any(waits) {
            state = PoolState::Blocked { behind: behind.len(), by: self.blocker(&behind, target, proof) };
        }
        (state, assign)
    }

    /// What keeps a new revision from going to any Node now.
    fn keeps_back(&self, with: &[&PoolNode]) -> Option<PoolState> {
        let Preflight { waiting, refused, .. } = &self.preflight;
        if refused.len() >= self.strategy.max_failures as usize {
            return Some(PoolState::PreflightRefused(report::messages(refused)));
        }
        if !waiting.is_empty() && with.is_empty() {
            return Some(PoolState::Preflighting { waiting: waiting.clone() });
        }
        let Windows::ClosedUntil(opens) = self.windows else { return None };
        let behind = self.members.own.len() - with.len();
        Some(PoolState::Blocked { behind, by: Blocker::Windows(opens) })
    }

    fn preflighted(&self, state: &PoolState) -> Preflighted {
        match state {
            PoolState::Complete | PoolState::NoNodes | PoolState::Failed { .. } => Preflighted::NotAsked,
            PoolState::PreflightRefused(_) => Preflighted::Refused(self.preflight.summary()),
            _ if self.preflight.waiting.is_empty() => Preflighted::Done(self.preflight.summary()),
            _ => Preflighted::Waiting(self.preflight.summary()),
        }
    }

    /// Of the Nodes that are behind, those that go next.
    fn next_nodes(
        &self,
        behind: &[&'a PoolNode],
        target: &Target<'_>,
        proof: Proof,
        most: usize,
    ) -> Vec<NodeAssignment> {
        let ordered = self.in_order(behind);
        // One that has not finished what it has is unavailable already: it takes no place, and may need this to come back.
        let renderings = self.tried_renderings(target);
        let may_get = |node: &PoolNode| {
            let rendering = renderings.as_ref().and_then(|of| of.get(&node.name)).copied();
            target.of(node).is_some() && rendering.unwrap_or(true)
        };
        let judges = |node: &PoolNode| self.is_update(target) && self.preflight.waiting.contains(&node.name);
        let (stuck, others): (Vec<_>, Vec<_>) = ordered
            .into_iter()
            .filter(|node| !node.held && !judges(node) && may_get(node))
            .partition(|node| node.is_in_flight(proof));
        let others = others.into_iter().filter(|node| self.wait(node, target).is_zero());
        let others = self.draining.with_room(others, self.room(target, proof));
        let next = self.members.one_control_plane_at_a_time(stuck.into_iter().chain(others));
        next.take(most).filter_map(|node| NodeAssignment::of(target, node)).collect()
    }

    /// How long a Node that is well is still left with a bad revision: they do not all go back at once.
    fn wait(&self, node: &PoolNode, target: &Target<'_>) -> Duration {
        let status = self.pool.status;
        let goes_back = status.current_revision.as_ref() == Some(&revision_name(&target.reference));
        let desired = node.desired.as_ref().filter(|_| goes_back && node.is_done(Proof::Active) && !target.is_on(node));
        let is_it = |bad: &&BadRevision| {
            desired.is_some_and(|desired| is_of_revision(desired, &bad.revision, self.pool.namespace))
        };
        let bad = status.bad_revisions.iter().find(is_it);
        bad.map_or(Duration::ZERO, |bad| jitter::wait(bad, &node.name, self.members.own.len(), self.cluster.now))
    }

    /// Whether a Node may be given what expressions come to for it, where the revision is what all have: what no Node has
    /// proven yet goes to one, while a window is open, and no further if that one refuses it. None: all may.
    fn tried_renderings(&self, target: &Target<'_>) -> Option<BTreeMap<String, bool>> {
        let is_known = self.pool.status.current_revision.as_ref() == Some(&revision_name(&target.reference));
        if !is_known || !target.has_renderings() || !self.is_update(target) {
            return None;
        }
        let mut tried: BTreeMap<&str, (bool, bool)> = BTreeMap::new();
        for node in self.members.own.iter().filter(|node| target.is_on(node)) {
            let Some(rendering) = target.of(node) else { continue };
            let (proven, open) = tried.entry(&rendering.name).or_default();
            *proven |= node.progress == Progress::Proven;
            *open |= node.progress != Progress::Proven;
        }
        let is_open = !matches!(self.windows, Windows::ClosedUntil(_));
        let may_get = |node: &&PoolNode| {
            let rendering = target.of(node).and_then(|to| tried.get(to.name.as_str()).copied());
            let (proven, open) = rendering.unwrap_or_default();
            (node.name.clone(), proven || (is_open && !open))
        };
        Some(self.members.own.iter().map(may_get).collect())
    }

    fn is_update(&self, target: &Target<'_>) -> bool {
        target.reference == self.update.reference
    }

    /// So many more Nodes may become unavailable.
    fn room(&self, target: &Target<'_>, proof: Proof) -> usize {
        let out = self.members.own.iter().filter(|node| self.counts_as_unavailable(node, target, proof)).count();
        let max = max_unavailable(&self.strategy.max_unavailable, self.members.own.len()).unwrap_or(1);
        max.saturating_sub(out + self.members.leavers.returning.len())
    }

    /// Nodes that have left the pool and are reset next, where `taken` of the pool are changed at the same time.
    fn resets(&self, taken: usize) -> Vec<String> {
        let Members { own, shared, leavers, .. } = self.members;
        let is_closed = matches!(self.windows, Windows::ClosedUntil(_));
        if self.pool.spec.paused || is_closed || !shared.is_empty() {
            return Vec::new();
        }
        let out = own.iter().filter(|node| self.counts_as_unavailable(node, self.update, self.strategy.proof)).count();
        let max = max_unavailable(&self.strategy.max_unavailable, own.len() + leavers.len()).unwrap_or(1);
        let room = max.saturating_sub(out + leavers.returning.len() + taken);
        let next = self.members.one_control_plane_at_a_time(leavers.next(room));
        next.map(|node| node.name.clone()).collect()
    }

    /// One that joined has no pods yet: it counts only with what is new to the pool.
    fn counts_as_unavailable(&self, node: &PoolNode, target: &Target<'_>, proof: Proof) -> bool {
        let is_new = self.pool.status.current_revision.as_ref() != Some(&revision_name(&target.reference));
        let counts = !node.is_young(self.cluster.now) || (is_new && target.is_on(node));
        counts && (!node.ready || node.is_in_flight(proof))
    }

    /// Why none of these can go.
    fn blocker(&self, behind: &[&PoolNode], target: &Target<'_>, proof: Proof) -> Blocker {
        let names = |which: &dyn Fn(&&&PoolNode) -> bool, of: &[&PoolNode]| -> Vec<String> {
            of.iter().filter(which).map(|node| node.name.clone()).collect()
        };
        if behind.iter().all(|node| target.of(node).is_none()) {
            return Blocker::NoRendering(names(&|_| true, behind));
        }
        if self.room(target, proof) == 0 {
            return Blocker::MaxUnavailable(names(
                &|node| self.counts_as_unavailable(node, target, proof),
                &self.members.own,
            ));
        }
        if behind.iter().all(|node| !node.ready) {
            return Blocker::NotReady(names(&|_| true, behind));
        }
        if let Some(blocker) = self.draining.blocker(behind) {
            return blocker;
        }
        if behind.iter().all(|node| !node.ready || node.held) {
            return Blocker::HeldOnNode(names(&|node| node.held, behind));
        }
        if self.members.busy_control_plane.is_empty() {
            if let (Windows::ClosedUntil(opens), true) = (self.windows, self.is_update(target)) {
                return Blocker::Windows(opens);
            }
            let own = self.members.own.iter().copied().filter(|node| target.is_on(node));
            return Blocker::Unproven(names(&|node| node.progress != Progress::Proven, &own.collect::<Vec<_>>()));
        }
        let busy = self.members.busy_control_plane.iter().map(|name| match self.cluster.static_pods.get(*name) {
            Some(why) => format!("{name} ({why})"),
            None => (*name).to_owned(),
        });
        Blocker::ControlPlane(busy.collect())
    }

    /// Round the zones, in each by chance: a hash, so that every controller has the same. Ranks are those among all Nodes
    /// of the pool, whoever has it by now.
    fn in_order(&self, of: &[&'a PoolNode]) -> Vec<&'a PoolNode> {
        let mut zones: BTreeMap<&str, Vec<([u8; 8], &PoolNode)>> = BTreeMap::new();
        for node in &self.members.own {
            let draw = Sha256::digest(format!("{}\n{}\n{}", self.pool.name, self.update.reference, node.name));
            let mut key = [0; 8];
            key.iter_mut().zip(draw.iter()).for_each(|(key, byte)| *key = *byte);
            zones.entry(node.zone(&self.strategy.zone_key)).or_default().push((key, node));
        }
        let mut ranked: Vec<(usize, [u8; 8], &PoolNode)> = Vec::with_capacity(self.members.own.len());
        for zone in zones.values_mut() {
            zone.sort_by_key(|(key, _)| *key);
            ranked.extend(zone.iter().enumerate().map(|(rank, (key, node))| (rank, *key, *node)));
        }
        ranked.sort_by_key(|(rank, key, _)| (*rank, *key));
        let wanted: BTreeMap<&str, &'a PoolNode> = of.iter().map(|node| (node.name.as_str(), *node)).collect();
        ranked.into_iter().filter_map(|(_, _, node)| wanted.get(node.name.as_str()).copied()).collect()
    }

    fn node_timeout(&self) -> Duration {
        Duration::from_secs(self.strategy.node_timeout_seconds.into())
    }

    /// When a Node's time is over, one is young no more, or a window opens or closes.
    fn next_timeout(&self, status: &KubeletConfigPoolStatus) -> Option<Duration> {
        let comparison = status.comparison.as_ref().and_then(Comparison::next);
        let own = &self.members.own;
        let in_flight = own.iter().filter(|node| node.is_in_flight(self.strategy.proof));
        let timeouts = in_flight.flat_map(|node| {
            let unready = NOT_READY.saturating_sub(node.unready_for.min(node.updating_for));
            [Some(unready).filter(|_| !node.ready), Some(self.node_timeout().saturating_sub(node.updating_for))]
        });
        let grown = own.iter().map(|node| node.young_for(self.cluster.now));
        let current = self.members.current(self.pool.status);
        let waits = own.iter().map(|node| current.as_ref().map(|current| self.wait(node, current)));
        timeouts
            .chain(grown)
            .chain(waits)
            .chain([
                comparison,
                self.members.leavers.next_timeout(),
                self.windows.lasts(self.cluster.now),
                preflight::next_timeout(own.iter().copied()),
            ])
            .flatten()
            .filter(|left| !left.is_zero())
            .min()
    }
}

/// A number, or a share of so many Nodes, rounded down; at least one.
///
/// # Errors
/// What it should be.
pub(crate) fn max_unavailable(value: &serde_json::Value, nodes: usize) -> Result<usize, String> {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let number = match text.strip_suffix('%') {
        // Rounded down: what is asked for is a limit.
        Some(share) => {
            let share = share.parse().ok().filter(|share| (1..=100).contains(share));
            share.map(|share: usize| (nodes * share / 100).max(1))
        }
        None => text.parse().ok().filter(|number| *number > 0),
    };
    number.ok_or_else(|| format!("spec.rollout.maxUnavailable {value}: a number from 1, or a share such as 10%"))
}
