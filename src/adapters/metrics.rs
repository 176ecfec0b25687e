//! Metrics: native's four, and our own.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use prometheus_client::metrics::counter::Counter as PlainCounter;
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::machine::evidence::{Failure, Hold, Suspension};
use crate::machine::model::{PreflightResult, RestartCause, TrialResult};
use crate::machine::status::node_status;
use crate::machine::{Counter, State, StoreOperation};
use kubelet_config::hazard::HazardClass;
use kubelet_config::source::Source;

type Labels = Vec<(String, String)>;
type FloatGauge = Gauge<f64, AtomicU64>;
type Gauges = Family<Labels, Gauge>;
type Counters = Family<Labels, PlainCounter>;
type Histograms = Family<Labels, Histogram, fn() -> Histogram>;

/// From a crash at the start to a wait for somebody's confirmation; 660: a trial of ten minutes without a hitch.
fn trial_seconds() -> Histogram {
    Histogram::new([10.0, 60.0, 180.0, 660.0, 900.0, 1800.0, 3600.0, 14_400.0, 86_400.0])
}

/// From a page cache to a disk that stalls.
fn store_seconds() -> Histogram {
    Histogram::new([0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10.0, 30.0])
}

/// All metrics, cheap to clone.
#[derive(Clone, Debug)]
pub struct Metrics {
    registry: Arc<Mutex<Registry>>,
    configs: [Gauges; 3],
    error: Gauge,
    condition: Gauges,
    local_files_differ: Gauge,
    restarts: Counters,
    preflights: Counters,
    rollbacks: Counters,
    remaining: FloatGauge,
    applied: Histogram,
    preflight_seconds: Histogram,
    store_errors: PlainCounter,
    requests: Counters,
    expiration: FloatGauge,
    trials: Histograms,
    suspensions: Counters,
    adoptions: PlainCounter,
    hazards: Counters,
    held: Gauges,
    store_requests: Histograms,
    unhealthy: PlainCounter<f64, AtomicU64>,
    policy: Gauges,
    policy_refused: PlainCounter,
    /// The kubelet is not healthy, and its time up to here is counted.
    unhealthy_since: Arc<Mutex<Option<Instant>>>,
}

/// Native's four. Names, labels and help as in pkg/kubelet/metrics/metrics.go:66-75, v1.20.2.
fn native(registry: &mut Registry) -> ([Gauges; 3], Gauge) {
    let configs: [Gauges; 3] = Default::default();
    for (family, (name, help)) in configs.iter().zip([
        ("assigned", "The node's understanding of intended config. The count is always 1"),
        ("active", "The config source the node is actively using. The count is always 1"),
        (
            "last_known_good",
            "The config source the node will fall back to when it encounters certain errors. The count is always 1",
        ),
    ]) {
        registry.register(format!("kubelet_node_config_{name}"), help, family.clone());
    }
    let error = Gauge::default();
    registry.register(
        "kubelet_node_config_error",
        "True (1) if the node is experiencing a configuration-related error, false (0) otherwise",
        error.clone(),
    );
    (configs, error)
}

fn labels<const N: usize>(labels: [(&str, &str); N]) -> Labels {
    labels.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
}

fn count(family: &Counters, name: &str, value: &str) {
    family.get_or_create(&labels([(name, value)])).inc();
}

fn observe(family: &Histograms, name: &str, value: &str, took: Duration) {
    family.get_or_create(&labels([(name, value)])).observe(took.as_secs_f64());
}

/// Known label values are there from the start: an alert on a rise needs the zero before it.
fn begin_at_zero<M: Clone, C: MetricConstructor<M>>(
    family: &Family<Labels, M, C>,
    name: &str,
    values: impl IntoIterator<Item = &'static str>,
) {
    for value in values {
        let _ = family.get_or_create(&labels([(name, value)]));
    }
}

impl Metrics {
    /// Registers them all, so that each is there from the start.
    #[must_use]
    pub fn new() -> Self {
        let mut registry = Registry::default();
        let (configs, error) = native(&mut registry);
        let own = registry.sub_registry_with_prefix("kubelet_supervisor");
        let metrics = Self {
            registry: Arc::default(),
            configs,
            error,
            condition: Family::default(),
            local_files_differ: Gauge::default(),
            restarts: Family::default(),
            preflights: Family::default(),
            rollbacks: Family::default(),
            remaining: FloatGauge::default(),
            // From an adoption (milliseconds) to a kubelet that waits two minutes.
            applied: Histogram::new([0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0]),
            preflight_seconds: Histogram::new([0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0]),
            store_errors: PlainCounter::default(),
            requests: Family::default(),
            expiration: FloatGauge::default(),
            trials: Family::new_with_constructor(trial_seconds),
            suspensions: Family::default(),
            adoptions: PlainCounter::default(),
            hazards: Family::default(),
            held: Gauges::default(),
            policy: Gauges::default(),
            policy_refused: PlainCounter::default(),
            store_requests: Family::new_with_constructor(store_seconds),
            unhealthy: PlainCounter::default(),
            unhealthy_since: Arc::default(),
        };
        metrics.register_kubelet(own);
        metrics.register_supervisor(own);
        metrics.begin_at_zero();
        Self { registry: Arc::new(Mutex::new(registry)), ..metrics }
    }

