//! What is removed from the disk: all that nothing refers to any more.

use std::collections::BTreeSet;

use super::State;
use super::io::{Effect, StoreRequest};
use super::records::{Records, Version};
use kubelet_config::digest::Digest;
use kubelet_config::source::Source;

impl State {
    /// Has checkpoints and configurations removed that nothing refers to.
    pub(super) fn collect(&mut self) {
        if self.on_request.is_under_way() {
            self.on_request.note_content(true); // once it is answered
            return;
        }
        if !self.is_collecting() || self.is_unsaved() || self.is_change_imminent() {
            return;
        }
        self.on_request.note_content(false);
        let mut versions: BTreeSet<&Version> = BTreeSet::new();
        versions.extend(self.writer.all().flat_map(Records::versions));
        versions.extend(self.running().version.as_ref().into_iter().chain(self.launch.next()));
        let mut sources: BTreeSet<Source> = versions.iter().map(|version| version.source.clone()).collect();
        let mut digests: BTreeSet<Digest> = versions.iter().filter_map(|version| version.digest.clone()).collect();
        digests.extend(self.running().digest.clone());
        if let Some((source, digest)) = self.change_held_back() {
            sources.extend(source.cloned());
            digests.insert(digest.clone());
        }
        self.versions.keep_known(&digests);
        self.effects.push(Effect::Store(StoreRequest::Collect(sources, digests)));
    }

    /// True if it is known what is needed.
    pub(super) fn is_collecting(&self) -> bool {
        !self.keep_all && self.writer.read_only().is_none()
    }
}
