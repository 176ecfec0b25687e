//! A pool's status: counts and conditions.

use jiff::Timestamp;

use super::node::PoolNode;
use super::revision::{APPROVED_REVISION, RevisionFault};
use super::types::{BadRevision, BadRevisionNode, KubeletConfigPoolStatus, NamedNodes, PoolCondition, RolloutPhase};
use kubelet_config::bounds::{bounded, first_of};

/// Names in one message.
pub(crate) const NAMES: usize = 10;
/// Bytes of a message: each change of one is a write that all who follow pools read.
const MESSAGE: usize = 1024;

/// Where a pool is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PoolState {
    /// The spec makes no sense, or what it names is not there.
    Invalid(RevisionFault),
    /// There is no Node.
    NoNodes,
    /// All Nodes have the revision.
    Complete,
    /// All have it but these, which refused what all have; true: too many for others to get it.
    Degraded(Vec<String>, bool),
    /// It is on its way, and no Node was given anything for so long.
    Overdue { of: Box<PoolState>, seconds: u32 },
    /// These Nodes have not said yet what they would make of it.
    Preflighting { waiting: Vec<String> },
    /// Too many Nodes would not take it up; what they say.
    PreflightRefused(String),
    /// The first Nodes have it.
    Canaries { canaries: usize, done: usize, in_flight: usize },
    /// Somebody is to look at them.
    AwaitingApproval { revision: String },
    /// The others get it.
    Waves { nodes: usize, with: usize, in_flight: usize },
    /// No Node can get it now.
    Blocked { behind: usize, by: Blocker },
    /// `spec.paused`.
    Paused { behind: usize, update: String },
    /// Too many Nodes failed with it.
    Failed { revision: String, message: String },
    /// Another pool selects one of its Nodes.
    Conflict { node: String, pool: String },
    /// One of these, and what else there is to say: which Nodes are being drained, or cannot be, and which wait.
    WithNotes { of: Box<PoolState>, notes: String },
}

/// What keeps a pool's Nodes from going on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Blocker {
    /// As many as may be are unavailable: these.
    MaxUnavailable(Vec<String>),
    /// All that are behind are not Ready.
    NotReady(Vec<String>),
    /// These say nothing any more since they have the revision, or failed with it.
    Silent(Vec<String>),
    /// An operator on these lets no change in.
    HeldOnNode(Vec<String>),
    /// These control-plane Nodes are not Ready, or have not proven what they have, or one of their static pods is away.
    ControlPlane(Vec<String>),
    /// Expressions come to nothing for these.
    NoRendering(Vec<String>),
    /// What expressions come to anew is tried, or was refused, by these.
    Unproven(Vec<String>),
    /// spec.rollout.canarySelector matches nobody who could be a canary.
    NoCanaries,
    /// These cannot be drained, and why.
    Drain(Vec<String>),
    /// No window is open until then.
    Windows(Timestamp),
}

impl Blocker {
    /// The reason of a condition, and its message.
    fn words(&self) -> (&'static str, String) {
        match self {
            Self::MaxUnavailable(nodes) => {
                ("MaxUnavailableReached", format!("spec.rollout.maxUnavailable is reached by {}", listed(nodes)))
            }
            Self::NotReady(nodes) => ("NodesNotReady", format!("not Ready: {}", listed(nodes))),
            Self::Silent(nodes) => {
                let silent = "failed with it, or are not Ready or late since they have it (spec.rollout.maxFailures)";
                let advice = "it goes on when they have finished it; `kubectl kubelet-config rollout retry NAME` forgets those that are gone";
                ("NodesSilent", format!("{}: {silent}; {advice}", listed(nodes)))
            }
            Self::HeldOnNode(nodes) => {
                let advice = "`kubelet-supervisor thaw` or `unpin` there lets the change in";
                ("NodesHeld", format!("held by an operator on {}: {advice}", listed(nodes)))
            }
            Self::ControlPlane(nodes) => {
                let one = "control-plane Nodes go one at a time; not Ready, or not done";
                ("ControlPlaneBusy", format!("{one}: {}", listed(nodes)))
            }
            Self::NoRendering(nodes) => {
                let none = "the expressions in spec.kubeletConfiguration have no value for what these report";
                let advice = "`kubectl kubelet-config render pool/NAME NODE` says why";
                ("ExpressionFailed", format!("{none}: {}; {advice}", listed(nodes)))
            }
            Self::Unproven(nodes) => {
                let unproven = "what expressions come to for them is not proven by the Node that has it";
                ("RenderingUnproven", format!("{unproven}: {}", listed(nodes)))
            }
            Self::NoCanaries => {
                let none = "spec.rollout.canarySelector matches no Node of the pool that can still be a canary";
                ("NoCanaries", format!("{none}: label one, or change the selector"))
            }
            Self::Drain(nodes) => {
                ("DrainBlocked", format!("cannot be drained (spec.rollout.drain): {}", listed(nodes)))
            }
            Self::Windows(opens) => {
                ("OutsideWindow", format!("the next of spec.rollout.windows opens at {}", rfc3339(*opens)))
            }
        }
    }
}

