//! Writing assignments: what is patched into a Node.

use serde_json::{Map, Value, json};

use crate::core::carrier::LABELS;
use crate::core::fleet::rollout::plan::{Before, LABEL_NAMES};
use crate::core::model::ConfigMapRef;

/// A carrier, as merge patches (RFC 7396) of a Node.
pub(super) trait Writer {
    /// Assigns.
    fn assign(&self, to: &ConfigMapRef) -> Value;
    /// Puts back what was there.
    fn restore(&self, before: &Before) -> Value;
}

/// `spec.configSource`.
pub(super) struct Native;

impl Writer for Native {
    fn assign(&self, to: &ConfigMapRef) -> Value {
        json!({"spec": {"configSource": {"configMap": to}}})
    }

    fn restore(&self, before: &Before) -> Value {
        let source = before.native.as_ref().map(|map| json!({"configMap": map}));
        json!({"spec": {"configSource": source}})
    }
}

/// Labels. The namespace is said, as the supervisors' `--config-namespace` is not known here.
pub(super) struct Labels;

impl Writer for Labels {
    fn assign(&self, to: &ConfigMapRef) -> Value {
        let values = [&to.name, &to.namespace, &to.kubelet_config_key];
        labels(LABEL_NAMES.into_iter().zip(values.map(|value| json!(value))))
    }

    fn restore(&self, before: &Before) -> Value {
        labels(LABEL_NAMES.map(|name| (name, json!(before.labels.get(name)))))
    }
}

fn labels(values: impl IntoIterator<Item = (&'static str, Value)>) -> Value {
    let labels: Map<String, Value> =
        values.into_iter().map(|(name, value)| (format!("{LABELS}{name}"), value)).collect();
    json!({"metadata": {"labels": labels}})
}

/// The same, if the Node is still of this version.
pub(super) fn only_of(mut patch: Value, version: &str) -> Value {
    if let Some(patch) = patch.as_object_mut() {
        let metadata = patch.entry("metadata").or_insert_with(|| json!({}));
        if let Some(metadata) = metadata.as_object_mut() {
            metadata.insert("resourceVersion".to_owned(), json!(version));
        }
    }
    patch
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn patches() {
        let to = ConfigMapRef { namespace: "n".into(), name: "m".into(), kubelet_config_key: "k".into() };
        let before = Before { native: None, labels: BTreeMap::from([("name".to_owned(), "old".to_owned())]) };
        let label = |name: &str| format!("{LABELS}{name}");
        assert_eq!(
            only_of(Labels.assign(&to), "7"),
            json!({"metadata": {"resourceVersion": "7",
                "labels": {label("name"): "m", label("namespace"): "n", label("key"): "k"}}})
        );
        assert_eq!(
            Labels.restore(&before),
            json!({"metadata": {"labels": {label("name"): "old", label("namespace"): null, label("key"): null}}})
        );
        assert_eq!(
            only_of(Native.restore(&before), "7"),
            json!({"spec": {"configSource": null}, "metadata": {"resourceVersion": "7"}})
        );
    }
}
