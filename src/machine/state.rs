//! Everything the machine knows, and what is read off it.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::evidence::{Environment, NodeReadiness, Suspension};
use super::limits;
use super::model::{KubeletId, Moment, Rendered, later};
use super::record::Records;
use super::settings::Settings;
use super::state_parts::{
    Change, ConfigMapState, ExitForRestart, Kubelet, PendingFailure, Reload, RunningConfig, Trial, TrialEnd,
};
use kubelet_config::assignment::Assignment;
use kubelet_config::digest::Digest;
use kubelet_config::duration;
use kubelet_config::source::Source;
use kubelet_config::status::SyncError;

/// Everything the machine knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct State {
    /// The operator's choices.
    #[serde(skip)]
    pub settings: Settings,
    /// The records as they are on disk.
    pub saved: Records,
    /// The version whose start is spread, and when it was first seen.
    pub(super) first_seen: Option<(Source, Moment)>,
    /// Records that could not be written yet.
    pub unsaved: Option<Records>,
    /// What the Node asks for.
    #[serde(rename = "wanted")]
    pub assignment: Assignment,
    /// Its name, once known: the spread is computed from it.
    pub node_name: String,
    /// The assigned ConfigMap.
    #[serde(rename = "map")]
    pub config_map: ConfigMapState,
    /// The kubelet process.
    pub kubelet: Kubelet,
    /// The kubelet binary.
    pub kubelet_id: KubeletId,
    /// What the next start will run.
    pub target: Option<Source>,
    /// What runs, or ran last.
    pub active: Option<Source>,
    /// What the process was given.
    #[serde(rename = "in_force")]
    pub running: RunningConfig,
    /// What the next start was rendered to.
    #[serde(skip)]
    pub launching: Option<(u64, Rendered)>,
    /// The change under way.
    #[serde(skip)]
    pub change: Option<Change>,
    /// The trial under way; its source is `active`.
    pub trial: Option<Trial>,
    /// How the last trial ended.
    pub trial_end: TrialEnd,
    /// A failure that waits for an observation of the node.
    #[serde(skip)]
    pub pending_failure: Option<PendingFailure>,
    /// Why nothing is judged for now.
    pub suspended: Option<Suspension>,
    /// Last known good has been healthy: a version that the control test cleared may be tried again.
    pub recovered: bool,
    /// The pin was switched to; if it did not come up it is not tried for ever.
    pub pin_tried: bool,
    /// The Node's condition Ready, as last seen.
    pub node: Option<NodeReadiness>,
    /// The last observation of the node, and when it was made.
    pub environment: Option<(Environment, Moment)>,
    /// The kubelet's last lines, when they were last asked for; without secrets.
    #[serde(rename = "words")]
    pub log_tail: Vec<String>,
    /// Error of the configuration in the status, with the reason.
    pub error: Option<(String, String)>,
    /// Error of synchronisation, which hides `error` while it lasts.
    pub sync_error: Option<(SyncError, String)>,
    /// The assigned checkpoint is damaged and must be downloaded again.
    #[serde(rename = "damaged")]
    pub checkpoint_damaged: bool,
    /// Verdicts known good: content and binary.
    #[serde(rename = "judged")]
    pub accepted_digests: Vec<(Digest, KubeletId)>,
    /// A content that could not be judged and is to be tried all the same: asking again at its
    /// start would only lengthen the outage.
    #[serde(rename = "waived")]
    pub tried_without_verdict: Option<(Digest, KubeletId)>,
    /// Version of the kubelet binary.
    pub version: Option<String>,
    /// Kubelet starts so far.
    pub starts: u32,
    /// Unasked exits in a row.
    pub crashes: u32,
    /// Our own failures in a row, and when to try again.
    pub retry: Option<(u32, Moment)>,
    /// When the version that is being applied was first seen.
    pub applying_since: Option<Moment>,
    /// We are told to leave.
    pub leaving: bool,
    /// The next ping to systemd is due.
    #[serde(rename = "beat_at")]
    pub(super) ping_at: Option<Moment>,
    /// When this supervisor, or the one whose place it took, began.
    pub(super) began: Moment,
    /// The next start follows a crash too early to leave it to systemd.
    pub(super) in_place: bool,
    /// How far the exit for a restart by systemd is.
    #[serde(rename = "ending")]
    pub(super) exit_stage: ExitForRestart,
    /// The reload that was asked for, if any.
    pub reload: Reload,
    /// A record was unreadable at boot. It is not overwritten as long as what it names is unknown, and
    /// no checkpoint is removed until the next start.
    pub(super) keep_all: bool,
    /// Last known good could not be run, so that local runs.
    #[serde(rename = "stranded")]
    pub(super) lkg_unusable: bool,
    /// The Lease's renew time as last seen.
    pub(super) lease: Option<String>,
    /// The runtime's socket, of the configuration before the change.
    pub(super) runtime: Option<String>,
    /// It has answered.
    pub(super) runtime_answered: bool,
    /// Uids of the pods that ran before the change.
    pub(super) pods_before: BTreeSet<String>,
    /// Those of them that admission turned away.
    pub(super) lost_pods: Vec<String>,
    #[serde(rename = "tested")]
    pub(super) self_tested: Option<KubeletId>,
    pub(super) ticket: u64,
    pub(super) now: Moment,
}

