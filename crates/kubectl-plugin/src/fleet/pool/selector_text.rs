//! A label selector as kubectl takes it (`a=b,c in (x,y),!d`), as `spec.nodeSelector`
//! (apimachinery/pkg/labels/selector.go, v1.36.2).

use std::collections::{BTreeMap, BTreeSet};

use super::types::{NodeSelector, NodeSelectorRequirement, SelectorOperator};
use kubelet_config::assignment::is_subdomain;

/// Reads it.
///
/// # Errors
/// Which part is wrong, and how it would be right.
pub(crate) fn parse(text: &str) -> Result<NodeSelector, String> {
    let mut selector = NodeSelector::default();
    for term in terms(text)? {
        let NodeSelectorRequirement { key, operator, values } = requirement(term)?;
        match values.as_slice() {
            [value] if operator == SelectorOperator::In && !selector.match_labels.contains_key(&key) => {
                selector.match_labels.insert(key, value.clone());
            }
            _ => selector.match_expressions.push(NodeSelectorRequirement { key, operator, values }),
        }
    }
    if selector == NodeSelector::default() {
        return Err("it selects nothing in particular: name labels, such as pool=a".to_owned());
    }
    Ok(selector)
}

/// What stands between commas, but for those in parentheses.
fn terms(text: &str) -> Result<Vec<&str>, String> {
    let (mut terms, mut rest) = (Vec::new(), text);
    loop {
        let end = match (rest.find(','), rest.find('(')) {
            (Some(comma), Some(open)) if open < comma => {
                let close = rest.find(')').ok_or_else(|| format!("{:?}: the ) is missing", rest.trim()))?;
                rest.get(close..).and_then(|after| after.find(',')).map(|comma| close + comma)
            }
            (comma, _) => comma,
        };
        let (term, after) = match end.and_then(|end| rest.split_at_checked(end)) {
            Some((term, after)) => (term, after.strip_prefix(',')),
            None => (rest, None),
        };
        terms.extend(Some(term.trim()).filter(|term| !term.is_empty()));
        match after {
            Some(after) => rest = after,
            None => return Ok(terms),
        }
    }
}

fn requirement(term: &str) -> Result<NodeSelectorRequirement, String> {
    use SelectorOperator::{DoesNotExist, Exists, In, NotIn};
    let wrong = || format!("{term:?} is none of KEY, !KEY, KEY=VALUE, KEY!=VALUE, KEY in (A,B), KEY notin (A,B)");
    let (key, operator, values) = if let Some((head, list)) = term.split_once('(') {
        let list = list.strip_suffix(')').ok_or_else(wrong)?;
        let (key, word) = head.trim().rsplit_once(char::is_whitespace).ok_or_else(wrong)?;
        let operator = match word {
            "in" => In,
            "notin" => NotIn,
            _ => return Err(wrong()),
        };
        (key, operator, list.split(',').map(str::trim).collect())
    } else if let Some((key, value)) = term.split_once("!=") {
        (key, NotIn, vec![value.trim()])
    } else if let Some((key, value)) = term.split_once('=') {
        (key, In, vec![value.strip_prefix('=').unwrap_or(value).trim()])
    } else if let Some(key) = term.strip_prefix('!') {
        (key, DoesNotExist, Vec::new())
    } else {
        (term, Exists, Vec::new())
    };
    let key = key.trim();
    let (prefix, name) = key.rsplit_once('/').unwrap_or(("", key));
    let is_label = is_label_value(name) && !name.is_empty() && (prefix.is_empty() || is_subdomain(prefix, 253));
    if !is_label || (prefix.is_empty() && key.contains('/')) || !values.iter().all(|value| is_label_value(value)) {
        return Err(wrong());
    }
    let values = values.into_iter().map(str::to_owned).collect();
    Ok(NodeSelectorRequirement { key: key.to_owned(), operator, values })
}

fn is_label_value(text: &str) -> bool {
    let is_end = |c: Option<char>| c.is_none_or(|c| c.is_ascii_alphanumeric());
    text.len() <= 63
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
        && is_end(text.chars().next())
        && is_end(text.chars().last())
}

impl NodeSelector {
    /// Whether the two say the same, in whatever order and form.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.requirements() == other.requirements()
    }

    fn requirements(&self) -> BTreeMap<(&str, String), BTreeSet<BTreeSet<&str>>> {
        let labels = self.match_labels.iter();
        let labels = labels.map(|(key, value)| (key, SelectorOperator::In, std::slice::from_ref(value)));
        let expressions = self.match_expressions.iter().map(|it| (&it.key, it.operator, it.values.as_slice()));
        let mut all: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
        for (key, operator, values) in labels.chain(expressions) {
            let values = values.iter().map(String::as_str).collect();
            all.entry((key.as_str(), format!("{operator:?}"))).or_default().insert(values);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_kubectl_takes() {
        let selector = parse("pool=a, zone in (x, y),!gpu,disk!=hdd ,arch==arm64,a.b/c,t notin (u)").unwrap();
        let expected = json!({
            "matchLabels": {"pool": "a", "arch": "arm64"},
            "matchExpressions": [
                {"key": "zone", "operator": "In", "values": ["x", "y"]}, {"key": "gpu", "operator": "DoesNotExist"},
                {"key": "disk", "operator": "NotIn", "values": ["hdd"]}, {"key": "a.b/c", "operator": "Exists"},
                {"key": "t", "operator": "NotIn", "values": ["u"]},
            ],
        });
        let expected: NodeSelector = serde_json::from_value(expected).unwrap();
        assert_eq!(selector, expected);
        assert_eq!(selector.fault("spec.nodeSelector"), None);
        assert_eq!(parse("node-role.kubernetes.io/worker=").unwrap().match_labels.len(), 1, "an empty value is one");
        // Both hold, and so no node is selected.
        let both = parse("a=b,a=c").unwrap();
        assert_eq!((both.match_labels.len(), both.match_expressions.len()), (1, 1));
    }

    #[test]
    fn what_it_does_not_take() {
        for text in ["a in (b", "a in b,c", "a of (b)", "=b", "a=b=c", "a=ü", "a/=b", "/a=b", "a>1", "a in ()x", "!!a"]
        {
            assert!(parse(text).is_err(), "{text}");
        }
        for text in ["", " ", ","] {
            assert!(parse(text).unwrap_err().contains("nothing in particular"), "{text:?}");
        }
    }

    #[test]
    fn the_same_in_another_form() {
        let same = |one: &str, other: &str| parse(one).unwrap().is_same(&parse(other).unwrap());
        assert!(same("a=b,c in (x,y)", "c in (y,x),a in (b)"));
        assert!(!same("a=b", "a!=b") && !same("a=b", "a=b,c") && !same("a=b,a=c", "a=b"));
    }
}
