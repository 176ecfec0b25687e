//! The bytes of one uid and resourceVersion never change. An API server that gives other bytes under a known version lies, or
//! was set back to an older backup: they are refused and told, and what is known of the version stands.

use kubelet_config::digest::Digest;
use kubelet_config::source::{Payload, Source};

use super::records::Records;
use super::{State, events, limits};

/// What a version's bytes are known by: the key in the ConfigMap is no part of it.
pub(super) fn key(source: &Source) -> String {
    format!("{}/{}", source.uid, source.resource_version)
}

impl Records {
    /// The bytes of this version, if they are known. What root writes into the local files is root's.
    pub(super) fn payload(&self, source: &Source) -> Option<&Digest> {
        self.payloads.get(&key(source)).filter(|_| !source.is_local_files())
    }

    /// These are its bytes. Of what no version here names nothing is kept.
    fn note_payload(&mut self, source: &Source, identity: Digest) {
        if source.is_local_files() {
            return;
        }
        let named: Vec<String> = self.versions().map(|version| key(&version.source)).collect();
        self.payloads.retain(|known, _| named.contains(known));
        self.payloads.insert(key(source), identity);
    }
}

impl State {
    /// True if other bytes are on record as this version's.
    pub(super) fn has_other_bytes(&self, source: &Source, payload: &Payload) -> bool {
        self.records().payload(source).is_some_and(|known| *known != payload.identity())
    }

    /// The version's bytes are on the disk. They are written down with the decision on it; until then their seal counts.
    pub(super) fn note_payload(&mut self, source: &Source, identity: &Digest) {
        self.writer.learn(|records| records.note_payload(source, identity.clone()));
    }

    /// It is told once a version, and shown until the API server says something else.
    pub(super) fn refuse_other_bytes(&mut self, source: &Source) {
        let why = told(source);
        if self.sync.note_liar(key(source), why.clone(), limits::UNUSABLE_KEPT) {
            self.emit(events::rejected_bytes(source, &why));
        }
    }
}

/// What is wrong, and what to do.
pub(super) fn told(source: &Source) -> String {
    format!(
        "the API server gives other bytes under this uid and resourceVersion than before, and they are not taken up: {source}; write \
         the ConfigMap anew (any change gives it another resourceVersion), and find out who changed what the API server stores"
    )
}
