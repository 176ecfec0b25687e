//! The defaults that a kubelet fills in when it reads a file: those of the hazard table, and those that depend on its
//! version or on other fields ([`Unset::Varies`]), which that table cannot say.
//!
//! From the comments in config/v1beta1/types.go of k8s.io/kubelet, branches release-1.20 to release-1.36, and
//! `SetDefaults_KubeletConfiguration` of v1.20.2 and v1.36; `evictionHard` from pkg/kubelet/eviction/defaults_linux.go
//! and `loadConfigFile` (cmd/kubelet/app/server.go) of v1.36.

use serde_json::{Map, Value, json};

use super::effective::{fill, read};
use super::table::{self, Unset};
use crate::types::Type;
use crate::{gates, schema};

/// Hard eviction from 1.30 on.
const EVICTION_HARD_1_30: &str = r#"{"memory.available":"100Mi","nodefs.available":"10%","nodefs.inodesFree":"5%","imagefs.available":"15%","imagefs.inodesFree":"5%"}"#;

/// Defaults by version: a field, and from which minor version on it is what.
static BY_VERSION: &[(&str, &[(u64, &str)])] = &[
    ("eventRecordQPS", &[(0, "5"), (27, "50")]),
    ("eventBurst", &[(0, "10"), (27, "100")]),
    ("kubeAPIQPS", &[(0, "5"), (27, "50")]),
    ("kubeAPIBurst", &[(0, "10"), (27, "100")]),
    ("memoryThrottlingFactor", &[(22, "0.8"), (27, "0.9")]),
    ("failCgroupV1", &[(31, "false"), (35, "true")]),
    ("memorySwap", &[(22, r#"{"swapBehavior":"LimitedSwap"}"#), (30, r#"{"swapBehavior":"NoSwap"}"#)]), // kuberuntime
    ("userNamespaces", &[(33, r#"{"idsPerPod":65536}"#)]),
    ("memoryReservationPolicy", &[(36, r#""None""#)]),
    ("evictionHard", &[(0, table::EVICTION_HARD), (30, EVICTION_HARD_1_30)]),
];

/// Defaults where a gate is on.
static BY_GATE: [(&str, &str, &str); 2] = [
    ("crashLoopBackOff", "KubeletCrashLoopBackOffMax", r#"{"maxContainerRestartPeriod":"5m"}"#),
    ("imagePullCredentialsVerificationPolicy", "KubeletEnsureSecretPulledImages", r#""NeverVerifyPreloadedImages""#),
];

/// The configuration with the defaults that depend on the version or on other fields, as a kubelet of this minor version
/// fills them in.
#[must_use]
pub fn filled(config: &Value, minor: Option<u64>) -> Value {
    let mut config = config.clone();
    let Some(fields) = config.as_object_mut() else { return config };
    let given = |fields: &Map<String, Value>, field: &str| {
        // Numbers that are no pointers in Go are the bursts alone: of others zero is a value.
        let counts = |value: &&Value| match value {
            Value::Number(_) => !(field.ends_with("Burst") && **value == 0),
            value => !table::find(field).is_some_and(|hazard| is_unset(hazard.of, value)),
        };
        fields.get(field).filter(counts).cloned()
    };
    let report = given(fields, "nodeStatusUpdateFrequency").unwrap_or_else(|| json!("5m"));
    let parallel = fields.get("maxParallelImagePulls").and_then(Value::as_u64).is_some_and(|pulls| pulls > 1);
    let mut defaults = vec![("nodeStatusReportFrequency", report), ("serializeImagePulls", json!(!parallel))];
    if let Some(minor) = minor {
        let early = BY_VERSION.iter().map(|(field, _)| *field).filter(|field| !LATE.contains(field));
        defaults.extend(early.filter_map(|field| Some((field, by_version(field, minor)?))));
        if minor < 23 {
            defaults.push(("resolvConf", json!("/etc/resolv.conf"))); // no pointer in Go yet: "" is not set
        }
    } else {
        defaults.push(("evictionHard", read(table::EVICTION_HARD)));
    }
    // Any number below zero is its default.
    if fields.get("podPidsLimit").and_then(Value::as_i64).is_some_and(|limit| limit < 0) {
        fields.insert("podPidsLimit".to_owned(), json!(-1));
    }
    let merges = fields.get("mergeDefaultEvictionSettings") == Some(&true.into());
    for (field, default) in defaults {
        if given(fields, field).is_none() {
            fields.insert(field.to_owned(), default);
        } else if field == "evictionHard"
            && merges
            && let (Some(Value::Object(given)), Value::Object(default)) = (fields.get_mut(field), default)
        {
            for (signal, threshold) in default {
                given.entry(signal).or_insert(threshold);
            }
        }
    }
    config
}

/// The configuration with the defaults that a kubelet of this minor version fills in when it reads a file. What it does not
/// know is given none; of an unknown version, what not every version knows is given none.
#[must_use]
pub fn defaulted(config: &Value, minor: Option<u64>) -> Value {
    let config = filled(config, minor);
    let early = table::HAZARDS.iter().filter(|hazard| !LATE.contains(&hazard.field));
    with_defaults(&config, early.map(|hazard| hazard.field), minor)
}

/// What is found when the kubelet starts, after its flags: `cgroupRoot` with `cgroupsPerQOS` (run, cmd/kubelet/app/server.go),
/// the endpoint of images (`PreInitRuntimeService`, pkg/kubelet/kubelet.go, v1.36), swap
/// (pkg/kubelet/kuberuntime/kuberuntime_container_linux.go, v1.22 to v1.36), user namespaces (config/v1beta1/types.go, v1.36).
const LATE: [&str; 4] = ["cgroupRoot", "imageServiceEndpoint", "memorySwap", "userNamespaces"];

/// The configuration with the defaults that a kubelet fills in when it starts.
#[must_use]
pub fn started(config: &Value, minor: Option<u64>) -> Value {
    let no_root = config.get("cgroupsPerQOS") == Some(&false.into());
    let late = LATE.into_iter().filter(|field| *field != "cgroupRoot" || !no_root);
    let mut all = with_defaults(config, late, minor);
    let (gates, Some(fields)) = (config.get("featureGates"), all.as_object_mut()) else { return all };
    let by_version = LATE.into_iter().filter_map(|field| Some((field, by_version(field, minor?)?)));
    // Where the gate is off it is written out that there is none: what is left out may be at any version's default.
    let without = |default: &Value| if default.is_object() { json!({}) } else { json!("") };
    let known = BY_GATE.iter().filter(|(_, gate, _)| gates::are_known(minor) && gates::is_known(gate, minor));
    let by_gate = known.map(|(field, gate, text)| (*field, read(text), gates::is_on(gate, gates, minor)));
    let by_gate = by_gate.map(|(field, default, is_on)| (field, if is_on { default } else { without(&default) }));
    for (field, default) in by_version.chain(by_gate) {
        let (of, given) = (table::find(field).map_or(Type::Text, |hazard| hazard.of), fields.remove(field));
        fields.insert(field.to_owned(), fill(of, default, given.unwrap_or_default(), is_unset));
    }
    all
}

/// What a kubelet of this minor version says that it goes by, with what it leaves out for being zero: texts and numbers that have
/// a default, and are no pointers in Go (`omitempty`).
#[must_use]
pub(crate) fn with_zeros(configz: &Value, minor: Option<u64>) -> Value {
    let mut all = configz.clone();
    if let (Some(fields), true) = (all.as_object_mut(), minor.is_some()) {
        let left_out = table::HAZARDS.iter().filter(|hazard| {
            matches!(hazard.unset, Unset::Zeros(_))
                && hazard.of != Type::Duration
                && !LATE.contains(&hazard.field)
                && schema::is_known(hazard.field, minor)
        });
        for hazard in left_out {
            let zero = if hazard.of == Type::Int { json!(0) } else { json!("") };
            fields.entry(hazard.field).or_insert(zero);
        }
    }
    all
}

/// A payload with their defaults where its fields are zero, and so not set.
#[must_use]
pub(crate) fn without_zeros(payload: &Value) -> Value {
    let mut all = payload.clone();
    for (field, given) in all.as_object_mut().into_iter().flatten() {
        let zeros = |hazard: &&table::Hazard| matches!(hazard.unset, Unset::Zeros(_)) && !given.is_null();
        if table::find(field).as_ref().is_some_and(zeros) {
            *given = of_file(payload, field);
        }
    }
    all
}

fn with_defaults(config: &Value, fields: impl Iterator<Item = &'static str>, minor: Option<u64>) -> Value {
    let mut all = config.clone();
    if let Some(all) = all.as_object_mut() {
        for field in fields {
            let value = of_file(config, field);
            if !value.is_null() && (config.get(field).is_some() || schema::is_known(field, minor)) {
                all.insert(field.to_owned(), value);
            }
        }
    }
    all
}

/// What a field of a file is taken for. Where Go has no pointer a value that is zero counts as not set.
fn of_file(config: &Value, field: &str) -> Value {
    let given = config.get(field).cloned().unwrap_or_default();
    let Some(hazard) = table::find(field) else { return given };
    match hazard.unset {
        Unset::Zeros(text) if is_go_zero(hazard.of, &given) => read(text),
        Unset::Absent(text) if given.is_null() => read(text),
        Unset::Struct(text) => fill(hazard.of, read(text), given, is_unset),
        Unset::Like(other) if hazard.of.is_zero(&given) && other != field => of_file(config, other),
        _ => given,
    }
}

/// What is a text in Go is zero if it is empty, whatever it says.
pub(crate) fn is_go_zero(of: Type, given: &Value) -> bool {
    match given {
        Value::String(text) if of != Type::Duration => text.is_empty(),
        _ => of.is_zero(given),
    }
}

/// Texts and lengths of time are no pointers in Go, wherever they have a default.
fn is_unset(of: Type, given: &Value) -> bool {
    given.is_null() || matches!(of, Type::Text | Type::Duration) && of.is_zero(given)
}

/// True for a field whose default is not the same in every version.
pub(crate) fn depends_on_version(field: &str) -> bool {
    of_any_version(field).next().is_some()
}

/// What a field is in some version where nobody sets it.
fn of_any_version(field: &str) -> impl Iterator<Item = &'static str> {
    let by_version = BY_VERSION.iter().filter(move |(name, _)| *name == field).flat_map(|(_, defaults)| *defaults);
    let by_gate = BY_GATE.iter().filter(move |(name, ..)| *name == field).map(|(_, _, text)| *text);
    by_version.map(|(_, text)| *text).chain(by_gate)
}

/// True if a kubelet of some version takes this for what a field is that is not set.
pub(super) fn is_default_somewhere(field: &str, value: &Value) -> bool {
    let of = table::find(field).map_or(Type::Text, |hazard| hazard.of);
    of_any_version(field).any(|text| of.is_same(&read(text), value))
}

fn by_version(field: &str, minor: u64) -> Option<Value> {
    let (_, defaults) = BY_VERSION.iter().find(|(name, _)| *name == field)?;
    let (_, text) = defaults.iter().rev().find(|(since, _)| minor >= *since)?;
    serde_json::from_str(text).ok()
}

/// True for a field whose default nobody can tell from afar.
#[must_use]
pub fn depends_on_node(field: &str) -> bool {
    let varies = table::find(field).is_some_and(|hazard| hazard.unset == Unset::Varies);
    varies && filled(&json!({}), Some(u64::MAX)).get(field).is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_follow_the_version() {
        let of = |minor, field: &str| filled(&json!({}), Some(minor))[field].clone();
        assert_eq!((of(20, "kubeAPIQPS"), of(27, "kubeAPIQPS")), (json!(5), json!(50)));
        assert_eq!((of(26, "eventBurst"), of(36, "eventBurst")), (json!(10), json!(100)));
        assert_eq!((of(20, "memoryThrottlingFactor"), of(26, "memoryThrottlingFactor")), (Value::Null, json!(0.8)));
        assert_eq!((of(30, "failCgroupV1"), of(34, "failCgroupV1")), (Value::Null, json!(false)));
        assert_eq!(of(35, "failCgroupV1"), json!(true));
        assert_eq!(
            (of(29, "evictionHard").get("imagefs.inodesFree"), &of(30, "evictionHard")["imagefs.inodesFree"]),
            (None, &json!("5%"))
        );
        let none = |minor| filled(&json!({"resolvConf": ""}), Some(minor))["resolvConf"].clone();
        assert_eq!((none(22), none(23)), (json!("/etc/resolv.conf"), json!("")));
        assert_eq!(filled(&json!({}), None).get("kubeAPIQPS"), None);
        assert_eq!(filled(&json!(1), Some(20)), json!(1));
    }

    /// The table, over all versions: no default comes before its field, each step is another value, and no kubelet is given what it
    /// does not know.
    #[test]
    fn every_default_of_every_version_is_of_a_field_that_it_has() {
        for (field, defaults) in BY_VERSION {
            assert!(defaults.is_sorted_by(|(since, text), (later, other)| since < later && text != other), "{field}");
            for (since, text) in *defaults {
                let at = (*since).max(schema::OLDEST_SUPERVISED);
                assert!(*since <= schema::NEWEST && schema::is_known(field, Some(at)), "{field} in 1.{since}");
                assert!(serde_json::from_str::<Value>(text).is_ok(), "{field}: {text}");
            }
        }
        for minor in schema::OLDEST_SUPERVISED..=schema::NEWEST {
            let all = defaulted(&json!({}), Some(minor));
            let fields = all.as_object().map(|fields| fields.keys().map(String::as_str)).into_iter().flatten();
            let unknown: Vec<&str> = fields.filter(|field| !schema::is_known(field, Some(minor))).collect();
            assert_eq!(unknown, [""; 0], "1.{minor}");
        }
    }

    /// What is found at the start follows the gates that flags set, too.
    #[test]
    fn defaults_by_gate_and_of_the_start() {
        let of = |config: Value, minor, field: &str| started(&config, Some(minor))[field].clone();
        let (five, ten) = (json!({"maxContainerRestartPeriod": "5m"}), json!({"maxContainerRestartPeriod": "10s"}));
        let gate = |name: &str, on: bool| json!({"featureGates": {name: on}});
        let back_off = "KubeletCrashLoopBackOffMax";
        assert_eq!(of(json!({}), 35, "crashLoopBackOff"), five);
        assert_eq!(of(json!({"crashLoopBackOff": {}}), 35, "crashLoopBackOff"), five, "empty is not set");
        assert_eq!(of(json!({"crashLoopBackOff": ten}), 35, "crashLoopBackOff"), ten);
        assert_eq!(of(json!({}), 34, "crashLoopBackOff"), json!({}), "alpha");
        assert_eq!(of(gate(back_off, true), 32, "crashLoopBackOff"), five);
        assert_eq!(of(gate(back_off, false), 36, "crashLoopBackOff"), json!({}));
        let images = "imagePullCredentialsVerificationPolicy";
        assert_eq!(of(json!({}), 34, images), json!(""), "nothing is verified");
        assert_eq!(of(json!({images: ""}), 35, images), json!("NeverVerifyPreloadedImages"));
        assert_eq!(of(gate("KubeletEnsureSecretPulledImages", false), 36, images), json!(""));
        let swap = |minor| of(json!({"memorySwap": {"swapBehavior": ""}}), minor, "memorySwap")["swapBehavior"].clone();
        assert_eq!((swap(22), swap(29)), (json!("LimitedSwap"), json!("LimitedSwap")));
        assert_eq!((swap(30), swap(36)), (json!("NoSwap"), json!("NoSwap")));
        assert_eq!(of(json!({}), 20, "memorySwap"), Value::Null);
        for minor in schema::OLDEST_SUPERVISED..=schema::NEWEST {
            let all = started(&gate(back_off, true), Some(minor));
            let fields = all.as_object().map(|fields| fields.keys().map(String::as_str)).into_iter().flatten();
            let unknown: Vec<&str> = fields.filter(|field| !schema::is_known(field, Some(minor))).collect();
            assert_eq!(unknown, [""; 0], "1.{minor}");
        }
        assert_eq!(started(&json!({"podPidsLimit": -7}), Some(20))["podPidsLimit"], -7, "of a flag");
        assert_eq!(filled(&json!({"podPidsLimit": -7}), Some(20))["podPidsLimit"], -1);
    }

    #[test]
    fn what_is_given_stays_and_rules_others() {
        let config =
            json!({"eventBurst": 0, "kubeAPIQPS": 0, "nodeStatusUpdateFrequency": "7s", "maxParallelImagePulls": 2});
        let filled = filled(&config, Some(30));
        assert_eq!((&filled["eventBurst"], &filled["kubeAPIQPS"]), (&json!(100), &json!(0)));
        assert_eq!(
            (&filled["nodeStatusReportFrequency"], &filled["serializeImagePulls"]),
            (&json!("7s"), &json!(false))
        );
    }

    #[test]
    fn eviction_thresholds_replace_the_defaults_unless_they_are_merged() {
        let given = json!({"evictionHard": {"memory.available": "1Gi"}});
        assert_eq!(filled(&given, Some(36))["evictionHard"], given["evictionHard"]);
        let merged = json!({"evictionHard": {"memory.available": "1Gi"}, "mergeDefaultEvictionSettings": true});
        assert_eq!(
            filled(&merged, Some(36))["evictionHard"],
            json!({"memory.available": "1Gi", "nodefs.available": "10%", "nodefs.inodesFree": "5%",
                "imagefs.available": "15%", "imagefs.inodesFree": "5%"})
        );
    }

    #[test]
    fn all_defaults_that_a_version_has() {
        let of = |minor| defaulted(&json!({"maxPods": 0, "registryPullQPS": 0, "readOnlyPort": 0}), minor);
        let old = of(Some(20));
        assert_eq!(
            (&old["maxPods"], &old["registryPullQPS"], &old["readOnlyPort"]),
            (&json!(110), &json!(0), &json!(0))
        );
        assert_eq!((&old["kubeAPIQPS"], old.get("containerLogMaxWorkers")), (&json!(5), None));
        let unknown = of(None);
        assert_eq!((unknown.get("kubeAPIQPS"), unknown.get("containerLogMaxWorkers")), (None, None));
        assert_eq!(unknown["syncFrequency"], "1m");
        assert_eq!(of(Some(30))["containerLogMaxWorkers"], 1);
    }

    #[test]
    fn one_default_nobody_knows() {
        let unknown: Vec<&str> =
            table::HAZARDS.iter().map(|hazard| hazard.field).filter(|field| depends_on_node(field)).collect();
        assert_eq!(unknown, ["singleProcessOOMKill"], "on cgroup v1 another");
    }
}
