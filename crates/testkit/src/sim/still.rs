//! A world that stands still, with whatever faults it has: what the machine goes on doing is counted, and bounded by the hour.

use std::time::Duration;

use kubelet_supervisor::machine::State;
use kubelet_supervisor::machine::records::Phase;
use kubelet_supervisor::machine::status::node_status;

use super::behaviour::Outcome;
use super::chaos::Chaos;
use super::laws::Law;
use super::world::Outside;

/// What the machine did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Activity {
    /// Starts of a kubelet.
    pub starts: u64,
    /// Requests to the store that write, and others.
    pub writes: u64,
    pub reads: u64,
    /// Preflights.
    pub judged: u64,
    /// Requests to the API server.
    pub asked: u64,
    /// Looks at the kubelet and at the node around it.
    pub looked: u64,
    /// Events, and lines of the log.
    pub events: u64,
    pub lines: u64,
    /// Statuses for the API server.
    pub published: u64,
}

impl Activity {
    pub fn since(self, before: Self) -> Self {
        Self {
            starts: self.starts - before.starts,
            writes: self.writes - before.writes,
            reads: self.reads - before.reads,
            judged: self.judged - before.judged,
            asked: self.asked - before.asked,
            looked: self.looked - before.looked,
            events: self.events - before.events,
            lines: self.lines - before.lines,
            published: self.published - before.published,
        }
    }

    /// The first of these that is more than the other allows.
    fn exceeds(self, most: Self) -> Option<&'static str> {
        let all = [
            ("starts", self.starts, most.starts),
            ("writes", self.writes, most.writes),
            ("reads", self.reads, most.reads),
            ("judged", self.judged, most.judged),
            ("asked", self.asked, most.asked),
            ("looked", self.looked, most.looked),
            ("events", self.events, most.events),
            ("lines", self.lines, most.lines),
            ("published", self.published, most.published),
        ];
        all.into_iter().find(|(_, done, most)| done > most).map(|(what, ..)| what)
    }
}

impl Chaos {
    /// Nothing happens any more but what the faults bring that there are.
    pub(super) fn stand_still(&mut self) {
        if !self.inputs.stands_still {
            return;
        }
        self.note("the world stands still");
        self.pass(Duration::from_secs(2 * 3600));
        let before = self.node.outside.borrow().account.activity;
        self.pass(Duration::from_secs(3600));
        let done = self.node.outside.borrow().account.activity.since(before);
        self.node.check_rest(done);
    }
}

impl Outside {
    /// The machine did this within an hour, after hours in which nothing happened.
    pub fn check_rest(&mut self, state: &State, done: Activity) {
        let judges = !matches!(state.records().phase, Phase::Settled);
        // A kubelet that dies each time is started each time: every ten seconds at the most, with all that a start takes.
        let runtime = self.surroundings.runtime_down && self.surroundings.runtime_kills;
        let dies = self.process.is_none() || self.is_dying() || runtime || self.torn_local.is_some();
        let starts = if dies { 360 } else { 4 };
        let most = Activity {
            starts,
            // A disk that fails is tried every 30 s, and probed as often for a kubelet that hangs.
            writes: 250 + 3 * done.starts,
            // What is assigned and what the local files say, each minute.
            reads: 190 + 4 * done.starts,
            judged: 10 + done.starts,
            // A trial has the Lease asked for every ten seconds, and the pods every minute; a change that waits both each minute.
            // For half a minute after READY=1 the Lease is asked for each second.
            asked: if judges { 560 + 30 * done.starts.min(8) } else { 130 } + 4 * done.starts,
            // Both who judges and who looks for hangs; and four times a second while a kubelet comes up, for two minutes.
            looked: if judges { 2000 } else { 700 } + 500 * done.starts,
            events: 10,
            lines: 130 + 5 * done.starts,
            // A trial in which healthz flaps tells so thirty times before it fails.
            published: if judges { 80 + done.starts } else { 10 } + done.starts,
        };
        let beyond = done.exceeds(most);
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
