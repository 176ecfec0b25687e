//! The first decision: what the records say, and whether the assigned version has a try left.

use std::time::Duration;

use super::asks::{Asker, Observation};
use super::evidence::Failure;
use super::io::{Effect, StoreRequest, no_answer};
use super::model::{Beginning, KubeletId, Moment};
use super::pause::Pause;
use super::record_writer::RecordWriter;
use super::records::{ConfirmationWait, Phase, RecordFile, Records, Stored};
use super::{Kubelet, Level, RunningConfig, State, events, limits};

/// The reading of the records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Reading {
    /// When it is given up, or done once more.
    next: Pause,
    /// It was waited for, and there is no answer.
    is_late: bool,
    /// What the version on trial failed by before this one began.
    missed: Option<Missed>,
}

/// A failure that no worker saw.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Missed {
    failure: Failure,
    /// What the kubelet ran that ended.
    ran: Option<RunningConfig>,
    /// It is an exit that was counted against the version on trial.
    is_counted: bool,
    /// What to say of it.
    detail: String,
    /// An observation of the node is waited for until then.
    until: Moment,
}

impl State {
    pub(super) fn boot(&mut self, beginning: Beginning) {
        if *self.kubelet() == Kubelet::NotBegun && !self.asks.is_open(Asker::Records) {
            self.worker = 1;
            if let Beginning::Worker { running, why, generation } = beginning {
                self.worker = generation;
                self.process.note_former(running);
                self.emit(events::worker_replaced(why.as_deref(), generation));
            }
            self.read_records();
            self.store_touched(); // by whoever was here before
        }
    }

    /// It was waited for at the start, and there is no answer.
    pub(super) fn is_reading_late(&self) -> bool {
        *self.kubelet() == Kubelet::NotBegun && self.reading.is_late
    }

    /// A worker after another begins: the supervisor was not started anew.
    fn is_successor(&self) -> bool {
        self.worker > 1
    }

    fn read_records(&mut self) {
        let ticket = self.asks.ticket(Asker::Records).unwrap_or_else(|| self.asks.ask_for_ever(Asker::Records));
        let patience = match self.kubelet() {
            Kubelet::NotBegun if self.reading.next.at().is_none() => limits::LOAD_DEADLINE,
            _ => limits::STORE_DEADLINE,
        };
        self.reading.next.set(self.clock.after(patience));
        self.effects.push(Effect::Store(StoreRequest::ReadRecords(ticket)));
    }

    /// The records are asked for once more where they could not be read; a kubelet is started all the same.
    pub(super) fn tick_reading(&mut self) {
        if !self.reading.next.is_due(&self.clock) {
            return;
        }
        if *self.kubelet() == Kubelet::NotBegun && self.process.former().is_some() {
            // The kubelet runs on the best that was known: the record is waited for.
            self.log(Level::Warn, "the record of this node cannot be read yet: the kubelet goes on as it is");
            self.reading.is_late = true;
            self.read_records();
        } else if *self.kubelet() == Kubelet::NotBegun {
            let why = format!("the store: {}", no_answer(limits::LOAD_DEADLINE));
            self.log(Level::Warn, format!("{why}: the kubelet is started with its local configuration"));
            self.writer = RecordWriter::new(Records::default(), Some(why));
            self.begin();
            self.reading.next.set(self.clock.after(limits::STORE_DEADLINE)); // the answer is late, or lost
        } else {
            self.read_records();
        }
    }

    pub(super) fn records_read(&mut self, stored: Stored, id: KubeletId) {
        self.process.note_kubelet(id);
        let first = *self.kubelet() == Kubelet::NotBegun;
        if let RecordFile::Garbage(why) = &stored.state {
            self.log(Level::Warn, format!("supervisor/state.json is no record of ours ({why}); it is written anew"));
        }
        for (name, record) in [("assigned", &stored.assigned), ("last-known-good", &stored.last_known_good)] {
            if let Err(why) = record {
                self.log(Level::Warn, format!("the record meta/{name} is unreadable ({why}); it is written anew"));
            }
        }
        let meta_lost = stored.assigned.is_err() || stored.last_known_good.is_err();
        self.keep_all = meta_lost && !matches!(stored.state, RecordFile::Read(_));
        let (records, read_only) = stored.into_records();
        self.reading = match &read_only {
            None => Reading::default(),
            Some(why) => {
                if self.writer.read_only() != Some(why) {
                    let hint = "nothing is recorded and no change taken up until it can be read; to begin without it, remove it and restart";
                    self.log(Level::Warn, format!("supervisor/state.json cannot be read: {why}: {hint}"));
                }
                let mut next = self.reading.next.clone();
                next.grow(limits::READ_RETRY, &self.clock);
                Reading { next, ..Reading::default() }
            }
        };
        if !first && read_only.is_some() {
            return; // what is known is kept
        }
        self.writer = RecordWriter::new(records, read_only);
        if self.writer.read_only().is_none() {
            // Whatever of it is torn or missing is written anew; the rest costs nothing.
            self.writer.write_soon();
            self.spend_try();
            if self.is_successor() {
                self.miss_former();
            }
        }
        if first && self.writer.read_only().is_some() && self.process.former().is_some() {
            return; // asked once more: the kubelet goes on as it is
        }
        if first {
            self.begin();
        } else {
            self.note_run();
            self.new_decision(); // of what the records say of it nothing was observed so far
        }
    }