impl Default for State {
    fn default() -> Self {
        Self::new(Settings::default())
    }
}

impl State {
    /// A machine that waits for `Input::Boot` or `Input::Resume`.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            saved: Records::default(),
            first_seen: None,
            unsaved: None,
            assignment: Assignment::Unknown,
            node_name: String::new(),
            config_map: ConfigMapState::Pending,
            kubelet: Kubelet::Down,
            kubelet_id: KubeletId::default(),
            target: None,
            active: None,
            running: RunningConfig::default(),
            launching: None,
            change: None,
            trial: None,
            trial_end: TrialEnd::None,
            pending_failure: None,
            suspended: None,
            recovered: false,
            pin_tried: false,
            node: None,
            environment: None,
            log_tail: Vec::new(),
            error: None,
            sync_error: None,
            checkpoint_damaged: false,
            accepted_digests: Vec::new(),
            tried_without_verdict: None,
            version: None,
            starts: 0,
            crashes: 0,
            retry: None,
            applying_since: None,
            leaving: false,
            ping_at: None,
            began: Moment::default(),
            in_place: false,
            exit_stage: ExitForRestart::None,
            reload: Reload::default(),
            keep_all: false,
            lkg_unusable: false,
            lease: None,
            runtime: None,
            runtime_answered: false,
            pods_before: BTreeSet::new(),
            lost_pods: Vec::new(),
            self_tested: None,
            ticket: 0,
            now: Moment::default(),
        }
    }

    pub(super) fn next_ticket(&mut self) -> u64 {
        self.ticket += 1;
        self.ticket
    }

    pub(super) fn back_off(&mut self) {
        let failures = self.retry.map_or(0, |(failures, _)| failures + 1);
        let pause = duration::backoff(limits::RETRY_FIRST, limits::RETRY_MAX, failures);
        self.retry = Some((failures, later(self.now, pause)));
    }

    /// The configuration that was proven: what we fall back to.
    pub(super) fn fallback(&self) -> Option<Source> {
        self.saved.last_known_good.clone()
    }

    /// The newest records, durable or not.
    pub(super) fn records(&self) -> &Records {
        self.unsaved.as_ref().unwrap_or(&self.saved)
    }

    /// True while a trial's clock runs.
    #[must_use]
    pub(crate) fn is_counting(&self) -> bool {
        self.trial.is_some() && matches!(&self.kubelet, Kubelet::Running(run) if run.healthy_since.is_some())
    }

    /// True once the kubelet said READY=1 and runs.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        matches!(&self.kubelet, Kubelet::Running(run) if run.ready)
    }

    /// The kubelet's process id, while there is one.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        match &self.kubelet {
            Kubelet::Running(run) => Some(run.pid),
            _ => None,
        }
    }

    /// The moment of the latest step.
    #[must_use]
    pub fn now(&self) -> Moment {
        self.now
    }
}
