//! `--metrics-bind-address`: what the controller does, and how the pools are, for scrapers and probes.

use std::sync::Arc;
use std::time::Duration;

use exposition::http::Readiness;
use exposition::slots::Slots;
use kube::ResourceExt as _;
use kube::runtime::reflector::Store;
use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;

use super::leader_elector::LeadershipGuard;
use crate::fleet::pool::types::{KubeletConfigPool, KubeletConfigPoolStatus};

/// Names and values of a metric's labels.
type Labels<const N: usize, V = String> = [(&'static str, V); N];

const SUCCESS: Labels<1, &str> = [("result", "success")];
const ERROR: Labels<1, &str> = [("result", "error")];

/// A replica that hears nothing of the Lease for so long can do nothing, leader or not.
const LEASE_UNHEARD: Duration = Duration::from_secs(30);
/// More than a scraper and probes need.
const CONNECTIONS: usize = 16;

/// All metrics, cheap to clone.
#[derive(Clone)]
pub(super) struct Metrics {
    registry: Arc<Mutex<Registry>>,
    guard: LeadershipGuard,
    leader: Gauge,
    reconciliations: Family<Labels<1, &'static str>, Counter>,
    nodes: [Family<Labels<1>, Gauge>; NODES.len()],
    condition: Family<Labels<3>, Gauge>,
    /// As the leader follows them: others know of none.
    pools: Arc<Mutex<Option<Store<KubeletConfigPool>>>>,
}

type Count = fn(&KubeletConfigPoolStatus) -> u32;

/// Nodes of a pool: the metric, its help, and what it is in the status.
const NODES: [(&str, &str, Count); 6] = [
    ("pool_nodes", "Nodes that the pool selects", |status| status.nodes),
    ("pool_nodes_updated", "Nodes of the pool that are assigned its update revision", |status| status.updated),
    ("pool_nodes_proven", "Nodes of the pool whose last known good is its update revision", |status| status.proven),
    ("pool_nodes_updating", "Nodes of the pool that have not finished what they are assigned", |status| {
        status.updating
    }),
    ("pool_nodes_unavailable", "Nodes of the pool that are not Ready, cordoned for it, or updating", |status| {
        status.unavailable
    }),
    ("pool_nodes_failed", "Nodes of the pool that refused its update revision or went back", |status| status.failed),
];

impl Metrics {
    pub(super) fn new(guard: LeadershipGuard) -> Self {
        let (leader, reconciliations) = (Gauge::default(), Family::<Labels<1, &'static str>, Counter>::default());
        let (nodes, condition) = (std::array::from_fn(|_| Family::default()), Family::default());
        let mut registry = Registry::default();
        let own = registry.sub_registry_with_prefix("kubelet_config");
        own.register("controller_leader", "1 in the replica that holds the Lease, 0 in others", leader.clone());
        own.register("controller_reconciliations", "Reconciliations of pools, by result", reconciliations.clone());
        for result in [SUCCESS, ERROR] {
            // An alert on a rise needs the zero before it.
            let _ = reconciliations.get_or_create(&result);
        }
        for ((name, help, _), family) in NODES.iter().zip(&nodes) {
            own.register(*name, *help, Family::clone(family));
        }
        own.register("pool_condition", "Conditions of the pool: 1 for True, 0 for others", condition.clone());
        let registry = Arc::new(Mutex::new(registry));
        Self { registry, guard, leader, reconciliations, nodes, condition, pools: Arc::default() }
    }

    /// From now on it follows these pools; none: it follows none any more.
    pub(super) fn follow(&self, pools: Option<Store<KubeletConfigPool>>) {
        *self.pools.lock() = pools;
    }

    pub(super) fn reconciled(&self, is_ok: bool) {
        self.reconciliations.get_or_create(if is_ok { &SUCCESS } else { &ERROR }).inc();
    }

    /// To whoever asks, for ever.
    pub(super) async fn serve(&self, listener: TcpListener) {
        let slots = Slots::new(CONNECTIONS);
        let connection = |stream, peer| {
            let metrics = self.clone();
            exposition::http::serve(stream, Some(peer), &slots, move |request| {
                let metrics = metrics.clone();
                async move { exposition::http::answer(&request, &metrics.readiness(), || metrics.open_metrics()) }
            });
        };
        exposition::http::accept(listener, connection).await;
    }

    fn readiness(&self) -> Readiness {
        let is_ready = self.guard.answered_within(LEASE_UNHEARD);
        let summary = match (is_ready, self.guard.is_leader()) {
            (false, _) => "the API server does not answer for the Lease",
            (true, true) => "holds the Lease",
            (true, false) => "waits for the Lease",
        };
        Readiness { is_ready, summary: summary.to_owned() }
    }

    fn open_metrics(&self) -> String {
        let is_leader = self.guard.is_leader();
        self.leader.set(i64::from(is_leader));
        let store = self.pools.lock().clone();
        let pools = store.filter(|_| is_leader).map(|store| store.state()).unwrap_or_default();
        self.observe(pools.iter().map(|pool| (pool.name_any(), pool.status.as_ref())));
        exposition::text::open_metrics(&self.registry.lock())
    }

    /// One that was deleted is gone from what is scraped.
    fn observe<'a>(&self, pools: impl Iterator<Item = (String, Option<&'a KubeletConfigPoolStatus>)>) {
        self.nodes.iter().for_each(Family::clear);
        self.condition.clear();
        for (pool, status) in pools {
            let Some(status) = status else { continue };
            for it in &status.conditions {
                let (condition, reason) = (it.type_.clone(), it.reason.clone());
                let labels = [("pool", pool.clone()), ("condition", condition), ("reason", reason)];
                self.condition.get_or_create(&labels).set(i64::from(it.status == "True"));
            }
            let pool = [("pool", pool)];
            for ((_, _, count), family) in NODES.iter().zip(&self.nodes) {
                family.get_or_create(&pool).set(count(status).into());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pool_is_shown_as_its_status_says_and_not_when_it_is_gone() {
        let metrics = Metrics::new(LeadershipGuard::default());
        let status = json!({"nodes": 6, "updated": 5, "proven": 4, "updating": 1, "unavailable": 2, "failed": 3, "conditions": [
            {"type": "Stalled", "status": "True", "observedGeneration": 1, "lastTransitionTime": "", "reason": "FailuresExceeded", "message": ""},
            {"type": "Ready", "status": "False", "observedGeneration": 1, "lastTransitionTime": "", "reason": "FailuresExceeded", "message": ""}]});
        let status: KubeletConfigPoolStatus = serde_json::from_value(status).unwrap();
        metrics.observe([("a".to_owned(), Some(&status)), ("new".to_owned(), None)].into_iter());
        let text = exposition::text::open_metrics(&metrics.registry.lock());
        for line in [
            "kubelet_config_pool_nodes{pool=\"a\"} 6",
            "kubelet_config_pool_nodes_updated{pool=\"a\"} 5",
            "kubelet_config_pool_nodes_proven{pool=\"a\"} 4",
            "kubelet_config_pool_nodes_updating{pool=\"a\"} 1",
            "kubelet_config_pool_nodes_unavailable{pool=\"a\"} 2",
            "kubelet_config_pool_nodes_failed{pool=\"a\"} 3",
            "kubelet_config_pool_condition{pool=\"a\",condition=\"Stalled\",reason=\"FailuresExceeded\"} 1",
            "kubelet_config_pool_condition{pool=\"a\",condition=\"Ready\",reason=\"FailuresExceeded\"} 0",
            "kubelet_config_controller_reconciliations_total{result=\"error\"} 0",
        ] {
            assert!(text.lines().any(|it| it == line), "{line}\n{text}");
        }
        let text = metrics.open_metrics();
        assert!(!text.contains("pool=") && text.contains("kubelet_config_controller_leader 0\n"), "{text}");
    }
}
