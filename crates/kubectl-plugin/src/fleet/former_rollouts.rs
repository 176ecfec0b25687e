//! Rollouts of earlier versions, which kept their state in ConfigMaps. Nobody carries them out any more: those that are not
//! over are told, with what ends them.

use serde_json::Value;

use kubelet_config::reported::text;

/// Label of a record.
pub(crate) const LABEL: &str = "kubelet-supervisor.io/rollout";

/// A record that is not over: its name, and where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FormerRollout {
    pub(crate) name: String,
    phase: String,
}

impl FormerRollout {
    /// None: it is over, and its nodes are free. One that cannot be read may not be.
    pub(crate) fn from_record(map: &Value) -> Option<Self> {
        let name = map.pointer("/metadata/labels").and_then(|labels| labels.get(LABEL)?.as_str()).unwrap_or_default();
        let record = map.pointer("/data/rollout").and_then(Value::as_str).unwrap_or_default();
        let record: Value = serde_json::from_str(record).unwrap_or_default();
        let phase = record.get("phase").and_then(Value::as_str).unwrap_or("Unreadable");
        let is_over = matches!(phase, "Done" | "Reverted" | "Aborted");
        (!is_over).then(|| Self { name: text(name), phase: text(phase) })
    }

    /// What it is, and what is missing.
    pub(crate) fn problem(&self, namespace: &str) -> String {
        format!(
            "rollout {} of an earlier version is not over ({}, ConfigMap rollout-{} in namespace {namespace}): nobody carries it out \
             any more, and its nodes are left alone",
            self.name, self.phase, self.name
        )
    }

    /// What ends it.
    pub(crate) fn mend(&self, namespace: &str) -> Vec<String> {
        let Self { name, .. } = self;
        vec![
            format!(
                "with the plugin of the version before: kubectl kubelet-config rollout resume {name} -n {namespace}, or abort, or undo"
            ),
            format!("or kubectl -n {namespace} delete configmaps -l {LABEL}={name}; nodes keep what they have"),
            format!(
                "nodes with the annotation kubelet-supervisor.io/cordoned-by-rollout: {name} are to be uncordoned by hand then: kubectl \
                 uncordon NODE"
            ),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn those_that_are_not_over() {
        let of = |phase: &str| {
            let record = json!({"phase": phase, "target": {}}).to_string();
            FormerRollout::from_record(&json!({"metadata": {"labels": {LABEL: "r"}}, "data": {"rollout": record}}))
        };
        for phase in ["Starting", "Running", "Paused", "Stopped", "Reverting", "Else"] {
            assert!(of(phase).unwrap().problem("ns").contains("ConfigMap rollout-r in namespace ns"), "{phase}");
        }
        for phase in ["Done", "Reverted", "Aborted"] {
            assert_eq!(of(phase), None);
        }
        assert!(FormerRollout::from_record(&json!({})).is_some(), "what cannot be read");
    }
}
