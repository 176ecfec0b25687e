//! Pods as API objects show them, counted as the kubelet's admission counts.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::hazard::quantity;

/// `Pod.spec`. What may be odd stays JSON.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSpecView {
    /// `containers`.
    pub containers: Option<Vec<ContainerView>>,
    /// `initContainers`.
    pub init_containers: Option<Vec<ContainerView>>,
    /// `overhead` of the runtime class, unread.
    pub overhead: Option<Value>,
    /// `resources` of the pod as a whole (v1.32), unread.
    pub resources: Option<Value>,
}

/// A container.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerView {
    /// `resources`, unread.
    pub resources: Option<Value>,
    /// `restartPolicy`, unread: `Always` makes an init container a sidecar.
    pub restart_policy: Option<Value>,
}

/// `Pod.status`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PodStatusView {
    /// `phase`, unread.
    pub phase: Option<Value>,
    /// `reason`, unread.
    pub reason: Option<Value>,
}

/// What admission counts of a pod; `identity` has what its metadata says.
#[must_use]
pub fn summarize(identity: PodSummary, spec: &PodSpecView, status: PodStatusView) -> PodSummary {
    let text = |value: Option<Value>| value.as_ref().and_then(Value::as_str).unwrap_or_default().to_owned();
    PodSummary {
        phase: text(status.phase),
        reason: text(status.reason),
        cpu_millis: requests(spec, "cpu", quantity::millis),
        memory: requests(spec, "memory", quantity::whole),
        ..identity
    }
}

/// What the kubelet's admission counts for a pod (PodRequests, component-helpers/resource, v1.36):
/// all containers together, or the largest init container if that is more; sidecars count with
/// both; a request of the pod as a whole stands for all of these; overhead comes on top.
fn requests(spec: &PodSpecView, resource: &str, read: fn(&str) -> Option<u64>) -> u64 {
    let amount = |from: Option<&Value>| from.and_then(|list| list.get(resource)).and_then(Value::as_str).and_then(read);
    let requested = |container: &ContainerView| {
        amount(container.resources.as_ref().and_then(|resources| resources.get("requests"))).unwrap_or_default()
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
    /// Sum of the containers' CPU requests (the largest init container's if more), millicores.
    pub cpu_millis: u64,
    /// The same for memory, bytes.
    pub memory: u64,
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
        let identity = PodSummary {
            uid: meta("uid"),
            name: format!("{}/{}", meta("namespace"), meta("name")),
            created: meta("creationTimestamp"),
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

/// The pods of the node, and what the node has for them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodInventory {
    /// All pods bound to it.
    pub pods: Vec<PodSummary>,
    /// `Node.status.capacity`, verbatim quantities; empty if unknown.
    pub capacity: BTreeMap<String, String>,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_as_the_api_server_has_it() {
        let object = json!({"metadata": {"name": "p", "namespace": "d", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"containers": [{"resources": {"requests": {"cpu": "250m", "memory": "1Mi"}}}]},
            "status": {"phase": "Running"}});
        let pod = PodSummary::from_object(&object);
        assert_eq!((pod.name.as_str(), pod.uid.as_str(), pod.created.as_str()), ("d/p", "u", "2026-01-01T00:00:00Z"));
        assert_eq!((pod.cpu_millis, pod.memory, pod.is_live()), (250, 1 << 20, true));
        for odd in [json!(null), json!({"metadata": 1, "spec": [], "status": "x"})] {
            assert_eq!(PodSummary::from_object(&odd), PodSummary { name: "/".to_owned(), ..PodSummary::default() });
        }
    }
}
