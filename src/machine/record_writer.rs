//! The durable record: propose, write, apply. One write is under way at a time.
//!
//! A decision is proposed; what follows from it is done once it is durable. What takes a version away from running, the
//! count of its tries, what is left of a wait for a confirmation and that a version was not to blame count at once, and are
//! written as soon as the disk takes them.

use super::asks::Asker;
use super::clock::Clock;
use super::io::{Effect, StoreRequest};
use super::limits;
use super::model::Moment;
use super::pause::Pause;
use super::proposal::Proposal;
use super::records::{Attempt, Records};
use super::{Counter, Level, State};

/// A write under way.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Write {
    records: Records,
    /// What is decided by it, and what counts then: these records with what was learned meanwhile. `None`: what counts
    /// already is written down.
    proposed: Option<(Proposal, Records)>,
    /// No kubelet is started until then: what was decided is durable before it runs, unless the disk takes its time.
    holds_start_until: Moment,
}

/// Writes fail.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Failing {
    next: Pause,
    why: String,
}

/// The records in force and on disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RecordWriter {
    current: Records,
    saved: Records,
    /// What counts is neither on the disk nor on its way there, or may not be.
    dirty: bool,
    write: Option<Write>,
    /// Something else was decided while the write is under way.
    overtaken: bool,
    /// The last write failed.
    failing: Option<Failing>,
    /// Why nothing may be written.
    read_only: Option<String>,
}

impl RecordWriter {
    /// The records as they were read; or those that must do, and why nothing may be written.
    pub(super) fn new(records: Records, read_only: Option<String>) -> Self {
        Self { current: records.clone(), saved: records, read_only, ..Self::default() }
    }

    /// The evidence on the version that is tried; what changes there is written with the next record.
    pub(super) fn attempt_mut(&mut self) -> Option<&mut Attempt> {
        self.current.phase.attempt_mut()
    }

    /// The version on trial was in contact for so long that a later loss is not its doing, until the machine boots.
    pub(super) fn note_contact(&mut self, boot_id: &str) {
        if let Some(attempt) = self.current.phase.attempt_mut().filter(|attempt| attempt.contact_boot != boot_id) {
            boot_id.clone_into(&mut attempt.contact_boot);
            self.write_soon();
        }
    }

    /// A fact contradicts no decision: it counts now, and in what is being decided. Written with the next record.
    pub(super) fn learn(&mut self, fact: impl Fn(&mut Records)) {
        fact(&mut self.current);
        if let Some((_, records)) = self.write.as_mut().and_then(|write| write.proposed.as_mut()) {
            fact(records);
        }
    }

    /// What counts is written as soon as that is possible.
    pub(super) fn write_soon(&mut self) {
        self.dirty |= self.read_only.is_none();
    }

    /// The records that count, those on disk, and those on their way there: what they name must not be removed.
    pub(super) fn all(&self) -> impl Iterator<Item = &Records> {
        let proposed = self.write.as_ref().and_then(|write| write.proposed.as_ref());
        [&self.current, &self.saved].into_iter().chain(proposed.map(|(_, records)| records))
    }

    /// True if a decision can be proposed.
    pub(super) fn is_idle(&self) -> bool {
        self.write.is_none() && !self.dirty && self.read_only.is_none()
    }

    pub(super) fn is_writing(&self) -> bool {
        self.write.is_some()
    }

    /// True if the next start waits for the write under way.
    pub(super) fn holds_start(&self, clock: &Clock) -> bool {
        self.write.as_ref().is_some_and(|write| !clock.reached(write.holds_start_until))
    }

    /// Why nothing may be written, if so.
    pub(super) fn read_only(&self) -> Option<&str> {
        self.read_only.as_deref()
    }

    /// Why the last write failed, if it did.
    pub(super) fn failure(&self) -> Option<&str> {
        self.failing.as_ref().map(|failing| &*failing.why)
    }

    /// Why nothing can be written for now, or ever in this life.
    pub(super) fn obstacle(&self) -> Option<&str> {
        self.read_only().or(self.failure())
    }

