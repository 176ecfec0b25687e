//! An account of what happened, kept beside the machine.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use kubelet_config::digest::Digest;
use kubelet_config::source::Source;
use kubelet_supervisor::machine::command::Command;
use kubelet_supervisor::machine::evidence::{Baseline, Signal};

use super::kubelet::Process;
use super::laws::{Heed, Law, Tally, broken};
use super::promised;
use super::records::Reader;
use super::still::Activity;
use super::world::Content;

/// A content that was said to have failed, and with which kubelet binary.
#[derive(Clone, Debug)]
pub(super) struct Failed {
    pub(super) source: Source,
    pub(super) content: Content,
    /// The binary with which; `None` where it may be the one that runs or the one on the disk.
    pub(super) kubelet: Option<String>,
    /// Another binary was there since.
    pub(super) replaced: bool,
    /// What its kubelet was given, if one ran.
    pub(super) digest: Option<String>,
    pub(super) since: Duration,
    /// It was seen on the disk; if not, it holds for this life only.
    pub(super) durable: bool,
}

/// What was last known good, and how that came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proven {
    pub(super) source: Source,
    pub(super) content: Content,
    pub(super) digest: Option<Digest>,
    pub(super) kubelet: String,
    /// What the kubelet was given.
    pub(super) file: Option<(String, String)>,
    pub(super) evidence: Evidence,
}

impl Proven {
    /// The file that the kubelet was given.
    pub fn path(&self) -> Option<&str> {
        self.file.as_ref().map(|(path, _)| &**path)
    }
}

/// A version that failed, and was not to blame.
#[derive(Clone, Debug)]
pub struct Cleared {
    pub(super) source: Source,
    /// How often in a row it was cleared before.
    pub(super) times: u32,
    /// Another version of its ConfigMap was delivered since: then it comes back as a new one, and at its turn.
    pub(super) overtaken: bool,
}

/// What was seen of the node since this content was switched to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Evidence {
    pub(super) content: Option<Content>,
    /// The node reached the API server while the kubelet was ready.
    pub(super) contact: bool,
    /// Its Node was Ready, and the supervisor heard it.
    pub(super) node_ready: bool,
    /// Its Lease was renewed.
    pub(super) leased: bool,
}

/// What waits for a confirmation: so long, and until then. A life begins with what was left when that was last written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Awaits {
    pub(super) content: Content,
    pub(super) within: Duration,
    pub(super) soonest: Duration,
    pub(super) latest: Duration,
}

impl Awaits {
    pub(super) fn new(content: Content, within: Duration, now: Duration) -> Self {
        Self { content, within, soonest: now + within, latest: now + within }
    }
}

/// A pin: what, since when, and whether it was started since.
#[derive(Clone, Debug)]
pub struct Pinned {
    pub(super) content: Option<Content>,
    pub(super) since: Duration,
    pub(super) started: bool,
}

/// How much later than it could a decision may come.
pub const SLACK: Duration = Duration::from_secs(30);

/// Of a moment's trouble nobody hears who does not look just then.
pub(super) const UNSEEN: Duration = Duration::from_secs(1);

