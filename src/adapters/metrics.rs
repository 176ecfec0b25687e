//! Metrics: native's four, and our own.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelSet;
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

/// A single label. Where there are more, their set is derived.
type Label = [(&'static str, &'static str); 1];
type FloatGauge = Gauge<f64, AtomicU64>;
type Gauges = Family<Label, Gauge>;
type Counters = Family<Label, PlainCounter>;
type Sources = Family<SourceLabels, Gauge>;
type Histograms = Family<Label, Histogram, fn() -> Histogram>;

/// Of native's gauges.
#[expect(clippy::struct_field_names, reason = "native's names")]
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SourceLabels {
    node_config_source: String,
    node_config_uid: String,
    node_config_resource_version: String,
    node_config_kubelet_key: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ConditionLabels {
    status: &'static str,
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    verb: &'static str,
    code: String,
}

/// From a crash at the start to a wait for somebody's confirmation; 660: a trial of ten minutes without a hitch.
fn trial_seconds() -> Histogram {
    Histogram::new([10.0, 60.0, 180.0, 660.0, 900.0, 1800.0, 3600.0, 14_400.0, 86_400.0])
}

/// From a page cache to a disk that stalls.
fn store_seconds() -> Histogram {
    Histogram::new([0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10.0, 30.0])
}

/// Known label values are there from the start: an alert on a rise needs the zero before it.
fn begun<M: Clone, C: MetricConstructor<M>>(
    family: Family<Label, M, C>,
    name: &'static str,
    values: impl IntoIterator<Item = &'static str>,
) -> Family<Label, M, C> {
    for value in values {
        let _ = family.get_or_create(&[(name, value)]);
    }
    family
}

fn counted_classes() -> impl Iterator<Item = &'static str> {
    let is_counted = |class: &HazardClass| class.is_refused() || *class == HazardClass::Pods;
    HazardClass::ALL.into_iter().filter(is_counted).map(HazardClass::label)
}

/// A field for each metric, with its name, its help and what it begins with.
macro_rules! metrics {
    ($($field:ident: $type:ty = $name:literal, $help:literal, $first:expr;)*) => {
        /// All metrics, cheap to clone.
        #[derive(Clone, Debug)]
        pub struct Metrics {
            registry: Arc<Mutex<Registry>>,
            $($field: $type,)*
            /// The kubelet is not healthy, and its time up to here is counted.
            unhealthy_since: Arc<Mutex<Option<Instant>>>,
        }

        impl Metrics {
            /// Registers them all, so that each is there from the start.
            #[must_use]
            pub fn new() -> Self {
                let mut registry = Registry::default();
                $(
                    let $field: $type = $first;
                    registry.register($name, $help, $field.clone());
                )*
                let build = Gauges::default();
                build.get_or_create(&[("version", env!("CARGO_PKG_VERSION"))]).set(1);
                registry.register("kubelet_supervisor_build_info", "The supervisor's version", build);
                Self { registry: Arc::new(Mutex::new(registry)), $($field,)* unhealthy_since: Arc::default() }
            }
        }
    };
}

