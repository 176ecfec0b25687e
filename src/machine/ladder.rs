//! What is to run: one pure ladder, the same at boot, on a change, after a rollback and on a pin.
//!
//! pinned · assigned, if it is last known good or on trial · last known good · earlier proven ones · what was last known good
//! before a reset, if the local files have failed since · local

use super::clock::Clock;
use super::model::KubeletId;
use super::records::{Records, Version};
use super::versions::{Versions, is_same};

/// What is to run now; `None` is the local configuration.
pub(super) fn desired(records: &Records, kubelet: &KubeletId, versions: &Versions, clock: &Clock) -> Option<Version> {
    let asked = match (&records.pin, &records.assigned) {
        (Some(pin), _) => Some(pin.version.as_ref()),
        (None, Some(assigned)) if may_run(records, kubelet, assigned) => Some(Some(assigned)),
        _ => None,
    };
    let rungs = asked.into_iter().chain(proven(records, kubelet));
    first(rungs, records, kubelet, versions, clock).cloned()
}

/// What would be gone back to from what is tried; `None` is the local configuration.
pub(super) fn way_back<'a>(
    records: &'a Records,
    kubelet: &'a KubeletId,
    versions: &Versions,
    clock: &Clock,
) -> Option<&'a Version> {
    first(proven(records, kubelet), records, kubelet, versions, clock)
}

/// The first rung that this binary takes, and that can be had.
fn first<'a>(
    mut rungs: impl Iterator<Item = Option<&'a Version>>,
    records: &Records,
    kubelet: &KubeletId,
    versions: &Versions,
    clock: &Clock,
) -> Option<&'a Version> {
    let can_run =
        |version: &Version| versions.is_usable(version, clock) && records.bad.refusal(version, kubelet).is_none();
    rungs.find(|rung| rung.is_none_or(can_run)).flatten()
}

/// The rungs below what is asked for; the last is the local configuration.
fn proven<'a>(records: &'a Records, kubelet: &'a KubeletId) -> impl Iterator<Item = Option<&'a Version>> {
    let last_known_good = records.last_known_good.as_ref();
    let earlier = records.proven.iter().rev().filter(move |_| last_known_good.is_some());
    // What was proven once may have failed since; or before, with the binary that is there again.
    let has_failed = move |version: &&Version| records.bad.against(version, [kubelet]).is_some();
    let all = last_known_good.into_iter().chain(earlier).chain(records.in_place_of_local());
    all.filter(move |version| !has_failed(version)).map(Some).chain([None])
}

/// True if it is last known good, or has to prove itself now.
fn may_run(records: &Records, kubelet: &KubeletId, assigned: &Version) -> bool {
    is_same(Some(assigned), records.last_known_good.as_ref()) && records.bad.against(assigned, [kubelet]).is_none()
        || records.phase.trial().is_some_and(|attempt| attempt.version == *assigned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::evidence::Failure;
    use crate::machine::limits;
    use crate::machine::model::{ConfigError, later};
    use crate::machine::records::{Attempt, BadReason, BadVersion, Phase, Pin};
    use kubelet_config::digest::Digest;
    use kubelet_config::source::{ConfigMapRef, Source};

    fn version(name: &str, content: &str) -> Version {
        let reference = ConfigMapRef { namespace: "n".into(), name: name.into(), kubelet_config_key: "k".into() };
        let source = Source { reference, resource_version: "1".into(), uid: name.into() };
        Version { source, digest: Some(Digest(content.into())) }
    }

    fn bad_version(name: &str) -> BadVersion {
        let Version { source, digest } = version(name, name);
        let (error, reason) = (ConfigError::Load, BadReason::Rejected);
        let (detail, time, kubelet_version) = Default::default();
        let kubelet = KubeletId("k".into());
        BadVersion {
            source,
            digest,
            stood_for: None,
            kubelet,
            error,
            detail,
            reason,
            time,
            kubelet_version,
            log_tail: Vec::new(),
            by_policy: false,
        }
    }

    fn records() -> Records {
        Records {
            assigned: Some(version("x", "x")),
            last_known_good: Some(version("good", "good")),
            proven: vec![version("older", "older"), version("old", "old")],
            ..Records::default()
        }
    }

    fn run(records: &Records, broken: &[&str]) -> String {
        let (start, mut versions) = (Clock::default(), Versions::default());
        for name in broken {
            versions.cannot_use(&version(name, name), ConfigError::Load, "", &start);
        }
        let over = Clock::at(later(start.now, limits::RUNG_RETRY.first));
        let kubelet = KubeletId("k".into());
        let desired = |versions: &Versions, clock| desired(records, &kubelet, versions, clock);
        assert_eq!(desired(&versions, &over), desired(&Versions::default(), &start), "not for ever");
        desired(&versions, &start).map_or("local".to_owned(), |it| it.source.reference.name)
    }

    #[test]
    fn the_first_rung_that_holds_is_what_runs() {
        let refused = records();
        assert_eq!(run(&refused, &[]), "good");
        assert_eq!(run(&refused, &["good"]), "old");
        assert_eq!(run(&refused, &["good", "old"]), "older");
        assert_eq!(run(&refused, &["good", "old", "older"]), "local");
        let attempt = Attempt::new(version("x", "x"));
        let tried = Records { phase: Phase::Trial(attempt.clone()), ..records() };
        assert_eq!((run(&tried, &[]), run(&tried, &["x"])), ("x".to_owned(), "good".to_owned()));
        let cleared = Records { phase: Phase::RetryLater(attempt, String::new()), ..records() };
        assert_eq!(run(&cleared, &[]), "good");
        let renamed = Records { assigned: Some(version("y", "good")), ..records() };
        assert_eq!(run(&renamed, &[]), "y", "equal content, the new name");
        let pinned = Records { pin: Some(Pin { version: None }), ..tried.clone() };
        assert_eq!(run(&pinned, &[]), "local");
        let pinned = Records { pin: Some(Pin { version: Some(version("old", "old")) }), ..tried };
        assert_eq!((run(&pinned, &[]), run(&pinned, &["old"])), ("old".to_owned(), "good".to_owned()));
        let failed = |kubelet: KubeletId| {
            let reason = BadReason::Failed(Failure::Operator);
            let bad = BadVersion { kubelet, reason, ..bad_version("old") };
            run(&Records { bad: vec![bad].into(), ..records() }, &["good"])
        };
        assert_eq!(failed(KubeletId::ANY), "older", "given up while no supervisor ran");
        assert_eq!(failed(KubeletId("another".into())), "old");
        let fresh = Records { last_known_good: None, ..records() };
        assert_eq!(run(&fresh, &[]), "local", "after a reset nothing else is proven");
    }
}
