//! What to write into a Node so that it asks for a ConfigMap, or for none: on the carrier that its API server keeps,
//! and so that the two never contradict each other.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::node::{Carrier, NodeRow};
use kubelet_config::assignment::{DEFAULT_KEY, LABELS};
use kubelet_config::source::{ConfigMapRef, Source};

/// A Node's label, beside those of its assignment and as little in its own reach: when a pool gave it that, and as what, as in
/// `1767225600.w`. All that a pool has to know of a Node's time follows from it.
pub(crate) const ASSIGNED: &str = "kubelet-config.node-restriction.kubernetes.io/assigned";

/// A label's value holds so many characters (apimachinery/pkg/util/validation, v1.20.2 and v1.36.2).
pub(crate) const LABEL_MAX: usize = 63;

/// The labels an assignment is made of, without their prefix.
const LABEL_NAMES: [&str; 3] = ["name", "namespace", "key"];

/// What a Node is assigned, as it is written: with what does not count, as another carrier wins.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct WrittenAssignment {
    /// `spec.configSource.configMap`; one without a name if there is none in a source.
    pub(crate) native: Option<ConfigMapRef>,
    /// The labels of an assignment, without their prefix.
    pub(crate) labels: BTreeMap<String, String>,
}

impl WrittenAssignment {
    /// As it stands on a Node.
    pub(crate) fn from_row(row: &NodeRow) -> Self {
        let is_native = row.carrier == Some(Carrier::Native);
        let native = is_native.then(|| row.desired.clone().unwrap_or_default());
        let label = |name: &str| Some((name.to_owned(), row.labels.get(&format!("{LABELS}{name}"))?.clone()));
        Self { native, labels: LABEL_NAMES.into_iter().filter_map(label).collect() }
    }
}

/// What is to be done to a Node next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// It asks for that, and nothing contradicts it.
    Done,
    /// A merge patch (RFC 7396); the answer is to be looked at again.
    Write(Value),
    /// It cannot be.
    Refuse(String),
}

/// The next step towards a Node that asks for `target`; none is its own configuration. `version`: its resourceVersion.
/// `keeps`: whether the API server keeps `spec.configSource`, as far as that was found out.
///
/// As long as nobody knows that, both carriers are written and say the same: whichever is kept, the Node asks for nothing
/// else at any moment, and whoever dies in between leaves no contradiction. `spec.configSource` wins over labels, which
/// are taken away where the answer shows that it was kept.
pub(crate) fn next_step(
    now: &WrittenAssignment,
    version: &str,
    target: Option<&ConfigMapRef>,
    choice: Option<Carrier>,
    keeps: Option<bool>,
) -> Step {
    let (has_source, has_labels) = (now.native.is_some(), !now.labels.is_empty());
    let Some(target) = target else {
        if !has_source && !has_labels {
            return Step::Done;
        }
        return write(version, has_labels.then(no_labels), has_source.then_some(Value::Null));
    };
    let by_source = now.native.as_ref() == Some(target);
    let by_labels = !has_source && now.labels == labels(target);
    match choice {
        _ if by_source && choice != Some(Carrier::Labels) => {
            if has_labels { write(version, Some(no_labels()), None) } else { Step::Done }
        }
        _ if by_labels && choice != Some(Carrier::Native) => Step::Done,
        Some(Carrier::Native) if keeps == Some(false) => Step::Refuse(
            "this API server does not keep spec.configSource (off since Kubernetes 1.22, gone since 1.26): use --carrier labels, \
             or auto"
                .to_owned(),
        ),
        Some(Carrier::Labels) => by_label(target, version, has_source),
        None if keeps == Some(false) => by_label(target, version, has_source),
        // A source that is there was kept.
        _ if keeps == Some(true) || has_source => {
            write(version, has_labels.then(no_labels), Some(config_source(target)))
        }
        None if label_fault(target).is_none() => write(version, Some(all_labels(target)), Some(config_source(target))),
        _ => write(version, None, Some(config_source(target))),
    }
}

