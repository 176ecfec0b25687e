//! A kubelet's health while it is judged: signals good and bad, the queries for them, the trial's clock.

use std::time::Duration;

use super::evidence::{
    Baseline, Environment, Failure, LeaseObservation, NodeReadiness, Query, Signal, SignalClass, Suspension,
};
use super::limits;
use super::model::{Moment, later};
use super::{Effect, Kubelet, Run, State};
use kubelet_config::hazard::{Acknowledged, HazardClass};
use kubelet_config::pods::PodInventory;
use kubelet_config::status;

impl State {
    /// True while the kubelet's health matters: a trial, a control test, or the wait before a retry.
    pub(super) fn is_observing(&self) -> bool {
        let local_state = &self.records().local_state;
        self.trial.is_some() || local_state.control_test.is_some() || local_state.retry_later.is_some()
    }

    /// What the run is judged by; `None` where nothing was observed before the change.
    fn baseline(&self) -> Option<&Baseline> {
        let local_state = &self.records().local_state;
        let of_attempt = local_state.attempt.as_ref().filter(|_| self.trial.is_some()).map(|attempt| &attempt.baseline);
        let of_control_test = local_state.control_test.as_ref().map(|control_test| &control_test.baseline);
        of_attempt.or(of_control_test)?.as_ref()
    }

