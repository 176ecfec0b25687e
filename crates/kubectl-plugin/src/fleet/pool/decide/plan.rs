//! Where a pool is, and which Nodes are assigned something next.

use super::super::class::Class;
use super::super::node::{Given, PoolNode};
use super::super::preflight::Preflight;
use super::super::renderings::{NodeAssignment, RevisionTarget};
use super::super::report::{self, Blocker, PoolState};
use super::super::revision::revision_name;
use super::super::types::{KubeletConfigPoolStatus, OnFailure};
use super::super::windows::Windows;
use super::Rollout;

/// What is to be done for a revision.
struct Planned {
    state: PoolState,
    assign: Vec<NodeAssignment>,
    /// Nodes that join get it too.
    is_open: bool,
}

impl Planned {
    fn nothing(state: PoolState) -> Self {
        Self { state, assign: Vec::new(), is_open: false }
    }
}

/// Which Nodes a revision may go to.
struct Gate {
    state: PoolState,
    /// So many canaries; none: it goes to all.
    most: Option<usize>,
    given: Given,
    /// Its canaries are done.
    is_open: bool,
}

impl Rollout<'_> {
    /// Where the pool is, and which Nodes are assigned something next.
    pub(super) fn plan(&self, status: &KubeletConfigPoolStatus) -> (PoolState, Vec<NodeAssignment>) {
        let current = self.members.current(status);
        let update = revision_name(&self.update.reference);
        let bad = status.bad_revisions.iter().find(|bad| bad.revision == update);
        let back = current.as_ref().filter(|current| current.reference != self.update.reference);
        let target = match bad {
            None => Some(self.update),
            Some(_) if self.strategy.on_failure == OnFailure::Revert => back,
            Some(_) => None,
        };
        if let Some((node, other)) = self.members.shared.first() {
            let state = PoolState::Conflict { node: node.name.clone(), pool: (*other).to_owned() };
            return (state, self.members.joined(None));
        }
        if self.pool.spec.paused {
            let behind = self.members.own.iter().filter(|node| target.is_some_and(|target| !target.is_on(node)));
            return (PoolState::Paused { behind: behind.count(), update }, self.members.joined(None));
        }
        let Planned { state, mut assign, is_open } = match target {
            Some(target) => self.plan_towards(target, status),
            None => Planned::nothing(PoolState::Complete),
        };
        let rescued = back.map(|back| self.rescued(back, status)).unwrap_or_default();
        for other in rescued.into_iter().chain(self.members.joined(is_open.then_some(self.update))) {
            if assign.iter().all(|it| it.node != other.node) {
                assign.push(other);
            }
        }
        (bad.map_or(state, PoolState::bad), assign)
    }

    /// The next Nodes that get `target`, as far as there is room for them.
    fn plan_towards(&self, target: &RevisionTarget<'_>, status: &KubeletConfigPoolStatus) -> Planned {
        let measure = self.measure(target, status);
        // What all Nodes had needs neither canaries nor anybody's approval.
        let is_known = status.current_revision.as_ref() == Some(&revision_name(&target.reference));
        let is_as_before = self.is_update(target) && is_known != self.is_new;
        let classes = if is_as_before { self.classes.clone() } else { self.classified(&measure) };
        // Nodes that join a settled pool do not unsettle it: whoever waits for Ready would wait at each scale-up.
        // One that has something else does not join: it goes back.
        let is_fresh = |node: &PoolNode| {
            let has_settled = is_known && node.is_young(self.cluster.now);
            self.members.joins(node) || (target.is_on(node) && (has_settled || self.members.has_joined(node)))
        };
        let own: Vec<_> = classes.iter().copied().filter(|(node, _)| !is_fresh(node)).collect();
        let in_flight = own.iter().filter(|(_, class)| *class == Class::InFlight).count();
        let behind: Vec<&PoolNode> = own.iter().filter(|(_, class)| class.is_behind()).map(|(node, _)| *node).collect();
        let with = self.members.own.iter().filter(|node| target.is_on(node)).count();
        let waves = PoolState::Waves { nodes: self.members.own.len(), with, in_flight };
        let gate = if is_known {
            // All had it.
            Ok(Gate { state: waves, most: None, given: Given::Back, is_open: false })
        } else {
            self.gate(status, waves, with, in_flight)
        };
        // What all had goes no further either, where it is refused; but to those that hang with something else.
        let bad = names(classes.iter().copied().filter(|(_, class)| *class == Class::Bad));
        let is_braked = is_known && self.is_update(target) && bad.len() >= self.most_failures();
        let Gate { state, most, given, is_open } = match gate {
            Ok(gate) => gate,
            Err(planned) => return planned,
        };
        let out = own.iter().filter(|(node, _)| !node.ready).count();
        let is_outage = out > self.max_unavailable();
        let is_candidate = |(node, class): &&(&PoolNode, Class)| {
            let gets = class.gets(node, &measure, is_known, is_open && !is_outage);
            let may_get = !is_braked || node.is_in_flight(measure.proof);
            gets && may_get && !target.is_on(node) && !measure.is_waited_for(node, self.cluster.now)
        };
        let candidates = own.iter().filter(is_candidate).map(|(node, _)| *node);
        let candidates: Vec<_> = candidates.filter(|node| most.is_none() || self.canaries.may_be(node)).collect();
        let assign = self.next_nodes(&measure, &candidates, given, most.unwrap_or(usize::MAX));
        let state = if is_braked {
            PoolState::Degraded(bad, true)
        } else if !assign.is_empty() || in_flight > 0 {
            state
        } else if behind.is_empty() {
            self.ended(&classes, state, is_known)
        } else if behind.iter().any(|node| !self.wait(node, target).is_zero()) {
            state
        } else {
            PoolState::Blocked { behind: behind.len(), by: self.blocker(&measure, &behind) }
        };
        Planned { state, assign, is_open }
    }

    /// What holds for a new revision: which Nodes may get it now, or why none may.
    fn gate(
        &self,
        status: &KubeletConfigPoolStatus,
        waves: PoolState,
        with: usize,
        in_flight: usize,
    ) -> Result<Gate, Planned> {
        let behind = self.members.own.len() - with;
        let revision = revision_name(&self.update.reference);
        let failures = status.rollout.iter().flat_map(|rollout| &rollout.failures);
        if failures.clone().count() >= self.most_failures() {
            let by = Blocker::Silent(failures.map(|failure| failure.name.clone()).collect());
            return Err(Planned::nothing(PoolState::Blocked { behind, by }));
        }
        if let Some(by) = self.canaries.blocker() {
            return Err(Planned::nothing(PoolState::Blocked { behind, by }));
        }
        let gate = match self.canaries.left() {
            Some(left) => Gate { state: self.canaries.state(), most: Some(left), given: Given::Canary, is_open: false },
            None if self.strategy.pause_after_canaries && self.pool.approved != Some(revision.as_str()) => {
                return Err(Planned::nothing(PoolState::AwaitingApproval { revision }));
            }
            None => Gate { state: waves, most: None, given: Given::Wave, is_open: self.canaries.are_done() },
        };
        match self.keeps_back(with) {
            Some(why @ PoolState::PreflightRefused(_)) => Err(Planned::nothing(why)),
            Some(why) if in_flight == 0 => Err(Planned { is_open: gate.is_open, ..Planned::nothing(why) }),
            Some(_) => Err(Planned { is_open: gate.is_open, ..Planned::nothing(gate.state) }),
            None => Ok(gate),
        }
    }

    /// Where the pool is if no Node is behind or on its way.
    fn ended(&self, classes: &[(&PoolNode, Class)], state: PoolState, is_known: bool) -> PoolState {
        let of = |wanted: Class| names(classes.iter().copied().filter(|(_, class)| *class == wanted));
        let (bad, held, lost) = (of(Class::Bad), of(Class::Held), of(Class::Lost));
        let blocked = |names: Vec<String>, by: fn(Vec<String>) -> Blocker| PoolState::Blocked {
            behind: names.len(),
            by: by(names),
        };
        match () {
            () if is_known && !bad.is_empty() => PoolState::Degraded(bad, false),
            () if is_known => PoolState::complete(&self.members.own),
            () if self.members.own.is_empty() => PoolState::NoNodes,
            () if !held.is_empty() => blocked(held, Blocker::HeldOnNode),
            () if !lost.is_empty() => blocked(lost, Blocker::NotReady),
            () => state,
        }
    }

    /// What keeps a new revision from going to any Node now.
    fn keeps_back(&self, with: usize) -> Option<PoolState> {
        let Preflight { waiting, refused, .. } = &self.preflight;
        if refused.len() >= self.most_failures() {
            return Some(PoolState::PreflightRefused(report::messages(refused)));
        }
        if !waiting.is_empty() && with == 0 {
            return Some(PoolState::Preflighting { waiting: waiting.clone() });
        }
        let Windows::ClosedUntil(opens) = self.windows else { return None };
        Some(PoolState::Blocked { behind: self.members.own.len() - with, by: Blocker::Windows(opens) })
    }
}

fn names<'a>(of: impl Iterator<Item = (&'a PoolNode, Class)>) -> Vec<String> {
    of.map(|(node, _)| node.name.clone()).collect()
}
