//! A directory on the node in the place of a ConfigMap (`--source-dir`): which of its files count,
//! and what they are called where a ConfigMap has its API path, uid and resourceVersion.

use std::collections::{BTreeMap, BTreeSet};

use sha2::{Digest as _, Sha256};

use crate::digest::hex;
use crate::source::{
    ConfigAnnotations, ConfigMapRef, ON_NODE_NAMESPACE, Payload, SOURCE_DIR_NAME, SOURCE_DIR_UID, is_safe_key,
};

/// Bytes in all files together, as in a ConfigMap (MaxSecretSize, pkg/apis/core/validation).
pub const SIZE_LIMIT: u64 = 1 << 20;

/// Digits of the version: 64 bits tell apart whatever one node will ever hold, and can be typed.
const VERSION_DIGITS: usize = 16;

/// What a name in the directory means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A key of the payload.
    Key,
    /// `.merge`, `.acknowledge`, `.confirm-within`, `.courtesy`: what a ConfigMap has annotations for.
    Annotation,
    /// Hidden; also `..data` and its like in a projected volume.
    Hidden,
    /// Visible, and no key: of an editor or a copy under way (`x~`, `#x#`, `x.tmp`), or with
    /// characters that no ConfigMap's key has.
    NoKey,
}

/// What a file of this name is.
#[must_use]
pub fn entry(name: &str) -> Entry {
    match name {
        ".merge" | ".acknowledge" | ".confirm-within" | ".courtesy" => Entry::Annotation,
        _ if name.starts_with('.') => Entry::Hidden,
        _ if name.strip_suffix(".tmp").is_some() || !is_safe_key(name) => Entry::NoKey,
        _ => Entry::Key,
    }
}

/// The directory as a reference, with the key that holds the KubeletConfiguration.
#[must_use]
pub fn reference(key: &str) -> ConfigMapRef {
    ConfigMapRef {
        namespace: ON_NODE_NAMESPACE.to_owned(),
        name: SOURCE_DIR_NAME.to_owned(),
        kubelet_config_key: key.to_owned(),
    }
}

/// Content as one version: the same files are the same version, whenever they are read.
#[must_use]
pub fn payload(data: BTreeMap<String, String>, annotations: ConfigAnnotations) -> Payload {
    let mut sum = Sha256::new();
    let mut add = |kind: &str, name: &str, text: &str| {
        for part in [kind, name, text] {
            sum.update((part.len() as u64).to_be_bytes());
            sum.update(part.as_bytes());
        }
    };
    for (name, text) in &data {
        add("key", name, text);
    }
    let asked = [
        ("merge", &annotations.merge),
        ("acknowledge", &annotations.acknowledge),
        ("confirm-within", &annotations.confirm_within),
        ("courtesy", &annotations.courtesy),
    ];
    for (name, text) in asked {
        if let Some(text) = text {
            add("wish", name, text);
        }
    }
    let resource_version = hex(&sum.finalize()).chars().take(VERSION_DIGITS).collect();
    Payload {
        namespace: ON_NODE_NAMESPACE.to_owned(),
        name: SOURCE_DIR_NAME.to_owned(),
        uid: SOURCE_DIR_UID.to_owned(),
        resource_version,
        data,
        binary_keys: BTreeSet::new(),
        annotations,
    }
}

/// A message about a ConfigMap's annotations, said of the files that stand for them.
#[must_use]
pub fn in_files(message: &str) -> String {
    message
        .replace("annotate the ConfigMap with kubelet-supervisor.io/", "write into the source directory's file .")
        .replace("annotation kubelet-supervisor.io/", "file .")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for key in ["kubelet", "ca.crt", "A_b-C.9", "tmp", "data..x", &"k".repeat(253)] {
            assert_eq!(entry(key), Entry::Key, "{key}");
        }
        for name in [".merge", ".acknowledge", ".confirm-within", ".courtesy"] {
            assert_eq!(entry(name), Entry::Annotation, "{name}");
        }
        for hidden in
            [".", "..", "..data", "..2026_11_21_11_37_00.123", ".kubelet.swp", ".#kubelet", ".mergex", ".x.tmp"]
        {
            assert_eq!(entry(hidden), Entry::Hidden, "{hidden}");
        }
        for odd in ["kubelet~", "#kubelet#", "kubelet.tmp", "my kubelet", "ä", "a/b", "", "a\nb", &"k".repeat(254)] {
            assert_eq!(entry(odd), Entry::NoKey, "{odd}");
        }
    }

    #[test]
    fn the_version_is_the_content() {
        let data = |pairs: &[(&str, &str)]| pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let annotations =
            |text: &str| ConfigAnnotations { merge: Some(text.to_owned()), ..ConfigAnnotations::default() };
        let all = [
            payload(data(&[]), ConfigAnnotations::default()),
            payload(data(&[("a", "bc")]), ConfigAnnotations::default()),
            payload(data(&[("ab", "c")]), ConfigAnnotations::default()),
            payload(data(&[("a", "b"), ("c", "d")]), ConfigAnnotations::default()),
            payload(data(&[("a", "b"), ("c", "e")]), ConfigAnnotations::default()),
            payload(data(&[("a", "bc")]), annotations("overlay")),
            payload(data(&[("a", "bc")]), annotations("replace")),
            payload(
                data(&[("a", "bc")]),
                ConfigAnnotations { acknowledge: Some("overlay".into()), ..ConfigAnnotations::default() },
            ),
        ];
        let versions: std::collections::BTreeSet<&str> = all.iter().map(|it| it.resource_version.as_str()).collect();
        assert_eq!(versions.len(), all.len());
        assert!(
            versions.iter().all(|version| version.len() == VERSION_DIGITS && crate::source::is_safe_component(version))
        );
        assert_eq!(payload(data(&[("a", "bc")]), ConfigAnnotations::default()), all[1]);
    }

    #[test]
    fn people_are_not_told_of_an_api_path() {
        let source = payload(BTreeMap::new(), ConfigAnnotations::default()).resolve(&reference("kubelet"));
        assert!(source.is_source_dir());
        assert!(source.to_string().starts_with("the source directory, UID: source-dir, ResourceVersion: "), "{source}");
        let real = crate::source::Source { uid: "6a1f…".to_owned(), ..source };
        assert!(!real.is_source_dir() && real.to_string().starts_with("/api/v1/namespaces/local/"), "{real}");
        assert_eq!(in_files("annotation kubelet-supervisor.io/merge: x"), "file .merge: x");
    }
}