impl PoolState {
    pub(crate) fn complete(nodes: &[&PoolNode]) -> Self {
        if nodes.is_empty() { Self::NoNodes } else { Self::Complete }
    }

    pub(crate) fn bad(bad: &BadRevision) -> Self {
        Self::Failed { revision: bad.revision.clone(), message: messages(&bad.nodes) }
    }

    /// These Nodes are being drained, and those cannot be.
    pub(crate) fn with_drains(self, going: &[String], undrained: Option<&Blocker>) -> Self {
        let going = (!going.is_empty()).then(|| format!("; being drained: {}", listed(going)));
        let is_said = matches!(self, Self::Blocked { by: Blocker::Drain(_), .. });
        let undrained = undrained.filter(|_| !is_said).map(|by| format!("; {}", by.words().1));
        self.with(going.into_iter().chain(undrained).collect())
    }

    /// These wait on the node for as long as it takes.
    pub(crate) fn with_waiting(self, nodes: &[String]) -> Self {
        let waiting = || format!("; waiting (`kubectl kubelet-config status` says for what): {}", listed(nodes));
        self.with(if nodes.is_empty() { String::new() } else { waiting() })
    }

    /// Nodes that nothing waits for.
    pub(crate) fn with_stragglers(self, status: &KubeletConfigPoolStatus) -> Self {
        let groups = [
            (&status.stragglers, "held, failed or silent"),
            (&status.unsupervised, "without a supervisor"),
            (&status.unwritable, "refuse writes"),
        ];
        let notes = groups.iter().filter(|(named, _)| named.count > 0).map(|(named, what)| {
            let more = (named.count as usize).saturating_sub(named.nodes.len());
            let more = if more == 0 { String::new() } else { format!(" and {more} more") };
            format!("; {what}: {}{more}", named.nodes.join(", "))
        });
        self.with(notes.collect())
    }

    /// How far the rollout is, which was so far before.
    pub(crate) fn phase(&self, former: RolloutPhase) -> RolloutPhase {
        match self {
            Self::WithNotes { of, .. } | Self::Overdue { of, .. } => of.phase(former),
            Self::Preflighting { .. } => RolloutPhase::Preflight,
            Self::Canaries { .. } => RolloutPhase::Canaries,
            Self::Waves { .. } => RolloutPhase::Waves,
            Self::Blocked { by: Blocker::Windows(_), .. } => RolloutPhase::Waiting,
            Self::Blocked { .. } if former == RolloutPhase::Canaries => former,
            Self::Blocked { .. } => RolloutPhase::Waves,
            Self::NoNodes | Self::Complete | Self::Degraded(..) | Self::Failed { .. } => RolloutPhase::Ended,
            Self::Invalid(_)
            | Self::PreflightRefused(_)
            | Self::AwaitingApproval { .. }
            | Self::Paused { .. }
            | Self::Conflict { .. } => RolloutPhase::Waiting,
        }
    }

    fn with(self, notes: String) -> Self {
        if notes.is_empty() { self } else { Self::WithNotes { of: Box::new(self), notes } }
    }

    /// The one that holds of the conditions that kstatus reads (cli-utils, pkg/kstatus/status), the reason, and the message.
    fn words(&self) -> (&'static str, &'static str, String) {
        match self {
            Self::WithNotes { of, notes } => {
                let (condition, reason, message) = of.words();
                (condition, reason, message + notes)
            }
            Self::Invalid(fault) => ("Stalled", fault.reason, fault.message.clone()),
            Self::NoNodes => ("Ready", "NoNodes", "spec.nodeSelector selects no Node".to_owned()),
            Self::Complete => ("Ready", "Complete", "all Nodes have the revision".to_owned()),
            Self::Degraded(nodes, is_final) => {
                let holds = if *is_final { "Stalled" } else { "Ready" };
                (holds, "Degraded", format!("rejected or rolled back by Nodes that do not have it: {}", listed(nodes)))
            }
            Self::Overdue { of, seconds } => {
                let (holds, reason, message) = of.words();
                match holds {
                    "Reconciling" => {
                        let none =
                            format!("no Node was given it for {seconds} s (spec.rollout.progressDeadlineSeconds)");
                        ("Stalled", "ProgressDeadlineExceeded", format!("{none}; {reason}: {message}"))
                    }
                    _ => (holds, reason, message),
                }
            }
            Self::Preflighting { waiting } => {
                let message = format!("{} Nodes judge it with their own kubelets: {}", waiting.len(), listed(waiting));
                ("Reconciling", "Preflighting", message)
            }
            Self::PreflightRefused(messages) => {
                let unchanged =
                    "nothing was changed; Nodes would not take it up (spec.rollout.maxFailures are too many)";
                ("Stalled", "PreflightRefused", format!("{unchanged}: {messages}"))
            }
            Self::Canaries { canaries, done, in_flight } => {
                let message = format!("{done} of {canaries} canaries are done, {in_flight} on their way");
                ("Reconciling", "Canaries", message)
            }
            Self::AwaitingApproval { revision } => {
                let command = format!("kubectl annotate kcpool NAME {APPROVED_REVISION}={revision} --overwrite");
                ("Reconciling", "AwaitingApproval", format!("the canaries are done; to go on: {command}"))
            }
            Self::Waves { nodes, with, in_flight } => {
                let message = format!("{with} of {nodes} Nodes have it, {in_flight} are on their way");
                ("Reconciling", "Waves", message)
            }
            Self::Blocked { behind, by } => {
                let (reason, message) = by.words();
                ("Reconciling", reason, format!("{behind} Nodes wait: {message}"))
            }
            Self::Paused { behind, update } => {
                ("Reconciling", "Paused", format!("spec.paused; {behind} Nodes would get {update}"))
            }
            Self::Failed { revision, message } => {
                ("Stalled", "FailuresExceeded", format!("{revision} is not tried again: {message}"))
            }
            Self::Conflict { node, pool } => {
                let unchanged = "nothing is changed until only one pool selects it";
                ("Stalled", "Conflict", format!("Node {node} is selected by pool {pool} too; {unchanged}"))
            }
        }
    }
}

