//! The kubelet's command line, read the way pflag reads it.
//!
//! Syntax measured on v1.20.2: `--a=b`, `--a b`, `-v2`, booleans never take the next word, `_` in names
//! is `-`, the last occurrence of a scalar wins, `--` ends the flags, leading words are
//! sub-commands (`hyperkube kubelet …`).

use std::ops::Range;

use serde_json::Value;

use super::hazard;

mod overlay;
mod table;

/// The gate of native dynamic configuration: locked in kubelets v1.24, unknown to later ones
/// (pkg/features/kube_features.go). It means nothing without `--dynamic-config-dir`.
pub const NATIVE_GATE: &str = "DynamicKubeletConfig";

/// A parsed command line, without the program itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KubeletArgs {
    words: Vec<String>,
    flags: Vec<Flag>,
    /// Index in `words` where further flags may be inserted: before a `--`, else at the end.
    end: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Flag {
    name: String,
    value: Option<String>,
    at: Range<usize>,
}

/// A payload field that a command-line flag overrides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shadow {
    /// Dotted field path, as in `authentication.anonymous.enabled`.
    pub field: String,
    /// The flag's name without dashes.
    pub flag: &'static str,
}

impl KubeletArgs {
    /// Reads `words`; never fails, the kubelet judges its own command line.
    #[must_use]
    pub fn parse(words: &[String]) -> Self {
        let mut flags = Vec::new();
        let mut index = words.iter().take_while(|word| !word.starts_with('-')).count();
        let mut end = words.len();
        while let Some(word) = words.get(index) {
            if word == "--" {
                end = index;
                break;
            }
            let start = index;
            index += 1;
            let (name, mut value) = match (word.strip_prefix("--"), word.strip_prefix("-v")) {
                (Some(body), _) => match body.split_once('=') {
                    Some((name, value)) => (name, Some(value.to_owned())),
                    None => (body, None),
                },
                // The only shorthand with a value: `-v2`, `-v=2`, `-v 2`.
                (None, Some("")) => ("v", None),
                (None, Some(level)) => ("v", Some(level.trim_start_matches('=').to_owned())),
                (None, None) => continue,
            };
            let name = name.replace('_', "-");
            if value.is_none() && !table::BOOLEANS.contains(&name.as_str()) {
                value = words.get(index).cloned();
                index += 1;
            }
            let at = start..index.min(words.len());
            if name == "feature-gates" {
                value = value.map(|gates| without_native_gate(&gates));
            }
            flags.push(Flag { name, value, at });
        }
        Self { words: words.to_vec(), flags, end }
    }

    /// The words as given.
    #[must_use]
    pub fn words(&self) -> &[String] {
        &self.words
    }

    /// The value in force of a scalar flag; an empty value is unset, as in the kubelet.
    #[must_use]
    pub fn last(&self, name: &str) -> Option<&str> {
        let flag = self.flags.iter().rev().find(|flag| flag.name == name)?;
        flag.value.as_deref().filter(|value| !value.is_empty())
    }

