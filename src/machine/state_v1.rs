//! `state.json` of format 1. Read once, at the first start after an upgrade; never written.

use std::collections::BTreeSet;

use serde::Deserialize;

use super::evidence::{Baseline, Failure, NodeReadiness};
use super::model::KubeletId;
use super::records::{Attempt, BadVersion, ConfirmationWait, Phase, Pin, Records, Version};
use kubelet_config::digest::Digest;
use kubelet_config::source::Source;

/// The whole file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StateV1 {
    pub(super) attempt: Option<AttemptV1>,
    bad: Vec<BadVersion>,
    judged: Vec<(Digest, KubeletId)>,
    blame: Option<ControlTestV1>,
    pardon: Option<RetryLaterV1>,
    pin: Option<PinV1>,
    frozen: bool,
    proven: Vec<Source>,
    retried: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct AttemptV1 {
    source: Source,
    tries: u32,
    #[serde(default)]
    baseline: Option<Baseline>,
    #[serde(default)]
    confirm_within: Option<u64>,
    #[serde(default)]
    confirm: Option<ConfirmationWait>,
    #[serde(default)]
    confirmed: bool,
    #[serde(default)]
    carried: Option<SnapshotV1>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct SnapshotV1 {
    exits: u32,
    pods: BTreeSet<String>,
    runtime: Option<String>,
    runtime_answered: bool,
    node: Option<NodeReadiness>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ControlTestV1 {
    source: Source,
    failure: Failure,
    baseline: Option<Baseline>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RetryLaterV1 {
    source: Source,
    times: u32,
    why: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
struct PinV1 {
    source: Option<Source>,
}

impl StateV1 {
    /// The same in today's form; `assigned` and `last_known_good` are native's records.
    pub(super) fn into_records(self, assigned: Option<Source>, last_known_good: Option<Source>) -> Records {
        let phase = match (&self.attempt, self.blame, self.pardon) {
            (Some(attempt), ..) if assigned.as_ref() == Some(&attempt.source) && assigned != last_known_good => {
                attempt.clone().into_phase()
            }
            (_, Some(test), _) if assigned.as_ref() == Some(&test.source) => {
                let attempt = Attempt { baseline: test.baseline, ..Attempt::new(Version::named(test.source)) };
                Phase::ControlTest(attempt, test.failure)
            }
            (_, _, Some(later)) if assigned.as_ref() == Some(&later.source) => {
                let clearances = later.times.saturating_add(1);
                let attempt = Attempt { clearances, ..Attempt::new(Version::named(later.source)) };
                Phase::RetryLater(attempt, later.why)
            }
            _ => match &assigned {
                Some(source) if assigned != last_known_good && !self.bad.iter().any(|bad| bad.source == *source) => {
                    Phase::Trial(Attempt::new(Version::named(source.clone())))
                }
                _ => Phase::Settled,
            },
        };
        Records {
            assigned: assigned.map(Version::named),
            last_known_good: last_known_good.map(Version::named),
            phase,
            bad: self.bad,
            accepted: self.judged,
            proven: self.proven.into_iter().map(Version::named).collect(),
            pin: self.pin.map(|pin| Pin { version: pin.source.map(Version::named) }),
            frozen: self.frozen,
            retried: self.retried,
            ..Records::default()
        }
    }
}

impl AttemptV1 {
    fn into_phase(self) -> Phase {
        let carried = self.carried.unwrap_or_default();
        let attempt = Attempt {
            tries: self.tries,
            exits: carried.exits,
            baseline: self.baseline,
            confirm_within: self.confirm_within,
            confirmed: self.confirmed,
            pods: carried.pods,
            runtime: carried.runtime,
            runtime_answered: carried.runtime_answered,
            node: carried.node,
            ..Attempt::new(Version::named(self.source))
        };
        match self.confirm.filter(|_| !self.confirmed) {
            Some(wait) => Phase::AwaitingConfirmation(attempt, wait),
            None => Phase::Trial(attempt),
        }
    }
}
