//! The baseline: what is good right before a change. Only that is judged after it.

use super::evidence::{Baseline, Query, Signal};
use super::limits;
use super::model::later;
use super::{Change, Effect, Kubelet, Stage, State};
use kubelet_config::status;

impl State {
    /// Asks for everything that may be good now, while the preflight runs.
    pub(super) fn query_baseline(&mut self, fx: &mut Vec<Effect>) {
        let ready = matches!(&self.kubelet, Kubelet::Running(run) if run.ready);
        let healthz = self.running.healthz.clone().filter(|_| ready);
        let socket = self.running.runtime.clone().or(self.runtime.clone());
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
        if let Some(attempt) = self.records().local_state.attempt.as_ref().filter(|_| self.trial.is_some()) {
            return attempt.baseline.clone();
        }
        let mut baseline = self.change.as_ref()?.baseline.clone();
        let Kubelet::Running(run) = &self.kubelet else {
            // A kubelet that is not there gives no signs; the node around it does.
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

    /// Goes on with an accepted change as soon as the baseline is known, or was waited for.
    pub(super) fn await_baseline(&mut self, fx: &mut Vec<Effect>) {
        self.drop_unassigned();
        let Some(Change { to: Some(source), stage: Stage::Baseline(rendered), .. }) = self.change.clone() else {
            return;
        };
        let waiting = self
            .change
            .as_ref()
            .is_some_and(|change| !change.unanswered.is_empty() && self.now < change.baseline_until);
        if waiting {
            return;
        }
        match self.refused_impact(&source, &rendered) {
            Some(why) => self.reject(&source, None, status::VALIDATE_ERROR, &why, fx),
            None => self.record_switch(source, rendered, fx),
        }
    }
}
