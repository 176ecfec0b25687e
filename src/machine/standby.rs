//! The standby: the kubelet that judged a change and waits to be the next one. Wanted for as long as it is about to be started,
//! so that a change that is put off, dropped or overtaken leaves no second kubelet behind.

use super::State;
use super::io::{Afterwards, Effect};
use super::model::{KubeletId, Rendered};
use kubelet_config::digest::Digest;

/// What was asked to stand by.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Standby(Option<(Digest, KubeletId)>);

impl State {
    /// Whether the kubelet that judges this change may stand by.
    pub(super) fn afterwards(&mut self, rendered: &Rendered) -> Afterwards {
        // A wait would keep it for minutes.
        if self.pending_start().is_some() {
            return Afterwards::Ends;
        }
        self.standby = Standby(Some((rendered.digest.clone(), self.process.kubelet_id().clone())));
        Afterwards::StandsBy
    }

    /// Ends a standby that is not what is started next.
    pub(super) fn tick_standby(&mut self) {
        let is_wanted = |(digest, binary): &(Digest, KubeletId)| {
            let switches = self.running().digest.as_ref() != Some(digest)
                && self.desired().is_some_and(|version| version.has_content(digest));
            // Where nothing can be written no change is switched to, however far it is.
            let soon = switches || self.is_change_soon(digest) && self.writer.obstacle().is_none();
            // A node that is shut down starts nothing any more.
            let starts = !self.is_leaving() && !self.is_going_down();
            soon && starts && binary == self.process.kubelet_id()
        };
        if self.standby.0.as_ref().is_some_and(|standby| !is_wanted(standby)) {
            self.standby = Standby::default();
            self.effects.push(Effect::DiscardStandby);
        }
    }
}
