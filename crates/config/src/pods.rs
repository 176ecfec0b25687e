//! Pods as API objects show them, counted as the kubelet's admission counts.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::Value;

use super::hazard::quantity;

/// `Pod.spec`. What may be odd stays JSON: k8s-openapi's type refuses a whole list for one odd field, and this crate knows
/// no API library.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSpecView {
    /// `containers`.
    pub containers: Option<Vec<ContainerView>>,
    /// `initContainers`.
    pub init_containers: Option<Vec<ContainerView>>,
    /// `overhead` of the runtime class, raw JSON.
    pub overhead: Option<Value>,
    /// `resources` of the pod as a whole (v1.32), raw JSON.
    pub resources: Option<Value>,
    /// `nodeSelector`, raw JSON.
    pub node_selector: Option<Value>,
    /// `affinity`, raw JSON.
    pub affinity: Option<Value>,
    /// `priority`, raw JSON.
    pub priority: Option<Value>,
    /// `tolerations`, raw JSON.
    pub tolerations: Option<Value>,
}

/// A container.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerView {
    /// `name`, raw JSON.
    pub name: Option<Value>,
    /// `resources`, raw JSON.
    pub resources: Option<Value>,
    /// `restartPolicy`, raw JSON: `Always` makes an init container a sidecar.
    pub restart_policy: Option<Value>,
}

/// `Pod.status`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodStatusView {
    /// `phase`, raw JSON.
    pub phase: Option<Value>,
    /// `reason`, raw JSON.
    pub reason: Option<Value>,
    /// `qosClass`, raw JSON.
    pub qos_class: Option<Value>,
    /// `containerStatuses`, raw JSON.
    pub container_statuses: Option<Value>,
    /// `initContainerStatuses`, raw JSON.
    pub init_container_statuses: Option<Value>,
}

/// What admission counts of a pod; `identity` has what its metadata says.
#[must_use]
pub fn summarize(identity: PodSummary, spec: &PodSpecView, status: PodStatusView) -> PodSummary {
    let statuses = Statuses::of(&status);
    let affinity = spec.affinity.as_ref().and_then(|all| all.pointer(REQUIRED_AFFINITY));
    let text = |value: Option<Value>| value.as_ref().and_then(Value::as_str).unwrap_or_default().to_owned();
    PodSummary {
        is_best_effort: status.qos_class.as_ref().is_some_and(|class| class == "BestEffort"),
        phase: text(status.phase),
        reason: text(status.reason),
        requests: all_requests(spec, &statuses),
        is_critical: identity.is_static
            || spec.priority.as_ref().and_then(Value::as_i64).is_some_and(|priority| priority >= SYSTEM_CRITICAL),
        node_selector: spec.node_selector.clone().unwrap_or_default(),
        node_affinity: affinity.cloned().unwrap_or_default(),
        tolerations: spec.tolerations.clone().unwrap_or_default(),
        ..identity
    }
}

/// Where the node affinity that has to hold stands in `Pod.spec.affinity`.
const REQUIRED_AFFINITY: &str = "/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution";

/// Pods of this priority are critical (SystemCriticalPriority, pkg/apis/scheduling/types.go, v1.20.2).
const SYSTEM_CRITICAL: i64 = 2_000_000_000;

/// The annotation of a mirror pod, a static pod's shadow in the API server (ConfigMirrorAnnotationKey,
/// pkg/kubelet/types/pod_update.go, v1.20.2).
pub const MIRROR: &str = "kubernetes.io/config.mirror";

/// True if a pod with these annotations stands for a static pod.
#[must_use]
pub fn is_static(annotations: Option<&BTreeMap<String, String>>) -> bool {
    annotations.is_some_and(|all| all.contains_key(MIRROR))
}

/// An amount of a resource as admission compares it: CPU in millicores, anything else in its own unit.
pub(crate) fn amount(resource: &str, text: &str) -> Option<u64> {
    if resource == "cpu" { quantity::millis(text) } else { quantity::whole(text) }
}

/// What the status says of containers, by name.
struct Statuses(BTreeMap<String, Value>);

impl Statuses {
    fn of(status: &PodStatusView) -> Self {
        let lists = [&status.container_statuses, &status.init_container_statuses];
        let all = lists.into_iter().flatten().filter_map(Value::as_array).flatten();
        let named = |status: &Value| Some((status.get("name")?.as_str()?.to_owned(), status.clone()));
        Self(all.filter_map(named).collect())
    }

    /// What a container was allotted. Once pods can be resized in place a kubelet goes by what it keeps on record of that,
    /// and no longer by what is asked for (`getAllocatedPods`, pkg/kubelet/allocation/allocation_manager.go, v1.36; since
    /// 1.33). `allocatedResources` is not told by all versions that do.
    fn allotted(&self, container: &ContainerView, resource: &str) -> Option<u64> {
        let status = self.get(container)?;
        let of = |path: &str| amount(resource, status.pointer(path)?.get(resource)?.as_str()?);
        of("/allocatedResources").or_else(|| of("/resources/requests"))
    }

