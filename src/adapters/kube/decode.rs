//! From API objects to the machine's types. Nothing here fails: what is odd is left out, and what is too long is cut.

use std::collections::BTreeMap;

use kube::Error;
use serde::Deserialize as _;
use serde_json::Value;

use super::credentials::chain;
use super::types::{ConfigMapView, LeaseView, NodeView, PodView};
use crate::machine::evidence::{LeaseObservation, NodePressure, NodeReadiness};
use kubelet_config::assignment::{self, Assignment};
use kubelet_config::pods::{self, NodeSummary, PodSummary};
use kubelet_config::preflight::{ANSWER_ANNOTATION, MAX_ANSWER, REQUEST_ANNOTATION};
use kubelet_config::reported;
use kubelet_config::source::{ConfigAnnotations, ConfigMapRef, Payload, is_safe_component, is_uid_on_node};
use kubelet_config::source_dir::SIZE_LIMIT;
use kubelet_config::status::{ABOUT_ANNOTATION, CONDITION, PublishedStatus, STATUS_ANNOTATION};

/// Our annotations, on Nodes and ConfigMaps.
const PREFIX: &str = "kubelet-supervisor.io/";

/// What a Node's annotations ask for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeAnnotations {
    /// `retry`.
    pub retry: Option<String>,
    /// `confirm`.
    pub confirm: Option<String>,
}

pub(super) fn node_annotations(node: &NodeView) -> NodeAnnotations {
    let annotation = |name: &str| {
        node.metadata
            .annotations
            .as_ref()
            .and_then(|all| all.get(&format!("{PREFIX}{name}")).map(|value| reported::text(value)))
    };
    NodeAnnotations { retry: annotation("retry"), confirm: annotation("confirm") }
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
    let condition = own_condition(&node);
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

/// The condition Ready; `None` while there is none.
pub(super) fn node_readiness(node: &NodeView) -> Option<NodeReadiness> {
    let conditions = node.status.conditions.as_ref()?.as_array()?;
    let ready = conditions.iter().find(|condition| text(condition, "type") == "Ready")?;
    let parts = [text(ready, "reason"), text(ready, "message")];
    let parts: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    Some(NodeReadiness {
        ready: text(ready, "status") == "True",
        heartbeat: reported::text(text(ready, "lastHeartbeatTime")),
        message: reported::text(&parts.join(": ")),
        pressure: NodePressure::ALL.into_iter().filter(|pressure| is_true(conditions, pressure.condition())).collect(),
    })
}

fn is_true(conditions: &[Value], kind: &str) -> bool {
    conditions.iter().any(|condition| text(condition, "type") == kind && text(condition, "status") == "True")
}

/// Our own condition, as the Node has it.
fn own_condition(node: &NodeView) -> Option<Value> {
    let conditions = node.status.conditions.as_ref()?.as_array()?;
    conditions.iter().find(|condition| text(condition, "type") == CONDITION).cloned()
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
        has_supplemental_groups_policy: pods::has_supplemental_groups_policy(node.status.features.as_ref()),
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
        Err(error) => LeaseObservation::Unreachable(chain(&error)),
    }
}

