//! The durable record, `supervisor/state.json`: one file, replaced whole.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::evidence::{Baseline, FailedRun, Failure, Signal};
use super::limits;
use super::model::{KubeletId, Moment, RunId};
use kubelet_config::digest::Digest;
use kubelet_config::hazard::HazardClass;
use kubelet_config::policy::Signed;
use kubelet_config::source::Source;

pub use super::reset::Reset;
pub use super::running::{RunningConfig, Started};
pub use super::stored::{RecordFile, Stored};
pub use super::versions::{BadReason, BadVersion, BadVersions, Version};

/// The format of `state.json`. A file with another number is left alone.
pub(super) const VERSION: u32 = 2;

/// All that must outlive the supervisor; of versions, `None` is the local configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Records {
    /// The assigned version that was accepted or refused last.
    pub assigned: Option<Version>,
    /// What was proven last.
    pub last_known_good: Option<Version>,
    /// What the assigned version is going through.
    pub phase: Phase,
    /// What was good when this node was last proven, and before each version that was tried since.
    pub good_signals: Baseline,
    /// Versions that failed or were refused, oldest first, bounded.
    pub bad: BadVersions,
    /// Contents that a kubelet binary found valid.
    pub accepted: Vec<(Digest, KubeletId)>,
    /// Versions that were last known good before, newest last.
    pub proven: Vec<Version>,
    /// An operator's hold on what runs.
    pub pin: Option<Pin>,
    /// No change is taken up.
    pub frozen: bool,
    /// The Node's annotation `kubelet-supervisor.io/retry` that was obeyed last.
    pub retried: Option<String>,
    /// The highest sequence that was proven of each pool, of signed versions.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub sequences: BTreeMap<String, u64>,
    /// The bytes of each ConfigMap's version that is named here, by `UID/RESOURCEVERSION`: they never change.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub payloads: BTreeMap<String, Digest>,
    /// Hazards of the local files, and what an operator accepted of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local_hazards: Option<LocalHazards>,
    /// The way back from a reset, until the local files are proven.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reset: Option<Reset>,
    /// What the latest kubelet was started with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started: Option<Started>,
}

impl Records {
    /// All versions that are named: proven before, before a reset, assigned, last known good, pinned, tried.
    pub(super) fn versions(&self) -> impl DoubleEndedIterator<Item = &Version> {
        let pinned = self.pin.as_ref().and_then(|pin| pin.version.as_ref());
        let tried = self.phase.attempt().map(|attempt| &attempt.version);
        let before = self.reset.as_ref().map(|reset| &reset.before);
        let all = self.proven.iter().chain(before).chain(&self.assigned).chain(&self.last_known_good);
        all.chain(pinned).chain(tried)
    }

    /// The same, to be changed.
    pub(super) fn versions_mut(&mut self) -> impl Iterator<Item = &mut Version> {
        let pinned = self.pin.as_mut().and_then(|pin| pin.version.as_mut());
        let tried = self.phase.attempt_mut().map(|attempt| &mut attempt.version);
        let before = self.reset.as_mut().map(|reset| &mut reset.before);
        let all = self.proven.iter_mut().chain(before).chain(&mut self.assigned).chain(&mut self.last_known_good);
        all.chain(pinned).chain(tried)
    }

    /// One verdict a content, of the latest binary. Two contents matter at a time; a few more serve a toggling administrator.
    pub(super) fn note_accepted(&mut self, digest: &Digest, kubelet: &KubeletId) {
        self.accepted.retain(|(known, _)| known != digest);
        let needed = |digest: &Digest| self.versions().any(|version| version.has_content(digest));
        let spare = self.accepted.iter().position(|(digest, _)| !needed(digest));
        if let Some(spare) = spare.filter(|_| self.accepted.len() >= limits::ACCEPTED_KEPT) {
            self.accepted.remove(spare);
        }
        self.accepted.push((digest.clone(), kubelet.clone()));
    }

