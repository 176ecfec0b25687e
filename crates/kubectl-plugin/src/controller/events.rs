//! Events on pools: one whenever a pool comes to be somewhere else.

use std::time::Duration;

use kube::Resource as _;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};

use crate::api::client::Client;
use crate::fleet::pool::progress::condition;
use crate::fleet::pool::types::{KubeletConfigPool, KubeletConfigPoolStatus};
use crate::output;
use kubelet_config::reported;

/// Tells what happened to pools; an answer is waited for so long.
pub(super) struct EventRecorder(Recorder, Duration);

impl EventRecorder {
    pub(super) fn new(client: &Client, controller: &str) -> Self {
        let reporter = Reporter { controller: controller.to_owned(), instance: None };
        Self(Recorder::new(client.streaming().clone(), reporter), client.retry_policy.answer)
    }

    /// What is new in the status that was written, if the pool's state is another one. One that cannot be told is lost:
    /// the status has it.
    pub(super) async fn tell(&self, former: &KubeletConfigPool, status: &KubeletConfigPoolStatus) {
        let Some(ready) = condition(status, "Ready") else { return };
        let before = former.status.as_ref().and_then(|status| condition(status, "Ready"));
        if before.is_some_and(|before| before.reason == ready.reason) {
            return;
        }
        let is_stalled = condition(status, "Stalled").is_some_and(|stalled| stalled.status == "True");
        let event = Event {
            type_: if is_stalled { EventType::Warning } else { EventType::Normal },
            reason: ready.reason.clone(),
            note: Some(reported::bounded(&ready.message, NOTE_MAX)),
            action: "Reconcile".to_owned(),
            secondary: None,
        };
        let reference = former.object_ref(&());
        let written = tokio::time::timeout(self.1, self.0.publish(&event, &reference)).await;
        let why = match written {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error.to_string(),
            Err(_) => "no answer".to_owned(),
        };
        output::note(&format!("warning: the event {} cannot be written: {why}", event.reason));
    }
}

/// Bytes of an event's note that an API server takes (pkg/apis/core/validation/events.go, v1.20.2: 1024).
const NOTE_MAX: usize = 1024;
