//! What a policy says of a configuration.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{NodePolicy, Signed};
use crate::effective::settled;
use crate::flags::{self, FlagOverrides};
use crate::hazard::{self, Change, HazardClass};
use crate::{gates, schema};

/// What is judged.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    /// Its ConfigMap's namespace; `None`: it is a file by hand.
    pub namespace: Option<&'a str>,
    /// What the kubelet would go by: the configuration with drop-ins and flags.
    pub effective: &'a Value,
    /// What it goes by with the local files and flags.
    pub local: &'a Value,
    /// What becomes of the kubelet's command line.
    pub overrides: &'a FlagOverrides,
    /// The kubelet's minor version, if it is known.
    pub minor: Option<u64>,
}

/// Whether there is a policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PolicyState {
    /// There is none.
    #[default]
    Absent,
    /// There is none, and one could not be used there: others than root can change the place. What mends it.
    AbsentUnguarded(String),
    /// It was read.
    InForce,
    /// It cannot be read or parsed, and why.
    Unreadable(String),
}

impl PolicyState {
    /// Why nothing new is admitted, whatever it is.
    #[must_use]
    pub fn admits_nothing(&self) -> Option<String> {
        let Self::Unreadable(why) = self else { return None };
        Some(format!("the node's policy admits nothing new while it cannot be read: {why}"))
    }
}

/// What the node's policy says of a configuration; by default there is none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Admission {
    /// Whether there is a policy.
    pub policy: PolicyState,
    /// Why it refuses the configuration, also at a start.
    pub refused: Option<String>,
    /// Why it refuses it as a change: pinned fields are something else, or denied fields differ from the local files as they are
    /// now. What is on record was admitted by the policy and beside the files of then, and is not left for what changed since.
    pub denied: Option<String>,
    /// Why it would refuse it, were it assigned by a label.
    pub refused_by_label: Option<String>,
    /// What an acknowledgement may still waive, for people.
    pub acknowledgeable: Option<String>,
    /// Fields that the kubelet would read over are refused.
    pub refuses_unknown_fields: bool,
    /// Who signed it.
    pub signed: Option<Signed>,
}

impl Admission {
    /// True if an acknowledgement of this class counts.
    #[must_use]
    pub fn lets_acknowledge(&self, class: HazardClass) -> bool {
        self.acknowledgeable.as_ref().is_none_or(|all| all.split(", ").any(|it| it == class.label()))
    }

    /// What this policy says, with the outcome of the look at the signature. `labels`: the namespaces that a label may name
    /// where the policy names none.
    #[must_use]
    pub fn by(
        policy: &NodePolicy,
        candidate: &Candidate<'_>,
        labels: &BTreeSet<String>,
        signed: Result<Option<Signed>, String>,
    ) -> Self {
        let mut refused = policy.refusals(candidate);
        let signed = signed.unwrap_or_else(|why| {
            refused.push(format!("signature: {why}"));
            None
        });
        let unlisted = candidate.namespace.filter(|namespace| !labels.contains(*namespace));
        let unlisted = unlisted.filter(|_| policy.allowed_namespaces.is_none());
        Self {
            policy: PolicyState::InForce,
            refused: told(refused),
            denied: told(policy.denials(candidate)),
            refused_by_label: told(unlisted.map(|namespace| not_allowed(namespace, labels)).into_iter().collect()),
            acknowledgeable: policy.acknowledgeable(),
            refuses_unknown_fields: policy.unknown_fields == schema::UnknownFields::Refuse,
            signed,
        }
    }
}

/// One text for all refusals; fits an event.
fn told(refusals: Vec<String>) -> Option<String> {
    let told = (!refusals.is_empty()).then(|| hazard::message::bounded(refusals.into_iter(), ""));
    told.map(|told| format!("the node's policy: {told}"))
}

fn not_allowed(namespace: &str, allowed: &BTreeSet<String>) -> String {
    let allowed: Vec<&str> = allowed.iter().map(String::as_str).collect();
    let allowed = if allowed.is_empty() { "none".to_owned() } else { allowed.join(", ") };
    format!("namespace {namespace:?} is not allowed (allowedNamespaces: {allowed})")
}

