//! Where each value comes from that a kubelet runs with, as far as it can be told from its
//! `/configz`, the ConfigMap and the defaults. Its command line, its own `--config` file and its
//! drop-ins cannot be read through the API server.

use std::collections::BTreeSet;

use serde::Serialize;
use serde_json::Value;

use super::field_paths::{at, clean, paths, settle_paths};
use super::node::winning_flag;
use kubelet_config::effective::{self, SERVING_CERTIFICATE};
use kubelet_config::flags::{FlagOverrides, KubeletArgs, Setting};
use kubelet_config::hazard;
use kubelet_config::merge::merge;
use kubelet_config::reported::ReportedSupervisor;
use kubelet_config::schema::{is_within, overlap};
use kubelet_config::source::Merge;

kubelet_config::named! {
    /// Where a value comes from; named for people.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
    #[serde(rename_all = "camelCase")]
    pub(crate) enum Provenance by label {
        /// It is the default, or somebody set it to that.
        Default = "default",
        /// The ConfigMap.
        ConfigMap = "ConfigMap",
        /// Not the ConfigMap, which is all that this node has but flags and drop-ins: one of these.
        #[serde(rename = "flagOrDropIn")]
        Flag = "flag or drop-in",
        /// The same, against what the ConfigMap says.
        Overridden = "flag or drop-in, not the ConfigMap",
        /// The local file, a drop-in or a flag.
        Node = "local files or flags",
    }
}

/// A field that is no struct or map.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Origin {
    pub(crate) field: String,
    /// What the kubelet goes by; null where it does not say.
    pub(crate) value: Value,
    /// What the ConfigMap says; null where it says nothing.
    pub(crate) intended: Value,
    pub(crate) from: Provenance,
    /// The flag that sets it, without dashes: one of the ConfigMap's; or one that wins over the ConfigMap, where the node
    /// says so.
    pub(crate) flag: Option<String>,
}

impl Origin {
    /// Where it comes from, for people.
    pub(crate) fn label(&self) -> String {
        match (&self.flag, self.from) {
            (Some(flag), Provenance::ConfigMap) => format!("ConfigMap, its flag --{flag}"),
            (Some(flag), _) => format!("flag --{flag}, not the ConfigMap"),
            (None, from) => from.label().to_owned(),
        }
    }
}

/// The ConfigMap that runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AppliedConfigMap<'a> {
    /// Its KubeletConfiguration.
    pub(crate) payload: &'a Value,
    /// Its flag overrides, which the payload here has in it.
    pub(crate) overrides: &'a FlagOverrides,
    /// How it is put together with the node's own.
    pub(crate) merge: Merge,
    /// What the node says of the flags that win over it.
    pub(crate) supervisor: &'a ReportedSupervisor,
}

