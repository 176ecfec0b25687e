//! What is known of versions: of each content, and of each name.
//!
//! | known of | what | for how long |
//! |---|---|---|
//! | a content, with one kubelet binary | that binary found it valid (`Records::accepted`) | on record |
//! | | it gave no verdict in time | this life |
//! | | it refused it after its time | this life, until it is judged anew as below |
//! | | it was refused, or has failed, and why ([`BadVersion`]) | on record, until it is proven with that binary, cleared by the control test, or somebody asks for it |
//! | a name | it is refused for what it says beside its content (fields, hazards, annotations), by the node's policy, or for the pods that it would cost | on record, until the name is admitted |
//! | a content, or a name whose content is not known | it cannot be used, and why ([`Unusable`]) | until then; each time twice as long, until it was started, saved anew or asked for |
//! | | where it lies | this life, until it is damaged or removed |
//!
//! - Two versions are the same if both contents are known and equal ([`is_same`]). Nothing else is: what a name stands for may be another
//!   content by now.
//! - What is known of a name says nothing of a content, and the other way round.
//! - Each list has a bound. What failed is forgotten last: to find it again costs a restart.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Deref;

use serde::{Deserialize, Serialize};

use super::clock::Clock;
use super::evidence::Failure;
use super::model::{ConfigError, KubeletId, Moment, RenderError, Rendered, Verdict};
use super::pause::Pause;
use super::{State, limits};
use kubelet_config::digest::Digest;
use kubelet_config::source::Source;
use kubelet_config::status;

/// A version of a configuration: its name, and the content the name stood for when it was rendered.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Version {
    /// The ConfigMap and its resourceVersion.
    #[serde(flatten)]
    pub source: Source,
    /// The content; `None` if it could not be rendered, or was recorded by native.
    pub digest: Option<Digest>,
}

impl Version {
    /// A name without a known content.
    #[must_use]
    pub fn named(source: Source) -> Self {
        Self { source, digest: None }
    }

    /// What people are told; without a version, that it is the local configuration.
    #[must_use]
    pub(super) fn name(version: Option<&Self>) -> String {
        status::name(version.map(|version| &version.source))
    }

    /// True if both are known to have one content.
    #[must_use]
    pub fn has_content(&self, digest: &Digest) -> bool {
        self.digest.as_ref() == Some(digest)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.source.fmt(f)
    }
}

/// True if two versions are known to have one content. A name says nothing of it: what the name stands for may be another
/// content by now. A version without a known content is the same as itself alone.
pub(super) fn is_same(one: Option<&Version>, other: Option<&Version>) -> bool {
    let content = one.and_then(|version| version.digest.as_ref());
    one == other || content.is_some() && content == other.and_then(|version| version.digest.as_ref())
}

/// A version that failed or was refused, and why. It is not started again until content or kubelet change, or somebody
/// asks for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BadVersion {
    /// The version.
    pub source: Source,
    /// Its content; empty when it could not be rendered, or when only this version of it was refused.
    pub digest: Option<Digest>,
    /// Where only its name was refused, for the pods that it would cost: the content that the name stood for. That is not weighed again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stood_for: Option<Digest>,
    /// The kubelet binary it failed with.
    pub kubelet: KubeletId,
    /// Native's error.
    pub error: ConfigError,
    /// The kubelet's message, or what was observed.
    pub detail: String,
    /// How it failed.
    pub reason: BadReason,
    /// Wall clock, for people.
    #[serde(default)]
    pub time: String,
    /// Version of the kubelet, if known.
    #[serde(default)]
    #[serde(rename = "version")]
    pub kubelet_version: String,
    /// The kubelet's last lines, without secrets.
    #[serde(rename = "words", default, skip_serializing_if = "Vec::is_empty")]
    pub log_tail: Vec<String>,
    /// The node's policy refused it, which is asked again each time.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_policy: bool,
}

impl BadVersion {
    /// True if it is about this content; or about this name, where the content is not known.
    #[must_use]
    pub fn is_about(&self, version: &Version) -> bool {
        match (&self.digest, &version.digest) {
            (Some(bad), Some(digest)) => bad == digest,
            // What was refused by its name alone says nothing of a content.
            (None, Some(_)) => false,
            (_, None) => self.source == version.source,
        }
    }

    /// True if it was said of this name, and of no content.
    pub(super) fn is_of_name(&self, source: &Source) -> bool {
        self.source == *source && (self.digest.is_none() || self.by_policy)
    }

