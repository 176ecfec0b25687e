//! The controller of pools: what is to be written is decided in [`crate::fleet::pool`], one replica at a time carries it out.

mod cordons;
mod crd;
mod drains;
mod events;
mod leader_elector;
mod metrics;
mod nodes;
mod reconcile;
mod static_pods;

use std::sync::Arc;

use futures_util::StreamExt as _;
use kube::Api;
use kube::runtime::controller::{Config, Controller, Error};
use kube::runtime::{WatchStreamExt as _, watcher};
use parking_lot::Mutex;
use tokio::net::TcpListener;

use crate::Failure;
use crate::api::client::Client;
use crate::clock::Clock;
use crate::fleet::pool::types::KubeletConfigPool;
use crate::output;
pub use crd::crd;
use drains::Drains;
use leader_elector::{LeaderElector, LeadershipGuard};
use metrics::Metrics;
use nodes::NodeStore;
use reconcile::{Memory, Reconciler};

/// Acts whenever it holds the Lease, until `stop`. `listener`: where it shows how it is.
///
/// # Errors
/// A right that is missing.
pub(crate) async fn run(
    client: &Client,
    listener: Option<TcpListener>,
    stop: impl Future<Output = ()>,
) -> Result<(), Failure> {
    let mut elector = LeaderElector::new(client);
    let metrics = Metrics::new(elector.guard());
    let serve = async {
        match listener {
            Some(listener) => metrics.serve(listener).await,
            None => std::future::pending().await,
        }
    };
    let result = tokio::select! {
        result = lead(client, &mut elector, &metrics) => result,
        () = serve => Err(Failure::new("the metrics listener ended")),
        () = stop => Ok(()),
    };
    elector.release().await;
    result
}

async fn lead(client: &Client, elector: &mut LeaderElector, metrics: &Metrics) -> Result<(), Failure> {
    loop {
        elector.acquire().await?;
        let guard = elector.guard();
        tokio::select! {
            result = elector.renew() => {
                result?;
                metrics.follow(None);
            }
            failure = reconcile_all(client, guard, metrics) => return Err(failure),
        }
    }
}

/// Ends with a failure only.
async fn reconcile_all(client: &Client, guard: LeadershipGuard, metrics: &Metrics) -> Failure {
    let (store, mut reflector) = NodeStore::follow(client);
    if let Err(failure) = reflector.wait_for_sync().await {
        return failure;
    }
    let pools: Api<KubeletConfigPool> = Api::all(client.kube.clone());
    // Where a node belongs to two pools, what one says concerns the other.
    let others = watcher(pools.clone(), watcher::Config::default()).default_backoff().touched_objects();
    let drains = Drains::new(client, &store, &guard);
    let changes = futures_util::stream::select(store.changes(), others.map(|_| ()));
    let changes = futures_util::stream::select(changes, drains.changes());
    let controller = Controller::new(pools, watcher::Config::default())
        // One at a time: what one pool sends, the next one counts.
        .with_config(Config::default().concurrency(1))
        .reconcile_all_on(changes);
    metrics.follow(Some(controller.store()));
    let pools = controller.store();
    let orphaned = cordons::end_orphaned(client, &store, &pools, &guard);
    let reconciler = Arc::new(Reconciler {
        client: client.clone(),
        nodes: store.clone(),
        pools: pools.clone(),
        guard: guard.clone(),
        drains,
        clock: Clock::new(),
        memory: Mutex::new(Memory::default()),
    });
    let mut told = String::new();
    let results = controller.run(reconcile::reconcile, reconcile::on_error, reconciler).for_each(|result| {
        match &result {
            Ok(_) => metrics.reconciled(true),
            Err(Error::ReconcilerFailed(..)) => metrics.reconciled(false),
            Err(_) => {}
        }
        let message = match result {
            Err(Error::ReconcilerFailed(error, pool)) => format!("pool {}: {}", pool.name, error.message),
            Err(Error::QueueError(error)) => format!("pools cannot be followed: {error}; if there is no such resource, create packaging/manifests/pools/crd.yaml"),
            Ok(_) | Err(_) => String::new(),
        };
        if !message.is_empty() && message != told {
            output::note(&format!("warning: {message}"));
        }
        told = message;
        std::future::ready(())
    });
    tokio::select! {
        () = results => Failure::new("the controller's work has ended: a bug; it is to be started again"),
        failure = reflector.run() => failure,
        () = orphaned => Failure::new("the controller's care for cordons has ended: a bug; it is to be started again"),
    }
}
