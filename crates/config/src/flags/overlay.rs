//! A command line laid over a configuration, as the kubelet does after loading it
//! (kubeletConfigFlagPrecedence, cmd/kubelet/app/server.go, v1.20.2 and v1.36).

use serde_json::{Map, Value, json};

use super::KubeletArgs;
use super::table::{self, Kind};
use crate::effective::{self, Sources};
use crate::strconv::{base, boolean};
use crate::{hazard, schema};

impl KubeletArgs {
    /// What the kubelet goes by: `config` with this command line's flags over it. What is no object counts as an empty
    /// one.
    #[must_use]
    pub fn overlay(&self, config: &Value) -> Value {
        let mut fields = config.as_object().cloned().unwrap_or_default();
        for setting in self.settings() {
            set(&mut fields, &setting.path, setting.value);
        }
        Value::Object(fields)
    }

    /// The fields that this command line sets, in the order in which they are laid over a configuration.
    #[must_use]
    pub fn settings(&self) -> Vec<Setting> {
        let fields = table::FIELDS.iter().filter_map(|(flag, path, kind)| {
            let value = value(*kind, &given(self, flag))?;
            let at = self.flags.iter().rposition(|given| given.name == *flag);
            Some((at, Setting { flag, path: path.split('.').map(str::to_owned).collect(), value }))
        });
        // Of two flags of one field the later one counts.
        let mut fields: Vec<_> = fields.collect();
        fields.sort_by_key(|(at, _)| *at);
        let fields = fields.into_iter().map(|(_, setting)| setting);
        let given = given(self, GATES);
        let gates = given.iter().flat_map(|text| pairs(text.unwrap_or_default(), '=')).map(|(name, text)| Setting {
            flag: GATES,
            path: vec!["featureGates".to_owned(), name.to_owned()],
            value: boolean(text).map_or_else(|| text.into(), Value::Bool),
        });
        fields.chain(gates).collect()
    }

    /// What of `payload` this command line overrides with something else. Gates merge one by one, and there too the flag wins.
    #[must_use]
    pub(crate) fn shadowed(&self, payload: &Value) -> Vec<Setting> {
        let stands = |setting: &Setting| setting.path.iter().try_fold(payload, |at, name| at.get(name)).is_some();
        // By what they mean: `60s` is `1m0s`, and 110 the default of maxPods.
        let changed = hazard::diff(&alone(payload, &Self::default()), &alone(payload, self));
        let differs = |field: &str| changed.iter().any(|change| schema::overlap(&change.field, field));
        let settings = self.settings().into_iter().filter(stands);
        settings.filter(|setting| differs(&setting.path.join("."))).collect()
    }
}

/// What a kubelet goes by that is given this alone.
fn alone(configuration: &Value, args: &KubeletArgs) -> Value {
    effective::value(&effective::layers(&Sources::of(configuration, &[], args)), None)
}

/// The flag that sets one gate after the other.
const GATES: &str = "feature-gates";

/// A field that a flag sets. Its value replaces what was there, maps too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The flag's name without dashes.
    pub flag: &'static str,
    /// The field's path; a gate's name is taken whole.
    pub path: Vec<String>,
    /// What it is set to.
    pub value: Value,
}

/// The values of all occurrences; `None` is a boolean flag without one.
fn given<'a>(args: &'a KubeletArgs, name: &str) -> Vec<Option<&'a str>> {
    args.flags.iter().filter(|flag| flag.name == name).map(|flag| flag.value.as_deref()).collect()
}

/// Sets a field by its path.
pub(crate) fn set(fields: &mut Map<String, Value>, path: &[String], value: Value) {
    let (name, rest) = match path {
        [] => return,
        [name] => return drop(fields.insert(name.clone(), value)),
        [name, rest @ ..] => (name, rest),
    };
    let entry = fields.entry(name.clone()).or_insert_with(|| json!({}));
    if !entry.is_object() {
        *entry = json!({});
    }
    if let Value::Object(inner) = entry {
        set(inner, rest, value);
    }
}