    /// True if it is about this version, and counts with this kubelet binary.
    #[must_use]
    pub fn holds(&self, version: &Version, kubelet: &KubeletId) -> bool {
        let any = self.kubelet == KubeletId::ANY || *kubelet == KubeletId::ANY;
        (any || self.kubelet == *kubelet) && self.is_about(version)
    }
}

/// Versions that failed or were refused, oldest first, bounded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BadVersions(Vec<BadVersion>);

impl Deref for BadVersions {
    type Target = [BadVersion];

    fn deref(&self) -> &[BadVersion] {
        &self.0
    }
}

impl From<Vec<BadVersion>> for BadVersions {
    fn from(versions: Vec<BadVersion>) -> Self {
        Self(versions)
    }
}

impl BadVersions {
    /// What holds against this version with one of these binaries, the latest.
    pub(super) fn against<const N: usize>(&self, version: &Version, binaries: [&KubeletId; N]) -> Option<&BadVersion> {
        self.iter().rev().find(|bad| binaries.iter().any(|kubelet| bad.holds(version, kubelet)))
    }

    /// Why this binary does not take a version, if it was asked and refused.
    pub(super) fn refusal(&self, version: &Version, kubelet: &KubeletId) -> Option<&BadVersion> {
        // Of a name whose content is not known yet, only what was refused by it: its content may be another one.
        let is_it = |bad: &&BadVersion| bad.digest == version.digest && bad.holds(version, kubelet);
        self.iter().rev().filter(|bad| bad.reason == BadReason::Rejected).find(is_it)
    }

    /// A further one, in the place of what was said of the same before.
    pub(super) fn add(&mut self, new: BadVersion) {
        let same =
            |bad: &BadVersion| (&bad.source, &bad.digest, &bad.kubelet) == (&new.source, &new.digest, &new.kubelet);
        self.0.retain(|bad| !same(bad));
        if self.len() >= limits::BAD_VERSIONS {
            // What was only refused costs a preflight to find again, what failed a restart.
            let refused = self.iter().position(|bad| bad.reason == BadReason::Rejected);
            self.0.remove(refused.unwrap_or_default());
        }
        self.0.push(new);
    }

    /// The name is admitted: what was said of it before does not hold any more.
    pub(super) fn admit(&mut self, source: &Source) {
        self.0.retain(|bad| !bad.is_of_name(source));
    }

    /// It is proven with this binary, and did not fail with it, whatever was said of it under another name.
    pub(super) fn forget_proven(&mut self, version: &Version, kubelet: &KubeletId) {
        self.0.retain(|bad| !bad.holds(version, kubelet));
    }

    /// It was not to blame for its latest failure. With another binary it may have failed for itself.
    pub(super) fn forget_latest(&mut self, version: &Version) {
        let failed = self.iter().rev().find(|bad| bad.is_about(version)).map(|bad| bad.kubelet.clone());
        self.0.retain(|bad| !bad.is_about(version) || Some(&bad.kubelet) != failed.as_ref());
    }

    /// Somebody wants it tried again; false if nothing is held against it. The same content may have failed under another name as
    /// well.
    pub(super) fn forget(&mut self, version: &Version) -> bool {
        let same =
            |bad: &BadVersion| bad.source == version.source || bad.digest.is_some() && bad.digest == version.digest;
        let contents: Vec<_> = self.iter().filter(|bad| same(bad)).filter_map(|bad| bad.digest.clone()).collect();
        let before = self.len();
        self.0.retain(|bad| !same(bad) && bad.digest.as_ref().is_none_or(|digest| !contents.contains(digest)));
        self.len() != before
    }
}

/// How a version came to be bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum BadReason {
    /// It was refused before it ran.
    Rejected,
    /// It failed its trial.
    Failed(Failure),
}

impl BadReason {
    /// `rejected`, or the label of `rollbacks_total{reason}`.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Rejected => "rejected",
            Self::Failed(failure) => failure.label(),
        }
    }
}

impl From<BadReason> for String {
    fn from(reason: BadReason) -> Self {
        reason.label().to_owned()
    }
}

impl TryFrom<String> for BadReason {
    type Error = String;

    fn try_from(label: String) -> Result<Self, Self::Error> {
        if label == Self::Rejected.label() {
            return Ok(Self::Rejected);
        }
        let failure = Failure::all().find(|failure| failure.label() == label);
        // A later supervisor may know more of them.
        Ok(Self::Failed(failure.unwrap_or(Failure::Operator)))
    }
}

/// A version that could not be used, and until when it is not tried again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unusable {
    pub(super) error: ConfigError,
    pub(super) why: String,
    pub(super) next: Pause,
}

