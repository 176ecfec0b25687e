//! Defaults that depend on the kubelet's version or on other fields: [`Unset::Varies`] of the
//! hazard table, which cannot say them.
//!
//! From the comments in config/v1beta1/types.go of k8s.io/kubelet, branches release-1.20 to
//! release-1.36, and `SetDefaults_KubeletConfiguration` of v1.20.2 and v1.36.

use serde_json::{Value, json};

use kubelet_config::hazard::table::{self, Unset};

/// The configuration with such defaults filled in, as a kubelet of this minor version would.
pub(crate) fn filled(config: &Value, minor: Option<u64>) -> Value {
    let mut config = config.clone();
    let Some(fields) = config.as_object_mut() else { return config };
    let given = |fields: &serde_json::Map<String, Value>, field: &str| {
        fields.get(field).filter(|value| !value.is_null() && **value != "" && **value != "0s").cloned()
    };
    let mut defaults = Vec::new();
    let report = given(fields, "nodeStatusUpdateFrequency").unwrap_or_else(|| json!("5m"));
    if given(fields, "nodeStatusReportFrequency").is_none() {
        fields.insert("nodeStatusReportFrequency".to_owned(), report);
    }
    let parallel = fields.get("maxParallelImagePulls").and_then(Value::as_u64).is_some_and(|pulls| pulls > 1);
    defaults.push(("serializeImagePulls", json!(!parallel)));
    if let Some(minor) = minor {
        let (rate, burst) = if minor < 27 { (5, 10) } else { (50, 100) };
        defaults.extend([("eventRecordQPS", json!(rate)), ("kubeAPIQPS", json!(rate))]);
        defaults.extend([("eventBurst", json!(burst)), ("kubeAPIBurst", json!(burst))]);
        if minor < 23 {
            defaults.push(("resolvConf", json!("/etc/resolv.conf"))); // no pointer in Go yet: "" is not set
        }
        if minor >= 22 {
            defaults.push(("memoryThrottlingFactor", if minor < 27 { json!(0.8) } else { json!(0.9) }));
        }
        if minor >= 31 {
            defaults.push(("failCgroupV1", json!(minor >= 35)));
        }
    }
    for (field, default) in defaults {
        // Bursts are no pointers in Go: zero is not set.
        let unset = given(fields, field).is_none_or(|value| field.ends_with("Burst") && value == 0);
        if unset {
            fields.insert(field.to_owned(), default);
        }
    }
    config
}

/// True for a field whose default nobody can tell from afar.
pub(crate) fn depends_on_node(field: &str) -> bool {
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
        let none = |minor| filled(&json!({"resolvConf": ""}), Some(minor))["resolvConf"].clone();
        assert_eq!((none(22), none(23)), (json!("/etc/resolv.conf"), json!("")));
        assert_eq!(filled(&json!({}), None).get("kubeAPIQPS"), None);
        assert_eq!(filled(&json!(1), Some(20)), json!(1));
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
    fn one_default_nobody_knows() {
        let unknown: Vec<&str> =
            table::HAZARDS.iter().map(|hazard| hazard.field).filter(|field| depends_on_node(field)).collect();
        assert_eq!(unknown, ["singleProcessOOMKill"], "on cgroup v1 another");
    }
}
