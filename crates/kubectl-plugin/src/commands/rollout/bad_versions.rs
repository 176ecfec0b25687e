//! Bad versions: checked where a version is to be sent, and cleared where its node has proven it, or an
//! administrator says that the node was to blame.

use std::collections::BTreeMap;

use super::client::RolloutClient;
use super::records::StoredRecord;
use crate::Failure;
use crate::api::nodes::get_request;
use crate::context::identity;
use crate::fleet::assign::WrittenAssignment;
use crate::fleet::node::NodeRow;
use crate::fleet::rollout::bad_versions::NodeVerdict;
use crate::fleet::rollout::member::Member;
use crate::fleet::rollout::observed::ObservedNode;
use crate::fleet::rollout::{BadVersion, ClearedVersion, Record, Target};

/// What counts no more.
#[derive(Default)]
pub(crate) struct Clearance {
    /// Of nodes that have proven the version since.
    proven: Vec<String>,
    /// Of nodes that are excluded.
    pub(crate) excluded: Vec<ClearedVersion>,
}

/// Asks the nodes that called this version bad, in whatever rollout, and those that are to be excluded. `again`: what to
/// run once the cause is mended.
///
/// # Errors
/// A version that is bad still, with what helps; a node that is to be excluded and reported nothing.
pub(crate) async fn check(
    api: &RolloutClient,
    target: &Target,
    records: &[StoredRecord],
    excluded_nodes: &[String],
    again: &str,
) -> Result<Clearance, Failure> {
    let mut reports: BTreeMap<&str, &BadVersion> = BTreeMap::new();
    for stored in records.iter().filter(|stored| stored.record.target.is_same_content(target)) {
        for bad in &stored.record.bad {
            reports.entry(&bad.node).or_insert(bad);
        }
    }
    let mut clearance = Clearance::default();
    let map = &target.reference.name;
    for node in excluded_nodes {
        let verdict = verdict(api, target, node).await?;
        let why = match (&verdict, reports.remove(node.as_str())) {
            (_, Some(bad)) => bad.why.clone(),
            (NodeVerdict::Bad(why), None) => why.clone(),
            _ => {
                return Err(Failure::new(format!(
                    "--despite {node}: node {node} did not call {map} bad; leave it out (`kubectl kubelet-config rollout \
                     status` says which node did)"
                )));
            }
        };
        clearance.excluded.push(ClearedVersion {
            node: node.clone(),
            why,
            how: format!("--despite, by {}", identity()),
        });
    }
    for (node, bad) in reports {
        match verdict(api, target, node).await? {
            NodeVerdict::Proven => clearance.proven.push(node.to_owned()),
            verdict => return Err(Failure::new(refusal(map, bad, &verdict, again))),
        }
    }
    Ok(clearance)
}

/// What this node says of it now.
async fn verdict(api: &RolloutClient, target: &Target, node: &str) -> Result<NodeVerdict, Failure> {
    let request = get_request(node);
    let node = match api.api.optional(&format!("get node {node}"), request).await? {
        Some(object) => {
            let row = NodeRow::from_node(&object, &api.api.namespace);
            let member = Member { name: row.name.clone(), before: WrittenAssignment::from_row(&row) };
            ObservedNode::from_row(&row, &member, target, None)
        }
        None => ObservedNode::gone(),
    };
    Ok(NodeVerdict::from_observed(&node))
}

/// Why it is not sent, and what helps in that very state.
pub(crate) fn refusal(map: &str, bad: &BadVersion, verdict: &NodeVerdict, again: &str) -> String {
    let BadVersion { node, why, .. } = bad;
    let hint = format!("If the node alone was to blame, add --despite {node}");
    let helps = match verdict {
        NodeVerdict::Gone => return format!("node {node} called {map} bad: {why}; and it is gone. {hint}"),
        NodeVerdict::Bad(_) => format!("mend it, `kubectl kubelet-config retry {node}`"),
        NodeVerdict::Updating | NodeVerdict::Proven => {
            format!("it tries it now: `kubectl kubelet-config status {node} -w`")
        }
        // Its supervisor remembers, too, and refuses it at once until it is told to try again.
        NodeVerdict::OtherAssigned => format!(
            "mend it, `kubectl kubelet-config assign {map} {node}`, and `kubectl kubelet-config retry {node}` when it refuses that"
        ),
    };
    format!(
        "node {node} called {map} bad: {why}; push a corrected one. To have {map} all the same: {helps}; once the node has proven \
         it, {again}. {hint}"
    )
}

impl Clearance {
    /// Clears it in the records of all other rollouts than `own`.
    pub(crate) async fn write(
        &self,
        api: &RolloutClient,
        own: &str,
        target: &Target,
        records: &[StoredRecord],
    ) -> Result<(), Failure> {
        let with_bad = |stored: &&StoredRecord| {
            stored.name != own && stored.record.target.is_same_content(target) && !stored.record.bad.is_empty()
        };
        for stored in records.iter().filter(with_bad) {
            api.change(&stored.name, |record| {
                self.apply(record, false);
                Ok(())
            })
            .await?;
        }
        Ok(())
    }

    /// In one record; `own`: its rollout is the one that goes on in spite of them.
    pub(crate) fn apply(&self, record: &mut Record, own: bool) {
        for node in &self.proven {
            record.clear_bad(node, "it has proven it since");
        }
        for cleared in &self.excluded {
            if own {
                record.exclude(cleared);
            } else {
                record.clear_bad(&cleared.node, &cleared.how);
            }
        }
    }

    /// For people.
    pub(crate) fn summary(&self) -> Option<String> {
        let proven = self.proven.iter().map(|node| format!("node {node} called it bad, and has proven it since"));
        let excluded = self.excluded.iter().map(|it| format!("node {} called it bad: {}; excused", it.node, it.why));
        let all: Vec<String> = proven.chain(excluded).collect();
        (!all.is_empty()).then(|| all.join("\n"))
    }
}