    /// A decision: these records count from now on, and are written as soon as that is possible.
    pub(super) fn apply_before_write(&mut self, records: Records) {
        self.current = records;
        self.write_soon();
        self.overtaken = true;
    }
}

impl State {
    /// The records in force.
    #[must_use]
    pub fn records(&self) -> &Records {
        &self.writer.current
    }

    /// The records as they are on disk, as far as is known.
    #[must_use]
    pub fn saved(&self) -> &Records {
        &self.writer.saved
    }

    /// True if what counts has yet to be written, or may not have been, or was given up.
    #[must_use]
    pub fn is_unsaved(&self) -> bool {
        self.writer.dirty
    }

    /// Has these records written; they count once they are durable, and what follows is done by [`Self::recorded`].
    pub(super) fn propose(&mut self, records: Records, proposal: Proposal) {
        let proposed = Some((proposal, records.clone()));
        self.submit(records, proposed);
    }

    fn submit(&mut self, records: Records, proposed: Option<(Proposal, Records)>) {
        let written = Box::new(records.clone());
        self.ask(Asker::Writer, limits::STORE_DEADLINE, |ticket| Effect::Store(StoreRequest::Record(ticket, written)));
        let holds_start_until = self.clock.after(limits::LOAD_DEADLINE);
        self.writer.write = Some(Write { records, proposed, holds_start_until });
        self.writer.overtaken = false;
    }

    /// Writes what counts and is not durable, if nothing is in the way of that.
    pub(super) fn write(&mut self) {
        let due = self.writer.failing.as_ref().is_none_or(|failing| !failing.next.lasts(&self.clock));
        if self.writer.dirty && self.writer.write.is_none() && self.writer.read_only.is_none() && due {
            // What fails or is given up is due once more.
            self.writer.dirty = false;
            self.submit(self.records().clone(), None);
        }
    }

    /// The supervisor ends: what counts is written, whatever is under way before it.
    pub(super) fn flush(&mut self) {
        if std::mem::take(&mut self.writer.dirty) && self.writer.read_only.is_none() {
            self.submit(self.records().clone(), None);
        }
    }

    /// The answer to the write.
    pub(super) fn written(&mut self, result: Result<(), String>) {
        let Some(write) = self.writer.write.take() else { return };
        if let Err(why) = result {
            return self.write_failed(write, &why);
        }
        self.writer.failing = None;
        self.writer.saved = write.records;
        let Some((proposal, mut records)) = write.proposed else { return };
        if self.writer.overtaken {
            return self.recorded(proposal, Err("something else was decided meanwhile".to_owned()));
        }
        keep_evidence(&self.writer.current, &mut records);
        self.writer.current = records;
        self.recorded(proposal, Ok(()));
    }

    /// Either text may be on disk now: what counts is written back.
    fn write_failed(&mut self, write: Write, why: &str) {
        let mut next = self.writer.failing.as_ref().map(|failing| failing.next.clone()).unwrap_or_default();
        next.grow(limits::RETRY, &self.clock);
        self.writer.dirty = true;
        self.count(Counter::StoreError);
        let why = format!("the store cannot be written: {why}");
        if self.writer.failure() != Some(&why) {
            self.log(Level::Warn, why.clone());
        }
        self.writer.failing = Some(Failing { next, why: why.clone() });
        if let Some((proposal, _)) = write.proposed {
            self.recorded(proposal, Err(why));
        }
    }
}

/// What was seen of the version while the write was under way is not lost.
fn keep_evidence(current: &Records, written: &mut Records) {
    if let (Some(seen), Some(attempt)) = (current.phase.attempt(), written.phase.attempt_mut())
        && seen.version.digest == attempt.version.digest
        && seen.tries == attempt.tries
    {
        attempt.earned = seen.earned;
        attempt.suspended = seen.suspended;
        (attempt.exits, attempt.breaks) = (seen.exits, seen.breaks);
        attempt.progress.clone_from(&seen.progress);
        attempt.contact_boot.clone_from(&seen.contact_boot);
        attempt.failed = seen.failed;
        attempt.runtime_answered |= seen.runtime_answered;
    }
}
