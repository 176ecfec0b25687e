//! What is to be written next, from a pool's spec and status and from what the Nodes say.
//!
//! Every count is made anew of the Nodes each time: there is nothing that could be out of date. What is decided once and
//! for all (a revision is bad, a revision is current) is written into the status, and nothing is done by it before it
//! stands there.

mod drains;
mod members;
mod next_nodes;
mod plan;
mod verdicts;
mod view;

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;

use super::canaries::Canaries;
use super::class::{Class, Measure, NOT_READY, class};
use super::draining::{DrainDecision, Drained, uncordon};
use super::node::{Given, PoolNode, request};
use super::preflight::{Preflight, Question};
use super::renderings::{NodeAssignment, RevisionTarget};
use super::report::{self, PoolState, Preflighted};
use super::revision::{RevisionFault, is_made_of, is_of_revision, revision_name};
use super::types::{KubeletConfigPoolStatus, Proof, RolloutPhase, RolloutStatus, RolloutStrategy, max_unavailable};
use super::windows::Windows;
use kubelet_config::preflight::PreflightRequest;
use members::Members;
use view::is_new;
pub(crate) use view::{Cluster, Pool};

/// What is to be written.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Decision {
    pub(crate) status: KubeletConfigPoolStatus,
    /// In this order; empty if the status has to be written first.
    pub(crate) assign: Vec<NodeAssignment>,
    /// Nodes that have left the pool, and are to be assigned nothing any more.
    pub(crate) reset: Vec<String>,
    /// Nodes that are to judge what they may be assigned later.
    pub(crate) ask: Vec<Question>,
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
    status.update_revision = Some(revision_name(&update.reference));
    let rollout = Rollout::new(pool, cluster, &members, windows, update);
    status.rollout = Some(rollout.trial.clone());
    let has_news = rollout.record_verdicts(&mut status);
    let (state, planned) = rollout.plan(&status);
    let moving = planned.len();
    let Drained { state, assign, decision, next } = rollout.split_by_drains(state, planned);
    members.count(&mut status, &rollout.classes, Some(update), strategy.proof);
    let reset = if has_news { Vec::new() } else { rollout.resets(moving) };
    let preflighted = if rollout.is_new { rollout.preflighted(&state) } else { Preflighted::NotAsked };
    let state = rollout.timed(&mut status, state).with_waiting(&members.waiting()).with_stragglers(&status);
    report::fill(&mut status, &members.conflicts(), &state, &preflighted, cluster.now);
    Decision {
        next: rollout.next_timeout().into_iter().chain(next).min(),
        status,
        assign: if has_news { Vec::new() } else { assign },
        reset,
        drain: if has_news { DrainDecision::ending(decision.uncordon) } else { decision },
        keeps_drains: has_news,
        ask: rollout.questions(),
        untaint: members.with_startup_taint(Some(update)),
    }
}

