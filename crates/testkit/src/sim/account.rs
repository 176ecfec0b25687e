//! An account of what happened, kept beside the machine.

use std::time::Duration;

use kubelet_config::source::Source;
use kubelet_supervisor::machine::evidence::{Baseline, FailureFamily, Signal};
use kubelet_supervisor::machine::limits;

use super::checks::Reader;
use super::kubelet::Process;
use super::laws::{Law, Tally};
use super::rules;
use super::world::Content;

/// A version that was said to have failed.
#[derive(Clone, Debug)]
pub(super) struct Failed {
    pub(super) source: Source,
    kubelet: String,
    /// It was on disk when it was said; if not, it holds for this life only.
    durable: bool,
}

/// A version that failed, and last known good that runs in its stead.
#[derive(Clone, Debug)]
pub(super) struct PendingControlTest {
    pub(super) source: Source,
    pub(super) family: FailureFamily,
    /// It failed alike: then the version is to be cleared by then.
    pub(super) due: Option<Duration>,
}

/// A pin: what, since when, and whether it was started since.
#[derive(Clone, Debug)]
pub struct Pinned {
    pub(super) source: Option<Source>,
    pub(super) since: Duration,
    pub(super) started: bool,
}

/// How much later than it could a decision may come.
pub const SLACK: Duration = Duration::from_secs(30);

/// What happened so far.
#[derive(Clone, Debug, Default)]
pub struct Account {
    /// Steps of the machine.
    pub steps: u64,
    pub tally: Tally,
    /// What broke a law, found where it happened.
    pub violations: Vec<(Law, String)>,
    /// The identity of the kubelet's binary as it was last told.
    pub known_kubelet: String,
    /// A fingerprint of all calls and their moments.
    pub fingerprint: u64,
    /// Operations of the disk that had failed when this life began.
    pub failures_before: u64,
    /// When an operation of the disk failed last, and how many had by then.
    pub failed_last: (u64, Duration),
    pub(super) reader: Reader,
    /// The supervisor was told to end.
    pub leaving: bool,
    /// The status was looked at since it was published.
    pub status_is_known: bool,
    /// Operations of the disk that had failed when it was last found in order.
    pub failures_seen: u64,
    /// A reset was asked for since the disk was last found in order: it may be half written.
    pub reset_requested: bool,
    pub(super) failed: Vec<Failed>,
    /// Contents that work, and were rolled back all the same.
    pub(super) unlucky: Vec<Content>,
    /// The unproven version that boots ran, and how many did since it was switched to.
    pub(super) boots: Option<(Source, u32)>,
    /// No kubelet was started in this life.
    pub(super) fresh: bool,
    /// The latest start of this life was of local.
    pub(super) runs_local: bool,
    /// What the latest start was given.
    pub(super) started: Option<Source>,
    /// Content that was stopped, and the identity of the binary then.
    pub(super) stopped: Option<(Content, String)>,
    /// The source it was said to run, which may have been adopted.
    pub(super) stopped_source: Option<Source>,
    /// Content that died by itself in this life, and how often in a row.
    pub(super) deaths: Option<(Content, u32)>,
    /// The process that exited last.
    pub(super) last: Option<Process>,
    /// Health of a process that is gone, and whether nothing excuses the break so far.
    pub(super) carried: Option<(Content, Duration, bool)>,
    /// An event that is emitted now is not one of an earlier process.
    pub is_new_event: bool,
    /// By what contents are, or were, judged.
    pub(super) baselines: Vec<(Content, Option<Baseline>)>,
    pub(super) control_test: Option<PendingControlTest>,
    /// Versions that failed and were cleared, and how often in a row.
    pub(super) cleared: Vec<(Source, u32)>,
    /// What waits for a confirmation, and until when.
    pub(super) awaits: Option<(Source, Duration)>,
    /// It is not to become last known good before that.
    pub(super) to_confirm: Option<Content>,
    pub pinned: Option<Pinned>,
    /// What was pinned runs on until there is something to follow, and is started again if it ends.
    pub(super) unpinned: Option<Source>,
    pub frozen: bool,
    /// An operator changed what was on its way.
    pub(super) overruled: bool,
    /// An operator's command is being obeyed.
    pub commanded: bool,
}

impl Account {
    pub fn trace(&mut self, what: u64, now: Duration) {
        let word = what ^ (u64::try_from(now.as_millis()).unwrap_or_default() << 8);
        self.fingerprint = (self.fingerprint ^ word).wrapping_mul(0x0000_0100_0000_01B3).rotate_left(23);
    }

    pub fn violate(&mut self, law: Law, why: String) {
        self.violations.push((law, why));
    }

    /// Counts a check; complains if it fails.
    pub(super) fn check(&mut self, law: Law, holds: bool, why: impl FnOnce() -> String) {
        self.tally.check(law);
        if !holds {
            self.violate(law, why());
        }
    }

