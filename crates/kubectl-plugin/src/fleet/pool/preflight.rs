//! Before a revision goes anywhere, each Node's own kubelet says what it would make of it, by annotation and without a restart.

use std::time::Duration;

use super::node::{NodePreflight, PoolNode, PreflightAnswer};
use super::renderings::{NodeAssignment, RevisionTarget};
use super::types::BadRevisionNode;
use kubelet_config::preflight::PreflightRequest;
use kubelet_config::source::ConfigMapRef;

/// For how long a Node is waited for. A kubelet judges within seconds; one that is on trial, or older than preflights on
/// request, does not answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);

/// The text that asks for a revision. Its name tells its content, so no version of it is named.
pub(crate) fn request(of: &ConfigMapRef) -> String {
    PreflightRequest { reference: of.clone(), version: None, token: None }.to_string()
}

/// What a pool's Nodes say of a revision that they do not have yet.
#[derive(Debug, Default)]
pub(crate) struct Preflight {
    /// To be asked.
    pub(crate) ask: Vec<NodeAssignment>,
    /// Asked, or to be asked, and waited for.
    pub(crate) waiting: Vec<String>,
    pub(crate) valid: usize,
    /// Would not take it up, and why.
    pub(crate) refused: Vec<BadRevisionNode>,
    /// Did not answer in time, could not tell, or have no supervisor.
    pub(crate) unknown: usize,
}

impl Preflight {
    pub(crate) fn new<'a>(nodes: impl Iterator<Item = &'a PoolNode>, target: &RevisionTarget<'_>) -> Self {
        let mut preflight = Self::default();
        for node in nodes {
            // One that is not Ready goes nowhere, and is asked when it is.
            let Some(to) = target.of(node).filter(|_| node.ready) else { continue };
            if !node.has_supervisor {
                preflight.unknown += 1;
                continue;
            }
            let asked = node.preflight.as_ref().filter(|preflight| preflight.request == request(to));
            match asked.map(|preflight| &preflight.answer) {
                None => {
                    preflight.ask.push(NodeAssignment { node: node.name.clone(), to: to.clone() });
                    if node.lasts.unasked < ANSWER_TIMEOUT {
                        preflight.waiting.push(node.name.clone());
                    } else {
                        preflight.unknown += 1;
                    }
                }
                Some(None) if node.lasts.unanswered < ANSWER_TIMEOUT => preflight.waiting.push(node.name.clone()),
                Some(None | Some(PreflightAnswer::Inconclusive)) => preflight.unknown += 1,
                Some(Some(PreflightAnswer::Valid)) => preflight.valid += 1,
                Some(Some(PreflightAnswer::Refused(message))) => {
                    preflight.refused.push(BadRevisionNode { name: node.name.clone(), message: message.clone() });
                }
            }
        }
        preflight
    }

    /// For people.
    pub(crate) fn summary(&self) -> String {
        let Self { waiting, valid, refused, unknown, .. } = self;
        format!("{valid} valid, {} refuse it, {unknown} unknown, {} waited for", refused.len(), waiting.len())
    }
}

/// When waiting for these Nodes ends, if none of them answers.
pub(crate) fn next_timeout<'a>(nodes: impl Iterator<Item = &'a PoolNode>) -> Option<Duration> {
    let open = nodes.filter(|node| node.preflight.as_ref().is_some_and(NodePreflight::is_open));
    open.map(|node| ANSWER_TIMEOUT.saturating_sub(node.lasts.unanswered)).filter(|left| !left.is_zero()).min()
}
