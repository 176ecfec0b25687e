//! Drains among the decisions: a node is looked at, cordoned and emptied before its assignment changes, and uncordoned as
//! soon as there is no need.

use super::Phase;
use super::decide::{Fleet, Step};
use super::drain::{Cordon, Drain};
use super::observed::{Assigned, ObservedNode, Progress};

/// So many nodes' Pods are listed at a time: with `--max-unavailable 10%` of 5,000 nodes it would be 500 lists at once, each
/// of which the API server goes through all Pods for; each takes a moment, and the next one follows.
const MAX_LISTINGS: usize = 8;

/// What a node's drain needs next.
enum DrainNeed {
    /// This step.
    Do(Step),
    /// Nothing more: its assignment may change.
    Ready,
    /// Nothing can be done for it now.
    Wait,
    /// It cannot be drained.
    Failed,
}

impl Fleet<'_> {
    pub(crate) fn drains(&self) -> bool {
        self.record.options.drain.is_some()
    }

    /// Why a node cannot be drained, or not in time.
    pub(crate) fn undrained(&self, node: &ObservedNode) -> Option<String> {
        match &node.drain {
            Drain::Refused(why) | Drain::GaveUp(why) => Some(why.clone()),
            // One that is not cordoned yet waits for room, and no Pod was asked to leave.
            Drain::Going { left, such, .. } if node.cordon.holds() && node.timers.draining >= self.timeout() => {
                Some(format!(
                    "{left} Pods are still there after {} s (--timeout-per-node), such as {such}",
                    self.record.options.timeout_seconds
                ))
            }
            _ => None,
        }
    }

    fn may_follow(&self) -> bool {
        self.counted().listing < MAX_LISTINGS
    }

    /// One that is out already changes nothing.
    fn fits(&self) -> bool {
        self.counted().out <= self.max()
    }

    fn drain_need(&self, index: usize, node: &ObservedNode) -> DrainNeed {
        if self.undrained(node).is_some() {
            return DrainNeed::Failed;
        }
        match &node.drain {
            Drain::Idle if self.may_follow() => DrainNeed::Do(Step::FollowPods(index)),
            Drain::Idle | Drain::Listing => DrainNeed::Wait,
            _ if !node.cordon.holds() => {
                if self.counted().out < self.max() {
                    DrainNeed::Do(Step::Cordon(index))
                } else {
                    DrainNeed::Wait
                }
            }
            Drain::Going { next: Some(next), .. } if next.is_zero() => DrainNeed::Do(Step::Evict(index)),
            // What is on its way back is not held up by others that are not Ready.
            Drain::Empty if self.fits() || self.record.phase == Phase::Reverting => DrainNeed::Ready,
            _ => DrainNeed::Wait,
        }
    }

    /// The next step for nodes that are to have it; none if there is none left in the open waves.
    pub(crate) fn forward_drained(&self, open: impl Fn(usize) -> bool) -> Option<Step> {
        let next = || {
            self.indexed_nodes()
                .filter(|(index, node)| node.assigned == Assigned::Previous && !node.is_away() && open(*index))
        };
        let mut left = false;
        for (index, node) in next().filter(|(_, node)| is_begun(node)) {
            match self.drain_need(index, node) {
                DrainNeed::Do(step) => return Some(step),
                DrainNeed::Ready => return Some(Step::Send(index)),
                DrainNeed::Wait | DrainNeed::Failed => left = true,
            }
        }
        match next().find(|(_, node)| !is_begun(node)) {
            Some((index, _)) if self.has_room() && self.may_follow() => Some(Step::FollowPods(index)),
            Some(_) => Some(Step::Wait(self.next_timeout())),
            None => left.then(|| Step::Wait(self.next_timeout())),
        }
    }

    /// The same for nodes that are to have back what they had, `ours` by their order; those that cannot be drained are
    /// left out.
    pub(crate) fn back_drained(&self, ours: &[usize]) -> Option<Step> {
        let ours = || ours.iter().filter_map(|index| Some((*index, self.observed.get(*index)?)));
        let mut left = false;
        for (index, node) in ours().filter(|(_, node)| is_begun(node)) {
            match self.drain_need(index, node) {
                DrainNeed::Do(step) => return Some(step),
                DrainNeed::Ready => return Some(Step::Restore(index)),
                DrainNeed::Wait => left = true,
                DrainNeed::Failed => {}
            }
        }
        let fresh = ours().find(|(_, node)| !is_begun(node) && self.undrained(node).is_none());
        match fresh {
            Some((index, _)) if self.has_room() && self.may_follow() => Some(Step::FollowPods(index)),
            Some(_) => Some(Step::Wait(self.next_timeout())),
            None => left.then(|| Step::Wait(self.next_timeout())),
        }
    }

    /// It is empty and may not be sent, as others are not Ready and so more are out than may be. To send it all the same
    /// would break the promise that nothing is sent then; to keep it empty for as long as a broken node takes, weeks
    /// maybe, would keep it from doing its work. So it has the time that a drain has, and is opened then: that is one
    /// less that is out, which may be all that the next one waits for. Its own drain begins anew once there is room.
    fn waits_in_vain(&self, node: &ObservedNode) -> bool {
        node.drain == Drain::Empty && node.timers.draining >= self.timeout() && !self.fits()
    }

    /// Takes a cordon from the first node that has it without need.
    pub(crate) fn uncordon(&self) -> Option<Step> {
        let ours = |node: &ObservedNode| matches!(node.cordon, Cordon::Ours | Cordon::Stale);
        let mut nodes = self.indexed_nodes();
        nodes.find(|(index, node)| ours(node) && self.is_free(*index, node)).map(|(index, _)| Step::Uncordon(index))
    }

    fn is_free(&self, index: usize, node: &ObservedNode) -> bool {
        let moves = node.progress == Progress::Updating;
        match (self.record.phase, node.assigned) {
            (_, Assigned::Gone) => false,
            // It is drained, or will be at once.
            (Phase::Running, Assigned::Previous) => {
                let waits = self.wave(index) > self.record.wave || self.waits_in_vain(node);
                !self.drains() || node.is_away() || waits
            }
            // It is drained, to be given back what it had.
            (Phase::Reverting, Assigned::Target) if !node.same => node.ready && self.undrained(node).is_some(),
            // Only the annotation is left.
            _ if node.cordon == Cordon::Stale => true,
            (Phase::Reverting, Assigned::Previous) => node.ready && !moves,
            // It never had it, or has gone back.
            (_, Assigned::Previous) => !moves,
            (_, Assigned::Target) => node.ready && (self.is_settled(node) || matches!(node.progress, Progress::Bad(_))),
            (_, Assigned::Other) => node.ready && !moves,
        }
    }

    /// Nothing is sent any more. Nodes that are on their way, and cordoned, are waited for as long as they have time.
    pub(crate) fn tidy(&self) -> Step {
        let late = |node: &ObservedNode| node.timers.updating.max(node.timers.unready) >= self.timeout();
        let waits = |node: &ObservedNode| node.cordon == Cordon::Ours && node.assigned != Assigned::Gone && !late(node);
        self.uncordon().unwrap_or_else(|| {
            if self.observed.iter().any(waits) { Step::Wait(self.next_timeout()) } else { Step::End }
        })
    }
}

/// It is being drained, or was when a client died.
fn is_begun(node: &ObservedNode) -> bool {
    node.drain.is_on() || (node.cordon == Cordon::Ours && !matches!(node.drain, Drain::GaveUp(_)))
}
