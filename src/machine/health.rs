//! A kubelet's health while it is judged: signals good and bad, the queries for them, the trial's clock.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::asks::Observation;
use super::clock::Clock;
use super::evidence::{Environment, FailureFamily, LeaseObservation, NodePressure, NodeReadiness, Signal, Suspension};
use super::model::{Moment, RunId};
use super::{Counter, Level, Run, State, events, limits};
use kubelet_config::pods::PodInventory;
use kubelet_config::readmission::Supplies;
use kubelet_config::status;

mod queries;

/// What is known of the node, beside the signs of one process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Health {
    /// The Node's condition Ready, as last seen.
    node: Option<NodeReadiness>,
    /// When it was last seen to be another.
    node_changed: Option<Moment>,
    /// The Lease's renew time as last seen.
    lease: Option<String>,
    /// The last observation of the node, and when it was made.
    environment: Option<(Environment, Moment)>,
    /// The runtime's socket that has answered.
    answered_runtime: Option<String>,
    /// Why nothing is judged for now, and since when.
    suspended: Option<(Suspension, Moment)>,
    /// Pods that admission turned away.
    lost_pods: Vec<String>,
    /// When each question is asked next, while the kubelet is observed: the one before is given up then.
    due: BTreeMap<Observation, Moment>,
    /// The runtime's socket that is asked.
    asked_runtime: Option<String>,
}

impl Health {
    pub(super) fn is_node_ready(&self) -> bool {
        self.node.as_ref().is_some_and(|node| node.ready)
    }

    /// What the Node is under, as last seen.
    pub(super) fn pressure(&self) -> BTreeSet<NodePressure> {
        self.node.as_ref().map(|node| node.pressure.clone()).unwrap_or_default()
    }

    /// Why the Node is not Ready, in its own words.
    pub(super) fn node_message(&self) -> Option<&str> {
        self.node.as_ref().filter(|node| !node.ready && !node.message.is_empty()).map(|node| node.message.as_str())
    }

    /// True if it was seen, and was not Ready.
    pub(super) fn is_node_known_unready(&self) -> bool {
        self.node.as_ref().is_some_and(|node| !node.ready)
    }

    /// The runtime's socket that has answered.
    pub(super) fn answered_runtime(&self) -> Option<&String> {
        self.answered_runtime.as_ref()
    }

    /// Why nothing is judged for now.
    pub(super) fn suspended(&self) -> Option<Suspension> {
        self.suspended.map(|(suspension, _)| suspension)
    }

    pub(super) fn lost_pods(&self) -> &[String] {
        &self.lost_pods
    }

    /// What the node has left, as last observed.
    pub(super) fn supplies(&self) -> Supplies {
        self.environment.as_ref().map(|(seen, _)| seen.supplies.clone()).unwrap_or_default()
    }

    /// The last observation of the node, while it counts.
    pub(super) fn environment(&self, clock: &Clock) -> Option<&Environment> {
        self.environment.as_ref().filter(|(_, at)| !clock.lasted(*at, limits::QUERY_VALID)).map(|(seen, _)| seen)
    }

    /// Gives what was before.
    pub(super) fn set_suspended(&mut self, suspension: Option<Suspension>, now: Moment) -> Option<Suspension> {
        let before = self.suspended;
        let since = |suspension| before.filter(|(known, _)| *known == suspension).map_or(now, |(_, since)| since);
        self.suspended = suspension.map(|suspension| (suspension, since(suspension)));
        before.map(|(suspension, _)| suspension)
    }

    /// True if the container runtime has been away for so long that it is no passing trouble.
    pub(super) fn is_runtime_gone(&self, now: Moment) -> bool {
        matches!(self.suspended, Some((Suspension::Runtime, since)) if now.since(since) >= limits::RUNTIME_GONE)
    }

    /// What is observed from now on is another trial's.
    pub(super) fn observe_anew(&mut self) {
        self.due.clear();
    }
}

impl State {
    /// Why nothing is judged for now.
    #[must_use]
    pub fn suspended(&self) -> Option<Suspension> {
        self.health.suspended()
    }

    /// The next process is about to be started.
    pub(super) fn forget_last_run(&mut self) {
        self.health.lost_pods.clear();
        self.health.due.clear();
        // Whoever renewed it last, it was the kubelet before: what is seen first is no renewal.
        self.health.lease = None;
        self.asks.forget_process();
        self.forget_answers();
    }