    /// This version's content is known now.
    pub(super) fn note_content(&mut self, version: &Version, digest: &Digest) {
        for known in self.versions_mut().filter(|known| **known == *version) {
            known.digest = Some(digest.clone());
        }
        // Under another name it is last known good already.
        let proven = self.last_known_good.as_ref().is_some_and(|proven| proven.has_content(digest));
        if proven && self.phase.attempt().is_some_and(|attempt| attempt.version.has_content(digest)) {
            self.phase = Phase::Settled;
        }
    }

    /// JSON, pretty: people look at it.
    #[must_use]
    pub fn encode(&self) -> String {
        #[derive(Serialize)]
        struct File<'a> {
            version: u32,
            #[serde(flatten)]
            records: &'a Records,
        }
        serde_json::to_string_pretty(&File { version: VERSION, records: self }).unwrap_or_default()
    }
}

/// What the assigned version is going through.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Phase {
    /// Nothing: it is last known good, or bad, or nothing is assigned.
    #[default]
    Settled,
    /// It has to prove itself.
    Trial(Attempt),
    /// It did, and somebody has to confirm it.
    AwaitingConfirmation(Attempt, ConfirmationWait),
    /// It failed. Last known good runs: does it fail alike?
    ControlTest(Attempt, Failure),
    /// It did, so the version was not to blame, and is tried again later.
    RetryLater(Attempt, String),
}

impl Phase {
    /// The evidence on the assigned version, while it is not settled.
    #[must_use]
    pub fn attempt(&self) -> Option<&Attempt> {
        match self {
            Self::Settled => None,
            Self::Trial(attempt)
            | Self::AwaitingConfirmation(attempt, _)
            | Self::ControlTest(attempt, _)
            | Self::RetryLater(attempt, _) => Some(attempt),
        }
    }

    /// The same, to be changed.
    pub fn attempt_mut(&mut self) -> Option<&mut Attempt> {
        match self {
            Self::Settled => None,
            Self::Trial(attempt)
            | Self::AwaitingConfirmation(attempt, _)
            | Self::ControlTest(attempt, _)
            | Self::RetryLater(attempt, _) => Some(attempt),
        }
    }

    /// The evidence on a version that is to run: it is on trial, or waits to be confirmed.
    #[must_use]
    pub fn trial(&self) -> Option<&Attempt> {
        self.attempt().filter(|_| matches!(self, Self::Trial(_) | Self::AwaitingConfirmation(..)))
    }
}

/// The evidence on a version that has yet to prove itself. It lives as long as the version is tried, not as long as a
/// kubelet process or a supervisor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Attempt {
    /// What is tried.
    pub version: Version,
    /// Supervisor starts that ran it without proof.
    pub tries: u32,
    /// Exits of the kubelet since it was started on trial; two fail it.
    pub exits: u32,
    /// What was good right before it: it fails if that is bad for too long. `None`: nobody could tell.
    pub baseline: Option<Baseline>,
    /// The API server saw the node before an earlier try: it is not proven before that is so again.
    pub contact_expected: bool,
    /// In this boot the kubelet was in contact for so long that a later loss is not the version's doing. Empty: in none.
    pub contact_boot: String,
    /// How often healthz or the pings broke its health, each time for less than they may be bad.
    pub breaks: u32,
    /// Health earned before the trial's clock last stopped.
    pub earned: Duration,
    /// The clock was stopped by a suspension: what was earned before it counts.
    pub suspended: bool,
    /// What was seen of the kubelet that runs it, for the worker that goes on with that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// How often the control test cleared it.
    pub clearances: u32,
    /// It was cleared of a runtime that went away: that is no new cause.
    pub runtime_tested: bool,
    /// How it failed last.
    pub failed: FailedRun,
    /// Seconds within which somebody must confirm it once it is proven; `None`: nobody need.
    pub confirm_within: Option<u64>,
    /// The same as an operator had it during the trial: so many seconds from its end.
    pub extended: Option<u64>,
    /// Somebody confirmed it.
    pub confirmed: bool,
    /// Its ConfigMap says that pods may be turned away.
    pub accepts_lost_pods: bool,
    /// Uids of the pods that ran before it.
    pub pods: BTreeSet<String>,
    /// The container runtime's socket before it.
    pub runtime: Option<String>,
    /// That has answered.
    pub runtime_answered: bool,
    /// Who signed it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signed: Option<Signed>,
}

