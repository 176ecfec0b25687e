//! What would be gone back to. Before anything is held against a version it must be known that it is not that very content
//! under another name.
//!
//! | what would be gone back to | its content |
//! |---|---|
//! | last known good | on record; where native recorded its name alone, it is loaded |
//! | after a reset whose local files have failed: what was last known good before | on record |
//! | else the local files | as they were read last; while a version is tried, they are loaded |
//!
//! - While it is loaded for the first time nothing is judged. A store that gives no answer is not waited for: what is tried is judged,
//!   and the store asked again, with growing pauses.
//! - Local files that are written are read anew.

use super::asks::Asker;
use super::model::{RenderError, Rendered};
use super::pause::Pause;
use super::records::Records;
use super::versions::Version;
use super::{Kubelet, RunningConfig, State, limits};
use kubelet_config::digest::Digest;

/// What is known of it, beside the record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Fallback {
    /// Content of the local files, as they were last read.
    local: Option<Digest>,
    /// What is being loaded; none is the local configuration.
    asked: Option<Version>,
    /// It was loaded, or cannot be.
    is_settled: bool,
    /// When it is asked for again that was not answered.
    next: Pause,
}

impl Fallback {
    /// Nothing can be loaded: what is on record is all there is to know.
    pub(super) fn offline() -> Self {
        Self { is_settled: true, ..Self::default() }
    }

    /// Content of the local files, if they were read.
    pub(super) fn local(&self) -> Option<&Digest> {
        self.local.as_ref()
    }

    /// The local files were read.
    pub(super) fn note_local(&mut self, content: Digest) {
        self.local = Some(content);
    }

    /// The content of what would be gone back to, if it is known.
    pub(super) fn content<'a>(&'a self, records: &'a Records) -> Option<&'a Digest> {
        match records.last_known_good.as_ref().or(records.in_place_of_local()) {
            Some(version) => version.digest.as_ref(),
            None => self.local(),
        }
    }

    /// True if its content is not known yet, and will be within moments.
    pub(super) fn is_awaited(&self, records: &Records) -> bool {
        self.is_unknown(records) && !self.is_settled && self.next.failures() == 0
    }

    fn is_unknown(&self, records: &Records) -> bool {
        match &records.last_known_good {
            Some(version) => version.digest.is_none(),
            None => self.local.is_none() && records.phase.attempt().is_some(),
        }
    }

    /// The local files, under whatever name.
    pub(super) fn is_local(&self, config: &RunningConfig) -> bool {
        config.version.is_none() || config.digest.is_some() && config.digest.as_ref() == self.local()
    }
}

impl State {
    /// Has it loaded, if it is to be known and is not.
    pub(super) fn tick_fallback(&mut self) {
        let Fallback { is_settled, next, .. } = &self.fallback;
        let is_due = !is_settled && !self.asks.is_open(Asker::Fallback) && !next.lasts(&self.clock);
        if !is_due || !self.fallback.is_unknown(self.records()) || *self.kubelet() == Kubelet::NotBegun {
            return;
        }
        let proven = self.records().last_known_good.clone();
        self.ask_load(Asker::Fallback, proven.clone(), limits::LOAD_DEADLINE);
        self.fallback.asked = proven;
        self.fallback.next.begin();
    }

    /// The answer to that.
    pub(super) fn fallback_loaded(&mut self, result: Result<Rendered, RenderError>) {
        let asked = self.fallback.asked.take();
        if asked != self.records().last_known_good {
            return; // it is another one by now
        }
        if matches!(result, Err(RenderError::NoAnswer(_))) {
            return self.fallback.next.grow(limits::RETRY, &self.clock);
        }
        self.fallback.is_settled = true;
        self.fallback.next.settle();
        match (result, asked) {
            (Ok(rendered), Some(version)) => drop(self.learn_content(version, &rendered.digest)),
            (Ok(rendered), None) => self.fallback.note_local(rendered.digest),
            (Err(_), _) => {}
        }
    }

    /// What the local files were read as says nothing of what they are by now.
    pub(super) fn forget_local(&mut self) {
        self.asks.forget(Asker::Fallback);
        (self.fallback.local, self.fallback.is_settled) = (None, false);
        self.fallback.next.begin();
    }

    /// A version whose content was not known has been rendered.
    pub(super) fn learn_content(&mut self, version: Version, digest: &Digest) -> Version {
        if version.digest.is_some() {
            return version;
        }
        if self.records().versions().any(|known| *known == version) {
            self.writer.learn(|records| records.note_content(&version, digest));
            self.writer.write_soon();
        }
        Version { digest: Some(digest.clone()), ..version }
    }
}
