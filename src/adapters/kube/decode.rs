//! From API objects to the machine's types. Nothing here fails: what is odd is left out, and what is too long is cut.

use std::collections::BTreeMap;

use kube::Error;
use serde::Deserialize as _;
use serde_json::Value;

use super::types::{ConfigMapView, LeaseView, NodeView, PodView};
use crate::machine::evidence::{LeaseObservation, NodePressure, NodeReadiness};
use crate::machine::{FetchError, Input};
use kubelet_config::assignment::{self, Assignment};
use kubelet_config::pods::{self, NodeSummary, PodSummary};
use kubelet_config::preflight::{ANSWER_ANNOTATION, MAX_ANSWER, REQUEST_ANNOTATION};
use kubelet_config::reported;
use kubelet_config::source::{ConfigAnnotations, ConfigMapRef, LOCAL_FILES, Payload, SIZE_LIMIT, is_safe_component};
use kubelet_config::status::{ABOUT_ANNOTATION, CONDITION, PublishedStatus, STATUS_ANNOTATION};

/// Our annotations, on Nodes and ConfigMaps.
const PREFIX: &str = "kubelet-supervisor.io/";

/// What a Node's annotations ask for.
pub(super) fn node_annotations(node: &NodeView) -> Input {
    let annotation = |name: &str| {
        let annotations = node.metadata.annotations.as_ref()?;
        annotations.get(&format!("{PREFIX}{name}")).map(|value| reported::text(value))
    };
    Input::NodeAnnotations { retry: annotation("retry"), confirm: annotation("confirm") }
}

/// What the Node is asked to judge, and the answer that it shows.
pub(super) fn preflight(node: &NodeView) -> (Option<String>, Option<String>) {
    let bounded = |name: &str, bytes: usize| {
        let annotations = node.metadata.annotations.as_ref()?;
        annotations.get(name).map(|text| reported::bounded(text, bytes))
    };
    (bounded(REQUEST_ANNOTATION, reported::MAX_TEXT), bounded(ANSWER_ANNOTATION, MAX_ANSWER))
}

/// True unless `spec.configSource` says what the Node is to run.
pub(super) fn is_by_labels(node: &NodeView) -> bool {
    node.spec.config_source.as_ref().is_none_or(Value::is_null)
}

/// What the Node is to run: `spec.configSource`, where a server keeps it and somebody set it, wins
/// over labels. `namespace` is that of labels which name none.
pub(super) fn assignment(node: &NodeView, namespace: &str) -> Assignment {
    match assigned(node, namespace) {
        Assignment::Invalid(why) => Assignment::Invalid(reported::text(&why)),
        assignment => assignment,
    }
}

fn assigned(node: &NodeView, namespace: &str) -> Assignment {
    let source = node.spec.config_source.as_ref().filter(|source| !source.is_null());
    let Some(source) = source else {
        let labels = node.metadata.labels.as_ref();
        return labels.map_or(Assignment::Local, |labels| assignment::from_labels(labels, namespace));
    };
    let Some(map) = source.get("configMap").filter(|map| !map.is_null()) else { return Assignment::AllNil };
    let invalid = |why: String| Assignment::Invalid(format!("the Node's spec.configSource.configMap: {why}"));
    match ConfigMapRef::deserialize(map) {
        Ok(reference) => match assignment::reference_fault(&reference) {
            None => Assignment::Map(reference),
            Some((part, why)) => invalid(format!("{part}: {why}")),
        },
        Err(error) => invalid(error.to_string()),
    }
}

/// What the Node says of us.
pub(super) fn published_status(node: NodeView) -> PublishedStatus {
    let condition = conditions(&node, CONDITION).next().cloned();
    let (preflight_request, preflight) = preflight(&node);
    let mut annotations = node.metadata.annotations.unwrap_or_default();
    PublishedStatus {
        condition,
        annotation: annotations.remove(STATUS_ANNOTATION),
        about: annotations.remove(ABOUT_ANNOTATION),
        preflight,
        preflight_request,
        config: node.status.config.unwrap_or_default(),
    }
}

/// What is missing when a ConfigMap may not be read, and where it is to be had.
pub(super) fn forbidden(map: &ConfigMapRef, why: &str) -> String {
    let ConfigMapRef { namespace, name, .. } = map;
    format!(
        "this node may not read ConfigMap {namespace}/{name}: grant verbs get, list and watch on configmaps in namespace \
         {namespace} to group system:nodes, as packaging/manifests/base/rbac.yaml does for one namespace and \
         packaging/manifests/narrow/rbac.yaml for single names (kubectl apply -k): {why}"
    )
}

/// Why this ConfigMap cannot be had, by the code of the API server's answer, if there was one.
pub(super) fn config_map_error(map: &ConfigMapRef, code: Option<u16>, why: String) -> FetchError {
    match code {
        Some(404) if why.is_empty() => {
            FetchError { why: format!("the ConfigMap {map} does not exist"), definite: true }
        }
        Some(404) => FetchError { why, definite: true },
        Some(403) => FetchError { why: forbidden(map, &why), definite: true },
        _ => FetchError { why, definite: false },
    }
}

