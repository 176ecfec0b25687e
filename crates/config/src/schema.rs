//! The fields of a KubeletConfiguration, nested ones too, and which kubelets know them: a field that it does not know a kubelet ignores.
//!
//! It decodes strictly first; what only that refuses (unknown and duplicate fields) it logs, and decodes again without
//! (pkg/kubelet/kubeletconfig/util/codec/codec.go, v1.20 to v1.36). Both passes tell names apart by case: in the file
//! `evictionhard` has no effect. In a drop-in it has one from 1.29 on: Go's own encoding/json reads what drop-ins are merged to.
//!
//! Names and versions: config/v1beta1/types.go of k8s.io/kubelet, and `LoggingConfiguration` and `TracingConfiguration` of
//! k8s.io/component-base, the branches release-1.16 to release-1.36 and v0.37.0-beta.0.

use serde_json::Value;

use crate::hazard::message::bounded;
use crate::hazard::table;
use crate::types::Type;

/// The oldest minor version that was looked at; a field it has may be older.
const OLDEST: u64 = 16;

/// The newest. Of a later kubelet nobody knows here which fields it has.
pub const NEWEST: u64 = 37;

/// The oldest that is supervised.
pub(crate) const OLDEST_SUPERVISED: u64 = 20;

/// So many problems are worth telling; nobody wrote more by mistake.
const MOST: usize = 32;

/// No field's name is as long; what is longer is not compared with them.
const NAME_MAX: usize = 64;

/// The minor version that brought a field, if it is not there since 1.16 or since the field it is in.
#[rustfmt::skip]
static SINCE: &[(&str, u64)] = &[
    ("containerLogMaxWorkers", 30),
    ("containerLogMonitorInterval", 30),
    ("containerRuntimeEndpoint", 27),
    ("cpuManagerPolicyOptions", 22),
    ("crashLoopBackOff", 32),
    ("enableDebugFlagsHandler", 21),
    ("enableProfilingHandler", 21),
    ("enableServer", 19),
    ("enableSystemLogHandler", 19),
    ("enableSystemLogQuery", 27),
    ("failCgroupV1", 31),
    ("imageMaximumGCAge", 29),
    ("imagePullCredentialsVerificationPolicy", 33),
    ("imageServiceEndpoint", 27),
    ("kernelMemcgNotification", 19),
    ("localStorageCapacityIsolation", 25),
    ("logging", 19),
    ("logging.flushFrequency", 23),
    ("logging.options", 23),
    ("logging.options.text", 30),
    ("logging.sanitization", 20),
    ("logging.verbosity", 23),
    ("logging.vmodule", 23),
    ("maxParallelImagePulls", 27),
    ("memoryManagerPolicy", 21),
    ("memoryReservationPolicy", 36),
    ("memorySwap", 22),
    ("memoryThrottlingFactor", 22),
    ("mergeDefaultEvictionSettings", 33),
    ("nodeStatusMaxImages", 19),
    ("podLogsDir", 30),
    ("preloadedImagesVerificationAllowlist", 33),
    ("providerID", 19),
    ("registerNode", 23),
    ("registerWithTaints", 23),
    ("reservedMemory", 21),
    ("reservedSystemCPUs", 17),
    ("runOnce", 19),
    ("seccompDefault", 22),
    ("showHiddenMetricsForVersion", 18),
    ("shutdownGracePeriod", 20),
    ("shutdownGracePeriodByPodPriority", 23),
    ("shutdownGracePeriodCriticalPods", 20),
    ("singleProcessOOMKill", 32),
    ("tlsCurvePreferences", 36),
    ("topologyManagerPolicyOptions", 26),
    ("topologyManagerScope", 20),
    ("tracing", 25),
    ("userNamespaces", 33),
    ("volumePluginDir", 19),
];

/// The last minor version with a field.
const UNTIL: &[(&str, u64)] = &[("logging.sanitization", 23)];

