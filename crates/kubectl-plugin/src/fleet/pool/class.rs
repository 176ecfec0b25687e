//! What a Node is to a revision: one class, by which alone it votes, gets something, and counts.
//!
//! The first that fits:
//!
//! | class | a Node that | vote | gets | a place in `maxUnavailable` | becoming current |
//! |---|---|---|---|---|---|
//! | `Leaving` | is deleted, or has a taint of an autoscaler or of Karpenter that says so | none | nothing | while not Ready or in flight | does not wait |
//! | `Unsupervised` | says nothing of its configuration ten minutes after it joined | none | nothing | while not Ready | does not wait |
//! | `Held` | an operator on it holds | none | nothing | while not Ready or in flight | does not wait |
//! | `Bad` | rejected the revision, or rolled it back | takes the revision back | the current revision | while not Ready | does not wait |
//! | `Lost` | is not Ready for a minute, or has not finished the revision in time | by silence that began with it, which stops | after the canaries the revision, if its supervisor answered and no more Nodes are out than `maxUnavailable`; the current one, if it hangs with another | while not Ready or in flight | does not wait |
//! | `Done` | has finished the revision | takes its failure back | nothing | while not Ready | counts for it |
//! | `InFlight` | has the revision, and has not finished it | none | nothing | yes | waits |
//! | `Unwritable` | refused the last write | none | a try every five minutes | while not Ready or in flight | does not wait |
//! | `Refusing` | would not take the revision up, by its own kubelet's word | stops, before it goes to any Node | nothing | while not Ready or in flight | does not wait |
//! | `Draining` | is being emptied for the revision | none | the revision, once it is empty | yes | waits |
//! | `Asked` | has not answered yet what it would make of the revision | none | nothing, for two minutes | while not Ready or in flight | waits |
//! | `Behind` | none of these | none | the revision, if it is Ready; the current one, if it hangs with another | while not Ready or in flight | waits |

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use super::drain::{Cordon, Drain, NodeDrain};
use super::node::{Given, PoolNode, PreflightAnswer, Progress, request};
use super::renderings::RevisionTarget;
use super::revision::{is_made_of, is_of_revision};
use super::types::Proof;
use kubelet_config::source::ConfigMapRef;

/// A Node may be not Ready for so long. A kubelet that starts says so for some seconds, and the supervisor itself puts a Node
/// without contact back after 90 s.
pub(crate) const NOT_READY: Duration = Duration::from_secs(60);

/// For how long Nodes are waited for, once all were asked. A kubelet judges within seconds; one that is on trial, or older than
/// preflights on request, does not answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);

/// What a Node is to a revision; the table is this file's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Class {
    Leaving,
    Unsupervised,
    Held,
    Bad,
    Lost,
    Done,
    InFlight,
    Unwritable,
    Refusing,
    Draining,
    Asked,
    Behind,
}

/// A revision, as Nodes are held against it.
pub(crate) struct Measure<'a> {
    pub(crate) target: &'a RevisionTarget<'a>,
    /// When a Node has finished it.
    pub(crate) proof: Proof,
    pub(crate) node_timeout: Duration,
    /// Since when it is tried.
    pub(crate) started_at: Timestamp,
    /// Before it goes to a Node, that one judges it.
    pub(crate) asks: bool,
    /// The text that asks for it, where it has no expressions.
    pub(crate) request: String,
    /// When all had been asked.
    pub(crate) asked_at: Option<Timestamp>,
    pub(crate) pool: &'a str,
    /// What all had, now and before.
    pub(crate) had: Vec<&'a String>,
    pub(crate) drains: &'a BTreeMap<String, NodeDrain>,
}

/// What this Node is to this revision now.
pub(crate) fn class(node: &PoolNode, revision: &Measure<'_>, now: Timestamp) -> Class {
    let has = revision.target.is_on(node);
    let is_done = has && node.is_done(revision.proof);
    if node.leaving {
        Class::Leaving
    } else if !node.is_managed && !node.is_young(now) {
        Class::Unsupervised
    } else if node.held && !is_done {
        Class::Held
    } else if has && matches!(node.progress, Progress::Bad(_)) {
        Class::Bad
    } else if is_away(node, has) || (has && !is_done && revision.is_late(node, now)) {
        Class::Lost
    } else if is_done {
        Class::Done
    } else if has {
        Class::InFlight
    } else if node.unwritable {
        Class::Unwritable
    } else if matches!(revision.answer(node), Some(PreflightAnswer::Refused(_))) {
        Class::Refusing
    } else if revision.is_drained(node) {
        Class::Draining
    } else if revision.is_waited_for(node, now) {
        Class::Asked
    } else {
        Class::Behind
    }
}

/// It is not Ready for too long. What it was before it had this revision is not held against it.
fn is_away(node: &PoolNode, has: bool) -> bool {
    let has_had_time = !has || node.assigned_at.is_none() || node.lasts.updating >= NOT_READY;
    !node.ready && node.lasts.unready >= NOT_READY && has_had_time
}

impl Class {
    /// It does not have the revision, and will get it.
    pub(crate) fn is_behind(self) -> bool {
        matches!(self, Self::Draining | Self::Asked | Self::Behind)
    }

