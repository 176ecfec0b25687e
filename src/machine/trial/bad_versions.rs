//! Bad versions: what failed or was refused is not started again while its content and the kubelet are the same.

use crate::machine::ladder::is_same;
use crate::machine::model::ConfigError;
use crate::machine::records::{BadReason, BadVersion, Phase, Records, Version};
use crate::machine::{State, limits};
use kubelet_config::digest::Digest;
use kubelet_config::status;

impl State {
    /// What is remembered of a version that failed or was refused before, if it holds for the kubelet binary that runs, or for
    /// the one that is started next.
    pub(in crate::machine) fn bad_version(&self, version: &Version) -> Option<&BadVersion> {
        let binaries = [self.process.kubelet_id(), self.process.started_kubelet()];
        let holds = |bad: &&BadVersion| binaries.iter().any(|kubelet| bad.holds(version, kubelet));
        self.records().bad.iter().rev().find(holds)
    }

    /// True if the control test cleared it, and last known good has not been healthy for long enough since.
    pub(in crate::machine) fn awaits_retry(&self, version: &Version) -> bool {
        match &self.records().phase {
            Phase::RetryLater(attempt, _) => is_same(Some(&attempt.version), Some(version)) && !self.has_recovered(),
            _ => false,
        }
    }

    /// What is to be remembered of a version. What ran failed with the binary of then; what did not is refused by the one on the
    /// disk.
    pub(in crate::machine) fn bad(
        &self,
        version: &Version,
        reason: BadReason,
        error: ConfigError,
        detail: &str,
    ) -> BadVersion {
        let kubelet = match reason {
            BadReason::Failed(_) if self.runs(version) => self.process.started_kubelet(),
            BadReason::Failed(_) | BadReason::Rejected => self.process.kubelet_id(),
        };
        BadVersion {
            source: version.source.clone(),
            digest: version.digest.clone(),
            stood_for: None,
            kubelet: kubelet.clone(),
            error,
            detail: detail.to_owned(),
            reason,
            time: status::timestamp(self.now.wall_nanos),
            kubelet_version: self.kubelet_version.clone().unwrap_or_default(),
            log_tail: self.last_log_lines(limits::LOG_LINES_KEPT),
            by_policy: false,
        }
    }

    /// The records with a further bad version in them.
    pub(in crate::machine) fn with_bad_version(&self, new: BadVersion) -> Records {
        let mut records = self.records().clone();
        let bad = &mut records.bad;
        let same =
            |bad: &BadVersion| (&bad.source, &bad.digest, &bad.kubelet) == (&new.source, &new.digest, &new.kubelet);
        bad.retain(|bad| !same(bad));
        bad.push(new);
        if bad.len() > limits::BAD_VERSIONS {
            // What was only refused costs a preflight to find again, what failed a restart.
            let before = bad.len() - 1;
            let refused = bad.iter().take(before).position(|bad| bad.reason == BadReason::Rejected);
            bad.remove(refused.unwrap_or_default());
        }
        records
    }

    /// True if this kubelet binary found the content valid, or could not judge it when it was asked.
    pub(in crate::machine) fn is_accepted(&self, digest: &Digest) -> bool {
        let id = self.process.kubelet_id();
        self.records().accepted.iter().any(|(known, of)| known == digest && of == id)
            || self.launch.is_inconclusive(digest, id)
    }

    /// Written down with the next record.
    pub(in crate::machine) fn note_accepted(&mut self, digest: &Digest) {
        let kubelet = self.process.kubelet_id();
        self.writer.learn(|records| records.note_accepted(digest, kubelet));
    }

    /// The preflight with this kubelet binary gave no verdict; it is not asked again in this life.
    pub(in crate::machine) fn note_inconclusive(&mut self, digest: &Digest) {
        let kubelet = self.process.kubelet_id().clone();
        self.launch.note_inconclusive(digest.clone(), kubelet);
    }

    /// The content of what we would fall back to, if it is known.
    pub(in crate::machine) fn fallback_content(&self) -> Option<&Digest> {
        match &self.records().last_known_good {
            Some(proven) => proven.digest.as_ref(),
            None => self.records().in_place_of_local().map_or(self.launch.local(), |before| before.digest.as_ref()),
        }
    }

    /// True if failures can be held against this version: there is something else to go back to, as far as that can be
    /// known.
    pub(in crate::machine) fn is_judged_content(&self, version: &Version) -> bool {
        let known = self.fallback_content().is_some() || !self.launch.is_learning(self.records());
        known && (version.digest.is_none() || self.fallback_content() != version.digest.as_ref())
    }

    /// A version whose content was not known has been rendered.
    pub(in crate::machine) fn learn_content(&mut self, version: Version, digest: &Digest) -> Version {
        if version.digest.is_some() {
            return version;
        }
        self.writer.learn(|records| records.note_content(&version, digest));
        self.writer.write_soon();
        Version { digest: Some(digest.clone()), ..version }
    }
}