impl NodePolicy {
    /// What may be acknowledged, for people, where that is bounded.
    #[must_use]
    pub fn acknowledgeable(&self) -> Option<String> {
        let classes = self.acknowledgeable.as_ref()?;
        Some(if classes.is_empty() { "nothing".to_owned() } else { hazard::table::list(classes) })
    }

    /// Why it refuses a configuration, also at a start; its signature is another matter.
    #[must_use]
    pub fn refusals(&self, candidate: &Candidate<'_>) -> Vec<String> {
        let mut found = Vec::new();
        if let (Some(allowed), Some(namespace)) = (&self.allowed_namespaces, candidate.namespace)
            && !allowed.contains(namespace)
        {
            found.push(not_allowed(namespace, allowed));
        }
        if let Some(allowed) = &self.overridable_flags {
            let names: BTreeSet<&str> = candidate.overrides.names().collect();
            let refused = names.into_iter().filter(|name| !allowed.contains(*name));
            found.extend(refused.map(|name| format!("--{name} may not be overridden (overridableFlags)")));
        }
        found
    }

    /// True for a gate that nothing but the kubelet's version decides: one that it does not have, or, where the version is not
    /// known, one that nobody sets.
    fn is_met_by_version(path: &str, candidate: &Candidate<'_>) -> bool {
        let Some(gate) = path.strip_prefix("featureGates.") else { return false };
        let gates = candidate.effective.get("featureGates").and_then(Value::as_object);
        let is_set = |name: &str| gates.is_some_and(|gates| gates.contains_key(name));
        let is_open = !gates::are_known(candidate.minor) && !["AllAlpha", "AllBeta"].into_iter().any(is_set);
        candidate.effective.is_object() && !is_set(gate) && (is_open || !gates::is_known(gate, candidate.minor))
    }

    /// Why it refuses a configuration as a change: pinned fields that are something else, and denied fields that are not as with
    /// the local files.
    #[must_use]
    pub fn denials(&self, candidate: &Candidate<'_>) -> Vec<String> {
        let mut found = self.unmet_pins(candidate);
        found.extend(self.changes_of_denied_fields(candidate));
        found
    }

    fn unmet_pins(&self, candidate: &Candidate<'_>) -> Vec<String> {
        let mut found = Vec::new();
        for (path, value) in &self.pinned_fields {
            if Self::is_met_by_version(path, candidate) {
                continue;
            }
            let wanted = settled(&with_pinned(candidate.effective, path, value), candidate.minor);
            if !candidate.effective.is_object() || !hazard::possible_diff(candidate.effective, &wanted).is_empty() {
                let value = if hazard::is_secret(path) { "as the policy has it".to_owned() } else { value.to_string() };
                found.push(format!("pinnedFields: {path} must be {value}"));
            }
        }
        found
    }

    fn changes_of_denied_fields(&self, candidate: &Candidate<'_>) -> Vec<String> {
        if self.denied_fields.is_empty() {
            return Vec::new();
        }
        if !candidate.local.is_object() || !candidate.effective.is_object() {
            // Nobody can say what would change.
            return vec!["deniedFields: what the kubelet would go by is not known".to_owned()];
        }
        // Of a version whose gates nobody knows here a group may set any of them.
        let is_hit = |path: &str, change: &Change| {
            let group = change.field.strip_prefix("featureGates.").is_some_and(gates::is_group);
            let any_gate = group && !gates::are_known(candidate.minor) && path.starts_with("featureGates");
            any_gate || schema::overlap(path, &change.field)
        };
        let denial = |change: Change| {
            let path = self.denied_fields.iter().find(|path| is_hit(path, &change))?;
            Some(format!("deniedFields has {path}, and it changes {change}"))
        };
        hazard::possible_diff(candidate.local, candidate.effective).into_iter().filter_map(denial).collect()
    }
}

