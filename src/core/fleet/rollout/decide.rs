//! What to do next, from what is recorded and what the nodes say.

use std::time::Duration;

use super::plan::Member;
use super::sight::{Doing, Has, Sight};
use super::{Bad, NOT_READY, OnFailure, Phase, Record};

/// The next thing to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Write this record before anything else.
    Record(Box<Record>),
    /// Assign the target to this node.
    Send(usize),
    /// Give this node back what it had.
    Restore(usize),
    /// Wait for a node to say something, or for this long.
    Wait(Option<Duration>),
    /// This client has nothing left to do.
    End,
}

const NO_CANARY: &str = "no canary is left to prove it: they are gone, not Ready, held, or were assigned something \
                         else; abort this rollout and begin anew";

/// Decides. `sights` are of `members`, which are in the order of the plan.
#[must_use]
pub fn decide(record: &Record, members: &[Member], sights: &[Sight]) -> Step {
    let fleet = Fleet { record, members, sights };
    match record.phase {
        Phase::Running => fleet.failure().unwrap_or_else(|| fleet.forward()),
        // A node that goes back while somebody looks at the canaries ends the pause.
        Phase::Paused => fleet.failure().unwrap_or_else(|| Step::Wait(fleet.alarm())),
        Phase::Reverting => fleet.back(),
        Phase::Starting | Phase::Stopped | Phase::Done | Phase::Reverted | Phase::Aborted => Step::End,
    }
}

struct Fleet<'a> {
    record: &'a Record,
    members: &'a [Member],
    sights: &'a [Sight],
}

