//! RFC 7396 JSON merge patch, and what such objects are made of.

use serde_json::Value;

/// Lays `patch` over `target`: objects merge per key, `null` deletes, all else replaces.
///
/// Recursion depth is bounded by the YAML parser's nesting limit.
pub fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(serde_json::Map::new());
    }
    let Value::Object(target) = target else { return };
    for (key, value) in patch {
        if value.is_null() {
            target.remove(key);
        } else {
            merge(target.entry(key.clone()).or_insert(Value::Null), value);
        }
    }
}

/// Each value that is no object with entries, by its path; null is none. Kind and version of a configuration are left out.
#[must_use]
pub fn leaves(configuration: &Value) -> Vec<(Vec<String>, &Value)> {
    fn walk<'a>(path: &[String], value: &'a Value, found: &mut Vec<(Vec<String>, &'a Value)>) {
        match value {
            Value::Null => {}
            Value::Object(fields) if !fields.is_empty() => {
                let is_shown = |name: &str| !path.is_empty() || !matches!(name, "apiVersion" | "kind");
                for (name, value) in fields.iter().filter(|(name, _)| is_shown(name)) {
                    walk(&[path, std::slice::from_ref(name)].concat(), value, found);
                }
            }
            _ if path.is_empty() => {}
            _ => found.push((path.to_vec(), value)),
        }
    }
    let mut found = Vec::new();
    walk(&[], configuration, &mut found);
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// The examples of RFC 7396, appendix A.
    #[test]
    fn rfc_7396_appendix_a() {
        let cases = [
            (json!({"a":"b"}), json!({"a":"c"}), json!({"a":"c"})),
            (json!({"a":"b"}), json!({"b":"c"}), json!({"a":"b","b":"c"})),
            (json!({"a":"b"}), json!({"a":null}), json!({})),
            (json!({"a":"b","b":"c"}), json!({"a":null}), json!({"b":"c"})),
            (json!({"a":["b"]}), json!({"a":"c"}), json!({"a":"c"})),
            (json!({"a":"c"}), json!({"a":["b"]}), json!({"a":["b"]})),
            (json!({"a":{"b":"c"}}), json!({"a":{"b":"d","c":null}}), json!({"a":{"b":"d"}})),
            (json!({"a":[{"b":"c"}]}), json!({"a":[1]}), json!({"a":[1]})),
            (json!(["a", "b"]), json!(["c", "d"]), json!(["c", "d"])),
            (json!({"a":"b"}), json!(["c"]), json!(["c"])),
            (json!({"a":"foo"}), json!(null), json!(null)),
            (json!({"e":null}), json!({"a":1}), json!({"e":null,"a":1})),
            (json!([1, 2]), json!({"a":"b","c":null}), json!({"a":"b"})),
            (json!({}), json!({"a":{"bb":{"ccc":null}}}), json!({"a":{"bb":{}}})),
        ];
        for (mut target, patch, expected) in cases {
            let before = target.clone();
            merge(&mut target, &patch);
            assert_eq!(target, expected, "{before} + {patch}");
        }
    }
}