/// What happened so far.
#[derive(Clone, Debug, Default)]
pub struct Account {
    /// Steps of the machine.
    pub steps: u64,
    /// Requests to the store since the latest input from elsewhere.
    pub requests: u64,
    /// The world ends after so many, wherever it is; 0 is never.
    pub limit: u64,
    pub tally: Tally,
    /// What the machine did so far.
    pub activity: Activity,
    pub heed: Heed,
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
    /// When a read failed last, and how many had by then.
    pub read_failed_last: (u64, Option<Duration>),
    /// Operations of the disk that had failed when it was last found in order.
    pub failures_seen: u64,
    /// What is in force is not on disk, since then.
    pub unsaved_since: Option<Duration>,
    pub(super) reader: Reader,
    /// The supervisor was told to end.
    pub leaving: bool,
    /// What the log says of errors since a status was published last.
    pub(super) errors_logged: Vec<String>,
    /// The status was looked at since it was published.
    pub status_is_known: bool,
    /// A reset was asked for since the disk was last found in order: it may be half written.
    pub reset_requested: bool,
    /// So was another pin or the end of one.
    pub unpin_requested: bool,
    /// So was another try of what failed, in this life.
    pub retry_requested: bool,
    /// So was the end of a freeze.
    pub thaw_requested: bool,
    /// The supervisor was last told then that nothing is assigned.
    pub reset_last: Option<Duration>,
    /// The supervisor was told something of what is assigned then.
    pub told_last: Option<Duration>,
    /// What it was told last is not, or no longer, so.
    pub misled: bool,
    /// Then it was told what is.
    pub set_right: Option<Duration>,
    /// When systemd's watchdog was pinged last.
    pub pinged: Duration,
    /// Contents that the API server gave for what was assigned then.
    pub(super) offered: Vec<Content>,
    /// What the store rendered, by digest and by version.
    pub(super) rendered: BTreeMap<Digest, Content>,
    pub(super) versions: BTreeMap<Source, Vec<Content>>,
    /// Last known good, as far as that is a version, and what was before.
    pub lkg: Option<Proven>,
    pub(super) proven: Vec<Content>,
    /// It was last known good until a reset that no kubelet was started for yet.
    pub(super) reset_from: Option<Content>,
    pub(super) evidence: Evidence,
    pub(super) failed: Vec<Failed>,
    /// Contents that were started at some time.
    pub(super) tried: Vec<Content>,
    /// What was switched to last, and had to prove itself.
    pub(super) on_trial: Option<Content>,
    /// What was on record in this life.
    pub(super) named: BTreeSet<Digest>,
    /// What was healthy for a whole trial in this life, and what had been seen by then: that it is proven may be on its way
    /// to the disk.
    pub(super) healthy: Option<(Content, Evidence)>,
    /// What passed its trial, and somebody was asked to confirm.
    pub(super) passed: Option<Content>,
    /// What somebody confirmed.
    pub(super) confirmed: Option<Content>,
    /// Contents that work, and were rolled back all the same.
    pub(super) unlucky: Vec<Content>,
    /// Contents whose preflight never answered, with the binary that was there.
    pub(super) unjudged: Vec<(Content, String)>,
    /// A preflight of this content, which will never answer, began then.
    pub(super) withheld: Option<(Content, Duration)>,
    /// One that was waited for in vain was followed by another then.
    pub(super) judged_again: Option<Duration>,
    /// The disk as it was last looked at.
    pub looked_at: u64,
    /// What a disk that lost power may say was last known good.
    pub(super) may_be_proven: Vec<Option<Content>>,
    /// A read failed when this life began.
    pub(super) blind: bool,
    /// The record was not read in this life.
    pub(super) unread: bool,
    /// The unproven content that boots ran, and how many did since it was switched to.
    pub(super) boots: Option<(Content, u32)>,
    /// No kubelet was started in this life.
    pub(super) fresh: bool,
    /// The content of last known good was damaged then, in this directory.
    pub rotted: Option<(PathBuf, Duration)>,
    /// The supervisor's life began then.
    pub(super) began: Duration,
    /// The content that ran before the latest start, in this life.
    pub(super) ran: Option<Content>,
    /// Content that was stopped, and the identity of the binary then.
    pub(super) stopped: Option<(Content, String)>,
    /// The same of what hung; and restarts of that in a row, each within an hour of life of the one before.
    pub(super) dumped: Option<(Content, String)>,
    pub(super) dumps: u32,
    /// What ran may have been on trial, or a control, until then.
    pub(super) judged_last: Duration,
    /// How long it may hang.
    pub hung_after: Duration,
    /// Content that died by itself in this life, and how often in a row.
    pub(super) deaths: Option<(Content, u32)>,
    /// The process that exited last.
    pub(super) last: Option<Process>,
    /// Health of a process that is gone, and whether nothing excuses the break so far.
    pub(super) carried: Option<(Content, Duration, bool)>,
    /// What was good when the kubelet was last stopped.
    pub(super) good_at_stop: Option<Baseline>,
    /// What was good right before a content was switched to.
    pub(super) baselines: Vec<(Content, Baseline)>,
    /// Last known good is on test for a version that failed.
    pub(super) testing: bool,
    /// The version that failed and was cleared.
    pub(super) cleared: Option<Cleared>,
    /// What has passed its trial and waits for a confirmation.
    pub(super) awaits: Option<Awaits>,
    pub pinned: Option<Pinned>,
    pub frozen: bool,
    /// Commands without an answer, by number.
    pub(super) asked: BTreeMap<u64, (Command, Duration)>,
    /// A command was obeyed then.
    pub(super) commanded_at: Option<Duration>,
    /// An operator changed what was on its way.
    pub(super) overruled: bool,
    /// What runs unproven needs a confirmation, within this time.
    pub confirm_within: Option<Duration>,
    /// How long a trial takes.
    pub trial: Duration,
}

