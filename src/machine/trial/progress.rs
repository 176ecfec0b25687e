//! A trial that outlives the worker: what was seen of the kubelet is written down now and then, and the next worker goes on
//! with it where the same kubelet runs.

use std::time::Duration;

use crate::machine::evidence::{FailedRun, Signal};
use crate::machine::model::{Moment, RunId, earlier};
use crate::machine::records::Progress;
use crate::machine::{Run, State, limits};

impl State {
    /// A run begins, or goes on: what is on record is of it from now on.
    pub(in crate::machine) fn begin_progress(&mut self) {
        let resumed = self.process.run().is_some_and(|run| run.resumed.is_some());
        if resumed && let Some((progress, attempt)) = self.progress_of_run().zip(self.writer.attempt_mut()) {
            // Once it is seen to be well, as after a suspension: what lies between is no credit.
            (attempt.earned, attempt.suspended) = (progress.earned, true);
        }
        self.judge_last_heartbeat();
        if self.judgement().is_on_trial() {
            self.note_progress();
        } else {
            self.forget_progress();
        }
    }

    /// One that went on while the worker was replaced. Where nothing was written down nobody saw when it came up: its start's
    /// time-out begins now, and any heartbeat may be its own.
    pub(in crate::machine) fn resumed_run(&self, id: RunId, ready: Option<Duration>) -> Run {
        let now = self.clock.now;
        let started = earlier(now, now.boot.saturating_sub(id.started));
        let ready_at = ready.map(|ready| earlier(now, now.boot.saturating_sub(ready)));
        let unseen = Run { id, started, resumed: Some(now), ready_at, start_timeout_from: now, ..Run::default() };
        let noted = self.records().phase.trial().filter(|_| self.judgement().is_on_trial());
        match noted.and_then(|attempt| attempt.progress.as_ref()).filter(|progress| progress.run == id) {
            Some(progress) => Self::seen_before(&unseen, progress, now),
            None => unseen,
        }
    }

    /// What was seen of it is as long ago as it was when that was written down.
    fn seen_before(unseen: &Run, progress: &Progress, now: Moment) -> Run {
        let since = |lasted: Duration| earlier(now, lasted);
        Run {
            was_up: progress.starting.is_none(),
            start_timeout_from: progress.starting.map_or(unseen.started, since),
            bad: progress.bad.iter().map(|(signal, lasted)| (*signal, since(*lasted))).collect(),
            good: progress.heard.then_some((Signal::ApiServer, now)).into_iter().collect(),
            heartbeat: progress.heartbeat.clone(),
            ..*unseen
        }
    }

    /// What is on record of the kubelet that runs, if it is on trial.
    fn progress_of_run(&self) -> Option<Progress> {
        let run = self.process.run().filter(|_| self.judgement().is_on_trial())?;
        self.records().phase.trial()?.progress.clone().filter(|progress| progress.run == run.id)
    }

    /// What a worker that goes on with this run has to know.
    fn progress(&self) -> Option<Progress> {
        let run = self.process.run().filter(|_| self.judgement().is_on_trial())?;
        let attempt = self.records().phase.trial()?;
        let now = self.clock.now;
        let earned = match run.healthy_since {
            Some(since) => attempt.earned + now.since(since),
            None if attempt.suspended => attempt.earned,
            None => Duration::ZERO,
        };
        // A worker that has seen nothing so far gets some time to, before it holds anything against the kubelet. Pods that were
        // turned away are seen anew.
        let short_of = |patience: Duration| patience.saturating_sub(limits::SUSPENSION_GRACE);
        let bad = run.held_against().filter(|(signal, _)| *signal != Signal::Pods);
        let bad =
            bad.map(|(signal, since)| (signal, now.since(since).min(short_of(self.judgement().patience(signal)))));
        let was_ready = run.good.contains_key(&Signal::NodeReady);
        Some(Progress {
            run: run.id,
            earned: earned.min(self.settings.trial_duration),
            starting: (!run.was_up)
                .then(|| now.since(run.start_timeout_from).min(short_of(self.settings.start_timeout))),
            bad: bad.collect(),
            heard: run.is_good(Signal::ApiServer),
            heartbeat: if was_ready { String::new() } else { run.heartbeat.clone() },
        })
    }

    /// Writes it down, if it is something else than what is on record.
    pub(in crate::machine) fn note_progress(&mut self) {
        let progress = self.progress();
        let (first, most, now) = (limits::PROGRESS_FIRST, limits::PROGRESS_INTERVAL, self.clock.now);
        let resumed = self.process.run().and_then(|run| run.resumed);
        let pause = resumed.map_or(most, |resumed| now.since(resumed).clamp(first, most));
        self.trial.note_at = progress.as_ref().map(|_| self.clock.after(pause));
        if let Some(attempt) = self.writer.attempt_mut().filter(|_| progress.is_some())
            && attempt.progress != progress
        {
            attempt.progress = progress;
            self.writer.write_soon();
        }
    }

    pub(super) fn tick_progress(&mut self) {
        if self.trial.note_at.is_none_or(|at| self.clock.reached(at)) {
            self.note_progress();
        }
    }

    /// The run ends, by itself or for us: nobody goes on with it, and it is not missed. Where this is not written down in time the
    /// next worker misses the run, and that is counted as one exit as well. True if there is something to write.
    pub(in crate::machine) fn forget_progress(&mut self) -> bool {
        let Some(attempt) = self.writer.attempt_mut() else { return false };
        (attempt.earned, attempt.suspended) = (Duration::ZERO, false); // it was earned by that very process
        attempt.progress.take().is_some()
    }

    /// The run that is on record ended while no worker was there: one exit, as nobody else could have ended it. What a worker
    /// ends itself is no longer on record: neither with the decision to switch, nor with another stop.
    pub(in crate::machine) fn count_missed_exit(&mut self) -> Option<u32> {
        let (former, now) = (self.process.former(), self.clock.now);
        let progress = self.writer.attempt_mut()?.progress.take_if(|progress| former != Some(progress.run))?;
        self.writer.write_soon();
        let counts = self.records().pin.is_none() && self.records().phase.trial().is_some();
        let attempt = self.writer.attempt_mut().filter(|_| counts)?;
        let lacked_contact = attempt.failed.lacked_contact || progress.bad.contains_key(&Signal::ApiServer);
        let lived = now.boot.saturating_sub(progress.run.started); // at the most
        attempt.failed = FailedRun { lived, lacked_contact, ..FailedRun::default() };
        (attempt.exits, attempt.earned) = (attempt.exits.saturating_add(1), Duration::ZERO);
        Some(attempt.exits)
    }
}
