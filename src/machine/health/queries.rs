//! What is asked while the kubelet is observed, and when.

use crate::machine::asks::{Asker, Observation};
use crate::machine::evidence::{Query, Signal, Suspension};
use crate::machine::io::Effect;
use crate::machine::{State, limits};
use std::time::Duration;

impl State {
    /// Begins to observe, or ends that.
    pub(in crate::machine) fn update_observing(&mut self) {
        let (now, observing) = (self.clock.now, self.judgement().is_observing());
        let Some(run) = self.process.run_mut().filter(|run| run.is_ready() && observing) else {
            // Whether the node is still at fault is asked as well before the kubelet is up.
            let by_node = self.health.suspended.is_some_and(|(suspension, _)| suspension != Suspension::ApiServer);
            let asked = |observation: Observation| observing && by_node && observation == Observation::Environment;
            self.health.due.retain(|observation, _| asked(*observation));
            if asked(Observation::Environment) {
                self.health.due.entry(Observation::Environment).or_insert(self.clock.after(limits::QUERY_INTERVAL));
            }
            return;
        };
        if !self.health.due.contains_key(&Observation::Healthz) {
            // It came up while nobody observed it; but what the worker before us saw counts.
            if run.ready_at != Some(now) && run.resumed != Some(now) {
                run.begin_anew(now);
            }
            run.forget_health();
            run.await_signals(now);
            self.health.due = Observation::ALL.map(|observation| (observation, now)).into();
            self.health.due.insert(Observation::Pods, self.clock.after(limits::POD_QUERY_DELAY));
        }
    }

    /// True if the kubelet runs, has said READY=1, and neither its healthz is bad nor its `WATCHDOG=1` overdue, as far as that is
    /// known: while it is observed, and every 15 s where `--hung-after` is not 0.
    #[must_use]
    pub fn is_kubelet_healthy(&self) -> bool {
        let Some(run) = self.process.run().filter(|run| run.is_ready()) else { return false };
        let was_good = |signal: &Signal| *signal == Signal::Healthz || run.good.contains_key(signal);
        let mut silent = [Signal::Healthz, Signal::Watchdog].iter().filter(|signal| run.bad.contains_key(signal));
        if self.judgement().is_observing() { !silent.any(was_good) } else { !self.liveness.is_unresponsive() }
    }

    /// Asks; an earlier question of this kind is forgotten. False where there is nobody to ask.
    pub(in crate::machine) fn observe(&mut self, observation: Observation) -> bool {
        let (runtime, healthz) = (self.judgement().runtime_socket().cloned(), self.running().healthz.clone());
        let query = match (observation, self.pid()) {
            (Observation::Healthz, _) => {
                let Some(target) = healthz else { return false };
                let ticket = self.asks.ask_for_ever(Asker::Observed(observation));
                self.effects.push(Effect::Probe(ticket, target));
                return true;
            }
            (Observation::Lease, _) => Query::Lease,
            (Observation::Pods, _) => Query::Pods,
            (Observation::Environment, _) => {
                self.health.asked_runtime.clone_from(&runtime);
                Query::Environment(runtime)
            }
            (Observation::Streams, Some(pid)) => Query::Streams(pid, runtime),
            (Observation::Streams, None) => return false,
        };
        self.effects.push(Effect::Query(self.asks.ask_for_ever(Asker::Observed(observation)), query));
        true
    }

    /// Asks whatever is due to be asked.
    pub(in crate::machine) fn tick_queries(&mut self) {
        for observation in Observation::ALL {
            if self.health.due.get(&observation).is_none_or(|due| !self.clock.reached(*due)) {
                continue;
            }
            self.health.due.insert(observation, self.clock.after(self.pause_after(observation)));
            match observation {
                Observation::Lease if !self.judgement().is_contact_observed() => continue,
                Observation::Pods if !self.may_lose_pods() => continue,
                Observation::Lease => self.note_silence(),
                _ => {}
            }
            self.observe(observation);
        }
    }

    /// A server that has left all questions without an answer for a while is away like one that refuses them.
    fn note_silence(&mut self) {
        let now = self.clock.now;
        let asked = self.asks.is_open(Asker::Observed(Observation::Lease));
        if let Some(run) = self.process.run_mut().filter(|_| asked) {
            let heard = run.good.get(&Signal::ApiServer).copied().or(run.ready_at).unwrap_or(run.started);
            if now.since(heard) > limits::QUERY_VALID {
                run.record_bad(Signal::ApiServer, now);
            }
        }
    }

    /// Until it is asked again.
    fn pause_after(&self, observation: Observation) -> Duration {
        match observation {
            Observation::Healthz => 2 * limits::PROBE_TIMEOUT, // its answer comes sooner, or is lost
            Observation::Environment | Observation::Streams => limits::QUERY_INTERVAL,
            Observation::Pods => limits::POD_QUERY_INTERVAL,
            Observation::Lease => {
                // The trial's clock waits for the first renewal, which comes with the start.
                let judgement = self.judgement();
                let awaited = judgement.requires(Signal::Lease) || judgement.requires(Signal::ApiServer);
                let eager = self.process.run().is_some_and(|run| {
                    let fresh = run.is_fresh(run.ready_at, limits::QUERY_EAGER_FOR, self.clock.now);
                    fresh && awaited && !run.good.contains_key(&Signal::Lease)
                });
                if eager { limits::QUERY_EAGER } else { limits::QUERY_INTERVAL }
            }
        }
    }

    /// True if the trial may fail by pods that are turned away.
    fn may_lose_pods(&self) -> bool {
        let judgement = self.judgement();
        judgement.is_on_trial()
            && judgement.requires(Signal::Pods)
            && self.records().phase.trial().is_some_and(|attempt| !attempt.accepts_lost_pods)
    }
}
