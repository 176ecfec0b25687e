//! The spread: a change that reaches many nodes at once begins on each at its own time.

use std::time::Duration;

use sha2::{Digest as _, Sha256};

use super::wait::Inquiry;
use super::{Change, Stage};
use crate::machine::State;
use crate::machine::model::{Moment, later};
use kubelet_config::assignment::Assignment;
use kubelet_config::digest::Digest;
use kubelet_config::source::Source;

impl State {
    /// When this node begins a change that reaches many nodes at once; `None`: now.
    ///
    /// Everything up to the verdict is done at once on every node, so that a bad edit is refused
    /// everywhere while it costs nothing; only the restart waits.
    pub(super) fn spread_start(&mut self, source: &Source, content: &Digest) -> Option<Moment> {
        let wait = self.spread_wait(source);
        (!wait.is_zero()).then(|| later(self.wait_of(content).first_seen, wait))
    }

    /// How long this node waits for its turn.
    pub(super) fn spread_wait(&self, source: &Source) -> Duration {
        let before = self.records().assigned.as_ref().map(|version| &version.source);
        if before == Some(source) {
            return Duration::ZERO; // not new: it is owed, or somebody asked for it again
        }
        let on_node = source.is_local_files(); // no other node has it
        let edited = before.is_some_and(|before| before.reference == source.reference) && !on_node;
        let appeared = !on_node && before.is_none() && matches!(self.sync.assignment(), Assignment::Default(_));
        let window = if edited || appeared { self.settings.spread } else { self.settings.spread_assignment };
        spread_delay(window, &format!("{}\n{}\n{}", self.sync.node_name(), source.uid, source.resource_version))
    }

    /// True if the turn came while the API server was away: all whose turn has passed would switch at the moment of its return.
    pub(super) fn restart_missed_turn(&mut self, source: &Source, content: &Digest) -> bool {
        let (now, pause) = (self.clock.now, self.spread_wait(source));
        let wait = self.wait_of(content);
        if !std::mem::take(&mut wait.missed_turn) || pause.is_zero() {
            return false;
        }
        (wait.first_seen, wait.courtesy_since, wait.inquiry) = (now, None, Inquiry::default());
        if let Some(change) = &mut self.change {
            change.starts_at = Some(self.clock.after(pause));
        }
        true
    }

    /// The change that waits for its start, and until when.
    #[must_use]
    pub fn scheduled(&self) -> Option<(&Source, Moment)> {
        let Change { source, stage: Stage::Gate(_), .. } = self.change.as_ref()? else { return None };
        Some((source.as_ref()?, self.pending_start()?))
    }

    /// The start of the change, if it is still to come.
    pub(in crate::machine) fn pending_start(&self) -> Option<Moment> {
        self.change.as_ref()?.starts_at.filter(|at| !self.clock.reached(*at))
    }
}

/// The part of `window` that belongs to `seed`: evenly spread over seeds, always the same for one.
fn spread_delay(window: Duration, seed: &str) -> Duration {
    let hash = Sha256::digest(seed.as_bytes());
    let fraction = hash.iter().take(4).fold(0_u32, |fraction, byte| fraction << 8 | u32::from(*byte));
    window.mul_f64(f64::from(fraction) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_share_a_window_evenly_and_each_keeps_its_place() {
        let window = Duration::from_secs(300);
        let mut shares: Vec<Duration> = (0..1000).map(|node| spread_delay(window, &format!("n{node}\nu\n7"))).collect();
        assert_eq!(shares[3], spread_delay(window, "n3\nu\n7"));
        assert_ne!(shares[3], spread_delay(window, "n3\nu\n8"), "another version, another order");
        shares.sort();
        assert!(shares.iter().all(|spread_delay| *spread_delay <= window));
        for (tenth, part) in (0_u32..).zip(shares.chunks(100)) {
            let due = window * tenth / 10 + window / 20;
            assert!(part[50].abs_diff(due) < Duration::from_secs(15), "{tenth}: {:?}", part[50]);
        }
        assert_eq!(spread_delay(Duration::ZERO, "x"), Duration::ZERO);
    }
}
