//! What a kubelet was started with, for whoever goes on with it.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::model::{KubeletId, Rendered, RunId};
use super::versions::Version;
use kubelet_config::digest::Digest;
use kubelet_config::flags::FlagOverrides;
use kubelet_config::policy::Signed;
use kubelet_config::rendering::HealthzTarget;

/// What a kubelet was started with: while it runs, the next worker goes on with that, whatever is wanted by then. Equal content
/// under another name has other arguments.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Started {
    /// The kubelet.
    pub run: RunId,
    /// Its configuration, of which the local files may say something else by now.
    pub config: RunningConfig,
    /// The binary that it is.
    pub kubelet: KubeletId,
    /// It gave a sign of life: of one that never did nobody can tell whether it hangs.
    pub alive: bool,
}

/// The configuration the process was started with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunningConfig {
    /// Its version; `None` is the local configuration.
    pub version: Option<Version>,
    /// Its content; unknown if the local file could not be read.
    pub digest: Option<Digest>,
    /// What `--config` was given, if it is not the kubelet's own.
    pub path: String,
    /// What became of the unit's own flags.
    pub overrides: FlagOverrides,
    /// Where its healthz answers; `None` if it is off or unknown.
    pub healthz: Option<HealthzTarget>,
    /// Fields that flags override.
    pub shadowed: Vec<String>,
    /// What the kubelet goes by; null if unknown.
    pub effective: Arc<Value>,
    /// Its hard eviction thresholds are not kept from pods.
    pub ignores_eviction: bool,
    /// The container runtime's socket, if known.
    pub runtime: Option<String>,
    /// Who signed it.
    pub signed: Option<Signed>,
}

impl RunningConfig {
    pub(super) fn new(version: Option<Version>, rendered: Rendered) -> Self {
        Self {
            version,
            digest: Some(rendered.digest),
            path: rendered.path,
            overrides: rendered.overrides,
            healthz: rendered.healthz,
            shadowed: rendered.shadowed,
            effective: rendered.effective,
            ignores_eviction: rendered.ignores_eviction,
            runtime: rendered.runtime,
            signed: rendered.admission.signed,
        }
    }
}
