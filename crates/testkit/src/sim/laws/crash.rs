//! The laws of what must outlive a crash, and of what is saved.

use std::path::Path;

use kubelet_config::source::{Payload, Source};
use kubelet_supervisor::adapters::store::FsStore;

use crate::sim::account::{Proven, UNSEEN};
use crate::sim::laws::Law;
use crate::sim::world::{Content, Outside, ROOT};

impl Outside {
    pub fn check_save(&mut self, source: &Source, payload: &Payload) {
        let given = self
            .version_of(source)
            .is_some_and(|version| version.name == source.reference.name && version.payload.data == payload.data);
        self.account.check(Law::SavedAsGiven, false, given, || format!("{source} was never given like that"));
    }

    /// Health and contact of what runs are enough to be last known good.
    pub(super) fn has_earned(&self, content: Content) -> bool {
        // It may have gone while that was written down.
        let lives = self.process.as_ref().or(self.account.last.as_ref());
        lives.is_some_and(|process| process.content == content && process.earned + UNSEEN >= self.account.trial)
    }

    /// This runs, or did until a moment ago, and is healthy.
    pub(super) fn is_well(&self, content: Content) -> bool {
        let lives = self.process.as_ref().or(self.account.last.as_ref());
        lives.is_some_and(|process| process.content == content && process.well_since.is_some())
    }

    /// The power goes: what may be found to be last known good.
    pub fn note_crash(&mut self) {
        let mut may_be = vec![self.account.lkg.as_ref().map(|lkg| lkg.content)];
        if self.account.reset_requested || self.account.may_be_reset(self.now) {
            may_be.push(None);
        }
        let earned = self.account.healthy.map(|(content, _)| content);
        may_be.extend(earned.map(Some));
        // That it has to be confirmed may be on the disk, although nobody was told.
        self.account.passed = earned.filter(|it| self.account.on_trial == Some(*it)).or(self.account.passed);
        self.account.may_be_proven = may_be;
    }

    /// What the disk says after a crash.
    pub fn check_survived(&mut self) {
        let found = FsStore::new(self.disk.seen(), Path::new(ROOT)).load().into_records();
        let found = Some(found).filter(|(_, locked)| locked.is_none()).map(|(records, _)| records);
        let may_be = std::mem::take(&mut self.account.may_be_proven);
        let proven = found.as_ref().and_then(|records| records.last_known_good.clone());
        let content = proven.as_ref().and_then(|version| self.content_of_record(version));
        let lost = found.is_none() && self.account.lkg.is_some();
        if may_be.len() > 1 || lost {
            self.account.boots = None;
        }
        let known = may_be.contains(&content);
        self.account.check(Law::NothingLost, self.account.blind, known && !lost, || {
            format!("{proven:?} is last known good, after {may_be:?}")
        });
        self.account.may_be_proven = vec![content];
        if known && self.account.lkg.as_ref().map(|lkg| lkg.content) != content {
            // It was about to be proven, or reset; what a kubelet was given then is not looked for.
            let evidence = self.account.healthy.map(|(_, evidence)| evidence).unwrap_or_default();
            let new = proven.zip(content).map(|(version, content)| Proven {
                source: version.source,
                content,
                digest: version.digest,
                kubelet: self.kubelet_id.clone(),
                file: None,
                evidence,
            });
            let old = std::mem::replace(&mut self.account.lkg, new);
            self.account.proven.extend(old.map(|old| old.content));
        }
        let attempt = found.and_then(|records| records.phase.attempt().map(|attempt| attempt.version.clone()));
        let tried = attempt.and_then(|version| self.content_of_record(&version));
        self.account.boots.take_if(|(of, _)| Some(*of) != tried);
    }
}
