//! Sources: which version of which ConfigMap, and what is in it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::bounds::bounded;
use crate::digest::{Digest, sha256};

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

/// Name and uid of the local files (`--follow-local`) in the place of a ConfigMap's, whose uid is a UUID. An API server
/// that is shown them in `Node.status.config` finds them valid (ValidateConfigMapNodeConfigSource,
/// pkg/apis/core/validation, v1.20.2).
pub const LOCAL_FILES: &str = "local-files";

/// Bytes that a ConfigMap may hold (MaxSecretSize, pkg/apis/core/validation).
pub const SIZE_LIMIT: u64 = 1 << 20;

impl ConfigMapRef {
    /// Stands for the local files where a ConfigMap would be.
    #[must_use]
    pub fn local_files() -> Self {
        Self { namespace: "local".to_owned(), name: LOCAL_FILES.to_owned(), kubelet_config_key: "kubelet".to_owned() }
    }

    /// True if this is what stands for the local files.
    #[must_use]
    pub fn is_local_files(&self) -> bool {
        *self == Self::local_files()
    }

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
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
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
    /// True if this is the local files, and no ConfigMap: no other node has it, and no API server assigned it.
    #[must_use]
    pub fn is_local_files(&self) -> bool {
        self.uid == LOCAL_FILES && self.reference.is_local_files()
    }

    /// What it is called in messages, if it is no ConfigMap.
    #[must_use]
    pub fn title(&self) -> Option<&'static str> {
        self.is_local_files().then_some("the local files")
    }

    /// The API path, as native prints it in events and metric labels; of what is on the node, what it is.
    #[must_use]
    pub fn api_path(&self) -> String {
        if let Some(title) = self.title() {
            return title.to_owned();
        }
        format!("/api/v1/namespaces/{}/configmaps/{}", self.reference.namespace, self.reference.name)
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { reference: ConfigMapRef { kubelet_config_key: key, .. }, resource_version: version, uid } = self;
        write!(f, "{}, UID: {uid}, ResourceVersion: {version}, KubeletConfigKey: {key}", self.api_path())
    }
}

crate::named! {
    /// How a payload becomes a rendered configuration.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Merge by as_str {
        /// The payload alone (plus the local file's feature gates), as native did.
        #[default]
        Replace = "replace",
        /// RFC 7396: the payload laid over the local file.
        Overlay = "overlay",
    }
}

impl std::str::FromStr for Merge {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let named = Self::ALL.into_iter().find(|merge| merge.as_str() == text);
        named.ok_or_else(|| format!("unknown merge mode {:?}: use replace or overlay", bounded(text, 64)))
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
    /// Keys of `binaryData`.
    pub binary_keys: BTreeSet<String>,
    /// What its annotations ask for.
    pub annotations: ConfigAnnotations,
}

/// A ConfigMap's annotations that are meant for us, verbatim.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ConfigAnnotations {
    /// `kubelet-supervisor.io/merge`: `replace` or `overlay`.
    pub merge: Option<String>,
    /// `kubelet-supervisor.io/acknowledge`: hazards accepted.
    pub acknowledge: Option<String>,
    /// `kubelet-supervisor.io/confirm-within`: a duration.
    pub confirm_within: Option<String>,
    /// `kubelet-supervisor.io/courtesy`: a duration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub courtesy: Option<String>,
}

impl Payload {
    /// The source this payload resolves `reference` to.
    #[must_use]
    pub fn resolve(&self, reference: &ConfigMapRef) -> Source {
        Source { reference: reference.clone(), resource_version: self.resource_version.clone(), uid: self.uid.clone() }
    }

    /// Tells these bytes from others under the same uid and resourceVersion: all data, the names in `binaryData`, and our
    /// annotations. It is kept on disk, so an annotation that is added here must not show where it is not set.
    #[must_use]
    pub fn identity(&self) -> Digest {
        let data: BTreeMap<&str, String> =
            self.data.iter().map(|(key, text)| (key.as_str(), sha256(text.as_bytes()))).collect();
        let all = serde_json::json!([data, self.binary_keys, self.annotations]);
        Digest(sha256(all.to_string().as_bytes()))
    }
}

/// True if a ConfigMap key may become a file name.
///
/// Upstream: `IsConfigMapKey` (apimachinery validation.go). The API server enforces it; we do not
/// trust that.
#[must_use]
pub fn is_safe_key(key: &str) -> bool {
    is_safe_component(key) && key.len() <= 253
}

/// True if a uid or resourceVersion may become a directory name.
#[must_use]
pub fn is_safe_component(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 255
        && !name.starts_with("..")
        && name != "."
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_never_become_paths() {
        for bad in ["", ".", "..", "../x", "a/b", "/etc", "..data", "a\0b", "a b", "é"] {
            assert!(!is_safe_key(bad), "{bad:?}");
        }
        for good in ["kubelet", "ca.crt", "a_b", "-", ".hidden"] {
            assert!(is_safe_key(good), "{good:?}");
        }
    }
}
