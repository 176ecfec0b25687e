//! What is to run: one pure ladder, the same at boot, on a change, after a rollback and on a pin.
//!
//! pinned · assigned, if it is last known good or on trial · last known good · earlier proven ones · what was last known good
//! before a reset, if the local files have failed since · local

use std::collections::BTreeMap;

use super::limits;
use super::model::{ConfigError, KubeletId, Moment};
use super::records::{BadReason, BadVersion, Records, Version};
use kubelet_config::digest::Digest;

/// A version that could not be used, and until when it is not tried again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unusable {
    pub(super) error: ConfigError,
    pub(super) why: String,
    pub(super) until: Moment,
    pub(super) failures: u32,
}

/// Versions that cannot be used for now. Versions of one content share their fate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct UnusableVersions(BTreeMap<String, Unusable>);

fn key(version: &Version) -> String {
    let source = &version.source;
    version.digest.as_ref().map_or_else(
        || format!("{}/{}/{}", source.uid, source.resource_version, source.reference.kubelet_config_key),
        |digest| digest.0.clone(),
    )
}

impl UnusableVersions {
    pub(super) fn get(&self, version: &Version) -> Option<&Unusable> {
        self.0.get(&key(version))
    }

    /// So many are remembered; the one that is tried again first goes.
    pub(super) fn insert(&mut self, version: &Version, unusable: Unusable) {
        self.0.insert(key(version), unusable);
        if self.0.len() > limits::UNUSABLE_KEPT {
            let first = self.0.iter().min_by_key(|(_, unusable)| unusable.until).map(|(key, _)| key.clone());
            first.map(|key| self.0.remove(&key));
        }
    }

    pub(super) fn remove(&mut self, version: &Version) {
        self.0.remove(&key(version));
    }

    /// It could be read, too late for whoever asked: it is worth a try.
    pub(super) fn could_be_read(&mut self, version: &Version, now: Moment) {
        self.0.entry(key(version)).and_modify(|unusable| unusable.until = now);
    }

    /// What is stored of this content is whole, and no longer damaged. A disk that gave no answer may give none again.
    pub(super) fn is_whole(&mut self, content: &Digest, now: Moment) {
        let damaged = self.0.get_mut(&content.0).filter(|unusable| unusable.error == ConfigError::Load);
        if let Some(unusable) = damaged {
            unusable.until = unusable.until.min(now);
        }
    }

    pub(super) fn is_usable(&self, version: &Version, now: Moment) -> bool {
        self.get(version).is_none_or(|unusable| now >= unusable.until)
    }

    /// True if one may be usable, but cannot be read for now.
    pub(super) fn is_any_unread(&self, now: Moment) -> bool {
        self.0.values().any(|unusable| unusable.error == ConfigError::Internal && now < unusable.until)
    }

    /// The next moments at which one is tried again.
    pub(super) fn deadlines(&self) -> impl Iterator<Item = Moment> + '_ {
        self.0.values().map(|unusable| unusable.until)
    }
}

/// What is to run now; `None` is the local configuration.
pub(super) fn desired(
    records: &Records,
    kubelet: &KubeletId,
    unusable: &UnusableVersions,
    now: Moment,
) -> Option<Version> {
    let may_run = |version: &Version| unusable.is_usable(version, now) && refusal(records, kubelet, version).is_none();
    rungs(records, kubelet).into_iter().find(|rung| rung.is_none_or(may_run)).flatten().cloned()
}

/// The rungs from the top; the last is the local configuration.
fn rungs<'a>(records: &'a Records, kubelet: &KubeletId) -> Vec<Option<&'a Version>> {
    let proven = records.last_known_good.as_ref();
    let mut rungs = Vec::new();
    match (&records.pin, &records.assigned) {
        (Some(pin), _) => rungs.push(pin.version.as_ref()),
        (None, Some(assigned)) if may_run(records, kubelet, assigned) => rungs.push(Some(assigned)),
        _ => {}
    }
    if proven.is_some() {
        // What was proven once may have failed since; or before, with the binary that is there again.
        let all = proven.into_iter().chain(records.proven.iter().rev());
        rungs.extend(all.filter(|version| !has_failed(records, kubelet, version)).map(Some));
    }
    rungs.extend(records.in_place_of_local().filter(|version| !has_failed(records, kubelet, version)).map(Some));
    rungs.push(None);
    rungs
}

/// Why this kubelet binary does not take a version, if it was asked and refused.
pub(super) fn refusal<'a>(records: &'a Records, kubelet: &KubeletId, version: &Version) -> Option<&'a BadVersion> {
    // Of a name whose content is not known yet, only what was refused by it: its content may be another one.
    let is_it = |bad: &&BadVersion| bad.digest == version.digest && bad.holds(version, kubelet);
    records.bad.iter().rev().filter(|bad| bad.reason == BadReason::Rejected).find(is_it)
}

fn has_failed(records: &Records, kubelet: &KubeletId, version: &Version) -> bool {
    records.bad.iter().any(|bad| bad.holds(version, kubelet))
}

/// True if it is last known good, or has to prove itself now.
fn may_run(records: &Records, kubelet: &KubeletId, assigned: &Version) -> bool {
    is_same(Some(assigned), records.last_known_good.as_ref()) && !has_failed(records, kubelet, assigned)
        || records.phase.trial().is_some_and(|attempt| attempt.version == *assigned)
}

/// True if two versions are known to have one content. A name says nothing of it: what the name stands for may be another
/// content by now. A version without a known content is the same as itself alone.
pub(super) fn is_same(one: Option<&Version>, other: Option<&Version>) -> bool {
    let content = one.and_then(|version| version.digest.as_ref());
    one == other || content.is_some() && content == other.and_then(|version| version.digest.as_ref())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::machine::evidence::Failure;
    use crate::machine::records::{Attempt, Phase, Pin};
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
        let mut unusable = UnusableVersions::default();
        for name in broken {
            let until = Moment { boot: Duration::from_secs(9), wall_nanos: 0 };
            let broken = Unusable { error: ConfigError::Load, why: String::new(), until, failures: 0 };
            unusable.insert(&version(name, name), broken);
        }
        let now = |second| Moment { boot: Duration::from_secs(second), wall_nanos: 0 };
        let kubelet = KubeletId("k".into());
        let desired = |records: &Records, unusable: &UnusableVersions, now| desired(records, &kubelet, unusable, now);
        let all = records.clone();
        assert_eq!(
            desired(&all, &unusable, now(9)),
            desired(&all, &UnusableVersions::default(), now(0)),
            "not for ever"
        );
        desired(records, &unusable, now(8)).map_or("local".to_owned(), |it| it.source.reference.name)
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
            run(&Records { bad: vec![bad], ..records() }, &["good"])
        };
        assert_eq!(failed(KubeletId::ANY), "older", "given up while no supervisor ran");
        assert_eq!(failed(KubeletId("another".into())), "old");
        let fresh = Records { last_known_good: None, ..records() };
        assert_eq!(run(&fresh, &[]), "local", "after a reset nothing else is proven");
    }
}
