//! Drains among the decisions: a Node's Pods are looked at, it is cordoned and emptied before its assignment changes, and
//! uncordoned as soon as there is no need.

use std::collections::BTreeSet;
use std::time::Duration;

use super::super::drain::{Cordon, Drain, NodeDrain};
use super::super::draining::{DrainDecision, Drained, uncordon};
use super::super::node::{PoolNode, Progress};
use super::super::renderings::NodeAssignment;
use super::super::report::{Blocker, PoolState};
use super::super::types::{DrainMode, OnFailure};
use super::Rollout;

/// So many Nodes' Pods are listed at a time: with maxUnavailable 10% of 5,000 Nodes it would be 500 lists at once. Each takes
/// a moment, and the next one follows.
const MAX_LISTINGS: usize = 8;

/// With so many Nodes of a pool that cannot be drained no other one is tried: the Pods of those that refuse are followed, and a
/// right that is missing is missing for all.
const MAX_UNDRAINED: usize = 50;

impl<'a> Rollout<'a> {
    fn drain(&self, node: &PoolNode) -> NodeDrain {
        self.cluster.drains.get(&node.name).cloned().unwrap_or_default()
    }

    /// Nodes that join have no Pods yet; those that are not well with what they have need the other one at once.
    fn needs_drain(&self, node: &PoolNode) -> bool {
        let is_well = !node.is_in_flight(self.drain_proof) && !matches!(node.progress, Progress::Bad(_));
        self.strategy.drain != DrainMode::Never && !self.members.joins(node) && is_well
    }

    /// Why a Node cannot be drained, or not in time.
    fn undrained(&self, node: &PoolNode) -> Option<String> {
        let NodeDrain { state, lasts } = self.drain(node);
        match state {
            _ if !self.needs_drain(node) => None,
            Drain::Refused(why) | Drain::GaveUp(why) => Some(why),
            Drain::Going { left, such, .. } if lasts >= self.node_timeout() => Some(format!(
                "{left} Pods are still there after {} s (spec.rollout.nodeTimeoutSeconds), such as {such}",
                self.strategy.node_timeout_seconds
            )),
            _ => None,
        }
    }

    /// Of these, in their order, as many as there is room for: those whose drain has begun have their places already, and one that
    /// cannot be drained leaves its place to the next one.
    pub(super) fn with_drains_in_room(
        &self,
        nodes: impl Iterator<Item = &'a PoolNode>,
        room: usize,
    ) -> Vec<&'a PoolNode> {
        let (undrained, mut able): (Vec<_>, Vec<_>) =
            nodes.filter(|node| node.ready).partition(|node| self.undrained(node).is_some());
        let rank = |node: &PoolNode| match self.drain(node).state {
            _ if !self.needs_drain(node) => 2,
            _ if node.cordon(self.pool.name) == Cordon::Ours => 0,
            Drain::Listing | Drain::Going { .. } | Drain::Empty => 1,
            _ => 2,
        };
        if undrained.len() >= MAX_UNDRAINED {
            able.retain(|node| !self.needs_drain(node) || rank(node) < 2);
        }
        able.sort_by_key(|node| rank(node));
        able.truncate(room);
        able
    }

    /// What cannot be drained of these; none: all can.
    pub(super) fn drain_blocker(&self, behind: &[&PoolNode]) -> Option<Blocker> {
        let undrained = |node: &&PoolNode| Some(format!("{}: {}", node.name, self.undrained(node)?));
        let undrained: Vec<String> = behind.iter().filter_map(undrained).collect();
        (!undrained.is_empty()).then_some(Blocker::Drain(undrained))
    }

    /// Splits what is planned into what can be assigned now and what has to be drained first.
    pub(super) fn split_by_drains(&self, state: PoolState, planned: Vec<NodeAssignment>) -> Drained {
        let behind = self.behind(&state);
        let (mut assign, mut decision, mut going) = (Vec::new(), DrainDecision::default(), Vec::new());
        let mut keep = BTreeSet::new();
        let mut listings = self.cluster.drains.values().filter(|drain| drain.state == Drain::Listing).count();
        for assignment in planned {
            let Some((name, node)) = self.cluster.nodes.get_key_value(&assignment.node) else { continue };
            if self.strategy.drain != DrainMode::Never {
                keep.insert(name.as_str());
            }
            if !self.needs_drain(node) {
                assign.push(assignment);
                continue;
            }
            let (drain, holds) = (self.drain(node).state, node.cordon(self.pool.name).holds());
            match &drain {
                Drain::Idle if listings >= MAX_LISTINGS => continue,
                Drain::Idle => listings += 1,
                Drain::Going { .. } | Drain::Empty if !holds => decision.cordon.push(name.clone()),
                Drain::Going { such, left, .. } => going.push(format!("{name} ({left} Pods, such as {such})")),
                Drain::Empty => assign.push(assignment),
                _ => {}
            }
            let is_listed = matches!(drain, Drain::Going { .. } | Drain::Empty);
            decision.follow.insert(name.clone(), is_listed && holds);
        }
        let unplanned: Vec<_> = behind.iter().filter(|node| !keep.contains(node.name.as_str())).collect();
        for node in unplanned {
            let waits = node.cordon(self.pool.name) == Cordon::Ours && self.needs_drain(node);
            match self.drain(node) {
                NodeDrain { state: Drain::Refused(_), .. } => drop(decision.follow.insert(node.name.clone(), false)),
                // Others became unavailable meanwhile. It would be emptied anew if it were not waited for them for a while.
                NodeDrain { state: Drain::Listing | Drain::Going { .. } | Drain::Empty, lasts }
                    if waits && lasts < self.node_timeout() =>
                {
                    decision.follow.insert(node.name.clone(), false);
                    keep.insert(node.name.as_str());
                }
                _ => {}
            }
        }
        decision.give_up = behind.iter().filter_map(|node| Some((node.name.clone(), self.gives_up(node)?))).collect();
        let selected = self.members.own.iter().chain(self.members.shared.iter().map(|(node, _)| node));
        decision.uncordon = uncordon(selected.copied(), self.pool.name, &keep, self.drain_proof);
        let undrained = self.drain_blocker(&behind);
        let state = state.with_drains(&going, undrained.as_ref());
        Drained { state, assign, next: self.next_drain_timeout(&decision), decision }
    }

    /// Nodes that are to have something else than they have, as far as the pool moves at all.
    fn behind(&self, state: &PoolState) -> Vec<&'a PoolNode> {
        let (moves, goes_back) = match state {
            PoolState::Canaries { .. } | PoolState::Waves { .. } => (true, false),
            PoolState::Blocked { by, .. } => (!matches!(by, Blocker::Windows(_)), false),
            PoolState::Failed { .. } => (self.strategy.on_failure == OnFailure::Revert, true),
            _ => (false, false),
        };
        let own = self.members.own.iter().copied().filter(|_| moves);
        own.filter(|node| self.update.is_on(node) == goes_back).collect()
    }

    /// Its time is over: why.
    fn gives_up(&self, node: &PoolNode) -> Option<String> {
        let is_going = matches!(self.drain(node).state, Drain::Going { .. });
        self.undrained(node).filter(|_| is_going)
    }

    fn next_drain_timeout(&self, decision: &DrainDecision) -> Option<Duration> {
        let left = |name: &String| self.node_timeout().checked_sub(self.cluster.drains.get(name)?.lasts);
        decision.follow.keys().filter_map(left).filter(|left| !left.is_zero()).min()
    }
}
