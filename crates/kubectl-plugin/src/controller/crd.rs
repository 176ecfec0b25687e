//! The CustomResourceDefinition of pools, as `packaging/manifests/pools` ships it.

use kube::CustomResourceExt as _;
use serde_json::{Value, json};

use crate::fleet::pool::types::KubeletConfigPool;

/// What the derive makes of the types, and a default of the status: without one, kstatus takes a pool that no controller
/// has seen for one that is done.
#[must_use]
pub fn crd() -> Value {
    let mut crd = serde_json::to_value(KubeletConfigPool::crd()).unwrap_or_default();
    // Of a type of its own (int-or-string) the derive says that it may be null, and a null would take the default's place.
    let max = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/rollout/properties/maxUnavailable";
    crd.pointer_mut(max).and_then(Value::as_object_mut).and_then(|field| field.remove("nullable"));
    let status = crd.pointer_mut("/spec/versions/0/schema/openAPIV3Schema/properties/status");
    if let Some(status) = status.and_then(Value::as_object_mut) {
        status.insert("default".to_owned(), json!({"observedGeneration": -1}));
    }
    crd
}