    /// A revision does not become current before this Node is done with it.
    pub(crate) fn is_waited_for(self) -> bool {
        self.is_behind() || self == Self::InFlight
    }

    /// It has not got the revision done, and nobody waits for it.
    pub(crate) fn is_straggler(self) -> bool {
        matches!(self, Self::Held | Self::Bad | Self::Lost | Self::Refusing)
    }

    /// It can prove a revision before others get it. One that has called it bad stands for no other.
    pub(crate) fn may_be_canary(self) -> bool {
        self.is_waited_for() || matches!(self, Self::Bad | Self::Done)
    }

    /// Whether this Node is given a revision that it does not have. `is_known`: all had it. `is_open`: its canaries are done, and so few
    /// Nodes are out that it is no outage: what a Node said before that tells nothing of the way back.
    pub(crate) fn gets(self, node: &PoolNode, revision: &Measure<'_>, is_known: bool, is_open: bool) -> bool {
        let hangs = is_known && revision.is_left_with(node);
        let speaks = is_open && !is_known && revision.answer(node) == Some(&PreflightAnswer::Valid);
        match self {
            Self::Behind | Self::Draining => node.ready || hangs,
            Self::Lost => hangs || speaks,
            _ => false,
        }
    }

    /// Whether its silence stops the revision that it has. One that got it to come back, or because it joined, was away before;
    /// one that cannot sync, or that waits, says why. One that was away before the revision was tried is no news of it.
    pub(crate) fn is_silent_vote(self, node: &PoolNode, revision: &Measure<'_>, now: Timestamp) -> bool {
        let was_well = revision.target.is_on(node) && matches!(node.given, Some(Given::Canary | Given::Wave));
        let is_news = node.ready || node.lasts.unready <= revision.tried(now);
        self == Self::Lost && was_well && is_news && !node.cannot_sync && !node.waits
    }
}

impl Measure<'_> {
    /// Who says that it has proven it took no longer than it may, and whose trial goes on is not silent.
    fn is_late(&self, node: &PoolNode, now: Timestamp) -> bool {
        let is_under_way = node.waits || node.trial_ends.is_some_and(|ends| ends > now);
        let is_open = node.progress != Progress::Proven && !is_under_way;
        is_open && self.time_left(node, now).is_zero()
    }

    /// Until it has had its time. A revision that is tried again gives it all its time again.
    pub(crate) fn time_left(&self, node: &PoolNode, now: Timestamp) -> Duration {
        self.node_timeout.saturating_sub(node.lasts.updating.min(self.tried(now)))
    }

    /// For how long it is tried; times of Nodes are whole seconds.
    fn tried(&self, now: Timestamp) -> Duration {
        Duration::from_secs(u64::try_from(now.as_second() - self.started_at.as_second()).unwrap_or_default())
    }

    /// It was given it in this try.
    pub(crate) fn gave(&self, node: &PoolNode) -> bool {
        let is_new = |at: Timestamp| at.as_second() >= self.started_at.as_second();
        self.target.is_on(node) && node.assigned_at.is_some_and(is_new)
    }

    /// It does not get well with another revision, which has not become current: that may be what keeps it from it.
    pub(crate) fn is_left_with(&self, node: &PoolNode) -> bool {
        let is_of = |desired: &ConfigMapRef, revision: &String| is_of_revision(desired, revision, &desired.namespace);
        let never_current = node.desired.as_ref().is_some_and(|desired| {
            is_made_of(self.pool, &desired.name) && !self.had.iter().any(|revision| is_of(desired, revision))
        });
        node.is_in_flight(self.proof) || (!node.ready && never_current && !self.target.is_on(node))
    }

    /// What it says of this revision.
    pub(crate) fn answer<'b>(&self, node: &'b PoolNode) -> Option<&'b PreflightAnswer> {
        node.preflight.as_ref().filter(|_| self.is_asked(node))?.answer.as_ref()
    }

    /// It was asked for this revision.
    pub(crate) fn is_asked(&self, node: &PoolNode) -> bool {
        let (Some(asked), Some(to)) = (&node.preflight, self.target.of(node)) else { return false };
        // Of each Node at each decision: the text is made once where all get the same.
        if *to == self.target.reference { asked.request == self.request } else { asked.request == request(to) }
    }

    /// One that is not Ready gets nothing yet; one without a supervisor has nobody who would answer.
    pub(crate) fn is_waited_for(&self, node: &PoolNode, now: Timestamp) -> bool {
        let owes = self.asks && node.has_supervisor && node.ready && self.target.of(node).is_some();
        owes && self.answer(node).is_none() && !self.answers_left(now).is_zero()
    }

    /// For how long answers are waited for.
    pub(crate) fn answers_left(&self, now: Timestamp) -> Duration {
        let passed = self.asked_at.map(|at| Duration::try_from(now.duration_since(at)).unwrap_or_default());
        ANSWER_TIMEOUT.saturating_sub(passed.unwrap_or_default())
    }

    fn is_drained(&self, node: &PoolNode) -> bool {
        let state = self.drains.get(&node.name).map(|drain| &drain.state);
        let is_going = matches!(state, Some(Drain::Listing | Drain::Going { .. } | Drain::Empty));
        is_going || node.cordon(self.pool) == Cordon::Ours
    }
}
