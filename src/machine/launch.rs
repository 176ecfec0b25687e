//! The next start: what is desired is loaded and, where that is open, judged, while the kubelet still runs; it is stopped
//! only for content that is there and is another.

use std::collections::BTreeSet;

use kubelet_config::digest::Digest;

use super::io::Ticket;
use super::ladder::{Unusable, UnusableVersions, is_same};
use super::limits;
use super::model::{KubeletId, Moment, Rendered};
use super::records::{Records, Version};

mod start;
mod step;

/// What is prepared for the next start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Launch {
    next: Option<Next>,
    unusable: UnusableVersions,
    /// What was given up because the store did not answer, each version with its latest question.
    late: Vec<(Ticket, Version)>,
    /// Contents that could not be judged and are tried all the same: asking again would only lengthen the outage.
    inconclusive: Vec<(Digest, KubeletId)>,
    /// Content of the local files, as they were last read.
    local: Option<Digest>,
    learning: Learning,
    /// The kubelet's state files are in order for this policy ...
    policy: Option<String>,
    /// ... or are being put in order for that one.
    swapping: Option<String>,
    /// What was loaded in this life, to be started or too late for that, the latest first: where it lies is known.
    known: Vec<(Version, Rendered)>,
}

/// The content of what we would fall back to: of last known good, where native recorded its name alone, or of the
/// node's local files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Learning {
    #[default]
    Open,
    /// With what was asked for: none is the local configuration.
    Asked(Option<Version>),
    /// Known, or not to be known.
    Done,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Next {
    version: Option<Version>,
    stage: Stage,
    /// The event for it is out.
    announced: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Stage {
    Loading,
    Preflight(Box<Rendered>),
    /// `None`: the local file cannot be read; the kubelet judges it by itself.
    Ready(Option<Box<Rendered>>),
    Swapping(Option<Box<Rendered>>),
    /// The kubelet's state files are in order, as far as they can be put in order now.
    Swapped(Option<Box<Rendered>>),
}

impl Launch {
    /// Nothing can be loaded: what is on record is all there is to know.
    pub(super) fn offline() -> Self {
        Self { learning: Learning::Done, ..Self::default() }
    }

    /// Why a version does not run although it is to.
    pub(super) fn unusable(&self, version: &Version) -> Option<&Unusable> {
        self.unusable.get(version)
    }

    /// True if the content of what we would fall back to is not known yet, and may become known.
    pub(super) fn is_learning(&self, records: &Records) -> bool {
        let unknown = match &records.last_known_good {
            Some(version) => version.digest.is_none(),
            None => self.local.is_none() && records.phase.attempt().is_some(),
        };
        unknown && self.learning != Learning::Done
    }

    /// What they were read as says nothing of what they are by now.
    pub(super) fn forget_local(&mut self) {
        (self.local, self.learning) = (None, Learning::Open);
    }

    /// Content of the local files, if they were read.
    pub(super) fn local(&self) -> Option<&Digest> {
        self.local.as_ref()
    }

    /// True if this kubelet binary was asked about the content before, and gave no verdict.
    pub(super) fn is_inconclusive(&self, digest: &Digest, id: &KubeletId) -> bool {
        self.inconclusive.iter().any(|(known, of)| known == digest && of == id)
    }

    pub(super) fn note_inconclusive(&mut self, digest: Digest, id: KubeletId) {
        self.inconclusive.truncate(limits::BAD_VERSIONS);
        self.inconclusive.insert(0, (digest, id));
    }

    fn note_late(&mut self, ticket: Ticket, version: Version) {
        self.late.retain(|(_, late)| *late != version);
        self.late.insert(0, (ticket, version));
        self.late.truncate(limits::UNUSABLE_KEPT);
    }

    /// The store gave what was not waited for any more: the next start need not wait for it.
    pub(super) fn loaded_late(&mut self, ticket: Ticket, rendered: &Rendered, now: Moment) {
        let known = self.late.iter().position(|(of, _)| *of == ticket);
        if let Some((_, version)) = known.map(|at| self.late.swap_remove(at)) {
            self.unusable.could_be_read(&version, now);
            self.note_known(version, rendered.clone());
        }
    }

    /// What lies there was verified, or written again.
    pub(super) fn is_whole(&mut self, content: &Digest, now: Moment) {
        self.unusable.is_whole(content, now);
    }

    /// It was saved anew, or somebody wants it tried again.
    pub(super) fn usable_again(&mut self, version: &Version) {
        self.unusable.remove(version);
    }

    /// It was verified just now. Where the store does not answer in time, this is what is started.
    pub(super) fn note_known(&mut self, version: Version, rendered: Rendered) {
        self.forget_known(&version);
        self.known.insert(0, (version, rendered));
        self.known.truncate(limits::KNOWN_KEPT);
    }

    /// Of what else was known nothing is left on the disk.
    pub(super) fn forget_collected(&mut self, kept: &BTreeSet<Digest>) {
        self.known.retain(|(_, rendered)| kept.contains(&rendered.digest));
    }

    /// What lies there is damaged.
    fn forget_known(&mut self, version: &Version) {
        self.known.retain(|(known, _)| !is_same(Some(known), Some(version)));
    }

    /// A kubelet ended before it was ready: it may be for its state files, which are looked at anew.
    pub(super) fn forget_state_files(&mut self) {
        self.policy = None;
    }

    /// Something else is to be started.
    pub(super) fn forget_next(&mut self) {
        self.next = None;
    }

    /// What is about to be started: it must not be collected.
    pub(super) fn next(&self) -> Option<&Version> {
        self.next.as_ref().and_then(|next| next.version.as_ref())
    }

    /// True while the kubelet judges what is to be started.
    pub(super) fn is_preflighting(&self) -> bool {
        matches!(&self.next, Some(Next { stage: Stage::Preflight(..), .. }))
    }

    /// True if nothing is prepared.
    pub(super) fn is_idle(&self) -> bool {
        self.next.is_none()
    }

    pub(super) fn deadlines(&self, now: Moment, due: &mut Vec<Moment>) {
        due.extend(self.unusable.deadlines().filter(|at| *at > now));
    }
}
