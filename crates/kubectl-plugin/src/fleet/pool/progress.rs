//! How far a pool is, for somebody who waits for it: in numbers, in a line, and whether there is something to wait for.

use std::time::Duration;

use serde_json::{Value, json};

use super::edit::revision_of;
use super::revision::APPROVED_REVISION;
use super::types::{KubeletConfigPool, KubeletConfigPoolStatus, OnFailure, PoolCondition, Proof};

/// Where a pool is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Not yet seen by whoever carries it out, or on its way.
    OnItsWay,
    /// Stalled, and nodes go back to the current revision.
    GoingBack,
    Complete,
    /// It goes no further by itself: reason and message.
    Stalled(String, String),
    Paused,
    /// The canaries of this revision are done.
    AwaitingApproval(String),
}

pub(crate) fn condition<'a>(status: &'a KubeletConfigPoolStatus, type_: &str) -> Option<&'a PoolCondition> {
    status.conditions.iter().find(|condition| condition.type_ == type_)
}

/// Where it is. What was written a moment ago and is not in the conditions yet counts: the approval, and a bad revision that is
/// one no more.
pub(crate) fn standing(pool: &KubeletConfigPool) -> Standing {
    let Some(status) = pool.status.as_ref() else { return Standing::OnItsWay };
    let Some(ready) = condition(status, "Ready") else { return Standing::OnItsWay };
    if Some(status.observed_generation) != pool.metadata.generation {
        return Standing::OnItsWay;
    }
    let update = status.update_revision.clone().unwrap_or_default();
    let is_stalled = condition(status, "Stalled").is_some_and(|stalled| stalled.status == "True");
    let is_bad = status.bad_revisions.iter().any(|bad| bad.revision == update);
    let goes_back = pool.spec.rollout.on_failure == OnFailure::Revert && status.current_revision.is_some();
    match ready.reason.as_str() {
        _ if ready.status == "True" => Standing::Complete,
        BAD_REVISION if !is_bad => Standing::OnItsWay,
        // Nodes have the bad revision still, or are on their way from it.
        BAD_REVISION if goes_back && status.updated + status.updating > 0 => Standing::GoingBack,
        _ if is_stalled => Standing::Stalled(ready.reason.clone(), ready.message.clone()),
        "Paused" => Standing::Paused,
        "AwaitingApproval" if approved(pool) != Some(&update) => Standing::AwaitingApproval(update),
        _ => Standing::OnItsWay,
    }
}

/// The reason of the condition Ready if the update revision is bad.
pub(crate) const BAD_REVISION: &str = "FailuresExceeded";

fn approved(pool: &KubeletConfigPool) -> Option<&String> {
    pool.metadata.annotations.as_ref()?.get(APPROVED_REVISION)
}

/// What helps a pool that is stalled.
pub(crate) fn advice(name: &str, reason: &str) -> String {
    let rollout = "kubectl kubelet-config rollout";
    match reason {
        BAD_REVISION => format!(
            "`{rollout} undo {name}` goes back to the previous revision, `{rollout} retry {name}` tries this one again once the \
             cause is mended; or roll out a corrected ConfigMap"
        ),
        "ProgressDeadlineExceeded" => format!(
            "it goes on once what it waits for is mended; `{rollout} retry {name}` forgets nodes that failed and are gone, `{rollout} undo {name}` \
             goes back to the previous revision"
        ),
        "Degraded" => format!(
            "mend what those nodes name, or take them out of the pool, then `kubectl kubelet-config retry NODE`; \
             `{rollout} undo {name}` goes back to the previous revision"
        ),
        "PreflightRefused" => format!(
            "mend what those nodes name, or roll out a corrected ConfigMap, or go back by `{rollout} undo {name}`"
        ),
        "Conflict" => {
            "change spec.nodeSelector of one of the pools, or delete one: nodes keep what they have".to_owned()
        }
        _ => format!(
            "`kubectl edit kcpool {name}` mends the spec, `{rollout} undo {name}` goes back to the previous revision"
        ),
    }
}

