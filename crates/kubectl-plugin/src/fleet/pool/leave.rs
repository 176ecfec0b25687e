//! Nodes that have left a pool, and still have a revision of it.

use std::time::Duration;

use super::node::PoolNode;
use super::revision::{is_made_for, is_of_revision};
use super::types::{KubeletConfigPoolSpec, KubeletConfigPoolStatus, OnLeave, Proof};

/// For so long a Node is waited for that was reset. What it has then is not proven by it as a revision is, and one that nobody
/// supervises any more never says that it is done.
const RESET_TIMEOUT: Duration = Duration::from_secs(3600);

/// What no pool selects any more.
#[derive(Debug, Default)]
pub(crate) struct Leavers<'a> {
    /// Still assigned a revision of this pool.
    assigned: Vec<&'a PoolNode>,
    /// Assigned nothing any more, and not done with that.
    pub(crate) returning: Vec<&'a PoolNode>,
}

/// It was reset, by whomever, and is not done with that.
pub(crate) fn is_waited_for(node: &PoolNode) -> bool {
    node.is_returning() && !node.held && node.lasts.updating < RESET_TIMEOUT
}

impl<'a> Leavers<'a> {
    /// Of Nodes that no pool selects, those of this pool. With `spec.onLeave: Keep` nobody is to be reset, and nobody is
    /// looked for.
    pub(crate) fn new(
        pool: &str,
        spec: &KubeletConfigPoolSpec,
        status: &KubeletConfigPoolStatus,
        namespace: &str,
        of: impl Iterator<Item = &'a PoolNode>,
    ) -> Self {
        if spec.on_leave == OnLeave::Keep {
            return Self::default();
        }
        let made: Vec<&String> = status.revisions().filter(|revision| is_made_for(pool, revision)).collect();
        let is_own = |reference| made.iter().any(|revision| is_of_revision(reference, revision, namespace));
        let mut leavers = Self::default();
        for node in of {
            let had = match &node.desired {
                Some(desired) => is_own(desired),
                None => node.reported.iter().any(is_own),
            };
            if !had {
                continue;
            }
            if node.desired.is_some() {
                leavers.assigned.push(node);
            } else if is_waited_for(node) {
                leavers.returning.push(node);
            }
        }
        leavers
    }

    pub(crate) fn len(&self) -> usize {
        self.assigned.len() + self.returning.len()
    }

    /// Those that may be reset, those first that take no place: they have not finished what they have, and so are
    /// unavailable already. `room`: so many others.
    pub(crate) fn next(&self, room: usize) -> impl Iterator<Item = &'a PoolNode> {
        let free = self.assigned.iter().copied().filter(|node| !node.held);
        let (stuck, others): (Vec<_>, Vec<_>) = free.partition(|node| node.is_in_flight(Proof::Proven));
        stuck.into_iter().chain(others.into_iter().filter(|node| node.ready).take(room))
    }

    /// When one is waited for no longer.
    pub(crate) fn next_timeout(&self) -> Option<Duration> {
        self.returning.iter().map(|node| RESET_TIMEOUT.saturating_sub(node.lasts.updating)).min()
    }
}