pub(super) fn pod_summary(pod: PodView) -> PodSummary {
    let meta = pod.metadata;
    let who = PodSummary {
        is_static: pods::is_static(meta.annotations.as_ref()),
        os_label: meta.labels.and_then(|mut labels| labels.remove(pods::OS_LABEL)).unwrap_or_default(),
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
        if !is_safe_component(value) || is_uid_on_node(value) {
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
mod tests {
    use super::*;
    use serde_json::json;

    fn node(node: Value) -> NodeView {
        serde_json::from_value(node).unwrap()
    }

    /// As a v1.20.2 kubelet fills it in, shortened.
    #[test]
    fn a_node_as_a_kubelet_reports_it() {
        let node = node(json!({
            "metadata": {"name": "n1", "annotations": {"kubelet-supervisor.io/retry": "222", "other": "x"}, "labels": {"a": "b"}},
            "status": {
                "capacity": {"cpu": "2", "memory": "8010444Ki", "pods": "110", "odd": 7},
                "allocatable": {"cpu": "1900m"},
                "conditions": [
                    {"type": "MemoryPressure", "status": "False", "lastHeartbeatTime": "2026-01-01T00:00:00Z"},
                    {"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-01T00:00:01Z",
                     "reason": "KubeletReady", "message": "kubelet is posting ready status"}
                ],
                "features": {"supplementalGroupsPolicy": true},
                "images": [{"names": ["a"], "sizeBytes": 1}]
            }
        }));
        let summary = node_readiness(&node).unwrap();
        assert!(summary.ready);
        assert_eq!(summary.heartbeat, "2026-01-01T00:00:01Z");
        assert_eq!(summary.message, "KubeletReady: kubelet is posting ready status");
        assert!(summary.pressure.is_empty());
        let summary = node_summary(&node);
        assert_eq!((summary.name.as_str(), summary.capacity.len(), summary.allocatable.len()), ("n1", 3, 1));
        assert_eq!((summary.labels.unwrap()["a"].as_str(), summary.has_supplemental_groups_policy), ("b", true));
        assert_eq!(node_annotations(&node), NodeAnnotations { retry: Some("222".to_owned()), confirm: None });
        assert_eq!(assignment(&node, "ns"), Assignment::Local);
    }

    #[test]
    fn pressure_by_conditions_that_are_true() {
        let of = |memory: &str, disk: &str, pid: &str| {
            let condition = |kind: &str, status: &str| json!({"type": kind, "status": status});
            let conditions =
                [("MemoryPressure", memory), ("DiskPressure", disk), ("PIDPressure", pid), ("Ready", "True")];
            let conditions = conditions.map(|(kind, status)| condition(kind, status));
            let found = node_readiness(&node(json!({"metadata": {}, "status": {"conditions": conditions}})));
            found.unwrap().pressure.into_iter().collect::<Vec<_>>()
        };
        assert_eq!(of("True", "False", "True"), [NodePressure::Memory, NodePressure::Pid]);
        assert_eq!(of("Unknown", "True", "x"), [NodePressure::Disk]);
    }

    #[test]
    fn config_source_wins_over_labels() {
        let label = |part: &str| format!("{}{part}", assignment::LABELS);
        let reference = |namespace: &str, name: &str| {
            Assignment::Map(ConfigMapRef {
                namespace: namespace.into(),
                name: name.into(),
                kubelet_config_key: "kubelet".into(),
            })
        };
        let metadata = json!({"name": "n1", "labels": {label("name"): "a"}});
        assert_eq!(assignment(&node(json!({"metadata": metadata})), "ns"), reference("ns", "a"));
        let source = json!({"configMap": {"namespace": "n", "name": "b", "kubeletConfigKey": "kubelet"}});
        let both = node(json!({"metadata": metadata, "spec": {"configSource": source}}));
        assert_eq!(assignment(&both, "ns"), reference("n", "b"));
        let nil = node(json!({"metadata": metadata, "spec": {"configSource": null}}));
        assert_eq!(assignment(&nil, "ns"), reference("ns", "a"), "null is absent");
    }

    #[test]
    fn a_malformed_source_is_not_taken_for_none() {
        for map in [json!({}), json!([]), json!("x"), json!({"namespace": "n", "name": 7, "kubeletConfigKey": "k"})] {
            let node = node(json!({"metadata": {}, "spec": {"configSource": {"configMap": map}}}));
            let Assignment::Invalid(why) = assignment(&node, "ns") else { panic!("{map}") };
            assert!(why.contains("spec.configSource.configMap"), "{why}");
        }
        let nil = node(json!({"metadata": {}, "spec": {"configSource": {"configMap": null}}}));
        assert_eq!(assignment(&nil, "ns"), Assignment::AllNil);
    }

    #[test]
    fn odd_fields_fail_nothing() {
        for status in [
            json!({}),
            json!({"conditions": null, "capacity": null}),
            json!({"conditions": "x", "capacity": []}),
            json!({"conditions": [1, {}, {"type": 3}], "config": 7}),
        ] {
            let node = node(json!({"metadata": {"name": "n1"}, "spec": {"configSource": 5}, "status": status}));
            assert_eq!(node_readiness(&node), None);
            assert!(node_summary(&node).capacity.is_empty());
            assert_eq!(assignment(&node, "ns"), Assignment::AllNil);
        }
        let node = node(
            json!({"metadata": {}, "status": {"conditions": [{"type": "Ready", "status": "Unknown", "lastHeartbeatTime": 1}]}}),
        );
        assert_eq!(node_readiness(&node), Some(NodeReadiness::default()));
    }

    fn refusal(code: u16) -> Result<LeaseView, Error> {
        let status: kube::core::Status = serde_json::from_value(json!({"code": code, "message": "scripted"})).unwrap();
        Err(Error::Api(status.boxed()))
    }

    #[test]
    fn only_an_answer_about_the_lease_counts() {
        let lease =
            |spec: Value| Ok(serde_json::from_value(json!({"metadata": {"name": "n1"}, "spec": spec})).unwrap());
        let time = "2026-01-01T00:00:01.123456Z";
        assert_eq!(lease_observation(lease(json!({"renewTime": time}))), LeaseObservation::Renewed(time.to_owned()));
        assert_eq!(lease_observation(lease(json!({}))), LeaseObservation::Absent);
        assert_eq!(lease_observation(lease(json!({"renewTime": null}))), LeaseObservation::Absent);
        assert_eq!(lease_observation(lease(Value::Null)), LeaseObservation::Absent);
        for code in [403, 404] {
            assert_eq!(lease_observation(refusal(code)), LeaseObservation::Absent, "{code}");
        }
        for code in [408, 429, 500, 503] {
            assert_eq!(lease_observation(refusal(code)), LeaseObservation::Busy("scripted".into()), "{code}");
        }
        assert!(
            matches!(lease_observation(refusal(401)), LeaseObservation::Unreachable(why) if why.contains("scripted"))
        );
    }

    fn requests(spec: &Value) -> (u64, u64) {
        let pod = json!({"metadata": {"name": "p", "namespace": "d", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": spec, "status": {"phase": "Failed", "reason": "OutOfpods"}});
        let summary = pod_summary(serde_json::from_value(pod).unwrap());
        assert_eq!((summary.name.as_str(), summary.created.as_str()), ("d/p", "2026-01-01T00:00:00Z"));
        assert_eq!(
            (summary.phase.as_str(), summary.reason.as_str(), summary.is_live()),
            ("Failed", "OutOfpods", false)
        );
        let amount = |resource: &str| summary.requests.get(resource).copied().unwrap_or_default();
        (amount("cpu"), amount("memory"))
    }

    #[test]
    fn what_a_pod_asks_for() {
        let asks = |cpu: &str, memory: &str| json!({"name": "c", "resources": {"requests": {"cpu": cpu, "memory": memory}, "limits": {"cpu": "9"}}});
        let containers = json!([asks("250m", "64Mi"), asks("1", "1Mi"), {"name": "none"}]);
        assert_eq!(requests(&json!({"containers": containers})), (1250, 65 << 20));
        let init = json!([asks("2", "1Mi"), asks("100m", "1Mi")]);
        assert_eq!(requests(&json!({"containers": containers, "initContainers": init})), (2000, 65 << 20));
        let mut sidecar = asks("500m", "1Mi");
        sidecar["restartPolicy"] = json!("Always");
        let init = json!([sidecar, asks("2", "1Mi")]);
        assert_eq!(requests(&json!({"containers": containers, "initContainers": init})), (2500, 66 << 20));
        let whole =
            json!({"containers": containers, "resources": {"requests": {"cpu": "3"}}, "overhead": {"cpu": "10m"}});
        assert_eq!(requests(&whole), (3010, 65 << 20));
        assert_eq!(requests(&json!({})), (0, 0));
        assert_eq!(
            requests(&json!({"containers": [{"resources": {"requests": {"cpu": 1, "memory": "much"}}}]})),
            (0, 0)
        );
    }

    #[test]
    fn a_config_map_with_its_wishes() {
        let map = json!({"metadata": {"name": "m", "namespace": "n", "uid": "u", "resourceVersion": "7",
            "annotations": {"kubelet-supervisor.io/acknowledge": "reboot", "other": "x"}}, "data": {"kubelet": "x"}, "binaryData": {"a": "AA=="}});
        let payload = payload(serde_json::from_value(map).unwrap());
        assert_eq!((payload.uid.as_str(), payload.resource_version.as_str(), payload.data.len()), ("u", "7", 1));
        assert_eq!(
            payload.annotations,
            ConfigAnnotations { acknowledge: Some("reboot".to_owned()), ..ConfigAnnotations::default() }
        );
    }

    /// What the policy lets pass as root's own is named by uids that no API server gives.
    #[test]
    fn no_config_map_passes_for_files_of_the_node() {
        let fault = |uid: &str| {
            let map =
                json!({"metadata": {"namespace": "local", "name": "local-files", "uid": uid, "resourceVersion": "7"}});
            fault_of(&serde_json::from_value(map).unwrap())
        };
        for uid in ["local-files", "source-dir", "../x", ""] {
            let text = format!("ConfigMap local/local-files: metadata.uid {uid:?} is not a uid; not taken up");
            assert_eq!(fault(uid), Some(text));
        }
        assert_eq!(fault("5eed0000-0000-4000-8000-000000000002"), None);
    }
}
