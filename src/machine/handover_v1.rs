//! What a supervisor of format 1 hands over. Read when a node is upgraded by a reload; never written.

use serde::Deserialize;

use super::Run;
use super::evidence::{Environment, NodeReadiness, Signal, Suspension};
use super::health::Health;
use super::model::{KubeletId, Moment};
use super::process::{Process, RunningConfig};
use super::record_writer::RecordWriter;
use super::records::{Records, Version};
use super::reload::Reload;
use super::state::State;
use super::state_v1::StateV1;
use super::sync::ConfigSync;
use super::trial::Trial;
use kubelet_config::assignment::Assignment;
use kubelet_config::digest::Digest;
use kubelet_config::flags::FlagOverrides;
use kubelet_config::rendering::HealthzTarget;
use kubelet_config::source::Source;
use kubelet_config::status::SyncError;

#[derive(Deserialize)]
struct Document {
    state: StateDocument,
}

/// What a reload takes along; what is missing is asked for anew.
#[derive(Default, Deserialize)]
#[serde(default)]
struct StateDocument {
    saved: RecordsV1,
    unsaved: Option<RecordsV1>,
    wanted: Assignment,
    node_name: String,
    kubelet: KubeletV1,
    kubelet_id: KubeletId,
    active: Option<Source>,
    in_force: RunningV1,
    trial: Option<TrialV1>,
    suspended: Option<Suspension>,
    recovered: bool,
    node: Option<NodeReadiness>,
    environment: Option<(Environment, Moment)>,
    words: Vec<String>,
    sync_error: Option<(SyncError, String)>,
    judged: Vec<(Digest, KubeletId)>,
    version: Option<String>,
    starts: u32,
    began: Moment,
    lease: Option<String>,
    runtime: Option<String>,
    runtime_answered: bool,
    pods_before: std::collections::BTreeSet<String>,
    reload: Reload,
    tested: Option<KubeletId>,
    now: Moment,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RecordsV1 {
    assigned: Option<Source>,
    last_known_good: Option<Source>,
    ledger: StateV1,
}

#[derive(Default, Deserialize)]
enum KubeletV1 {
    Running(RunV1),
    #[default]
    #[serde(other)]
    Other,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RunV1 {
    #[serde(flatten)]
    run: Run,
    answered: Option<Moment>,
    failing_since: Option<Moment>,
}

impl RunV1 {
    fn into_run(self) -> Run {
        let mut run = self.run;
        run.good.extend(self.answered.map(|at| (Signal::Healthz, at)));
        run.bad.extend(self.failing_since.map(|since| (Signal::Healthz, since)));
        run
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RunningV1 {
    source: Option<Source>,
    digest: Option<Digest>,
    healthz: Option<HealthzTarget>,
    shadowed: Vec<String>,
    effective: std::sync::Arc<serde_json::Value>,
    runtime: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct TrialV1 {
    exits: u32,
    banked: std::time::Duration,
    excused: bool,
}

impl RecordsV1 {
    /// In today's form; the content of what runs is known.
    fn into_records(self, active: Option<&Source>, digest: Option<&Digest>) -> Records {
        let mut records = self.ledger.into_records(self.assigned, self.last_known_good);
        for version in records.versions_mut().filter(|version| Some(&version.source) == active) {
            version.digest = digest.cloned();
        }
        records
    }
}

/// Reads the document.
pub(super) fn decode(text: &str) -> Result<State, serde_json::Error> {
    let Document { state: from } = serde_json::from_str(text)?;
    let (active, digest) = (from.active.as_ref(), from.in_force.digest.as_ref());
    let dirty = from.unsaved.is_some();
    let saved = from.saved.into_records(active, digest);
    let mut current = from.unsaved.map_or_else(|| saved.clone(), |records| records.into_records(active, digest));
    current.accepted = from.judged;
    if let (Some(attempt), Some(trial)) = (current.phase.attempt_mut(), from.trial) {
        (attempt.exits, attempt.earned, attempt.suspended) = (trial.exits, trial.banked, trial.excused);
        attempt.pods = from.pods_before;
        attempt.runtime.clone_from(&from.runtime);
        attempt.runtime_answered = from.runtime_answered;
    }
    let version = from.in_force.source.map(|source| Version { source, digest: from.in_force.digest.clone() });
    let running = RunningConfig {
        version,
        digest: from.in_force.digest,
        overrides: FlagOverrides::default(),
        path: String::new(),
        healthz: from.in_force.healthz,
        shadowed: from.in_force.shadowed,
        effective: from.in_force.effective,
        ignores_eviction: false,
        runtime: from.in_force.runtime,
        signed: None,
    };
    let process = match from.kubelet {
        KubeletV1::Running(run) => Process::resumed(run.into_run(), running, from.kubelet_id, from.starts, from.began),
        KubeletV1::Other => Process::default(),
    };
    Ok(State {
        writer: RecordWriter::resumed(current, saved, dirty),
        sync: ConfigSync::resumed(from.node_name, from.wanted, from.sync_error),
        process,
        health: Health::resumed(from.node, from.lease, from.environment, from.runtime, from.suspended, from.now),
        trial: Trial::resumed(from.recovered, from.words),
        reload: from.reload,
        kubelet_version: from.version,
        self_tested: from.tested,
        now: from.now,
        ..State::default()
    })
}
