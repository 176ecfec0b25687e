//! Pools: whether they are served, who carries them out, and those that go no further.

use jiff::Timestamp;
use serde_json::Value;

use super::{Finding, quoted};
use crate::fleet::leader_election::{LEASE_NAME, holder};
use crate::fleet::pool::progress::is_of_bad_revision;

const VERSION: &str = "v1alpha1";

/// What is to be known of pools; `namespace`: the Lease's.
pub(crate) struct ExaminedPools<'a> {
    pub(crate) pools: &'a [Value],
    /// `Null`: there is none.
    pub(crate) lease: &'a Value,
    pub(crate) namespace: &'a str,
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
    let mend = vec!["kubectl replace -f packaging/manifests/pools/crd.yaml".to_owned()];
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
                "nobody carries out pools: of the Lease {LEASE_NAME} in namespace {}, {why}; nodes that join get nothing",
                self.namespace
            );
            let mend = vec![
                format!("kubectl -n {} get deployment,pod -l app.kubernetes.io/component=controller", self.namespace),
                "if there is none: kubectl kubelet-config controller".to_owned(),
            ];
            found.push(Finding::of_cluster("no-controller", problem, mend));
        }
        found.extend(self.pools.iter().filter_map(stalled));
        found
    }
}

/// One that goes no further by itself.
fn stalled(pool: &Value) -> Option<Finding> {
    let name = pool.pointer("/metadata/name")?.as_str()?;
    let conditions = pool.pointer("/status/conditions")?.as_array()?;
    let condition = conditions.iter().find(|it| it.get("type").is_some_and(|kind| kind == "Stalled"))?;
    let text = |field: &str| condition.get(field).and_then(Value::as_str).unwrap_or_default();
    if text("status") != "True" {
        return None;
    }
    let quoted = quoted(name);
    let mend = match text("reason") {
        reason if is_of_bad_revision(reason) => format!(
            "kubectl kubelet-config rollout status {quoted}, then rollout undo, or rollout retry once the cause is mended"
        ),
        "RevisionInvalid" => format!("kubectl edit kcpool {quoted}"),
        _ => format!("kubectl describe kcpool {quoted}"),
    };
    let problem = format!("pool {name} goes no further ({}): {}", text("reason"), text("message"));
    Some(Finding::of_cluster("pool-stalled", problem, vec![mend]))
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
        let of = |pools| ExaminedPools { pools, lease: &lease, namespace: "ns", now }.findings();
        assert_eq!(of(&[]), []);
        assert_eq!(of(&[json!({"metadata": {"name": "a"}})])[0].check, "no-controller");
    }
}
