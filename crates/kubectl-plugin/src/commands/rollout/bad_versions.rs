//! Marks of bad versions: looked at anew where a version is to be sent, and lifted where its node has proven it, or an
//! administrator says that the node was to blame.

use std::collections::BTreeMap;

use kube::api::GetParams;
use kube::core::request::Request as Path;

use super::client::RolloutClient;
use super::records::{Kept, identity};
use crate::Failure;
use crate::fleet::node::NodeRow;
use crate::fleet::rollout::bad_versions::Word;
use crate::fleet::rollout::member::{Before, Member};
use crate::fleet::rollout::sight::Sight;
use crate::fleet::rollout::{Bad, ClearedVersion, Record, Target};

/// Marks that need not stand.
#[derive(Default)]
pub(crate) struct Lift {
    /// Of nodes that have proven the version since.
    proven: Vec<String>,
    /// Of nodes that are excused.
    pub(crate) excused: Vec<ClearedVersion>,
}

/// Asks the nodes that called this version bad, in whatever rollout, and those that are to be excused. `again`: what to
/// run once the cause is mended.
///
/// # Errors
/// A mark that stands, with what helps; a node that is to be excused and called nothing bad.
pub(crate) async fn judge(
    api: &RolloutClient,
    target: &Target,
    records: &[Kept],
    despite: &[String],
    again: &str,
) -> Result<Lift, Failure> {
    let mut marks: BTreeMap<&str, &Bad> = BTreeMap::new();
    for kept in records.iter().filter(|kept| kept.record.target.is_version(target)) {
        for bad in &kept.record.bad {
            marks.entry(&bad.node).or_insert(bad);
        }
    }
    let mut lift = Lift::default();
    let map = &target.reference.name;
    for node in despite {
        let said = word(api, target, node).await?;
        let why = match (&said, marks.remove(node.as_str())) {
            (_, Some(bad)) => bad.why.clone(),
            (Word::Bad(why), None) => why.clone(),
            _ => {
                return Err(Failure::new(format!(
                    "--despite {node}: node {node} did not call {map} bad; leave it out (`kubectl kubelet-config rollout \
                     status` says which node did)"
                )));
            }
        };
        lift.excused.push(ClearedVersion { node: node.clone(), why, how: format!("--despite, by {}", identity()) });
    }
    for (node, bad) in marks {
        match word(api, target, node).await? {
            Word::Proven => lift.proven.push(node.to_owned()),
            word => return Err(Failure::new(refusal(map, bad, &word, again))),
        }
    }
    Ok(lift)
}

/// What this node says of it now.
async fn word(api: &RolloutClient, target: &Target, node: &str) -> Result<Word, Failure> {
    let request = Path::new("/api/v1/nodes").get(node, &GetParams::default());
    let sight = match api.api.optional(&format!("get node {node}"), request).await? {
        Some(object) => {
            let row = NodeRow::of(&object, &api.api.namespace);
            let member = Member { name: row.name.clone(), before: Before::of(&row) };
            Sight::of(&row, &member, target, None)
        }
        None => Sight::gone(),
    };
    Ok(Word::of(&sight))
}

/// Why it is not sent, and what helps in that very state.
pub(crate) fn refusal(map: &str, bad: &Bad, word: &Word, again: &str) -> String {
    let Bad { node, why, .. } = bad;
    let excuse = format!("If the node alone was to blame, add --despite {node}");
    let helps = match word {
        Word::Gone => return format!("node {node} called {map} bad: {why}; and it is gone. {excuse}"),
        Word::Bad(_) => format!("mend it, `kubectl kubelet-config retry {node}`"),
        Word::Moving | Word::Proven => format!("it tries it now: `kubectl kubelet-config status {node} -w`"),
        // Its supervisor remembers, too, and refuses it at once until it is told to try again.
        Word::Elsewhere => format!(
            "mend it, `kubectl kubelet-config assign {map} {node}`, and `kubectl kubelet-config retry {node}` when it refuses that"
        ),
    };
    format!(
        "node {node} called {map} bad: {why}; push a corrected one. To have {map} all the same: {helps}; once the node has proven \
         it, {again}. {excuse}"
    )
}

impl Lift {
    /// Lifts the marks in the records of all other rollouts than `own`.
    pub(crate) async fn write(
        &self,
        api: &RolloutClient,
        own: &str,
        target: &Target,
        records: &[Kept],
    ) -> Result<(), Failure> {
        let marked =
            |kept: &&Kept| kept.name != own && kept.record.target.is_version(target) && !kept.record.bad.is_empty();
        for kept in records.iter().filter(marked) {
            api.change(&kept.name, |record| {
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
            record.lift(node, "it has proven it since");
        }
        for lifted in &self.excused {
            if own {
                record.excuse(lifted);
            } else {
                record.lift(&lifted.node, &lifted.how);
            }
        }
    }

    /// For people.
    pub(crate) fn words(&self) -> Option<String> {
        let proven = self.proven.iter().map(|node| format!("node {node} called it bad, and has proven it since"));
        let excused = self.excused.iter().map(|it| format!("node {} called it bad: {}; excused", it.node, it.why));
        let all: Vec<String> = proven.chain(excused).collect();
        (!all.is_empty()).then(|| all.join("\n"))
    }
}
