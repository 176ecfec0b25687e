//! What is decided once and for all: a revision is bad, or it is current.

use super::super::node::{PoolNode, Progress};
use super::super::report;
use super::super::revision::revision_name;
use super::super::types::{BadRevision, BadRevisionNode, KubeletConfigPoolStatus};
use super::members::Members;
use super::{NOT_READY, Rollout};

/// Bad and former revisions that the status keeps.
const MAX_KEPT_REVISIONS: usize = 10;
/// Nodes that a bad revision names.
const MAX_NODES_PER_BAD_REVISION: usize = 10;

impl Rollout<'_> {
    /// Writes down what is decided once and for all; whether there was something.
    pub(super) fn record_verdicts(&self, status: &mut KubeletConfigPoolStatus) -> bool {
        let update = revision_name(&self.update.reference);
        let is_bad = status.bad_revisions.iter().any(|bad| bad.revision == update);
        // What all Nodes had is not bad because of one that joined, or that broke since.
        let is_new = status.current_revision.as_ref() != Some(&update);
        let failed = self.failed();
        if !is_bad && is_new && (self.is_refused_by_all() || failed.len() >= self.strategy.max_failures as usize) {
            self.record_bad(status, failed);
            return true;
        }
        if is_new && !is_bad && self.has_all() {
            let former = status.current_revision.replace(update.clone());
            status.history.retain(|revision| *revision != update);
            status.history.extend(former);
            let excess = status.history.len().saturating_sub(MAX_KEPT_REVISIONS);
            status.history.drain(..excess);
            return true;
        }
        self.pool.status.update_revision != status.update_revision
    }

    fn record_bad(&self, status: &mut KubeletConfigPoolStatus, mut nodes: Vec<BadRevisionNode>) {
        nodes.truncate(MAX_NODES_PER_BAD_REVISION);
        let revision = revision_name(&self.update.reference);
        let time = Some(report::rfc3339(self.cluster.now));
        status.bad_revisions.push(BadRevision { revision, time, nodes });
        let excess = status.bad_revisions.len().saturating_sub(MAX_KEPT_REVISIONS);
        status.bad_revisions.drain(..excess);
    }

    /// Nodes that failed with the revision, and how.
    fn failed(&self) -> Vec<BadRevisionNode> {
        let with_it = self.members.own.iter().filter(|node| self.update.is_on(node));
        with_it
            .filter_map(|node| {
                let message = self.failure(node)?;
                Some(BadRevisionNode { name: node.name.clone(), message })
            })
            .collect()
    }

    fn failure(&self, node: &PoolNode) -> Option<String> {
        if let Progress::Bad(why) = &node.progress {
            return Some(why.clone());
        }
        if !node.is_in_flight(self.strategy.proof) {
            return None;
        }
        // What it was before it had this revision is not held against it.
        if node.lasts.unready.min(node.lasts.updating) >= NOT_READY {
            return Some(format!("it is not Ready for more than {} s", NOT_READY.as_secs()));
        }
        // Who says that it has proven it took no longer than it may.
        let is_late = node.progress != Progress::Proven && node.lasts.updating >= self.node_timeout();
        is_late.then(|| {
            let reported = if node.message.is_empty() { "" } else { "; it reports: " };
            let seconds = self.strategy.node_timeout_seconds;
            format!(
                "it has not finished within {seconds} s (spec.rollout.nodeTimeoutSeconds){reported}{}",
                node.message
            )
        })
    }

    /// Nobody is left who could prove it.
    fn is_refused_by_all(&self) -> bool {
        let Members { own, shared, .. } = self.members;
        let refuses = |node: &&PoolNode| self.update.is_on(node) && matches!(node.progress, Progress::Bad(_));
        !own.is_empty() && shared.is_empty() && own.iter().all(refuses)
    }

    /// Every Node has the revision, and none is on its way.
    fn has_all(&self) -> bool {
        let Members { own, shared, .. } = self.members;
        shared.is_empty()
            && own.iter().all(|node| {
                self.update.is_on(node) && !node.is_in_flight(self.strategy.proof) && node.cordoned_for().is_none()
            })
    }
}
