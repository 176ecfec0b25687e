//! The API server, as one rollout uses it.

use std::future::Future;

use kube::core::request::Request as Path;

use crate::Context;
use crate::api::client::{Client, Patience};
use crate::api::pace::Pace;

/// It is asked for as long as it takes to recover, up to ten minutes: then the client ends, and the rollout stands where
/// it is.
#[derive(Clone)]
pub(crate) struct RolloutClient {
    pub(crate) api: Client,
    pub(crate) pace: Pace,
}

impl RolloutClient {
    pub(crate) fn new(context: &Context) -> Self {
        let Context { client, namespace, pace, .. } = context;
        Self { api: Client::new(client.clone(), namespace, Patience::long(pace.answer)), pace: *pace }
    }

    /// The collection.
    pub(crate) fn config_maps(&self) -> Path {
        Path::new(format!("/api/v1/namespaces/{}/configmaps", self.api.namespace))
    }

    /// None: it took longer than one answer may.
    pub(crate) async fn in_time<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        tokio::time::timeout(self.pace.answer, future).await.ok()
    }
}
