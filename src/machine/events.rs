//! Events about the own Node; native's texts where native had them.

use std::time::Duration;

use super::evidence::Suspension;
use super::model::{Damage, LocalFilesDifference};
use kubelet_config::duration::GoDuration;
use kubelet_config::named;
use kubelet_config::source::Source;
use kubelet_config::status::{cut, name};

named! {
    /// An event's `reason`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum EventReason by as_str {
        /// The kubelet is restarted for another configuration (native's).
        Changed = "KubeletConfigChanged",
        /// A new source with equal content.
        Adopted = "KubeletConfigAdopted",
        /// Refused before it ran.
        Rejected = "KubeletConfigRejected",
        /// Failed its trial.
        RolledBack = "KubeletConfigRolledBack",
        /// Nothing is judged for now.
        TrialSuspended = "KubeletConfigTrialSuspended",
        /// The control test cleared it.
        NotBlamed = "KubeletConfigNotBlamed",
        /// Healthy, and to be confirmed by somebody.
        AwaitsConfirmation = "KubeletConfigAwaitsConfirmation",
        /// Passed its trial.
        Proven = "KubeletConfigProven",
        /// An operator has it tried again.
        Retried = "KubeletConfigRetried",
        /// An operator holds what runs.
        Pinned = "KubeletConfigPinned",
        /// The assignment is followed again.
        Unpinned = "KubeletConfigUnpinned",
        /// No change is taken up.
        Frozen = "KubeletConfigFrozen",
        /// Changes are taken up again.
        Thawed = "KubeletConfigThawed",
        /// Somebody confirmed it.
        Confirmed = "KubeletConfigConfirmed",
        /// The store was changed behind the supervisor.
        Drift = "KubeletConfigDrift",
        /// The local files say something else than what runs.
        LocalFiles = "KubeletConfigLocalFiles",
        /// The kubelet hung, and is restarted with what it ran.
        Hung = "KubeletHung",
        /// An accepted change waits, and not only for its turn.
        Waiting = "KubeletConfigWaiting",
        /// The node's policy forbids what runs.
        Forbidden = "KubeletConfigForbidden",
        /// A worker begins after another one.
        WorkerReplaced = "WorkerReplaced",
    }
}

/// A core/v1 Event about the own Node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// `reason`.
    pub reason: EventReason,
    /// `type`: Warning instead of Normal.
    pub warning: bool,
    /// `message`, at most 1024 bytes.
    pub message: String,
    /// The version it is about.
    pub source: Option<Source>,
    /// The kubelet's last lines, for the history.
    pub log_tail: Vec<String>,
    /// For the history alone, not for the API server.
    pub local: bool,
}

pub(super) fn event(reason: EventReason, warning: bool, source: Option<&Source>, message: String) -> Event {
    Event { reason, warning, message: cut(message), source: source.cloned(), log_tail: Vec::new(), local: false }
}

/// Native's only event (configsync.go:38-45), sent when a restart really happens for a change.
#[must_use]
pub fn changed(source: Option<&Source>) -> Event {
    let to = source.map_or_else(|| "local config".to_owned(), Source::to_string);
    event(EventReason::Changed, false, source, format!("Kubelet restarting to use {to}"))
}

/// Something in the store is not as it was written.
#[must_use]
pub fn drift(damage: &Damage, downloads: bool) -> Event {
    let done = match &damage.mended {
        Ok(()) => "written again".to_owned(),
        Err(_) if downloads => "it is downloaded again".to_owned(),
        Err(why) => format!("not put right: {why}"),
    };
    let message = format!("Changed behind the supervisor, {}: {done}", damage.what);
    event(EventReason::Drift, true, damage.source.as_ref(), message)
}

/// The node's policy forbids what runs, and what becomes of that. The reason goes first: messages are cut at their end.
#[must_use]
pub(super) fn forbidden(source: Option<&Source>, why: &str, then: &str) -> Event {
    let message = format!("Forbidden, {why}: {} {then}", name(source));
    event(EventReason::Forbidden, true, source, message)
}

/// A worker begins after another one; `None`: that was replaced on request. The kubelet goes on.
#[must_use]
pub(crate) fn worker_replaced(why: Option<&str>, generation: u64) -> Event {
    let message = match why {
        Some(why) => format!("The supervisor's worker ended, {why}: worker {generation} begins"),
        None => format!("The supervisor's worker was replaced on request: worker {generation} begins"),
    };
    event(EventReason::WorkerReplaced, why.is_some(), None, message)
}

/// An accepted change waits; `until`: and then no longer. The reason goes first: messages are cut at their end.
#[must_use]
pub(crate) fn waiting(source: Option<&Source>, why: &str, until: Option<&str>) -> Event {
    let name = name(source);
    let message = match until {
        Some(until) => format!("Waits until {until} at the most, {why}: {name}"),
        None => format!("Waits while {why}: {name}"),
    };
    event(EventReason::Waiting, false, source, message)
}

