//! The spread: a change that reaches many nodes at once begins on each at its own time.

use std::time::Duration;

use sha2::{Digest as _, Sha256};

use super::model::{Moment, Rendered, later};
use super::{Change, Effect, Stage, State};
use kubelet_config::assignment::Assignment;
use kubelet_config::source::Source;

impl State {
    /// When this node begins a change that reaches many nodes at once; `None`: now.
    ///
    /// Everything up to the verdict is done at once on every node, so that a bad edit is refused
    /// everywhere while it costs nothing; only the restart waits.
    pub(super) fn spread_start(&mut self, source: &Source) -> Option<Moment> {
        let before = self.records().assigned.as_ref();
        if before == Some(source) {
            return None; // not new: it is owed, or somebody asked for it again
        }
        // A directory of this node is nobody else's.
        let edited = before.is_some_and(|before| before.reference == source.reference) && !source.is_source_dir();
        let appeared = before.is_none() && matches!(self.assignment, Assignment::Default(_));
        let window = if edited || appeared { self.settings.spread } else { self.settings.spread_assignment };
        let wait = spread_delay(window, &format!("{}\n{}\n{}", self.node_name, source.uid, source.resource_version));
        if wait.is_zero() {
            return None;
        }
        // What interrupts the wait, a kubelet that dies or an operator's freeze, does not prolong it.
        self.first_seen.take_if(|(seen, _)| seen != source);
        let (_, seen) = self.first_seen.get_or_insert_with(|| (source.clone(), self.now));
        Some(later(*seen, wait))
    }

    /// The start of the change, if it is still to come.
    pub(super) fn pending_start(&self) -> Option<Moment> {
        self.change.as_ref()?.starts_at.filter(|at| *at > self.now)
    }

    /// The change that waits for its start, and until when.
    #[must_use]
    pub fn scheduled(&self) -> Option<(&Source, Moment)> {
        let Some(Change { to: Some(source), stage: Stage::Spread(_), starts_at: Some(at), .. }) = &self.change else {
            return None;
        };
        Some((source, *at))
    }

    /// The candidate may run: next come the spread and the baseline.
    pub(super) fn accepted(&mut self, rendered: Rendered, fx: &mut Vec<Effect>) {
        let Some(change) = &self.change else { return };
        if change.starts_at.is_none() && matches!(change.stage, Stage::Preflight(..)) {
            self.set_stage(Stage::Baseline(rendered)); // the baseline was asked for with the verdict
        } else {
            self.set_stage(Stage::Spread(rendered));
            self.end_spread_wait(fx);
        }
        self.await_baseline(fx);
    }

    /// Goes on with an accepted change when its time has come. The baseline is taken only then: it
    /// is to say what was good right before the switch.
    pub(super) fn end_spread_wait(&mut self, fx: &mut Vec<Effect>) {
        if let Some(Change { stage: Stage::Spread(rendered), .. }) = &self.change
            && self.pending_start().is_none()
        {
            let rendered = rendered.clone();
            self.query_baseline(fx);
            self.set_stage(Stage::Baseline(rendered));
        }
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