    pub fn begin_life(&mut self, failures: u64) {
        self.failed.retain(|failed| failed.durable);
        (self.fresh, self.leaving, self.runs_local) = (true, false, false);
        self.reset_requested = false;
        self.failures_before = failures;
        (self.stopped, self.deaths, self.carried) = (None, None, None);
        (self.is_new_event, self.control_test, self.awaits, self.unpinned) = (false, None, None, None);
    }

    /// The records could not be read: what they said is forgotten.
    pub fn forget_records(&mut self) {
        self.failed.clear();
        self.cleared.clear();
        self.boots = None;
    }

    pub fn forget_tries(&mut self) {
        self.boots = None;
    }

    /// A clean stop gives the try back.
    pub fn end_life_cleanly(&mut self) {
        self.leaving = true;
        if let Some((_, tries)) = &mut self.boots {
            *tries = tries.saturating_sub(1);
        }
    }

    /// So does an end for a restart.
    pub fn end_for_restart(&mut self) {
        self.end_life_cleanly();
        self.leaving = false;
    }

    /// Health that a process of this content inherits.
    pub fn carried(&mut self, content: Content) -> (Duration, bool) {
        let carried = self.carried.take().filter(|(of, ..)| *of == content);
        carried.map_or((Duration::ZERO, true), |(_, health, broken)| (health, broken))
    }

    pub fn suspend_break(&mut self, lately: bool) {
        if let Some((_, _, broken)) = &mut self.carried {
            *broken &= !lately;
        }
    }

    pub fn note_exit(&mut self, process: &Process, active: Option<&Source>, now: Duration, excused: bool) {
        let content = process.content;
        self.stopped_source = active.cloned();
        self.last = Some(process.clone());
        self.carried = Some((content, process.earned, process.broken || (process.well_since.is_some() && !excused)));
        if process.stopping.is_some() {
            self.stopped = Some((content, self.known_kubelet.clone()));
            return;
        }
        if excused {
            return;
        }
        let before = self.deaths.filter(|(of, _)| *of == content).map_or(0, |(_, deaths)| deaths);
        self.deaths = Some((content, before + 1));
        let was_well = process.well_since.is_some_and(|since| now - since > Duration::from_secs(25));
        if let Some(control_test) = &mut self.control_test
            && control_test.family == FailureFamily::Process
            && !was_well
        {
            control_test.due.get_or_insert(now + limits::QUERY_DEADLINE + SLACK);
        }
    }

    /// Last known good was well for long enough, or nearly so.
    pub fn end_control_test(&mut self) {
        self.control_test.take_if(|control_test| control_test.due.is_none());
    }

    /// Last known good is on test for a version that failed.
    pub fn is_testing(&self) -> bool {
        self.control_test.is_some()
    }

    /// True if its trial judges by this.
    pub fn is_judged(&self, content: Content, signal: Signal) -> bool {
        self.baseline(content).map_or(signal == Signal::Healthz, |baseline| baseline.contains(&signal))
    }

    pub fn baseline(&self, content: Content) -> Option<&Baseline> {
        self.baselines.iter().find(|(of, _)| *of == content)?.1.as_ref()
    }

    /// True if this version failed and was cleared.
    pub fn is_cleared(&self, source: &Source) -> bool {
        self.cleared.iter().any(|(of, _)| of == source)
    }

    /// With another binary every version may be tried again.
    pub fn note_kubelet(&mut self, id: &str) {
        if self.known_kubelet != id {
            id.clone_into(&mut self.known_kubelet);
            self.failed.clear();
        }
    }

    pub fn note_failed_start(&mut self, config: Option<&str>) {
        self.runs_local = config.is_none();
        // What was to run instead did not come up, and may be overtaken.
        (self.stopped, self.deaths) = (None, None);
        if !rules::EQUAL_WHILE_DOWN {
            self.boots = None;
        }
    }

    /// True if this version was said to have failed with this binary.
    pub(super) fn has_failed(&self, source: &Source) -> bool {
        self.failed.iter().any(|failed| failed.source == *source && failed.kubelet == self.known_kubelet)
    }

    pub(super) fn note_failed(&mut self, source: &Source, kubelet: Option<String>) {
        let (durable, kubelet) = (kubelet.is_some(), kubelet.unwrap_or_else(|| self.known_kubelet.clone()));
        self.failed.retain(|failed| failed.source != *source);
        self.failed.push(Failed { source: source.clone(), kubelet, durable });
        // The machine remembers so many; and each start of a forgotten one may fail again.
        let excess = self.failed.len().saturating_sub(limits::BAD_VERSIONS - 8);
        self.failed.drain(..excess);
    }
}
