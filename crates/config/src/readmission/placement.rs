//! Where a pod may be: the labels that it asks of its node, and the taints that it tolerates.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use crate::flags::IDENTITY_LABELS;
use crate::pods::{NodeSummary, PodSummary};

/// Older names of two of [`IDENTITY_LABELS`], which a kubelet sets with them.
const BETA_LABELS: [&str; 2] = ["beta.kubernetes.io/os", "beta.kubernetes.io/arch"];

/// `NodeSelector`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct NodeSelector {
    #[serde(default)]
    node_selector_terms: Option<Vec<Term>>,
}

/// `NodeSelectorTerm`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Term {
    #[serde(default)]
    match_expressions: Option<Vec<Requirement>>,
    #[serde(default)]
    match_fields: Option<Vec<Requirement>>,
}

/// `NodeSelectorRequirement`.
#[derive(Deserialize)]
struct Requirement {
    key: String,
    operator: String,
    #[serde(default)]
    values: Option<Vec<String>>,
}

/// Whether the node has what the pod asks of it; `None` if that cannot be told.
///
/// nodeSelector and required node affinity against the labels of now. Every kubelet since 1.20 checks both at admission
/// (PodMatchesNodeSelectorAndAffinityTerms, pkg/scheduler/framework/plugins/helper/node_affinity.go, v1.20.2;
/// GetRequiredNodeAffinity, staging/src/k8s.io/component-helpers/scheduling/corev1/nodeaffinity, v1.36), for static and
/// critical pods too. 1.35 and later ask for the Node once more before they refuse: it says the same.
pub(super) fn matches(pod: &PodSummary, node: &NodeSummary) -> Option<bool> {
    if pod.node_selector.is_null() && pod.node_affinity.is_null() {
        return Some(true);
    }
    let Some(labels) = &node.labels else { return None };
    all([selector(&pod.node_selector, labels), affinity(&pod.node_affinity, node, labels)].into_iter())
}

fn selector(selector: &Value, labels: &BTreeMap<String, String>) -> Option<bool> {
    let entries = match selector {
        Value::Null => return Some(true),
        Value::Object(entries) => entries,
        _ => return None,
    };
    all(entries.iter().map(|(key, value)| settled(key, labels.get(key).map(String::as_str) == Some(value.as_str()?))))
}

fn affinity(required: &Value, node: &NodeSummary, labels: &BTreeMap<String, String>) -> Option<bool> {
    if required.is_null() {
        return Some(true);
    }
    let selector = NodeSelector::deserialize(required).ok()?;
    // One term is enough; none at all matches no node.
    let terms = selector.node_selector_terms.unwrap_or_default();
    any(terms.iter().map(|term| term.matches(node, labels)))
}

impl Term {
    /// All of it; a term that says nothing matches no node.
    fn matches(&self, node: &NodeSummary, labels: &BTreeMap<String, String>) -> Option<bool> {
        let (expressions, fields) = (self.match_expressions.iter().flatten(), self.match_fields.iter().flatten());
        if expressions.clone().chain(fields.clone()).next().is_none() {
            return Some(false);
        }
        let by_label = |one: &Requirement| settled(&one.key, one.holds(labels.get(&one.key).map(String::as_str))?);
        all(expressions.map(by_label).chain(fields.map(|one| one.holds_of_name(&node.name))))
    }
}

impl Requirement {
    /// Of a label's value (`Requirement.Matches`, staging/src/k8s.io/apimachinery/pkg/labels/selector.go, v1.20.2).
    fn holds(&self, label: Option<&str>) -> Option<bool> {
        let values = self.values.as_deref().unwrap_or_default();
        let is_one = |label: &str| values.iter().any(|value| value == label);
        let number = |text: &str| text.parse::<i64>().ok();
        let compared = |is: fn(&i64, &i64) -> bool| {
            let [value] = values else { return None };
            let bound = number(value)?;
            Some(label.and_then(number).is_some_and(|label| is(&label, &bound)))
        };
        match self.operator.as_str() {
            "In" => Some(label.is_some_and(is_one)),
            "NotIn" => Some(!label.is_some_and(is_one)),
            "Exists" => Some(label.is_some()),
            "DoesNotExist" => Some(label.is_none()),
            "Gt" => compared(i64::gt),
            "Lt" => compared(i64::lt),
            _ => None,
        }
    }

    /// Of the only field that there is, with the only operators that it has.
    fn holds_of_name(&self, name: &str) -> Option<bool> {
        let values = self.values.as_deref().unwrap_or_default();
        match (self.key.as_str(), self.operator.as_str(), values) {
            ("metadata.name", "In", [value]) if !name.is_empty() => Some(value == name),
            ("metadata.name", "NotIn", [value]) if !name.is_empty() => Some(value != name),
            _ => None,
        }
    }
}

/// A label that the kubelet sets anew when it registers, whatever somebody made of it, may not match now and still match then:
/// admission may come before that or after.
fn settled(key: &str, holds: bool) -> Option<bool> {
    let is_set_by_kubelet = IDENTITY_LABELS.contains(&key) || BETA_LABELS.contains(&key);
    (holds || !is_set_by_kubelet).then_some(holds)
}

/// False if one is, else unknown if one is.
fn all(parts: impl Iterator<Item = Option<bool>>) -> Option<bool> {
    let mut whole = Some(true);
    for part in parts {
        match part {
            Some(true) => {}
            Some(false) => return part,
            None => whole = None,
        }
    }
    whole
}

/// True if one is, else unknown if one is.
fn any(parts: impl Iterator<Item = Option<bool>>) -> Option<bool> {
    let not = |holds: Option<bool>| holds.map(|holds| !holds);
    not(all(parts.map(not)))
}

/// The first minor version that looks at taints.
const TAINTS_SINCE: u64 = 24;

/// Whether the pod tolerates the node's NoExecute taints; `None` if that cannot be told. A kubelet from 1.24 on refuses one that
/// does not, static pods excepted (`Admit`, pkg/kubelet/lifecycle/predicate.go, v1.36; not in v1.20.2). NoSchedule is nothing to it.
pub(super) fn tolerates_taints(pod: &PodSummary, node: &NodeSummary, minor: Option<u64>) -> Option<bool> {
    if pod.is_static || minor.is_some_and(|minor| minor < TAINTS_SINCE) {
        return Some(true);
    }
    let text = |taint: &Value, field: &str| taint.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
    let taints = node.taints.as_array().into_iter().flatten().filter(|taint| text(taint, "effect") == "NoExecute");
    match all(taints.map(|it| is_tolerated(&pod.tolerations, &text(it, "key"), &text(it, "value"), "NoExecute"))) {
        // Of a version that is not known nobody knows whether it looks.
        Some(false) => minor.map(|_| false),
        tolerated => tolerated,
    }
}

/// Whether one of the tolerations is for this taint.
pub(super) fn is_tolerated(tolerations: &Value, key: &str, value: &str, effect: &str) -> Option<bool> {
    let tolerations = tolerations.as_array().into_iter().flatten();
    any(tolerations.map(|toleration| tolerates(toleration, key, value, effect)))
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