impl Account {
    pub fn trace(&mut self, what: u64, now: Duration) {
        let word = what ^ (u64::try_from(now.as_millis()).unwrap_or_default() << 8);
        self.fingerprint = (self.fingerprint ^ word).wrapping_mul(0x0000_0100_0000_01B3).rotate_left(23);
    }

    /// Answers that only make new requests would never come to an end.
    pub fn note_request(&mut self) {
        self.requests += 1;
        if self.requests > 1000 && self.heed.heeds(Law::NoSpinning) {
            broken(Law::NoSpinning, "answers make requests without an end");
        }
        assert!(self.requests <= 1000, "answers make requests without an end");
    }

    pub fn violate(&mut self, law: Law, why: String) {
        self.violations.push((law, why));
    }

    /// Counts a check that nothing excuses; complains if it fails.
    pub(super) fn check(&mut self, law: Law, excused: bool, holds: bool, why: impl FnOnce() -> String) {
        if excused {
            return;
        }
        self.tally.check(law);
        if !holds {
            self.violate(law, why());
        }
    }

    pub fn begin_life(&mut self, failures: u64, now: Duration) {
        self.begin_worker(failures, now);
        (self.fresh, self.leaving, self.pinged) = (true, false, now);
        (self.stopped, self.deaths, self.carried, self.ran) = (None, None, None, None);
        (self.testing, self.dumped) = (false, None);
        self.named.clear();
        if let Some(awaits) = &mut self.awaits {
            // What was left is noted each minute, and a boot costs one.
            awaits.soonest = awaits.soonest.saturating_sub(Duration::from_secs(120));
            awaits.latest = awaits.latest.max(now + awaits.within);
        }
        (self.read_failed_last.1, self.healthy) = (None, None);
        (self.commanded_at, self.overruled) = (None, false);
    }

    /// A worker ends, and whatever it had not written down is forgotten. What the kubelet did is not.
    pub fn begin_worker(&mut self, failures: u64, now: Duration) {
        self.failed.retain(|failed| failed.durable);
        (self.reset_requested, self.reset_last, self.told_last) = (false, None, None);
        (self.misled, self.set_right) = (false, None);
        self.failures_before = failures;
        (self.judged_last, self.dumps, self.began) = (now, 0, now);
        (self.withheld, self.judged_again, self.blind, self.unread) = (None, None, false, true);
        self.asked.clear();
    }

    /// The next one begins.
    pub fn note_worker(&mut self, now: Duration) {
        (self.judged_last, self.began, self.pinged) = (now, now, now);
    }

