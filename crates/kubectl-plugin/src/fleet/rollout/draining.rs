//! Drains among the decisions: a node is looked at, cordoned and emptied before its assignment changes, and uncordoned as
//! soon as there is no need.

use super::Phase;
use super::decide::{Fleet, Step};
use super::drain::{Cordon, Drain};
use super::sight::{Doing, Has, Sight};

/// So many nodes' Pods are listed at a time: with `--max-unavailable 10%` of 5,000 nodes it would be 500 lists at once, each
/// of which the API server goes through all Pods for; each takes a moment, and the next one follows.
const LOOKS: usize = 8;

/// What a node's drain needs.
enum Work {
    /// This.
    Do(Step),
    /// Nothing more: its assignment may change.
    Ready,
    /// Time.
    Wait,
    /// It cannot be drained.
    Failed,
}

impl Fleet<'_> {
    pub(super) fn drains(&self) -> bool {
        self.record.options.drain.is_some()
    }

    /// Why a node cannot be drained, or not in time.
    pub(super) fn undrained(&self, sight: &Sight) -> Option<String> {
        match &sight.drain {
            Drain::Refused(why) | Drain::GaveUp(why) => Some(why.clone()),
            // One that is not cordoned yet waits for room, and no Pod was asked to leave.
            Drain::Going { left, such, .. } if sight.cordon.holds() && sight.clocks.draining >= self.timeout() => {
                Some(format!(
                    "{left} Pods are still there after {} s (--timeout-per-node), such as {such}",
                    self.record.options.timeout_seconds
                ))
            }
            _ => None,
        }
    }

    fn may_look(&self) -> bool {
        self.counted().looking < LOOKS
    }

    /// One that is out already changes nothing.
    fn fits(&self) -> bool {
        self.counted().out <= self.max()
    }

    fn work(&self, place: usize, sight: &Sight) -> Work {
        if self.undrained(sight).is_some() {
            return Work::Failed;
        }
        match &sight.drain {
            Drain::Idle if self.may_look() => Work::Do(Step::Look(place)),
            Drain::Idle | Drain::Looking => Work::Wait,
            _ if !sight.cordon.holds() => {
                if self.counted().out < self.max() {
                    Work::Do(Step::Cordon(place))
                } else {
                    Work::Wait
                }
            }
            Drain::Going { next: Some(next), .. } if next.is_zero() => Work::Do(Step::Evict(place)),
            // What is on its way back is not held up by others that are not Ready.
            Drain::Empty if self.fits() || self.record.phase == Phase::Reverting => Work::Ready,
            _ => Work::Wait,
        }
    }

    /// The next step for nodes that are to have it; none if there is none left in the open waves.
    pub(super) fn forward_drained(&self, open: impl Fn(usize) -> bool) -> Option<Step> {
        let next =
            || self.places().filter(|(place, sight)| sight.has == Has::Before && !sight.is_away() && open(*place));
        let mut left = false;
        for (place, sight) in next().filter(|(_, sight)| is_begun(sight)) {
            match self.work(place, sight) {
                Work::Do(step) => return Some(step),
                Work::Ready => return Some(Step::Send(place)),
                Work::Wait | Work::Failed => left = true,
            }
        }
        match next().find(|(_, sight)| !is_begun(sight)) {
            Some((place, _)) if self.has_room() && self.may_look() => Some(Step::Look(place)),
            Some(_) => Some(Step::Wait(self.alarm())),
            None => left.then(|| Step::Wait(self.alarm())),
        }
    }

    /// The same for nodes that are to have back what they had, `ours` by their order; those that cannot be drained are
    /// left out.
    pub(super) fn back_drained(&self, ours: &[usize]) -> Option<Step> {
        let ours = || ours.iter().filter_map(|place| Some((*place, self.sights.get(*place)?)));
        let mut left = false;
        for (place, sight) in ours().filter(|(_, sight)| is_begun(sight)) {
            match self.work(place, sight) {
                Work::Do(step) => return Some(step),
                Work::Ready => return Some(Step::Restore(place)),
                Work::Wait => left = true,
                Work::Failed => {}
            }
        }
        let fresh = ours().find(|(_, sight)| !is_begun(sight) && self.undrained(sight).is_none());
        match fresh {
            Some((place, _)) if self.has_room() && self.may_look() => Some(Step::Look(place)),
            Some(_) => Some(Step::Wait(self.alarm())),
            None => left.then(|| Step::Wait(self.alarm())),
        }
    }

    /// It is empty and may not be sent, as others are not Ready and so more are out than may be. To send it all the same
    /// would break the promise that nothing is sent then; to keep it empty for as long as a broken node takes, weeks
    /// maybe, would keep it from doing its work. So it has the time that a drain has, and is opened then: that is one
    /// less that is out, which may be all that the next one waits for. Its own drain begins anew once there is room.
    fn waits_in_vain(&self, sight: &Sight) -> bool {
        sight.drain == Drain::Empty && sight.clocks.draining >= self.timeout() && !self.fits()
    }

    /// Takes a cordon from the first node that has it without need.
    pub(super) fn uncordon(&self) -> Option<Step> {
        let ours = |sight: &Sight| matches!(sight.cordon, Cordon::Ours | Cordon::Stale);
        let mut places = self.places();
        places.find(|(place, sight)| ours(sight) && self.is_free(*place, sight)).map(|(place, _)| Step::Uncordon(place))
    }

    fn is_free(&self, place: usize, sight: &Sight) -> bool {
        let moves = sight.doing == Doing::Moving;
        match (self.record.phase, sight.has) {
            (_, Has::Gone) => false,
            // It is drained, or will be at once.
            (Phase::Running, Has::Before) => {
                let waits = self.wave(place) > self.record.wave || self.waits_in_vain(sight);
                !self.drains() || sight.is_away() || waits
            }
            // It is drained, to be given back what it had.
            (Phase::Reverting, Has::Target) if !sight.same => sight.ready && self.undrained(sight).is_some(),
            // Only the mark is left.
            _ if sight.cordon == Cordon::Stale => true,
            (Phase::Reverting, Has::Before) => sight.ready && !moves,
            // It never had it, or has gone back.
            (_, Has::Before) => !moves,
            (_, Has::Target) => sight.ready && (self.is_settled(sight) || matches!(sight.doing, Doing::Bad(_))),
            (_, Has::Other) => sight.ready && !moves,
        }
    }

    /// Nothing is sent any more. Nodes that are on their way, and cordoned, are waited for as long as they have time.
    pub(super) fn tidy(&self) -> Step {
        let late = |sight: &Sight| sight.clocks.moving.max(sight.clocks.unready) >= self.timeout();
        let waits = |sight: &Sight| sight.cordon == Cordon::Ours && sight.has != Has::Gone && !late(sight);
        self.uncordon().unwrap_or_else(
            || {
                if self.sights.iter().any(waits) { Step::Wait(self.alarm()) } else { Step::End }
            },
        )
    }
}

/// It is being drained, or was when a client died.
fn is_begun(sight: &Sight) -> bool {
    sight.drain.is_on() || (sight.cordon == Cordon::Ours && !matches!(sight.drain, Drain::GaveUp(_)))
}
