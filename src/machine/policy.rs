//! The node's policy: one place where a candidate is admitted, and what is known of the policy beside what runs.

use super::model::Moment;
use kubelet_config::policy::{Admission, PolicyState};

mod step;

/// What the node's policy says of what runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Policy {
    /// As it was read last.
    known: PolicyState,
    /// It was read in this life.
    is_read: bool,
    /// It forbids what runs.
    forbids: Option<Violation>,
    /// It is asked about what runs then.
    due: Option<Moment>,
}

/// The policy forbids what runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Violation {
    pub(super) why: String,
    /// It starts all the same: fields that are denied bind changes, and are compared with local files that may be torn.
    pub(super) starts: bool,
}

impl Violation {
    /// What the policy says of it, as it would of a change.
    fn of(admission: &Admission) -> Option<Self> {
        let refused = admission.refused.clone().map(|why| Self { why, starts: false });
        refused.or_else(|| Some(Self { why: admission.denied.clone()?, starts: true }))
    }

    /// What becomes of what runs.
    pub(super) fn then(&self) -> &'static str {
        if self.starts {
            "goes on, for it was taken up before, and is not taken up anew"
        } else {
            "runs until the next start of the kubelet, and not again"
        }
    }
}

impl Policy {
    pub(super) fn deadlines(&self, due: &mut Vec<Moment>) {
        due.extend(self.due);
    }
}
