//! What changes in the store behind the supervisor's back: found while the kubelet runs, put right where the bytes can be
//! made again, and told. The kubelet that runs is let be: it has read its configuration.

use std::collections::BTreeMap;

use super::limits;
use super::model::{Moment, later};
use kubelet_config::digest::Digest;

mod step;

/// Damage, and what is known of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Drift {
    /// Something in the store was written, by whomever: it is to be verified then.
    due: Option<Moment>,
    /// What was told and could not be put right, with the content that it is about.
    told: BTreeMap<String, Option<Digest>>,
    /// Verifications in a row that found something.
    rounds: u32,
}

impl Drift {
    /// True if the store is about to be verified.
    pub(super) fn is_due(&self, now: Moment) -> bool {
        self.due.is_some_and(|due| due <= later(now, limits::VERIFY_DELAY))
    }

    pub(super) fn deadlines(&self, due: &mut Vec<Moment>) {
        due.extend(self.due);
    }
}