    /// True if the flag stands on the command line, with whatever value.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.flags.iter().any(|flag| flag.name == name)
    }

    /// The arguments for a real run: `--dynamic-config-dir` and [`NATIVE_GATE`] stripped, which later
    /// kubelets refuse, and `--config` replaced.
    ///
    /// `config: None` leaves the kubelet's own `--config` as it was given.
    #[must_use]
    pub fn for_run(&self, config: Option<&str>) -> Vec<String> {
        match config {
            None => self.rebuild(&["dynamic-config-dir"], &[]),
            Some(path) => self.rebuild(&["dynamic-config-dir", "config"], &[format!("--config={path}")]),
        }
    }

    /// The arguments of a preflight: those of a real run, plus the ones that make the kubelet
    /// leave after validation, before it touches anything.
    #[must_use]
    pub fn for_preflight(&self, config: Option<&str>, cert_dir: &str) -> Vec<String> {
        let mut extra: Vec<String> = config.map(|path| format!("--config={path}")).into_iter().collect();
        extra.extend([
            format!("--cert-dir={cert_dir}"),
            "--exit-on-lock-contention=true".to_owned(),
            "--lock-file=".to_owned(),
            "--v=0".to_owned(),
        ]);
        if self.has("log-dir") || self.has("log-file") || self.has("logtostderr") {
            // Only then: the flag is gone from later kubelets.
            extra.push("--logtostderr=true".to_owned());
        }
        let stripped: &[&str] =
            if config.is_some() { &["dynamic-config-dir", "config"] } else { &["dynamic-config-dir"] };
        self.rebuild(stripped, &extra)
    }

    fn rebuild(&self, without: &[&str], extra: &[String]) -> Vec<String> {
        let kept = |range: Range<usize>| {
            let words = self.words.iter().enumerate().skip(range.start).take(range.len());
            words.filter_map(|(index, word)| self.kept(index, word, without)).collect::<Vec<_>>()
        };
        let mut words = kept(0..self.end);
        words.extend_from_slice(extra);
        words.extend(kept(self.end..self.words.len()));
        words
    }

    /// The word as it is handed on, if it is.
    fn kept(&self, index: usize, word: &str, without: &[&str]) -> Option<String> {
        let Some(flag) = self.flags.iter().find(|flag| flag.at.contains(&index)) else { return Some(word.to_owned()) };
        if without.contains(&flag.name.as_str()) {
            return None;
        }
        let Some(gates) = flag.value.as_deref().filter(|_| flag.name == "feature-gates") else {
            return Some(word.to_owned());
        };
        let last = index + 1 == flag.at.end;
        let given = match word.split_once('=') {
            Some((_, given)) if flag.at.len() == 1 => given,
            _ if last => word,
            _ => self.words.get(index + 1)?,
        };
        if given == gates {
            return Some(word.to_owned());
        }
        // Nothing is left of a flag that named no other gate.
        match (gates.is_empty(), last) {
            (true, _) => None,
            (false, true) => Some(word.replace(given, gates)),
            (false, false) => Some(word.to_owned()),
        }
    }

    /// What the kubelet goes by: `config` with this command line's flags over it.
    #[must_use]
    pub fn overlay(&self, config: &Value) -> Value {
        overlay::overlay(self, config)
    }

    /// The fields of `payload` that a flag on this command line overrides with something else.
    #[must_use]
    pub fn shadowed(&self, payload: &Value) -> Vec<Shadow> {
        let stands = |field: &str| field.split('.').try_fold(payload, |at, name| at.get(name)).is_some();
        let mut shadows: Vec<Shadow> = table::FIELDS
            .iter()
            .filter(|(flag, field, _)| self.has(flag) && stands(field))
            .map(|(flag, field, _)| Shadow { field: (*field).to_owned(), flag })
            .collect();
        // Gates merge one by one, and here too the flag wins.
        let gates = self.flags.iter().filter(|flag| flag.name == "feature-gates");
        let names = gates.flat_map(|flag| flag.value.iter().flat_map(|value| value.split(',')));
        for name in names.filter_map(|pair| pair.split('=').next()) {
            let field = format!("featureGates.{}", name.trim());
            if stands(&field) {
                shadows.push(Shadow { field, flag: "feature-gates" });
            }
        }
        // By what they mean: `60s` is `1m0s`, and 110 the default of maxPods.
        let changed = hazard::diff(payload, &self.overlay(payload));
        let within = |field: &str, parent: &str| {
            field.strip_prefix(parent).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        shadows.retain(|shadow| {
            changed.iter().any(|change| within(&change.field, &shadow.field) || within(&shadow.field, &change.field))
        });
        shadows
    }
}

/// `A=true,B=false` without [`NATIVE_GATE`], split and trimmed as by MapStringBool (component-base
/// cli/flag/map_string_bool.go, v1.20.2 and v1.36); untouched if it does not name that gate.
fn without_native_gate(gates: &str) -> String {
    let is_native = |pair: &&str| pair.split('=').next().is_some_and(|name| name.trim() == NATIVE_GATE);
    if !gates.split(',').any(|pair| is_native(&pair)) {
        return gates.to_owned();
    }
    let kept: Vec<&str> = gates.split(',').filter(|pair| !is_native(pair) && !pair.trim().is_empty()).collect();
    kept.join(",")
}

