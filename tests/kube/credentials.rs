//! The kubelet's credentials: files of every kind and state, TLS and its errors, and two simulated days of rotation.

use serde_json::{Value, json};

mod files;
mod rotation_48h;
mod tls;
mod transport;

/// Another cluster in it cannot be used.
fn kubeconfig(cluster: &Value, user: &Value) -> Value {
    let mut cluster = cluster.clone();
    if cluster["server"].is_null() {
        cluster["server"] = json!("https://127.0.0.1:1");
    }
    json!({"apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": cluster}, {"name": "other", "cluster": {"certificate-authority": "/absent"}}],
        "users": [{"name": "c", "user": user}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}]})
}
