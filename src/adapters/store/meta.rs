//! Native's `meta` records, byte for byte.

use serde_json::Value;

use kubelet_config::source::{ConfigMapRef, Source};
use kubelet_config::yaml;

/// Upstream: `SerializedNodeConfigSource` (k8s.io/kubelet/config/v1beta1, v1.20.2).
const KIND: &str = "SerializedNodeConfigSource";

/// Writes a `meta` record. `None` (local) is an empty file, as in native.
#[must_use]
pub fn encode(source: Option<&Source>) -> String {
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
    if plain_chars && stays_string { text.to_owned() } else { Value::from(text).to_string() }
}

/// Reads a `meta` record, leniently as native does (download.go:112-139).
///
/// # Errors
/// A reason, when the record is not one native could have used.
pub(crate) fn decode(text: &str) -> Result<Option<Source>, String> {
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
        assert_eq!(encode(Some(&source())), NATIVE);
        assert_eq!(decode(NATIVE).unwrap(), Some(source()));
        assert_eq!(encode(None), "");
        assert_eq!(decode("").unwrap(), None);
    }

    #[test]
    fn torn_and_foreign_records_are_errors() {
        for cut in 1..NATIVE.len() - 3 {
            let decoded = decode(NATIVE.get(..cut).unwrap());
            assert_ne!(decoded, Ok(None), "cut at {cut}");
            // A cut inside the uid cannot be told from a whole record; the checkpoint decides then.
            if let Ok(Some(decoded)) = decoded {
                assert!(cut > NATIVE.find("uid: ").unwrap() && source().uid.starts_with(&decoded.uid), "cut at {cut}");
            }
        }
        assert!(decode("\0\0\0\0").is_err());
        assert!(decode("{}").is_err());
        assert!(decode(" ").is_err());
    }

    proptest! {
        #[test]
        fn meta_round_trips(name in "[a-z0-9][a-z0-9.-]{0,20}", key in "[-._a-zA-Z0-9]{1,10}", rv in "[0-9]{1,12}", uid in "[0-9a-fe-]{1,20}") {
            let mut source = source();
            source.reference.name = name;
            source.reference.kubelet_config_key = key;
            source.resource_version = rv;
            source.uid = uid;
            prop_assert_eq!(decode(&encode(Some(&source))).unwrap(), Some(source));
        }
    }
}