impl Fleet<'_> {
    fn timeout(&self) -> Duration {
        Duration::from_secs(self.record.options.timeout_seconds)
    }

    fn name(&self, place: usize) -> &str {
        self.members.get(place).map_or("", |member| &member.name)
    }

    fn places(&self) -> impl Iterator<Item = (usize, &Sight)> {
        self.sights.iter().enumerate()
    }

    fn is_settled(&self, sight: &Sight) -> bool {
        sight.is_settled(self.record.options.wait_for)
    }

    /// In flight, or not Ready for whatever reason.
    fn is_busy(&self, sight: &Sight) -> bool {
        match sight.has {
            Has::Gone => false,
            Has::Target => !sight.ready || !(self.is_settled(sight) || sight.is_away()),
            // On its way back; one that takes too long for that is not waited for.
            Has::Before | Has::Other => {
                !sight.ready || (sight.doing == Doing::Moving && sight.clocks.moving < self.timeout())
            }
        }
    }

    fn has_room(&self) -> bool {
        let busy = self.sights.iter().filter(|sight| self.is_busy(sight)).count();
        busy < self.record.options.max_unavailable.max(1)
    }

    fn change(&self, change: impl FnOnce(&mut Record)) -> Step {
        let mut record = self.record.clone();
        change(&mut record);
        Step::Record(Box::new(record))
    }

    /// The first node that speaks against it.
    fn failure(&self) -> Option<Step> {
        let halt = |why: String, bad: Option<Bad>| {
            self.change(|record| {
                record.phase = match record.options.on_failure {
                    OnFailure::Stop => Phase::Stopped,
                    OnFailure::Revert => Phase::Reverting,
                };
                record.why = why;
                if let Some(bad) = bad.filter(|bad| record.bad.iter().all(|known| known.node != bad.node)) {
                    record.bad.push(bad);
                }
            })
        };
        // What a node said once it has to take back itself: by proving it.
        let takes_back = |bad: &Bad| {
            let place = self.members.iter().position(|member| member.name == bad.node);
            let sight = place.and_then(|place| self.sights.get(place));
            sight.is_some_and(|sight| sight.has == Has::Target && sight.doing == Doing::Proven)
        };
        if let Some(bad) = self.record.bad.iter().find(|bad| !takes_back(bad)) {
            return Some(halt(format!("node {} called it bad: {}", bad.node, bad.why), None));
        }
        let sent = self.places().filter(|(_, sight)| sight.has == Has::Target);
        for (place, sight) in sent {
            let name = self.name(place);
            if let Doing::Bad(why) = &sight.doing {
                let bad = Bad { node: name.to_owned(), why: why.clone() };
                return Some(halt(format!("node {name} called it bad: {why}"), Some(bad)));
            }
            if sight.doing == Doing::Proven || sight.is_away() {
                continue;
            }
            if !sight.same && sight.clocks.unready >= NOT_READY {
                let seconds = NOT_READY.as_secs();
                return Some(halt(format!("node {name} is not Ready for more than {seconds} s"), None));
            }
            if !self.is_settled(sight) && sight.clocks.moving >= self.timeout() {
                let seconds = self.record.options.timeout_seconds;
                let why = format!(
                    "node {name} did not come to an end within {seconds} s (--timeout-per-node); \
                     see `kubectl kubelet-config status {name}`, and whether a supervisor runs there"
                );
                return Some(halt(why, None));
            }
        }
        if self.record.bad.is_empty() { None } else { Some(self.change(|record| record.bad.clear())) }
    }

    /// When time alone may change something.
    fn alarm(&self) -> Option<Duration> {
        let left = |limit: Duration, passed: Duration| {
            limit.checked_sub(passed).filter(|left| !left.is_zero() && !passed.is_zero())
        };
        let of = |sight: &Sight| {
            let Sight { clocks, .. } = sight;
            let alarms = [
                left(NOT_READY, clocks.unready).filter(|_| sight.has == Has::Target),
                left(self.timeout(), clocks.moving),
                left(self.timeout(), clocks.away),
            ];
            alarms.into_iter().flatten().min()
        };
        self.sights.iter().filter_map(of).min()
    }

    fn forward(&self) -> Step {
        let options = &self.record.options;
        let open = |place: usize| options.wave(place) <= self.record.wave;
        let is_next = |sight: &Sight| sight.has == Has::Before && !sight.is_away();
        if let Some((place, _)) = self.places().find(|(place, sight)| open(*place) && is_next(sight)) {
            return if self.has_room() { Step::Send(place) } else { Step::Wait(self.alarm()) };
        }
        let under_way = |sight: &Sight| sight.has == Has::Target && !self.is_settled(sight) && !sight.is_away();
        if self.places().any(|(place, sight)| open(place) && under_way(sight)) {
            return Step::Wait(self.alarm());
        }
        if self.record.wave == 0 && options.canaries > 0 {
            return self.after_canaries();
        }
        if self.record.wave < self.record.last_wave() {
            return self.change(|record| record.wave += 1);
        }
        self.finish()
    }

    /// All canaries that could be sent are done.
    fn after_canaries(&self) -> Step {
        let canaries = || self.sights.iter().take(self.record.options.canaries);
        if canaries().any(|sight| sight.is_away() && sight.clocks.away < self.timeout()) {
            return Step::Wait(self.alarm());
        }
        if !canaries().any(|sight| self.is_settled(sight)) {
            return self.change(|record| {
                record.phase = Phase::Stopped;
                record.why = String::from(NO_CANARY);
            });
        }
        let pause = self.record.options.pause_after_canaries && self.record.last_wave() > 0;
        if self.record.last_wave() == 0 {
            return self.finish();
        }
        self.change(|record| {
            record.wave = 1;
            if pause {
                record.phase = Phase::Paused;
                record.why = String::from("the canaries are done (--pause-after canary)");
            }
        })
    }

    /// Nothing is left but nodes that cannot take it.
    fn finish(&self) -> Step {
        if self.sights.iter().any(|sight| sight.is_away() && sight.clocks.away < self.timeout()) {
            return Step::Wait(self.alarm());
        }
        let without = |sight: &Sight| sight.is_away() || sight.has == Has::Other;
        let names: Vec<&str> =
            self.places().filter(|(_, sight)| without(sight)).map(|(place, _)| self.name(place)).collect();
        self.change(|record| {
            record.phase = Phase::Done;
            record.why = left_out(&names);
        })
    }

    /// Gives back, first to those that are not well, which makes nothing worse.
    fn back(&self) -> Step {
        let ours = |sight: &Sight| sight.has == Has::Target && !sight.same;
        let moves = |sight: &Sight| {
            sight.has == Has::Before && sight.doing == Doing::Moving && sight.clocks.moving < self.timeout()
        };
        let mut sent = self.places().filter(|(_, sight)| ours(sight));
        if let Some((place, _)) = sent.find(|(_, sight)| !sight.ready || matches!(sight.doing, Doing::Bad(_))) {
            return Step::Restore(place);
        }
        // Those on their way go before those that are settled: they are restarting anyhow. But an edit of the ConfigMap
        // puts all of them on their way, and they must not all go back at once.
        let unsettled = self.places().find(|(_, sight)| ours(sight) && !self.is_settled(sight));
        if let Some((place, _)) = unsettled.or_else(|| self.places().find(|(_, sight)| ours(sight))) {
            let down = |sight: &&Sight| sight.has != Has::Gone && (!sight.ready || moves(sight));
            let room = self.sights.iter().filter(down).count() < self.record.options.max_unavailable.max(1);
            return if room { Step::Restore(place) } else { Step::Wait(self.alarm()) };
        }
        if self.sights.iter().any(moves) {
            return Step::Wait(self.alarm());
        }
        let gave_up = |sight: &Sight| sight.has == Has::Before && sight.doing == Doing::Moving;
        let names: Vec<&str> =
            self.places().filter(|(_, sight)| gave_up(sight)).map(|(place, _)| self.name(place)).collect();
        self.change(|record| {
            record.phase = Phase::Reverted;
            if !names.is_empty() {
                record.why = format!("did not come back within --timeout-per-node: {}", few(&names));
            }
        })
    }
}

/// Names, five at the most.
fn left_out(names: &[&str]) -> String {
    if names.is_empty() {
        return String::new();
    }
    format!("left out, as not Ready, held, or assigned something else: {}", few(names))
}

fn few(names: &[&str]) -> String {
    let shown: Vec<&str> = names.iter().copied().take(5).collect();
    let more = names.len() - shown.len();
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{more}", shown.join(", "))
}
