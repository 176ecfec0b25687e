//! The rig on an API server that drops `spec.configSource`: labels, the annotation and the condition.

use serde_json::{Value, json};

use super::{NODE, Rig, SOON, eventually};

const LABELS: &str = "kubelet-config.node-restriction.kubernetes.io/";
const ANNOTATION: &str = "kubelet-supervisor.io/config-status";

impl Rig {
    /// On a server since 1.26.
    pub fn modern() -> Rig {
        let rig = Rig::new();
        rig.server.drop_dynamic_config(true);
        rig
    }

    pub fn label(&self, labels: &[(&str, Option<&str>)]) {
        let labels: serde_json::Map<String, Value> =
            labels.iter().map(|(name, value)| (format!("{LABELS}{name}"), json!(value))).collect();
        self.server.patch_node(NODE, json!({"metadata": {"labels": labels}}));
    }

    /// Waits for the status in the annotation.
    pub fn wait_annotation(&self, what: &str, good: impl Fn(&Value) -> bool) -> Value {
        let node = self.server.wait_node(NODE, SOON, |node| good(&annotation(node)));
        annotation(&node.unwrap_or_else(|error| panic!("{what}: {error}")))
    }

    pub fn wait_condition(&self, status: &str, reason: &str) -> String {
        let is = |condition: &Value| condition["status"] == status && condition["reason"] == reason;
        let node = self.server.wait_node(NODE, SOON, |node| condition(node).is_some_and(is));
        let node = node.unwrap_or_else(|error| panic!("{status} {reason}: {error}"));
        condition(&node).unwrap()["message"].as_str().unwrap().to_owned()
    }

    pub fn wait_running(&self, max_pods: u64) {
        eventually(&format!("maxPods {max_pods}"), || (self.last_config()["maxPods"] == max_pods).then_some(()));
    }
}

pub fn annotation(node: &Value) -> Value {
    let text = node["metadata"]["annotations"][ANNOTATION].as_str().unwrap_or("null");
    serde_json::from_str(text).expect("the annotation is JSON")
}

pub fn condition(node: &Value) -> Option<&Value> {
    node["status"]["conditions"].as_array()?.iter().find(|condition| condition["type"] == "KubeletConfigOk")
}