    /// A process that has just been started.
    pub(super) fn new_run(&self, id: RunId) -> Run {
        let (now, Health { node, node_changed, .. }) = (self.clock.now, &self.health);
        Run {
            id,
            started: now,
            start_timeout_from: now,
            heartbeat: node.as_ref().map(|node| node.heartbeat.clone()).unwrap_or_default(),
            may_repeat_heartbeat: node_changed.is_some_and(|at| now.since(at) < limits::HEARTBEAT_RESOLUTION),
            ..Run::default()
        }
    }

    pub(super) fn ready(&mut self) {
        let now = self.clock.now;
        if self.process.run().is_some() {
            self.self_test();
        }
        let Some(run) = self.process.run_mut().filter(|run| !run.is_ready()) else { return };
        run.ready_at = Some(now);
        self.judge_last_heartbeat();
        if let Some(seen) = self.take_applying_since() {
            self.count(Counter::Applied(now.since(seen)));
        }
    }

    pub(super) fn probed(&mut self, ok: bool) {
        self.healthz_observed(ok);
        self.note_baseline(Observation::Healthz, &[(Signal::Healthz, ok)]);
        // What is tried after a reset may be ill for ever.
        let by_process_alone = !self.judgement().is_contact_observed();
        let looks = if self.settings.hung_after.is_zero() { limits::HUNG_INTERVAL } else { self.hung_interval() };
        let (now, start_timeout) = (self.clock.now, self.settings.start_timeout);
        let Some(run) = self.process.run_mut() else { return };
        let mut gap = false;
        if ok && run.is_ready() {
            gap = run.healthy_since.is_some() && !run.is_watched(now);
            run.record_good(Signal::Healthz, now);
        } else if !ok {
            run.record_bad(Signal::Healthz, now);
        }
        let starts = !run.is_good(Signal::Healthz) && now.since(run.start_timeout_from) < start_timeout;
        let pause = match starts {
            true => limits::PROBE_STARTING,
            false if by_process_alone => looks,
            false => limits::PROBE_TRIAL,
        };
        if let Some(due) = self.health.due.get_mut(&Observation::Healthz) {
            *due = self.clock.after(pause);
        }
        if gap {
            run.healthy_since = Some(now);
            self.lose_health();
        }
    }

    /// Health is continuous, or begins anew.
    pub(super) fn lose_health(&mut self) {
        if let Some(attempt) = self.writer.attempt_mut() {
            attempt.earned = Duration::ZERO;
        }
    }

    pub(super) fn node_observed(&mut self, readiness: NodeReadiness) {
        let now = self.clock.now;
        self.judge_heartbeat(&readiness);
        if self.health.node.as_ref().is_some_and(|before| *before != readiness) {
            self.health.node_changed = Some(now);
        }
        self.health.node = Some(readiness);
        self.note_repeated_heartbeat();
    }

    fn judge_heartbeat(&mut self, readiness: &NodeReadiness) {
        let now = self.clock.now;
        let Some(run) = self.process.run_mut().filter(|run| run.is_ready()) else { return };
        if !readiness.ready {
            run.record_bad(Signal::NodeReady, now);
        } else if readiness.heartbeat != run.heartbeat {
            run.record_good(Signal::NodeReady, now);
        }
    }

    /// The Node may have been seen before this worker went on with the kubelet, and is not seen anew for minutes.
    pub(super) fn judge_last_heartbeat(&mut self) {
        let resumed = self.process.run().is_some_and(|run| run.resumed.is_some());
        if let Some(readiness) = self.health.node.clone().filter(|_| resumed) {
            self.judge_heartbeat(&readiness);
        }
    }

    /// A heartbeat that reads like the one before the start, which this kubelet may have written in the same second: then it writes
    /// no other for minutes (nodeStatusReportFrequency). That it renews the Lease tells that it can, and so whose word `Ready` is.
    fn note_repeated_heartbeat(&mut self) {
        let (now, node) = (self.clock.now, self.health.node.as_ref());
        if let Some(run) = self.process.run_mut().filter(|run| run.may_repeat_heartbeat && run.is_good(Signal::Lease))
            && node.is_some_and(|node| node.ready && node.heartbeat == run.heartbeat)
        {
            run.record_good(Signal::NodeReady, now);
        }
    }

    pub(super) fn watchdog_pinged(&mut self) {
        let now = self.clock.now;
        if let Some(run) = self.process.run_mut() {
            run.record_good(Signal::Watchdog, now);
        }
    }

    pub(super) fn lease_observed(&mut self, observed: &LeaseObservation) {
        self.note_lease(observed);
        self.resolve_observed_failure();
    }

