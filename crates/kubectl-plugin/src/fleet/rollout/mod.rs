//! A configuration brought to many nodes: canaries, then waves, and a halt at the first node that
//! does not like it.
//!
//! Nothing but the API server remembers a rollout. What it is to do and what its nodes were
//! assigned before stands in ConfigMaps ([`record`]); how far it is, the Nodes say themselves
//! ([`node`]). [`decide`] is a function of both, so a client that takes over from a dead one goes
//! on as the dead one would have.

pub(crate) mod bad_versions;
#[cfg(test)]
mod bad_versions_tests;
pub(crate) mod decide;
pub mod drain;
mod draining;
#[cfg(test)]
mod draining_tests;
pub(crate) mod member;
pub(crate) mod observed;
pub(crate) mod plan;
pub(crate) mod progress;
pub(crate) mod record;
#[cfg(test)]
mod tests;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use kubelet_config::source::ConfigMapRef;

/// Label of a rollout's ConfigMap; the value is its name.
pub(crate) const LABEL: &str = "kubelet-supervisor.io/rollout";
/// Label of the ConfigMaps with its nodes; the value is its name.
pub(crate) const NODES_LABEL: &str = "kubelet-supervisor.io/rollout-nodes";

/// A node in flight may be not Ready for so long. A kubelet that starts says so for some seconds,
/// and the supervisor itself puts a node without contact back after 90 s.
pub(crate) const NOT_READY: Duration = Duration::from_secs(60);

/// From so many nodes the target may be taken by hand before the rollout stops. Their names are in the record: 64 KiB
/// at the most, and more of them is somebody's veto.
pub(crate) const WITHDRAWN: usize = 256;

/// When a node counts as done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum WaitFor {
    /// The kubelet runs with it and the node is Ready.
    Active,
    /// It is last known good.
    #[default]
    Proven,
}

/// What a node that does not like it brings about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum OnFailure {
    /// No further node gets it.
    #[default]
    Stop,
    /// All nodes get back what they had.
    Revert,
}

/// How it is to be done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Options {
    /// The first nodes of the plan.
    pub(crate) canaries: usize,
    /// Nodes that may be in flight or not Ready at a time; at least one.
    pub(crate) max_unavailable: usize,
    /// When a node is done.
    pub(crate) wait_for: WaitFor,
    /// Somebody is to look at the canaries.
    pub(crate) pause_after_canaries: bool,
    pub(crate) on_failure: OnFailure,
    /// A node that is not done after so long fails.
    pub(crate) timeout_seconds: u64,
    /// Nodes are drained first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) drain: Option<drain::Draining>,
}

impl Options {
    /// The wave of a node in the plan: 0 are the canaries.
    pub(crate) fn wave(&self, index: usize) -> usize {
        wave(index, self.canaries, self.max_unavailable)
    }
}

/// The wave of an index in the plan.
fn wave(index: usize, canaries: usize, max_unavailable: usize) -> usize {
    match index.checked_sub(canaries) {
        None => 0,
        Some(after) => 1 + after / max_unavailable.max(1),
    }
}

/// One version of the ConfigMap that is rolled out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Target {
    /// What nodes are assigned.
    #[serde(flatten)]
    pub(crate) reference: ConfigMapRef,
    pub(crate) uid: String,
    pub(crate) resource_version: String,
    /// Of an immutable one, another resourceVersion is the same content.
    pub(crate) immutable: bool,
}

/// Where a rollout is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Phase {
    /// Its records are being written; no node has heard of it.
    Starting,
    /// Nodes get it.
    Running,
    /// Somebody paused it.
    Paused,
    /// It stopped by itself.
    Stopped,
    /// Nodes get back what they had.
    Reverting,
    /// All nodes have it.
    Done,
    /// All nodes have what they had.
    Reverted,
    /// Somebody gave it up; nodes keep what they have.
    Aborted,
}

impl Phase {
    /// Its nodes are free for other rollouts.
    pub(crate) fn is_over(self) -> bool {
        matches!(self, Self::Done | Self::Reverted | Self::Aborted)
    }

    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Stopped => "stopped",
            Self::Reverting => "reverting",
            Self::Done => "done",
            Self::Reverted => "reverted",
            Self::Aborted => "aborted",
        }
    }
}

/// A node that called the version bad.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BadVersion {
    pub(crate) node: String,
    pub(crate) why: String,
    /// The rollout whose node it is, if it is another one's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) from: Option<String>,
}

/// What a node reported of a version, and what counts no more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ClearedVersion {
    pub(crate) node: String,
    pub(crate) why: String,
    /// Why it does not stand any more.
    pub(crate) how: String,
}

/// The client that drives a rollout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Holder {
    pub(crate) id: String,
    #[serde(rename = "beat")]
    /// Counts on while it lives; others measure by their own clocks how long it stands still.
    pub(crate) renewals: u64,
}

/// What the cluster remembers of a rollout, but for its nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Record {
    /// What is rolled out.
    pub(crate) target: Target,
    /// Which nodes, as they were when it began.
    pub(crate) selector: String,
    pub(crate) options: Options,
    /// How many nodes.
    pub(crate) nodes: usize,
    /// Over how many ConfigMaps they are spread.
    pub(crate) parts: usize,
    /// In the second set of those: what takes the place of a rollout that is over writes its nodes beside that one's.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) second: bool,
    /// While it is starting: the one that is over whose place it takes, and which is put back if it does not begin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) replaces: Option<Box<Record>>,
    /// The namespace of labels that name none.
    pub(crate) namespace: String,
    pub(crate) phase: Phase,
    /// Waves up to this one may be sent.
    pub(crate) wave: usize,
    /// Why it is where it is.
    #[serde(default)]
    pub(crate) why: String,
    /// Who called the version bad.
    #[serde(default)]
    pub(crate) bad: Vec<BadVersion>,
    /// What nodes called bad and counts no more, the latest ones.
    #[serde(default, rename = "lifted")]
    pub(crate) cleared: Vec<ClearedVersion>,
    /// Nodes whose reports on this version are not taken: somebody said that they were at fault.
    #[serde(default, rename = "despite")]
    pub(crate) excluded_nodes: Vec<String>,
    /// Nodes from which somebody took the target again; at most [`WITHDRAWN`].
    #[serde(default)]
    pub(crate) withdrawn: Vec<String>,
    /// Somebody asked for nodes to get back what they had.
    #[serde(default)]
    pub(crate) undone: bool,
    /// Nodes that should be back and are not, once it is reverted.
    #[serde(default)]
    pub(crate) behind: usize,
    #[serde(default)]
    pub(crate) holder: Option<Holder>,
    /// When it began, RFC 3339.
    #[serde(default)]
    pub(crate) started: String,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde wants it so")]
fn is_false(it: &bool) -> bool {
    !it
}

impl Record {
    /// Nodes are given the target, or were.
    pub(crate) fn is_forward(&self) -> bool {
        !matches!(self.phase, Phase::Reverting | Phase::Reverted)
    }

    /// The wave of the last node.
    pub(crate) fn last_wave(&self) -> usize {
        self.options.wave(self.nodes.saturating_sub(1))
    }
}