    /// Of configurations and the kubelet.
    fn register_kubelet(&self, own: &mut Registry) {
        own.register(
            "condition",
            "The Node's condition KubeletConfigOk, by status and reason. The count is always 1",
            self.condition.clone(),
        );
        own.register("kubelet_restarts", "Restarts of the kubelet, by cause", self.restarts.clone());
        own.register("preflight", "Preflights, by result", self.preflights.clone());
        own.register("preflight_duration_seconds", "Time a preflight took", self.preflight_seconds.clone());
        own.register("rollbacks", "Rollbacks to last known good, by reason", self.rollbacks.clone());
        own.register(
            "trial_remaining_seconds",
            "Continuous health still needed to become last known good; 0 outside a trial",
            self.remaining.clone(),
        );
        own.register(
            "config_apply_duration_seconds",
            "From seeing a version to its kubelet being ready",
            self.applied.clone(),
        );
        own.register(
            "trial_duration_seconds",
            "Time from the decision to switch to the end of the trial, by result",
            self.trials.clone(),
        );
        own.register(
            "suspensions",
            "Times that judgement was suspended because of the node's surroundings, by reason",
            self.suspensions.clone(),
        );
        own.register(
            "adoptions",
            "Sources whose content ran already, taken over without a restart",
            self.adoptions.clone(),
        );
        own.register(
            "hazards_refused",
            "Versions refused for a change that is not safe on a live node, by class of hazard",
            self.hazards.clone(),
        );
        own.register(
            "change_held",
            "1 while an accepted change waits for this, else 0: streams, pressure, pods-lost",
            self.held.clone(),
        );
        own.register(
            "kubelet_unhealthy_seconds",
            "Time without a kubelet, with one that has not said READY=1, or with bad healthz or overdue WATCHDOG=1, which is \
             observed in trials, and every 15 s where --hung-after is not 0",
            self.unhealthy.clone(),
        );
    }

    /// Of the supervisor, the store and the API server.
    fn register_supervisor(&self, own: &mut Registry) {
        own.register(
            "local_files_differ",
            "1 if the local files say something else than what the kubelet runs, else 0",
            self.local_files_differ.clone(),
        );
        own.register("store_errors", "Failed writes of the store", self.store_errors.clone());
        own.register("api_requests", "Requests to the API server", self.requests.clone());
        own.register(
            "client_certificate_expiration_timestamp_seconds",
            "When the client certificate expires; 0 if unknown",
            self.expiration.clone(),
        );
        own.register(
            "store_request_duration_seconds",
            "Time the store took over a request, without the wait for those before it, by operation",
            self.store_requests.clone(),
        );
        let build = Gauges::default();
        build.get_or_create(&labels([("version", env!("CARGO_PKG_VERSION"))])).set(1);
        self.register_policy(own);
        own.register("build_info", "The supervisor's version", build);
    }

    fn register_policy(&self, own: &mut Registry) {
        own.register(
            "policy",
            "The node's policy: absent, in-force, unreadable, or violated by what runs. The count is always 1",
            self.policy.clone(),
        );
        own.register("policy_refused", "Versions refused by the node's policy", self.policy_refused.clone());
    }

    fn begin_at_zero(&self) {
        begin_at_zero(&self.restarts, "cause", RestartCause::ALL.map(RestartCause::as_str));
        begin_at_zero(&self.rollbacks, "reason", Failure::all().map(Failure::label));
        begin_at_zero(&self.preflights, "result", PreflightResult::ALL.map(PreflightResult::as_str));
        begin_at_zero(&self.trials, "result", TrialResult::ALL.map(TrialResult::as_str));
        begin_at_zero(&self.suspensions, "reason", Suspension::ALL.map(Suspension::label));
        let refused = |class: &HazardClass| class.is_refused() || *class == HazardClass::Pods;
        begin_at_zero(&self.hazards, "class", HazardClass::ALL.into_iter().filter(refused).map(HazardClass::label));
        begin_at_zero(&self.store_requests, "operation", StoreOperation::ALL.map(StoreOperation::as_str));
    }

    /// Sets the gauges.
    pub fn observe(&self, state: &State) {
        let status = node_status(state);
        for (family, source) in self.configs.iter().zip([&status.assigned, &status.active, &status.last_known_good]) {
            family.clear();
            family.get_or_create(&source_labels(source.as_ref())).set(1);
        }
        self.error.set(i64::from(status.error.is_some()));
        let policy = status.policy;
        let (status, reason) = (status.condition.status.as_str(), status.condition.reason.as_str());
        self.condition.clear();
        self.condition.get_or_create(&labels([("status", status), ("reason", reason)])).set(1);
        self.local_files_differ.set(i64::from(state.local_files_difference().is_some()));
        let held = state.waiting().map(|waiting| waiting.hold.label());
        for reason in Hold::LABELS {
            self.held.get_or_create(&labels([("reason", reason)])).set(i64::from(held == Some(reason)));
        }
        self.policy.clear();
        self.policy.get_or_create(&labels([("state", policy)])).set(1);
        self.remaining.set(state.trial_remaining().map_or(0.0, |left| left.as_secs_f64()));
        self.count_unhealthy(Some(state.is_kubelet_healthy()), Instant::now());
    }

