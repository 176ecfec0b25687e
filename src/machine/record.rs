//! Texts of the store's records: native's `meta` files byte for byte, and our own state file.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::evidence::{Baseline, Failure, NodeReadiness};
use super::limits;
use super::model::{KubeletId, Moment};
use kubelet_config::digest::Digest;
use kubelet_config::duration;
use kubelet_config::source::{ConfigAnnotations, ConfigMapRef, Source};
use kubelet_config::yaml;

/// Upstream: `SerializedNodeConfigSource` (k8s.io/kubelet/config/v1beta1, v1.20.2).
const KIND: &str = "SerializedNodeConfigSource";

/// Writes a `meta` record. `None` (local) is an empty file, as in native.
#[must_use]
pub fn encode_meta(source: Option<&Source>) -> String {
    let Some(source) = source else { return String::new() };
    format!(
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: {KIND}\nsource:\n  configMap:\n    kubeletConfigKey: {}\n    name: {}\n    namespace: {}\n    resourceVersion: {}\n    uid: {}\n",
        scalar(&source.reference.kubelet_config_key),
        scalar(&source.reference.name),
        scalar(&source.reference.namespace),
        scalar(&source.resource_version),
        scalar(&source.uid),
    )
}

/// Quotes what a YAML 1.1 reader would not take for a string, as Go's emitter does.
fn scalar(text: &str) -> String {
    let plain_chars = !text.is_empty()
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c))
        && !text.starts_with(['-', '.']);
    let parsed = yaml::parse(&format!("a: {text}\n"));
    let stays_string = matches!(parsed, Ok(document) if document.value.get("a") == Some(&Value::from(text)));
    if plain_chars && stays_string { text.to_owned() } else { format!("\"{text}\"") }
}

/// Reads a `meta` record, leniently as native does (download.go:112-139).
///
/// # Errors
/// A reason, when the record is not one native could have used.
pub(crate) fn decode_meta(text: &str) -> Result<Option<Source>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    let document = yaml::parse(text)?.value;
    if document.get("kind").and_then(Value::as_str) != Some(KIND) {
        return Err(format!("kind is not {KIND}"));
    }
    let map = document.pointer("/source/configMap").ok_or("source.configMap is missing")?;
    let field = |name: &str| match map.get(name) {
        Some(Value::String(text)) if !text.is_empty() => Ok(text.clone()),
        _ => Err(format!("source.configMap.{name} is missing")),
    };
    Ok(Some(Source {
        reference: ConfigMapRef {
            namespace: field("namespace")?,
            name: field("name")?,
            kubelet_config_key: field("kubeletConfigKey")?,
        },
        resource_version: field("resourceVersion")?,
        uid: field("uid")?,
    }))
}

/// A version that failed, and why. It is not tried again until source, content or kubelet change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BadVersion {
    /// The version that failed.
    pub source: Source,
    /// Its rendered configuration; empty when it could not be rendered.
    pub digest: Option<Digest>,
    /// The kubelet binary it failed with.
    pub kubelet: KubeletId,
    /// Native's error string that stands in the status.
    pub error: String,
    /// The kubelet's message, or what was observed.
    pub detail: String,
    /// Why: the label of `rollbacks_total{reason}`, or [`REJECTED`].
    #[serde(default)]
    pub reason: String,
    /// Wall clock, for people.
    #[serde(default)]
    pub time: String,
    /// Version of the kubelet, if known.
    #[serde(default)]
    pub version: String,
    /// The kubelet's last lines, without secrets.
    #[serde(rename = "words", default, skip_serializing_if = "Vec::is_empty")]
    pub log_tail: Vec<String>,
}

/// [`BadVersion::reason`] of what was refused before it ran.
pub const REJECTED: &str = "rejected";