/// What the occurrences of one flag come to. Text that the kubelet will refuse stays text: that
/// is for the kubelet to say.
fn value(kind: Kind, given: &[Option<&str>]) -> Option<Value> {
    let last = *given.last()?;
    if matches!(kind, Kind::Bool | Kind::Or) {
        let text = last.unwrap_or("true");
        let value = boolean(text).map_or_else(|| text.into(), Value::Bool);
        return Some(value).filter(|value| kind == Kind::Bool || *value != Value::Bool(false));
    }
    let last = match kind {
        Kind::Ip | Kind::Reservations => given.iter().rev().find_map(|text| text.filter(|text| !text.is_empty()))?,
        _ => last.unwrap_or_default(),
    };
    let all = || given.iter().map(|text| text.unwrap_or_default());
    let parsed = match kind {
        Kind::Bool | Kind::Or | Kind::Text | Kind::Ip => None,
        Kind::Int => integer(last).map(Value::from),
        Kind::Decimal => last.parse::<i64>().ok().map(Value::from),
        Kind::Vmodule => all().flat_map(parts).map(module).collect(),
        Kind::List => all().map(list).collect::<Option<Vec<_>>>().map(|all| all.concat().into()),
        Kind::Map(separator) => object(all().flat_map(parts), separator),
        Kind::Pair => object(all(), '='),
        Kind::Headers => headers(all().flat_map(parts)),
        Kind::Reservations => {
            all().flat_map(|text| text.split(';')).filter(|text| !text.is_empty()).map(reservation).collect()
        }
        Kind::Taints => parts(last).map(taint).collect(),
    };
    Some(parsed.unwrap_or_else(|| last.into()))
}

/// strconv.ParseInt with base 0, as pflag calls it: a prefix names the base, a leading 0 is octal, and digits may be apart by `_`.
fn integer(text: &str) -> Option<i64> {
    let (sign, body) = match text.strip_prefix('-') {
        Some(body) => ("-", body),
        None => ("", text.strip_prefix('+').unwrap_or(text)),
    };
    let (radix, digits) = base(body);
    // Each `_` stands between digits, or after the base.
    let after_base = digits.len() < body.len();
    let digits = if after_base { digits.strip_prefix('_').unwrap_or(digits) } else { digits };
    let is_number = digits.split('_').all(|part| !part.is_empty() && part.chars().all(|c| c.is_digit(radix)));
    is_number.then(|| i64::from_str_radix(&format!("{sign}{}", digits.replace('_', "")), radix).ok())?
}

fn parts(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').filter(|part| !part.is_empty())
}

/// pflag reads a StringSlice as a line of CSV (encoding/csv): a quote at the beginning of an item ends with the next, `""` in it
/// is one; any other is refused.
fn list(text: &str) -> Option<Vec<Value>> {
    let (mut items, mut rest) = (Vec::new(), Some(text).filter(|text| !text.is_empty()));
    while let Some(text) = rest {
        let (item, behind) = if let Some(text) = text.strip_prefix('"') {
            quoted(text)?
        } else {
            let (item, behind) = text.split_at(text.find(',').unwrap_or(text.len()));
            (Some(item).filter(|item| !item.contains('"'))?.to_owned(), behind)
        };
        items.push(item.into());
        rest = behind.strip_prefix(',');
        if rest.is_none() && !behind.is_empty() {
            return None;
        }
    }
    Some(items)
}

/// What stands before the quote that ends it, and behind that.
fn quoted(text: &str) -> Option<(String, &str)> {
    let (mut item, mut rest) = (String::new(), text);
    loop {
        let (part, behind) = rest.split_once('"')?;
        item.push_str(part);
        let Some(more) = behind.strip_prefix('"') else { return Some((item, behind)) };
        item.push('"');
        rest = more;
    }
}

fn pair(text: &str, separator: char) -> Option<(&str, &str)> {
    text.split_once(separator).map(|(key, value)| (key.trim(), value.trim()))
}

fn pairs(text: &str, separator: char) -> impl Iterator<Item = (&str, &str)> {
    parts(text).filter_map(move |part| pair(part, separator))
}

fn object<'a>(parts: impl Iterator<Item = &'a str>, separator: char) -> Option<Value> {
    let entries = parts.map(|part| pair(part, separator).map(|(key, value)| (key.to_owned(), value.into())));
    entries.collect::<Option<Map<_, _>>>().map(Value::Object)
}

fn headers<'a>(parts: impl Iterator<Item = &'a str>) -> Option<Value> {
    let mut headers = Map::new();
    for part in parts {
        let (key, value) = pair(part, ':')?;
        if let Value::Array(values) = headers.entry(key).or_insert_with(|| json!([])) {
            values.push(value.into());
        }
    }
    Some(Value::Object(headers))
}

/// `0:memory=1Gi,hugepages-2Mi=2Gi` (cmd/kubelet/app/options, ReservedMemoryVar).
fn reservation(text: &str) -> Option<Value> {
    let (node, limits) = text.split_once(':')?;
    let node: u64 = node.trim().parse().ok()?;
    Some(json!({"numaNode": node, "limits": object(parts(limits), '=')?}))
}

/// `pattern=number` (`VModuleConfigurationPflag`, k8s.io/component-base/logs/api/v1/pflags.go, v1.36).
fn module(text: &str) -> Option<Value> {
    let (pattern, level) = text.split_once('=')?;
    Some(json!({"filePattern": pattern, "verbosity": level.parse::<u64>().ok()?}))
}