/// What Nodes say of a revision before it goes to any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Preflighted {
    /// There is nothing to be judged.
    NotAsked,
    Waiting(String),
    Refused(String),
    Done(String),
}

/// As the API server writes times.
pub(crate) fn rfc3339(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Names, ten at the most.
fn listed(names: &[String]) -> String {
    first_of(names, NAMES)
}

/// What Nodes say, ten of them at the most.
pub(crate) fn messages(nodes: &[BadRevisionNode]) -> String {
    let messages: Vec<String> = nodes.iter().map(|node| format!("{}: {}", node.name, node.message)).collect();
    listed(&messages)
}

/// Writes the conditions. One that is as it was keeps its time. `conflicts`: Nodes that another pool selects too, with that
/// pool.
pub(crate) fn fill(
    status: &mut KubeletConfigPoolStatus,
    conflicts: &[String],
    state: &PoolState,
    preflighted: &Preflighted,
    now: Timestamp,
) {
    let (holds, reason, message) = state.words();
    let bounded = |message: String| bounded(&message, MESSAGE);
    let conflict = match conflicts {
        [] => ("NoConflict", "no other pool selects these Nodes".to_owned()),
        conflicts => ("Conflict", format!("selected by another pool too: {}", listed(conflicts))),
    };
    let preflighted = match preflighted {
        Preflighted::NotAsked => (true, "NothingNew", "there is no revision to be judged".to_owned()),
        Preflighted::Waiting(summary) => (false, "Preflighting", summary.clone()),
        Preflighted::Refused(summary) => (false, "PreflightRefused", summary.clone()),
        Preflighted::Done(summary) => (true, "Preflighted", summary.clone()),
    };
    // kstatus reads Reconciling and Stalled before Ready: all three are set in one write.
    let conditions = [
        ("Ready", holds == "Ready", reason, message.clone()),
        ("Reconciling", holds == "Reconciling", reason, message.clone()),
        ("Stalled", holds == "Stalled", reason, message),
        ("Preflighted", preflighted.0, preflighted.1, preflighted.2),
        ("Conflicting", !conflicts.is_empty(), conflict.0, conflict.1),
    ];
    let observed_generation = status.observed_generation;
    let former = std::mem::take(&mut status.conditions);
    status.conditions = conditions
        .into_iter()
        .map(|(type_, holds, reason, message)| {
            let held = if holds { "True" } else { "False" };
            let same = former.iter().find(|condition| condition.type_ == type_ && condition.status == held);
            PoolCondition {
                type_: type_.to_owned(),
                status: held.to_owned(),
                observed_generation,
                last_transition_time: same
                    .map_or_else(|| rfc3339(now), |condition| condition.last_transition_time.clone()),
                reason: reason.to_owned(),
                message: bounded(message),
            }
        })
        .collect();
}

/// Whether two statuses say the same but for how many Nodes.
pub(crate) fn differs_in_counts_only(one: &KubeletConfigPoolStatus, other: &KubeletConfigPoolStatus) -> bool {
    let without_counts = |status: &KubeletConfigPoolStatus| {
        let mut status = status.clone();
        for condition in &mut status.conditions {
            condition.message.clear();
        }
        let (nodes, updated, proven, updating, unavailable, failed) = Default::default();
        let (stragglers, unsupervised, unwritable) = <(NamedNodes, NamedNodes, NamedNodes)>::default();
        let counted = KubeletConfigPoolStatus { nodes, updated, proven, updating, unavailable, failed, ..status };
        KubeletConfigPoolStatus { stragglers, unsupervised, unwritable, ..counted }
    };
    without_counts(one) == without_counts(other)
}
