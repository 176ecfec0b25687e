//! When a standby is asked for, and when it is ended.

use super::Standby;
use crate::machine::State;
use crate::machine::io::{Afterwards, Effect};
use crate::machine::model::{KubeletId, Rendered};
use kubelet_config::digest::Digest;

impl State {
    /// Whether the kubelet that judges this change may stand by.
    pub(in crate::machine) fn afterwards(&mut self, rendered: &Rendered) -> Afterwards {
        // A wait would keep it for minutes.
        if self.pending_start().is_some() {
            return Afterwards::Ends;
        }
        self.standby = Standby(Some((rendered.digest.clone(), self.process.kubelet_id().clone())));
        Afterwards::StandsBy
    }

    /// Ends a standby that is not what is started next.
    pub(in crate::machine) fn tick_standby(&mut self, fx: &mut Vec<Effect>) {
        let is_wanted = |(digest, binary): &(Digest, KubeletId)| {
            let switches = self.running().digest.as_ref() != Some(digest)
                && self.desired().is_some_and(|version| version.has_content(digest));
            // Where nothing can be written no change is switched to, however far it is.
            let soon = switches || self.is_change_soon(digest) && self.writer.failure().is_none();
            // A node that is shut down starts nothing any more.
            let starts = !self.is_leaving() && !self.is_going_down();
            soon && starts && binary == self.process.kubelet_id()
        };
        if self.standby.0.as_ref().is_some_and(|standby| !is_wanted(standby)) {
            self.standby.forget();
            fx.push(Effect::DiscardStandby);
        }
    }
}
