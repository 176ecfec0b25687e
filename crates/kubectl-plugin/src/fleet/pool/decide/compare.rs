//! `rollout.compare`: when canaries are held against Nodes that have not changed, and what follows from it.

use super::super::canaries::Canaries;
use super::super::node::{PoolNode, Progress};
use super::super::report::{Blocker, PoolState};
use super::super::revision::revision_name;
use super::super::types::comparison::{CanaryComparison, CompareStrategy, ComparisonOutcome};
use super::super::types::{BadRevisionNode, KubeletConfigPoolStatus};
use super::Rollout;
use super::view::is_new;

impl Rollout<'_> {
    /// Begins the comparison of canaries with unchanged Nodes when all are done, and takes in what is seen; whether it has begun
    /// or is over by that.
    pub(super) fn compare(&self, status: &mut KubeletConfigPoolStatus) -> bool {
        let update = revision_name(&self.update.reference);
        // One of a revision that is wanted no more finds nothing out, and one that is tried again is compared anew.
        let (is_new, is_tried) =
            (is_new(status, self.update), self.members.own.iter().any(|node| self.update.is_on(node)));
        let is_stale = |it: &mut CanaryComparison| {
            let is_of_update = it.revision == update && it.started().is_some();
            let is_again = is_of_update && is_new && (!is_tried || it.outcome == ComparisonOutcome::HarmFound);
            (it.is_open() && !(is_of_update && is_new)) || is_again
        };
        status.comparison.take_if(|it| self.strategy.compare.is_none() || is_stale(it));
        let Some(asked) = self.strategy.compare.as_ref().filter(|_| is_new) else { return false };
        let Some(comparison) = status.comparison.as_mut().filter(|it| it.revision == update) else {
            let begun = self.canaries_are_done().then(|| self.new_comparison(update, asked));
            let has_begun = begun.is_some();
            status.comparison = begun.or(status.comparison.take());
            return has_begun;
        };
        let was_open = comparison.is_open();
        comparison.update(asked, self.pool.observed, self.cluster.nodes, self.cluster.now);
        let is_over = was_open && !comparison.is_open();
        if is_over && comparison.outcome == ComparisonOutcome::HarmFound {
            let harmed = comparison.harmed().map(|(name, message)| BadRevisionNode { name, message });
            let (message, harmed) = (comparison.message.clone(), harmed.collect());
            self.record_bad(status, harmed, message);
        }
        is_over
    }

    /// And there are Nodes that it did not go to yet.
    fn canaries_are_done(&self) -> bool {
        let own = &self.members.own;
        let canaries = Canaries::new(self.strategy, own, self.update, self.strategy.proof);
        canaries.blocker().is_none() && canaries.left().is_none() && own.iter().any(|node| !self.update.is_on(node))
    }

    /// Both by the draw that chose the canaries, and by what a Node must be to be one: chance alone tells them apart.
    fn new_comparison(&self, update: String, asked: &CompareStrategy) -> CanaryComparison {
        let (now, proof) = (self.cluster.now, self.strategy.proof);
        let drawn_from = Canaries::new(self.strategy, &self.members.own, self.update, proof);
        let fits = |node: &&PoolNode| {
            let is_settled =
                !node.is_young(now) && !node.is_in_flight(proof) && !matches!(node.progress, Progress::Bad(_));
            drawn_from.may_be(node) && node.ready && !node.held && is_settled && self.update.of(node).is_some()
        };
        let nodes: Vec<&PoolNode> = self.members.own.iter().copied().filter(fits).collect();
        let (canaries, controls): (Vec<&PoolNode>, Vec<&PoolNode>) =
            self.in_order(&nodes).into_iter().partition(|node| self.update.is_on(node));
        CanaryComparison::new(update, asked, &canaries, &controls, now)
    }

    /// Until the comparison is over.
    pub(super) fn comparing(&self, status: &KubeletConfigPoolStatus, behind: usize) -> Option<PoolState> {
        let comparison = status.comparison.as_ref().filter(|it| it.is_open() && self.strategy.compare.is_some())?;
        Some(match comparison.blocked_by(self.pool.observed) {
            Some(why) => PoolState::Blocked { behind, by: Blocker::Comparison(why.clone()) },
            None => PoolState::Comparing(comparison.message.clone()),
        })
    }
}
