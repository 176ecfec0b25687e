//! The node's policy: one place where a candidate is admitted, and what is known of the policy beside what runs.

use super::model::Moment;
use kubelet_config::policy::PolicyState;

mod step;

/// What the node's policy says of what runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Policy {
    /// As it was read last.
    known: PolicyState,
    /// Why it forbids what runs.
    forbids: Option<String>,
    /// It is asked about what runs then.
    due: Option<Moment>,
}

impl Policy {
    pub(super) fn deadlines(&self, due: &mut Vec<Moment>) {
        due.extend(self.due);
    }
}
