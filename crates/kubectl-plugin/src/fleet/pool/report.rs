//! A pool's status: counts and conditions.

use jiff::Timestamp;

use super::node::PoolNode;
use super::types::{BadRevision, KubeletConfigPoolStatus, PoolCondition};

/// Names in one message.
const NAMES: usize = 10;

/// Nodes of a pool.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) nodes: usize,
    pub(crate) updated: usize,
    pub(crate) proven: usize,
    pub(crate) updating: usize,
    pub(crate) unavailable: usize,
    pub(crate) failed: usize,
    /// Nodes that another pool selects too, and that pool.
    pub(crate) conflicts: Vec<(String, String)>,
}

/// Where a pool is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Situation {
    /// The spec makes no sense, or what it names is not there.
    Invalid(String),
    /// There is no Node.
    NoNodes,
    /// All Nodes have the revision.
    Complete,
    /// The first Nodes have it.
    Canaries { canaries: usize, done: usize, in_flight: usize },
    /// Somebody is to look at them.
    AwaitingApproval { revision: String },
    /// The others get it.
    Waves { nodes: usize, with: usize, in_flight: usize },
    /// No Node can get it now.
    Blocked { unready: Vec<String>, max: usize, behind: usize },
    /// `spec.paused`.
    Paused { behind: usize, to: String },
    /// Nodes spoke against it.
    Failed { revision: String, words: String },
    /// Another pool selects one of its Nodes.
    Conflict { node: String, pool: String },
}

impl Situation {
    pub(crate) fn complete(nodes: &[&PoolNode]) -> Self {
        if nodes.is_empty() { Self::NoNodes } else { Self::Complete }
    }

    pub(crate) fn waves(nodes: usize, with: usize, in_flight: usize) -> Self {
        Self::Waves { nodes, with, in_flight }
    }

    pub(crate) fn bad(bad: &BadRevision) -> Self {
        let words: Vec<String> = bad.nodes.iter().map(|node| format!("{}: {}", node.name, node.message)).collect();
        Self::Failed { revision: bad.revision.clone(), words: words.join("; ") }
    }

    fn reason(&self) -> &'static str {
        match self {
            Self::Invalid(_) => "RevisionInvalid",
            Self::NoNodes => "NoNodes",
            Self::Complete => "Complete",
            Self::Canaries { .. } => "Canaries",
            Self::AwaitingApproval { .. } => "AwaitingApproval",
            Self::Waves { .. } => "Waves",
            Self::Blocked { .. } => "BudgetExhausted",
            Self::Paused { .. } => "Paused",
            Self::Failed { .. } => "FailuresExceeded",
            Self::Conflict { .. } => "Conflict",
        }
    }

    fn message(&self) -> String {
        match self {
            Self::Invalid(why) => why.clone(),
            Self::NoNodes => "spec.nodeSelector selects no Node".to_owned(),
            Self::Complete => "all Nodes have the revision".to_owned(),
            Self::Canaries { canaries, done, in_flight } => {
                format!("{done} of {canaries} canaries are done, {in_flight} on their way")
            }
            Self::AwaitingApproval { revision } => format!(
                "the canaries are done; to go on: kubectl annotate kcpool NAME kubelet-supervisor.io/approved-revision={revision} --overwrite"
            ),
            Self::Waves { nodes, with, in_flight } => {
                format!("{with} of {nodes} Nodes have it, {in_flight} are on their way")
            }
            Self::Blocked { unready, max, behind } => {
                let names = if unready.is_empty() {
                    "held on the Node, or another control-plane Node is away".to_owned()
                } else {
                    format!("not Ready: {}", listed(unready))
                };
                format!("{behind} Nodes wait; {max} may be unavailable at a time; {names}")
            }
            Self::Paused { behind, to } => format!("spec.paused; {behind} Nodes would get {to}"),
            Self::Failed { revision, words } => format!("{revision} is not tried again: {words}"),
            Self::Conflict { node, pool } => {
                format!(
                    "Node {node} is selected by pool {pool} too; nothing is changed until one of them lets go of it"
                )
            }
        }
    }

    /// Status of Ready, Reconciling and Stalled.
    fn kstatus(&self) -> [bool; 3] {
        match self {
            Self::Complete | Self::NoNodes => [true, false, false],
            Self::Canaries { .. }
            | Self::AwaitingApproval { .. }
            | Self::Waves { .. }
            | Self::Blocked { .. }
            | Self::Paused { .. } => [false, true, false],
            Self::Invalid(_) | Self::Failed { .. } | Self::Conflict { .. } => [false, false, true],
        }
    }
}

/// Names, ten at the most.
fn listed(names: &[String]) -> String {
    let shown: Vec<&str> = names.iter().take(NAMES).map(String::as_str).collect();
    let more = names.len() - shown.len();
    if more > 0 { format!("{} and {more} more", shown.join(", ")) } else { shown.join(", ") }
}

/// Writes counts and conditions. A condition that is as it was keeps its time.
pub(crate) fn fill(status: &mut KubeletConfigPoolStatus, counts: &Counts, situation: &Situation, now: Timestamp) {
    let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    status.nodes = count(counts.nodes);
    status.updated = count(counts.updated);
    status.proven = count(counts.proven);
    status.updating = count(counts.updating);
    status.unavailable = count(counts.unavailable);
    status.failed = count(counts.failed);
    let [ready, reconciling, stalled] = situation.kstatus();
    let conflict = match counts.conflicts.as_slice() {
        [] => ("NoConflict", "no other pool selects these Nodes".to_owned()),
        conflicts => {
            let pairs: Vec<String> = conflicts.iter().map(|(node, pool)| format!("{node} ({pool})")).collect();
            ("Conflict", format!("selected by another pool too: {}", listed(&pairs)))
        }
    };
    let (reason, message) = (situation.reason(), situation.message());
    // Before one is False that was True, none of the two says the opposite: kstatus reads them in this order.
    let conditions = [
        ("Ready", ready, reason, message.clone()),
        ("Reconciling", reconciling, reason, message.clone()),
        ("Stalled", stalled, reason, message),
        ("Conflicting", !counts.conflicts.is_empty(), conflict.0, conflict.1),
    ];
    let observed_generation = status.observed_generation;
    let former = std::mem::take(&mut status.conditions);
    status.conditions = conditions
        .into_iter()
        .map(|(type_, holds, reason, message)| {
            let state = if holds { "True" } else { "False" };
            let same = former.iter().find(|condition| condition.type_ == type_ && condition.status == state);
            PoolCondition {
                type_: type_.to_owned(),
                status: state.to_owned(),
                observed_generation,
                last_transition_time: same.map_or_else(
                    || now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
                    |condition| condition.last_transition_time.clone(),
                ),
                reason: reason.to_owned(),
                message,
            }
        })
        .collect();
}