    fn get(&self, container: &ContainerView) -> Option<&Value> {
        self.0.get(container.name.as_ref()?.as_str()?)
    }
}

/// Init containers, too.
fn containers(spec: &PodSpecView) -> impl Iterator<Item = &ContainerView> {
    spec.containers.iter().flatten().chain(spec.init_containers.iter().flatten())
}

/// Requests above 0, by resource.
fn all_requests(spec: &PodSpecView, statuses: &Statuses) -> BTreeMap<String, u64> {
    let lists = containers(spec).map(|container| &container.resources).chain([&spec.resources]);
    let requests = lists.filter_map(|resources| resources.as_ref()?.get("requests"));
    let lists = requests.chain(&spec.overhead).filter_map(Value::as_object);
    let names: BTreeSet<&String> = lists.flat_map(|list| list.keys()).collect();
    let sums = names.into_iter().map(|name| (name.clone(), requests_of(spec, statuses, name)));
    sums.filter(|(_, sum)| *sum > 0).collect()
}

/// What the kubelet's admission counts for a pod (PodRequests, component-helpers/resource, v1.36):
/// all containers together, or the largest init container if that is more; sidecars count with
/// both; a request of the pod as a whole stands for all of these; overhead comes on top.
fn requests_of(spec: &PodSpecView, statuses: &Statuses, resource: &str) -> u64 {
    let amount = |from: Option<&Value>| amount(resource, from?.get(resource)?.as_str()?);
    let requested = |container: &ContainerView| {
        let asked = amount(container.resources.as_ref().and_then(|resources| resources.get("requests")));
        asked.map_or(0, |asked| statuses.allotted(container, resource).unwrap_or(asked))
    };
    let mut running: u64 = spec.containers.iter().flatten().map(requested).fold(0, u64::saturating_add);
    let (mut sidecars, mut starting) = (0_u64, 0_u64);
    for container in spec.init_containers.iter().flatten() {
        let own = requested(container);
        if container.restart_policy.as_ref().and_then(Value::as_str) == Some("Always") {
            running = running.saturating_add(own);
            sidecars = sidecars.saturating_add(own);
            starting = starting.max(sidecars);
        } else {
            starting = starting.max(sidecars.saturating_add(own));
        }
    }
    let whole = amount(spec.resources.as_ref().and_then(|resources| resources.get("requests")));
    whole.unwrap_or(running.max(starting)).saturating_add(amount(spec.overhead.as_ref()).unwrap_or_default())
}

/// A pod on this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodSummary {
    /// `metadata.uid`.
    pub uid: String,
    /// `namespace/name`.
    pub name: String,
    /// `metadata.creationTimestamp`, verbatim: it sorts.
    pub created: String,
    /// `status.phase`.
    pub phase: String,
    /// `status.reason`, such as `OutOfpods`, `Evicted`; empty if there is none.
    pub reason: String,
    /// What it requests above 0, by resource: CPU in millicores, anything else in its own unit (bytes, pieces).
    pub requests: BTreeMap<String, u64>,
    /// It stands for a static pod.
    pub is_static: bool,
    /// It was deleted (`metadata.deletionTimestamp`) and has not left yet.
    pub is_terminating: bool,
    /// The kubelet evicts others for it: a static pod, or one of a system priority.
    pub is_critical: bool,
    /// Its QoS class is BestEffort, as the API server has it.
    pub is_best_effort: bool,
    /// `spec.tolerations`; null if there are none.
    pub tolerations: Value,
    /// `spec.nodeSelector`; null if there is none.
    pub node_selector: Value,
    /// The node affinity that is required of a node; null if there is none.
    pub node_affinity: Value,
}

impl PodSummary {
    /// The pod of a whole API object; what is missing or odd is empty.
    #[must_use]
    pub fn from_object(object: &Value) -> Self {
        let meta = |field: &str| {
            let value = object.get("metadata").and_then(|meta| meta.get(field));
            value.and_then(Value::as_str).unwrap_or_default().to_owned()
        };
        let part = |name: &str| object.get(name).cloned().unwrap_or_default();
        let annotations = object.pointer("/metadata/annotations").and_then(Value::as_object);
        let identity = PodSummary {
            uid: meta("uid"),
            name: format!("{}/{}", meta("namespace"), meta("name")),
            created: meta("creationTimestamp"),
            is_static: annotations.is_some_and(|all| all.contains_key(MIRROR)),
            is_terminating: object.pointer("/metadata/deletionTimestamp").is_some_and(Value::is_string),
            ..PodSummary::default()
        };
        let spec = serde_json::from_value(part("spec")).unwrap_or_default();
        summarize(identity, &spec, serde_json::from_value(part("status")).unwrap_or_default())
    }

