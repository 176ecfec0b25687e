//! Slim views of Node, ConfigMap, Lease and Pod: one odd field must not fail a watch, and a Node's
//! fifty images need not be kept. What may be odd stays JSON; `decode.rs` reads it.
//!
//! Not k8s-openapi's own types: they refuse a whole object for one field of an unexpected type, keep all fields in
//! memory, and have no `configSource` and no `status.config` any more.

use std::collections::BTreeMap;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

use kubelet_config::pods::{PodSpecView, PodStatusView};

/// A Node, as far as it is read.
#[derive(Clone, Debug, Default, Deserialize, Resource)]
#[resource(inherit = Node)]
pub(crate) struct NodeView {
    /// Name, uid, resourceVersion.
    pub(crate) metadata: ObjectMeta,
    /// The assignment.
    #[serde(default)]
    pub(crate) spec: NodeSpecView,
    /// What is reported.
    #[serde(default)]
    pub(crate) status: NodeStatusView,
}

/// `Node.spec`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct NodeSpecView {
    /// `configSource`, raw JSON.
    pub(crate) config_source: Option<Value>,
    /// `taints`, raw JSON.
    pub(crate) taints: Option<Value>,
}

/// `Node.status`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct NodeStatusView {
    /// `config`, raw JSON.
    pub(crate) config: Option<Value>,
    /// `conditions`, raw JSON.
    pub(crate) conditions: Option<Value>,
    /// `capacity`, raw JSON.
    pub(crate) capacity: Option<Value>,
    /// `allocatable`, raw JSON.
    pub(crate) allocatable: Option<Value>,
}

/// A ConfigMap without the content of its `binaryData`.
#[derive(Clone, Debug, Default, Deserialize, Resource)]
#[resource(inherit = ConfigMap)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ConfigMapView {
    /// Name, uid, resourceVersion, annotations.
    pub(crate) metadata: ObjectMeta,
    /// The payload.
    #[serde(default)]
    pub(crate) data: Option<BTreeMap<String, String>>,
    /// Its keys alone.
    #[serde(default)]
    #[expect(clippy::zero_sized_map_values, reason = "a set is not read from an object")]
    pub(crate) binary_data: Option<BTreeMap<String, IgnoredAny>>,
}

/// A Lease.
#[derive(Clone, Debug, Default, Deserialize, Resource)]
#[resource(inherit = Lease)]
pub(crate) struct LeaseView {
    /// Name.
    pub(crate) metadata: ObjectMeta,
    /// `spec`, raw JSON.
    #[serde(default)]
    pub(crate) spec: Option<Value>,
}

/// A Pod, as far as its place on a node goes.
#[derive(Clone, Debug, Default, Deserialize, Resource)]
#[resource(inherit = Pod)]
pub(crate) struct PodView {
    /// Name, namespace, uid, age.
    pub(crate) metadata: ObjectMeta,
    /// What it asks for.
    #[serde(default)]
    pub(crate) spec: PodSpecView,
    /// How it fares.
    #[serde(default)]
    pub(crate) status: PodStatusView,
}
