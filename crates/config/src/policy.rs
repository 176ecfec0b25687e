//! The node's policy: what the cluster may do to this node, as root on it says (`NodePolicy`, docs/security.md).

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use crate::flags::FlagOverrides;
use crate::hazard::{Acknowledged, HazardClass};
use crate::schema::UnknownFields;

mod judge;
mod parse;
mod signature;
#[cfg(test)]
mod tests;

pub use judge::{Admission, Candidate, PolicyState};
pub use signature::{Comment, KEY_SUFFIX, Signable, Signatures, Signed, TrustedKey};

/// `kind` of a policy.
pub const KIND: &str = "NodePolicy";
/// Its `apiVersion`.
pub const API_VERSION: &str = "kubelet-supervisor.io/v1alpha1";
/// Where it is unless `--policy` says otherwise.
pub const DEFAULT_PATH: &str = "/etc/kubelet-supervisor/policy.yaml";

/// A node's policy. What is not given is left free, as native left it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodePolicy {
    /// Namespaces of ConfigMaps.
    pub allowed_namespaces: Option<BTreeSet<String>>,
    /// Paths of fields that must be as with the local files and flags.
    pub denied_fields: BTreeSet<String>,
    /// Paths of fields that must have this value.
    pub pinned_fields: BTreeMap<String, Value>,
    /// Hazard classes that a ConfigMap's annotation may waive.
    pub acknowledgeable: Option<BTreeSet<HazardClass>>,
    /// Flags that a source may override.
    pub overridable_flags: Option<BTreeSet<String>>,
    /// What becomes of fields that the kubelet would read over.
    pub unknown_fields: UnknownFields,
    /// Who signs configurations.
    pub signatures: Option<Signatures>,
}

impl Admission {
    /// What this policy says of a namespace, before anything in it is known: of the fields nothing is asked. `labels` as in
    /// [`Self::by`].
    #[must_use]
    pub fn of_namespace(policy: &NodePolicy, namespace: &str, labels: &BTreeSet<String>) -> Self {
        let (unread, overrides) = (Value::Object(Map::new()), FlagOverrides::default());
        let of_it = Candidate {
            namespace: Some(namespace),
            effective: &unread,
            local: &unread,
            overrides: &overrides,
            minor: None,
        };
        let bounds = NodePolicy { allowed_namespaces: policy.allowed_namespaces.clone(), ..NodePolicy::default() };
        Self::by(&bounds, &of_it, labels, Ok(None))
    }
}

impl NodePolicy {
    /// The annotation `acknowledge` as far as the policy lets it count.
    #[must_use]
    pub fn acknowledged(&self, annotation: Option<&str>) -> Option<String> {
        match (&self.acknowledgeable, annotation) {
            (Some(classes), Some(text)) => Some(Acknowledged::parse(Some(text)).limited_to(classes)),
            (_, text) => text.map(str::to_owned),
        }
    }

    /// Keys that have ended, or will within this time.
    pub fn ending_keys(&self, now: u64, within: u64) -> impl Iterator<Item = String> {
        let keys = self.signatures.iter().flat_map(|signatures| &signatures.keys);
        keys.filter_map(move |key| key.ending(now, within))
    }

    /// What it amounts to, a line for each of its fields.
    #[must_use]
    pub fn summary(&self) -> Vec<String> {
        let list = |words: Vec<String>| if words.is_empty() { "none".to_owned() } else { words.join(", ") };
        let set = |words: &Option<BTreeSet<String>>, free: &str| {
            words.as_ref().map_or_else(|| free.to_owned(), |words| list(words.iter().cloned().collect()))
        };
        let classes = self.acknowledgeable.as_ref();
        let classes = classes.map(|classes| classes.iter().map(|class| class.label().to_owned()).collect());
        let pinned = self.pinned_fields.iter().map(|(field, value)| format!("{field}={value}")).collect();
        let any_namespace = "any of spec.configSource, of labels those of --config-namespace and --default-source";
        let mut lines = vec![
            format!("allowedNamespaces: {}", set(&self.allowed_namespaces, any_namespace)),
            format!("deniedFields: {}", list(self.denied_fields.iter().cloned().collect())),
            format!("pinnedFields: {}", list(pinned)),
            format!("acknowledgeable: {}", set(&classes, "all")),
            format!("overridableFlags: {}", set(&self.overridable_flags, "all but the node's own")),
            format!("unknownFields: {}", self.unknown_fields.as_str()),
        ];
        lines.push(match &self.signatures {
            None => "signatures: not looked at".to_owned(),
            Some(signatures) => {
                let key = |key: &TrustedKey| {
                    let end = key.not_after.map(|at| format!(", until {}", signature::shown_time(at)));
                    format!("{} ({}{})", key.name, key.id, end.unwrap_or_default())
                };
                let keys = signatures.keys.iter().map(key).collect();
                let asked = if signatures.required { "required" } else { "where there are any" };
                format!("signatures: {asked}, for pools {}, by {}", set(&signatures.pools, "any"), list(keys))
            }
        });
        lines
    }
}