/// Whether the API server keeps `spec.configSource`, by the Node that came back; none if the patch did not set it.
pub(crate) fn source_kept(patch: &Value, answer: &WrittenAssignment) -> Option<bool> {
    let sent = patch.pointer("/spec/configSource/configMap")?;
    let sent: ConfigMapRef = serde_json::from_value(sent.clone()).ok()?;
    Some(answer.native.as_ref() == Some(&sent))
}

/// Where a Node's assignment stands now, for people.
pub(crate) fn describe(row: &NodeRow) -> String {
    match (row.carrier, &row.desired) {
        (None, _) => "no assignment".to_owned(),
        (Some(Carrier::Native), Some(desired)) => format!("spec.configSource {desired}"),
        (Some(Carrier::Native), None) => "spec.configSource without a ConfigMap".to_owned(),
        (Some(Carrier::Labels), _) => {
            let labels = WrittenAssignment::from_row(row).labels;
            let pairs: Vec<String> = labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
            format!("labels {LABELS}{{{}}}", pairs.join(","))
        }
    }
}

/// The value of an annotation `retry` or `confirm` for this version that is another than `before`: the node obeys a
/// value once, and takes the resourceVersion alone as well.
pub(crate) fn version_value(source: &Source, before: Option<&str>) -> String {
    let long = format!("{}/{}", source.uid, source.resource_version);
    if before == Some(long.as_str()) { source.resource_version.clone() } else { long }
}

/// Labels and annotations that go with a patch of an assignment: null takes one away.
pub(crate) fn add_metadata(patch: &mut Value, more: &Value) {
    let Some(metadata) = patch.get_mut("metadata").and_then(Value::as_object_mut) else { return };
    for (field, entries) in more.as_object().into_iter().flatten() {
        if let (Some(all), Some(entries)) =
            (metadata.entry(field).or_insert_with(|| json!({})).as_object_mut(), entries.as_object())
        {
            all.extend(entries.clone());
        }
    }
}

fn write(version: &str, labels: Option<Map<String, Value>>, source: Option<Value>) -> Step {
    let mut metadata = Map::new();
    // What was decided holds for the Node that was read, and for no other.
    if !version.is_empty() {
        metadata.insert("resourceVersion".to_owned(), json!(version));
    }
    if let Some(labels) = labels {
        metadata.insert("labels".to_owned(), labels.into());
    }
    let mut patch = Map::from_iter([("metadata".to_owned(), metadata.into())]);
    if let Some(source) = source {
        patch.insert("spec".to_owned(), json!({ "configSource": source }));
    }
    Step::Write(patch.into())
}

fn config_source(target: &ConfigMapRef) -> Value {
    json!({ "configMap": target })
}

/// Labels alone.
fn by_label(target: &ConfigMapRef, version: &str, has_source: bool) -> Step {
    label_fault(target)
        .map_or_else(|| write(version, Some(all_labels(target)), has_source.then_some(Value::Null)), Step::Refuse)
}

/// The namespace is always named: what supervisors take for it is their own business. The key only if it must be.
fn labels(target: &ConfigMapRef) -> BTreeMap<String, String> {
    let key = Some(&target.kubelet_config_key).filter(|key| *key != DEFAULT_KEY);
    let all = [Some(&target.name), Some(&target.namespace), key];
    let all = LABEL_NAMES.into_iter().zip(all);
    all.filter_map(|(name, value)| Some((name.to_owned(), value?.clone()))).collect()
}

/// The same to be merged over others.
fn all_labels(target: &ConfigMapRef) -> Map<String, Value> {
    let mut all = no_labels();
    all.extend(labels(target).into_iter().map(|(name, value)| (format!("{LABELS}{name}"), json!(value))));
    all
}

fn no_labels() -> Map<String, Value> {
    LABEL_NAMES.into_iter().map(|name| (format!("{LABELS}{name}"), Value::Null)).collect()
}

/// What no label can say of this target.
pub(crate) fn label_fault(target: &ConfigMapRef) -> Option<String> {
    let parts = [("name", &target.name), ("key", &target.kubelet_config_key)];
    let (part, value) = parts.into_iter().find(|(_, value)| value.len() > LABEL_MAX)?;
    Some(format!(
        "the {part} {value:?} has {} characters, and on this API server the assignment is a Node label, which holds {LABEL_MAX}: \
         give the ConfigMap a shorter {part}",
        value.len()
    ))
}