/// Each field with where it comes from, by name.
pub(crate) fn explain(configz: &Value, given: Option<AppliedConfigMap<'_>>, minor: Option<u64>) -> Vec<Origin> {
    let payload = given.map(|given| clean(&settle_paths(given.payload, configz)));
    let empty = Value::Object(serde_json::Map::new());
    let named =
        |changes: Vec<hazard::Change>| -> BTreeSet<String> { changes.into_iter().map(|change| change.field).collect() };
    let mut set_by_somebody = configz.clone();
    let has_one = |payload: &Value| SERVING_CERTIFICATE.into_iter().any(|field| payload.get(field).is_some());
    if effective::chose_certificate(configz) && !payload.as_ref().is_some_and(has_one) {
        effective::drop_certificate(&mut set_by_somebody);
    }
    let (defaults, running) = (effective::of_file(&empty, minor), effective::reported(&set_by_somebody, minor));
    let set = named(hazard::diff(&defaults, &running));
    // As it would be if nothing but the ConfigMap had a say in what the ConfigMap sets.
    let mut meant = set_by_somebody;
    if let Some(payload) = &payload {
        merge(&mut meant, payload);
    }
    let overridden = named(hazard::diff(&effective::of_file(&meant, minor), &running));
    let fields: BTreeSet<String> = paths(configz).chain(payload.iter().flat_map(paths)).collect();
    let replaces = given.is_some_and(|given| given.merge == Merge::Replace);
    let settings = given.map(|given| KubeletArgs::default().with(given.overrides).settings()).unwrap_or_default();
    let mut origins = Vec::new();
    for field in fields {
        let value = at(configz, &field).cloned().unwrap_or_default();
        let intended = payload.as_ref().and_then(|payload| at(payload, &field)).cloned().unwrap_or_default();
        let within = |names: &BTreeSet<String>| names.iter().any(|name| overlap(&field, name));
        let from = if !intended.is_null() && within(&overridden) {
            Provenance::Overridden
        } else if !intended.is_null() {
            Provenance::ConfigMap
        } else if !within(&set) {
            Provenance::Default
        } else if replaces && !field.starts_with("featureGates.") {
            Provenance::Flag
        } else {
            Provenance::Node
        };
        let flag = given.and_then(|given| match from {
            Provenance::ConfigMap => {
                let sets = |setting: &&Setting| is_within(&field, &setting.path.join("."));
                settings.iter().find(sets).map(|setting| setting.flag.to_owned())
            }
            Provenance::Overridden => winning_flag(given.supervisor, &field).map(str::to_owned),
            _ => None,
        });
        origins.push(Origin { field, value, intended, from, flag });
    }
    origins
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn configz() -> Value {
        json!({"maxPods": 50, "syncFrequency": "1m0s", "clusterDomain": "x", "featureGates": {"A": true, "B": true},
            "evictionHard": {"memory.available": "1Gi"}, "kubeReserved": {"cpu": "1"}, "eventRecordQPS": 5,
            "tlsCertFile": "/var/lib/kubelet/pki/kubelet.crt", "tlsPrivateKeyFile": "/var/lib/kubelet/pki/kubelet.key",
            "authentication": {"anonymous": {"enabled": false}, "x509": {"clientCAFile": "/v/1/ca.crt"}}})
    }

    fn of(origins: &[Origin], field: &str) -> Provenance {
        origins.iter().find(|origin| origin.field == field).unwrap_or_else(|| panic!("{field}: {origins:#?}")).from
    }

    #[test]
    fn a_config_map_that_replaces_leaves_flags_and_drop_ins() {
        let payload = json!({"kind": "x", "maxPods": 50, "featureGates": {"A": true, "DynamicKubeletConfig": true},
            "evictionHard": {"memory.available": "1024Mi"}, "kubeReserved": {"cpu": "500m"},
            "authentication": {"x509": {"clientCAFile": "ca.crt"}}, "podPidsLimit": 100});
        let overrides = FlagOverrides::parse("--feature-gates=A=true").unwrap();
        let shadowed = ["kubeReserved (--kube-reserved)", "maxPods (--max-pods)", "podPidsLimit (--\u{1b}[31m)"];
        let supervisor =
            ReportedSupervisor { shadowed: shadowed.map(str::to_owned).to_vec(), ..ReportedSupervisor::default() };
        let given = AppliedConfigMap {
            payload: &payload,
            overrides: &overrides,
            merge: Merge::Replace,
            supervisor: &supervisor,
        };
        let origins = explain(&configz(), Some(given), Some(20));
        for (field, from) in [
            ("maxPods", Provenance::ConfigMap),
            ("syncFrequency", Provenance::Default),
            ("eventRecordQPS", Provenance::Default),
            ("clusterDomain", Provenance::Flag),
            ("featureGates.A", Provenance::ConfigMap),
            ("featureGates.B", Provenance::Node),
            ("evictionHard.memory.available", Provenance::ConfigMap),
            ("kubeReserved.cpu", Provenance::Overridden),
            ("authentication.x509.clientCAFile", Provenance::ConfigMap),
            ("authentication.anonymous.enabled", Provenance::Default),
            ("podPidsLimit", Provenance::Overridden),
            ("tlsCertFile", Provenance::Default),
        ] {
            assert_eq!(of(&origins, field), from, "{field}");
        }
        assert!(origins.iter().all(|origin| !origin.field.contains("DynamicKubeletConfig") && origin.field != "kind"));
        let reserved = origins.iter().find(|origin| origin.field == "kubeReserved.cpu").unwrap();
        assert_eq!((&reserved.value, &reserved.intended), (&json!("1"), &json!("500m")));
        // The node names the flag where it knows one; what is no flag's name is not repeated.
        let labels = |field: &str| origins.iter().find(|origin| origin.field == field).unwrap().label();
        assert_eq!(labels("featureGates.A"), "ConfigMap, its flag --feature-gates");
        assert_eq!(labels("kubeReserved.cpu"), "flag --kube-reserved, not the ConfigMap");
        assert_eq!(
            (labels("maxPods"), labels("podPidsLimit")),
            ("ConfigMap".to_owned(), Provenance::Overridden.label().to_owned())
        );
    }

    #[test]
    fn without_one_or_below_an_overlay_the_local_file_may_be_it() {
        let origins = explain(&configz(), None, Some(20));
        assert_eq!((of(&origins, "maxPods"), of(&origins, "syncFrequency")), (Provenance::Node, Provenance::Default));
        let payload = json!({"maxPods": 50});
        let supervisor = ReportedSupervisor::default();
        let given = AppliedConfigMap {
            payload: &payload,
            overrides: &FlagOverrides::default(),
            merge: Merge::Overlay,
            supervisor: &supervisor,
        };
        let origins = explain(&configz(), Some(given), Some(27));
        assert_eq!((of(&origins, "maxPods"), of(&origins, "clusterDomain")), (Provenance::ConfigMap, Provenance::Node));
        assert_eq!(of(&origins, "eventRecordQPS"), Provenance::Node, "the default of 1.27 is 50");
    }

    /// What a v1.33 kubelet spells out without having been told.
    #[test]
    fn defaults_of_later_kubelets_are_defaults() {
        let configz = json!({"eventRecordQPS": 50, "kubeAPIBurst": 100, "imageMaximumGCAge": "0s", "memorySwap": {},
            "mergeDefaultEvictionSettings": false, "shutdownGracePeriod": "0s", "memoryThrottlingFactor": 0.9,
            "evictionHard": {"imagefs.available": "15%", "memory.available": "100Mi", "nodefs.available": "10%",
                "nodefs.inodesFree": "5%", "imagefs.inodesFree": "5%"},
            "logging": {"format": "text", "flushFrequency": "5s", "verbosity": 0, "options": {"json": {"infoBufferSize": "0"}}},
            "authentication": {"x509": {}, "webhook": {"enabled": true, "cacheTTL": "2m0s"}, "anonymous": {"enabled": false}}});
        let origins = explain(&configz, None, Some(33));
        let set: Vec<&Origin> = origins.iter().filter(|origin| origin.from != Provenance::Default).collect();
        assert!(set.is_empty() && origins.len() > 15, "{set:#?}");
    }
}