/// An assigned configuration that has yet to prove itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Attempt {
    /// What is on trial.
    pub source: Source,
    /// Tries spent: supervisor starts that ran it without proof.
    pub tries: u32,
    /// What was good before it; `None` if that is not known.
    #[serde(default)]
    pub baseline: Option<Baseline>,
    /// Seconds within which somebody must acknowledge it once it is proven; `None`: nobody need.
    #[serde(default)]
    pub confirm_within: Option<u64>,
    /// The wait for that, once it has begun.
    #[serde(default)]
    pub confirm: Option<ConfirmationWait>,
    /// It was acknowledged.
    #[serde(default)]
    pub confirmed: bool,
    /// Its content is that of last known good under another source: a failure is not the
    /// configuration's.
    #[serde(default)]
    pub adopted: bool,
    /// Left by a supervisor that ended for a restart in the middle of it.
    #[serde(rename = "carried", default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<TrialSnapshot>,
}

/// What a trial knows beside its records, where each kubelet is started by another supervisor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TrialSnapshot {
    /// The kubelet's exits so far.
    pub exits: u32,
    /// Uids of the pods that ran before the change.
    pub pods: BTreeSet<String>,
    /// The container runtime's socket before the change.
    pub runtime: Option<String>,
    /// It has answered.
    pub runtime_answered: bool,
    /// The Node's condition Ready before the start.
    pub node: Option<NodeReadiness>,
    /// The Lease's renew time before the start.
    pub lease: Option<String>,
}

impl Attempt {
    /// The first try of a version.
    #[must_use]
    pub fn new(source: Source) -> Self {
        Self {
            source,
            tries: 1,
            baseline: None,
            confirm_within: None,
            confirm: None,
            confirmed: false,
            adopted: false,
            snapshot: None,
        }
    }
}

/// A wait for an acknowledgement. The boot clock decides; across a reboot it goes on with what was
/// left when it was last written down.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConfirmationWait {
    /// Tells one boot from another.
    pub boot_id: String,
    /// Ends then, seconds of that boot's clock.
    pub until: u64,
    /// Seconds left when this was written.
    pub left: u64,
    /// The wall clock at `until`, seconds since 1970, as it went when this was written: for people alone.
    /// 0: unknown.
    #[serde(default)]
    pub wall: u64,
}

impl ConfirmationWait {
    /// So many seconds from now.
    #[must_use]
    pub fn within(left: u64, now: Moment, boot_id: String) -> Self {
        let until = now.boot.as_secs().saturating_add(left);
        Self { boot_id, until, left, wall: (now.wall_nanos / 1_000_000_000).saturating_add(left) }
    }
}

/// A failure whose cause is not certain yet: last known good runs, and if it fails in the same way
/// the configuration was not at fault.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ControlTest {
    /// The version that failed and was rolled back.
    pub source: Source,
    /// The way it failed.
    pub failure: Failure,
    /// What it was judged by.
    pub baseline: Option<Baseline>,
}

/// A version that the control test cleared: it is tried again once last known good has been healthy for a while.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RetryLater {
    /// The version to try again.
    pub source: Source,
    /// How often so far; each time the wait doubles.
    pub times: u32,
    /// What the control test found, for people.
    pub why: String,
}

impl RetryLater {
    /// How long last known good must be healthy before the version is tried again.
    #[must_use]
    pub(super) fn wait(&self) -> Duration {
        duration::backoff(limits::RETRY_LATER_FIRST, limits::RETRY_LATER_MAX, self.times)
    }
}

/// An operator's hold on what runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Pin {
    /// What is to run; `None` is the local configuration.
    pub source: Option<Source>,
}

/// Our own durable state, beside native's records (`supervisor/state.json`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LocalState {
    /// Format version of this file.
    pub version: u32,
    /// The attempt under way, if any.
    pub attempt: Option<Attempt>,
    /// Versions that failed, oldest first, bounded.
    pub bad: Vec<BadVersion>,
    /// Contents a kubelet binary found valid: they need no second judgement at the next start.
    #[serde(rename = "judged")]
    pub accepted_digests: Vec<(Digest, KubeletId)>,
    /// The control test under way.
    #[serde(rename = "blame")]
    pub control_test: Option<ControlTest>,
    /// A version that waits for better times.
    #[serde(rename = "pardon")]
    pub retry_later: Option<RetryLater>,
    /// An operator's hold.
    pub pin: Option<Pin>,
    /// No change is taken up.
    pub frozen: bool,
    /// Versions that were last known good, newest last, for `rollback --to`.
    pub proven: Vec<Source>,
    /// The Node's annotation `kubelet-supervisor.io/retry` that was obeyed last.
    pub retried: Option<String>,
}

