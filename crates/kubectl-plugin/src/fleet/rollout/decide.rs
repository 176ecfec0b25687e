//! What to do next, from what is recorded and what the nodes say.

use std::cell::OnceCell;
use std::time::Duration;

use super::drain::{Cordon, Drain};
use super::member::Member;
use super::observed::{Assigned, ObservedNode, Progress};
use super::{BadVersion, NOT_READY, OnFailure, Phase, Record, WITHDRAWN, wave};

/// What the driving client is to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Write this record before anything else.
    Record(Box<Record>),
    /// Assign the target to this node.
    Send(usize),
    /// Give this node back what it had.
    Restore(usize),
    /// Look at the Pods of this node, from now on until its assignment has changed or nothing is to be sent to it.
    FollowPods(usize),
    /// Cordon this node, with the rollout's annotation.
    Cordon(usize),
    /// Evict a Pod of this node: one that is due.
    Evict(usize),
    /// Take cordon and annotation from this node.
    Uncordon(usize),
    /// Wait for a node to say something, or for this long.
    Wait(Option<Duration>),
    /// This client has nothing left to do.
    End,
}

const PROVED: &str = "it has proven it since";
const NO_CANARY: &str = "no canary is left to prove it: they are gone, not Ready, held, excused by --despite, or were \
                         assigned something else; abort this rollout and begin anew by another --name";

/// Decides. `observed` are the `members`, which are in the order of the plan.
pub(crate) fn decide(record: &Record, members: &[Member], observed: &[ObservedNode]) -> Step {
    let fleet = Fleet { record, members, observed, canaries: canaries(record, members), counted: OnceCell::new() };
    let reaction = || fleet.change_of_bad_versions().or_else(|| fleet.failure()).or_else(|| fleet.uncordon());
    match record.phase {
        Phase::Running => reaction().unwrap_or_else(|| fleet.next_forward_step()),
        // A node that rolls back during the pause ends it.
        Phase::Paused => reaction().unwrap_or_else(|| Step::Wait(fleet.next_timeout())),
        // What a node said of the version goes from it with its assignment: it is written down before.
        Phase::Reverting => {
            fleet.report_bad_versions().or_else(|| fleet.uncordon()).unwrap_or_else(|| fleet.undo_step())
        }
        Phase::Stopped | Phase::Done | Phase::Reverted | Phase::Aborted => {
            fleet.report_bad_versions().unwrap_or_else(|| fleet.tidy())
        }
        Phase::Starting => Step::End,
    }
}

/// Its Pods are of interest: it is, or may be, drained.
pub(crate) fn is_drained(record: &Record, node: &ObservedNode) -> bool {
    match record.phase {
        Phase::Running => node.assigned == Assigned::Previous && !node.is_away(),
        Phase::Reverting => node.assigned == Assigned::Target,
        _ => false,
    }
}

/// Why a node that is on its way back is not tried any more.
pub(crate) fn gives_up(record: &Record, node: &ObservedNode) -> Option<String> {
    let fleet = Fleet { record, members: &[], observed: &[], canaries: 0, counted: OnceCell::new() };
    (record.phase == Phase::Reverting).then(|| fleet.undrained(node)).flatten()
}

pub(crate) struct Fleet<'a> {
    pub(crate) record: &'a Record,
    members: &'a [Member],
    pub(crate) observed: &'a [ObservedNode],
    canaries: usize,
    counted: OnceCell<Counted>,
}

/// Nodes that are not as they should be.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counted {
    /// Out of service.
    pub(crate) out: usize,
    /// Those, and the ones whose drain has begun and that are not cordoned yet: their room is taken.
    pub(crate) busy: usize,
    /// Those whose Pods are being listed.
    pub(crate) listing: usize,
}

/// The first nodes of the plan, of which as many as asked for are not excused: for each that proves nothing another one
/// has to.
fn canaries(record: &Record, members: &[Member]) -> usize {
    let canaries = record.options.canaries;
    if record.excluded_nodes.is_empty() || canaries == 0 {
        return canaries;
    }
    let mut able = members.iter().enumerate().filter(|(_, member)| !record.excludes(&member.name));
    able.nth(canaries - 1).map_or(members.len(), |(index, _)| index + 1)
}

