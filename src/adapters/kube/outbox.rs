//! What is to go out, connected or not.

use std::collections::VecDeque;

use crate::machine::Input;
use crate::machine::history::HistoryEntry;
use crate::ports::{ClusterQuery, ClusterRequest};
use kubelet_config::source::ConfigMapRef;
use kubelet_config::status::NodeConfigStatus;

/// Events kept while the API server is away.
const EVENTS_KEPT: usize = 32;

/// What is to be sent and watched; outlives a session.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    /// The ConfigMap to watch.
    pub(crate) map: Option<ConfigMapRef>,
    /// The status to bring to the Node.
    pub(crate) status: Option<NodeConfigStatus>,
    /// Events, oldest first.
    pub(crate) events: VecDeque<HistoryEntry>,
    /// The Node's annotations as sent to the machine, which must learn of one that was
    /// taken away while we were not connected; none if nothing was sent in this life, or it is to be sent anew.
    pub(crate) annotations: Option<Input>,
    /// The same of what the Node is asked to judge, and its answer.
    pub(crate) preflight: Option<Input>,
}

impl Outbox {
    /// Keeps a request; gives back a query, which is not to be put off.
    pub(crate) fn accept(&mut self, request: ClusterRequest) -> Option<ClusterQuery> {
        match request {
            ClusterRequest::Query(query) => return Some(query),
            ClusterRequest::Watch(map) => self.map = map,
            ClusterRequest::Publish(status) => self.status = Some(*status),
            ClusterRequest::Emit(entry) => {
                if self.events.len() == EVENTS_KEPT {
                    self.events.pop_front();
                }
                self.events.push_back(*entry);
            }
        }
        None
    }

    /// Takes off the event that was sent, which may no longer be the first, or be there at all:
    /// the oldest had to go if others came while it was under way.
    pub(crate) fn remove_sent(&mut self, sent: &HistoryEntry) {
        if let Some(index) = self.events.iter().position(|entry| entry == sent) {
            self.events.remove(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(number: u64, nanos: u64) -> HistoryEntry {
        HistoryEntry { number, nanos, ..HistoryEntry::default() }
    }

    #[test]
    fn the_event_that_was_sent_is_taken_off_and_no_other() {
        let mut outbox = Outbox::default();
        let numbers = |outbox: &Outbox| outbox.events.iter().map(|entry| entry.number).collect::<Vec<_>>();
        for (number, nanos) in [(1, 10), (0, 11), (0, 12), (2, 13)] {
            assert!(outbox.accept(ClusterRequest::Emit(Box::new(entry(number, nanos)))).is_none());
        }
        outbox.remove_sent(&entry(0, 12));
        assert_eq!(numbers(&outbox), [1, 0, 2]);
        // While the first is under way, so many come that it has to go.
        for number in 0..u64::try_from(EVENTS_KEPT).unwrap() {
            outbox.accept(ClusterRequest::Emit(Box::new(entry(100 + number, 100 + number))));
        }
        assert_eq!((outbox.events.len(), numbers(&outbox)[0]), (EVENTS_KEPT, 100));
        outbox.remove_sent(&entry(1, 10));
        assert_eq!((outbox.events.len(), numbers(&outbox)[0]), (EVENTS_KEPT, 100), "nothing else is lost");
    }
}
