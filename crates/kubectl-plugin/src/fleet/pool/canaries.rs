//! The first Nodes that get a revision.

use super::class::Class;
use super::node::PoolNode;
use super::report::{Blocker, PoolState};
use super::types::RolloutStrategy;

/// Those that may be canaries, and how far they are.
#[derive(Debug)]
pub(crate) struct Canaries<'a> {
    strategy: &'a RolloutStrategy,
    /// So many have to finish the revision.
    wanted: usize,
    done: usize,
    in_flight: usize,
    /// Some do not have it yet.
    are_left: bool,
}

impl<'a> Canaries<'a> {
    /// `own`: the pool's Nodes, but for those that join.
    pub(crate) fn new<'b>(strategy: &'a RolloutStrategy, own: impl Iterator<Item = &'b (&'b PoolNode, Class)>) -> Self {
        let mut canaries = Self { strategy, wanted: 0, done: 0, in_flight: 0, are_left: false };
        let mut eligible = 0;
        for (node, class) in own {
            if !canaries.may_be(node) || !class.may_be_canary() {
                continue;
            }
            eligible += 1;
            canaries.done += usize::from(*class == Class::Done);
            canaries.in_flight += usize::from(*class == Class::InFlight);
            canaries.are_left |= class.is_behind();
        }
        canaries.wanted = (strategy.canaries as usize).min(eligible);
        canaries
    }

    pub(crate) fn may_be(&self, node: &PoolNode) -> bool {
        self.strategy.canary_selector.as_ref().is_none_or(|selector| selector.selects(&node.labels))
    }

    /// How many more may be sent; none: enough are done.
    pub(crate) fn left(&self) -> Option<usize> {
        (self.done < self.wanted).then(|| self.wanted.saturating_sub(self.done + self.in_flight))
    }

    /// Others may follow. Where nobody can be one, nobody has proven anything.
    pub(crate) fn are_done(&self) -> bool {
        self.left().is_none() && (self.done > 0 || self.strategy.canaries == 0)
    }

    /// Where the pool is while they are not done.
    pub(crate) fn state(&self) -> PoolState {
        PoolState::Canaries { canaries: self.wanted, done: self.done, in_flight: self.in_flight }
    }

    /// There are to be some, and nobody can be one: no other Node gets the revision either.
    pub(crate) fn blocker(&self) -> Option<Blocker> {
        let is_one_wanted = self.strategy.canaries > 0 && self.strategy.canary_selector.is_some();
        let nobody = self.wanted == 0 || (self.left().is_some() && self.in_flight == 0 && !self.are_left);
        (is_one_wanted && nobody).then_some(Blocker::NoCanaries)
    }
}
