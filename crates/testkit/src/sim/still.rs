//! A world that stands still, with whatever faults it has: what the machine goes on doing is counted, and bounded by the hour.

use std::collections::BTreeMap;
use std::time::Duration;

use kubelet_supervisor::machine::State;
use kubelet_supervisor::machine::records::Phase;
use kubelet_supervisor::machine::status::node_status;

use super::behaviour::Outcome;
use super::chaos::Chaos;
use super::laws::Law;
use super::world::Outside;

/// What the machine did, and how often.
pub type Activity = BTreeMap<&'static str, u64>;

impl Chaos {
    /// Nothing happens any more but what the faults bring that there are.
    pub(super) fn stand_still(&mut self) {
        if !self.inputs.stands_still {
            return;
        }
        self.note("the world stands still");
        self.pass(Duration::from_secs(2 * 3600));
        let before = self.node.outside.borrow().account.activity.clone();
        self.pass(Duration::from_secs(3600));
        let after = self.node.outside.borrow().account.activity.clone();
        let since = |(what, times): (&'static str, u64)| (what, times - before.get(what).unwrap_or(&0));
        self.node.check_rest(&after.into_iter().map(since).collect());
    }
}

impl Outside {
    /// The machine did this within an hour, after hours in which nothing happened.
    pub fn check_rest(&mut self, state: &State, done: &Activity) {
        let judges = !matches!(state.records().phase, Phase::Settled);
        // A kubelet that dies each time is started each time: every ten seconds at the most, with all that a start takes.
        let runtime = self.surroundings.runtime_down && self.surroundings.runtime_kills;
        let dies = self.process.is_none() || self.is_dying() || runtime || self.torn_local.is_some();
        let starts = if dies { 360 } else { 4 };
        let began = done.get("starts").copied().unwrap_or_default();
        let workers = done.get("workers").copied().unwrap_or_default();
        let most = [
            ("starts", starts),
            // A disk that fails is tried every 30 s, and probed as often for a kubelet that hangs.
            ("writes", 250 + 3 * began),
            // What is assigned and what the local files say, each minute.
            ("reads", 190 + 4 * began),
            ("judged", 10 + began),
            // A trial has the Lease asked for every ten seconds, and the pods every minute; a change that waits both each minute.
            // For half a minute after READY=1 the Lease is asked for each second.
            ("asked", if judges { 560 + 30 * began.min(8) } else { 130 } + 4 * began),
            // Both who judges and who looks for hangs; and four times a second while a kubelet comes up, for two minutes.
            ("looked", if judges { 2000 } else { 700 } + 500 * began),
            // The next worker reports again what nobody confirmed on the disk.
            ("events", 10 + 40 * workers),
            ("lines", 130 + 5 * began),
            // A trial in which healthz flaps tells so thirty times before it fails, and so does its control test: both ways each.
            ("published", if judges { 120 + began } else { 10 } + began),
        ];
        let beyond = most.iter().find(|(what, most)| done.get(what) > Some(most)).map(|(what, _)| *what);
        self.account.check(Law::Rests, false, beyond.is_none(), || {
            format!("{} in an hour: {done:?} where no more than {most:?}", beyond.unwrap_or_default())
        });
        let condition = node_status(state).condition;
        let is_open = matches!(state.records().phase, Phase::Trial(_) | Phase::ControlTest(..));
        // It ends, or it says what holds it.
        let told = condition.message.contains("not healthy for want of");
        let held = told || self.in_trouble() || self.account.pinned.is_some() || self.process.is_none() || dies;
        // No verdict is taken that cannot be written, and none on one that was as sick before.
        let stays = self.process.as_ref().is_some_and(|process| {
            let content = process.content;
            content.behaviour.outcome(self.account.baseline(content)) == Outcome::Stays
        });
        self.account.check(Law::TrialEnds, stays || self.disk.refuses_writes(), held || !is_open, || {
            format!("a trial or its control test has no end after hours, and {condition:?} is all that is said")
        });
    }
}
