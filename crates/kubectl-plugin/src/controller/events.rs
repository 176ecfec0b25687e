//! Events on pools: one whenever a pool comes to be somewhere else.

use jiff::Timestamp;
use kube::api::PostParams;
use kube::core::request::Request as Path;
use kube::{Resource as _, ResourceExt as _};
use serde_json::json;

use crate::Failure;
use crate::api::client::Client;
use crate::fleet::pool::progress::condition;
use crate::fleet::pool::types::{KubeletConfigPool, KubeletConfigPoolStatus};
use crate::output;
use kubelet_config::reported;

/// Tells what is new in the status that was written, if the pool's state is another one. What cannot be told is lost: the
/// status has it.
///
/// In core/v1: of an object without a namespace API server 1.20.2 takes no event of `events.k8s.io` in `default`, which is where
/// kubectl looks for it.
pub(super) async fn tell(client: &Client, former: &KubeletConfigPool, status: &KubeletConfigPoolStatus) {
    let Some(ready) = condition(status, "Ready") else { return };
    let before = former.status.as_ref().and_then(|status| condition(status, "Ready"));
    if before.is_some_and(|before| before.reason == ready.reason) {
        return;
    }
    let is_stalled = condition(status, "Stalled").is_some_and(|stalled| stalled.status == "True");
    let now = Timestamp::now();
    let time = now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let event = json!({
        "apiVersion": "v1", "kind": "Event",
        "metadata": {"name": format!("{}.{:x}", former.name_any(), now.as_nanosecond()), "namespace": "default"},
        "involvedObject": former.object_ref(&()),
        "type": if is_stalled { "Warning" } else { "Normal" },
        "reason": ready.reason,
        "message": reported::bounded(&ready.message, NOTE_MAX),
        "source": {"component": client.manager},
        "firstTimestamp": time, "lastTimestamp": time, "count": 1,
    });
    let events = Path::new("/api/v1/namespaces/default/events");
    let request = events.create(&PostParams::default(), event.to_string().into_bytes());
    if let Err(error) = client.request("create events in namespace default", request).await {
        output::note(&format!("warning: the event {}: {}", ready.reason, Failure::from(error).message));
    }
}

/// Bytes of an event's message that an API server takes (pkg/apis/core/validation/events.go, v1.20.2: 1024).
const NOTE_MAX: usize = 1024;