/// What is to be done while the spec makes no sense: nodes that join are not to wait for somebody who mends it.
fn only_joined(members: &Members<'_>, mut status: KubeletConfigPoolStatus, why: &RevisionFault) -> Decision {
    members.count(&mut status, &[], None, Proof::Active);
    let state = PoolState::Invalid(why.clone());
    report::fill(&mut status, &members.conflicts(), &state, &Preflighted::NotAsked, members.now);
    let selected = members.own.iter().chain(members.shared.iter().map(|(node, _)| node)).copied();
    let uncordon = uncordon(selected, members.pool.name, &BTreeSet::new(), Proof::Active);
    Decision {
        status,
        assign: members.joined(None),
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
    /// It is another revision than all have, and may go to Nodes.
    is_new: bool,
    /// How the update is going, as it stands in the status.
    trial: RolloutStatus,
    /// What the pool's own Nodes are to the update.
    classes: Vec<(&'a PoolNode, Class)>,
    canaries: Canaries<'a>,
    /// They are, or were.
    canaries_are_done: bool,
}

impl<'a> Rollout<'a> {
    fn new(
        pool: &'a Pool<'a>,
        cluster: &'a Cluster<'a>,
        members: &'a Members<'a>,
        windows: Windows,
        update: &'a RevisionTarget<'a>,
    ) -> Self {
        let (strategy, revision, is_new) =
            (&pool.spec.rollout, revision_name(&update.reference), is_new(pool.status, update));
        let begun = pool.status.rollout.clone().filter(|rollout| rollout.revision == revision);
        let now = report::rfc3339(cluster.now);
        let begins =
            || RolloutStatus { revision, started_at: now.clone(), phase_since: now, ..RolloutStatus::default() };
        let mut rollout = Self {
            // What all Nodes had is proven: a drain only waits until it is active.
            drain_proof: if is_new { strategy.proof } else { Proof::Active },
            trial: begun.unwrap_or_else(begins),
            canaries: Canaries::new(strategy, [].iter()),
            canaries_are_done: false,
            preflight: Preflight::default(),
            classes: Vec::new(),
            pool,
            cluster,
            members,
            strategy,
            windows,
            update,
            is_new,
        };
        let measure = rollout.measure(update, pool.status);
        let is_wave = |node: &&'a PoolNode| node.given == Some(Given::Wave) && measure.gave(node);
        let has_waves = members.own.iter().any(is_wave);
        rollout.classes = rollout.classified(&measure);
        let own = rollout.classes.iter().filter(|(node, _)| !members.joins(node));
        rollout.canaries = Canaries::new(strategy, own);
        rollout.canaries_are_done = rollout.canaries.are_done() || has_waves;
        rollout.preflight = Preflight::new(&rollout.classes, &rollout.measure(update, pool.status), cluster.now);
        rollout
    }

    /// How Nodes are held against a revision.
    fn measure<'b>(&'b self, target: &'b RevisionTarget<'b>, status: &KubeletConfigPoolStatus) -> Measure<'b> {
        let is_known = status.current_revision.as_ref() == Some(&revision_name(&target.reference));
        let time = |text: &str| text.parse::<Timestamp>().ok();
        Measure {
            target,
            proof: if is_known { Proof::Active } else { self.strategy.proof },
            node_timeout: self.node_timeout(),
            started_at: time(&self.trial.started_at).unwrap_or(self.cluster.now),
            asks: is_new(status, target) && self.members.shared.is_empty(),
            request: request(&target.reference),
            asked_at: self.trial.asked_at.as_deref().and_then(time),
            pool: self.pool.name,
            had: self.pool.status.history.iter().chain(&self.pool.status.current_revision).collect(),
            drains: self.cluster.drains,
        }
    }

    /// What the pool's own Nodes are to a revision.
    fn classified(&self, measure: &Measure<'_>) -> Vec<(&'a PoolNode, Class)> {
        self.members.own.iter().map(|node| (*node, class(node, measure, self.cluster.now))).collect()
    }

    /// Takes down how far the update is, and since when; a pool that gets no further says so.
    fn timed(&self, status: &mut KubeletConfigPoolStatus, state: PoolState) -> PoolState {
        let now = self.cluster.now;
        let Some(rollout) = &mut status.rollout else { return state };
        let phase = state.phase(rollout.phase);
        if phase != rollout.phase {
            (rollout.phase, rollout.phase_since) = (phase, report::rfc3339(now));
        }
        if self.is_new && rollout.asked_at.is_none() && self.preflight.is_asked() {
            rollout.asked_at = Some(report::rfc3339(now));
        }
        match self.deadline_left(rollout) {
            Some(left) if left.is_zero() => {
                PoolState::Overdue { of: Box::new(state), seconds: self.strategy.progress_deadline_seconds }
            }
            _ => state,
        }
    }

    /// Until a pool that is on its way is told to get no further.
    fn deadline_left(&self, rollout: &RolloutStatus) -> Option<Duration> {
        if matches!(rollout.phase, RolloutPhase::Waiting | RolloutPhase::Ended) {
            return None;
        }
        // Nodes that join say nothing of how the others get on.
        let is_given = |node: &&&PoolNode| self.update.is_on(node) && node.given != Some(Given::Joined);
        let given = self.members.own.iter().filter(is_given).map(|node| node.assigned_at);
        let since = given.chain([rollout.phase_since.parse().ok()]).flatten().max()?;
        let passed = Duration::try_from(self.cluster.now.duration_since(since)).unwrap_or_default();
        Some(Duration::from_secs(self.strategy.progress_deadline_seconds.into()).saturating_sub(passed))
    }

    /// What Nodes are asked, and which were asked for what nobody wants to know any more.
    fn questions(&self) -> Vec<Question> {
        let Pool { name, namespace, status, .. } = *self.pool;
        let is_of_pool = |request: &PreflightRequest| {
            let is_named = |revision: &String| is_of_revision(&request.reference, revision, namespace);
            request.reference.namespace == namespace
                && (is_made_of(name, &request.reference.name) || status.revisions().any(is_named))
        };
        let is_bad = status.bad_revisions.iter().any(|bad| bad.revision == revision_name(&self.update.reference));
        let measure = self.measure(self.update, status);
        let is_stale = |node: &&&PoolNode| {
            // What a Node would make of what it does not have keeps its meaning.
            let is_wanted = !is_bad && !self.update.is_on(node) && measure.is_asked(node);
            let request = node.preflight.as_ref().and_then(|asked| PreflightRequest::parse(&asked.request).ok());
            let is_ours = request.is_some_and(|it| it.token.is_none() && it.version.is_none() && is_of_pool(&it));
            is_ours && !is_wanted && !node.unwritable
        };
        let stale = self.members.own.iter().filter(|_| !self.is_new).filter(is_stale);
        let stale = stale.map(|node| Question { node: node.name.clone(), of: None });
        self.preflight.ask.iter().cloned().chain(stale).collect()
    }

    fn preflighted(&self, state: &PoolState) -> Preflighted {
        match state {
            PoolState::Complete | PoolState::NoNodes | PoolState::Failed { .. } | PoolState::Degraded(..) => {
                Preflighted::NotAsked
            }
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
        let out = own.iter().filter(|node| self.counts_as_unavailable(node, self.strategy.proof)).count();
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
        let (own, now) = (&self.members.own, self.cluster.now);
        let measure = self.measure(self.update, self.pool.status);
        let of_class = self.classes.iter().flat_map(|(node, class)| {
            let had = if self.update.is_on(node) { node.lasts.updating } else { Duration::MAX };
            let unready = NOT_READY.saturating_sub(node.lasts.unready.min(had));
            let is_timed = *class == Class::InFlight && !node.waits;
            let trial = node.trial_ends.and_then(|ends| Duration::try_from(ends.duration_since(now)).ok());
            let left = measure.time_left(node, now).max(trial.unwrap_or_default());
            [Some(unready).filter(|_| !node.ready), Some(left).filter(|_| is_timed)]
        });
        // One control-plane node at a time is of all pools.
        let control_plane = self.cluster.nodes.values().filter(|node| node.is_control_plane());
        let unproven = own.iter().copied().chain(control_plane).map(|node| Some(node.lasts.proof_waits));
        let grown = own.iter().map(|node| node.young_for(now));
        let current = self.members.current(self.pool.status);
        let waits = own.iter().map(|node| current.as_ref().map(|current| self.wait(node, current)));
        let is_asked = !self.preflight.waiting.is_empty() && self.trial.asked_at.is_some();
        let all = of_class.chain(grown).chain(unproven).chain(waits).chain([
            self.members.leavers.next_timeout(),
            self.windows.lasts(now),
            is_asked.then(|| measure.answers_left(now)),
            self.deadline_left(&self.trial),
        ]);
        all.flatten().filter(|left| !left.is_zero()).min()
    }
}
