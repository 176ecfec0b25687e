//! The standby: the kubelet that judged a change and waits to be the next one. Wanted for as long as it is about to be started,
//! so that a change that is put off, dropped or overtaken leaves no second kubelet behind.

use super::model::KubeletId;
use kubelet_config::digest::Digest;

mod step;

/// What was asked to stand by.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Standby(Option<(Digest, KubeletId)>);

impl Standby {
    /// A start makes it the kubelet, or ends it.
    pub(super) fn forget(&mut self) {
        self.0 = None;
    }
}
