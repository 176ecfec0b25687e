//! `spec.nodeSelector`, with the meaning of a LabelSelector (apimachinery/pkg/apis/meta/v1/helpers.go, v1.20.2 and
//! v1.36.2).

use std::collections::BTreeMap;

use super::types::{NodeSelector, NodeSelectorRequirement, SelectorOperator};

impl NodeSelector {
    /// Whether a Node with these labels is selected. What has a fault selects none.
    pub(crate) fn selects(&self, labels: &BTreeMap<String, String>) -> bool {
        self.match_labels.iter().all(|(label, value)| labels.get(label) == Some(value))
            && self.match_expressions.iter().all(|requirement| requirement.holds(labels))
    }

    /// What no API server would take as a selector, which is that field.
    pub(crate) fn fault(&self, field: &str) -> Option<String> {
        self.match_expressions.iter().enumerate().find_map(|(index, requirement)| {
            let NodeSelectorRequirement { key, operator, .. } = requirement;
            (!requirement.is_valid()).then(|| {
                let wants = requirement.wants_values();
                let advice =
                    if wants { "needs values: add them, or use Exists" } else { "takes no values: use In or NotIn" };
                format!("{field}.matchExpressions[{index}] ({key}): operator {operator:?} {advice}")
            })
        })
    }
}

impl NodeSelectorRequirement {
    fn wants_values(&self) -> bool {
        matches!(self.operator, SelectorOperator::In | SelectorOperator::NotIn)
    }

    fn is_valid(&self) -> bool {
        self.wants_values() != self.values.is_empty()
    }

    fn holds(&self, labels: &BTreeMap<String, String>) -> bool {
        let value = labels.get(&self.key);
        let is_listed = value.is_some_and(|value| self.values.contains(value));
        match self.operator {
            _ if !self.is_valid() => false,
            SelectorOperator::In => is_listed,
            SelectorOperator::NotIn => !is_listed,
            SelectorOperator::Exists => value.is_some(),
            SelectorOperator::DoesNotExist => value.is_none(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn selects(selector: Value, labels: &[(&str, &str)]) -> bool {
        let selector: NodeSelector = serde_json::from_value(selector).unwrap();
        selector.selects(&labels.iter().map(|(label, value)| ((*label).to_owned(), (*value).to_owned())).collect())
    }

    #[test]
    fn labels_and_requirements_must_all_hold() {
        let both = json!({"matchLabels": {"pool": "a"}, "matchExpressions": [{"key": "zone", "operator": "In", "values": ["x", "y"]}]});
        assert!(selects(both.clone(), &[("pool", "a"), ("zone", "y")]));
        assert!(!selects(both.clone(), &[("pool", "a")]));
        assert!(!selects(both, &[("zone", "y")]));
        assert!(selects(json!({}), &[]), "an empty selector selects all");
    }

    #[test]
    fn a_label_that_is_not_there_is_not_in_any_list() {
        let of = |operator: &str, values: &[&str]| json!({"matchExpressions": [{"key": "gpu", "operator": operator, "values": values}]});
        assert!(selects(of("NotIn", &["a100"]), &[]));
        assert!(!selects(of("NotIn", &["a100"]), &[("gpu", "a100")]));
        assert!(selects(of("DoesNotExist", &[]), &[]));
        assert!(!selects(of("Exists", &[]), &[]));
    }

    #[test]
    fn values_go_with_the_operators_that_need_them() {
        for (operator, values, is_fault) in [
            ("In", json!([]), true),
            ("In", json!(["a"]), false),
            ("Exists", json!(["a"]), true),
            ("Exists", json!([]), false),
        ] {
            let selector = json!({"matchExpressions": [{"key": "k", "operator": operator, "values": values}]});
            let selector: NodeSelector = serde_json::from_value(selector).unwrap();
            assert_eq!(selector.fault("spec.nodeSelector").is_some(), is_fault, "{operator} {values}");
        }
    }
}
