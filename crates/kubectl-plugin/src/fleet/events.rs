//! What events say of a node's configuration.

use serde_json::{Value, json};

use kubelet_config::reported::{self, MAX_EVENT, bounded};

/// Reasons of such events begin with this, native's too.
const PREFIX: &str = "KubeletConfig";

/// A restart that is no configuration's doing, which whoever reads them wants to know.
const HUNG: &str = "KubeletHung";

/// One kind of event, as often as it happened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ConfigEvent {
    /// The last time, RFC 3339.
    pub(crate) last: String,
    pub(crate) first: String,
    pub(crate) count: u64,
    /// Warning instead of Normal.
    pub(crate) warning: bool,
    pub(crate) reason: String,
    pub(crate) message: String,
}

impl ConfigEvent {
    /// An Event, core/v1's fields or those of events.k8s.io; none if it is about something else.
    pub(crate) fn from_event(event: &Value) -> Option<Self> {
        let text = |pointer: &str| event.pointer(pointer).and_then(Value::as_str).filter(|text| !text.is_empty());
        let number = |pointer: &str| event.pointer(pointer).and_then(Value::as_u64);
        let reason = text("/reason")?;
        if !reason.starts_with(PREFIX) && reason != HUNG {
            return None;
        }
        let once = text("/eventTime").or(text("/metadata/creationTimestamp")).unwrap_or_default();
        let first = text("/firstTimestamp").unwrap_or(once);
        let last = text("/series/lastObservedTime").or(text("/lastTimestamp")).unwrap_or(first);
        Some(Self {
            last: reported::text(last),
            first: reported::text(first),
            count: number("/series/count").or(number("/count")).unwrap_or(1).max(1),
            warning: text("/type") == Some("Warning"),
            reason: reported::text(reason),
            message: bounded(text("/message").unwrap_or_default(), MAX_EVENT),
        })
    }

    pub(crate) fn document(&self) -> Value {
        json!({
            "lastTime": self.last, "firstTime": self.first, "count": self.count,
            "type": if self.warning { "Warning" } else { "Normal" }, "reason": self.reason, "message": self.message,
        })
    }
}

/// Sorted by the last time, the newest at the end.
pub(crate) fn sort(events: &mut [ConfigEvent]) {
    events.sort_by_cached_key(|event| (event.last.parse::<jiff::Timestamp>().ok(), event.first.clone()));
}