    fn note_lease(&mut self, observed: &LeaseObservation) {
        let fresh = matches!(observed, LeaseObservation::Renewed(time)
            if status::seconds_between(time, self.clock.now.wall_nanos).is_some_and(|age| age <= limits::LEASE_FRESH.as_secs()));
        // Before a change what was not asked counts as away; after it, as nothing.
        let away = !matches!(observed, LeaseObservation::Renewed(_) | LeaseObservation::Absent);
        self.note_baseline(Observation::Lease, &[(Signal::ApiServer, !away), (Signal::Lease, fresh)]);
        if matches!(observed, LeaseObservation::Unreachable(_) | LeaseObservation::Busy(_)) {
            self.note_control_lacked(FailureFamily::Contact);
        }
        let now = self.clock.now;
        let before = match observed {
            LeaseObservation::Renewed(time) => self.health.lease.replace(time.clone()),
            _ => None,
        };
        // What is seen before READY=1 may be the renewal of the kubelet before.
        let Some(run) = self.process.run_mut().filter(|run| run.is_ready()) else { return };
        match observed {
            LeaseObservation::Unreachable(_) => run.record_bad(Signal::ApiServer, now),
            LeaseObservation::Busy(_) => {
                run.record_bad(Signal::ApiServer, now);
                run.was_answered = true;
            }
            LeaseObservation::HeldBack => {}
            LeaseObservation::Absent => run.hear_api_server(now),
            LeaseObservation::Renewed(time) => {
                run.hear_api_server(now);
                if before.is_some_and(|before| before != *time) {
                    run.record_good(Signal::Lease, now);
                } else if let Some(since) = run.good.get(&Signal::Lease).copied()
                    && now.since(since) >= limits::LEASE_FRESH
                {
                    run.record_bad(Signal::Lease, since);
                }
            }
        }
        self.note_repeated_heartbeat();
    }

    pub(super) fn pods_observed(&mut self, inventory: Option<PodInventory>) {
        self.note_baseline(Observation::Pods, &[(Signal::Pods, inventory.is_some())]);
        self.note_pods(inventory.as_ref());
        let (now, on_trial) = (self.clock.now, self.judgement().is_on_trial());
        let (Some(inventory), Some(attempt)) = (inventory, self.records().phase.attempt()) else { return };
        let lost = inventory.pods.iter().filter(|pod| attempt.pods.contains(&pod.uid));
        let lost = lost.filter(|pod| !pod.is_live() && is_turned_away(&pod.reason));
        let lost: Vec<String> = lost.map(|pod| format!("{} ({})", pod.name, pod.reason)).collect();
        if let Some(run) = self.process.run_mut().filter(|run| run.is_ready() && on_trial && !lost.is_empty()) {
            run.record_bad(Signal::Pods, now);
            self.health.lost_pods = lost;
        }
    }

    pub(super) fn environment_observed(&mut self, environment: Environment) {
        self.note_baseline(Observation::Environment, &[(Signal::Runtime, environment.runtime == Some(true))]);
        let now = self.clock.now;
        let called_off = !environment.shutting_down && self.is_going_down();
        if environment.runtime == Some(true) {
            self.health.answered_runtime = self.health.asked_runtime.clone();
            if let Some(attempt) = self.writer.attempt_mut() {
                attempt.runtime_answered = true;
            }
        }
        if environment.runtime == Some(false) {
            self.note_control_lacked(FailureFamily::Runtime);
        }
        if let Some(run) = self.process.run_mut() {
            match environment.runtime {
                Some(true) => run.runtime_answers(now),
                Some(false) => run.record_bad(Signal::Runtime, now),
                None => {}
            }
        }
        if called_off {
            self.process.start_now(now);
        }
        self.health.environment = Some((environment, now));
        self.update_suspension();
        self.resolve_observed_failure(); // it was asked for after the failure: of each kind the last question is answered
        self.decide_hung();
    }

    /// True if the system was on its way down when it was last observed, a moment ago.
    pub(super) fn is_going_down(&self) -> bool {
        self.health.environment(&self.clock).is_some_and(|seen| seen.shutting_down)
    }

    /// Stops or resumes judgement by what was last observed.
    pub(super) fn update_suspension(&mut self) {
        let judgement = self.judgement();
        let suspension = judgement.suspension().filter(|_| judgement.is_observing());
        let before = self.health.set_suspended(suspension, self.clock.now);
        if let Some(reason) = suspension.filter(|_| suspension != before) {
            self.count(Counter::Suspension(reason));
        }
        match (suspension, before) {
            (Some(suspension), None) => {
                self.log(Level::Warn, format!("{}: judgement is suspended, nobody is blamed", suspension.message()));
                if let Some(version) = self.active().filter(|_| self.judgement().is_on_trial()) {
                    self.emit(events::suspended(&version.source, suspension));
                }
            }
            (None, Some(suspension)) => {
                self.log(Level::Info, format!("no longer true that {}: judgement goes on", suspension.message()));
                // What was bad meanwhile gets its whole time again, and the kubelet some to notice.
                let from = self.clock.after(limits::SUSPENSION_GRACE);
                if let Some(run) = self.process.run_mut() {
                    run.begin_anew(from);
                }
            }
            _ => {}
        }
    }