metrics! {
    // Native's four. Names, labels and help as in pkg/kubelet/metrics/metrics.go:66-75, v1.20.2.
    assigned: Sources = "kubelet_node_config_assigned",
        "The node's understanding of intended config. The count is always 1", Family::default();
    active: Sources = "kubelet_node_config_active",
        "The config source the node is actively using. The count is always 1", Family::default();
    last_known_good: Sources = "kubelet_node_config_last_known_good",
        "The config source the node will fall back to when it encounters certain errors. The count is always 1", Family::default();
    error: Gauge = "kubelet_node_config_error",
        "True (1) if the node is experiencing a configuration-related error, false (0) otherwise", Gauge::default();

    // Of configurations and the kubelet.
    condition: Family<ConditionLabels, Gauge> = "kubelet_supervisor_condition",
        "The Node's condition KubeletConfigOk, by status and reason. The count is always 1", Family::default();
    restarts: Counters = "kubelet_supervisor_kubelet_restarts",
        "Restarts of the kubelet, by cause",
        begun(Family::default(), "cause", RestartCause::ALL.map(RestartCause::as_str));
    preflights: Counters = "kubelet_supervisor_preflight",
        "Preflights, by result",
        begun(Family::default(), "result", PreflightResult::ALL.map(PreflightResult::as_str));
    preflight_seconds: Histogram = "kubelet_supervisor_preflight_duration_seconds",
        "Time a preflight took", Histogram::new([0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0]);
    rollbacks: Counters = "kubelet_supervisor_rollbacks",
        "Rollbacks to last known good, by reason",
        begun(Family::default(), "reason", Failure::all().map(Failure::label));
    worker: Gauge = "kubelet_supervisor_worker_generation",
        "Which worker of this supervisor answers; 1 is the first, and one more for each replacement", Gauge::default();
    remaining: FloatGauge = "kubelet_supervisor_trial_remaining_seconds",
        "Continuous health still needed to become last known good; 0 outside a trial", FloatGauge::default();
    // From an adoption (milliseconds) to a kubelet that waits two minutes.
    applied: Histogram = "kubelet_supervisor_config_apply_duration_seconds",
        "From seeing a version to its kubelet being ready",
        Histogram::new([0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0]);
    trials: Histograms = "kubelet_supervisor_trial_duration_seconds",
        "Time from the decision to switch to the end of the trial, by result",
        begun(Family::new_with_constructor(trial_seconds), "result", TrialResult::ALL.map(TrialResult::as_str));
    suspensions: Counters = "kubelet_supervisor_suspensions",
        "Times that judgement was suspended because of the node's surroundings, by reason",
        begun(Family::default(), "reason", Suspension::ALL.map(Suspension::label));
    adoptions: PlainCounter = "kubelet_supervisor_adoptions",
        "Sources whose content ran already, taken over without a restart", PlainCounter::default();
    hazards: Counters = "kubelet_supervisor_hazards_refused",
        "Versions refused for a change that is not safe on a live node, by class of hazard",
        begun(Family::default(), "class", counted_classes());
    held: Gauges = "kubelet_supervisor_change_held",
        "1 while an accepted change waits for this, else 0: streams, pressure, pods-lost",
        Family::default();
    unhealthy: PlainCounter<f64, AtomicU64> = "kubelet_supervisor_kubelet_unhealthy_seconds",
        "Time without a kubelet, with one that has not said READY=1, or with bad healthz or overdue WATCHDOG=1, which is \
         observed in trials, and every 15 s where --hung-after is not 0", PlainCounter::default();

    // Of the supervisor, the store and the API server.
    local_files_differ: Gauge = "kubelet_supervisor_local_files_differ",
        "1 if the local files say something else than what the kubelet runs, else 0", Gauge::default();
    store_errors: PlainCounter = "kubelet_supervisor_store_errors",
        "Failed writes of the store", PlainCounter::default();
    requests: Family<RequestLabels, PlainCounter> = "kubelet_supervisor_api_requests",
        "Requests to the API server", Family::default();
    expiration: FloatGauge = "kubelet_supervisor_client_certificate_expiration_timestamp_seconds",
        "When the client certificate expires; 0 if unknown", FloatGauge::default();
    store_requests: Histograms = "kubelet_supervisor_store_request_duration_seconds",
        "Time the store took over a request, without the wait for those before it, by operation",
        begun(Family::new_with_constructor(store_seconds), "operation", StoreOperation::ALL.map(StoreOperation::as_str));
    policy: Gauges = "kubelet_supervisor_policy",
        "The node's policy: absent, in-force, unreadable, or violated by what runs. The count is always 1", Family::default();
    policy_refused: PlainCounter = "kubelet_supervisor_policy_refused",
        "Versions refused by the node's policy", PlainCounter::default();
}

