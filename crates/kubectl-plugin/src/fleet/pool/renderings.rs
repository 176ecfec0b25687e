//! What each Node gets of a revision: with expressions, Nodes whose results are equal share a ConfigMap.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::node::{Given, PoolNode};
use super::revision::{Revision, RevisionFault, revision_name};
use super::template_revision::{RenderedRevision, TemplateRevision};
use super::types::KubeletConfigPoolStatus;
use kubelet_config::source::ConfigMapRef;

/// Different ConfigMaps that a pool's Nodes have of one revision.
const MAX_RENDERINGS: usize = 50;

/// A revision that is in the cluster.
#[derive(Debug)]
pub(crate) enum StoredRevision {
    /// All Nodes get it as it is.
    Plain(ConfigMapRef),
    /// It has expressions.
    Template(Box<TemplateRevision>),
    /// It is there no more, or is another one: no Node can get it.
    Lost(ConfigMapRef),
}

impl From<Revision> for StoredRevision {
    fn from(revision: Revision) -> Self {
        match revision {
            Revision::Template(template) => Self::Template(template),
            Revision::Rendered(RenderedRevision { reference, .. }) | Revision::Named(reference) => {
                Self::Plain(reference)
            }
        }
    }
}

impl StoredRevision {
    pub(crate) fn reference(&self) -> &ConfigMapRef {
        match self {
            Self::Plain(reference) | Self::Lost(reference) => reference,
            Self::Template(template) => &template.reference,
        }
    }

    /// What these Nodes get of it, and why one of them gets nothing.
    pub(crate) fn target<'a>(
        &self,
        nodes: impl Iterator<Item = &'a PoolNode>,
    ) -> (RevisionTarget<'a>, Result<(), RevisionFault>) {
        let reference = self.reference().clone();
        let template = match self {
            Self::Plain(_) => return (RevisionTarget::plain(reference), Ok(())),
            Self::Lost(_) => return (RevisionTarget { reference, renderings: Some(Arc::default()) }, Ok(())),
            Self::Template(template) => template,
        };
        let (mut renderings, mut fault) = (BTreeMap::new(), Ok(()));
        for node in nodes {
            match template.render(node) {
                Some(Ok(rendered)) => drop(renderings.insert(node.name.as_str(), rendered)),
                Some(Err(why)) if fault.is_ok() => fault = Err(RevisionFault::expression(why)),
                _ => {}
            }
        }
        let target = RevisionTarget { reference, renderings: Some(Arc::new(renderings)) };
        let count = target.renderings().len();
        if count > MAX_RENDERINGS && fault.is_ok() {
            let message = format!(
                "spec.kubeletConfiguration: the pool's Nodes have {count} different results, at most {MAX_RENDERINGS} are allowed: \
                 round what is computed, or make several pools"
            );
            fault = Err(RevisionFault { reason: "TooManyRevisions", message });
        }
        (target, fault)
    }
}

/// A revision, and what each Node gets of it.
#[derive(Clone, Debug)]
pub(crate) struct RevisionTarget<'a> {
    /// What the pool's status names.
    pub(crate) reference: ConfigMapRef,
    /// By Node; none: each gets `reference` itself.
    renderings: Option<Arc<BTreeMap<&'a str, Arc<RenderedRevision>>>>,
}

impl RevisionTarget<'_> {
    pub(crate) fn plain(reference: ConfigMapRef) -> Self {
        Self { reference, renderings: None }
    }

    /// What this Node gets; none: nothing can be had for it now.
    pub(crate) fn of(&self, node: &PoolNode) -> Option<&ConfigMapRef> {
        match &self.renderings {
            None => Some(&self.reference),
            Some(renderings) => renderings.get(node.name.as_str()).map(|rendered| &rendered.reference),
        }
    }

    /// The Node is assigned it, as it is for what it reports now.
    pub(crate) fn is_on(&self, node: &PoolNode) -> bool {
        node.desired.is_some() && self.of(node) == node.desired.as_ref()
    }

    /// It has gone to a Node already, or was decided about: one Node for which nothing can be had then keeps no other from it,
    /// and not from the way back either.
    pub(crate) fn is_begun<'b>(
        &self,
        status: Option<&KubeletConfigPoolStatus>,
        mut nodes: impl Iterator<Item = &'b PoolNode>,
    ) -> bool {
        let name = revision_name(&self.reference);
        let is_known = |status: &KubeletConfigPoolStatus| {
            status.current_revision.as_ref() == Some(&name)
                || status.bad_revisions.iter().any(|bad| bad.revision == name)
        };
        status.is_some_and(is_known) || nodes.any(|node| self.is_on(node))
    }

    /// Nodes get different ConfigMaps of it.
    pub(crate) fn has_renderings(&self) -> bool {
        self.renderings.is_some()
    }

    /// Different ConfigMaps.
    pub(crate) fn renderings(&self) -> Vec<Arc<RenderedRevision>> {
        let mut seen = BTreeSet::new();
        let all = self.renderings.iter().flat_map(|renderings| renderings.values());
        all.filter(|rendered| seen.insert(rendered.reference.name.as_str())).map(Arc::clone).collect()
    }

    /// That one.
    pub(crate) fn rendering(&self, node: &str) -> Option<Arc<RenderedRevision>> {
        self.renderings.as_ref()?.get(node).map(Arc::clone)
    }
}

/// A Node that is to be assigned a revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeAssignment {
    pub(crate) node: String,
    pub(crate) to: ConfigMapRef,
    pub(crate) given: Given,
}

impl NodeAssignment {
    pub(crate) fn of(target: &RevisionTarget<'_>, node: &PoolNode, given: Given) -> Option<Self> {
        target.of(node).map(|to| Self { node: node.name.clone(), to: to.clone(), given })
    }
}
