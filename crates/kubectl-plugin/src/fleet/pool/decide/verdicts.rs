//! What is decided once and for all: a revision is bad, or it is current; and what that is decided by: which Nodes failed with it.

use super::super::class::{Class, NOT_READY};
use super::super::node::{PoolNode, Progress};
use super::super::report::{NAMES, rfc3339};
use super::super::revision::revision_name;
use super::super::types::{
    BadRevision, BadRevisionNode, FailureKind, KubeletConfigPoolStatus, NodeFailure, RolloutStatus,
};
use super::Rollout;

/// Bad and former revisions that the status keeps.
const MAX_KEPT_REVISIONS: usize = 10;
/// Nodes that a bad revision names.
const MAX_NODES_PER_BAD_REVISION: usize = 10;
/// Failures that are kept: `spec.rollout.maxFailures` is at most that.
const MAX_FAILURES: usize = 1000;

impl Rollout<'_> {
    /// Writes down what is decided once and for all; whether there was something.
    pub(super) fn record_verdicts(&self, status: &mut KubeletConfigPoolStatus) -> bool {
        let update = revision_name(&self.update.reference);
        if self.is_new {
            let mut rollout = self.trial.clone();
            self.record_failures(&mut rollout);
            let failures = &rollout.failures;
            let bad = failures.iter().filter(|failure| failure.kind == FailureKind::Bad);
            if self.is_refused_by_all() || bad.clone().count() >= self.most_failures() {
                let said = |it: &NodeFailure| BadRevisionNode { name: it.name.clone(), message: it.message.clone() };
                let nodes = bad.take(MAX_NODES_PER_BAD_REVISION).map(said).collect();
                let time = Some(rfc3339(self.cluster.now));
                status.bad_revisions.push(BadRevision { revision: update, time, nodes });
                let excess = status.bad_revisions.len().saturating_sub(MAX_KEPT_REVISIONS);
                status.bad_revisions.drain(..excess);
            } else if failures.len() < self.most_failures() && self.is_finished() {
                let former = status.current_revision.replace(update.clone());
                status.history.retain(|revision| *revision != update);
                status.history.extend(former);
                let excess = status.history.len().saturating_sub(MAX_KEPT_REVISIONS);
                status.history.drain(..excess);
            }
            status.rollout = Some(rollout);
        }
        let decided = |status: &KubeletConfigPoolStatus| {
            let rollout = status.rollout.clone().unwrap_or_default();
            let RolloutStatus { revision, started_at, failures, .. } = rollout;
            let KubeletConfigPoolStatus { current_revision, update_revision, bad_revisions, .. } = status.clone();
            (revision, started_at, failures, current_revision, update_revision, bad_revisions)
        };
        decided(self.pool.status) != decided(status)
    }

    /// So many Nodes that say so make the revision bad, and so many that fail in any way stop it.
    pub(super) fn most_failures(&self) -> usize {
        match self.strategy.max_failures {
            Some(given) => given as usize,
            None if self.is_new && !self.canaries_are_done => 1,
            None => (self.members.own.len() / 50).clamp(2, MAX_FAILURES),
        }
    }

    /// Only its own proof takes a Node out again: neither does its end, nor that of its Node object.
    fn record_failures(&self, rollout: &mut RolloutStatus) {
        let measure = self.measure(self.update, self.pool.status);
        let failures = &mut rollout.failures;
        for (node, class) in &self.classes {
            let known = failures.iter().position(|failure| failure.uid == node.uid);
            let kind = match class {
                Class::Bad => FailureKind::Bad,
                _ if class.is_silent_vote(node, &measure, self.cluster.now) => FailureKind::Silent,
                Class::Done => {
                    known.map(|at| failures.remove(at));
                    continue;
                }
                _ => continue,
            };
            if known.and_then(|at| failures.get(at)).is_some_and(|failure| failure.kind >= kind) {
                continue;
            }
            known.map(|at| failures.remove(at));
            let is_first = failures.iter().filter(|failure| failure.kind == kind).count() < NAMES;
            let message = if is_first { self.failure(node) } else { String::new() };
            let (uid, name, time) = (node.uid.clone(), node.name.clone(), rfc3339(self.cluster.now));
            failures.push(NodeFailure { uid, name, kind, time, message });
        }
        failures.truncate(MAX_FAILURES);
    }

    fn failure(&self, node: &PoolNode) -> String {
        if let Progress::Bad(why) = &node.progress {
            return why.clone();
        }
        if !node.ready {
            return format!("it is not Ready for more than {} s", NOT_READY.as_secs());
        }
        let reported = if node.message.is_empty() { "" } else { "; it reports: " };
        let seconds = self.strategy.node_timeout_seconds;
        let late = format!("it has not finished within {seconds} s (spec.rollout.nodeTimeoutSeconds){reported}");
        late + &node.message
    }

    /// Nobody is left who could prove it.
    fn is_refused_by_all(&self) -> bool {
        let can_speak = |class: &Class| !matches!(class, Class::Leaving | Class::Unsupervised | Class::Held);
        let mut speakers = self.classes.iter().filter(|(_, class)| can_speak(class)).peekable();
        self.members.shared.is_empty() && speakers.peek().is_some() && speakers.all(|(_, class)| *class == Class::Bad)
    }

    /// Nobody is waited for any more, and it is proven by as many as are to prove it first, or by one at least.
    fn is_finished(&self) -> bool {
        let is_open = |(node, class): &(&PoolNode, Class)| match class {
            Class::Done => node.cordoned_for().is_some(),
            Class::InFlight => !self.members.has_joined(node),
            _ => class.is_behind() && !self.members.joins(node),
        };
        let is_awaited = self.classes.iter().any(is_open);
        let count = |wanted: Class| self.classes.iter().filter(|(_, class)| *class == wanted).count();
        // What a policy or an API server keeps from many Nodes, all do not have.
        let is_kept_from_many = count(Class::Unwritable) >= self.most_failures().max(1);
        let revision = revision_name(&self.update.reference);
        let is_approved = !self.strategy.pause_after_canaries
            || self.pool.approved == Some(revision.as_str())
            || count(Class::Done) == self.classes.len();
        let is_proven = count(Class::Done) > 0 && self.canaries.are_done() && is_approved;
        self.members.shared.is_empty() && is_proven && !is_awaited && !is_kept_from_many
    }
}