    /// True while it takes a place on the node.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.phase != "Failed" && self.phase != "Succeeded"
    }
}

/// The Node as admission looks at it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeSummary {
    /// `metadata.name`.
    pub name: String,
    /// `spec.taints`; null if there are none.
    pub taints: Value,
    /// `metadata.labels`; `None` while the Node was not seen.
    pub labels: Option<BTreeMap<String, String>>,
    /// `status.capacity`, verbatim quantities; empty if unknown.
    pub capacity: BTreeMap<String, String>,
    /// `status.allocatable`, the same.
    pub allocatable: BTreeMap<String, String>,
}

impl NodeSummary {
    /// The Node of a whole API object; what is missing or odd is left out.
    #[must_use]
    pub fn from_object(object: &Value) -> Self {
        let labels = object.pointer("/metadata/labels");
        Self {
            name: object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default().to_owned(),
            taints: object.pointer("/spec/taints").cloned().unwrap_or_default(),
            labels: Some(texts(labels)),
            capacity: texts(object.pointer("/status/capacity")),
            allocatable: texts(object.pointer("/status/allocatable")),
        }
    }
}

/// The entries of an object that are texts.
#[must_use]
pub fn texts(object: Option<&Value>) -> BTreeMap<String, String> {
    let entries = object.and_then(Value::as_object).into_iter().flatten();
    entries.filter_map(|(name, text)| Some((name.clone(), text.as_str()?.to_owned()))).collect()
}

/// The pods of the node, and what the node has for them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodInventory {
    /// All pods bound to it.
    pub pods: Vec<PodSummary>,
    /// Where they run, as it is now.
    pub node: NodeSummary,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A resize that the kubelet has not made yet is no request; one that it has made is, whatever is asked for by now.
    #[test]
    fn a_resized_container_counts_for_what_it_was_allotted() {
        let asked = json!({"requests": {"cpu": "3", "memory": "1Gi"}});
        let of = |status: Value| {
            let pod = PodSummary::from_object(&json!({"spec": {"containers": [{"name": "main", "resources": asked}]},
                "status": {"containerStatuses": [status]}}));
            (pod.requests["cpu"], pod.requests["memory"] >> 20)
        };
        let allotted = json!({"cpu": "1", "memory": "512Mi"});
        assert_eq!(of(json!({"name": "main"})), (3000, 1024));
        assert_eq!(of(json!({"name": "main", "allocatedResources": allotted})), (1000, 512));
        assert_eq!(of(json!({"name": "main", "resources": {"requests": allotted}})), (1000, 512));
        assert_eq!(
            of(json!({"name": "main", "allocatedResources": {"cpu": "2"}, "resources": {"requests": allotted}})),
            (2000, 512)
        );
        assert_eq!(of(json!({"name": "other", "allocatedResources": allotted})), (3000, 1024));
        assert_eq!(of(json!({"name": "main", "allocatedResources": {"cpu": 7}})), (3000, 1024), "odd");
    }

    #[test]
    fn a_pod_as_the_api_server_has_it() {
        let object = json!({"metadata": {"name": "p", "namespace": "d", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"containers": [{"resources": {"requests": {"cpu": "250m", "memory": "1Mi", "hugepages-2Mi": "4Mi", "x.y/gpu": "0"}}}],
                "overhead": {"ephemeral-storage": "1Ki"}, "nodeSelector": {"a": "b"}, "priority": 2_000_000_000,
                "tolerations": [{}]},
            "status": {"phase": "Running", "qosClass": "BestEffort"}});
        let pod = PodSummary::from_object(&object);
        assert_eq!((pod.name.as_str(), pod.uid.as_str(), pod.created.as_str()), ("d/p", "u", "2026-01-01T00:00:00Z"));
        let requests = [("cpu", 250), ("ephemeral-storage", 1 << 10), ("hugepages-2Mi", 4 << 20), ("memory", 1 << 20)];
        assert_eq!(pod.requests, requests.map(|(name, amount)| (name.to_owned(), amount)).into());
        assert_eq!((pod.is_live(), pod.is_critical, pod.is_static), (true, true, false));
        assert_eq!((pod.is_best_effort, pod.tolerations), (true, json!([{}])));
        assert_eq!((&pod.node_selector, &pod.node_affinity), (&json!({"a": "b"}), &Value::Null));
        let mirror =
            PodSummary::from_object(&json!({"metadata": {"annotations": {"kubernetes.io/config.mirror": "x"}}}));
        assert!(mirror.is_static && mirror.is_critical);
        for odd in [json!(null), json!({"metadata": 1, "spec": [], "status": "x"})] {
            assert_eq!(PodSummary::from_object(&odd), PodSummary { name: "/".to_owned(), ..PodSummary::default() });
        }
    }
}