/// Nodes by what can be said of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) total: usize,
    /// They have it; or, on the way back, what all had.
    pub(crate) done: usize,
    pub(crate) in_flight: usize,
    pub(crate) bad: usize,
}

impl Counts {
    pub(crate) fn new(pool: &KubeletConfigPool) -> Self {
        let status = pool.status.clone().unwrap_or_default();
        let count = |count: u32| usize::try_from(count).unwrap_or_default();
        let [total, updated, in_flight, bad] =
            [status.nodes, status.updated, status.updating, status.failed].map(count);
        let done = match (standing(pool), pool.spec.rollout.proof) {
            (Standing::GoingBack, _) => total.saturating_sub(updated + in_flight),
            (_, Proof::Proven) => count(status.proven),
            (_, Proof::Active) => updated.saturating_sub(in_flight + bad),
        };
        Self { total, done, in_flight, bad }
    }

    /// Nodes that are still to be done.
    pub(crate) fn left(&self) -> usize {
        self.total.saturating_sub(self.done + self.bad)
    }

    /// `3/10 done, 2 in flight`, and what is wrong.
    pub(crate) fn summary(&self) -> String {
        let Self { total, done, in_flight, bad } = *self;
        let parts = [(in_flight, "in flight"), (bad, "bad")].into_iter().filter(|(number, _)| *number > 0);
        let parts: Vec<String> = parts.map(|(number, what)| format!(", {number} {what}")).collect();
        format!("{done}/{total} done{}", parts.concat())
    }

    /// `[#####>>....]`: done, in flight, bad, to come.
    pub(crate) fn bar(&self, width: usize) -> String {
        let cells = |nodes: usize| (nodes * width / self.total.max(1)).min(width);
        let done = cells(self.done);
        let flight = cells(self.done + self.in_flight).saturating_sub(done);
        let bad = cells(self.done + self.in_flight + self.bad).saturating_sub(done + flight);
        let bad = bad.max(usize::from(self.bad > 0)).min(width.saturating_sub(done + flight));
        let rest = width.saturating_sub(done + flight + bad);
        format!("[{}{}{}{}]", "#".repeat(done), ">".repeat(flight), "!".repeat(bad), ".".repeat(rest))
    }
}

/// The reason of the pool's condition Ready, as far as it speaks of this spec; empty before that.
pub(crate) fn phase(pool: &KubeletConfigPool) -> &str {
    if standing(pool) == Standing::GoingBack {
        return "going back";
    }
    let status = pool.status.as_ref().filter(|status| Some(status.observed_generation) == pool.metadata.generation);
    status.and_then(|status| condition(status, "Ready")).map_or("", |ready| ready.reason.as_str())
}

/// The time left, if it goes on as since `done` nodes were done.
pub(crate) fn time_left(passed: Duration, done: usize, left: usize) -> Option<Duration> {
    let (done, left) = (u32::try_from(done).ok()?, u32::try_from(left).ok()?);
    (done > 0 && left > 0).then(|| passed.saturating_mul(left) / done)
}

/// `2h05m`, `4m10s`, `9s`.
pub(crate) fn duration(time: Duration) -> String {
    let seconds = time.as_secs();
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) => format!("{seconds}s"),
        (0, minutes, seconds) => format!("{minutes}m{seconds:02}s"),
        (hours, minutes, _) => format!("{hours}h{minutes:02}m"),
    }
}

/// Whether the pool's update revision is marked bad, or Nodes failed with it; that revision, and a patch of the status that forgets
/// that.
pub(crate) fn without_failures(pool: &str, object: &KubeletConfigPool, namespace: &str) -> Option<(String, Value)> {
    let update = revision_of(pool, &object.spec, namespace).ok()?;
    let status = object.status.as_ref()?;
    let others: Vec<_> = status.bad_revisions.iter().filter(|bad| bad.revision != update).collect();
    let has_failures = status.rollout.iter().any(|it| it.revision == update && !it.failures.is_empty());
    let patch = json!({"status": {"badRevisions": others, "rollout": null}});
    (others.len() < status.bad_revisions.len() || has_failures).then_some((update, patch))
}

#[cfg(test)]
mod tests;