    /// A clean stop gives the try back.
    pub fn end_life_cleanly(&mut self) {
        self.leaving = true;
        if let Some((_, tries)) = &mut self.boots {
            *tries = tries.saturating_sub(1);
        }
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

    pub fn note_exit(&mut self, process: &Process, excused: bool, now: Duration) {
        let content = process.content;
        self.last = Some(process.clone());
        self.carried = Some((content, process.earned, process.broken || (process.well_since.is_some() && !excused)));
        if process.stopping.is_some() {
            let stopped = Some((content, self.known_kubelet.clone()));
            *if process.dumped { &mut self.dumped } else { &mut self.stopped } = stopped;
            return;
        }
        if excused || process.path.is_none() {
            return;
        }
        // What is older than a trial's time in which the process was well does not count.
        let lived = process.well_since.is_some_and(|since| now.saturating_sub(since) > self.trial);
        let before = self.deaths.filter(|(of, _)| *of == content && !lived).map_or(0, |(_, deaths)| deaths);
        self.deaths = Some((content, before + 1));
    }

    /// True if this was good right before the content was switched to.
    pub fn was_good_before(&self, content: Content, signal: Signal) -> bool {
        self.baseline(content).is_some_and(|baseline| baseline.contains(&signal))
    }

    pub fn baseline(&self, content: Content) -> Option<&Baseline> {
        Some(&self.baselines.iter().find(|(of, _)| *of == content)?.1)
    }

    /// True if this version failed and was cleared.
    pub fn is_cleared(&self, source: &Source) -> bool {
        self.cleared.as_ref().is_some_and(|cleared| cleared.source == *source)
    }

    /// With another binary every version may be tried again.
    pub fn note_kubelet(&mut self, id: &str) {
        if self.known_kubelet != id {
            id.clone_into(&mut self.known_kubelet);
            self.cleared.take_if(|cleared| self.failed.iter().any(|failed| failed.source == cleared.source));
            self.failed.iter_mut().for_each(|failed| failed.replaced = true);
        }
    }

    pub fn note_failed_start(&mut self) {
        // What was to run instead did not come up, and may be overtaken.
        (self.stopped, self.dumped, self.deaths) = (None, None, None);
    }

    /// True if this content was said to have failed with this binary.
    /// True if this failed, maybe with the binary that is there.
    pub(super) fn has_failed(&self, content: Content) -> bool {
        let with_it = |failed: &Failed| failed.kubelet.as_ref().is_none_or(|kubelet| *kubelet == self.known_kubelet);
        self.failed.iter().any(|failed| failed.content == content && with_it(failed))
    }

    /// True if it did so with the binary that is there, and no other was there since: that must be remembered.
    pub(super) fn has_just_failed(&self, content: Content) -> bool {
        let with_it = |failed: &Failed| !failed.replaced && failed.kubelet.as_ref() == Some(&self.known_kubelet);
        self.failed.iter().any(|failed| failed.content == content && with_it(failed))
    }

    pub(super) fn note_failed(&mut self, failed: Failed) {
        self.failed.retain(|known| known.source != failed.source || known.replaced && known.kubelet != failed.kubelet);
        self.failed.push(failed);
        // The machine remembers so many; and each start of a forgotten one may fail again.
        let excess = self.failed.len().saturating_sub(promised::BAD_VERSIONS - 8);
        self.failed.drain(..excess);
    }

    /// An operator's command is under way, or was a moment ago.
    pub(super) fn is_commanded(&self, now: Duration) -> bool {
        !self.asked.is_empty() || self.commanded_at.is_some_and(|at| now <= at + Duration::from_secs(1))
    }

    /// True if this content is, or was, last known good.
    pub(super) fn was_proven(&self, content: Content) -> bool {
        self.lkg.as_ref().is_some_and(|lkg| lkg.content == content) || self.proven.contains(&content)
    }

    pub(super) fn is_lkg(&self, content: Content) -> bool {
        self.lkg.as_ref().is_some_and(|lkg| lkg.content == content)
    }

    /// A reset was asked for, and may have been carried out since.
    pub(super) fn may_be_reset(&self, now: Duration) -> bool {
        self.reset_last.is_some_and(|at| now <= at + Duration::from_secs(600))
    }
}
