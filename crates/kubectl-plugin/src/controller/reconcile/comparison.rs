//! The Pods of Nodes that are compared. They are listed Node by Node, some at a time, and not watched: those of a whole cluster
//! would be too many.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use jiff::Timestamp;
use kube::ResourceExt as _;
use serde_json::Value;
use tokio::time::Instant;

use super::{Reconciler, lock};
use crate::Failure;
use crate::api::client::ApiError;
use crate::api::list::{Pager, Selector};
use crate::fleet::pool::comparison::{OBSERVE_EVERY, PodObservation};
use crate::fleet::pool::signals::{Signal, of_pod};
use crate::fleet::pool::types::KubeletConfigPool;
use crate::fleet::pool::types::comparison::CanaryComparison;
use crate::output;

/// Nodes whose Pods are being listed.
const AT_ONCE: usize = 10;

impl Reconciler {
    /// Lists the Pods, if the pool has a comparison under way and that is due. False: that failed, and is to be tried again.
    pub(super) async fn observe_compared(&self, pool: &KubeletConfigPool) -> bool {
        let (uid, now) = (pool.uid().unwrap_or_default(), self.clock.now());
        let status = pool.status.as_ref();
        let compared = status.and_then(|status| status.comparison.as_ref()).filter(|it| it.is_open());
        let Some(comparison) = compared.filter(|_| pool.spec.rollout.compare.is_some()) else {
            lock(&self.observations).remove(&uid);
            return true;
        };
        let Some(started) = comparison.started().filter(|started| now >= *started) else { return true };
        let is_recent = |(observed, at): &(PodObservation, Instant)| {
            observed.started == comparison.started && at.elapsed() < OBSERVE_EVERY
        };
        if lock(&self.observations).get(&uid).is_some_and(is_recent) {
            return true;
        }
        let seen = match self.signals_of_pods(comparison, started).await {
            // An API server in trouble says nothing of the rights: what was seen before stands, until the next time.
            Err(error) if error.code() != 403 => {
                output::note(&format!("warning: {}", Failure::from(error).message));
                return false;
            }
            seen => seen.map_err(|error| Failure::from(error).message),
        };
        let observed = PodObservation { started: comparison.started.clone(), at: now, seen };
        lock(&self.observations).insert(uid, (observed, Instant::now()));
        true
    }

    /// By Node, of those whose Pods had trouble since then.
    async fn signals_of_pods(
        &self,
        comparison: &CanaryComparison,
        since: Timestamp,
    ) -> Result<BTreeMap<String, BTreeSet<Signal>>, ApiError> {
        let names: Vec<String> = comparison.nodes.iter().map(|node| node.name.clone()).collect();
        let lists = names.into_iter().map(|node| async move {
            let selector = Selector::fields(format!("spec.nodeName={node}"));
            let read = |pod: &Value| Ok::<_, ApiError>(Some(of_pod(pod, since)));
            let (pods, _) = Pager::new(&self.client, "/api/v1/pods", "list pods", &selector).all(read).await?;
            Ok((node, pods.into_iter().flatten().collect()))
        });
        let mut signals: BTreeMap<String, BTreeSet<Signal>> =
            stream::iter(lists).buffer_unordered(AT_ONCE).try_collect().await?;
        signals.retain(|_, signals| !signals.is_empty());
        Ok(signals)
    }
}
