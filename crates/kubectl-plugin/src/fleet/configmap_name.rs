//! Names of ConfigMaps that tell their content: those of `kubectl create configmap --append-hash`.

use std::collections::BTreeMap;

use serde_json::Value;

use kubelet_config::digest::sha256;

/// The name that `kubectl create configmap BASE --from-file=KEY=FILE … --append-hash` gives
/// (kubectl/pkg/util/hash/hash.go, v1.20.2 and v1.32.4).
///
/// Hashed are kind, base name and data; namespace, labels and annotations are not. `immutable`
/// would be, where it is set; but kubectl's command cannot set it, so it is left out here, and an
/// immutable ConfigMap has the name of its mutable twin.
#[must_use]
pub fn name(base: &str, data: &BTreeMap<String, String>) -> String {
    let data: Vec<String> = data.iter().map(|(key, text)| format!("{}:{}", go_json(key), go_json(text))).collect();
    let encoded = format!("{{\"data\":{{{}}},\"kind\":\"ConfigMap\",\"name\":{}}}", data.join(","), go_json(base));
    let hex = sha256(encoded.as_bytes());
    // No vowels and none of what looks like one, so that no word comes out.
    let mapped = hex.chars().take(10).map(|digit| match digit {
        '0' => 'g',
        '1' => 'h',
        '3' => 'k',
        'a' => 'm',
        'e' => 't',
        digit => digit,
    });
    format!("{base}-{}", mapped.collect::<String>())
}

/// A string as Go's encoding/json writes it: it also escapes what HTML and JavaScript trip over.
/// (`\b` and `\f` are as since Go 1.22; no YAML holds them.)
fn go_json(text: &str) -> String {
    let escapes =
        [('<', "\\u003c"), ('>', "\\u003e"), ('&', "\\u0026"), ('\u{2028}', "\\u2028"), ('\u{2029}', "\\u2029")];
    let json = Value::from(text).to_string();
    escapes.into_iter().fold(json, |json, (c, escape)| json.replace(c, escape))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As kubectl v1.32.4 says; `tests/plugin/push.rs` asks the kubectl of the machine.
    #[test]
    fn names_as_kubectl_gives_them() {
        let data = BTreeMap::from([("kubelet".to_owned(), "kind: KubeletConfiguration\n".to_owned())]);
        assert_eq!(name("b", &data), "b-8hhgbtc9dm");
    }

    #[test]
    fn go_escapes_more_than_json_asks_for() {
        assert_eq!(
            go_json("<a & \"b\">\u{2028}\u{7f}\n\u{1}é"),
            "\"\\u003ca \\u0026 \\\"b\\\"\\u003e\\u2028\u{7f}\\n\\u0001é\""
        );
    }
}
