//! Where an assignment is written when it is not `Node.spec.configSource`: Node labels, which
//! servers of every version keep and NodeRestriction keeps a node from setting for itself, or the
//! supervisor's own `--default-source`.

use std::collections::BTreeMap;

use crate::source::{ConfigMapRef, is_safe_key};

/// Prefix of the labels. Labels under `*.node-restriction.kubernetes.io/` are out of a node's own
/// reach (plugin/pkg/admission/noderestriction/admission.go, v1.20.2 and v1.36.2).
pub const LABELS: &str = "kubelet-config.node-restriction.kubernetes.io/";

/// The key of `data` where nobody names one: kubeadm's.
pub const DEFAULT_KEY: &str = "kubelet";

/// Where a label's ConfigMap is if no label says so; `--config-namespace`.
pub const DEFAULT_NAMESPACE: &str = "kube-system";

/// What the labels `name`, `namespace` and `key` ask for. Without a name nothing is asked for; an
/// empty value is none.
#[must_use]
pub fn from_labels(labels: &BTreeMap<String, String>, default_namespace: &str) -> Assignment {
    let label = |name: &str| {
        let value = labels.get(&format!("{LABELS}{name}")).map(String::as_str);
        value.filter(|value| !value.is_empty())
    };
    let Some(name) = label("name") else { return Assignment::Local };
    let namespace = label("namespace").unwrap_or(default_namespace);
    let key = label("key").unwrap_or(DEFAULT_KEY);
    match reference(namespace, name, key) {
        Ok(reference) => Assignment::Map(reference),
        Err((part, why)) => Assignment::Invalid(format!("the Node's label {LABELS}{part}: {why}")),
    }
}

/// Reads `NAMESPACE/NAME[/KEY]`.
///
/// # Errors
/// Which part is wrong, and how.
pub fn parse_reference(text: &str) -> Result<ConfigMapRef, String> {
    let mut parts = text.split('/');
    let (Some(namespace), Some(name), key, None) = (parts.next(), parts.next(), parts.next(), parts.next()) else {
        return Err(format!(
            "{text:?} is not NAMESPACE/NAME or NAMESPACE/NAME/KEY, such as kube-system/kubelet-config"
        ));
    };
    reference(namespace, name, key.unwrap_or(DEFAULT_KEY)).map_err(|(part, why)| format!("{part}: {why}"))
}

/// A reference an API server would accept; else the part at fault and why.
fn reference(namespace: &str, name: &str, key: &str) -> Result<ConfigMapRef, (&'static str, String)> {
    let reference =
        ConfigMapRef { namespace: namespace.to_owned(), name: name.to_owned(), kubelet_config_key: key.to_owned() };
    reference_fault(&reference).map_or(Ok(reference), Err)
}

/// What an API server would not accept of a reference (ValidateConfigMapNodeConfigSource,
/// pkg/apis/core/validation/validation.go, v1.20.2): the part at fault and why. What has no fault is safe in a URL's path.
#[must_use]
pub fn reference_fault(reference: &ConfigMapRef) -> Option<(&'static str, String)> {
    let ConfigMapRef { namespace, name, kubelet_config_key: key } = reference;
    if !is_namespace(namespace) {
        return Some(("namespace", format!("{namespace:?} cannot be a namespace: a-z, 0-9 and -, at most 63")));
    }
    if !is_object_name(name) {
        return Some(("name", format!("{name:?} cannot be the name of a ConfigMap: a-z, 0-9, - and ., at most 253")));
    }
    (!is_safe_key(key))
        .then(|| ("key", format!("{key:?} cannot be a key of a ConfigMap: A-Z, a-z, 0-9, -, _ and ., at most 253")))
}

/// Whether the API server takes this as a namespace.
#[must_use]
pub fn is_namespace(text: &str) -> bool {
    !text.contains('.') && is_subdomain(text, 63)
}

/// Whether the API server takes this as an object's name.
#[must_use]
pub fn is_object_name(text: &str) -> bool {
    is_subdomain(text, 253)
}

/// DNS-1123 subdomain (apimachinery/pkg/util/validation, v1.20.2).
#[must_use]
pub fn is_subdomain(text: &str, limit: usize) -> bool {
    let edge = |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    let label = |label: &str| {
        let bytes = label.as_bytes();
        let inside = bytes.iter().all(|byte| *byte == b'-' || edge(Some(byte)));
        edge(bytes.first()) && edge(bytes.last()) && inside
    };
    text.len() <= limit && text.split('.').all(label)
}

/// What the own Node asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Assignment {
    /// The API server has not answered yet, or there is no Node object: keep what is.
    #[default]
    Unknown,
    /// No `configSource`: the local configuration.
    Local,
    /// A `configSource` without any subfield.
    AllNil,
    /// Labels that name nothing a ConfigMap can be; with the label and the reason.
    Invalid(String),
    /// This ConfigMap, by `configSource` or by labels.
    Map(ConfigMapRef),
    /// No assignment, but `--default-source`.
    Default(ConfigMapRef),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(labels: &[(&str, &str)]) -> Assignment {
        let labels = labels.iter().map(|(name, value)| (format!("{LABELS}{name}"), (*value).to_owned())).collect();
        from_labels(&labels, "kubelet-config")
    }

    fn map(namespace: &str, name: &str, key: &str) -> Assignment {
        Assignment::Map(ConfigMapRef { namespace: namespace.into(), name: name.into(), kubelet_config_key: key.into() })
    }

    #[test]
    fn the_name_is_enough() {
        assert_eq!(asked(&[]), Assignment::Local);
        assert_eq!(
            asked(&[("namespace", "n"), ("key", "k")]),
            Assignment::Local,
            "a place without a name asks for nothing"
        );
        assert_eq!(asked(&[("name", "")]), Assignment::Local);
        assert_eq!(asked(&[("name", "pool-a.v1")]), map("kubelet-config", "pool-a.v1", "kubelet"));
        assert_eq!(
            asked(&[("name", "pool-a"), ("namespace", "n"), ("key", "kubelet.yaml")]),
            map("n", "pool-a", "kubelet.yaml")
        );
        assert_eq!(
            asked(&[("name", "pool-a"), ("namespace", ""), ("key", "")]),
            map("kubelet-config", "pool-a", "kubelet")
        );
    }

    #[test]
    fn what_no_config_map_can_be_called_is_said_with_the_label() {
        for (label, value) in [("name", "Pool_A"), ("name", "a..b"), ("namespace", "a.b"), ("key", "..x")] {
            let mut labels = vec![("name", "a")];
            labels.retain(|(name, _)| *name != label);
            labels.push((label, value));
            let Assignment::Invalid(why) = asked(&labels) else { panic!("{label}={value} was accepted") };
            assert!(why.contains(&format!("{LABELS}{label}: \"{value}\"")), "{why}");
        }
    }

    #[test]
    fn a_default_source_is_two_or_three_words() {
        assert_eq!(
            parse_reference("kube-system/kubelet-config").map(Assignment::Map),
            Ok(map("kube-system", "kubelet-config", "kubelet"))
        );
        assert_eq!(parse_reference("n/m/k.yaml").map(Assignment::Map), Ok(map("n", "m", "k.yaml")));
        for bad in ["", "kubelet-config", "/m", "n/", "n/m/", "n/m/k/x", "n/M", "n.x/m", "n/m/../x"] {
            assert!(parse_reference(bad).is_err(), "{bad:?} was accepted");
        }
    }
}
