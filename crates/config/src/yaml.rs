//! YAML as the kubelet reads it: whatever a configuration is made of is read here. (The plugin writes YAML with the same
//! crate, and reads its kubeconfig by kube; the stand-in kubelet of the tests has a reading of its own.)
//!
//! The kubelet parses with sigs.k8s.io/yaml: scalars of YAML 1.1 after its own rules, and of a stream the first document.
//! Its strict pass refuses keys that stand twice, its lenient one takes the last.

mod compose;
mod fault;
mod scalar;

use serde::de::IgnoredAny;
use serde_json::Value;

use compose::{Composed, Dialect, compose};

/// A ConfigMap holds 1 MiB at the most; a local file that is larger is not a kubelet's.
pub const MAX_BYTES: usize = 1 << 20;

/// A parsed document.
#[derive(Clone, Debug, PartialEq)]
pub struct Document {
    /// The content as JSON; a float without a fraction is an integer.
    pub value: Value,
    /// The field that stands twice, and where: the last one won, as in the kubelet's lenient pass.
    pub duplicate: Option<String>,
    /// The line at which another document begins: of a file of the node, what a kubelet does not read.
    pub ignored_from: Option<usize>,
}

/// Parses one YAML or JSON document.
///
/// # Errors
/// A line with the place, the reason (not YAML, too large, more than one document, nested or aliased beyond reason, not a
/// mapping) and what to write instead.
pub fn parse(text: &str) -> Result<Document, String> {
    let found = read(text)?;
    match &found.rest {
        Some(fault) => Err(fault.explain()),
        None => document(found),
    }
}

/// Parses a file of the node as its kubelet does: the first document counts, and what begins with a brace is JSON
/// (`RecognizesData`, k8s.io/apimachinery, serializer/json/json.go, v1.20.2 to v1.36).
///
/// # Errors
/// As [`parse`]: the kubelet does not start with such a file.
pub fn parse_own(text: &str) -> Result<Document, String> {
    let found = read(text)?;
    if text.trim_start().starts_with('{')
        && let Err(error) = serde_json::from_str::<IgnoredAny>(text)
    {
        return Err(format!("to the kubelet, what begins with {{ is JSON, and this is none: {error}"));
    }
    document(found)
}

fn read(text: &str) -> Result<Composed, String> {
    if text.len() > MAX_BYTES {
        return Err(format!("{} bytes are more than the limit of {MAX_BYTES}", text.len()));
    }
    if text.trim().is_empty() {
        return Err("it is empty".to_owned());
    }
    // JSON is not converted: to the kubelet `1.0` is no integer there.
    let is_json = serde_json::from_str::<IgnoredAny>(text).is_ok();
    compose(text, if is_json { Dialect::Json } else { Dialect::Yaml }).map_err(|fault| fault.explain())
}

fn document(Composed { value, duplicate, rest }: Composed) -> Result<Document, String> {
    let ignored_from = rest.and_then(|rest| rest.place).map(|(line, _)| line);
    match value {
        Value::Object(_) => Ok(Document { value, duplicate, ignored_from }),
        other => Err(format!("it is {}, not a mapping of fields (NAME: VALUE)", kind_of(&other))),
    }
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "empty",
        Value::Bool(_) | Value::Number(_) | Value::String(_) => "a single value",
        Value::Array(_) => "a list",
        Value::Object(_) => "a mapping",
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
            ("a: tRUE", json!({"a": "tRUE"})),
            ("yes: 1\n5: 2\n1e6: 3", json!({"true": 1, "5": 2, "1e+06": 3})),
            ("'<<': 1", json!({"<<": 1})),
            ("a: |\n  x", json!({"a": "x"})),
            ("a: |+\n  x\n\n", json!({"a": "x\n\n"})),
            ("a: \"\\u00e9\\x41\"", json!({"a": "éA"})),
            ("a: &a 0x10\n*a : *a\n", json!({"a": 16, "16": 16})),
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

    /// As its strict pass sees them, and its lenient one merges them: what is below wins.
    #[test]
    fn what_is_merged_counts_where_it_stands() {
        for (text, a, duplicate) in [
            ("<<: {a: 1}\na: 2\n", 2, Some("a, line 2, column 1")),
            ("a: 2\n<<: {a: 1}\n", 1, Some("a, line 2, column 1")),
            ("<<: [{a: 1}, {a: 2}]\n", 1, Some("a, line 1, column 1")),
            ("<<: {a: 1}\n<<: {b: 2}\n", 1, None),
            ("x: &x {a: 1}\n<<: [*x]\n", 1, None),
        ] {
            let parsed = parse(text).unwrap();
            assert_eq!((&parsed.value["a"], parsed.duplicate.as_deref()), (&json!(a), duplicate), "{text:?}");
        }
        for text in ["<<: ~", "x: &x [{a: 1}]\n<<: *x\n", "<<: [1]", "~: 1", "9223372036854775808: 1", "? {a: 1}\n: 2"]
        {
            assert!(parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn json_is_read_as_json() {
        let parsed = parse("{\"a\": \"\\/\\ud83d\\ude00\", \"b\": 1.0, \"a\": \"no\", \"<<\": 1}").unwrap();
        assert_eq!(parsed.value, json!({"a": "no", "b": 1.0, "<<": 1}));
        assert_eq!(parsed.duplicate.as_deref(), Some("a, line 1, column 35"));
        assert!(parse("a: \"\\/\"").unwrap_err().contains("an escape of JSON"));
        assert!(parse("a: \"\\\\/\"").is_ok(), "a backslash, and a slash");
        assert!(parse("a: \"\\ud83d\\ude00\"").unwrap_err().contains("an escape of JSON"));
    }

    /// A file of the node: the first document, whatever comes after it.
    #[test]
    fn of_an_own_file_the_first_document_counts() {
        for (text, rest) in [
            ("a: 1\n", None),
            ("a: 1\n---\n", Some(2)),
            ("a: 1\n...\n", None),
            ("a: 1\n---\nb: 2\n", Some(3)),
            ("---\na: 1\n---\n\t{[", Some(4)),
            ("a: 1\n...\n@@@\n", Some(3)),
        ] {
            let document = parse_own(text).unwrap_or_else(|why| panic!("{text:?}: {why}"));
            assert_eq!((document.value, document.ignored_from), (json!({"a": 1}), rest), "{text:?}");
        }
        for text in ["", "\n", "# no field\n", "null", "---\n---\na: 1\n", "a: 1\n---\n\u{1}", "[1]", "{a: 1}"] {
            parse_own(text).expect_err(text);
        }
        assert!(parse_own("{\"a\": 1}\n---\n").unwrap_err().contains("what begins with { is JSON"));
        assert!(parse_own("--- {a: 1}\n").is_ok());
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
        let long = format!("a: &a \"{}\"\nb: [{}]\n", "x".repeat(500_000), "*a,".repeat(9_000));
        assert!(parse(&long).unwrap_err().contains("its aliases"));
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
