//! Single requests: the status, an event, the Lease, the pods, a ConfigMap.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Event as CoreEvent, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::Value;
use tokio::time::{Instant, timeout};

use super::client_layer::ClientSignals;
use super::types::{ConfigMapView, LeaseView, NodeView, PodView};
use super::{decode, watch};
use crate::machine::FetchError;
use crate::machine::evidence::LeaseObservation;
use crate::machine::history::HistoryEntry;
use kubelet_config::pods::{NodeSummary, PodInventory};
use kubelet_config::reported;
use kubelet_config::source::{ConfigMapRef, Payload};

/// A query that takes longer has failed: it is one sample of several.
const QUERY_TIMEOUT: Duration = Duration::from_secs(5);

/// Where kubelets keep their Leases (NamespaceNodeLease, k8s.io/api/core/v1 types.go, v1.20.2).
const LEASES: &str = "kube-node-lease";

/// PATCH only: a PUT would erase fields this build does not know.
///
/// A strategic merge, as the kubelet's own: of the conditions only ours is named, so that neither
/// undoes what the other says.
pub(super) async fn patch_status(client: Client, name: String, patch: Value) -> kube::Result<NodeView> {
    let api: Api<NodeView> = Api::all(client);
    api.patch_status(&name, &PatchParams::default(), &Patch::Strategic(patch)).await
}

pub(super) async fn post_event(client: Client, node: String, event: HistoryEntry) -> kube::Result<()> {
    let api: Api<CoreEvent> = Api::namespaced(client, "default");
    match api.create(&PostParams::default(), &core_event(&node, &event)).await {
        // It was sent before and the answer got lost.
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        result => result.map(drop),
    }
}

/// Gets the own Lease, with the kubelet's own credentials: a question to the API server too.
pub(super) async fn observe_lease(client: Client, signals: &ClientSignals, node: String) -> LeaseObservation {
    let api: Api<LeaseView> = Api::namespaced(client, LEASES);
    let held_until = signals.held_until();
    if held_until.is_some_and(|until| until > Instant::now() + QUERY_TIMEOUT) {
        return LeaseObservation::HeldBack;
    }
    match timeout(QUERY_TIMEOUT, api.get(&node)).await {
        Ok(result) => decode::lease_observation(result),
        Err(_) if held_until.or(signals.held_until()).is_some() => LeaseObservation::HeldBack,
        Err(_) => LeaseObservation::Unreachable(format!("no answer within {} s", QUERY_TIMEOUT.as_secs())),
    }
}

/// Lists the pods of this node as its kubelet does: a node's credentials may with this selector,
/// and version 0 is served from the API server's cache.
pub(super) async fn observe_pods(client: Client, name: String, node: NodeSummary) -> Option<PodInventory> {
    let api: Api<PodView> = Api::all(client);
    let params = ListParams { resource_version: Some("0".to_owned()), ..ListParams::default() }
        .fields(&format!("spec.nodeName={name}"));
    let pods = match timeout(QUERY_TIMEOUT, api.list(&params)).await {
        Ok(Ok(pods)) => pods,
        Ok(Err(error)) => {
            tracing::debug!("the pods cannot be listed: {}", reported::error_chain(&error));
            return None;
        }
        Err(_) => return None,
    };
    Some(PodInventory { pods: pods.items.into_iter().map(decode::pod_summary).collect(), node })
}

/// Gets a ConfigMap as it is now. Nothing that a ConfigMap cannot be is given.
pub(super) async fn fetch(
    client: Client,
    signals: &ClientSignals,
    reference: ConfigMapRef,
) -> Result<Arc<Payload>, FetchError> {
    let api: Api<ConfigMapView> = Api::namespaced(client, &reference.namespace);
    let failed = |code, why| Err(decode::config_map_error(&reference, code, why));
    match timeout(QUERY_TIMEOUT, api.get(&reference.name)).await {
        Ok(Ok(map)) => match watch::other(&api, &reference.name, &map).or_else(|| decode::fault_of(&map)) {
            Some(why) => Err(FetchError { why, definite: true }),
            None => Ok(Arc::new(decode::payload(map))),
        },
        Ok(Err(kube::Error::Api(status))) if status.code == 404 => failed(Some(404), String::new()),
        Ok(Err(kube::Error::Api(status))) if status.code == 403 => failed(Some(403), reported::text(&status.message)),
        Ok(Err(error)) => failed(None, reported::error_chain(&error)),
        Err(_) if signals.held_until().is_some() => {
            failed(None, "the API server has asked to wait (Retry-After)".to_owned())
        }
        Err(_) => failed(None, format!("no answer within {} s", QUERY_TIMEOUT.as_secs())),
    }
}

/// Native's shape (configsync.go:234-266, v1.20.2): core/v1, because a node may not write the
/// newer kind; the involved Node's uid is its name.
fn core_event(node: &str, event: &HistoryEntry) -> CoreEvent {
    let nanos = event.nanos;
    let time = jiff::Timestamp::from_nanosecond(i128::from(nanos)).ok().map(Time);
    CoreEvent {
        metadata: ObjectMeta {
            name: Some(format!("{node}.{nanos:x}")),
            namespace: Some("default".to_owned()),
            ..ObjectMeta::default()
        },
        involved_object: ObjectReference {
            kind: Some("Node".to_owned()),
            name: Some(node.to_owned()),
            uid: Some(node.to_owned()),
            ..ObjectReference::default()
        },
        reason: Some(event.reason.clone()),
        message: Some(event.message.clone()),
        type_: Some(if event.warning { "Warning" } else { "Normal" }.to_owned()),
        count: Some(1),
        first_timestamp: time.clone(),
        last_timestamp: time,
        source: Some(EventSource { component: Some("kubelet".to_owned()), host: Some(node.to_owned()) }),
        ..CoreEvent::default()
    }
}
