//! YAML as the kubelet reads it: whatever a configuration is made of is read here. (The plugin writes YAML with the same
//! crate, and reads its kubeconfig by kube; the stand-in kubelet of the tests has a reading of its own.)
//!
//! The kubelet parses with sigs.k8s.io/yaml: YAML 1.1 booleans and octals, duplicate keys refused
//! by the strict pass and accepted (last wins) by the lenient one.

mod fault;

use serde::de::IgnoredAny;
use serde_json::{Number, Value};
use serde_yaml::{Budget, DuplicateKeyPolicy, Options};

use fault::{MAX_DEPTH, MAX_NODES};

/// A ConfigMap holds 1 MiB at the most; a local file that is larger is not a kubelet's.
pub const MAX_BYTES: usize = 1 << 20;

/// A parsed document.
#[derive(Clone, Debug, PartialEq)]
pub struct Document {
    /// The content as JSON, integral floats folded to integers.
    pub value: Value,
    /// The field that stands twice, and where: the last one won, as in the kubelet's lenient pass.
    pub duplicate: Option<String>,
}

/// Parses one YAML or JSON document.
///
/// # Errors
/// A line with the place, the reason (not YAML, too large, more than one document, nested or aliased beyond reason, not a
/// mapping) and what to write instead.
pub fn parse(text: &str) -> Result<Document, String> {
    if text.len() > MAX_BYTES {
        return Err(format!("{} bytes are more than the limit of {MAX_BYTES}", text.len()));
    }
    if text.trim().is_empty() {
        return Err("it is empty".to_owned());
    }
    let (value, duplicate) = match serde_yaml::from_str_with_options(text, options(DuplicateKeyPolicy::Error)) {
        Ok(value) => (value, None),
        Err(strict) => match serde_yaml::from_str_with_options(text, options(DuplicateKeyPolicy::LastWins)) {
            Ok(value) => (value, Some(fault::duplicate(&strict))),
            Err(lenient) => return Err(fault::explain(&lenient)),
        },
    };
    let mut value: Value = value;
    // JSON is not converted: to the kubelet `1.0` is no integer there.
    if serde_json::from_str::<IgnoredAny>(text).is_err() {
        fold_integers(&mut value);
    }
    match value {
        Value::Object(_) => Ok(Document { value, duplicate }),
        other => Err(format!("it is {}, not a mapping of fields (NAME: VALUE)", kind_of(&other))),
    }
}

fn options(duplicate_keys: DuplicateKeyPolicy) -> Options {
    let mut budget = Budget::default();
    budget.max_nodes = MAX_NODES;
    budget.max_events = 100_000;
    budget.max_depth = MAX_DEPTH;
    budget.max_aliases = 1_000;
    budget.max_anchors = 1_000;
    let mut options = Options::default();
    options.budget = Some(budget);
    options.alias_limits.max_total_replayed_events = 50_000;
    options.duplicate_keys = duplicate_keys;
    options.legacy_octal_numbers = true;
    options.with_snippet = false;
    options
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "empty",
        Value::Bool(_) | Value::Number(_) | Value::String(_) => "a single value",
        Value::Array(_) => "a list",
        Value::Object(_) => "a mapping",
    }
}

