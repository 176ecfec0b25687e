//! The words of the domain: sources, payloads, digests, moments in time.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::directory;

/// A reference to a ConfigMap as an administrator writes it in `Node.spec.configSource.configMap`.
///
/// Upstream: `ConfigMapNodeConfigSource` (k8s.io/api/core/v1 types.go, v1.20.2); `uid` and
/// `resourceVersion` are forbidden there.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConfigMapRef {
    /// The ConfigMap's namespace.
    pub namespace: String,
    /// The ConfigMap's name.
    pub name: String,
    /// The key of `data` that holds the KubeletConfiguration.
    pub kubelet_config_key: String,
}

impl ConfigMapRef {
    /// True when both name the same object, whatever the key.
    #[must_use]
    pub fn same_object(&self, other: &Self) -> bool {
        self.namespace == other.namespace && self.name == other.name
    }
}

impl fmt::Display for ConfigMapRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}[{}]", self.namespace, self.name, self.kubelet_config_key)
    }
}

/// A resolved source: one version of one ConfigMap and the key in it.
///
/// This is `NodeConfigSource.configMap` as it stands in `Node.status.config` and in the store's
/// `meta` records, where `uid` and `resourceVersion` are required.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Source {
    /// What the administrator pointed at.
    #[serde(flatten)]
    pub reference: ConfigMapRef,
    /// The ConfigMap's `metadata.resourceVersion`.
    pub resource_version: String,
    /// The ConfigMap's `metadata.uid`.
    pub uid: String,
}

impl Source {
    /// The API path, as native prints it in events and metric labels; of a directory, that it is one.
    #[must_use]
    pub fn api_path(&self) -> String {
        if directory::is_source(self) {
            return directory::TITLE.to_owned();
        }
        format!("/api/v1/namespaces/{}/configmaps/{}", self.reference.namespace, self.reference.name)
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}, UID: {}, ResourceVersion: {}, KubeletConfigKey: {}",
            self.api_path(),
            self.uid,
            self.resource_version,
            self.reference.kubelet_config_key
        )
    }
}

/// How a payload becomes a rendered configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Merge {
    /// The payload alone (plus the local file's feature gates), as native did.
    #[default]
    Replace,
    /// RFC 7396: the payload laid over the local file.
    Overlay,
}

impl std::str::FromStr for Merge {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "replace" => Ok(Self::Replace),
            "overlay" => Ok(Self::Overlay),
            other => Err(format!("unknown merge mode {other:?}: use replace or overlay")),
        }
    }
}

/// One version of a ConfigMap as the API server gave it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Payload {
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.resourceVersion`.
    pub resource_version: String,
    /// `data`; `binaryData` is ignored, as in native (checkpoint/configmap.go).
    pub data: BTreeMap<String, String>,
    /// What its annotations ask for.
    pub wishes: Wishes,
}

/// A ConfigMap's annotations that are meant for us, verbatim.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Wishes {
    /// `kubelet-supervisor.io/merge`: `replace` or `overlay`.
    pub merge: Option<String>,
    /// `kubelet-supervisor.io/acknowledge`: hazards accepted.
    pub acknowledge: Option<String>,
    /// `kubelet-supervisor.io/confirm-within`: a duration.
    pub confirm_within: Option<String>,
}

impl Payload {
    /// The source this payload resolves `reference` to.
    #[must_use]
    pub fn resolve(&self, reference: &ConfigMapRef) -> Source {
        Source { reference: reference.clone(), resource_version: self.resource_version.clone(), uid: self.uid.clone() }
    }
}

/// SHA-256 of a rendered configuration's canonical JSON, in hex.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Digest(pub String);

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.get(..12).unwrap_or(&self.0))
    }
}

/// What tells one kubelet binary from another (path, inode, size, modification time).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct KubeletId(pub String);

impl KubeletId {
    /// Stands for whatever binary is there.
    pub const ANY: Self = Self(String::new());
}

/// A point in time: the boot clock decides, the wall clock is only for people.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Moment {
    /// Time since boot (CLOCK_BOOTTIME); never jumps.
    pub boot: Duration,
    /// Wall clock, nanoseconds since 1970; may jump, decides nothing.
    pub wall_nanos: u64,
}

// Not derived: of two moments at the same boot time the wall clock must not decide either.
impl PartialEq for Moment {
    fn eq(&self, other: &Self) -> bool {
        self.boot == other.boot
    }
}

impl Eq for Moment {}

impl PartialOrd for Moment {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Moment {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.boot.cmp(&other.boot)
    }
}

impl Moment {
    /// Time from `earlier` to `self`; zero if `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        self.boot.saturating_sub(earlier.boot)
    }
}

/// A rendered configuration that is durably on disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rendered {
    /// Identifies the content.
    pub digest: Digest,
    /// What `--config` is given.
    pub path: String,
    /// Where the kubelet will answer healthz; `None` where it is off.
    pub healthz: Option<HealthzTarget>,
    /// Remarks for the journal: duplicate keys.
    pub notes: Vec<String>,
    /// Payload fields without effect, because a command-line flag wins: `maxPods (--max-pods)`.
    pub shadowed: Vec<String>,
    /// What the kubelet will go by: the configuration with flags laid over it. Null if unknown.
    pub effective: Arc<Value>,
    /// What the ConfigMap's annotations ask for.
    pub wishes: Wishes,
    /// The container runtime's socket, if known.
    pub runtime: Option<String>,
}

/// The kubelet's state files that belong to one set of resource manager policies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StateFiles {
    /// The kubelet's `--root-dir`.
    pub root_dir: String,
    /// The policies and their options, as one word that changes when a kubelet would refuse the
    /// other's files.
    pub policy: String,
    /// Put back what was moved aside when this policy was left; else the kubelet starts afresh.
    pub restore: bool,
}

/// Address of the kubelet's plain healthz listener.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HealthzTarget {
    /// IP address to connect to.
    pub host: String,
    /// TCP port, never 0.
    pub port: u16,
}

/// Why a checkpoint could not be turned into a rendered configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RenderError {
    /// The payload is not something the kubelet could load.
    #[error("{0}")]
    Load(String),
    /// The checkpoint is missing or its checksum is wrong: it must be downloaded again.
    #[error("{0}")]
    Checkpoint(String),
    /// Our own trouble: disk, permissions, the local file.
    #[error("{0}")]
    Internal(String),
}

/// What the preflight says of a candidate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The kubelet loads and validates it; with its remarks, such as unknown fields.
    Valid(Vec<String>),
    /// The kubelet cannot load it (native's LoadError); with the kubelet's own words.
    Load(String),
    /// The kubelet refuses it (native's ValidateError); with the kubelet's own words.
    Validate(String),
    /// No judgement to be had; the trial decides. With the reason.
    Inconclusive(String),
    /// The kubelet refuses its own command line, or its local configuration in the same way: no
    /// start could succeed now, and the candidate is not to blame. With the kubelet's words.
    NotItsFault(String),
}

impl Verdict {
    /// The `result` label of `preflight_total`.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match self {
            Self::Valid(_) => "valid",
            Self::Load(_) => "load",
            Self::Validate(_) => "validate",
            Self::Inconclusive(_) | Self::NotItsFault(_) => "inconclusive",
        }
    }
}

/// How the kubelet ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// `exit(code)`.
    Code(i32),
    /// Killed by this signal.
    Signal(i32),
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Signal(signal) => write!(f, "signal {signal}"),
        }
    }
}