/// What a kubelet may do with a configuration that is not what its author meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FieldProblem {
    /// No kubelet that was looked at has this field.
    Unknown {
        /// Its path.
        path: String,
        /// The field that is likely meant.
        meant: Option<String>,
    },
    /// Only kubelets of these minor versions have it.
    Versions {
        /// Its path.
        path: String,
        /// The first of them.
        since: u64,
        /// The last of them, if that is over.
        until: Option<u64>,
    },
    /// A field stands twice; which, and where.
    Duplicate(String),
}

impl FieldProblem {
    /// A line for people, if it is a problem to a kubelet of this minor version; none: the version is not known.
    #[must_use]
    pub fn message(&self, minor: Option<u64>) -> Option<String> {
        match self {
            Self::Duplicate(what) => Some(format!("duplicate field in the payload, the last one wins: {what}")),
            Self::Unknown { path, meant: Some(meant) }
                if minor.is_none_or(|minor| minor <= NEWEST) || path.eq_ignore_ascii_case(meant) =>
            {
                Some(format!("{path}: did you mean {meant}?"))
            }
            Self::Unknown { path, .. } => minor
                .is_none_or(|minor| minor <= NEWEST)
                .then(|| format!("{path}: no kubelet up to 1.{NEWEST} knows it")),
            Self::Versions { path, since, until } => {
                let minor = minor?;
                let what = match until {
                    Some(until) if minor > *until => format!("until 1.{until}"),
                    _ if minor < *since => format!("since 1.{since}"),
                    _ => return None,
                };
                Some(format!("{path}: {what}, this kubelet is 1.{minor}"))
            }
        }
    }
}

crate::named! {
    /// What is done with a payload that has such fields.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum UnknownFields by as_str {
        /// It is said.
        #[default]
        Warn = "warn",
        /// It is rejected.
        Refuse = "refuse",
    }
}

impl std::str::FromStr for UnknownFields {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let named = Self::ALL.into_iter().find(|fields| fields.as_str() == text);
        named.ok_or_else(|| format!("{text:?} is not warn or refuse"))
    }
}

/// A line for each of these that is a problem to a kubelet of this minor version.
#[must_use]
pub fn messages(problems: &[FieldProblem], minor: Option<u64>) -> Vec<String> {
    problems.iter().filter_map(|problem| problem.message(minor)).collect()
}

/// Such lines as the reason of a rejection; fits an event.
#[must_use]
pub fn refusal(messages: &[String]) -> String {
    refusal_by("--unknown-fields", messages)
}

/// The same, if something else says so.
#[must_use]
pub fn refusal_by(whom: &str, messages: &[String]) -> String {
    bounded(messages.iter().cloned(), &format!(" (refused by {whom})"))
}

