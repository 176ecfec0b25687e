//! What an administrator writes and reads: ConfigMaps, the assignment on either carrier, and the status of it.

use std::path::Path;

use serde_json::{Map, Value, json};

use crate::cluster::{Cluster, until};
use crate::versions;

/// The labels of an assignment begin with this; the domain is the one that NodeRestriction keeps a node from.
pub const LABEL: &str = "kubelet-config.node-restriction.kubernetes.io";
pub const STATUS: &str = "kubelet-supervisor.io/config-status";

/// Where an assignment is written, and by that the kind of API server: one with the gate `DynamicKubeletConfig` on, or
/// one without it, which drops `spec.configSource` and `status.config`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    Native,
    Labels,
}

impl Carrier {
    pub fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Labels => "labels",
        }
    }

    /// Where the suite keeps its ConfigMaps: native's usual place, and the namespace the manifests open to nodes.
    pub fn namespace(self) -> &'static str {
        match self {
            Self::Native => "kube-system",
            Self::Labels => "kubelet-config",
        }
    }

    /// Further flags of the API server.
    pub fn server_flags(self) -> &'static str {
        match (self, versions::keeps_config_source()) {
            (Self::Native, _) => "--feature-gates=DynamicKubeletConfig=true",
            (Self::Labels, true) => "--feature-gates=DynamicKubeletConfig=false",
            (Self::Labels, false) => "", // the gate is gone
        }
    }
}

/// A ConfigMap as the API server has it.
#[derive(Clone, Debug)]
pub struct ConfigMap {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub version: String,
}

impl ConfigMap {
    fn of(object: &Value) -> Self {
        let field = |name: &str| object["metadata"][name].as_str().unwrap().to_owned();
        Self {
            namespace: field("namespace"),
            name: field("name"),
            uid: field("uid"),
            version: field("resourceVersion"),
        }
    }

    /// As a source in `status.config`, key `kubelet`.
    pub fn source(&self) -> Value {
        json!({ "configMap": {
            "namespace": self.namespace, "name": self.name, "kubeletConfigKey": "kubelet",
            "uid": self.uid, "resourceVersion": self.version,
        }})
    }

    /// How native's event names it.
    pub fn event_text(&self) -> String {
        format!("{}, UID: {}, ResourceVersion: {}, KubeletConfigKey: kubelet", self.path(), self.uid, self.version)
    }

    pub fn path(&self) -> String {
        format!("/api/v1/namespaces/{}/configmaps/{}", self.namespace, self.name)
    }
}

/// The four fields of a NodeConfigStatus, null and "" where it has none.
fn fields(status: &Value) -> Value {
    json!({
        "assigned": status["assigned"], "active": status["active"], "lastKnownGood": status["lastKnownGood"],
        "error": status["error"].as_str().unwrap_or_default(),
    })
}

impl Cluster {
    /// The local configuration with more lines.
    pub fn payload(&self, lines: &str) -> String {
        let local = std::fs::read_to_string(Path::new(self.var("KUBELET_CONFIG"))).unwrap();
        format!("{local}{lines}\n")
    }

    /// Makes a ConfigMap with the local configuration and more lines under the key `kubelet`.
    pub fn good(&self, name: &str, lines: &str) -> ConfigMap {
        self.good_in(self.carrier.namespace(), name, lines)
    }

    pub fn good_in(&self, namespace: &str, name: &str, lines: &str) -> ConfigMap {
        self.map_in(namespace, name, &json!({ "data": { "kubelet": self.payload(lines) } }))
    }

    /// The same, assigned at once.
    pub fn assign_new(&self, name: &str, lines: &str) -> ConfigMap {
        let map = self.good(name, lines);
        self.assign(&map);
        map
    }

    /// Makes a ConfigMap: `data`, `binaryData` and the like come from `rest`.
    pub fn map(&self, name: &str, rest: &Value) -> ConfigMap {
        self.map_in(self.carrier.namespace(), name, rest)
    }

    fn map_in(&self, namespace: &str, name: &str, rest: &Value) -> ConfigMap {
        let mut body = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": {} });
        body.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        body["metadata"]["name"] = json!(name);
        ConfigMap::of(&self.ask("POST", &format!("/api/v1/namespaces/{namespace}/configmaps"), Some(&body)))
    }