/// `key=value:effect` (pkg/util/taints).
fn taint(text: &str) -> Option<Value> {
    let (head, effect) = text.split_once(':')?;
    let (key, value) = head.split_once('=').unwrap_or((head, ""));
    let mut taint = Map::from_iter([("key".to_owned(), key.into()), ("effect".to_owned(), effect.into())]);
    if !value.is_empty() {
        taint.insert("value".to_owned(), value.into());
    }
    Some(Value::Object(taint))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn over(config: &Value, args: &[&str]) -> Value {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        KubeletArgs::parse(&args).overlay(config)
    }

    #[test]
    fn every_kind_of_value() {
        let out = over(
            &json!({"maxPods": 5, "authentication": {"x509": {"clientCAFile": "/ca"}}, "featureGates": {"A": true, "B": true},
                "evictionHard": {"pid.available": "5%"}}),
            &[
                "--max-pods=7",
                "--anonymous-auth",
                "--fail-swap-on=f",
                "--sync-frequency=1m",
                "--cluster-dns=10.0.0.1,10.0.0.2",
                "--cluster-dns=10.0.0.3",
                "--eviction-hard=memory.available<1Gi, nodefs.available<10%",
                "--system-reserved=cpu=500m,memory=1Gi",
                "--system-reserved=pid=9",
                "--feature-gates=B=false,C=true",
                "--cpu-manager-policy-options=full-pcpus-only=true",
                "--reserved-memory=0:memory=1Gi;1:memory=2Gi",
                "--register-with-taints=a=b:NoSchedule,c:NoExecute",
                "--manifest-url-header=X:1,X:2",
                "--v=4",
            ],
        );
        assert_eq!(
            out,
            json!({
                "maxPods": 7,
                "authentication": {"x509": {"clientCAFile": "/ca"}, "anonymous": {"enabled": true}},
                "failSwapOn": false,
                "syncFrequency": "1m",
                "clusterDNS": ["10.0.0.1", "10.0.0.2", "10.0.0.3"],
                "evictionHard": {"memory.available": "1Gi", "nodefs.available": "10%"},
                "systemReserved": {"cpu": "500m", "memory": "1Gi", "pid": "9"},
                "featureGates": {"A": true, "B": false, "C": true},
                "cpuManagerPolicyOptions": {"full-pcpus-only": "true"},
                "reservedMemory": [{"numaNode": 0, "limits": {"memory": "1Gi"}}, {"numaNode": 1, "limits": {"memory": "2Gi"}}],
                "registerWithTaints": [{"key": "a", "value": "b", "effect": "NoSchedule"}, {"key": "c", "effect": "NoExecute"}],
                "staticPodURLHeader": {"X": ["1", "2"]},
                "logging": {"verbosity": 4},
            })
        );
    }

    #[test]
    fn the_last_scalar_wins_and_text_without_sense_stays() {
        assert_eq!(over(&json!({}), &["--max-pods=1", "--max_pods", "2"]), json!({"maxPods": 2}));
        assert_eq!(over(&Value::Null, &["--max-pods=many"]), json!({"maxPods": "many"}));
        assert_eq!(over(&json!([]), &["--system-reserved=cpu"]), json!({"systemReserved": "cpu"}));
        assert_eq!(over(&json!({"evictionHard": {"a": "b"}}), &["--eviction-hard="]), json!({"evictionHard": {}}));
        assert_eq!(
            over(&json!({"authentication": 1}), &["--anonymous-auth=false"])
                .pointer("/authentication/anonymous/enabled"),
            Some(&json!(false))
        );
    }

    /// As encoding/csv has it.
    #[test]
    fn lists_are_lines_of_csv() {
        for (text, items) in [
            ("", json!([])),
            ("a,,b", json!(["a", "", "b"])),
            ("a,", json!(["a", ""])),
            ("\"a,b\",c", json!(["a,b", "c"])),
            ("\"a\"\"b\"", json!(["a\"b"])),
            ("\"\",a", json!(["", "a"])),
            (" a", json!([" a"])),
            // Refused: it stays as it is.
            ("a\"b", json!("a\"b")),
            ("a\"", json!("a\"")),
            ("\"a\"b", json!("\"a\"b")),
            ("\"a", json!("\"a")),
            (" \"a\"", json!(" \"a\"")),
        ] {
            assert_eq!(over(&json!({}), &[&format!("--cluster-dns={text}")]), json!({ "clusterDNS": items }), "{text}");
        }
    }

    proptest! {
        #[test]
        fn never_panics(index in 0..table::FIELDS.len(), text in "[ -~]{0,20}") {
            let flag = table::FIELDS[index].0;
            let _ = over(&json!({"logging": "x"}), &[&format!("--{flag}={text}"), &format!("--feature-gates={text}")]);
        }

        #[test]
        fn without_flags_nothing_changes(max in 0..200_i64) {
            let config = json!({"maxPods": max});
            prop_assert_eq!(over(&config, &["--kubeconfig=/k"]), config);
        }
    }
}
