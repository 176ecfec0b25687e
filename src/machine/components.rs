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
        /// When it began.
        since: Moment,
    },
}

/// The kubelet process as the machine sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kubelet {
    /// Before [`Input::Boot`].
    Down,
    /// The choice is being rendered or judged, a start follows.
    Launching,
    /// [`Effect::Start`] is out.
    Starting,
    /// A process exists.
    Running(Run),
    /// SIGTERM was sent, SIGKILL follows at the moment given.
    Stopping {
        /// When patience ends; `None` after SIGKILL.
        kill_at: Option<Moment>,
    },
    /// It ended by itself; the next start is due at the moment given.
    Waiting {
        /// When.
        until: Moment,
    },
    /// We are leaving.
    Gone,
}

/// A configuration that is being tried.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Trial {
    /// Exits so far.
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
    /// Where to.
    pub to: Option<Source>,
    /// When it was first seen.
    pub seen: Moment,
    /// How far it is.
    pub stage: Stage,
    /// Signals found good so far.
    pub baseline: Baseline,
    /// Signals that were asked for and have not answered.
    pub unanswered: Baseline,
    /// They are waited for until then.
    pub baseline_until: Moment,
    /// This node's turn among the many that have the same change; `None`: now.
    pub turn: Option<Moment>,
    /// The pods before the change.
    pub inventory: Option<PodInventory>,
}

/// Stages of a [`Change`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stage {
    /// [`Effect::Save`] or [`Effect::Render`] is out.
    Preparing,
    /// The preflight with this ticket is out.
    Preflight(u64, Rendered),
    /// Accepted; this node's turn is waited for.
    Spread(Rendered),
    /// Accepted; the baseline is waited for.
    Baseline(Rendered),
    /// [`Effect::Record`] is out; switch when it is durable.
    Recording(Rendered),
}

/// What the running process was given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct InForce {
    /// The source it was rendered from.
    pub source: Option<Source>,
    /// Its content; unknown if the local file could not be read.
    pub digest: Option<Digest>,
    /// Where to probe.
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
    /// There was none.
    #[default]
    None,
    /// Passed.
    Passed,
    /// Failed.
    Failed,
}

/// A failure that was seen, before it is known whether the node around the kubelet is at fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingFailure {
    /// Which.
    pub failure: Failure,
    /// What was seen.
    pub detail: String,
    /// When.
    pub at: Moment,
}

/// How far a reload is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReloadStage {
    /// Nobody wants one.
    #[default]
    None,
    /// It waits for a calm moment.
    #[serde(rename = "Wanted")]
    Requested,
    /// [`Effect::ProveReload`] is out.
    Proving,
    /// The next calm moment is the one.
    Proven,
}

/// Reloads, and the wish for one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Reload {
    /// How far it is.
    pub stage: ReloadStage,
    /// Why the last one did not happen.
    pub error: Option<String>,
    /// Reloads since the supervisor was started.
    pub count: u32,
}

/// How far an end for a restart is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Ending {
    /// None is under way.
    #[default]
    None,
    /// The try is given back; the record of that is out.
    Recording,
    /// It has ended: [`RESTART`] is the exit code.
    Done,
}