/// The local files say something else than what runs.
#[must_use]
pub fn local_files_differ(source: Option<&Source>, difference: &LocalFilesDifference) -> Event {
    let then = match difference {
        LocalFilesDifference::Fields(_) => "they are taken up at the next restart of the kubelet's unit",
        LocalFilesDifference::Unusable(_) => "mend them before the kubelet's unit is restarted",
    };
    event(EventReason::LocalFiles, true, source, format!("{difference}; {then}"))
}

/// A new source with equal content.
#[must_use]
pub fn adopted(source: &Source) -> Event {
    event(EventReason::Adopted, false, Some(source), format!("Equal content, no restart: {source}"))
}

/// The kubelet, or we, refused it.
#[must_use]
pub fn rejected(source: &Source, why: &str) -> Event {
    event(EventReason::Rejected, true, Some(source), format!("Rejected {source}: {why}"))
}

/// A ConfigMap that is not looked at.
#[must_use]
pub(super) fn rejected_unseen(why: &str) -> Event {
    event(EventReason::Rejected, true, None, format!("Rejected ConfigMap {why}"))
}

/// Other bytes under a known version. What stands under it is not rejected.
#[must_use]
pub(super) fn rejected_bytes(source: &Source, why: &str) -> Event {
    event(EventReason::Rejected, true, Some(source), format!("Rejected, {why}"))
}

/// A trial failed. The reason goes first: messages are cut at their end.
#[must_use]
pub fn rolled_back(source: Option<&Source>, to: Option<&Source>, why: &str) -> Event {
    let message = format!("Rolled back, {why}: from {} to {}", name(source), name(to));
    event(EventReason::RolledBack, true, source, message)
}

/// Nothing is judged for now; for the history alone.
#[must_use]
pub fn suspended(source: &Source, suspension: Suspension) -> Event {
    let message = format!("Judgement of {source} is suspended: {}", suspension.message());
    Event { local: true, ..event(EventReason::TrialSuspended, true, Some(source), message) }
}

/// Last known good failed in the same way.
#[must_use]
pub(crate) fn not_blamed(source: &Source, why: &str, is_assigned: bool) -> Event {
    let then = if is_assigned { "will be tried again" } else { "can be tried again" };
    event(EventReason::NotBlamed, false, Some(source), format!("Not to blame, {why}: {source} {then}"))
}

/// The evidence is good; somebody must say so.
#[must_use]
pub(crate) fn awaits_confirmation(source: &Source, within: Duration) -> Event {
    let message = format!("Healthy; rolled back unless confirmed within {}: {source}", GoDuration(within));
    event(EventReason::AwaitsConfirmation, false, Some(source), message)
}

/// A trial was passed.
#[must_use]
pub fn proven(source: &Source, after: Duration) -> Event {
    let message = format!("Last known good after {} of continuous health: {source}", GoDuration(after));
    event(EventReason::Proven, false, Some(source), message)
}

/// A kubelet that nobody judges hung for so long; the next one that does is restarted after `next`.
#[must_use]
pub(crate) fn hung(
    source: Option<&Source>,
    missing: &str,
    unresponsive_for: Duration,
    with: &str,
    next: Duration,
) -> Event {
    let unresponsive_for = GoDuration(Duration::from_secs(unresponsive_for.as_secs()));
    let message = format!(
        "Hung, {missing} for {unresponsive_for} while the machine is well and the container runtime answers: restarted with {with}; \
         SIGQUIT asks it for its stacks, see the journal; the next restart takes {} of that: {}",
        GoDuration(next),
        name(source)
    );
    event(EventReason::Hung, true, source, message)
}

#[cfg(test)]
mod tests {
    use kubelet_config::source::ConfigMapRef;

    use super::*;

    fn source() -> Source {
        Source {
            reference: ConfigMapRef { namespace: "n".into(), name: "m".into(), kubelet_config_key: "k".into() },
            resource_version: "7".into(),
            uid: "u".into(),
        }
    }

    #[test]
    fn native_event_texts() {
        assert_eq!(
            changed(Some(&source())).message,
            "Kubelet restarting to use /api/v1/namespaces/n/configmaps/m, UID: u, ResourceVersion: 7, KubeletConfigKey: k"
        );
        assert_eq!(changed(None).message, "Kubelet restarting to use local config");
    }

    #[test]
    fn long_messages_are_cut_at_a_character() {
        let event = rejected(&source(), &"é".repeat(2000));
        assert!(event.message.len() <= 1010 && event.message.ends_with('…'));
    }
}