/// True if the field at this dotted path is `parent` or below it.
#[must_use]
pub fn is_within(field: &str, parent: &str) -> bool {
    field.strip_prefix(parent).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// True if a change of one field is a change of the other: they are the same, or one is within the other.
#[must_use]
pub fn overlap(one: &str, other: &str) -> bool {
    is_within(one, other) || is_within(other, one)
}

/// True if a kubelet of this minor version knows the field at this dotted path, or an entry of a field that is a map; of an
/// unknown version, if all do that are supervised; of one later than the tables, whatever it is.
#[must_use]
pub fn is_known(path: &str, minor: Option<u64>) -> bool {
    let minor = minor.unwrap_or(OLDEST_SUPERVISED);
    if minor > NEWEST {
        return true;
    }
    let mut parent = String::new();
    for name in names(path) {
        // What is below a map is an entry of it, whatever it is.
        if !parent.is_empty() && !is_struct(&parent) {
            break;
        }
        let here = join(&parent, name);
        let in_time = version_in(SINCE, &here).is_none_or(|since| since <= minor)
            && version_in(UNTIL, &here).is_none_or(|until| until >= minor);
        if !known(&parent).any(|known| known == name) || !in_time {
            return false;
        }
        parent = here;
    }
    true
}

fn version_in(table: &[(&str, u64)], path: &str) -> Option<u64> {
    table.iter().find(|(name, _)| *name == path).map(|(_, minor)| *minor)
}

/// The names in a field's path. Below a map the rest is one: names of its entries may hold dots.
pub(crate) fn names(path: &str) -> Vec<&str> {
    let (mut names, mut rest) = (Vec::new(), path);
    while let Some((name, below)) = rest.split_once('.')
        && (names.is_empty() || is_struct(&names.join(".")))
    {
        names.push(name);
        rest = below;
    }
    names.push(rest);
    names
}

/// The minor version in `v1.29.3`, `1.29`, `1.29.3+k3s1`.
///
/// # Errors
/// It is none.
pub fn minor(version: &str) -> Result<u64, String> {
    let mut parts = version.trim_start_matches('v').split(['.', '-', '+']);
    let minor = (parts.next() == Some("1")).then(|| parts.next()?.parse().ok()).flatten();
    minor.ok_or_else(|| format!("{version:?} is not the version of a kubelet, such as v1.29 or 1.29.3"))
}

/// The fields of a configuration that some kubelet does not know.
#[must_use]
pub fn problems(config: &Value) -> Vec<FieldProblem> {
    let mut found = Vec::new();
    search("", config, (OLDEST, None), &mut found);
    found
}

/// Recursion ends with the table.
fn search(parent: &str, value: &Value, versions: (u64, Option<u64>), found: &mut Vec<FieldProblem>) {
    let objects = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
    for (field, value) in objects.iter().filter_map(Value::as_object).flatten() {
        if found.len() >= MOST {
            return;
        }
        if parent.is_empty() && matches!(field.as_str(), "apiVersion" | "kind") {
            continue;
        }
        let path = join(parent, field);
        let problem = if known(parent).any(|name| name == field) {
            let since = version_in(SINCE, &path).unwrap_or(versions.0);
            let until = version_in(UNTIL, &path).or(versions.1);
            if is_struct(&path) {
                search(&path, value, (since, until), found);
            }
            // What is in a field that is told of need not be told of as well.
            let told = (since, until) == versions;
            if told { None } else { Some(FieldProblem::Versions { path, since, until }) }
        } else {
            Some(FieldProblem::Unknown { meant: nearest(parent, field), path })
        };
        found.extend(problem.filter(|problem| !found.contains(problem)));
    }
}

/// A path as it is shown: a key may be of any length, and hold anything.
pub(crate) fn join(parent: &str, field: &str) -> String {
    let field: String = field.chars().take(NAME_MAX).flat_map(char::escape_debug).collect();
    if parent.is_empty() { field } else { format!("{parent}.{field}") }
}

/// What the field at this path is; the whole configuration, if it is "".
pub(crate) fn type_of(path: &str) -> Option<Type> {
    let mut names = path.split('.');
    let top = table::find(names.next().filter(|name| !name.is_empty())?)?;
    names.try_fold(top.of, |of, name| of.members()?.iter().find(|(member, _)| *member == name).map(|(_, of)| *of))
}

fn is_struct(path: &str) -> bool {
    type_of(path).is_some_and(|of| of.members().is_some())
}

/// True where names are those of fields: of the whole configuration, of a struct, of the structs in a list.
pub(crate) fn has_fields(path: &str) -> bool {
    path.is_empty() || is_struct(path)
}

/// The field that Go's encoding/json reads a name as.
pub(crate) fn field_in_any_case(parent: &str, name: &str) -> Option<&'static str> {
    known(parent).find(|field| field.eq_ignore_ascii_case(name))
}

/// What a kubelet of this minor version reads of a configuration: it reads over the fields that it does not know. All, if the
/// version is not known.
#[must_use]
pub(crate) fn known_part(config: &Value, minor: Option<u64>) -> Value {
    fn part(parent: &str, value: &Value, minor: Option<u64>) -> Value {
        let Value::Object(fields) = value else { return value.clone() };
        let known = fields.iter().filter(|(name, _)| {
            is_known(&join(parent, name), minor) || parent.is_empty() && table::find(name).is_none()
        });
        let known = known.map(|(name, value)| {
            let path = join(parent, name);
            let value = if is_struct(&path) { part(&path, value, minor) } else { value.clone() };
            (name.clone(), value)
        });
        Value::Object(known.collect())
    }
    if minor.is_none() { config.clone() } else { part("", config, minor) }
}

/// True for a field of a struct, whatever the struct is in.
pub(crate) fn is_in_struct(path: &str) -> bool {
    path.rsplit_once('.').is_some_and(|(parent, _)| is_struct(parent))
}

