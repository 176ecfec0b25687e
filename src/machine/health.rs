//! A kubelet's health while it is judged: signals good and bad, the queries for them, the trial's clock.

use std::collections::{BTreeMap, BTreeSet};

use super::asks::Observation;
use super::evidence::{Environment, NodePressure, NodeReadiness, Suspension};
use super::limits;
use super::model::Moment;
use kubelet_config::readmission::Supplies;

mod queries;
mod step;

/// What is known of the node, beside the signs of one process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Health {
    /// The Node's condition Ready, as last seen.
    node: Option<NodeReadiness>,
    /// When it was last seen to be another.
    node_changed: Option<Moment>,
    /// The Lease's renew time as last seen.
    lease: Option<String>,
    /// The last observation of the node, and when it was made.
    environment: Option<(Environment, Moment)>,
    /// The runtime's socket that has answered.
    answered_runtime: Option<String>,
    /// Why nothing is judged for now, and since when.
    suspended: Option<(Suspension, Moment)>,
    /// Pods that admission turned away.
    lost_pods: Vec<String>,
    /// When each question is asked next, while the kubelet is observed: the one before is given up then.
    due: BTreeMap<Observation, Moment>,
    /// The runtime's socket that is asked.
    asked_runtime: Option<String>,
}

impl Health {
    pub(super) fn is_node_ready(&self) -> bool {
        self.node.as_ref().is_some_and(|node| node.ready)
    }

    /// What the Node is under, as last seen.
    pub(super) fn pressure(&self) -> BTreeSet<NodePressure> {
        self.node.as_ref().map(|node| node.pressure.clone()).unwrap_or_default()
    }

    /// Why the Node is not Ready, in its own words.
    pub(super) fn node_message(&self) -> Option<&str> {
        self.node.as_ref().filter(|node| !node.ready && !node.message.is_empty()).map(|node| node.message.as_str())
    }

    pub(super) fn lost_pods(&self) -> &[String] {
        &self.lost_pods
    }

    /// What the node has left, as last observed.
    pub(super) fn supplies(&self) -> Supplies {
        self.environment.as_ref().map(|(seen, _)| seen.supplies.clone()).unwrap_or_default()
    }

    /// The last observation of the node, while it counts.
    pub(super) fn environment(&self, now: Moment) -> Option<&Environment> {
        self.environment.as_ref().filter(|(_, at)| now.since(*at) <= limits::QUERY_VALID).map(|(seen, _)| seen)
    }

    /// Gives what was before.
    pub(super) fn set_suspended(&mut self, suspension: Option<Suspension>, now: Moment) -> Option<Suspension> {
        let before = self.suspended;
        let since = |suspension| before.filter(|(known, _)| *known == suspension).map_or(now, |(_, since)| since);
        self.suspended = suspension.map(|suspension| (suspension, since(suspension)));
        before.map(|(suspension, _)| suspension)
    }

    /// True if the container runtime has been away for so long that it is no passing trouble.
    pub(super) fn is_runtime_gone(&self, now: Moment) -> bool {
        matches!(self.suspended, Some((Suspension::Runtime, since)) if now.since(since) >= limits::RUNTIME_GONE)
    }
}
