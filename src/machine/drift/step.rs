//! The store is verified.

use std::collections::BTreeSet;

use crate::machine::asks::Asker;
use crate::machine::io::{Effect, StoreRequest};
use crate::machine::model::{Verification, later};
use crate::machine::records::{Records, Version};
use crate::machine::{State, events, limits};
use kubelet_config::duration;

impl State {
    /// What in the store is not as it was written, and could not be put right.
    pub fn damage(&self) -> impl Iterator<Item = &str> {
        self.drift.told.keys().map(String::as_str)
    }

    /// True if what runs is not there to be started again.
    pub(in crate::machine) fn is_running_damaged(&self) -> bool {
        let running = self.running().digest.as_ref();
        running.is_some() && self.drift.told.values().any(|content| content.as_ref() == running)
    }

    /// True if the store is verified now, or about to be: what is damaged is to be found by that.
    pub(in crate::machine) fn is_verified_soon(&self) -> bool {
        self.asks.is_open(Asker::Drift) || self.drift.is_due(self.now)
    }

    /// Somebody writes in the store: it is verified once that is over.
    pub(in crate::machine) fn store_touched(&mut self) {
        let due = later(self.now, limits::VERIFY_DELAY);
        self.drift.due.get_or_insert(due);
    }

    /// Has the store verified, while a kubelet runs and the record is at rest.
    pub(in crate::machine) fn tick_drift(&mut self, fx: &mut Vec<Effect>) {
        let due = self.is_time_to_ask(Asker::Drift, self.drift.due);
        let at_rest = self.process.run().is_some()
            && self.writer.is_idle()
            && !self.writer.is_dirty()
            && self.writer.read_only().is_none();
        if !due || !at_rest || self.process.is_leaving() {
            return;
        }
        let versions: BTreeSet<Version> = self.writer.all().flat_map(Records::versions).cloned().collect();
        self.drift.due = None;
        self.ask(Asker::Drift, limits::STORE_DEADLINE, fx, |ticket| {
            Effect::Store(StoreRequest::Verify(ticket, versions))
        });
    }

    /// What was found, which is told once.
    pub(in crate::machine) fn verified(&mut self, found: Verification, fx: &mut Vec<Effect>) {
        if found == Verification::default() {
            self.drift.rounds = 0;
        } else {
            // It is verified again in any case; whoever fights over a file, or a disk that is full, is not met in a loop.
            let pause = duration::backoff(limits::VERIFY_DELAY, limits::VERIFY_RETRY, self.drift.rounds);
            self.drift.rounds = self.drift.rounds.saturating_add(1);
            self.drift.due = Some(later(self.now, pause));
        }
        let before = std::mem::take(&mut self.drift.told);
        if found.is_partial {
            self.drift.told.clone_from(&before);
        }
        for damage in found.damage {
            let mended = damage.mended.is_ok();
            if let Some(content) = damage.content.as_ref().filter(|_| mended) {
                self.launch.is_whole(content, self.now);
            }
            if mended || !before.contains_key(&damage.what) {
                let assigned = self.records().assigned.as_ref().map(|version| &version.source);
                let downloads = !mended && damage.source.is_some() && damage.source.as_ref() == assigned;
                fx.push(Effect::Emit(events::drift(&damage, downloads)));
                if downloads {
                    self.download_again(fx);
                }
            }
            if !mended {
                self.drift.told.insert(damage.what, damage.content);
            }
        }
    }
}
