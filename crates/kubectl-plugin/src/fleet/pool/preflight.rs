//! Before a revision goes anywhere, each Node's own kubelet says what it would make of it, by annotation and without a restart.

use jiff::Timestamp;

use super::class::{Class, Measure};
use super::node::{PoolNode, PreflightAnswer};
use super::types::BadRevisionNode;
use kubelet_config::source::ConfigMapRef;

/// A Node that is to judge something; none: it is to be asked nothing any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Question {
    pub(crate) node: String,
    pub(crate) of: Option<ConfigMapRef>,
}

/// What a pool's Nodes say of a revision that they do not have yet.
#[derive(Debug, Default)]
pub(crate) struct Preflight {
    pub(crate) ask: Vec<Question>,
    /// Asked, or to be asked, and waited for.
    pub(crate) waiting: Vec<String>,
    pub(crate) valid: usize,
    /// Would not take it up, and why.
    pub(crate) refused: Vec<BadRevisionNode>,
    /// Did not answer in time, could not tell or be asked, or have no supervisor.
    pub(crate) unknown: usize,
}

impl Preflight {
    /// Nodes that are not Ready are asked, and not waited for: one that answers may need the revision to come back.
    pub(crate) fn new(nodes: &[(&PoolNode, Class)], revision: &Measure<'_>, now: Timestamp) -> Self {
        let mut preflight = Self::default();
        // They would not get it, whatever they say.
        let is_left_out = |class: Class| matches!(class, Class::Leaving | Class::Held | Class::Unsupervised);
        for (node, class) in nodes.iter().filter(|(node, _)| revision.asks && !revision.target.is_on(node)) {
            let Some(to) = revision.target.of(node).filter(|_| !is_left_out(*class)) else { continue };
            if node.has_supervisor && !node.unwritable && !revision.is_asked(node) {
                preflight.ask.push(Question { node: node.name.clone(), of: Some(to.clone()) });
            }
            match revision.answer(node) {
                _ if !node.ready => {}
                Some(PreflightAnswer::Valid) => preflight.valid += 1,
                Some(PreflightAnswer::Refused(message)) => {
                    preflight.refused.push(BadRevisionNode { name: node.name.clone(), message: message.clone() });
                }
                None if !node.unwritable && revision.is_waited_for(node, now) => {
                    preflight.waiting.push(node.name.clone());
                }
                None | Some(PreflightAnswer::Inconclusive) => preflight.unknown += 1,
            }
        }
        preflight
    }

    /// All that are waited for have been asked.
    pub(crate) fn is_asked(&self) -> bool {
        self.ask.iter().all(|question| !self.waiting.contains(&question.node))
    }

    /// For people.
    pub(crate) fn summary(&self) -> String {
        let Self { waiting, valid, refused, unknown, .. } = self;
        format!("{valid} valid, {} refuse it, {unknown} unknown, {} waited for", refused.len(), waiting.len())
    }
}