    pub fn edit_map(&self, map: &ConfigMap, patch: &Value) -> ConfigMap {
        ConfigMap::of(&self.ask("PATCH", &map.path(), Some(patch)))
    }

    pub fn delete_map(&self, map: &ConfigMap) {
        self.ask("DELETE", &map.path(), None);
    }

    pub fn get_map(&self, name: &str) -> ConfigMap {
        let path = format!("/api/v1/namespaces/{}/configmaps/{name}", self.carrier.namespace());
        ConfigMap::of(&self.ask("GET", &path, None))
    }

    /// Assigns by this cluster's carrier.
    pub fn assign(&self, map: &ConfigMap) {
        match self.carrier {
            Carrier::Native => self.assign_by_source(map),
            Carrier::Labels => self.assign_by_labels(map),
        }
    }

    pub fn assign_by_source(&self, map: &ConfigMap) {
        let source = json!({ "namespace": map.namespace, "name": map.name, "kubeletConfigKey": "kubelet" });
        self.ask("PATCH", &self.node_path(), Some(&json!({ "spec": { "configSource": { "configMap": source } } })));
    }

    pub fn assign_by_labels(&self, map: &ConfigMap) {
        self.label(&[("name", Some(&map.name)), ("namespace", Some(&map.namespace)), ("key", None)]);
    }

    /// Sets and removes labels of an assignment, as an administrator.
    pub fn label(&self, labels: &[(&str, Option<&str>)]) {
        let labels: Map<String, Value> =
            labels.iter().map(|(name, value)| (format!("{LABEL}/{name}"), json!(value))).collect();
        self.ask("PATCH", &self.node_path(), Some(&json!({ "metadata": { "labels": labels } })));
    }

    /// Withdraws the assignment.
    pub fn reset(&self) {
        match self.carrier {
            Carrier::Native => self.clear_source(),
            Carrier::Labels => self.clear_labels(),
        }
    }

    pub fn clear_source(&self) {
        self.ask("PATCH", &self.node_path(), Some(&json!({ "spec": { "configSource": null } })));
    }

    pub fn clear_labels(&self) {
        self.label(&[("name", None), ("namespace", None), ("key", None)]);
    }

    /// Withdraws whatever any carrier says.
    pub fn reset_all(&self) {
        self.clear_source();
        self.clear_labels();
    }

    /// The status of the configuration as the Node has it: in our annotation, and where the API server keeps
    /// `status.config` there too, with the same content.
    pub fn config_status(&self) -> Result<Value, String> {
        let node = self.api("GET", &self.node_path(), None)?;
        let text = node["metadata"]["annotations"][STATUS].as_str().unwrap_or("{}");
        let ours = fields(&serde_json::from_str(text).map_err(|error| format!("{error}: {text}"))?);
        let config = &node["status"]["config"];
        match self.carrier {
            Carrier::Native if fields(config) != ours => Err(format!("status.config {config:#}, annotation {ours:#}")),
            Carrier::Labels if !config.is_null() => panic!("this API server was to drop status.config: {config:#}"),
            _ => Ok(ours),
        }
    }

    /// Assigns it, and waits until it is last known good.
    pub fn prove(&self, map: &ConfigMap) {
        self.assign(map);
        self.await_proven(map);
    }

    /// Waits until this version is assigned, active and last known good, and nothing is wrong with it.
    pub fn await_proven(&self, map: &ConfigMap) {
        let source = map.source();
        self.await_config(&source, &source, &source, "");
    }

    /// Waits for exactly this status on the Node; null is local, "" no error.
    pub fn await_config(&self, assigned: &Value, active: &Value, lkg: &Value, error: &str) {
        let wanted = json!({ "assigned": assigned, "active": active, "lastKnownGood": lkg, "error": error });
        until(&format!("the Node's configuration status {wanted:#}"), || {
            let seen = self.config_status()?;
            if seen == wanted { Ok(()) } else { Err(format!("{seen:#}")) }
        });
    }
}