impl Fleet<'_> {
    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_secs(self.record.options.timeout_seconds)
    }

    pub(crate) fn wave(&self, index: usize) -> usize {
        wave(index, self.canaries, self.record.options.max_unavailable)
    }

    fn last_wave(&self) -> usize {
        self.wave(self.members.len().saturating_sub(1))
    }

    fn name(&self, index: usize) -> &str {
        self.members.get(index).map_or("", |member| &member.name)
    }

    pub(crate) fn indexed_nodes(&self) -> impl Iterator<Item = (usize, &ObservedNode)> {
        self.observed.iter().enumerate()
    }

    pub(crate) fn is_settled(&self, node: &ObservedNode) -> bool {
        node.is_settled(self.record.options.wait_for)
    }

    /// It called the version bad, and that counts for nothing: what runs there is its last known good one.
    fn is_excluded(&self, index: usize, node: &ObservedNode) -> bool {
        node.assigned == Assigned::Target
            && matches!(node.progress, Progress::Bad(_))
            && self.members.get(index).is_some_and(|member| self.record.excludes(&member.name))
    }

    /// Its Pods may not be there any more, or none may come: in flight, drained, or not Ready for whatever reason.
    fn is_out(&self, index: usize, node: &ObservedNode) -> bool {
        let drained = node.cordon == Cordon::Ours || (node.drain.is_on() && node.cordon.holds());
        match node.assigned {
            Assigned::Gone => false,
            // On the way back one that stays not Ready is not waited for without end: the others would keep for its
            // sake what is to be taken from them.
            _ if self.record.phase == Phase::Reverting => {
                (!node.ready && !self.is_lost(node)) || (drained && !self.is_late(node)) || self.moves_back(node)
            }
            _ if drained => true,
            Assigned::Target => {
                !node.ready || !(self.is_settled(node) || node.is_away() || self.is_excluded(index, node))
            }
            // On its way back; one that takes too long for that is not waited for.
            Assigned::Previous | Assigned::Other => {
                !node.ready || (node.progress == Progress::Updating && node.timers.updating < self.timeout())
            }
        }
    }

    /// On its way back, and in time.
    fn moves_back(&self, node: &ObservedNode) -> bool {
        node.assigned == Assigned::Previous
            && node.progress == Progress::Updating
            && node.timers.updating < self.timeout()
    }

    /// Not Ready for longer than a node's time.
    fn is_lost(&self, node: &ObservedNode) -> bool {
        !node.ready && node.timers.unready >= self.timeout()
    }

    /// It should be back, and Ready, and is not.
    fn is_late(&self, node: &ObservedNode) -> bool {
        self.is_lost(node) || (node.assigned != Assigned::Target && node.timers.updating >= self.timeout())
    }

    /// How many nodes are not as they should be, counted once a decision.
    pub(crate) fn counted(&self) -> Counted {
        *self.counted.get_or_init(|| {
            let mut counted = Counted::default();
            for (index, node) in self.indexed_nodes() {
                let out = self.is_out(index, node);
                counted.out += usize::from(out);
                counted.busy += usize::from(out || (node.assigned != Assigned::Gone && node.drain.is_on()));
                counted.listing += usize::from(node.drain == Drain::Listing);
            }
            counted
        })
    }

    pub(crate) fn max(&self) -> usize {
        self.record.options.max_unavailable.max(1)
    }

    pub(crate) fn has_room(&self) -> bool {
        self.counted().busy < self.max()
    }

    fn change(&self, change: impl FnOnce(&mut Record)) -> Step {
        let mut record = self.record.clone();
        change(&mut record);
        Step::Record(Box::new(record))
    }

    /// Whatever the reason: all that call it bad are remembered, not only the first one.
    fn halt(&self, why: String) -> Step {
        self.change(|record| {
            record.phase = match record.options.on_failure {
                OnFailure::Stop => Phase::Stopped,
                OnFailure::Revert => Phase::Reverting,
            };
            record.why = why;
            self.add_all_bad(record);
        })
    }

    fn add_all_bad(&self, record: &mut Record) {
        for (node, why) in self.called_bad() {
            record.add_bad(BadVersion { node: node.to_owned(), why: why.to_owned(), from: None });
        }
    }

    /// Who calls it bad now, and in which words.
    fn called_bad(&self) -> impl Iterator<Item = (&str, &str)> {
        self.indexed_nodes().filter_map(|(index, node)| match &node.progress {
            Progress::Bad(why) if node.assigned == Assigned::Target && !self.is_excluded(index, node) => {
                Some((self.name(index), why.as_str()))
            }
            _ => None,
        })
    }

    /// Who calls it bad, if that is not in the record yet; the phase stays what it is.
    fn report_bad_versions(&self) -> Option<Step> {
        let is_new = self.called_bad().any(|(node, _)| self.record.is_new_bad(node));
        is_new.then(|| self.change(|record| self.add_all_bad(record)))
    }

    /// What is to be remembered before anything else is done: from which nodes somebody took the target, and who has
    /// proven what he called bad before.
    fn change_of_bad_versions(&self) -> Option<Step> {
        let taken = self.indexed_nodes().filter(|(_, node)| node.taken_back).map(|(index, _)| self.name(index));
        let taken: Vec<String> =
            taken.filter(|name| !self.record.withdrawn.iter().any(|it| it == name)).map(str::to_owned).collect();
        if self.record.withdrawn.len() + taken.len() >= WITHDRAWN {
            // What somebody takes from so many is not to be given to others, whatever --on-failure says.
            return Some(self.change(|record| {
                record.withdrawn.extend(taken);
                record.withdrawn.truncate(WITHDRAWN);
                record.phase = Phase::Stopped;
                record.why = format!(
                    "somebody took it from {WITHDRAWN} nodes and more again; abort this rollout, and begin anew by another \
                     --name if it is to go on"
                );
            }));
        }
        let proven = |bad: &&BadVersion| {
            let index = self.members.iter().position(|member| member.name == bad.node);
            let node = index.and_then(|index| self.observed.get(index));
            node.is_some_and(|node| node.assigned == Assigned::Target && node.progress == Progress::Proven)
        };
        let proven: Vec<&BadVersion> = self.record.bad.iter().filter(proven).collect();
        if taken.is_empty() && proven.is_empty() {
            return None;
        }
        Some(self.change(|record| {
            record.withdrawn.extend(taken);
            for bad in proven {
                record.clear_bad(&bad.node, PROVED);
            }
        }))
    }

    /// The first node that speaks against it.
    fn failure(&self) -> Option<Step> {
        if let Some(BadVersion { node, why, from }) = self.record.bad.first() {
            let of = from.as_ref().map_or(String::new(), |name| format!(" of rollout {name}"));
            return Some(self.halt(format!("node {node}{of} called it bad: {why}")));
        }
        let sent = self.indexed_nodes().filter(|(_, node)| node.assigned == Assigned::Target);
        for (index, node) in sent {
            let name = self.name(index);
            if let Progress::Bad(why) = &node.progress {
                if self.is_excluded(index, node) {
                    continue;
                }
                return Some(self.halt(format!("node {name} called it bad: {why}")));
            }
            if node.progress == Progress::Proven || node.is_away() {
                continue;
            }
            if !node.same && node.timers.unready >= NOT_READY {
                let seconds = NOT_READY.as_secs();
                return Some(self.halt(format!("node {name} is not Ready for more than {seconds} s")));
            }
            if !self.is_settled(node) && node.timers.updating >= self.timeout() {
                let seconds = self.record.options.timeout_seconds;
                let why = format!(
                    "node {name} did not come to an end within {seconds} s (--timeout-per-node); \
                     see `kubectl kubelet-config status {name}`, and whether a supervisor runs there"
                );
                return Some(self.halt(why));
            }
        }
        // That is no fault of the version, and taking it back would take drains too: whatever --on-failure says.
        self.indexed_nodes().find_map(|(index, node)| {
            let why = self.undrained(node)?;
            Some(self.change(|record| {
                record.phase = Phase::Stopped;
                record.why = format!("node {} cannot be drained: {why}", self.name(index));
            }))
        })
    }

    /// When time alone may change something.
    pub(crate) fn next_timeout(&self) -> Option<Duration> {
        let left = |limit: Duration, passed: Duration| {
            limit.checked_sub(passed).filter(|left| !left.is_zero() && !passed.is_zero())
        };
        let reverting = self.record.phase == Phase::Reverting;
        let of = |node: &ObservedNode| {
            let ObservedNode { timers, .. } = node;
            let timeouts = [
                left(NOT_READY, timers.unready).filter(|_| node.assigned == Assigned::Target),
                left(self.timeout(), timers.updating),
                left(self.timeout(), timers.away),
                left(self.timeout(), timers.draining),
                left(self.timeout(), timers.unready).filter(|_| node.cordon == Cordon::Ours || reverting),
                match node.drain {
                    Drain::Going { next, .. } => next.filter(|next| !next.is_zero()),
                    _ => None,
                },
            ];
            timeouts.into_iter().flatten().min()
        };
        self.observed.iter().filter_map(of).min()
    }

    fn next_forward_step(&self) -> Step {
        let open = |index: usize| self.wave(index) <= self.record.wave;
        let is_next = |node: &ObservedNode| node.assigned == Assigned::Previous && !node.is_away();
        if self.drains() {
            if let Some(step) = self.forward_drained(open) {
                return step;
            }
        } else if let Some((index, _)) = self.indexed_nodes().find(|(index, node)| open(*index) && is_next(node)) {
            return if self.has_room() { Step::Send(index) } else { Step::Wait(self.next_timeout()) };
        }
        let under_way = |index: usize, node: &ObservedNode| {
            let rests = self.is_settled(node) || node.is_away() || self.is_excluded(index, node);
            node.assigned == Assigned::Target && !rests
        };
        if self.indexed_nodes().any(|(index, node)| open(index) && under_way(index, node)) {
            return Step::Wait(self.next_timeout());
        }
        if self.record.wave == 0 && self.canaries > 0 {
            return self.after_canaries();
        }
        if self.record.wave < self.last_wave() {
            return self.change(|record| record.wave += 1);
        }
        self.finish()
    }

    /// All canaries that could be sent are done.
    fn after_canaries(&self) -> Step {
        let canaries = || self.observed.iter().take(self.canaries);
        if canaries().any(|node| node.is_away() && node.timers.away < self.timeout()) {
            return Step::Wait(self.next_timeout());
        }
        if !canaries().any(|node| self.is_settled(node)) {
            return self.change(|record| {
                record.phase = Phase::Stopped;
                record.why = String::from(NO_CANARY);
            });
        }
        let pause = self.record.options.pause_after_canaries && self.last_wave() > 0;
        if self.last_wave() == 0 {
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
        if self.observed.iter().any(|node| node.is_away() && node.timers.away < self.timeout()) {
            return Step::Wait(self.next_timeout());
        }
        let without = |index: usize, node: &ObservedNode| {
            node.is_away() || node.assigned == Assigned::Other || self.is_excluded(index, node)
        };
        let names = self.names(|index, node| without(index, node));
        self.change(|record| {
            record.phase = Phase::Done;
            record.why = with_names("left out, as not Ready, held, excused or assigned something else", &names);
        })
    }

    /// Gives back, first to those that are not well, which makes nothing worse.
    fn undo_step(&self) -> Step {
        let ours = |node: &ObservedNode| node.assigned == Assigned::Target && !node.same;
        let sent = || self.indexed_nodes().filter(|(_, node)| ours(node));
        if let Some((index, _)) = sent().find(|(_, node)| !node.ready || matches!(node.progress, Progress::Bad(_))) {
            return Step::Restore(index);
        }
        // Those on their way go before those that are settled: they are restarting anyhow. But an edit of the ConfigMap
        // puts all of them on their way, and they must not all go back at once.
        let updating = || sent().filter(|(_, node)| !self.is_settled(node));
        if self.drains() {
            let settled = sent().filter(|(_, node)| self.is_settled(node));
            let order: Vec<usize> = updating().chain(settled).map(|(index, _)| index).collect();
            if let Some(step) = self.back_drained(&order) {
                return step;
            }
        } else if let Some((index, _)) = updating().next().or_else(|| sent().next()) {
            return if self.has_room() { Step::Restore(index) } else { Step::Wait(self.next_timeout()) };
        }
        if self.observed.iter().any(|node| self.moves_back(node)) {
            return Step::Wait(self.next_timeout());
        }
        let undrained: Vec<String> = sent()
            .filter_map(|(index, node)| Some(format!("{}: {}", self.name(index), self.undrained(node)?)))
            .collect();
        let late = self.names(|_, node| node.assigned == Assigned::Previous && node.progress == Progress::Updating);
        // Named alone: whether they ever had it cannot be told any more, and one that is out of order for weeks is no
        // reason to say that nodes are not back.
        let lost = self.names(|_, node| {
            node.assigned == Assigned::Previous && node.progress != Progress::Updating && self.is_lost(node)
        });
        let left = self.names(|_, node| node.assigned == Assigned::Other);
        self.change(|record| {
            record.phase = Phase::Reverted;
            record.behind = late.len() + undrained.len();
            let late = with_names("did not come back within --timeout-per-node", &late);
            let undrained: Vec<&str> = undrained.iter().map(String::as_str).collect();
            let undrained = with_names("cannot be drained", &undrained);
            let left = with_names("left alone, as somebody assigned them something else", &left);
            let lost = with_names("back, but not Ready for longer than --timeout-per-node", &lost);
            let parts = [std::mem::take(&mut record.why), late, undrained, lost, left];
            record.why = parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("; ");
        })
    }

    fn names(&self, which: impl Fn(usize, &ObservedNode) -> bool) -> Vec<&str> {
        self.indexed_nodes().filter(|(index, node)| which(*index, node)).map(|(index, _)| self.name(index)).collect()
    }
}

/// Names, five at the most; nothing of none.
fn with_names(what: &str, names: &[&str]) -> String {
    if names.is_empty() { String::new() } else { format!("{what}: {}", shortened_list(names)) }
}

fn shortened_list(names: &[&str]) -> String {
    let shown: Vec<&str> = names.iter().copied().take(5).collect();
    let more = names.len() - shown.len();
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{more}", shown.join(", "))
}
