//! A kubelet without an API server.

use tokio::sync::mpsc::UnboundedSender;

use super::query::Query;
use crate::machine::history::HistoryEntry;
use crate::machine::{Input, Ticket};
use crate::ports;
use kubelet_config::source::ConfigMapRef;
use kubelet_config::status::NodeConfigStatus;

/// A kubelet without an API server: nothing is assigned to it from there, nobody waits for its
/// events, and queries are answered at once.
#[derive(Clone, Debug)]
pub struct Standalone {
    inputs: UnboundedSender<Input>,
}

impl Standalone {
    /// Answers go into the daemon's queue.
    #[must_use]
    pub fn new(inputs: UnboundedSender<Input>) -> Self {
        Self { inputs }
    }

    fn answer(&self, input: Input) {
        let _ = self.inputs.send(input);
    }
}

impl ports::Cluster for Standalone {
    fn watch(&mut self, _: Option<&ConfigMapRef>) {}
    fn publish(&mut self, _: &NodeConfigStatus) {}
    fn emit(&mut self, entry: &HistoryEntry) {
        // Should the node join a cluster one day, old events are not sent there.
        self.answer(Input::Reported(entry.number));
    }
    fn observe_lease(&mut self, ticket: Ticket) {
        self.answer(Query::Lease(ticket).without_answer("the kubelet is standalone"));
    }
    fn observe_pods(&mut self, ticket: Ticket) {
        self.answer(Query::Pods(ticket).without_answer("the kubelet is standalone"));
    }
    fn fetch(&mut self, ticket: Ticket, map: &ConfigMapRef) {
        self.answer(Query::ConfigMap(ticket, map.clone()).without_answer("the kubelet is standalone"));
    }
}
