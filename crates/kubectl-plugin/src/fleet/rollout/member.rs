//! A node of a rollout, and what it was assigned when that began.

use super::Target;
use crate::fleet::assign::WrittenAssignment;

/// A node of a rollout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) name: String,
    /// What it was assigned when the rollout began.
    pub(crate) before: WrittenAssignment,
}

/// The target itself was assigned.
pub(crate) fn is_same(before: &WrittenAssignment, target: &Target) -> bool {
    if let Some(native) = &before.native {
        return *native == target.reference;
    }
    let label =
        |name: &str, or: &str| before.labels.get(name).filter(|it| !it.is_empty()).map_or(or.to_owned(), Clone::clone);
    // A namespace that is not said is the supervisors', which is the target's wherever this one can be read.
    label("name", "") == target.reference.name
        && label("namespace", &target.reference.namespace) == target.reference.namespace
        && label("key", kubelet_config::assignment::DEFAULT_KEY) == target.reference.kubelet_config_key
}
