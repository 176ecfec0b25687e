//! The two kinds of patch that the supervisor's clients send.

use serde_json::{Map, Value};

/// RFC 7396. Lists are replaced.
pub fn merge(target: &mut Value, patch: &Value) {
    merge_with(target, patch, false);
}

/// Strategic merge, as far as Nodes need it: RFC 7396, but the elements of the lists that the API declares with
/// `patchMergeKey=type` are merged one by one.
pub fn strategic_merge(target: &mut Value, patch: &Value) {
    merge_with(target, patch, true);
}

fn merge_with(target: &mut Value, patch: &Value, strategic: bool) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let target = target.as_object_mut().expect("made one above");
    for (key, value) in patch {
        // `$setElementOrder/conditions` and its kind; the order of conditions means nothing.
        if strategic && key.starts_with('$') {
            continue;
        }
        match value {
            Value::Null => {
                target.remove(key);
            }
            Value::Array(elements) if strategic && matches!(key.as_str(), "conditions" | "addresses") => {
                merge_by_type(target.entry(key).or_insert_with(|| Value::Array(Vec::new())), elements);
            }
            _ => merge_with(target.entry(key).or_insert(Value::Null), value, strategic),
        }
    }
}

fn merge_by_type(list: &mut Value, elements: &[Value]) {
    if !list.is_array() {
        *list = Value::Array(Vec::new());
    }
    let list = list.as_array_mut().expect("made one above");
    for element in elements {
        if element["$patch"] == "delete" {
            list.retain(|old| old["type"] != element["type"]);
        } else if let Some(old) = list.iter_mut().find(|old| old["type"] == element["type"]) {
            merge_with(old, element, true);
        } else {
            list.push(element.clone());
        }
    }
}
