//! The baseline: what is good right before a change. Only that can be held against it.

use std::time::Duration;

use crate::machine::evidence::{Baseline, Signal};
use crate::machine::{Run, State};

impl State {
    /// What the coming attempt is judged by, and whether it has to come into contact whatever is known.
    pub(super) fn baseline_for_attempt(&self, contact_expected: &mut bool) -> Option<Baseline> {
        // A change that follows an unproven one is judged by what was good before that, where it is known: what was adopted
        // has no baseline, and what is good with it counts. That one may not have been started yet, where another unproven
        // one still runs.
        let unproven = self.records().phase.trial().filter(|_| self.records().pin.is_none());
        if let Some(before) = unproven.and_then(|attempt| attempt.baseline.clone()) {
            return Some(before);
        }
        let mut baseline = self.inquiry_of_change()?.good.clone();
        let started = |run: &&Run| run.is_ready() || self.clock.now.since(run.started) >= self.settings.start_timeout;
        let Some(run) = self.process.run().filter(started) else {
            // A kubelet that is not up gives no signs. The node around it does, and what was good on this node
            // before counts; where that is not known, the kubelet's own signs must come.
            baseline.remove(&Signal::Lease);
            baseline.insert(Signal::Healthz);
            let proven = &self.records().good_signals;
            baseline.extend(proven);
            *contact_expected |= proven.is_empty();
            return Some(baseline);
        };
        if self.health.is_node_ready() && baseline.contains(&Signal::ApiServer) {
            baseline.insert(Signal::NodeReady);
        }
        let pinged = run.good.get(&Signal::Watchdog);
        if pinged.is_some_and(|at| self.clock.now.since(*at) <= self.judgement().patience(Signal::Watchdog)) {
            baseline.insert(Signal::Watchdog);
        }
        // What was good on this node before may take its time with a kubelet that has just come up.
        let up_for = run.ready_at.map_or(Duration::MAX, |ready| self.clock.now.since(ready));
        let slow = [Signal::Healthz, Signal::NodeReady, Signal::Lease];
        let slow = slow.into_iter().filter(|signal| up_for < self.judgement().patience(*signal));
        baseline.extend(slow.filter(|signal| self.records().good_signals.contains(signal)));
        Some(baseline)
    }
}