/// The condition Ready; `None` while there is none.
pub(super) fn node_readiness(node: &NodeView) -> Option<NodeReadiness> {
    let ready = conditions(node, "Ready").next()?;
    let has = |pressure: &NodePressure| {
        conditions(node, pressure.condition()).any(|condition| text(condition, "status") == "True")
    };
    let parts = [text(ready, "reason"), text(ready, "message")];
    let parts: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    Some(NodeReadiness {
        ready: text(ready, "status") == "True",
        heartbeat: reported::text(text(ready, "lastHeartbeatTime")),
        message: reported::text(&parts.join(": ")),
        pressure: NodePressure::ALL.into_iter().filter(has).collect(),
    })
}

/// Conditions of this type: one, if any.
fn conditions<'a>(node: &'a NodeView, kind: &str) -> impl Iterator<Item = &'a Value> {
    let all = node.status.conditions.as_ref().and_then(Value::as_array).into_iter().flatten();
    all.filter(move |condition| text(condition, "type") == kind)
}

fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    object.get(field).and_then(Value::as_str).unwrap_or_default()
}

/// The Node as the admission of pods looks at it.
pub(super) fn node_summary(node: &NodeView) -> NodeSummary {
    NodeSummary {
        name: node.metadata.name.clone().unwrap_or_default(),
        taints: node.spec.taints.clone().unwrap_or_default(),
        labels: Some(node.metadata.labels.clone().unwrap_or_default()),
        capacity: pods::texts(node.status.capacity.as_ref()),
        allocatable: pods::texts(node.status.allocatable.as_ref()),
    }
}

/// What asking for the Lease came to. 401 is about the credentials, which a change can break; 408, 429 and 5xx
/// are about the API server itself, or a balancer's before it.
pub(super) fn lease_observation(result: Result<LeaseView, Error>) -> LeaseObservation {
    match result {
        Ok(lease) => match lease.spec.as_ref().and_then(|spec| spec.get("renewTime")).and_then(Value::as_str) {
            Some(time) => LeaseObservation::Renewed(reported::text(time)),
            None => LeaseObservation::Absent,
        },
        Err(Error::Api(status)) if (400..500).contains(&status.code) && !matches!(status.code, 401 | 408 | 429) => {
            LeaseObservation::Absent
        }
        Err(Error::Api(status)) if status.code != 401 => LeaseObservation::Busy(reported::text(&status.message)),
        Err(error) => LeaseObservation::Unreachable(reported::error_chain(&error)),
    }
}

pub(super) fn pod_summary(pod: PodView) -> PodSummary {
    let meta = pod.metadata;
    let who = PodSummary {
        is_static: pods::is_static(meta.annotations.as_ref()),
        is_terminating: meta.deletion_timestamp.is_some(),
        uid: meta.uid.unwrap_or_default(),
        name: format!("{}/{}", meta.namespace.unwrap_or_default(), meta.name.unwrap_or_default()),
        created: meta.creation_timestamp.map(|time| time.0.to_string()).unwrap_or_default(),
        ..PodSummary::default()
    };
    pods::summarize(who, &pod.spec, pod.status)
}

/// Bytes of one of our annotations on a ConfigMap: it is kept with what is on record of a version.
const ANNOTATION_BYTES: usize = 4 << 10;

/// Said of a ConfigMap that no API server can have.
pub(super) fn fault_of(map: &ConfigMapView) -> Option<String> {
    let meta = &map.metadata;
    let [namespace, name] = [&meta.namespace, &meta.name].map(|part| part.as_deref().unwrap_or_default());
    let fault = |what: String| Some(reported::text(&format!("ConfigMap {namespace}/{name}: {what}; not taken up")));
    for (field, value, kind) in [("uid", &meta.uid, "uid"), ("resourceVersion", &meta.resource_version, "version")] {
        let value = value.as_deref().unwrap_or_default();
        // What stands for files of this node is nobody's to send: those are not judged by the policy.
        if !is_safe_component(value) || value == LOCAL_FILES {
            return fault(format!("metadata.{field} {value:?} is not a {kind}"));
        }
    }
    let bytes: usize = map.data.iter().flatten().map(|(_, text)| text.len()).sum();
    if bytes as u64 > SIZE_LIMIT {
        return fault(format!("its data has {bytes} bytes, {SIZE_LIMIT} are allowed"));
    }
    let own = meta.annotations.iter().flatten().filter(|(name, _)| name.starts_with(PREFIX));
    let longest = own.map(|(_, value)| value.len()).max().filter(|longest| *longest > ANNOTATION_BYTES);
    longest
        .and_then(|bytes| fault(format!("an annotation {PREFIX}… has {bytes} bytes, {ANNOTATION_BYTES} are allowed")))
}

pub(super) fn payload(map: ConfigMapView) -> Payload {
    let meta = map.metadata;
    Payload {
        namespace: meta.namespace.unwrap_or_default(),
        name: meta.name.unwrap_or_default(),
        uid: meta.uid.unwrap_or_default(),
        resource_version: meta.resource_version.unwrap_or_default(),
        data: map.data.unwrap_or_default(),
        binary_keys: map.binary_data.unwrap_or_default().into_keys().collect(),
        annotations: annotations(meta.annotations.unwrap_or_default()),
    }
}

fn annotations(mut annotations: BTreeMap<String, String>) -> ConfigAnnotations {
    let mut take = |name: &str| annotations.remove(&format!("{PREFIX}{name}"));
    ConfigAnnotations {
        merge: take("merge"),
        acknowledge: take("acknowledge"),
        confirm_within: take("confirm-within"),
        courtesy: take("courtesy"),
    }
}

#[cfg(test)]
mod tests;
