//! The controller of pools: what is to be written is decided in [`crate::fleet::pool`], one replica at a time carries it out.

mod crd;
mod leadership;
mod nodes;
mod reconcile;

use std::sync::Arc;

use futures_util::StreamExt as _;
use kube::Api;
use kube::runtime::controller::{Config, Controller, Error};
use kube::runtime::watcher;

use crate::Failure;
use crate::api::client::Client;
use crate::fleet::pool::types::KubeletConfigPool;
use crate::output;
pub use crd::crd;
use leadership::Leadership;
use nodes::NodeStore;
use reconcile::Reconciler;

/// Acts whenever it holds the Lease, until `stop`.
///
/// # Errors
/// A right that is missing.
pub(crate) async fn run(client: &Client, stop: impl Future<Output = ()>) -> Result<(), Failure> {
    let mut leadership = Leadership::new(client);
    let result = tokio::select! {
        result = lead(client, &mut leadership) => result,
        () = stop => Ok(()),
    };
    leadership.release().await;
    result
}

async fn lead(client: &Client, leadership: &mut Leadership) -> Result<(), Failure> {
    loop {
        leadership.acquire().await?;
        eprintln!("{} holds the Lease {}", leadership.identity(), leadership::LEASE);
        let term = leadership.term();
        tokio::select! {
            result = leadership.keep() => {
                result?;
                eprintln!("the Lease {} is lost", leadership::LEASE);
            }
            failure = reconcile_all(client, term) => return Err(failure),
        }
    }
}

/// Ends with a failure only.
async fn reconcile_all(client: &Client, term: leadership::Term) -> Failure {
    let (store, mut pump) = NodeStore::follow(client);
    if let Err(failure) = pump.until_known().await {
        return failure;
    }
    let pools: Api<KubeletConfigPool> = Api::all(client.streaming().clone());
    let changes = store.changes();
    let controller = Controller::new(pools, watcher::Config::default())
        // One at a time: what one pool sends, the next one counts.
        .with_config(Config::default().concurrency(1))
        .reconcile_all_on(changes);
    let reconciler = Arc::new(Reconciler::new(client.clone(), store, controller.store(), term));
    let mut told = String::new();
    let results = controller.run(reconcile::reconcile, reconcile::on_error, reconciler).for_each(|result| {
        let message = match result {
            Err(Error::ReconcilerFailed(error, pool)) => format!("pool {}: {}", pool.name, error.message()),
            Err(Error::QueueError(error)) => {
                format!("pools cannot be followed: {error}; packaging/manifests/pools has their CRD")
            }
            Ok(_) | Err(_) => String::new(),
        };
        if !message.is_empty() && message != told {
            eprintln!("warning: {}", output::plain(&message));
        }
        told = message;
        std::future::ready(())
    });
    tokio::select! {
        () = results => Failure::new("the controller ended"),
        failure = pump.run() => failure,
    }
}