/// `1.0` is an integer to Go's decoder, which turns YAML into JSON; do the same.
#[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss, clippy::float_cmp)]
fn fold_integers(value: &mut Value) {
    match value {
        Value::Number(number) if number.is_f64() => {
            if let Some(float) = number.as_f64()
                && float.trunc() == float
                && float.abs() < 9.0e15
            {
                *value = Value::Number(Number::from(float as i64));
            }
        }
        Value::Array(items) => items.iter_mut().for_each(fold_integers),
        Value::Object(fields) => fields.values_mut().for_each(fold_integers),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    /// What sigs.k8s.io/yaml v1.2 makes of the same text: an upgrade of the parser must not drift.
    #[test]
    fn golden_dialect() {
        for (text, expected) in [
            ("a: yes", json!({"a": true})),
            ("a: on", json!({"a": true})),
            ("a: no", json!({"a": false})),
            ("a: off", json!({"a": false})),
            ("a: 'no'", json!({"a": "no"})),
            ("a: 0644", json!({"a": 420})),
            ("a: 0o644", json!({"a": 420})),
            ("a: 0xff", json!({"a": 255})),
            ("a: 1_000", json!({"a": 1000})),
            ("a: 08", json!({"a": 8})),
            ("a: 1.0", json!({"a": 1})),
            ("a: .5", json!({"a": 0.5})),
            ("a: 1e3", json!({"a": 1000})),
            ("a: 10m0s", json!({"a": "10m0s"})),
            ("a: ~", json!({"a": null})),
            ("a: |\n  x\n  y\n", json!({"a": "x\ny\n"})),
            ("{\"a\": [1, \"b\", null]}", json!({"a": [1, "b", null]})),
            ("x: &x {p: 1}\na:\n  <<: *x\n  q: 2\n", json!({"x": {"p": 1}, "a": {"p": 1, "q": 2}})),
            ("\u{feff}a: 1\r\n", json!({"a": 1})),
        ] {
            let parsed = parse(text).unwrap_or_else(|error| panic!("{text:?}: {error}"));
            assert_eq!(parsed.value, expected, "{text:?}");
            assert_eq!(parsed.duplicate, None, "{text:?}");
        }
    }

    #[test]
    fn a_duplicate_key_is_kept_last_and_reported() {
        let parsed = parse("a: 1\nb: 2\na: 3\n").unwrap();
        assert_eq!(parsed.value, json!({"a": 3, "b": 2}));
        assert!(parsed.duplicate.unwrap().contains('a'));
    }

    /// The fuzz target and the kubelet as an oracle found these (tests/fuzz).
    #[test]
    fn what_the_kubelet_makes_of_it() {
        assert_eq!(parse("a: 8.0").unwrap().value, json!({"a": 8}));
        assert_eq!(parse("{a: 8.0}").unwrap().value, json!({"a": 8}));
        assert_eq!(parse("{\"a\": 8.0}").unwrap().value, json!({"a": 8.0}), "JSON is not converted");
        let both = parse("a: 1\na: 2\n---\nb: 1\n").unwrap_err();
        assert!(both.contains("more than one YAML document"), "what the lenient pass refuses counts: {both}");
    }

    #[test]
    fn bad_documents_have_short_reasons() {
        for text in [
            "",
            "  \n",
            "- 1\n- 2\n",
            "just words",
            "a: [1, 2",
            "a: 1\n---\nb: 2\n",
            "a: .nan",
            "\u{0}\u{1}",
            "a: *missing",
        ] {
            let error = parse(text).expect_err(text);
            assert!(error.len() < 300 && !error.contains('\n'), "{text:?}: {error}");
        }
        assert!(parse("a: 1\n---\nb: 2\n").unwrap_err().contains("more than one YAML document"));
    }

    #[test]
    fn bombs_and_bulk_are_refused() {
        let mut bomb = String::from("a0: &a0 [x,x,x,x,x,x,x,x,x]\n");
        for level in 1..10 {
            let aliases = vec![format!("*a{}", level - 1); 9].join(",");
            bomb = format!("{bomb}a{level}: &a{level} [{aliases}]\n");
        }
        assert!(parse(&bomb).is_err());
        assert!(parse(&format!("a: {}{}", "[".repeat(500), "]".repeat(500))).is_err());
        assert!(parse(&format!("a: {}", "x".repeat(MAX_BYTES))).is_err());
        assert!(parse(&format!("a: {}", "x".repeat(MAX_BYTES - 10))).is_ok());
    }

    proptest! {
        #[test]
        fn never_panics(text in "[\\PC\\n\\t]{0,80}") {
            let _ = parse(&text);
        }
    }
}
