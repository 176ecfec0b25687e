//! The history's entries.

use serde::{Deserialize, Serialize};

use kubelet_config::source::Source;

/// One line of the history: what was tried or decided, and why.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HistoryEntry {
    /// Counts up, for ever.
    pub number: u64,
    /// Wall clock, nanoseconds since 1970: for people, and the event's name.
    pub nanos: u64,
    /// The event's reason.
    pub reason: String,
    /// Warning instead of Normal.
    pub warning: bool,
    /// The event's message.
    pub message: String,
    /// The version it is about; none is the local configuration.
    pub source: Option<Source>,
    /// Version of the kubelet binary, if known.
    #[serde(rename = "kubelet")]
    pub kubelet_version: String,
    /// The kubelet's last lines, without secrets.
    #[serde(rename = "words", skip_serializing_if = "Vec::is_empty")]
    pub log_tail: Vec<String>,
    /// For this node's history alone, not for the API server.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub local: bool,
}
