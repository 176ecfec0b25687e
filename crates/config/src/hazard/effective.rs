//! What a top-level field is in what the kubelet goes by.

use serde_json::Value;

use super::table::{self, Unset};

/// The value of a top-level field in what the kubelet goes by ([`crate::effective::value`]). What is not there is at its
/// default; null: that is not known here, or it has none.
#[must_use]
pub fn effective(config: &Value, field: &str) -> Value {
    let given = config.get(field).cloned().unwrap_or_default();
    match table::find(field).map(|hazard| hazard.unset) {
        Some(Unset::Struct(text)) => fill(read(text), given),
        Some(Unset::Absent(text) | Unset::Zeros(text)) if given.is_null() => read(text),
        Some(Unset::Like(other)) if given.is_null() && other != field => effective(config, other),
        _ => given,
    }
}

/// A default of the table.
pub(super) fn read(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_default()
}

/// Lays what is given of a struct over its defaults.
fn fill(default: Value, given: Value) -> Value {
    match (default, given) {
        (Value::Object(mut default), Value::Object(given)) => {
            for (name, value) in given {
                let below = default.remove(&name).unwrap_or_default();
                default.insert(name, fill(below, value));
            }
            Value::Object(default)
        }
        (default, Value::Null) => default,
        (_, given) => given,
    }
}
