//! Which Nodes go next, and what keeps the others.

use std::collections::BTreeMap;
use std::time::Duration;

use sha2::{Digest as _, Sha256};

use super::super::class::{Measure, class};
use super::super::jitter;
use super::super::node::{Given, PoolNode};
use super::super::renderings::{NodeAssignment, RevisionTarget};
use super::super::report::Blocker;
use super::super::revision::{is_of_revision, revision_name};
use super::super::types::{BadRevision, KubeletConfigPoolStatus, Proof, max_unavailable};
use super::super::windows::Windows;
use super::Rollout;

impl<'a> Rollout<'a> {
    /// Of these Nodes, those that go next: at most `most` of those that can be canaries, as far as there are to be any.
    pub(super) fn next_nodes(
        &self,
        measure: &Measure<'_>,
        candidates: &[&'a PoolNode],
        given: Given,
        most: usize,
    ) -> Vec<NodeAssignment> {
        let target = measure.target;
        let renderings = self.tried_renderings(target);
        let may_get = |node: &PoolNode| {
            let rendering = renderings.as_ref().and_then(|of| of.get(&node.name)).copied();
            target.of(node).is_some() && rendering.unwrap_or(true)
        };
        // One that is unavailable already, and may need this to come back, takes no place.
        let is_out = |node: &PoolNode| {
            !node.ready || (node.is_in_flight(measure.proof) && self.counts_as_unavailable(node, measure.proof))
        };
        let room = self.room(measure.proof);
        // Their order costs more than all else.
        let mut able = candidates.to_vec();
        able.retain(|node| may_get(node) && (room > 0 || is_out(node)));
        let (out, others): (Vec<_>, Vec<_>) = self.in_order(&able).into_iter().partition(|node| is_out(node));
        let others = others.into_iter().filter(|node| self.wait(node, target).is_zero());
        let others = self.with_drains_in_room(others, room);
        let next = self.members.one_control_plane_at_a_time(out.into_iter().chain(others)).take(most);
        let given = |node: &PoolNode| if node.ready { given } else { Given::Back };
        next.filter_map(|node| NodeAssignment::of(target, node, given(node))).collect()
    }

    /// Nodes that hang with what nobody wants any more get what all had: it brought them up before.
    pub(super) fn rescued(
        &self,
        current: &RevisionTarget<'_>,
        status: &KubeletConfigPoolStatus,
    ) -> Vec<NodeAssignment> {
        let measure = self.measure(current, status);
        let hangs = |node: &&PoolNode| {
            let is_superseded = !self.update.is_on(node) && !current.is_on(node);
            is_superseded && !node.ready && class(node, &measure, self.cluster.now).gets(node, &measure, true, true)
        };
        let hanging = self.members.one_control_plane_at_a_time(self.members.own.iter().copied().filter(hangs));
        hanging.filter_map(|node| NodeAssignment::of(current, node, Given::Back)).collect()
    }

    /// How long a Node that is well is still left with a bad revision: they do not all go back at once.
    pub(super) fn wait(&self, node: &PoolNode, target: &RevisionTarget<'_>) -> Duration {
        let status = self.pool.status;
        // Asked of each Node at each decision, and mostly there is nothing to go back from.
        if status.bad_revisions.is_empty() {
            return Duration::ZERO;
        }
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
    fn tried_renderings(&self, target: &RevisionTarget<'_>) -> Option<BTreeMap<String, bool>> {
        let is_known = self.pool.status.current_revision.as_ref() == Some(&revision_name(&target.reference));
        if !is_known || !target.has_renderings() || !self.is_update(target) {
            return None;
        }
        let mut tried: BTreeMap<&str, (bool, bool)> = BTreeMap::new();
        for node in self.members.own.iter().filter(|node| target.is_on(node)) {
            let Some(rendering) = target.of(node) else { continue };
            let (proven, open) = tried.entry(&rendering.name).or_default();
            *proven |= node.is_done(Proof::Proven);
            *open |= !node.is_done(Proof::Proven);
        }
        let is_open = !matches!(self.windows, Windows::ClosedUntil(_));
        let may_get = |node: &&PoolNode| {
            let rendering = target.of(node).and_then(|to| tried.get(to.name.as_str()).copied());
            let (proven, open) = rendering.unwrap_or_default();
            (node.name.clone(), proven || (is_open && !open))
        };
        Some(self.members.own.iter().map(may_get).collect())
    }

    /// So many more Nodes may become unavailable.
    pub(super) fn room(&self, proof: Proof) -> usize {
        let out = self.members.own.iter().filter(|node| self.counts_as_unavailable(node, proof)).count();
        self.max_unavailable().saturating_sub(out + self.members.leavers.returning.len())
    }

    /// So many of the pool's own Nodes may be unavailable.
    pub(super) fn max_unavailable(&self) -> usize {
        max_unavailable(&self.strategy.max_unavailable, self.members.own.len()).unwrap_or(1)
    }

    /// One that joined has no pods yet: it counts only with what it is given later.
    pub(super) fn counts_as_unavailable(&self, node: &PoolNode, proof: Proof) -> bool {
        let is_fresh = self.members.joins(node) || self.members.has_joined(node);
        !is_fresh && (!node.ready || node.is_on_its_way(proof, self.cluster.now))
    }

    /// Why none of these can go.
    pub(super) fn blocker(&self, measure: &Measure<'_>, behind: &[&PoolNode]) -> Blocker {
        let proof = measure.proof;
        let names = |which: &dyn Fn(&&&PoolNode) -> bool, of: &[&PoolNode]| -> Vec<String> {
            of.iter().filter(which).map(|node| node.name.clone()).collect()
        };
        if behind.iter().all(|node| measure.target.of(node).is_none()) {
            return Blocker::NoRendering(names(&|_| true, behind));
        }
        if self.room(proof) == 0 {
            return Blocker::MaxUnavailable(names(&|node| self.counts_as_unavailable(node, proof), &self.members.own));
        }
        if behind.iter().all(|node| !node.ready) {
            return Blocker::NotReady(names(&|_| true, behind));
        }
        if let Some(blocker) = self.drain_blocker(behind) {
            return blocker;
        }
        if self.members.busy_control_plane.is_empty() {
            if let (Windows::ClosedUntil(opens), true) = (self.windows, self.is_update(measure.target)) {
                return Blocker::Windows(opens);
            }
            let own = self.members.own.iter().copied().filter(|node| measure.target.is_on(node));
            return Blocker::Unproven(names(&|node| !node.is_done(Proof::Proven), &own.collect::<Vec<_>>()));
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
        if of.is_empty() {
            return Vec::new();
        }
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
}
