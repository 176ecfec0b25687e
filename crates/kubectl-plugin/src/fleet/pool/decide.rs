//! What is to be written next, from a pool's spec and status and from what the Nodes say.
//!
//! Every count is made anew of the Nodes each time: there is nothing that could be out of date. What is decided once and
//! for all (a revision is bad, a revision is current) is written into the status, and nothing is done by it before it
//! stands there.

mod drains;
mod members;
mod next_nodes;
mod verdicts;
mod view;

use std::collections::BTreeSet;
use std::time::Duration;

use super::canaries::Canaries;
use super::draining::{DrainDecision, Drained, uncordon};
use super::node::PoolNode;
use super::preflight::{self, Preflight};
use super::renderings::{NodeAssignment, RevisionTarget};
use super::report::{self, Blocker, PoolState, Preflighted};
use super::revision::{RevisionFault, revision_name};
use super::types::{KubeletConfigPoolStatus, OnFailure, Proof, RolloutStrategy, max_unavailable};
use super::windows::Windows;
use members::Members;
use view::is_new;
pub(crate) use view::{Cluster, Pool};

/// A Node that has a new revision may be not Ready for so long. A kubelet that starts says so for some seconds, and the
/// supervisor itself puts a Node without contact back after 90 s.
const NOT_READY: Duration = Duration::from_secs(60);

/// What is to be written.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Decision {
    pub(crate) status: KubeletConfigPoolStatus,
    /// In this order; empty if the status has to be written first.
    pub(crate) assign: Vec<NodeAssignment>,
    /// Nodes that have left the pool, and are to be assigned nothing any more.
    pub(crate) reset: Vec<String>,
    /// Nodes that are to judge what they may be assigned later.
    pub(crate) ask: Vec<NodeAssignment>,
    pub(crate) drain: DrainDecision,
    /// Drains stay as they are until the status is written; only cordons end.
    pub(crate) keeps_drains: bool,
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
        (Err(why), _) => return only_joined(&members, status, why),
        (_, Err(why)) => return only_joined(&members, status, &RevisionFault::invalid(why)),
    };
    let is_new = is_new(pool.status, update);
    // What all Nodes had is proven: a drain only waits until it is active.
    let drain_proof = if is_new { strategy.proof } else { Proof::Active };
    let asks_preflight = is_new && members.shared.is_empty();
    let behind = members.own.iter().copied().filter(|node| asks_preflight && !update.is_on(node));
    let preflight = Preflight::new(behind, update);
    let rollout = Rollout { pool, cluster, members: &members, strategy, windows, preflight, drain_proof, update };
    status.update_revision = Some(revision_name(&update.reference));
    let has_news = rollout.record_verdicts(&mut status);
    let (state, planned) = rollout.plan(&status);
    let moving = planned.len();
    let Drained { state, assign, decision, next } = rollout.split_by_drains(state, planned);
    members.count(&mut status, Some(update), strategy.proof);
    let reset = if has_news { Vec::new() } else { rollout.resets(moving) };
    let preflighted = if is_new { rollout.preflighted(&state) } else { Preflighted::NotAsked };
    let state = state.with_waiting(&members.waiting());
    report::fill(&mut status, &members.conflicts(), &state, &preflighted, cluster.now);
    Decision {
        next: rollout.next_timeout().into_iter().chain(next).min(),
        status,
        assign: if has_news { Vec::new() } else { assign },
        reset,
        drain: if has_news { DrainDecision::ending(decision.uncordon) } else { decision },
        keeps_drains: has_news,
        ask: rollout.preflight.ask,
        untaint: members.with_startup_taint(Some(update)),
    }
}

/// What is to be done while the spec makes no sense: nodes that join are not to wait for somebody who mends it.
fn only_joined(members: &Members<'_>, mut status: KubeletConfigPoolStatus, why: &RevisionFault) -> Decision {
    members.count(&mut status, None, Proof::Active);
    let state = PoolState::Invalid(why.clone());
    report::fill(&mut status, &members.conflicts(), &state, &Preflighted::NotAsked, members.now);
    let selected = members.own.iter().chain(members.shared.iter().map(|(node, _)| node)).copied();
    let uncordon = uncordon(selected, members.pool.name, &BTreeSet::new(), Proof::Active);
    Decision {
        status,
        assign: members.joined(),
        drain: DrainDecision::ending(uncordon),
        untaint: members.with_startup_taint(None),
        ..Decision::default()
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
    /// When a Node has finished what it has, and can be drained.
    drain_proof: Proof,
    update: &'a RevisionTarget<'a>,
}

impl Rollout<'_> {
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
    fn plan_towards(
        &self,
        target: &RevisionTarget<'_>,
        status: &KubeletConfigPoolStatus,
    ) -> (PoolState, Vec<NodeAssignment>) {
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

    fn is_update(&self, target: &RevisionTarget<'_>) -> bool {
        target.reference == self.update.reference
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

    fn node_timeout(&self) -> Duration {
        Duration::from_secs(self.strategy.node_timeout_seconds.into())
    }

    /// When a Node's time is over, one is young no more, or a window opens or closes.
    fn next_timeout(&self) -> Option<Duration> {
        let own = &self.members.own;
        let in_flight = own.iter().filter(|node| node.is_in_flight(self.strategy.proof));
        let timeouts = in_flight.flat_map(|node| {
            let unready = NOT_READY.saturating_sub(node.lasts.unready.min(node.lasts.updating));
            [Some(unready).filter(|_| !node.ready), Some(self.node_timeout().saturating_sub(node.lasts.updating))]
        });
        // One control-plane node at a time is of all pools.
        let control_plane = self.cluster.nodes.values().filter(|node| node.is_control_plane());
        let unproven = own.iter().copied().chain(control_plane).map(|node| Some(node.lasts.proof_waits));
        let grown = own.iter().map(|node| node.young_for(self.cluster.now));
        let current = self.members.current(self.pool.status);
        let waits = own.iter().map(|node| current.as_ref().map(|current| self.wait(node, current)));
        timeouts
            .chain(grown)
            .chain(unproven)
            .chain(waits)
            .chain([
                self.members.leavers.next_timeout(),
                self.windows.lasts(self.cluster.now),
                preflight::next_timeout(own.iter().copied()),
            ])
            .flatten()
            .filter(|left| !left.is_zero())
            .min()
    }
}