impl LocalState {
    /// JSON, pretty: people look at it.
    #[must_use]
    pub fn encode(&self) -> String {
        serde_json::to_string_pretty(&Self { version: 1, ..self.clone() }).unwrap_or_default()
    }

    /// Reads the file.
    ///
    /// # Errors
    /// A reason, when it is not ours.
    pub fn decode(text: &str) -> Result<Self, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }
}

/// What the store held when we started; an unreadable record says why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// `meta/assigned`.
    pub assigned: Result<Option<Source>, String>,
    /// `meta/last-known-good`.
    pub last_known_good: Result<Option<Source>, String>,
    /// Our own `state.json`.
    pub local_state: Result<LocalState, String>,
}

/// The durable records: `None` is the local configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Records {
    /// `meta/assigned`.
    pub assigned: Option<Source>,
    /// `meta/last-known-good`.
    pub last_known_good: Option<Source>,
    /// Attempts and bad versions.
    #[serde(rename = "ledger")]
    pub local_state: LocalState,
}

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
    pub kubelet: String,
    /// The kubelet's last lines, without secrets.
    #[serde(rename = "words", skip_serializing_if = "Vec::is_empty")]
    pub log_tail: Vec<String>,
    /// For this node's history alone, not for the API server.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub local: bool,
}

/// What is kept beside a checkpoint: sizes and hashes of its files, and the payload's merge mode.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointMetadata {
    /// SHA-256 by key.
    pub sha256: std::collections::BTreeMap<String, String>,
    /// What the ConfigMap's annotations ask for.
    #[serde(flatten)]
    pub annotations: ConfigAnnotations,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn source() -> Source {
        Source {
            reference: ConfigMapRef {
                namespace: "kube-system".into(),
                name: "measure-1795231262591".into(),
                kubelet_config_key: "kubelet".into(),
            },
            resource_version: "222".into(),
            uid: "24b9fa10-d57d-463b-8e4b-919333b021d3".into(),
        }
    }

    /// A record as a native 1.20.2 kubelet wrote it.
    const NATIVE: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: SerializedNodeConfigSource\nsource:\n  configMap:\n    kubeletConfigKey: kubelet\n    name: measure-1795231262591\n    namespace: kube-system\n    resourceVersion: \"222\"\n    uid: 24b9fa10-d57d-463b-8e4b-919333b021d3\n";

    #[test]
    fn meta_is_native_byte_for_byte() {
        assert_eq!(NATIVE.len(), 258);
        assert_eq!(encode_meta(Some(&source())), NATIVE);
        assert_eq!(decode_meta(NATIVE).unwrap(), Some(source()));
        assert_eq!(encode_meta(None), "");
        assert_eq!(decode_meta("").unwrap(), None);
    }

    #[test]
    fn torn_and_foreign_records_are_errors() {
        for cut in 1..NATIVE.len() - 3 {
            let decoded = decode_meta(NATIVE.get(..cut).unwrap());
            assert_ne!(decoded, Ok(None), "cut at {cut}");
            // A cut inside the uid cannot be told from a whole record; the checkpoint decides then.
            if let Ok(Some(decoded)) = decoded {
                assert!(cut > NATIVE.find("uid: ").unwrap() && source().uid.starts_with(&decoded.uid), "cut at {cut}");
            }
        }
        assert!(decode_meta("\0\0\0\0").is_err());
        assert!(decode_meta("{}").is_err());
        assert!(decode_meta(" ").is_err());
    }

    proptest! {
        #[test]
        fn meta_round_trips(name in "[a-z0-9][a-z0-9.-]{0,20}", key in "[-._a-zA-Z0-9]{1,10}", rv in "[0-9]{1,12}", uid in "[0-9a-fe-]{1,20}") {
            let mut source = source();
            source.reference.name = name;
            source.reference.kubelet_config_key = key;
            source.resource_version = rv;
            source.uid = uid;
            prop_assert_eq!(decode_meta(&encode_meta(Some(&source))).unwrap(), Some(source));
        }
    }
}
