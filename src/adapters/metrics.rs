//! Metrics: native's four, and our own.

use crate::machine::status::node_status;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter as PlainCounter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::machine::evidence::Failure;
use crate::machine::model::{PreflightResult, RestartCause};
use crate::machine::{Counter, State};
use kubelet_config::source::Source;

type Labels = Vec<(String, String)>;
type FloatGauge = Gauge<f64, AtomicU64>;

/// All metrics, cheap to clone.
#[derive(Clone, Debug)]
pub struct Metrics {
    registry: Arc<Mutex<Registry>>,
    configs: [Family<Labels, Gauge>; 3],
    error: Gauge,
    condition: Family<Labels, Gauge>,
    reload_failed: Gauge,
    restarts: Family<Labels, PlainCounter>,
    preflights: Family<Labels, PlainCounter>,
    rollbacks: Family<Labels, PlainCounter>,
    remaining: FloatGauge,
    applied: Histogram,
    preflight_seconds: Histogram,
    store_errors: PlainCounter,
    requests: Family<Labels, PlainCounter>,
    expiration: FloatGauge,
}

fn label(name: &str, value: &str) -> (String, String) {
    (name.to_owned(), value.to_owned())
}

impl Metrics {
    /// Registers them all, so that each is there from the start.
    #[must_use]
    pub fn new() -> Self {
        let mut registry = Registry::default();
        let configs: [Family<Labels, Gauge>; 3] = Default::default();
        // Names, labels and help as in pkg/kubelet/metrics/metrics.go:66-75, v1.20.2.
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

        let own = registry.sub_registry_with_prefix("kubelet_supervisor");
        let metrics = Self {
            registry: Arc::default(),
            configs,
            error,
            condition: Family::default(),
            reload_failed: Gauge::default(),
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
        };
        own.register(
            "condition",
            "The Node's condition KubeletConfigOk, by status and reason. The count is always 1",
            metrics.condition.clone(),
        );
        own.register(
            "reload_failed",
            "True (1) if the latest reload was refused and the old supervisor stayed, false (0) otherwise",
            metrics.reload_failed.clone(),
        );
        own.register("kubelet_restarts", "Restarts of the kubelet, by cause", metrics.restarts.clone());
        own.register("preflight", "Preflights, by result", metrics.preflights.clone());
        own.register("preflight_duration_seconds", "Time a preflight took", metrics.preflight_seconds.clone());
        own.register("rollbacks", "Rollbacks to last known good, by reason", metrics.rollbacks.clone());
        own.register(
            "trial_remaining_seconds",
            "Continuous health still needed to become last known good; 0 outside a trial",
            metrics.remaining.clone(),
        );
        own.register(
            "config_apply_duration_seconds",
            "From seeing a version to its kubelet being ready",
            metrics.applied.clone(),
        );
        own.register("store_errors", "Failed writes of the store", metrics.store_errors.clone());
        own.register("api_requests", "Requests to the API server", metrics.requests.clone());
        own.register(
            "client_certificate_expiration_timestamp_seconds",
            "When the client certificate expires; 0 if unknown",
            metrics.expiration.clone(),
        );
        // Known label values are there from the start: an alert on a rise needs the zero before it.
        for cause in RestartCause::ALL {
            let _ = metrics.restarts.get_or_create(&vec![label("cause", cause.as_str())]);
        }
        for failure in Failure::all() {
            let _ = metrics.rollbacks.get_or_create(&vec![label("reason", failure.label())]);
        }
        for result in PreflightResult::ALL {
            let _ = metrics.preflights.get_or_create(&vec![label("result", result.as_str())]);
        }
        let build: Family<Labels, Gauge> = Family::default();
        build.get_or_create(&vec![label("version", env!("CARGO_PKG_VERSION"))]).set(1);
        own.register("build_info", "The supervisor's version", build);
        Self { registry: Arc::new(Mutex::new(registry)), ..metrics }
    }

    /// Sets the gauges.
    pub fn observe(&self, state: &State) {
        let status = node_status(state);
        for (family, source) in self.configs.iter().zip([&status.assigned, &status.active, &status.last_known_good]) {
            family.clear();
            family.get_or_create(&source_labels(source.as_ref())).set(1);
        }
        self.error.set(i64::from(status.error.is_some()));
        let said =
            vec![label("status", status.condition.status.as_str()), label("reason", status.condition.reason.as_str())];
        self.condition.clear();
        self.condition.get_or_create(&said).set(1);
        self.reload_failed.set(i64::from(state.reload().error.is_some()));
        self.remaining.set(state.trial_remaining().map_or(0.0, |left| left.as_secs_f64()));
    }

    pub(crate) fn count(&self, counter: &Counter) {
        match counter {
            Counter::Restart(cause) => self.restarts.get_or_create(&vec![label("cause", cause.as_str())]).inc(),
            Counter::Preflight(result) => self.preflights.get_or_create(&vec![label("result", result.as_str())]).inc(),
            Counter::Rollback(reason) => self.rollbacks.get_or_create(&vec![label("reason", reason.label())]).inc(),
            Counter::StoreError => self.store_errors.inc(),
            Counter::Applied(took) => {
                self.applied.observe(took.as_secs_f64());
                0
            }
        };
    }

    /// Counts a request to the API server.
    pub fn request(&self, verb: &str, code: &str) {
        self.requests.get_or_create(&vec![label("verb", verb), label("code", code)]).inc();
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
    pub fn text(&self) -> String {
        let mut text = String::new();
        if let Ok(registry) = self.registry.lock() {
            let _ = encode(&mut text, &registry);
        }
        text
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
    vec![
        label("node_config_source", &path),
        label("node_config_uid", uid),
        label("node_config_resource_version", version),
        label("node_config_kubelet_key", key),
    ]
}
