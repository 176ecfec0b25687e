//! What the state is made of: the process, the ConfigMap, a change, a trial, a reload.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::evidence::{Baseline, Failure};
use super::model::{Moment, Rendered};
use super::run::Run;
use kubelet_config::digest::Digest;
use kubelet_config::pods::PodInventory;
use kubelet_config::rendering::HealthzTarget;
use kubelet_config::source::{ConfigAnnotations, Payload, Source};

/// What is known of the assigned ConfigMap.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ConfigMapState {
    /// Not heard of since the watch began.
    Pending,
    /// This version; the bytes are let go once they are checkpointed.
    #[serde(skip)]
    Present(Arc<Payload>),
    /// Checkpointed; only the identity is kept.
    Checkpointed(Source),
    /// Not there, not allowed, or no connection.
    Failed {
        /// What the API server or the network said.
        why: String,
        /// Since when it has failed without a break.
        since: Moment,
    },
}

/// The kubelet process as the machine sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kubelet {
    /// Not decided yet: the machine waits for its first input.
    Down,
    /// The target is being rendered or judged; a start follows.
    Launching,
    /// The start was asked for and has not been answered.
    Starting,
    /// The process exists, ready or not.
    Running(Run),
    /// SIGTERM was sent, SIGKILL follows at the moment given.
    Stopping {
        /// When SIGKILL follows; `None` once it was sent.
        kill_at: Option<Moment>,
    },
    /// It ended by itself; the next start is due at the moment given.
    Waiting {
        /// When it is started again.
        until: Moment,
    },
    /// The supervisor ends, and starts no other.
    Gone,
}

/// A configuration that is being tried.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Trial {
    /// Exits of the kubelet within this trial.
    pub exits: u32,
    /// The content is the very one that is last known good under another source: its failures
    /// are not the configuration's, and there is nothing to roll back to.
    pub adopted: bool,
    /// Health earned before the clock was last stopped.
    #[serde(rename = "banked")]
    pub health_before_pause: Duration,
    /// The clock was stopped by a suspension: what was earned before it counts.
    #[serde(rename = "excused")]
    pub suspended: bool,
}

/// A change on its way, up to the switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The assigned version; `None` is the local configuration.
    pub to: Option<Source>,
    /// When it was first seen.
    pub seen: Moment,
    /// The step it waits for.
    pub stage: Stage,
    /// Signals found good so far.
    pub baseline: Baseline,
    /// Signals that were asked for and have not answered.
    pub unanswered: Baseline,
    /// They are waited for until then.
    pub baseline_until: Moment,
    /// When this node starts the change, if many nodes have the same one; `None`: now.
    pub starts_at: Option<Moment>,
    /// The pods before the change.
    pub inventory: Option<PodInventory>,
}

/// Stages of a [`Change`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It is being checkpointed or rendered.
    Preparing,
    /// It is being judged by the preflight with this ticket.
    Preflight(u64, Rendered),
    /// Accepted; it waits for `starts_at`.
    Spread(Rendered),
    /// Accepted; the baseline is waited for.
    Baseline(Rendered),
    /// The attempt is being recorded; the switch follows.
    Recording(Rendered),
}

/// The configuration the kubelet process was started with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunningConfig {
    /// The source it was rendered from.
    pub source: Option<Source>,
    /// Its content; unknown if the local file could not be read.
    pub digest: Option<Digest>,
    /// Where its healthz answers; `None` if it is off or unknown.
    pub healthz: Option<HealthzTarget>,
    /// Fields that flags override.
    pub shadowed: Vec<String>,
    /// What the kubelet goes by; null if unknown.
    pub effective: Arc<Value>,
    /// What its ConfigMap's annotations ask for.
    #[serde(rename = "wishes")]
    pub annotations: ConfigAnnotations,
    /// The container runtime's socket, if known.
    pub runtime: Option<String>,
}

/// The last trial's end, for `status`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum TrialEnd {
    /// There was no trial yet, or local was assigned since.
    #[default]
    None,
    /// It became last known good.
    Passed,
    /// It was rolled back.
    Failed,
}

/// A failure that was seen, before it is known whether the node around the kubelet is at fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingFailure {
    /// The way it failed.
    pub failure: Failure,
    /// The observation, for people.
    pub detail: String,
    /// When it was seen.
    pub at: Moment,
}

/// The stages of a reload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReloadStage {
    /// None is asked for.
    #[default]
    None,
    /// It waits for a calm moment.
    #[serde(rename = "Wanted")]
    Requested,
    /// The installed binary is being asked whether it can go on from here.
    Proving,
    /// The next calm moment is the one.
    Proven,
}

/// The reload that was asked for, and those before it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Reload {
    /// The step it waits for.
    pub stage: ReloadStage,
    /// Why the last one did not happen.
    pub error: Option<String>,
    /// Reloads since the supervisor was started.
    pub count: u32,
}

/// The stages of an end for a restart by systemd.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) enum ExitForRestart {
    /// None is under way.
    #[default]
    None,
    /// The try is given back; the record of that is out.
    Recording,
    /// It has ended: [`EXIT_FOR_RESTART`] is the exit code.
    Done,
}
