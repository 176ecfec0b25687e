//! What the kubelet takes a field for: the value given, or its default.

use std::time::Duration;

use serde_json::Value;

use super::table::{self, Unset};
use crate::duration::GoDuration;
use crate::merge::merge;

/// The value of a top-level field as the kubelet takes it; null where it is not set and has no
/// default we know.
#[must_use]
pub fn effective(config: &Value, field: &str) -> Value {
    let given = config.get(field).cloned().unwrap_or_default();
    let Some(hazard) = table::find(field) else { return given };
    let read = |text: &str| serde_json::from_str::<Value>(text).unwrap_or_default();
    match hazard.unset {
        // A list of CPUs, in which "0" is one of them.
        Unset::Zero if field == "reservedSystemCPUs" && given.as_str().is_some_and(|cpus| !cpus.is_empty()) => given,
        Unset::Zero if is_zero(&given) => Value::Null,
        Unset::Zeros(text) if is_zero(&given) => read(text),
        Unset::Absent(text) if given.is_null() => read(text),
        Unset::Struct(text) => fill(read(text), given),
        Unset::Like(other) if is_zero(&given) && other != field => effective(config, other),
        // The defaults stay for signals that are not given (1.35 and later).
        Unset::Absent(text)
            if field == "evictionHard" && config.get("mergeDefaultEvictionSettings") == Some(&true.into()) =>
        {
            let mut all = read(text);
            merge(&mut all, &given);
            all
        }
        _ => given,
    }
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
        // None of the texts below is a pointer in Go.
        (default, given @ Value::String(_)) if is_zero(&given) => default,
        (_, given) => given,
    }
}

/// Go's zero value.
fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty() || text.parse::<GoDuration>().is_ok_and(|zero| zero.0 == Duration::ZERO),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
    }
}