/// The names of a struct's fields, or of those of the structs in a list; of the whole configuration's, if it is "".
fn known(parent: &str) -> impl Iterator<Item = &'static str> {
    let below = type_of(parent).and_then(Type::members).into_iter().flatten().map(|(name, _)| *name);
    let top = parent.is_empty().then(|| table::HAZARDS.iter().map(|hazard| hazard.field));
    below.chain(top.into_iter().flatten())
}

/// The paths of all structs below this path.
fn structs(parent: &str) -> Vec<String> {
    let below = known(parent).map(|name| join(parent, name)).filter(|path| is_struct(path));
    below.flat_map(|path| [structs(&path), vec![path]].concat()).collect()
}

/// The path of the field that may be meant: of the same struct in other case, elsewhere, or of the same struct with few
/// letters between them.
fn nearest(parent: &str, field: &str) -> Option<String> {
    let same_name =
        |parent: &str| known(parent).find(|name| name.eq_ignore_ascii_case(field)).map(|name| join(parent, name));
    let edits = |name: &str| strsim::damerau_levenshtein(&name.to_ascii_lowercase(), &field.to_ascii_lowercase());
    let near = || {
        let name = known(parent).filter(|_| field.len() <= NAME_MAX).min_by_key(|name| edits(name))?;
        (edits(name) <= (name.len() / 4).max(1)).then(|| join(parent, name))
    };
    let elsewhere =
        || std::iter::once(String::new()).chain(structs("")).filter(|it| it != parent).find_map(|it| same_name(&it));
    same_name(parent).or_else(near).or_else(elsewhere)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn messages(config: &Value, minor: Option<u64>) -> Vec<String> {
        super::messages(&problems(config), minor)
    }

    #[test]
    fn fields_within_fields() {
        for (field, parent, within) in [("a.b", "a", true), ("a", "a", true), ("ab", "a", false), ("a", "a.b", false)] {
            assert_eq!(is_within(field, parent), within, "{field} in {parent}");
        }
        assert!(overlap("a", "a.b") && !overlap("a.b", "a.c"));
    }

    #[test]
    fn versions() {
        for (text, expected) in
            [("v1.29.3", 29), ("1.29", 29), ("1.36.0-beta.1", 36), ("v1.20.2+k3s1", 20), ("1.8+", 8)]
        {
            assert_eq!(minor(text), Ok(expected), "{text}");
        }
        for text in ["", "29", "2.1", "v1", "1.x", "latest"] {
            assert!(minor(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn every_field_of_the_tables_is_one() {
        let is_field = |path: &str| {
            let (parent, field) = path.rsplit_once('.').unwrap_or(("", path));
            known(parent).any(|name| name == field)
        };
        for (path, minor) in SINCE.iter().chain(UNTIL) {
            assert!(is_field(path) && *minor > OLDEST && *minor <= NEWEST, "{path}");
        }
        assert!(structs("").iter().all(|path| is_field(path) && known(path).count() > 0));
        assert_eq!(structs("").len(), 18);
    }

    #[test]
    fn what_a_kubelet_knows() {
        for (path, minor, expected) in [
            ("maxPods", Some(20), true),
            ("maxpods", Some(20), false),
            ("maxpods", Some(38), true),
            ("seccompDefault", Some(21), false),
            ("seccompDefault", Some(22), true),
            ("seccompDefault", None, false),
            ("logging.format", None, true),
            ("logging.sanitization", Some(24), false),
            ("logging.flushFrequency", Some(22), false),
            ("logging.options.json.infoBufferSize", Some(23), true),
            ("evictionHard.memory.available", Some(20), true),
            ("authentication.x509.clientCAFile", Some(20), true),
            ("authentication.x509.clientCaFile", Some(20), false),
            ("memorySwap.swapBehavior", Some(20), false),
        ] {
            assert_eq!(is_known(path, minor), expected, "{path} in {minor:?}");
        }
    }

    #[test]
    fn what_was_likely_meant() {
        for (config, line) in [
            (json!({"evictionhard": {}}), "evictionhard: did you mean evictionHard?"),
            (json!({"maxPodz": 1}), "maxPodz: did you mean maxPods?"),
            (json!({"mxaPods": 1}), "mxaPods: did you mean maxPods?"),
            (json!({"kubeAPIQps": 1}), "kubeAPIQps: did you mean kubeAPIQPS?"),
            (json!({"clientCAFile": "x"}), "clientCAFile: did you mean authentication.x509.clientCAFile?"),
            (
                json!({"authentication": {"x509": {"clientCaFile": "x"}}}),
                "authentication.x509.clientCaFile: did you mean authentication.x509.clientCAFile?",
            ),
            (json!({"authentication": {"maxpods": 1}}), "authentication.maxpods: did you mean maxPods?"),
            (
                json!({"reservedMemory": [{"limits": {}}, {"numanode": 1}]}),
                "reservedMemory.numanode: did you mean reservedMemory.numaNode?",
            ),
            (
                json!({"logging": {"options": {"json": {"splitstream": true}}}}),
                "logging.options.json.splitstream: did you mean logging.options.json.splitStream?",
            ),
            (json!({"nonsense": {}}), "nonsense: no kubelet up to 1.37 knows it"),
            (json!({"": 1}), ": no kubelet up to 1.37 knows it"),
        ] {
            assert_eq!(messages(&config, None), [line]);
            assert_eq!(messages(&config, Some(36)), [line]);
        }
    }

    #[test]
    fn what_this_kubelet_does_not_have() {
        let config = json!({"maxParallelImagePulls": 5, "logging": {"format": "text", "sanitization": true, "options": {"text": {"splitStream": true}}}});
        let of = |minor| messages(&config, Some(minor));
        let line = |path: &str, when: &str, minor| format!("{path}: {when}, this kubelet is 1.{minor}");
        assert_eq!(
            of(20),
            [
                line("logging.options.text", "since 1.30", 20),
                line("logging.options", "since 1.23", 20),
                line("maxParallelImagePulls", "since 1.27", 20),
            ]
        );
        assert_eq!(
            of(23),
            [line("logging.options.text", "since 1.30", 23), line("maxParallelImagePulls", "since 1.27", 23)]
        );
        assert_eq!(of(30), [line("logging.sanitization", "until 1.23", 30)]);
        assert_eq!(messages(&config, None), [""; 0], "of an unknown version nothing is claimed");
    }

    /// What it has that we do not know is its own to tell; a name that differs by case alone is none of its fields either.
    #[test]
    fn a_kubelet_of_the_future() {
        let config = json!({"newField": 1, "maxPodz": 1, "maxpods": 1, "memorySwap": {"newer": 1}});
        assert_eq!(messages(&config, Some(NEWEST + 1)), ["maxpods: did you mean maxPods?"]);
    }

    #[test]
    fn what_is_told_is_bounded() {
        let many: serde_json::Map<String, Value> =
            (0..20_000).map(|number| (format!("field{number}"), json!(1))).collect();
        let found = problems(&Value::Object(many));
        assert_eq!(found.len(), MOST);
        let line = refusal(&super::messages(&found, None));
        assert!(line.ends_with(" more (refused by --unknown-fields)") && line.len() < 1000, "{line}");
        let lines = messages(&json!({ "x".repeat(1 << 20): 1, "a\u{1b}[0m\nb": 1 }), None);
        assert!(
            lines.len() == 2 && lines.iter().all(|line| line.len() < 200 && !line.contains(char::is_control)),
            "{lines:?}"
        );
    }

    #[test]
    fn what_is_free_has_any_key() {
        let config = json!({
            "kind": "KubeletConfiguration", "apiVersion": "x", "evictionHard": {"anything": "1"}, "featureGates": {"A": true},
            "kubeReserved": {"cpu": "1"}, "staticPodURLHeader": {"a": ["b"]}, "qosReserved": {"memory": "1%"},
            "reservedMemory": [{"numaNode": 0, "limits": {"memory": "1Gi"}}], "maxPods": {"not": "an object"},
        });
        assert_eq!(messages(&config, Some(36)), [""; 0]);
        assert_eq!(messages(&json!([1]), Some(36)), [""; 0]);
    }
}
