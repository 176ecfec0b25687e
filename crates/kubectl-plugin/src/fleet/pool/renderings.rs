//! What each Node gets of a revision: with expressions, Nodes whose results are equal share a ConfigMap.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::node::PoolNode;
use super::revision::RevisionFault;
use super::template_revision::{RenderedRevision, TemplateRevision};
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
    ) -> (Target<'a>, Result<(), RevisionFault>) {
        let reference = self.reference().clone();
        let template = match self {
            Self::Plain(_) => return (Target::plain(reference), Ok(())),
            Self::Lost(_) => return (Target { reference, renderings: Some(Arc::default()) }, Ok(())),
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
        let target = Target { reference, renderings: Some(Arc::new(renderings)) };
        let count = target.renderings().len();
        if count > MAX_RENDERINGS && fault.is_ok() {
            fault = Err(RevisionFault::too_many(format!(
                "spec.kubeletConfiguration: the pool's Nodes have {count} different results, at most {MAX_RENDERINGS} are allowed: \
                 round what is computed, or make several pools"
            )));
        }
        (target, fault)
    }
}

/// A revision, and what each Node gets of it.
#[derive(Clone, Debug)]
pub(crate) struct Target<'a> {
    /// What the pool's status names.
    pub(crate) reference: ConfigMapRef,
    /// By Node; none: each gets `reference` itself.
    renderings: Option<Arc<BTreeMap<&'a str, Arc<RenderedRevision>>>>,
}

impl Target<'_> {
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
