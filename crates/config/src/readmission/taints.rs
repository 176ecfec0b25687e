//! NoExecute taints. A kubelet from 1.24 on refuses a pod that does not tolerate one, static pods excepted (`Admit`,
//! pkg/kubelet/lifecycle/predicate.go, v1.36; not in v1.20.2). NoSchedule is nothing to it.

use serde_json::Value;

use crate::pods::{NodeSummary, PodSummary};

/// The first minor version that looks at taints.
const SINCE: u64 = 24;

/// Whether the pod tolerates what has to be tolerated; `None` if that cannot be told.
pub(super) fn are_tolerated(pod: &PodSummary, node: &NodeSummary, minor: Option<u64>) -> Option<bool> {
    if pod.is_static || minor.is_some_and(|minor| minor < SINCE) {
        return Some(true);
    }
    let text = |taint: &Value, field: &str| taint.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
    let all = node.taints.as_array().into_iter().flatten().filter(|taint| text(taint, "effect") == "NoExecute");
    let mut whole = Some(true);
    for taint in all {
        match is_tolerated(&pod.tolerations, &text(taint, "key"), &text(taint, "value"), "NoExecute") {
            Some(true) => {}
            // Of a version that is not known nobody knows whether it looks.
            Some(false) => return minor.map(|_| false),
            None => whole = None,
        }
    }
    whole
}

/// Whether one of the tolerations is for this taint.
pub(super) fn is_tolerated(tolerations: &Value, key: &str, value: &str, effect: &str) -> Option<bool> {
    let mut whole = Some(false);
    for toleration in tolerations.as_array().into_iter().flatten() {
        match tolerates(toleration, key, value, effect) {
            Some(true) => return Some(true),
            Some(false) => {}
            None => whole = None,
        }
    }
    whole
}

/// ToleratesTaint (staging/src/k8s.io/api/core/v1/toleration.go, v1.20.2 and v1.36).
fn tolerates(toleration: &Value, key: &str, value: &str, effect: &str) -> Option<bool> {
    let text = |field: &str| match toleration.get(field) {
        None | Some(Value::Null) => Some(""),
        Some(text) => text.as_str(),
    };
    let is_or_empty = |field: &str, wanted: &str| text(field).map(|text| text.is_empty() || text == wanted);
    if !is_or_empty("effect", effect)? || !is_or_empty("key", key)? {
        return Some(false);
    }
    match text("operator")? {
        "" | "Equal" => Some(text("value")? == value),
        "Exists" => Some(true),
        _ => None, // Lt and Gt, an alpha feature of 1.35
    }
}