/// A content on which a kubelet binary gave no verdict in time.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Unjudged {
    content: Digest,
    kubelet: KubeletId,
    /// It refused the content after that time.
    refused: Option<(ConfigError, String)>,
}

/// What is known in this life alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Versions {
    /// Versions of one content share their fate.
    unusable: BTreeMap<String, Unusable>,
    /// The latest first.
    unjudged: Vec<Unjudged>,
    /// What was loaded, to be started or too late for that, the latest first: where it lies is known.
    known: Vec<(Version, Rendered)>,
}

/// The content, or the name where that is not known.
fn key(version: &Version) -> String {
    let source = &version.source;
    version.digest.as_ref().map_or_else(
        || format!("{}/{}/{}", source.uid, source.resource_version, source.reference.kubelet_config_key),
        |digest| digest.0.clone(),
    )
}

impl Versions {
    /// Why it does not run although it is to.
    pub(super) fn unusable(&self, version: &Version) -> Option<&Unusable> {
        self.unusable.get(&key(version))
    }

    pub(super) fn is_usable(&self, version: &Version, clock: &Clock) -> bool {
        self.unusable(version).is_none_or(|unusable| !unusable.next.lasts(clock))
    }

    /// True if one may be usable, but cannot be read for now.
    pub(super) fn is_any_unread(&self, clock: &Clock) -> bool {
        self.unusable.values().any(|unusable| unusable.error == ConfigError::Internal && unusable.next.lasts(clock))
    }

    /// It cannot be used for a time that grows; true if that is news. Of too many, the one that is tried again first goes.
    pub(super) fn cannot_use(&mut self, version: &Version, error: ConfigError, why: &str, clock: &Clock) -> bool {
        let before = self.unusable(version);
        let is_news = before.is_none_or(|before| before.why != why);
        let mut next = before.map(|before| before.next.clone()).unwrap_or_default();
        next.grow(limits::RUNG_RETRY, clock);
        let unusable = Unusable { error, why: why.to_owned(), next };
        self.unusable.insert(key(version), unusable);
        if self.unusable.len() > limits::UNUSABLE_KEPT {
            let first = self.unusable.iter().min_by_key(|(_, unusable)| unusable.next.at()).map(|(key, _)| key.clone());
            first.map(|key| self.unusable.remove(&key));
        }
        is_news
    }

    /// It was started, saved anew, or somebody wants it tried again.
    pub(super) fn forget_unusable(&mut self, version: &Version) {
        self.unusable.remove(&key(version));
    }

    /// It could be read, too late for whoever asked: it is worth a try, and the next one need not wait for it.
    pub(super) fn note_readable(&mut self, version: Version, rendered: Rendered, now: Moment) {
        let unread = self.unusable.get_mut(&key(&version)).filter(|unusable| unusable.error == ConfigError::Internal);
        if let Some(unusable) = unread {
            unusable.next.set(now);
        }
        self.note_known(version, rendered);
    }

    /// What is stored of this content is whole, and no longer damaged. A disk that gave no answer may give none again.
    pub(super) fn note_whole(&mut self, content: &Digest, now: Moment) {
        let damaged = self.unusable.get_mut(&content.0).filter(|unusable| unusable.error == ConfigError::Load);
        if let Some(unusable) = damaged {
            unusable.next.set_latest(now);
        }
    }

    /// It was verified just now. Where the store does not answer in time, this is what is started.
    pub(super) fn note_known(&mut self, version: Version, rendered: Rendered) {
        self.forget_known(&version);
        self.known.insert(0, (version, rendered));
        self.known.truncate(limits::KNOWN_KEPT);
    }

    /// It was loaded once more. What the policy forbids by now, or what is damaged, is not started unread.
    pub(super) fn note_load(&mut self, version: &Version, result: &Result<Rendered, RenderError>) {
        match result {
            Ok(latest) => {
                let is_it = |(known, _): &&mut (Version, Rendered)| is_same(Some(known), Some(version));
                if let Some((_, rendered)) = self.known.iter_mut().find(is_it) {
                    rendered.clone_from(latest);
                }
            }
            Err(RenderError::Checkpoint(_) | RenderError::Policy(_)) => self.forget_known(version),
            Err(_) => {}
        }
    }

    pub(super) fn known(&self, version: Option<&Version>) -> Option<Rendered> {
        let (_, rendered) = self.known.iter().find(|(known, _)| is_same(Some(known), version))?;
        Some(rendered.clone())
    }

    fn forget_known(&mut self, version: &Version) {
        self.known.retain(|(known, _)| !is_same(Some(known), Some(version)));
    }

