//! What the executor asks of the API server's task.

use crate::machine::evidence::LeaseObservation;
use crate::machine::history::HistoryEntry;
use crate::machine::{FetchError, Input, Ticket};
use kubelet_config::source::ConfigMapRef;
use kubelet_config::status::NodeConfigStatus;

#[derive(Debug)]
pub(super) enum Command {
    Watch(Option<ConfigMapRef>),
    Publish(Box<NodeConfigStatus>),
    Emit(Box<HistoryEntry>),
    Query(Query),
}

/// A question that has exactly one answer.
#[derive(Debug)]
pub(super) enum Query {
    Lease(Ticket),
    Pods(Ticket),
    ConfigMap(Ticket, ConfigMapRef),
}

impl Query {
    /// The answer without a connection.
    pub(super) fn without_answer(self, why: &str) -> Input {
        match self {
            Self::Lease(ticket) => Input::LeaseObserved(ticket, LeaseObservation::Unreachable(why.to_owned())),
            Self::Pods(ticket) => Input::PodsObserved(ticket, None),
            Self::ConfigMap(ticket, _) => {
                Input::ConfigMapFetched(ticket, Err(FetchError { why: why.to_owned(), definite: false }))
            }
        }
    }
}
