//! What would be gone back to. Before anything is held against a version it must be known that it is not that very content
//! under another name.
//!
//! | what would be gone back to | its content |
//! |---|---|
//! | the next rung of the ladder, but for what this binary refuses or failed with | on record; where native recorded its name alone, it is loaded |
//! | else the local files | as they were read last; while a version is tried, they are loaded |
//!
//! - While it is loaded for the first time nothing is judged. A store that gives no answer is not waited for: what is tried is judged,
//!   and the store asked again, with growing pauses.
//! - Local files that are written are read anew.

use super::asks::Asker;
use super::model::{RenderError, Rendered};
use super::pause::Pause;
use super::versions::Version;
use super::{Kubelet, RunningConfig, State, limits};
use kubelet_config::digest::Digest;

/// What is known of it, beside the record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Fallback {
    /// Content of the local files, as they were last read.
    local: Option<Digest>,
    /// What was asked for last; none is the local configuration.
    asked: Option<Version>,
    /// That was loaded, or cannot be.
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

    /// True if this, which would be gone back to and is not known, will be within moments.
    pub(super) fn is_awaited(&self, way_back: Option<&Version>) -> bool {
        !self.is_settled(way_back) && self.next.failures() == 0
    }

    /// It was loaded, or cannot be.
    fn is_settled(&self, way_back: Option<&Version>) -> bool {
        self.is_settled && self.asked.as_ref() == way_back
    }

    /// The local files, under whatever name.
    pub(super) fn is_local(&self, config: &RunningConfig) -> bool {
        config.version.is_none() || config.digest.is_some() && config.digest.as_ref() == self.local()
    }
}

impl State {
    /// Has it loaded, if it is to be known and is not.
    pub(super) fn tick_fallback(&mut self) {
        let judgement = self.judgement();
        let is_due = !self.asks.is_open(Asker::Fallback) && judgement.is_way_back_unknown();
        if !is_due || *self.kubelet() == Kubelet::NotBegun {
            return;
        }
        let way_back = judgement.way_back().cloned();
        if self.fallback.is_settled(way_back.as_ref()) || self.fallback.next.lasts(&self.clock) {
            return;
        }
        self.ask_load(Asker::Fallback, way_back.clone(), limits::LOAD_DEADLINE);
        (self.fallback.asked, self.fallback.is_settled) = (way_back, false);
        self.fallback.next.begin();
    }

    /// The answer to that.
    pub(super) fn fallback_loaded(&mut self, result: Result<Rendered, RenderError>) {
        let asked = self.fallback.asked.clone();
        if asked.as_ref() != self.judgement().way_back() {
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
