//! Flag overrides: what a source changes of the unit's own command line (its key `<key>.flags`).
//!
//! One flag a line: `--name=value` follows the unit's own flags, so that it wins as the last of a repeated flag does;
//! `!--name` takes the unit's own out, so that the configuration's field counts. No shell reads it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

use super::refused;
use super::table;

/// What the name of a source's key for flags ends with; before it stands the key of the KubeletConfiguration.
pub const KEY_SUFFIX: &str = ".flags";

/// Bytes of a text of flags. One argument of a process has no more than 128 KiB (MAX_ARG_STRLEN), all of them 2 MiB.
const MAX_BYTES: usize = 32 << 10;

/// The changes to a command line, in canonical form: comments and the order of what is taken out do not count.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "Vec<String>", try_from = "Vec<String>")]
pub struct FlagOverrides {
    /// Names of flags of the unit's that are left out.
    removed: BTreeSet<String>,
    /// What is added, in order.
    added: Vec<Added>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Added {
    name: String,
    value: Option<String>,
}

impl fmt::Display for Added {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.value {
            Some(value) => write!(f, "--{}={value}", self.name),
            None => write!(f, "--{}", self.name),
        }
    }
}

impl FlagOverrides {
    /// Reads a text of flags.
    ///
    /// # Errors
    /// Which line is wrong, why, and what to write.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.len() > MAX_BYTES {
            return Err(format!("{} bytes of flags are more than the limit of {MAX_BYTES}", text.len()));
        }
        let mut overrides = Self::default();
        for (line, number) in text.lines().zip(1..) {
            let line = line.trim();
            if !line.is_empty() && !line.starts_with('#') {
                overrides.add(line).map_err(|why| format!("line {number}: {why}"))?;
            }
        }
        Ok(overrides)
    }

    fn add(&mut self, line: &str) -> Result<(), String> {
        if line.contains(char::is_control) {
            return Err("a control character".to_owned());
        }
        if let Some(flag) = line.strip_prefix("!--") {
            let name = name(flag)?;
            self.removed.insert(name);
            return Ok(());
        }
        let Some(flag) = line.strip_prefix("--") else {
            // What stands there is not repeated: it may be the rest of a header with a credential.
            return Err("it is no flag: write --name=value, or !--name to take the unit's own out".to_owned());
        };
        let (flag, value) = flag.split_once('=').map_or((flag, None), |(flag, value)| (flag, Some(value)));
        let name = name(flag)?;
        match value {
            None if !table::is_boolean(&name) => {
                return Err(format!("--{name} needs a value: --{name}=…"));
            }
            Some(value) if is_quoted(value) => {
                return Err(format!(
                    "--{name}: no shell reads this, so the quotes would be part of the value: leave them out"
                ));
            }
            _ => {}
        }
        if self.added.iter().any(|added| added.name == name) && !table::adds_up(&name) {
            return Err(format!(
                "--{name} stands there before, and the kubelet goes by the last one alone: leave one of them out"
            ));
        }
        self.added.push(Added { name, value: value.map(str::to_owned) });
        Ok(())
    }

    /// Why a source may not do this. `freed` are flags that the node's policy names.
    ///
    /// # Errors
    /// The first flag that no source may change, and why.
    pub fn check(&self, freed: &BTreeSet<String>) -> Result<(), String> {
        let labels = self.added.iter().filter(|added| added.name == "node-labels");
        if let Some(label) = labels.filter_map(|added| added.value.as_deref()).find_map(refused::identity_label) {
            let why = "it makes the node what it is to the cluster";
            return Err(format!("--node-labels: {label} cannot be set by a source: {why}"));
        }
        let names = self.removed.iter().map(|name| (name, "!--"));
        let names = names.chain(self.added.iter().map(|added| (&added.name, "--")));
        let mut names = names.filter(|(name, _)| !freed.contains(*name) || refused::refused_for_good(name).is_some());
        names
            .find_map(|(name, dashes)| Some((name, dashes, refused::reason(name)?)))
            .map_or(Ok(()), |(name, dashes, why)| Err(format!("{dashes}{name} cannot be set by a source: {why}")))
    }

    /// True if the command line stays as it is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.removed.is_empty() && self.added.is_empty()
    }

    /// The names of all flags that are changed.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.removed.iter().map(String::as_str).chain(self.added.iter().map(|added| added.name.as_str()))
    }

    /// The names of what is left out.
    pub(super) fn removed(&self) -> Vec<&str> {
        self.removed.iter().map(String::as_str).collect()
    }

    /// The arguments that are added.
    pub(super) fn added(&self) -> Vec<String> {
        self.added.iter().map(Added::to_string).collect()
    }

    /// The names of lists that are added to.
    pub(super) fn lists(&self) -> BTreeSet<&str> {
        self.added.iter().map(|added| added.name.as_str()).filter(|name| table::is_list(name)).collect()
    }

    /// What no field tells of: `!--name`, and each added flag that is none, with its values.
    #[must_use]
    pub fn beside_fields(&self) -> BTreeMap<String, Vec<String>> {
        let mut flags: BTreeMap<String, Vec<String>> =
            self.removed.iter().map(|name| (format!("!--{name}"), vec!["taken out".to_owned()])).collect();
        for Added { name, value } in self.added.iter().filter(|added| !table::is_field(&added.name)) {
            flags.entry(format!("--{name}")).or_default().push(value.clone().unwrap_or_else(|| "true".to_owned()));
        }
        flags
    }

    /// One flag a line, as [`Self::parse`] reads them.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let removed = self.removed.iter().map(|name| format!("!--{name}"));
        removed.chain(self.added.iter().map(Added::to_string)).collect()
    }
}

