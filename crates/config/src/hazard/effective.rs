//! What a top-level field is in what the kubelet goes by.

use serde_json::Value;

use super::table::{self, Unset};
use crate::types::Type;

/// The value of a top-level field in what the kubelet goes by ([`crate::effective::value`]). What is not there is at its
/// default; null: that is not known here, or it has none.
#[must_use]
pub fn effective(config: &Value, field: &str) -> Value {
    let given = config.get(field).cloned().unwrap_or_default();
    let Some(hazard) = table::find(field) else { return given };
    match hazard.unset {
        Unset::Struct(text) => fill(hazard.of, read(text), given, |_, given| given.is_null()),
        Unset::Absent(text) | Unset::Zeros(text) if given.is_null() => read(text),
        Unset::Like(other) if given.is_null() && other != field => effective(config, other),
        _ => given,
    }
}

/// A default of the table.
pub(super) fn read(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_default()
}

/// Lays what is given of a struct over its defaults. `is_unset`: what counts as not given.
pub(super) fn fill(of: Type, default: Value, given: Value, is_unset: fn(Type, &Value) -> bool) -> Value {
    match (default, given) {
        (Value::Object(mut default), Value::Object(given)) => {
            for (name, value) in given {
                let below = default.remove(&name).unwrap_or_default();
                let filled = fill(of.entry(&name), below, value, is_unset);
                default.insert(name, filled);
            }
            Value::Object(default)
        }
        (default, given) if is_unset(of, &given) => default,
        (_, given) => given,
    }
}