    /// True if this signal was good before, or if it is healthz and nobody knows.
    pub(super) fn is_required_signal(&self, signal: Signal) -> bool {
        let here = signal != Signal::Healthz || self.running.healthz.is_some();
        here && self.baseline().map_or(signal == Signal::Healthz, |baseline| baseline.contains(&signal))
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
            run.environment_at = Some(now);
            run.lease_at = Some(now);
            run.pods_at = Some(later(now, limits::POD_QUERY_DELAY));
        }
    }

    /// The signals the trial under way judges by, and whether each is good.
    #[must_use]
    pub(crate) fn trial_signals(&self) -> Vec<(Signal, bool)> {
        let (Some(_), Kubelet::Running(run)) = (&self.trial, &self.kubelet) else { return Vec::new() };
        let good = |signal| match signal {
            Signal::Healthz => run.answered.is_some(),
            Signal::Runtime => self.suspended != Some(Suspension::Runtime),
            _ => !run.bad.contains_key(&signal),
        };
        Signal::ALL.into_iter().filter(|signal| self.is_required_signal(*signal)).map(|it| (it, good(it))).collect()
    }

    pub(super) fn probed(&mut self, ok: bool) {
        self.note_baseline(Signal::Healthz, Some(ok));
        let now = self.now;
        let observing = self.is_observing();
        let Kubelet::Running(run) = &mut self.kubelet else { return };
        if ok && run.ready {
            if run.healthy_since.is_some() && !run.is_watched(now) {
                // Nothing was observed for a while: what was healthy then says nothing of the time since.
                run.healthy_since = Some(now);
                if let Some(trial) = &mut self.trial {
                    trial.health_before_pause = Duration::ZERO;
                }
            }
            run.answered = Some(now);
            run.failing_since = None;
        } else if !ok {
            run.answered = None;
            run.failing_since.get_or_insert(now);
        }
        let pause = if run.answered.is_some() { limits::PROBE_TRIAL } else { limits::PROBE_STARTING };
        run.probe_at = observing.then(|| later(now, pause));
    }

    pub(super) fn node_observed(&mut self, readiness: NodeReadiness) {
        if let Kubelet::Running(run) = &mut self.kubelet
            && run.ready
        {
            if !readiness.ready {
                run.record_bad(Signal::NodeReady, self.now);
            } else if readiness.heartbeat != run.heartbeat {
                run.record_good(Signal::NodeReady, self.now);
            }
        }
        self.node = Some(readiness);
    }

    pub(super) fn watchdog_pinged(&mut self) {
        if let Kubelet::Running(run) = &mut self.kubelet {
            run.record_good(Signal::Watchdog, self.now);
        }
    }

    pub(super) fn lease_observed(&mut self, observed: &LeaseObservation) {
        let fresh = matches!(observed, LeaseObservation::Renewed(time)
            if status::seconds_between(time, self.now.wall_nanos).is_some_and(|age| age <= limits::LEASE_FRESH.as_secs()));
        self.note_baseline(
            Signal::ApiServer,
            Some(!matches!(observed, LeaseObservation::Unreachable(_) | LeaseObservation::Busy(_))),
        );
        self.note_baseline(Signal::Lease, Some(fresh));
        let now = self.now;
        let Kubelet::Running(run) = &mut self.kubelet else { return };
        match observed {
            LeaseObservation::Unreachable(_) => run.record_bad(Signal::ApiServer, now),
            LeaseObservation::Busy(_) => {
                run.record_bad(Signal::ApiServer, now);
                run.was_answered = true;
            }
            LeaseObservation::Absent => run.record_good(Signal::ApiServer, now),
            LeaseObservation::Renewed(time) => {
                run.record_good(Signal::ApiServer, now);
                if run.ready && run.lease.as_ref().is_some_and(|before| before != time) {
                    run.record_good(Signal::Lease, now);
                } else if let Some(since) = run.good.get(&Signal::Lease).copied()
                    && now.since(since) >= limits::LEASE_FRESH
                {
                    run.record_bad(Signal::Lease, since);
                }
                run.lease = Some(time.clone());
                self.lease = Some(time.clone());
            }
        }
    }

    pub(super) fn pods_observed(&mut self, inventory: Option<PodInventory>) {
        self.note_baseline(Signal::Pods, Some(inventory.is_some()));
        if let Some(change) = &mut self.change {
            change.inventory.clone_from(&inventory);
        }
        let (Some(inventory), Kubelet::Running(run)) = (inventory, &mut self.kubelet) else { return };
        if !run.ready || self.trial.is_none() {
            return;
        }
        let lost: Vec<String> = inventory
            .pods
            .iter()
            .filter(|pod| self.pods_before.contains(&pod.uid) && !pod.is_live() && is_turned_away(&pod.reason))
            .map(|pod| format!("{} ({})", pod.name, pod.reason))
            .collect();
        if !lost.is_empty() {
            run.record_bad(Signal::Pods, self.now);
            self.lost_pods = lost;
        }
    }

    pub(super) fn environment_observed(&mut self, environment: Environment, fx: &mut Vec<Effect>) {
        self.note_baseline(Signal::Runtime, Some(environment.runtime == Some(true)));
        if environment.runtime == Some(true) {
            self.runtime_answered = true;
        }
        // A shutdown that was called off; or a restart that is systemd's, which paces it by itself.
        let at_once =
            !environment.shutting_down && (self.is_going_down() || self.exits_on_crash() && self.unsaved.is_none());
        if let Kubelet::Waiting { until } = &mut self.kubelet
            && at_once
        {
            *until = self.now;
        }
        self.environment = Some((environment, self.now));
        self.update_suspension(fx);
        if self.pending_failure.is_some() {
            self.resolve_failure(fx);
        }
    }

    /// Keeps `healthy_since` and what was earned before the clock last stopped.
    pub(super) fn update_health(&mut self) {
        if !self.is_observing() {
            return;
        }
        let judges_healthz = self.is_required_signal(Signal::Healthz);
        let signals: Vec<Signal> = Signal::ALL.into_iter().filter(|signal| self.is_required_signal(*signal)).collect();
        let (now, suspended, healthz_on) = (self.now, self.suspended, self.running.healthz.is_some());
        let last_sure = match (&self.environment, suspended) {
            (Some((_, at)), Some(_)) => Moment { boot: at.boot.saturating_sub(limits::QUERY_INTERVAL), ..*at },
            _ => now,
        };
        let Kubelet::Running(run) = &mut self.kubelet else { return };
        let up = run.ready && (!judges_healthz || run.answered.is_some());
        run.was_up |= up;
        // What was bad before is not held against the change, but earns nothing either.
        let healthy = up
            && (!healthz_on || run.answered.is_some())
            && suspended.is_none()
            && !signals.iter().any(|signal| signal.class() == SignalClass::Required && run.bad.contains_key(signal));
        match (healthy, run.healthy_since) {
            (true, None) => {
                run.healthy_since = Some(now);
                if let Some(trial) = &mut self.trial
                    && !std::mem::take(&mut trial.suspended)
                {
                    trial.health_before_pause = Duration::ZERO;
                }
            }
            (false, Some(since)) => {
                run.healthy_since = None;
                if let Some(trial) = &mut self.trial {
                    trial.health_before_pause += last_sure.since(since);
                    trial.suspended = suspended.is_some();
                }
            }
            (false, None) => {
                if let Some(trial) = &mut self.trial {
                    trial.suspended |= suspended.is_some();
                }
            }
            (true, Some(_)) => {}
        }
    }

    /// The signal that has been bad for too long, and what to say of it.
    pub(super) fn failing(&self, run: &Run) -> Option<(Failure, String)> {
        if self.suspended.is_some() {
            return None;
        }
        let now = self.now;
        if !run.was_up && now.since(run.start_timeout_from) >= self.settings.start_timeout {
            let waited_for = if run.ready { "healthz" } else { "READY=1" };
            let seconds = self.settings.start_timeout.as_secs();
            return Some((Failure::StartTimeout, format!("the kubelet gave no {waited_for} within {seconds} s")));
        }
        let patience = limits::HEALTHZ_PATIENCE;
        if self.is_required_signal(Signal::Healthz)
            && run.was_up
            && run.failing_since.is_some_and(|since| now.since(since) >= patience)
        {
            let detail = format!("healthz failed for {} s without a break", patience.as_secs());
            return Some((Failure::Signal(Signal::Healthz), detail));
        }
        let unreachable = run.bad.contains_key(&Signal::ApiServer);
        run.bad
            .iter()
            .filter(|(signal, since)| {
                self.is_required_signal(**signal)
                    && signal.class() == SignalClass::Required
                    // Nobody can tell how the Node does while the API server does not answer.
                    && !(unreachable && matches!(signal, Signal::NodeReady | Signal::Lease))
                    && now.since(**since) >= self.patience(**signal)
            })
            .map(|(signal, since)| (Failure::Signal(*signal), self.describe(*signal, now.since(*since))))
            .next()
    }

    fn describe(&self, signal: Signal, lasted: Duration) -> String {
        let lasted = lasted.as_secs();
        match signal {
            Signal::Watchdog => format!("the kubelet sent no WATCHDOG=1 for {lasted} s"),
            Signal::NodeReady => {
                // A Node that still says Ready says so of the time before.
                let sick = self.node.as_ref().filter(|node| !node.ready && !node.message.is_empty());
                let message = sick.map_or_else(|| "no new heartbeat".to_owned(), |node| node.message.clone());
                format!("the Node has not been Ready for {lasted} s since the change: {message}")
            }
            Signal::Lease => format!("the Node's Lease was not renewed for {lasted} s"),
            Signal::ApiServer => {
                format!("the API server could not be reached from this node for {lasted} s since the change")
            }
            Signal::Pods => format!("admission turned running pods away: {}", self.lost_pods.join(", ")),
            Signal::Healthz | Signal::Runtime => format!("{} was bad for {lasted} s", signal.label()),
        }
    }

    /// Asks whatever is due to be asked.
    pub(super) fn tick_queries(&mut self, fx: &mut Vec<Effect>) {
        if !self.is_observing() {
            return;
        }
        let now = self.now;
        let pods = self.trial.is_some() && self.is_required_signal(Signal::Pods) && !self.accepts_lost_pods();
        let in_contact = self.is_required_signal(Signal::Lease) || self.is_required_signal(Signal::ApiServer);
        let (socket, interval) = (self.runtime.clone(), self.watchdog_interval());
        let Kubelet::Running(run) = &mut self.kubelet else { return };
        if run.probe_at.is_some_and(|at| now >= at) {
            run.probe_at = None; // set again by its answer
            if let Some(target) = &self.running.healthz {
                fx.push(Effect::Probe(target.clone()));
            }
        }
        if let Some(pinged) = run.good.get(&Signal::Watchdog).copied()
            && now.since(pinged) >= interval
        {
            run.record_bad(Signal::Watchdog, pinged);
        }
        if run.environment_at.is_some_and(|at| now >= at) {
            run.environment_at = Some(later(now, limits::QUERY_INTERVAL));
            fx.push(Effect::Query(Query::Environment(socket)));
        }
        if run.lease_at.is_some_and(|at| now >= at) {
            // The trial's clock waits for the first renewal, which comes with the start.
            let fresh = run.ready_at.is_some_and(|ready| now.since(ready) < limits::QUERY_EAGER_FOR);
            let eager = fresh && in_contact && !run.good.contains_key(&Signal::Lease);
            run.lease_at = Some(later(now, if eager { limits::QUERY_EAGER } else { limits::QUERY_INTERVAL }));
            fx.push(Effect::Query(Query::Lease));
        }
        if run.pods_at.is_some_and(|at| now >= at) {
            run.pods_at = Some(later(now, limits::POD_QUERY_INTERVAL));
            if pods {
                fx.push(Effect::Query(Query::Pods));
            }
        }
    }

    /// The ConfigMap says that pods may go.
    fn accepts_lost_pods(&self) -> bool {
        let accepted = Acknowledged::parse(self.running.annotations.acknowledge.as_deref());
        ["maxPods", "podsPerCore", "kubeReserved", "systemReserved", "evictionHard"]
            .iter()
            .any(|field| accepted.covers(field, HazardClass::Pods))
    }

    pub(super) fn query_deadlines(&self, run: &Run, due: &mut Vec<Moment>) {
        if !self.is_observing() {
            return;
        }
        due.extend(run.probe_at.into_iter().chain(run.environment_at).chain(run.lease_at).chain(run.pods_at));
        due.extend(run.failing_since.map(|since| later(since, limits::HEALTHZ_PATIENCE)));
        due.extend(run.bad.iter().map(|(signal, since)| later(*since, self.patience(*signal))));
        if !run.was_up {
            due.push(later(run.start_timeout_from, self.settings.start_timeout));
        }
        if let (Some(_), Some((_, at))) = (self.suspended, &self.environment) {
            due.push(later(*at, limits::QUERY_VALID + Duration::from_secs(1)));
        }
    }
}

/// Reasons by which the kubelet refuses a pod it was given (pkg/kubelet/lifecycle/predicate.go and
/// the resource managers' admit handlers, v1.20 to v1.36). Eviction is another matter.
fn is_turned_away(reason: &str) -> bool {
    reason.starts_with("OutOf")
        || matches!(
            reason,
            "UnexpectedAdmissionError" | "NodeAffinity" | "MatchNodeSelector" | "TopologyAffinityError" | "Preempting"
        )
        || reason.ends_with("AffinityError")
}
