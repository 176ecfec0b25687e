//! Pools: whether they are served, who carries them out, and those that go no further.

use jiff::Timestamp;
use serde_json::Value;

use super::{Finding, quoted};
use crate::fleet::leader_election::{LEASE_NAME, NAMESPACE, holder};
use crate::fleet::pool::progress::{advice, condition};
use crate::fleet::pool::types::PoolCondition;

const VERSION: &str = "v1alpha1";

/// What is to be known of pools.
pub(crate) struct ExaminedPools<'a> {
    pub(crate) pools: &'a [Value],
    /// `Null`: there is none.
    pub(crate) lease: &'a Value,
    /// Of the Pod that holds the Lease, where that is a Pod.
    pub(crate) image: Option<&'a str>,
    pub(crate) now: Timestamp,
}

/// What is wrong with the CRD, given what the API server answers about its group.
pub(crate) fn not_served(group: &Value) -> Option<Finding> {
    let versions = group.get("versions").and_then(Value::as_array).into_iter().flatten();
    let versions: Vec<&str> = versions.filter_map(|it| it.get("version")?.as_str()).collect();
    let problem = format!(
        "the CRD of pools serves {}, and this version of the plugin speaks {VERSION}",
        if versions.is_empty() { "no version".to_owned() } else { versions.join(", ") }
    );
    let mend = vec!["kubectl replace --validate=false -f packaging/manifests/pools/crd.yaml".to_owned()];
    (!versions.contains(&VERSION)).then(|| Finding::of_cluster("pools-not-served", problem, mend))
}

impl ExaminedPools<'_> {
    pub(crate) fn holder(&self) -> Option<&str> {
        holder(self.lease, self.now).ok()
    }

    pub(crate) fn findings(&self) -> Vec<Finding> {
        let mut found = Vec::new();
        if let (false, Err(why)) = (self.pools.is_empty(), holder(self.lease, self.now)) {
            let problem = format!(
                "nobody carries out pools: of the Lease {LEASE_NAME} in namespace {NAMESPACE}, {why}; nodes that join get nothing"
            );
            let mend = vec![
                format!("kubectl -n {NAMESPACE} get deployment,pod -l app.kubernetes.io/component=controller"),
                "if there is none: kubectl kubelet-config controller".to_owned(),
            ];
            found.push(Finding::of_cluster("no-controller", problem, mend));
        }
        found.extend(self.other_version());
        found.extend(self.pools.iter().filter_map(stalled));
        found
    }

    /// Whoever carries pools out, and is not of this plugin's version.
    fn other_version(&self) -> Option<Finding> {
        const OWN: &str = env!("CARGO_PKG_VERSION");
        let other = version(self.holder()?).unwrap_or("too old to tell its version");
        let image = self.image.map(|image| format!(" (image {image})")).unwrap_or_default();
        let problem = format!("who carries out pools is {other}{image}, and this plugin is {OWN}");
        let mend = vec![format!(
            "kubectl apply --validate=false -k packaging/manifests/pools, with the image of {OWN}; or use that version's plugin"
        )];
        (other != OWN).then(|| Finding::of_cluster("controller-version", problem, mend))
    }
}

/// One that goes no further by itself.
fn stalled(pool: &Value) -> Option<Finding> {
    let name = pool.pointer("/metadata/name")?.as_str()?;
    let status = serde_json::from_value(pool.get("status")?.clone()).ok()?;
    let PoolCondition { reason, message, .. } = condition(&status, "Stalled").filter(|it| it.status == "True")?;
    let problem = format!("pool {name} goes no further ({reason}): {message}");
    Some(Finding::of_cluster("pool-stalled", problem, vec![advice(&quoted(name), reason)]))
}

/// The version of who holds the Lease, as its identity says it; none where it has none.
fn version(holder: &str) -> Option<&str> {
    holder.split_once(')')?.0.rsplit_once(", v").map(|(_, version)| version)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_version_that_is_not_served() {
        let group = |versions: &[&str]| json!({"versions": versions.iter().map(|it| json!({"version": it})).collect::<Vec<_>>()});
        assert_eq!(not_served(&group(&["v1", "v1alpha1"])), None);
        assert!(not_served(&group(&["v1"])).unwrap().problem.contains("serves v1, and"));
        assert!(not_served(&Value::Null).unwrap().problem.contains("serves no version"));
    }

    #[test]
    fn nobody_is_needed_where_there_is_no_pool() {
        let (lease, now) = (json!({}), Timestamp::UNIX_EPOCH);
        let of = |pools| ExaminedPools { pools, lease: &lease, image: None, now }.findings();
        assert_eq!(of(&[]), []);
        assert_eq!(of(&[json!({"metadata": {"name": "a"}})])[0].check, "no-controller");
    }

    #[test]
    fn a_controller_of_another_version() {
        let now = Timestamp::UNIX_EPOCH;
        let of = |holder: &str| {
            let lease = json!({"spec": {"holderIdentity": holder, "renewTime": "1970-01-01T00:00:00Z"}});
            ExaminedPools { pools: &[], lease: &lease, image: Some("r/c@sha256:0"), now }.findings()
        };
        let own = format!("c-1 (7, 63f.0, v{})", env!("CARGO_PKG_VERSION"));
        assert_eq!(of(&own), []);
        let [other] = &of("c-1 (7, 63f.0, v0.0.9)")[..] else { panic!() };
        assert!(
            other.check == "controller-version" && other.problem.contains("is 0.0.9 (image r/c@sha256:0)"),
            "{other:?}"
        );
        assert!(of("c-1 (7, 63f.0)")[0].problem.contains("too old to tell"));
    }
}
