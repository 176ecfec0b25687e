//! Which fields a kubelet of a version knows. One that it does not know, it reads over.
//!
//! From config/v1beta1/types.go of k8s.io/kubelet, the branches release-1.16 to release-1.36 and
//! v0.37.0-beta.0: none was ever taken away.

use serde_json::Value;

use crate::hazard::table;

/// The oldest that was looked at; a field it has may be older.
const OLDEST: u64 = 16;

/// The newest that was looked at.
const NEWEST: u64 = 37;

/// The oldest that is supervised.
const OLDEST_SUPERVISED: u64 = 20;

/// The minor version that brought a field; all others of [`table::HAZARDS`] are in 1.16. Of `logging`, what was a flag
/// alone before.
#[rustfmt::skip]
const SINCE: &[(&str, u64)] = &[
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
    ("logging.verbosity", 23),
    ("logging.vmodule", 23),
    ("maxParallelImagePulls", 27),
    ("memoryManagerPolicy", 21),
    ("memoryReservationPolicy", 36),
    ("memorySwap", 22),
    ("memoryThrottlingFactor", 22),
    ("mergeDefaultEvictionSettings", 33),
    ("nodeStatusMaxImages", 19),
    ("podHousekeepingPeriod", 37),
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

/// The fields of structs, and of the structs in lists. `logging` and `tracing` are not among them:
/// they come from another module, and have changed more often.
#[rustfmt::skip]
const BELOW: &[(&str, &[&str])] = &[
    ("authentication", &["x509", "webhook", "anonymous"]),
    ("authentication.anonymous", &["enabled"]),
    ("authentication.webhook", &["enabled", "cacheTTL"]),
    ("authentication.x509", &["clientCAFile"]),
    ("authorization", &["mode", "webhook"]),
    ("authorization.webhook", &["cacheAuthorizedTTL", "cacheUnauthorizedTTL"]),
    ("crashLoopBackOff", &["maxContainerRestartPeriod"]),
    ("memorySwap", &["swapBehavior"]),
    ("reservedMemory", &["numaNode", "limits"]),
    ("shutdownGracePeriodByPodPriority", &["priority", "shutdownGracePeriodSeconds"]),
    ("userNamespaces", &["idsPerPod"]),
];

/// True if a kubelet of this minor version knows the field at this dotted path, or an entry of a field that is a map; of an
/// unknown version, if all do that we supervise; of one later than the tables, whatever it is.
#[must_use]
pub fn is_known(path: &str, minor: Option<u64>) -> bool {
    let minor = minor.unwrap_or(OLDEST_SUPERVISED);
    let top = path.split('.').next().unwrap_or_default();
    let since = |field: &str| SINCE.iter().find(|(name, _)| *name == field).is_none_or(|(_, since)| *since <= minor);
    let stands_in = |parent: &str, rest: &str| {
        let struct_fields = BELOW.iter().find(|(name, _)| *name == parent);
        struct_fields.is_none_or(|(_, known)| known.contains(&rest.split('.').next().unwrap_or_default()))
    };
    let parents = path.match_indices('.').filter_map(|(dot, _)| Some((path.get(..dot)?, path.get(dot + 1..)?)));
    let exists = table::find(top).is_some() && since(path);
    minor > NEWEST || exists && parents.into_iter().all(|(parent, rest)| since(parent) && stands_in(parent, rest))
}

/// The minor version in `v1.29.3`, `1.29`, `1.29.3+k3s1`.
///
/// # Errors
/// That it is no version of a kubelet.
pub fn minor(version: &str) -> Result<u64, String> {
    let mut parts = version.trim_start_matches('v').split(['.', '-', '+']);
    let minor = (parts.next() == Some("1")).then(|| parts.next()?.parse().ok()).flatten();
    minor.ok_or_else(|| format!("{version:?} is not the version of a kubelet, such as v1.29 or 1.29.3"))
}

/// The fields that a kubelet of this minor version does not know, each with why; of no version:
/// that no kubelet knows.
#[must_use]
pub fn unknown(config: &Value, minor: Option<u64>) -> Vec<String> {
    let mut found = Vec::new();
    for (field, value) in config.as_object().into_iter().flatten() {
        if matches!(field.as_str(), "apiVersion" | "kind") {
            continue;
        }
        if table::find(field).is_none() {
            found.push(format!("{field} is no field that kubelets up to 1.37 know{}", meant(field)));
            continue;
        }
        let since = SINCE.iter().find(|(name, _)| name == field).map_or(OLDEST, |(_, since)| *since);
        if let Some(minor) = minor.filter(|minor| *minor < since && since > OLDEST) {
            found.push(format!("{field} is known from 1.{since} on, not to 1.{minor}"));
        }
        nested(field, value, &mut found);
    }
    found
}

/// Recursion ends with the table.
fn nested(path: &str, value: &Value, found: &mut Vec<String>) {
    let Some((_, known)) = BELOW.iter().find(|(name, _)| *name == path) else { return };
    let objects = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
    for (field, value) in objects.iter().filter_map(Value::as_object).flatten() {
        let path = format!("{path}.{field}");
        if known.contains(&field.as_str()) {
            nested(&path, value, found);
        } else {
            found.push(format!("{path} is no field that kubelets up to 1.37 know"));
        }
    }
}

/// Names are told apart by case.
fn meant(field: &str) -> String {
    let near = table::HAZARDS.iter().find(|hazard| hazard.field.eq_ignore_ascii_case(field));
    near.map(|hazard| format!(" (did you mean {}?)", hazard.field)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

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
        for (field, since) in SINCE {
            assert!(table::find(field.split('.').next().unwrap()).is_some() && *since > OLDEST, "{field}");
        }
        for (path, _) in BELOW {
            assert!(table::find(path.split('.').next().unwrap()).is_some(), "{path}");
        }
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
    fn what_a_kubelet_would_read_over() {
        let config = json!({
            "kind": "KubeletConfiguration", "apiVersion": "x", "maxPods": 1, "MaxPods": 2, "nonsense": {},
            "seccompDefault": true, "logging": {"anything": 1}, "evictionHard": {"anything": "1"},
            "authentication": {"x509": {"clientCaFile": "x"}, "anonymous": {"enabled": true}},
            "reservedMemory": [{"numaNode": 0, "limits": {"memory": "1Gi"}, "numa": 1}],
        });
        let found = unknown(&config, Some(20));
        let begins = |start: &str| found.iter().filter(|line| line.starts_with(start)).count();
        assert_eq!(found.len(), 6, "{found:#?}");
        assert!(found.contains(&"seccompDefault is known from 1.22 on, not to 1.20".to_owned()));
        assert!(found.iter().any(|line| line.starts_with("MaxPods is no field") && line.contains("mean maxPods?")));
        for start in [
            "nonsense ",
            "authentication.x509.clientCaFile ",
            "reservedMemory is known from 1.21",
            "reservedMemory.numa ",
        ] {
            assert_eq!(begins(start), 1, "{start}: {found:#?}");
        }
        assert_eq!(unknown(&config, None).len(), 4);
        assert_eq!(unknown(&config, Some(36)).len(), 4);
        assert_eq!(unknown(&json!([1]), None), Vec::<String>::new());
    }
}
