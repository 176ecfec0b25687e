//! Before the switch: what is good now, what the change would do, and whether it may.

use kubelet_config::status;
use std::time::Duration;

use sha2::{Digest as _, Sha256};

use super::model::later;
use super::{Change, Effect, Kubelet, Stage, State};
use crate::machine::evidence::{Baseline, Query, Signal};
use crate::machine::limits;
use crate::machine::model::{Moment, Rendered};
use kubelet_config::assignment::Assignment;
use kubelet_config::duration::GoDuration;
use kubelet_config::hazard;
use kubelet_config::source::{ConfigAnnotations, Source};

impl State {
    /// Asks for everything that may be good now, while the preflight runs.
    pub(super) fn look_before(&mut self, fx: &mut Vec<Effect>) {
        let ready = matches!(&self.kubelet, Kubelet::Running(run) if run.ready);
        let healthz = self.in_force.healthz.clone().filter(|_| ready);
        let socket = self.in_force.runtime.clone().or(self.runtime.clone());
        let Some(change) = &mut self.change else { return };
        change.baseline = Baseline::new();
        change.unanswered = [Signal::ApiServer, Signal::Lease, Signal::Pods, Signal::Runtime].into();
        change.baseline_until = later(self.now, limits::BASELINE);
        if let Some(target) = healthz {
            change.unanswered.insert(Signal::Healthz);
            fx.push(Effect::Probe(target));
        }
        fx.extend([Query::Environment(socket), Query::Lease, Query::Pods].map(Effect::Query));
    }

    /// An answer, if it is one that a change waits for.
    pub(super) fn note_baseline(&mut self, signal: Signal, good: Option<bool>) {
        let Some(change) = &mut self.change else { return };
        if change.unanswered.remove(&signal) && good == Some(true) {
            change.baseline.insert(signal);
        }
    }

    /// What the coming attempt is judged by. `None`: the kubelet has only just been started, and
    /// nobody can say what is good.
    pub(super) fn baseline_for_attempt(&self) -> Option<Baseline> {
        // A change that follows an unproven one is judged by what was good before that.
        if let Some(attempt) = self.records().ledger.attempt.as_ref().filter(|_| self.trial.is_some()) {
            return attempt.baseline.clone();
        }
        let mut baseline = self.change.as_ref()?.baseline.clone();
        let Kubelet::Running(run) = &self.kubelet else {
            // A kubelet that is not there gives no signs; its surroundings do.
            baseline.remove(&Signal::Lease);
            return Some(baseline);
        };
        if !run.ready && self.now.since(run.started) < self.settings.start_timeout {
            return None;
        }
        if self.node.as_ref().is_some_and(|node| node.ready) && baseline.contains(&Signal::ApiServer) {
            baseline.insert(Signal::NodeReady);
        }
        let pinged = run.good.get(&Signal::Watchdog);
        if pinged.is_some_and(|at| self.now.since(*at) <= self.patience(Signal::Watchdog)) {
            baseline.insert(Signal::Watchdog);
        }
        Some(baseline)
    }

    /// When this node begins a change that reaches many nodes at once; `None`: now.
    ///
    /// Everything up to the verdict is done at once on every node, so that a bad edit is refused
    /// everywhere while it costs nothing; only the restart waits.
    pub(super) fn turn(&mut self, source: &Source) -> Option<Moment> {
        let before = self.records().assigned.as_ref();
        if before == Some(source) {
            return None; // not new: it is owed, or somebody asked for it again
        }
        // A directory of this node is nobody else's.
        let edited = before.is_some_and(|before| before.reference == source.reference) && !source.is_source_dir();
        let appeared = before.is_none() && matches!(self.wanted, Assignment::Default(_));
        let window = if edited || appeared { self.settings.spread } else { self.settings.spread_assignment };
        let wait = share(window, &format!("{}\n{}\n{}", self.node_name, source.uid, source.resource_version));
        if wait.is_zero() {
            return None;
        }
        // What interrupts the wait, a kubelet that dies or an operator's freeze, does not prolong it.
        self.first_seen.take_if(|(seen, _)| seen != source);
        let (_, seen) = self.first_seen.get_or_insert_with(|| (source.clone(), self.now));
        Some(later(*seen, wait))
    }

    /// The turn that is still to come.
    pub(super) fn waits_for_turn(&self) -> Option<Moment> {
        self.change.as_ref()?.turn.filter(|at| *at > self.now)
    }

    /// The change that waits for its turn, and until when.
    #[must_use]
    pub fn scheduled(&self) -> Option<(&Source, Moment)> {
        let Some(Change { to: Some(source), stage: Stage::Spread(_), turn: Some(at), .. }) = &self.change else {
            return None;
        };
        Some((source, *at))
    }

    /// The candidate may run: next come this node's turn and the baseline.
    pub(super) fn accepted(&mut self, rendered: Rendered, fx: &mut Vec<Effect>) {
        let Some(change) = &self.change else { return };
        if change.turn.is_none() && matches!(change.stage, Stage::Judging(..)) {
            self.set_stage(Stage::Weighing(rendered)); // the baseline was asked for with the verdict
        } else {
            self.set_stage(Stage::Spread(rendered));
            self.take_turn(fx);
        }
        self.weigh(fx);
    }