    /// Of all others nothing is left on the disk.
    pub(super) fn keep_known(&mut self, contents: &BTreeSet<Digest>) {
        self.known.retain(|(_, rendered)| contents.contains(&rendered.digest));
    }

    /// The kubelet gave no verdict in time.
    pub(super) fn note_unjudged(&mut self, content: Digest, kubelet: KubeletId) {
        if self.unjudged(&content, &kubelet).is_none() {
            self.keep_unjudged(Unjudged { content, kubelet, refused: None });
        }
    }

    /// It refuses it after that time.
    pub(super) fn note_refused(&mut self, content: Digest, kubelet: KubeletId, error: ConfigError, why: String) {
        self.unjudged.retain(|known| (&known.content, &known.kubelet) != (&content, &kubelet));
        self.keep_unjudged(Unjudged { content, kubelet, refused: Some((error, why)) });
    }

    fn keep_unjudged(&mut self, unjudged: Unjudged) {
        self.unjudged.insert(0, unjudged);
        self.unjudged.truncate(limits::BAD_VERSIONS);
    }

    /// It was proven, was not to blame, was found valid, or somebody wants it tried again: what was refused is judged anew.
    pub(super) fn judge_anew(&mut self, content: Option<&Digest>) {
        self.unjudged.retain(|known| known.refused.is_none() || Some(&known.content) != content);
    }

    fn unjudged(&self, content: &Digest, kubelet: &KubeletId) -> Option<&Unjudged> {
        self.unjudged.iter().find(|known| (&known.content, &known.kubelet) == (content, kubelet))
    }
}

impl State {
    /// What is remembered of a version that failed or was refused before, if it holds for the kubelet binary that runs, or for
    /// the one that is started next.
    pub(super) fn bad_version(&self, version: &Version) -> Option<&BadVersion> {
        self.records().bad.against(version, [self.process.kubelet_id(), self.process.started_kubelet()])
    }

    /// What is to be remembered of a version. What ran failed with the binary of then; what did not is refused by the one on the
    /// disk.
    pub(super) fn bad(&self, version: &Version, reason: BadReason, error: ConfigError, detail: &str) -> BadVersion {
        let kubelet = match reason {
            BadReason::Failed(_) if self.judgement().runs(version) => self.process.started_kubelet(),
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
            time: status::timestamp(self.clock.now.wall_nanos),
            kubelet_version: self.kubelet_version.clone().unwrap_or_default(),
            log_tail: self.trial.last_log_lines(limits::LOG_LINES_KEPT),
            by_policy: false,
        }
    }

    /// True if this kubelet binary found the content valid, or could not judge it when it was asked.
    pub(super) fn is_accepted(&self, content: &Digest) -> bool {
        let id = self.process.kubelet_id();
        let is_valid = self.records().accepted.iter().any(|(known, of)| known == content && of == id);
        // To ask again what it gave no verdict on would only lengthen the outage.
        is_valid || self.versions.unjudged(content, id).is_some_and(|known| known.refused.is_none())
    }

    /// Written down with the next record.
    pub(super) fn note_accepted(&mut self, content: &Digest) {
        self.versions.judge_anew(Some(content));
        let kubelet = self.process.kubelet_id();
        self.writer.learn(|records| records.note_accepted(content, kubelet));
    }

    /// This binary gave no verdict; it is not asked again in this life.
    pub(super) fn note_unjudged(&mut self, content: &Digest) {
        self.versions.note_unjudged(content.clone(), self.process.kubelet_id().clone());
    }

    /// A verdict after its time. That there is none is for those to say who waited for it.
    pub(super) fn judged_late(&mut self, content: Digest, kubelet: KubeletId, verdict: Verdict) {
        if self.records().accepted.contains(&(content.clone(), kubelet.clone())) {
            return; // it was proven meanwhile
        }
        match verdict {
            Verdict::Load(why) => self.versions.note_refused(content, kubelet, ConfigError::Load, why),
            Verdict::Validate(why) => self.versions.note_refused(content, kubelet, ConfigError::Validate, why),
            Verdict::Valid(_) if kubelet == *self.process.kubelet_id() => self.note_accepted(&content),
            Verdict::Valid(_) | Verdict::Inconclusive(_) | Verdict::NotItsFault(_) => {}
        }
    }

    /// What the binary that is started next refuses this for, as it said after its time.
    pub(super) fn refused_late(&self, content: &Digest) -> Option<(ConfigError, String)> {
        self.versions.unjudged(content, self.process.kubelet_id())?.refused.clone()
    }
}