/// `!--cgroup-driver --max-pods=5`.
impl fmt::Display for FlagOverrides {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.lines().join(" "))
    }
}

impl From<FlagOverrides> for Vec<String> {
    fn from(overrides: FlagOverrides) -> Self {
        overrides.lines()
    }
}

impl TryFrom<Vec<String>> for FlagOverrides {
    type Error = String;

    fn try_from(lines: Vec<String>) -> Result<Self, String> {
        Self::parse(&lines.join("\n"))
    }
}

/// A flag's name as pflag normalises it (WordSepNormalizeFunc, component-base/cli/flag/flags.go, v1.20.2).
fn name(flag: &str) -> Result<String, String> {
    let word = flag.split(|c: char| c == '=' || c.is_whitespace()).next().unwrap_or_default();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if word.is_empty() || word.starts_with('-') || !word.chars().all(is_plain) {
        return Err(format!("{} is no flag's name", shown(&format!("--{word}"))));
    }
    match flag.strip_prefix(word) {
        Some("") => Ok(word.replace('_', "-")),
        Some(rest) if rest.starts_with('=') => {
            Err(format!("!--{word} takes the flag out whatever its value: leave the value out"))
        }
        _ => Err(format!("a blank after --{word}: write --{word}=value")),
    }
}

fn is_quoted(value: &str) -> bool {
    let within = |quote| value.len() > 1 && value.starts_with(quote) && value.ends_with(quote);
    within('"') || within('\'')
}

/// Quoted, and never long.
fn shown(text: &str) -> String {
    format!("{:?}", text.chars().take(60).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(text: &str) -> FlagOverrides {
        FlagOverrides::parse(text).unwrap()
    }

    #[test]
    fn comments_blanks_and_spellings_do_not_count() {
        let written = parse("# why\n\n  --max_pods=5 \r\n!--v\n!--cgroup-driver\n--fail-swap-on\n");
        assert_eq!(written.lines(), ["!--cgroup-driver", "!--v", "--max-pods=5", "--fail-swap-on"]);
        assert_eq!(written, parse("!--cgroup_driver\n!--v\n!--v\n--max-pods=5\n--fail-swap-on"));
        assert!(parse("# nothing\n").is_empty());
    }

    #[test]
    fn a_value_is_taken_literally() {
        let value = "$(touch /x); `id` && 'a' | \\ * ? <b> \"c\" =d";
        assert_eq!(parse(&format!("--node-labels={value}")).lines(), [format!("--node-labels={value}")]);
        assert_eq!(parse("--node-labels=").lines(), ["--node-labels="]);
    }

    #[test]
    fn bad_lines_are_named() {
        for (text, why) in [
            ("--v=2\nmax-pods=5", "line 2: it is no flag"),
            ("-v2", "is no flag"),
            ("--", "is no flag's name"),
            ("---v=2", "is no flag's name"),
            ("--max-pods", "--max-pods needs a value"),
            ("--max-pods 5", "a blank after --max-pods: write --max-pods=value"),
            ("!--max-pods=5", "leave the value out"),
            ("!max-pods", "is no flag"),
            ("--node-labels=\"a=b\"", "no shell reads this"),
            ("--v=2\n--v=3", "line 2: --v stands there before"),
            ("--max-pods=1\n--max_pods=1", "line 2: --max-pods stands there before"),
            ("--node-labels=a\0b", "line 1: a control character"),
            ("--$(id)=1", "is no flag's name"),
        ] {
            let error = FlagOverrides::parse(text).expect_err(text);
            assert!(error.contains(why), "{text:?}: {error}");
        }
        let long = format!("--node-labels={}", "x".repeat(1 << 20));
        assert!(FlagOverrides::parse(&long).unwrap_err().starts_with("1048590 bytes of flags are more than"));
        let name = format!("!--{}=", "x".repeat(1 << 14));
        assert!(FlagOverrides::parse(&format!("{name}{name}")).is_err());
    }

    #[test]
    fn what_adds_up_may_stand_twice() {
        let text = "--feature-gates=A=true\n--feature-gates=B=true\n--cluster-dns=10.0.0.1\n--cluster-dns=10.0.0.2";
        assert_eq!(parse(text).lines().len(), 4);
    }

    #[test]
    fn what_no_source_may_set() {
        for flag in ["--kubeconfig=/k", "!--config", "--node_ip=10.0.0.1", "--runonce", "--container-runtime=remote"] {
            let why = parse(flag).check(&BTreeSet::new()).expect_err(flag);
            let name = flag.split('=').next().unwrap_or_default().replace('_', "-");
            assert!(why.starts_with(&format!("{name} cannot be set by a source: ")), "{why}");
        }
        assert_eq!(parse("--max-pods=5\n!--cgroup-driver\n--node-labels=a=b").check(&BTreeSet::new()), Ok(()));
        let freed = BTreeSet::from(["node-ip".to_owned(), "config".to_owned()]);
        assert_eq!(parse("--node-ip=10.0.0.1\n!--node-ip").check(&freed), Ok(()), "its policy has it");
        assert!(parse("--config=/x").check(&freed).is_err(), "no policy can");
        let why = parse("--node-labels=a=b, topology.kubernetes.io/zone=c").check(&BTreeSet::new()).unwrap_err();
        assert!(why.starts_with("--node-labels: topology.kubernetes.io/zone cannot be set"), "{why}");
    }

    proptest! {
        #[test]
        fn reading_never_panics_and_is_stable(text in "[ -~\\n]{0,80}|((!|--|=|max-pods|v|\\n| |#){0,12})") {
            if let Ok(overrides) = FlagOverrides::parse(&text) {
                prop_assert_eq!(&FlagOverrides::parse(&overrides.lines().join("\n")), &Ok(overrides));
            }
        }
    }
}