    /// The process has been well for a trial's time: what was counted before is older than that.
    fn forget_old_evidence(&mut self) {
        if let Some(attempt) = self.writer.attempt_mut() {
            (attempt.exits, attempt.breaks, attempt.failed.lacked_contact) = (0, 0, false);
        }
        self.forget_reset_exits();
    }

    /// Keeps `well_since`, `healthy_since` and what was earned before the clock last stopped.
    pub(super) fn update_health(&mut self) {
        let judgement = self.judgement();
        let Some(run) = self.process.run().filter(|_| judgement.is_observing()) else { return };
        let (signs, on_trial) = (judgement.signs(run), judgement.is_on_trial());
        let now = self.clock.now;
        if let Some(run) = self.process.run_mut() {
            run.well_since = if signs.well { run.well_since.or(Some(now)) } else { None };
            if run.well_since.is_some_and(|since| self.clock.lasted(since, self.settings.trial_duration)) {
                self.forget_old_evidence();
            }
        }
        if signs.settled && on_trial {
            self.writer.note_contact(&self.settings.boot_id());
        }
        self.run_clock(signs.healthy, signs.up);
    }

    fn run_clock(&mut self, healthy: bool, up: bool) {
        let (now, suspended, on_trial) = (self.clock.now, self.suspended().is_some(), self.judgement().is_on_trial());
        let last_sure = match &self.health.environment {
            Some((_, at)) if suspended => Moment { boot: at.boot.saturating_sub(limits::QUERY_INTERVAL), ..*at },
            _ => now,
        };
        let Some(run) = self.process.run_mut() else { return };
        run.was_up |= up;
        let before = run.healthy_since;
        run.healthy_since = if healthy { before.or(Some(now)) } else { None };
        run.broken_since = match before {
            _ if healthy => None,
            Some(_) if !suspended => Some(now),
            _ => run.broken_since,
        };
        let breaks = before.is_some() && !healthy && !suspended && run.is_process_bad();
        let broken = run.is_broken(now);
        // The kubelet needs some time after a suspension to be well again, and a worker to see that it is, but no longer.
        let in_time = run.is_fresh(Some(run.start_timeout_from), limits::SUSPENSION_GRACE, now);
        let Some(attempt) = self.writer.attempt_mut().filter(|_| on_trial) else { return };
        attempt.breaks = attempt.breaks.saturating_add(u32::from(breaks));
        match (healthy, before) {
            (true, None) if !(std::mem::take(&mut attempt.suspended) && in_time) => attempt.earned = Duration::ZERO,
            (true, _) => {}
            (false, Some(since)) => {
                attempt.earned += last_sure.since(since);
                attempt.suspended = suspended;
            }
            (false, None) => attempt.suspended |= suspended && !broken,
        }
    }

    /// A kubelet that pinged does so no more.
    pub(super) fn miss_pings(&mut self) {
        let (now, interval, observing) =
            (self.clock.now, self.settings.watchdog_interval(), !self.health.due.is_empty());
        if let Some(run) = self.process.run_mut().filter(|_| observing)
            && let Some(pinged) = run.good.get(&Signal::Watchdog).copied()
            && now.since(pinged) >= interval
        {
            run.record_bad(Signal::Watchdog, pinged);
        }
    }
}

/// Reasons by which the kubelet refuses a pod it was given (pkg/kubelet/lifecycle/predicate.go and
/// the resource managers' admit handlers, v1.20 to v1.36). Eviction is another matter.
fn is_turned_away(reason: &str) -> bool {
    reason.starts_with("OutOf")
        || matches!(
            reason,
            "UnexpectedAdmissionError"
                | "NodeAffinity"
                | "MatchNodeSelector"
                | "Preempting"
                | "SysctlForbidden"
                | "TaintToleration"
                | "SMTAlignmentError"
                | "PodOSNotSupported"
                | "PodOSSelectorNodeLabelDoesNotMatch"
                | "SupplementalGroupsPolicyNotSupported"
                | "PodLevelResourcesNotSupported"
                | "PodFeatureUnsupported"
        )
        || reason.ends_with("AffinityError")
}