#[cfg(test)]
mod as_found;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn args(words: &str) -> KubeletArgs {
        KubeletArgs::parse(&words.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn reads_every_spelling() {
        let parsed = args(
            "kubelet --config /a --dynamic_config_dir=/dyn --fail-swap-on --v=2 --config=/b --hostname-override= -v 4 --kubeconfig /k",
        );
        assert_eq!(parsed.last("config"), Some("/b"));
        assert_eq!(parsed.last("dynamic-config-dir"), Some("/dyn"));
        assert_eq!(parsed.last("hostname-override"), None);
        assert!(parsed.has("hostname-override"));
        assert_eq!(parsed.last("kubeconfig"), Some("/k"));
    }

    #[test]
    fn a_real_run_replaces_every_config_and_strips_the_dynamic_dir() {
        let parsed = args("--config /a --v=2 --dynamic-config-dir /dyn --config=/b");
        assert_eq!(parsed.for_run(Some("/r")), ["--v=2", "--config=/r"]);
        assert_eq!(parsed.for_run(None), ["--config", "/a", "--v=2", "--config=/b"]);
    }

    #[test]
    fn additions_go_before_the_end_of_flags() {
        let parsed = args("kubelet --v=2 -- extra");
        assert_eq!(parsed.for_run(Some("/r")), ["kubelet", "--v=2", "--config=/r", "--", "extra"]);
    }

    #[test]
    fn the_preflight_leaves_before_it_touches_anything() {
        let words = args("--config=/a --cert-dir=/pki --log-dir=/l").for_preflight(Some("/c"), "/p");
        assert_eq!(
            words,
            [
                "--cert-dir=/pki",
                "--log-dir=/l",
                "--config=/c",
                "--cert-dir=/p",
                "--exit-on-lock-contention=true",
                "--lock-file=",
                "--v=0",
                "--logtostderr=true"
            ]
        );
        assert!(!args("--config=/a").for_preflight(None, "/p").contains(&"--logtostderr=true".to_owned()));
        assert!(args("--config=/a").for_preflight(None, "/p").contains(&"--config=/a".to_owned()));
    }

    #[test]
    fn a_flag_that_says_the_same_shadows_nothing() {
        let flags = args(
            "--max-pods=42 --sync-frequency=60s --cluster-dns=10.0.0.10 --feature-gates=A=true,B=true --fail-swap-on=false",
        );
        let payload = json!({"maxPods": 42, "syncFrequency": "1m0s", "clusterDNS": ["10.0.0.10"], "failSwapOn": true,
            "featureGates": {"A": true, "B": false}});
        let fields: Vec<String> = flags.shadowed(&payload).into_iter().map(|shadow| shadow.field).collect();
        assert_eq!(fields, ["failSwapOn", "featureGates.B"]);
    }

    #[test]
    fn feature_gates_are_shadowed_one_by_one() {
        let shadows = args("--feature-gates=A=true,B=false").shadowed(&json!({"featureGates": {"B": true, "C": true}}));
        assert_eq!(shadows, [Shadow { field: "featureGates.B".to_owned(), flag: "feature-gates" }]);
    }

    proptest! {
        #[test]
        fn a_line_without_our_flags_is_passed_through(words in prop::collection::vec("(--?[a-z]{1,8}(=[a-z]{0,4})?|[a-z]{1,4}|--)", 0..10)) {
            let parsed = KubeletArgs::parse(&words);
            prop_assume!(!parsed.has("config") && !parsed.has("dynamic-config-dir"));
            prop_assert_eq!(parsed.for_run(None), words.clone());
            let with = parsed.for_run(Some("/r"));
            prop_assert_eq!(with.len(), words.len() + 1);
        }
    }
}