impl Metrics {
    /// Sets the gauges.
    pub fn observe(&self, state: &State) {
        let status = node_status(state);
        for (family, source) in [
            (&self.assigned, &status.assigned),
            (&self.active, &status.active),
            (&self.last_known_good, &status.last_known_good),
        ] {
            family.clear();
            family.get_or_create(&source_labels(source.as_ref())).set(1);
        }
        self.error.set(i64::from(status.error.is_some()));
        let policy = status.policy;
        let (status, reason) = (status.condition.status.as_str(), status.condition.reason.as_str());
        self.condition.clear();
        self.condition.get_or_create(&ConditionLabels { status, reason }).set(1);
        self.local_files_differ.set(i64::from(state.local_files_difference().is_some()));
        let held = state.waiting().map(|waiting| waiting.hold.label());
        for reason in Hold::LABELS {
            self.held.get_or_create(&[("reason", reason)]).set(i64::from(held == Some(reason)));
        }
        self.policy.clear();
        self.policy.get_or_create(&[("state", policy)]).set(1);
        self.worker.set(i64::try_from(state.worker()).unwrap_or_default());
        self.remaining.set(state.trial_remaining().map_or(0.0, |left| left.as_secs_f64()));
        self.count_unhealthy(Some(state.is_kubelet_healthy()), Instant::now());
    }

    /// The time since the last call belongs to what was seen then; what is seen now, if anything, goes for the time from now on.
    /// Time that the machine sleeps is not counted.
    fn count_unhealthy(&self, healthy: Option<bool>, now: Instant) {
        let mut since = self.unhealthy_since.lock();
        let unhealthy = healthy.map_or(since.is_some(), |healthy| !healthy);
        if let Some(since) = *since {
            self.unhealthy.inc_by(now.saturating_duration_since(since).as_secs_f64());
        }
        *since = unhealthy.then_some(now);
    }

    pub(crate) fn count(&self, counter: &Counter) {
        match counter {
            Counter::Restart(cause) => drop(self.restarts.get_or_create(&[("cause", cause.as_str())]).inc()),
            Counter::Preflight(result) => drop(self.preflights.get_or_create(&[("result", result.as_str())]).inc()),
            Counter::Rollback(reason) => drop(self.rollbacks.get_or_create(&[("reason", reason.label())]).inc()),
            Counter::StoreError => drop(self.store_errors.inc()),
            Counter::Suspension(reason) => drop(self.suspensions.get_or_create(&[("reason", reason.label())]).inc()),
            Counter::Adoption => drop(self.adoptions.inc()),
            Counter::PolicyRefused => drop(self.policy_refused.inc()),
            Counter::HazardRefused(class) => drop(self.hazards.get_or_create(&[("class", class.label())]).inc()),
            Counter::Applied(took) => self.applied.observe(took.as_secs_f64()),
            Counter::Trial(result, took) => {
                self.trials.get_or_create(&[("result", result.as_str())]).observe(took.as_secs_f64());
            }
        }
    }

    /// Notes how long the store took over a request.
    pub(crate) fn store_took(&self, operation: StoreOperation, took: Duration) {
        self.store_requests.get_or_create(&[("operation", operation.as_str())]).observe(took.as_secs_f64());
    }

    /// Counts a request to the API server.
    pub fn request(&self, verb: &'static str, code: &str) {
        self.requests.get_or_create(&RequestLabels { verb, code: code.to_owned() }).inc();
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
        exposition::text::open_metrics(&self.registry.lock())
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

fn source_labels(source: Option<&Source>) -> SourceLabels {
    match source {
        None => SourceLabels { node_config_source: "local".to_owned(), ..SourceLabels::default() },
        Some(source) => SourceLabels {
            node_config_source: source.api_path(),
            node_config_uid: source.uid.clone(),
            node_config_resource_version: source.resource_version.clone(),
            node_config_kubelet_key: source.reference.kubelet_config_key.clone(),
        },
    }
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
