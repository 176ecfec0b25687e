//! Fields of a KubeletConfiguration by their dotted paths, and what counts as the same configuration.

use serde_json::Value;

use kubelet_config::merge::leaves;
use kubelet_config::rendering::{self, PATH_FIELDS};

/// The dotted paths of all that is set.
pub(crate) fn paths(configuration: &Value) -> impl Iterator<Item = String> {
    leaves(configuration).into_iter().map(|(path, _)| path.join("."))
}

/// The value at a dotted path; names of entries may hold dots (`evictionHard.memory.available`).
pub(crate) fn at<'a>(value: &'a Value, path: &str) -> Option<&'a Value> {
    if let Some(found) = value.get(path) {
        return Some(found);
    }
    path.match_indices('.').find_map(|(dot, _)| at(value.get(path.get(..dot)?)?, path.get(dot + 1..)?))
}

/// Relative paths name other keys of a ConfigMap, which the supervisor makes absolute: where the
/// node's path ends alike, that is the same.
pub(crate) fn settle_paths(payload: &Value, running: &Value) -> Value {
    let mut payload = payload.clone();
    for path in PATH_FIELDS {
        let pointer = format!("/{}", path.join("/"));
        let Some(there) = running.pointer(&pointer).and_then(Value::as_str) else { continue };
        if let Some(Value::String(text)) = payload.pointer_mut(&pointer)
            && !text.is_empty()
            && !text.starts_with('/')
            && there.ends_with(&format!("/{text}"))
        {
            there.clone_into(text);
        }
    }
    payload
}

/// As it takes effect below a supervisor.
pub(crate) fn clean(value: &Value) -> Value {
    let mut value = value.clone();
    rendering::drop_native_gate(&mut value);
    value
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_by_their_paths() {
        assert_eq!(at(&json!({"a": {"b.c": {"d": 1}}}), "a.b.c.d"), Some(&json!(1)));
    }
}