/// What a kubelet would go by with a pinned field. What else is in that field stays, its default too.
fn with_pinned(effective: &Value, path: &str, value: &Value) -> Value {
    let mut whole = effective.clone();
    let top = path.split('.').next().unwrap_or_default();
    if let (Some(fields), true) = (whole.as_object_mut(), top != path) {
        let inner = hazard::effective(effective, top);
        fields.extend(Some((top.to_owned(), inner)).filter(|(_, inner)| !inner.is_null()));
    }
    with_field(&whole, path, value.clone())
}

/// The configuration with another value at this path.
pub(super) fn with_field(configuration: &Value, path: &str, value: Value) -> Value {
    let mut fields = configuration.as_object().cloned().unwrap_or_default();
    let path: Vec<String> = schema::names(path).into_iter().map(str::to_owned).collect();
    flags::set(&mut fields, &path, value);
    Value::Object(fields)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::effective::{Sources, layers, value};
    use crate::flags::KubeletArgs;

    /// What a policy says of a unit's flags over a file, where the local file is empty and the unit has `own`.
    fn judged(fields: &str, configuration: &Value, (own, given): (&[&str], &str), minor: Option<u64>) -> Vec<String> {
        let text = format!("apiVersion: kubelet-supervisor.io/v1alpha1\nkind: NodePolicy\n{fields}");
        let policy = NodePolicy::parse(&text).unwrap();
        let own = KubeletArgs::parse(&own.iter().map(|arg| (*arg).to_owned()).collect::<Vec<_>>());
        let overrides = FlagOverrides::parse(given).unwrap();
        let goes_by =
            |configuration: &Value, args: &KubeletArgs| value(&layers(&Sources::of(configuration, &[], args)), minor);
        let (effective, local) = (goes_by(configuration, &own.with(&overrides)), goes_by(&json!({}), &own));
        let candidate =
            Candidate { namespace: None, effective: &effective, local: &local, overrides: &overrides, minor };
        [policy.refusals(&candidate), policy.denials(&candidate)].concat()
    }

    /// By what the kubelet reads, and not by how it is spelt.
    #[test]
    fn a_pinned_field_is_held_against_what_the_kubelet_reads() {
        let of = |fields: &str, configuration: Value, flags: &str, minor| {
            judged(fields, &configuration, (&[], flags), minor)
        };
        let pods = "pinnedFields: {maxPods: 110}";
        let long = "pinnedFields: {streamingConnectionIdleTimeout: 4h}";
        let gate = "pinnedFields: {featureGates.NodeSwap: false}";
        let on = "pinnedFields: {featureGates.CPUManager: true}";
        let queries = "pinnedFields: {kubeAPIQPS: 50}";
        let swap = "pinnedFields: {memorySwap.swapBehavior: NoSwap}";
        let memory = "pinnedFields: {evictionHard.memory.available: 100Mi}";
        let images = "pinnedFields: {imagePullCredentialsVerificationPolicy: NeverVerifyPreloadedImages}";
        for (fields, configuration, flags, minor, is_admitted) in [
            (pods, json!({}), "", None, true),
            (pods, json!({"maxPods": 0}), "", None, true), // in a file zero is not set
            (pods, json!({}), "--max-pods=0", None, false),
            (pods, json!({}), "--max-pods=0110", None, false),
            (pods, json!({}), "--max-pods=0x6e", None, true),
            (pods, json!({}), "--max-pods=0b1101110", None, true),
            (pods, json!({}), "--max-pods=1_1_0", None, true),
            (pods, json!({}), "--max-pods=+110", None, true),
            (pods, json!({"maxPods": 5}), "--max_pods=0o156", None, true),
            (long, json!({}), "", None, true),
            (long, json!({"streamingConnectionIdleTimeout": "240m"}), "", None, true),
            (long, json!({"streamingConnectionIdleTimeout": "0s"}), "", None, true),
            (long, json!({}), "--streaming-connection-idle-timeout=0s", None, false),
            (long, json!({}), "--streaming-connection-idle-timeout=-4h", None, false),
            ("pinnedFields: {tlsMinVersion: VersionTLS12}", json!({}), "", None, true),
            ("pinnedFields: {tlsMinVersion: VersionTLS12}", json!({"tlsMinVersion": "VersionTLS11"}), "", None, false),
            ("pinnedFields: {podPidsLimit: -1}", json!({"podPidsLimit": -9}), "", None, true),
            (swap, json!({}), "", Some(30), true),
            (swap, json!({"memorySwap": {}}), "", Some(29), false),
            (images, json!({}), "", Some(35), true),
            (images, json!({}), "", Some(34), false),
            (images, json!({}), "--feature-gates=KubeletEnsureSecretPulledImages=false", Some(35), false),
            (gate, json!({}), "", Some(22), true),
            (gate, json!({}), "", None, true),
            (gate, json!({}), "", Some(20), true), // it has no such gate
            (gate, json!({"featureGates": {"NodeSwap": true}}), "", None, false),
            (gate, json!({"featureGates": {"AllAlpha": true}}), "", Some(22), false),
            (gate, json!({"featureGates": {"AllAlpha": true, "NodeSwap": false}}), "", Some(22), true),
            (gate, json!({"featureGates": {"AllAlpha": true}}), "", None, false),
            (gate, json!({}), "--feature-gates=AllAlpha=true", Some(22), false),
            (gate, json!({"featureGates": {"AllBeta": true}}), "", Some(28), false),
            (on, json!({}), "", Some(22), true),
            (on, json!({"featureGates": {"AllBeta": false}}), "", Some(22), false),
            (queries, json!({}), "", Some(27), true),
            (queries, json!({}), "", Some(26), false),
            (queries, json!({}), "", None, false), // it may be 5
            (queries, json!({"kubeAPIQPS": 50}), "", None, true),
            (swap, json!({}), "", None, false),
            (swap, json!({"memorySwap": {"swapBehavior": "NoSwap"}}), "", None, true),
            (memory, json!({}), "", Some(22), true),
            (memory, json!({"evictionHard": {"pid.available": "1%"}}), "", Some(22), false),
        ] {
            let told = of(fields, configuration.clone(), flags, minor);
            assert_eq!(told.is_empty(), is_admitted, "{fields}: {configuration} {flags} {minor:?}: {told:?}");
        }
    }

    fn classic_eviction() -> Value {
        json!({"evictionHard": {"memory.available": "100Mi", "nodefs.available": "10%", "nodefs.inodesFree": "5%",
            "imagefs.available": "15%"}})
    }

    fn limited_swap() -> Value {
        json!({"memorySwap": {"swapBehavior": "LimitedSwap"}})
    }

    /// A kubelet without a file has no hard eviction since 1.25, and one with a file has: that is a change.
    #[test]
    fn a_first_file_brings_the_defaults_of_files() {
        let none = |minor| value(&layers(&Sources::of(&Value::Null, &[], &KubeletArgs::default())), minor);
        let first = |minor| crate::effective::of_file(&json!({}), minor);
        let is_changed =
            |minor| hazard::diff(&none(minor), &first(minor)).iter().any(|change| change.top() == "evictionHard");
        assert_eq!((is_changed(Some(24)), is_changed(Some(25)), is_changed(Some(36))), (false, true, true));
    }

    #[test]
    fn a_denied_field_is_changed_by_whatever_changes_what_the_kubelet_reads() {
        for (field, configuration, own, flags, minor, is_admitted) in [
            ("seccompDefault", json!({}), &["--seccomp-default"][..], "!--seccomp-default", Some(30), false),
            ("seccompDefault", json!({"seccompDefault": false}), &["--seccomp-default"], "", Some(30), true),
            ("seccompDefault", json!({"seccompDefault": true}), &[], "", Some(30), false),
            ("seccompDefault", json!({}), &[], "--seccomp-default=false", Some(30), true),
            ("maxPods", json!({"maxPods": 70}), &["--max-pods=50"], "!--max-pods", Some(30), false),
            ("maxPods", json!({"maxPods": 50}), &["--max-pods=50"], "!--max-pods", Some(30), true),
            ("clusterDomain", json!({"clusterDomain": "0"}), &[], "", Some(30), false),
            ("providerID", json!({"providerID": "0s"}), &[], "", Some(30), false),
            ("reservedSystemCPUs", json!({"reservedSystemCPUs": "0"}), &[], "", Some(30), false),
            ("systemReserved", json!({"reservedSystemCPUs": "0"}), &[], "", Some(30), false),
            ("featureGates", json!({"featureGates": {"AllAlpha": true}}), &[], "", Some(30), false),
            ("featureGates.NodeSwap", json!({"featureGates": {"AllAlpha": true}}), &[], "", Some(22), false),
            ("featureGates.NodeSwap", json!({"featureGates": {"AllAlpha": true}}), &[], "", None, false),
            ("featureGates.NodeSwap", json!({"featureGates": {"AllAlpha": true}}), &[], "", Some(38), false),
            ("featureGates.NodeSwap", json!({"featureGates": {"AllAlpha": true}}), &[], "", Some(30), true),
            ("featureGates.NodeSwap", json!({"featureGates": {"NodeSwap": true}}), &[], "", Some(30), true),
            ("logging.vmodule", json!({}), &[], "--vmodule=a=5", Some(30), false),
            ("logging.verbosity", json!({"logging": {"verbosity": 4}}), &["--v=4"], "", Some(30), true),
            ("tracing", json!({"tracing": {}}), &[], "", Some(30), false),
            ("enforceNodeAllocatable", json!({"enforceNodeAllocatable": ["pods", "pods"]}), &[], "", Some(30), true),
            (
                "enforceNodeAllocatable",
                json!({"enforceNodeAllocatable": []}),
                &["--config-dir=/d"],
                "",
                Some(30),
                false,
            ),
            // The classic defaults, written out, lack a threshold that the default of later kubelets has.
            ("evictionHard", classic_eviction(), &[], "", Some(36), false),
            ("evictionHard", classic_eviction(), &[], "", Some(20), true),
            // A field that the version does not know changes nothing; a flag that is older than its field does.
            ("serializeImagePulls", json!({"maxParallelImagePulls": 5}), &[], "", Some(20), true),
            ("serializeImagePulls", json!({"maxParallelImagePulls": 5}), &[], "", Some(30), false),
            ("logging", json!({"logging": {"verbosity": 4}}), &[], "", Some(20), true),
            ("registerNode", json!({}), &[], "--register-node=false", Some(20), false),
            ("registerWithTaints", json!({}), &[], "--register-with-taints=a=b:NoExecute", Some(20), false),
            // Null is false in a map of Go's.
            ("featureGates.NodeSwap", json!({"featureGates": {"NodeSwap": null}}), &[], "", Some(30), false),
            (
                "logging.vmodule",
                json!({"logging": {"vmodule": [{"filePattern": "*", "verbosity": 9}]}}),
                &["--vmodule=x=1"],
                "",
                Some(30),
                false,
            ),
            ("address", json!({"address": "10.0.0.1"}), &["--address="], "", Some(30), false),
            // The default of some versions alone: of an unknown one it may be a change.
            ("memorySwap", limited_swap(), &[], "", Some(29), true),
            ("memorySwap", limited_swap(), &[], "", Some(30), false),
            ("memorySwap", limited_swap(), &[], "", None, false),
            ("kubeAPIQPS", json!({"kubeAPIQPS": 5}), &[], "", None, false),
            ("kubeAPIQPS", json!({}), &[], "", None, true),
            (
                "kernelMemcgNotification",
                json!({}),
                &["--kernel-memcg-notification=false"],
                "--experimental-kernel-memcg-notification=true",
                Some(20),
                false,
            ),
            ("containerLogMaxSize", json!({"containerLogMaxSize": "0"}), &[], "", Some(30), false),
            (
                "cpuManagerPolicyOptions",
                json!({"cpuManagerPolicyOptions": {"full-pcpus-only": "false"}}),
                &[],
                "",
                Some(30),
                true,
            ),
        ] {
            let told = judged(&format!("deniedFields: [{field}]"), &configuration, (own, flags), minor);
            assert_eq!(told.is_empty(), is_admitted, "{field}: {configuration} {own:?} {flags} {minor:?}: {told:?}");
        }
    }
}
