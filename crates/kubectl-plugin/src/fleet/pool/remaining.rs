//! The Nodes of a pool that are not done, and why.

use super::node::{PoolNode, Progress};
use super::progress::{BAD_REVISION, Standing, standing};
use super::renderings::{RevisionTarget, StoredRevision};
use super::revision::{Revision, parse_revision_name};
use super::types::{KubeletConfigPool, OnFailure};
use crate::fleet::view::Tone;

/// A Node that is not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Remaining {
    pub(crate) node: String,
    /// For tables and programs.
    pub(crate) state: &'static str,
    pub(crate) tone: Tone,
    /// What the Node says, or why it waits.
    pub(crate) message: String,
}

/// The revision that a spec says, as Nodes get it.
pub(crate) fn update(pool: &KubeletConfigPool, name: &str, namespace: &str) -> Option<StoredRevision> {
    Revision::of_spec(name, &pool.spec, namespace).ok().map(StoredRevision::from)
}

/// Those of the pool's Nodes for which its update revision is bad, by their own word.
pub(crate) fn refusing<'a>(update: &StoredRevision, pool: &KubeletConfigPool, nodes: &'a [PoolNode]) -> Vec<&'a str> {
    let own = || nodes.iter().filter(|node| pool.spec.node_selector.selects(&node.labels));
    let target = update.target(own()).0;
    let bad = own().filter(|node| target.is_on(node) && matches!(node.progress, Progress::Bad(_)));
    bad.map(|node| node.name.as_str()).collect()
}

/// Those that have not finished what the pool wants for them: the update revision, or, if that is bad and they go back, the
/// current one.
pub(crate) fn remaining(pool: &KubeletConfigPool, name: &str, namespace: &str, nodes: &[PoolNode]) -> Vec<Remaining> {
    let own = || nodes.iter().filter(|node| pool.spec.node_selector.selects(&node.labels));
    let Some(update) = update(pool, name, namespace) else { return Vec::new() };
    let current = pool.status.as_ref().and_then(|status| status.current_revision.as_deref());
    let is_bad = match standing(pool) {
        Standing::GoingBack => true,
        Standing::Stalled(reason, _) => reason == BAD_REVISION,
        _ => false,
    };
    let back = current.filter(|_| is_bad && pool.spec.rollout.on_failure == OnFailure::Revert);
    let update = update.target(own()).0;
    let back = back.map(|current| RevisionTarget::plain(parse_revision_name(current, namespace)));
    let has = |node: &PoolNode| match &back {
        // One with expressions has a name of its own on each Node: whoever has left the bad one is on its way back.
        Some(back) => back.is_on(node) || !update.is_on(node),
        None => update.is_on(node),
    };
    own().filter_map(|node| state(pool, node, has(node))).collect()
}

fn state(pool: &KubeletConfigPool, node: &PoolNode, has: bool) -> Option<Remaining> {
    let (state, tone, message) = match &node.progress {
        Progress::Bad(why) if has => ("failed", Tone::Bad, why.clone()),
        _ if has && node.is_done(pool.spec.rollout.proof) => return None,
        _ if !node.ready => ("not ready", Tone::Bad, "the Node is NotReady".to_owned()),
        _ if has => ("updating", Tone::Open, node.message.clone()),
        Progress::Bad(why) => ("waiting", Tone::Open, why.clone()),
        _ if node.held => ("held", Tone::Open, node.message.clone()),
        _ => ("waiting", Tone::Plain, String::new()),
    };
    Some(Remaining { node: node.name.clone(), state, tone, message })
}

#[cfg(test)]
mod tests;
