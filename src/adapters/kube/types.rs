//! Slim views of Node, ConfigMap, Lease and Pod: one odd field must not fail a watch, and a Node's
//! fifty images need not be kept. What may be odd stays JSON; `sight.rs` reads it.

use std::borrow::Cow;
use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use kubelet_config::pods::{PodSpecView, PodStatusView};

/// A Node, as far as we look at it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct NodeView {
    /// Name, uid, resourceVersion.
    pub metadata: ObjectMeta,
    /// The assignment.
    #[serde(default)]
    pub spec: NodeSpecView,
    /// What is reported.
    #[serde(default)]
    pub status: NodeStatusView,
}

/// `Node.spec`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeSpecView {
    /// `configSource`, unread.
    pub config_source: Option<Value>,
}

/// `Node.status`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeStatusView {
    /// `config`, unread.
    pub config: Option<Value>,
    /// `conditions`, unread.
    pub conditions: Option<Value>,
    /// `capacity`, unread.
    pub capacity: Option<Value>,
}

/// A ConfigMap without its `binaryData`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ConfigMapView {
    /// Name, uid, resourceVersion, annotations.
    pub metadata: ObjectMeta,
    /// The payload.
    #[serde(default)]
    pub data: Option<BTreeMap<String, String>>,
}

/// A Lease.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct LeaseView {
    /// Name.
    pub metadata: ObjectMeta,
    /// `spec`, unread.
    #[serde(default)]
    pub spec: Option<Value>,
}

/// A Pod, as far as its place on a node goes.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct PodView {
    /// Name, namespace, uid, age.
    pub metadata: ObjectMeta,
    /// What it asks for.
    #[serde(default)]
    pub spec: PodSpecView,
    /// How it fares.
    #[serde(default)]
    pub status: PodStatusView,
}

macro_rules! resource {
    ($type:ty, $scope:ty, $group:literal, $kind:literal, $plural:literal) => {
        impl Resource for $type {
            type DynamicType = ();
            type Scope = $scope;

            fn kind((): &()) -> Cow<'_, str> {
                $kind.into()
            }
            fn group((): &()) -> Cow<'_, str> {
                $group.into()
            }
            fn version((): &()) -> Cow<'_, str> {
                "v1".into()
            }
            fn plural((): &()) -> Cow<'_, str> {
                $plural.into()
            }
            fn meta(&self) -> &ObjectMeta {
                &self.metadata
            }
            fn meta_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }
    };
}

resource!(NodeView, k8s_openapi::ClusterResourceScope, "", "Node", "nodes");
resource!(ConfigMapView, k8s_openapi::NamespaceResourceScope, "", "ConfigMap", "configmaps");
resource!(LeaseView, k8s_openapi::NamespaceResourceScope, "coordination.k8s.io", "Lease", "leases");
resource!(PodView, k8s_openapi::NamespaceResourceScope, "", "Pod", "pods");
