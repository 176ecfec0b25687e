//! A kubelet without an API server.

use tokio::sync::mpsc::UnboundedSender;

use crate::machine::Input;
use crate::ports::{self, ClusterRequest};

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
}

impl ports::Cluster for Standalone {
    fn submit(&mut self, request: ClusterRequest) {
        let answer = match request {
            ClusterRequest::Watch(_) | ClusterRequest::Publish(_) => return,
            // Should the node join a cluster one day, old events are not sent there.
            ClusterRequest::Emit(entry) => Input::Reported(entry.number),
            ClusterRequest::Query(query) => query.without_answer("the kubelet is standalone"),
        };
        let _ = self.inputs.send(answer);
    }
}
