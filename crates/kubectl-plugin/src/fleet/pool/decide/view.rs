//! What a decision is made of.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::super::drain::NodeDrain;
use super::super::node::PoolNode;
use super::super::renderings::RevisionTarget;
use super::super::revision::{RevisionFault, revision_name};
use super::super::types::{KubeletConfigPoolSpec, KubeletConfigPoolStatus};

/// A pool, as it is decided about.
#[derive(Clone, Copy)]
pub(crate) struct Pool<'a> {
    pub(crate) name: &'a str,
    pub(crate) generation: i64,
    pub(crate) spec: &'a KubeletConfigPoolSpec,
    pub(crate) status: &'a KubeletConfigPoolStatus,
    /// The annotation `kubelet-supervisor.io/approved-revision`.
    pub(crate) approved: Option<&'a str>,
    /// The revision that the spec describes, which is there; or why it is not.
    pub(crate) update: Result<&'a RevisionTarget<'a>, &'a RevisionFault>,
    /// That of `status.currentRevision`; none: Nodes get it as it is.
    pub(crate) current: Option<&'a RevisionTarget<'a>>,
    /// The namespace of revisions.
    pub(crate) namespace: &'a str,
}

/// All Nodes and pools of the cluster.
#[derive(Clone, Copy)]
pub(crate) struct Cluster<'a> {
    pub(crate) nodes: &'a BTreeMap<String, PoolNode>,
    /// Names and specs.
    pub(crate) pools: &'a [(String, KubeletConfigPoolSpec)],
    /// Control-plane Nodes whose static pods do not all run, and why that is said, as it was last seen.
    pub(crate) static_pods: &'a BTreeMap<String, String>,
    /// Of Nodes whose Pods are followed, or were given up.
    pub(crate) drains: &'a BTreeMap<String, NodeDrain>,
    pub(crate) now: Timestamp,
}

/// It is another revision than all have, and may go to Nodes.
pub(super) fn is_new(status: &KubeletConfigPoolStatus, update: &RevisionTarget<'_>) -> bool {
    let update = revision_name(&update.reference);
    let is_bad = status.bad_revisions.iter().any(|bad| bad.revision == update);
    !is_bad && status.current_revision.as_ref() != Some(&update)
}