    /// Goes on with an accepted change when its time has come. The baseline is taken only then: it
    /// is to say what was good right before the switch.
    pub(super) fn take_turn(&mut self, fx: &mut Vec<Effect>) {
        if let Some(Change { stage: Stage::Spread(rendered), .. }) = &self.change
            && self.waits_for_turn().is_none()
        {
            let rendered = rendered.clone();
            self.look_before(fx);
            self.set_stage(Stage::Weighing(rendered));
        }
    }

    /// Goes on with an accepted change as soon as the baseline is known, or was waited for.
    pub(super) fn weigh(&mut self, fx: &mut Vec<Effect>) {
        self.drop_unwanted();
        let Some(Change { to: Some(source), stage: Stage::Weighing(rendered), .. }) = self.change.clone() else {
            return;
        };
        let waiting = self
            .change
            .as_ref()
            .is_some_and(|change| !change.unanswered.is_empty() && self.now < change.baseline_until);
        if waiting {
            return;
        }
        match self.impact(&source, &rendered) {
            Some(why) => self.reject(&source, None, status::VALIDATE_ERROR, &why, fx),
            None => self.record_switch(source, rendered, fx),
        }
    }

    /// Why the change from what runs must not be made on a live node, unless somebody accepted it.
    /// The way back to last known good is always open.
    pub(super) fn hazards(&self, source: &Source, rendered: &Rendered) -> Option<String> {
        if self.in_force.effective.is_null() || self.fallback().as_ref() == Some(source) {
            return None;
        }
        let changes = hazard::diff(&self.in_force.effective, &rendered.effective);
        hazard::refused(&changes, rendered.annotations.acknowledge.as_deref())
    }

    /// Which pods it would cost, unless somebody accepted that.
    fn impact(&self, source: &Source, rendered: &Rendered) -> Option<String> {
        if self.in_force.effective.is_null() || self.fallback().as_ref() == Some(source) {
            return None;
        }
        let inventory = self.change.as_ref()?.inventory.as_ref();
        let supplies = self.environment.as_ref().map(|(environment, _)| environment.supplies.clone());
        let impacts =
            hazard::preview(&self.in_force.effective, &rendered.effective, inventory, &supplies.unwrap_or_default());
        hazard::refused_impact(&impacts, rendered.annotations.acknowledge.as_deref())
    }

    /// Seconds within which this ConfigMap must be acknowledged; `None` if it need not.
    pub(super) fn confirm_within(&self, annotations: &ConfigAnnotations) -> Result<Option<u64>, String> {
        let within = match &annotations.confirm_within {
            Some(text) => {
                let parsed: Result<GoDuration, _> = text.parse();
                parsed.map_err(|why| format!("annotation kubelet-supervisor.io/confirm-within: {why}"))?.0
            }
            None => self.settings.confirm_within.unwrap_or_default(),
        };
        Ok(Some(within.as_secs()).filter(|seconds| *seconds > 0))
    }

    /// True if it failed without being to blame, and times have not become better yet.
    pub(super) fn is_pardoned(&self, source: &Source) -> bool {
        !self.recovered
            && self.records().ledger.retry_later.as_ref().is_some_and(|retry_later| retry_later.source == *source)
    }

    /// Runs what an operator pinned.
    pub(super) fn go_to_pin(&mut self, pinned: Option<Source>, fx: &mut Vec<Effect>) {
        self.change = None;
        if self.active != pinned && self.target != pinned && !self.pin_tried {
            self.pin_tried = true;
            self.trial = None;
            self.switch(pinned, "operator", fx);
        }
    }

    /// Observation begins while the kubelet runs.
    pub(super) fn observe_at_once(&mut self) {
        let now = self.now;
        if let Kubelet::Running(run) = &mut self.kubelet
            && run.ready
        {
            run.healthy_since = None;
            run.answered = None;
            run.probe_at = Some(now);
            run.look_at = Some(now);
            run.lease_at = Some(now);
            run.pods_at = Some(later(now, limits::PODS_FIRST));
        }
    }
}

/// The part of `window` that belongs to `seed`: evenly spread over seeds, always the same for one.
fn share(window: Duration, seed: &str) -> Duration {
    let hash = Sha256::digest(seed.as_bytes());
    let word = hash.iter().take(4).fold(0_u32, |word, byte| word << 8 | u32::from(*byte));
    window.mul_f64(f64::from(word) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_share_a_window_evenly_and_each_keeps_its_place() {
        let window = Duration::from_secs(300);
        let mut shares: Vec<Duration> = (0..1000).map(|node| share(window, &format!("n{node}\nu\n7"))).collect();
        assert_eq!(shares[3], share(window, "n3\nu\n7"));
        assert_ne!(shares[3], share(window, "n3\nu\n8"), "another version, another order");
        shares.sort();
        assert!(shares.iter().all(|share| *share <= window));
        for (tenth, part) in (0_u32..).zip(shares.chunks(100)) {
            let due = window * tenth / 10 + window / 20;
            assert!(part[50].abs_diff(due) < Duration::from_secs(15), "{tenth}: {:?}", part[50]);
        }
        assert_eq!(share(Duration::ZERO, "x"), Duration::ZERO);
    }
}
