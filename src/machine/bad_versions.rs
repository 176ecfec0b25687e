//! What is remembered of failed versions.

use super::io::log;
use super::limits;
use super::model::KubeletId;
use super::record::BadVersion;
use super::{ConfigMapState, Counter, Effect, Level, Records, State};
use kubelet_config::digest::Digest;
use kubelet_config::source::Source;
use kubelet_config::status::{self, SyncError};

impl State {
    /// What is remembered of a version that failed before, if it still holds.
    pub(super) fn bad_version(&self, source: &Source, digest: Option<&Digest>) -> Option<&BadVersion> {
        self.records().local_state.bad.iter().rev().find(|bad| {
            (bad.kubelet == self.kubelet_id || bad.kubelet == KubeletId::ANY)
                && match (&bad.digest, digest) {
                    (Some(bad), Some(digest)) => bad == digest,
                    _ => bad.source == *source,
                }
        })
    }

    /// True if the control test cleared it, and last known good has not been healthy for long enough since.
    pub(super) fn awaits_retry(&self, source: &Source) -> bool {
        !self.recovered
            && self.records().local_state.retry_later.as_ref().is_some_and(|retry_later| retry_later.source == *source)
    }

    /// Remembers that a version failed, in the status and durably.
    pub(super) fn remember_bad(
        &mut self,
        source: &Source,
        digest: Option<&Digest>,
        reason: &str,
        error: &str,
        detail: &str,
        fx: &mut Vec<Effect>,
    ) {
        self.error = Some((error.to_owned(), detail.to_owned()));
        let records = self.with_bad_version(source, digest, reason, error, detail);
        self.remember(records, fx);
    }

    /// The records with a further bad version in them.
    pub(super) fn with_bad_version(
        &self,
        source: &Source,
        digest: Option<&Digest>,
        reason: &str,
        error: &str,
        detail: &str,
    ) -> Records {
        let mut records = self.records().clone();
        let bad = &mut records.local_state.bad;
        bad.retain(|bad| bad.source != *source || bad.digest.as_ref() != digest);
        bad.push(BadVersion {
            source: source.clone(),
            digest: digest.cloned(),
            kubelet: self.kubelet_id.clone(),
            error: error.to_owned(),
            detail: detail.to_owned(),
            reason: reason.to_owned(),
            time: status::timestamp(self.now.wall_nanos),
            version: self.version.clone().unwrap_or_default(),
            log_tail: self
                .log_tail
                .get(self.log_tail.len().saturating_sub(limits::LOG_LINES_KEPT)..)
                .unwrap_or_default()
                .to_vec(),
        });
        let excess = bad.len().saturating_sub(limits::BAD_VERSIONS);
        bad.drain(..excess);
        if records.local_state.attempt.as_ref().is_some_and(|attempt| attempt.source == *source) {
            records.local_state.attempt = None;
        }
        records
    }

    /// Has records written that nothing waits for; if it fails they are written later.
    pub(super) fn remember(&mut self, records: Records, fx: &mut Vec<Effect>) {
        self.unsaved = Some(records.clone());
        fx.push(Effect::Record(super::RecordReason::Memory, records));
    }

    pub(super) fn record_failed(&mut self, why: &str, fx: &mut Vec<Effect>) {
        fx.push(Effect::Count(Counter::StoreError));
        let why = format!("the store cannot be written: {why}");
        // No change is taken up until the records are written; the status says so.
        if matches!(self.config_map, ConfigMapState::Present(_)) {
            self.sync_failed(SyncError::Internal, why, fx);
        } else {
            log(fx, Level::Warn, why);
        }
        self.back_off();
    }
}
