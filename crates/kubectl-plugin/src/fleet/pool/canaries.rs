//! The first Nodes that get a revision.

use super::node::PoolNode;
use super::renderings::RevisionTarget;
use super::report::{Blocker, PoolState};
use super::types::{Proof, RolloutStrategy};

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
    /// `own`: the pool's Nodes.
    pub(crate) fn new(
        strategy: &'a RolloutStrategy,
        own: &[&PoolNode],
        target: &RevisionTarget<'_>,
        proof: Proof,
    ) -> Self {
        let mut canaries = Self { strategy, wanted: 0, done: 0, in_flight: 0, are_left: false };
        let mut eligible = 0;
        for node in own.iter().filter(|node| canaries.may_be(node)).collect::<Vec<_>>() {
            let has = target.is_on(node);
            eligible += 1;
            canaries.done += usize::from(has && node.is_done(proof));
            canaries.in_flight += usize::from(has && node.is_in_flight(proof));
            canaries.are_left |= !has;
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