    /// The time since the last call belongs to what was seen then; what is seen now, if anything, goes for the time from now on.
    /// Time that the machine sleeps is not counted.
    fn count_unhealthy(&self, healthy: Option<bool>, now: Instant) {
        let Ok(mut since) = self.unhealthy_since.lock() else { return };
        let unhealthy = healthy.map_or(since.is_some(), |healthy| !healthy);
        if let Some(since) = *since {
            self.unhealthy.inc_by(now.saturating_duration_since(since).as_secs_f64());
        }
        *since = unhealthy.then_some(now);
    }

    pub(crate) fn count(&self, counter: &Counter) {
        match counter {
            Counter::Restart(cause) => count(&self.restarts, "cause", cause.as_str()),
            Counter::Preflight(result) => count(&self.preflights, "result", result.as_str()),
            Counter::Rollback(reason) => count(&self.rollbacks, "reason", reason.label()),
            Counter::StoreError => drop(self.store_errors.inc()),
            Counter::Suspension(reason) => count(&self.suspensions, "reason", reason.label()),
            Counter::Adoption => drop(self.adoptions.inc()),
            Counter::PolicyRefused => drop(self.policy_refused.inc()),
            Counter::HazardRefused(class) => count(&self.hazards, "class", class.label()),
            Counter::Applied(took) => self.applied.observe(took.as_secs_f64()),
            Counter::Trial(result, took) => observe(&self.trials, "result", result.as_str(), *took),
        }
    }

    /// Notes how long the store took over a request.
    pub(crate) fn store_took(&self, operation: StoreOperation, took: Duration) {
        observe(&self.store_requests, "operation", operation.as_str(), took);
    }

    /// Counts a request to the API server.
    pub fn request(&self, verb: &str, code: &str) {
        self.requests.get_or_create(&labels([("verb", verb), ("code", code)])).inc();
    }

    /// Notes how long a preflight took.
    pub(crate) fn preflight_took(&self, seconds: f64) {
        self.preflight_seconds.observe(seconds);
    }

    /// Notes when the client certificate expires, in seconds since 1970.
    #[allow(clippy::cast_precision_loss)]
    pub(crate) fn certificate_expires(&self, seconds: u64) {
        self.expiration.set(seconds as f64);
    }

    /// The OpenMetrics text.
    #[must_use]
    pub fn open_metrics(&self) -> String {
        self.count_unhealthy(None, Instant::now());
        self.registry.lock().map(|registry| exposition::text::open_metrics(&registry)).unwrap_or_default()
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

fn source_labels(source: Option<&Source>) -> Labels {
    let local = (String::from("local"), "", "", "");
    let (path, uid, version, key) = source.map_or(local, |source| {
        (
            source.api_path(),
            source.uid.as_str(),
            source.resource_version.as_str(),
            source.reference.kubelet_config_key.as_str(),
        )
    });
    labels([
        ("node_config_source", &path),
        ("node_config_uid", uid),
        ("node_config_resource_version", version),
        ("node_config_kubelet_key", key),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_without_a_healthy_kubelet_adds_up_between_steps_and_at_scrapes() {
        let metrics = Metrics::new();
        let begun = Instant::now();
        let at = |second| begun + Duration::from_secs(second);
        let counted = |healthy, second, expected: f64| {
            metrics.count_unhealthy(healthy, at(second));
            assert!((metrics.unhealthy.get() - expected).abs() < 1e-9, "at {second}: {}", metrics.unhealthy.get());
        };
        counted(None, 5, 0.0); // nothing was seen yet
        counted(Some(false), 10, 0.0);
        counted(None, 12, 2.0); // a scrape
        counted(Some(false), 15, 5.0);
        counted(Some(true), 20, 10.0);
        counted(None, 60, 10.0);
        counted(Some(true), 70, 10.0);
        counted(Some(false), 80, 10.0);
        counted(Some(true), 81, 11.0);
    }

    #[test]
    fn the_older_format_names_counters_as_their_samples() {
        let metrics = Metrics::new();
        metrics.request("get", "200");
        let new = metrics.open_metrics();
        let old = exposition::text::older(&new);
        assert!(new.ends_with("# EOF\n") && !old.contains("# EOF"));
        let samples = |text: &str| -> Vec<String> {
            text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
        };
        assert_eq!(samples(&new), samples(&old));
        assert!(new.contains("# TYPE kubelet_supervisor_api_requests counter\n"), "{new}");
        for line in [
            "# HELP kubelet_supervisor_api_requests_total Requests to the API server.",
            "# TYPE kubelet_supervisor_api_requests_total counter",
            "# TYPE kubelet_supervisor_trial_duration_seconds histogram",
            "# TYPE kubelet_node_config_error gauge",
        ] {
            assert!(old.lines().any(|it| it == line), "{line}\n{old}");
        }
    }
}
