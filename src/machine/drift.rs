//! What changes in the store behind the supervisor's back: found while the kubelet runs, put right where the bytes can be
//! made again, and told. The kubelet that runs is let be: it has read its configuration.

use std::collections::{BTreeMap, BTreeSet};

use super::asks::Asker;
use super::io::{Effect, StoreRequest};
use super::model::{Verification, later};
use super::pause::Pause;
use super::records::{Records, Version};
use super::{State, events, limits};
use kubelet_config::digest::Digest;

/// Damage, and what is known of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Drift {
    /// Something in the store was written, by whomever, or was found: when it is verified.
    next: Pause,
    /// What was told and could not be put right, with the content that it is about.
    told: BTreeMap<String, Option<Digest>>,
}

impl State {
    /// What in the store is not as it was written, and could not be put right.
    pub fn damage(&self) -> impl Iterator<Item = &str> {
        self.drift.told.keys().map(String::as_str)
    }

    /// True if what runs is not there to be started again.
    pub(super) fn is_running_damaged(&self) -> bool {
        let running = self.running().digest.as_ref();
        running.is_some() && self.drift.told.values().any(|content| content.as_ref() == running)
    }

    /// True if the store is verified now, or about to be: what is damaged is to be found by that.
    pub(super) fn is_verified_soon(&self) -> bool {
        let soon = later(self.clock.now, limits::VERIFY_DELAY);
        self.asks.is_open(Asker::Drift) || self.drift.next.at().is_some_and(|due| due <= soon)
    }

    /// Somebody writes in the store: it is verified once that is over.
    pub(super) fn store_touched(&mut self) {
        if self.drift.next.at().is_none() {
            self.drift.next.set(self.clock.after(limits::VERIFY_DELAY));
        }
    }

    /// Has the store verified, while a kubelet runs and the record is at rest.
    pub(super) fn tick_drift(&mut self) {
        let due = self.is_time_to_ask(Asker::Drift, &self.drift.next);
        let at_rest = self.process.run().is_some()
            && self.writer.is_idle()
            && !self.is_unsaved()
            && self.writer.read_only().is_none();
        if !due || !at_rest || self.is_leaving() {
            return;
        }
        let versions: BTreeSet<Version> = self.writer.all().flat_map(Records::versions).cloned().collect();
        self.drift.next.begin();
        self.ask(Asker::Drift, limits::STORE_DEADLINE, |ticket| Effect::Store(StoreRequest::Verify(ticket, versions)));
    }

    /// What was found, which is told once.
    pub(super) fn verified(&mut self, found: Verification) {
        if found == Verification::default() {
            self.drift.next.settle();
        } else {
            // The store is verified again in any case. Another program that writes the same file, or a full disk, makes no loop of it.
            self.drift.next.grow(limits::VERIFY, &self.clock);
        }
        let before = std::mem::take(&mut self.drift.told);
        if found.is_partial {
            self.drift.told.clone_from(&before);
        }
        for damage in found.damage {
            let mended = damage.mended.is_ok();
            if let Some(content) = damage.content.as_ref().filter(|_| mended) {
                self.versions.note_whole(content, self.clock.now);
            }
            if mended || !before.contains_key(&damage.what) {
                let assigned = self.records().assigned.as_ref().map(|version| &version.source);
                let downloads = !mended && damage.source.is_some() && damage.source.as_ref() == assigned;
                self.emit(events::drift(&damage, downloads));
                if downloads {
                    self.download_again();
                }
            }
            if !mended {
                self.drift.told.insert(damage.what, damage.content);
            }
        }
    }
}