/// What a verdict on a kubelet needs to go on with another worker. All times are so long that nothing grows without a bound, and
/// what did not change need not be written: what was seen to last, not since when. So what nobody saw is neither good nor bad.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Progress {
    /// The kubelet. Of another one this says nothing.
    pub run: RunId,
    /// Health earned in all.
    pub earned: Duration,
    /// It has been coming up for so long; `None`: it was up.
    pub starting: Option<Duration>,
    /// The signals that are bad, and for how long.
    pub bad: BTreeMap<Signal, Duration>,
    /// The API server answered.
    pub heard: bool,
    /// The Node's heartbeat before its start; empty once there was another.
    pub heartbeat: String,
}

impl Attempt {
    /// Nothing is known of it yet.
    #[must_use]
    pub fn new(version: Version) -> Self {
        Self { version, ..Self::default() }
    }

    /// How long last known good must be healthy before it is tried again.
    #[must_use]
    pub(super) fn retry_wait(&self) -> Duration {
        limits::RETRY_LATER.after(self.clearances.saturating_sub(1))
    }

    /// Seconds within which somebody must confirm it after its trial.
    pub(super) fn confirm_seconds(&self) -> u64 {
        self.extended.or(self.confirm_within).unwrap_or_default()
    }

    /// True if somebody still has to confirm it.
    #[must_use]
    pub(super) fn needs_confirmation(&self) -> bool {
        self.confirm_within.is_some() && !self.confirmed
    }
}

/// Hazards of one content of the local files, which have no annotation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LocalHazards {
    /// The version that was refused.
    pub source: Source,
    /// Its content, for which alone the acknowledgement counts.
    pub digest: Digest,
    /// What it is refused for.
    pub refused: BTreeSet<HazardClass>,
    /// What an operator accepted.
    pub acknowledged: BTreeSet<HazardClass>,
}

/// An operator's hold on what runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Pin {
    /// What is to run; `None` is the local configuration.
    pub version: Option<Version>,
}

/// A wait for a confirmation. The boot clock decides; across a reboot it goes on with what was left when it was last
/// written down.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConfirmationWait {
    /// Tells one boot from another; empty: the clock stands still.
    pub boot_id: String,
    /// Ends then, seconds of that boot's clock.
    pub until: u64,
    /// Seconds left when this was written.
    pub left: u64,
    /// The wall clock at `until`, seconds since 1970, as it went when this was written: for people alone. 0: unknown.
    #[serde(default)]
    pub wall: u64,
}

impl ConfirmationWait {
    /// So many seconds from now.
    #[must_use]
    pub fn within(left: u64, now: Moment, boot_id: String) -> Self {
        let until = now.boot.as_secs().saturating_add(left);
        Self { boot_id, until, left, wall: now.wall_seconds().saturating_add(left) }
    }

    /// The clock stands still: what is left is the same in every boot.
    pub(super) fn stop(&mut self, now: Moment, boot_id: &str) {
        *self = Self { boot_id: String::new(), until: 0, left: self.left_at(now, boot_id), wall: 0 };
    }

    /// Seconds left.
    #[must_use]
    pub fn left_at(&self, now: Moment, boot_id: &str) -> u64 {
        if self.boot_id == boot_id { self.until.saturating_sub(now.boot.as_secs()) } else { self.left }
    }
}