    /// The try is spent before trying.
    fn spend_try(&mut self) {
        let is_successor = self.is_successor();
        if let Some(attempt) = self.writer.attempt_mut() {
            (attempt.earned, attempt.suspended) = (Duration::ZERO, false);
            attempt.progress.take_if(|_| !is_successor);
        }
        if !is_successor {
            self.writer.learn(|records| records.started = None);
            self.try_local_again();
        }
        let mut records = self.records().clone();
        match (&mut records.phase, &records.pin) {
            (Phase::Trial(attempt), None) if !self.is_successor() => {
                let spent = Some(attempt.tries).filter(|tries| *tries >= self.settings.boots);
                let detail = |tries| format!("{tries} starts of the supervisor passed without proof");
                let until = self.clock.now;
                self.reading.missed = spent.map(|tries| Missed {
                    failure: Failure::Boots,
                    ran: None,
                    is_counted: false,
                    detail: detail(tries),
                    until,
                });
                attempt.tries += 1;
            }
            // Another boot's clock: it goes on with what was noted, less what may have passed since. So a node that reboots
            // in a loop comes to the end of the wait.
            (Phase::AwaitingConfirmation(_, wait), None) if wait.boot_id != self.settings.boot_id() => {
                let left = wait.left.saturating_sub(limits::CONFIRM_RECORD_INTERVAL.as_secs());
                *wait = ConfirmationWait::within(left, self.clock.now, self.settings.boot_id());
            }
            _ => return,
        }
        self.writer.apply_before_write(records);
    }

    /// True while it is to be found out whether a version has failed, is what we would fall back to, or the node was at fault.
    pub(super) fn is_try_open(&self) -> bool {
        let asks = self.asks.is_open(Asker::Observed(Observation::Environment));
        let is_open =
            |missed: &Missed| self.judgement().is_way_back_awaited() || asks && !self.clock.reached(missed.until);
        self.reading.missed.as_ref().is_some_and(is_open)
    }

    /// A kubelet that a worker before us left is gone. Where that may be held against something, the node is looked at first.
    pub(super) fn miss_former(&mut self) {
        let former = self.process.former();
        let started = self.records().started.clone().filter(|started| former != Some(started.run));
        if started.is_some() {
            self.writer.learn(|records| records.started = None);
        }
        let exits = self.count_missed_exit();
        let is_tested = self.records().reset.is_some() || matches!(self.records().phase, Phase::ControlTest(..));
        let ran = started.map(|started| started.config).filter(|_| is_tested);
        if exits.is_none() && ran.is_none() {
            return;
        }
        let times = exits.map_or(String::new(), |exits| format!(" {exits} times within the trial, last"));
        let detail = format!("the kubelet ended{times} while no worker watched it");
        self.log(Level::Warn, detail.clone());
        self.observe(Observation::Environment);
        let until = self.clock.after(limits::QUERY_DEADLINE);
        let is_counted = exits.is_some();
        self.reading.missed = Some(Missed { failure: Failure::Exits, ran, is_counted, detail, until });
    }

    /// Nothing runs any more, and no record has been read so far: that is waited for no longer than at any other start.
    pub(super) fn begin_without_former(&mut self) {
        if *self.kubelet() != Kubelet::NotBegun {
            return;
        }
        if self.writer.read_only().is_some() {
            self.begin(); // with the best that is known
        } else {
            let soon = self.clock.after(limits::LOAD_DEADLINE);
            self.reading.next.set_latest(soon);
        }
    }

    /// An exit that no worker saw, once the node was looked at. True if the version on trial fails by it: one while the node is known to
    /// be ill does not count.
    fn is_failed_by_missed_exit(&mut self, missed: &Missed) -> bool {
        let seen = self.health.environment(&self.clock);
        let is_ill =
            seen.is_some_and(|seen| seen.disk_full || seen.shutting_down) || self.judgement().is_runtime_away();
        if let Some(ran) = missed.ran.as_ref().filter(|_| !is_ill) {
            self.count_exit_after_reset(ran, "while no worker watched it");
        }
        if let Some(ran) = &missed.ran {
            self.note_exit_in_test(ran, &missed.detail);
        }
        let Some(attempt) = self.writer.attempt_mut().filter(|_| missed.is_counted) else { return false };
        attempt.exits = attempt.exits.saturating_sub(u32::from(is_ill));
        let counts = attempt.exits >= limits::TRIAL_EXITS;
        self.writer.write_soon();
        counts
    }

    /// A version that was tried at too many starts has failed, or one whose kubelet ended too often.
    pub(super) fn tick_tries(&mut self) {
        if self.is_try_open() {
            return;
        }
        let Some(missed) = self.reading.missed.take() else { return };
        if missed.failure == Failure::Exits && !self.is_failed_by_missed_exit(&missed) {
            return;
        }
        if self.records().phase.trial().is_some_and(|attempt| self.judgement().can_fail(&attempt.version)) {
            self.roll_back(missed.failure, &missed.detail);
        }
    }

    /// A clean stop gives the try back.
    pub(super) fn give_try_back(&mut self) {
        let mut records = self.records().clone();
        let left = self.confirm_left();
        match &mut records.phase {
            Phase::Trial(_) if records.pin.is_some() => return, // none was spent
            Phase::Trial(attempt) => attempt.tries = attempt.tries.saturating_sub(1),
            Phase::AwaitingConfirmation(..) if records.pin.is_some() => return,
            Phase::AwaitingConfirmation(_, wait) => wait.left = left.unwrap_or(wait.left),
            _ => return,
        }
        self.writer.apply_before_write(records);
    }
}
