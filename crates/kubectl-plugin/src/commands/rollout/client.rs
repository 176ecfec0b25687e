//! The API server, as one rollout uses it.

use std::future::Future;

use kube::core::request::Request as Path;

use crate::Context;
use crate::api::client::{Client, RetryPolicy};
use crate::commands::rollout::lock_timing::LockTiming;

/// It is asked for as long as it takes to recover, up to ten minutes: then the client ends, and the rollout stands where
/// it is.
#[derive(Clone)]
pub(crate) struct RolloutClient {
    pub(crate) api: Client,
    /// Of the records.
    pub(crate) namespace: String,
    pub(crate) lock_timing: LockTiming,
}

impl RolloutClient {
    /// `records`: the namespace of the records, if it is not that of the ConfigMaps.
    pub(crate) fn new(context: &Context, records: Option<String>) -> Self {
        let Context { client, namespace, lock_timing, .. } = context;
        Self {
            api: Client::new(client.clone(), namespace, RetryPolicy::long(lock_timing.answer_timeout)),
            namespace: records.unwrap_or_else(|| namespace.clone()),
            lock_timing: *lock_timing,
        }
    }

    pub(crate) fn config_maps(&self) -> Path {
        Path::new(format!("/api/v1/namespaces/{}/configmaps", self.namespace))
    }

    /// None: it took longer than one answer may.
    pub(crate) async fn in_time<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        tokio::time::timeout(self.lock_timing.answer_timeout, future).await.ok()
    }
}
