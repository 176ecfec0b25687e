//! The laws at the moment of a start.

use std::path::Path;
use std::time::Duration;

use kubelet_supervisor::adapters::store::FsStore;
use kubelet_supervisor::machine::evidence::{Baseline, Signal};

use crate::sim::account::SLACK;
use crate::sim::kubelet::Process;
use crate::sim::laws::Law;
use crate::sim::promised;
use crate::sim::records::{content_dir, digest_of};
use crate::sim::world::{Behaviour, Content, Outside, ROOT};

/// A decision that was taken in contact may take so long: a kubelet that ignores SIGTERM, the start of another before it.
const DECIDED: Duration = Duration::from_secs(90);

/// After a read that failed, what was proven is tried again within this time.
pub(super) const UNREADABLE: Duration = Duration::from_secs(630);

/// What was observed this long before a switch was good right before it.
const RIGHT_BEFORE: Duration = Duration::from_secs(20);

impl Outside {
    /// A kubelet is started with this.
    pub fn check_start(&mut self, path: Option<&str>, content: Content) {
        self.note_failures();
        self.check_known(path, content);
        self.check_hold(content);
        self.check_frozen(path, content);
        self.check_proven_is_not_left(path, content);
        if let Some(path) = path {
            self.check_durable(path, content);
            self.check_failed(content);
            self.check_policy(content);
        }
        self.check_away(path, content);
        self.check_tries(content);
        self.check_moment(path, content);
        self.check_restart_of_hung(path, content);
        self.check_restart(content);
        self.note_baseline(content);
        let account = &mut self.account;
        (account.fresh, account.ran) = (false, Some(content));
        if path.is_some() && account.pinned.is_none() && !account.was_proven(content) {
            account.on_trial = Some(content);
        }
        if !account.tried.contains(&content) {
            account.tried.push(content);
        }
        account.withheld.take_if(|(of, _)| *of == content);
    }

    /// Law 2: configuration and flags are of one source.
    pub fn check_flags(&mut self, path: Option<&str>, content: Content, given: &[String]) {
        let own: Vec<String> = path.and_then(|_| content.flags()).into_iter().collect();
        self.account.check(Law::Flags, own.is_empty() && given.is_empty(), own == given, || {
            format!("{content:?} was started with {given:?}, and has {own:?}")
        });
    }

    /// Law 2: it was assigned when the API server gave it, or it was proven.
    fn check_known(&mut self, path: Option<&str>, content: Content) {
        let local = path.is_none();
        let same = |other: &Content| other.over(content) == content;
        let account = &mut self.account;
        let known = account.offered.iter().any(same) || account.was_proven(content);
        let excused = local || account.pinned.is_some();
        account.check(Law::Known, excused, known, || format!("{content:?} was never assigned"));
    }

    /// Law 2: local is the last rung.
    fn check_proven_is_not_left(&mut self, path: Option<&str>, content: Content) {
        let Some(lkg) = &self.account.lkg else { return };
        let reading = self.account.read_failed_last.1;
        let readable = lkg.file.as_ref().is_some_and(|file| self.is_whole(file));
        let excused = !readable
            || self.is_forbidden_lately()
            || lkg.kubelet != self.kubelet_id
            || self.account.pinned.is_some()
            || self.account.is_commanded(self.now)
            || self.account.blind
            || self.account.unread
            || self.account.reset_requested
            || self.store_lags()
            || reading.is_some_and(|at| self.now <= at + UNREADABLE);
        let holds = path.is_some() || lkg.content == content;
        let why = format!("local was started beside {:?}", lkg.content);
        self.account.check(Law::ProvenIsNotLeft, excused, holds, || why);
    }

    /// Law 3: if the power went now, the same could be started again.
    fn check_durable(&mut self, path: &str, content: Content) {
        let text = self.disk.peek(Path::new(path)).unwrap_or_default();
        let rotten = self.disk.is_rotten(content_dir(path));
        let there = self.is_durable(&(path.to_owned(), text));
        let durable = self.disk.durable();
        // Where ours is lost, native's name it.
        let records = self.records(&durable).map(|records| (*records).clone());
        let records = records.unwrap_or_else(|| FsStore::new(durable, Path::new(ROOT)).load().into_records().0);
        let named = {
            let pinned = records.pin.as_ref().and_then(|pin| pin.version.as_ref());
            let attempt = records.phase.attempt().map(|attempt| &attempt.version);
            let before = records.reset.as_ref().map(|reset| &reset.before);
            let named = [records.assigned.as_ref(), records.last_known_good.as_ref(), pinned, attempt, before];
            let mut named = named.into_iter().flatten().chain(&records.proven);
            named.any(|version| match &version.digest {
                Some(digest) => digest.0 == digest_of(path),
                None => self.is_content_of(&version.source, content),
            })
        };
        // A disk that fails may since have taken half of a decision that came to nothing, or one whose answer was too late.
        let was_named = self.account.named.iter().any(|digest| digest.0 == digest_of(path));
        let named = named || was_named && (self.disk_is_ailing() || self.store_lags());
        self.account.check(Law::Durable, rotten, there && named, || {
            format!("{content:?} was started; its file is durable: {there}, a durable record names it: {named}")
        });
    }

    /// What failed, or is refused, is not started again.
    fn check_failed(&mut self, content: Content) {
        let own = self.is_own(content);
        let account = &mut self.account;
        let excused = own || account.is_lkg(content) || account.pinned.is_some() || account.is_commanded(self.now);
        let failed = account.has_just_failed(content);
        account.check(Law::BadStaysBad, excused, !failed, || format!("{content:?} was started, which has failed"));
        let refused = matches!(content.behaviour, Behaviour::Invalid | Behaviour::Unloadable | Behaviour::Misspelt);
        // What ran without a verdict is started again as it was, by another binary as well.
        let excused = excused
            || account.unjudged.iter().any(|(of, kubelet)| *of == content && *kubelet == account.known_kubelet)
            || account.ran == Some(content);
        account.check(Law::RefusedNeverRuns, excused, !refused, || format!("{content:?} is refused"));
    }

    /// Law 5: a change waits for the API server.
    fn check_away(&mut self, path: Option<&str>, content: Content) {
        let alone = self.trouble.alone_since.map_or(Duration::ZERO, |since| self.now.saturating_sub(since));
        let (own, lags) = (path.is_none() || self.is_own(content), self.store_lags());
        let account = &mut self.account;
        let excused = account.ran.is_none_or(|ran| ran == content)
            || lags
            || own
            || account.was_proven(content)
            || account.pinned.is_some()
            // It was switched to before, in contact, and its trial goes on.
            || account.tried.contains(&content)
            || account.commanded_at.is_some_and(|at| self.now <= at + 4 * DECIDED)
            || account.is_commanded(self.now);
        account.check(Law::NotWhileAway, excused, alone <= DECIDED, || {
            format!("{content:?} is switched to, and the API server is away for {alone:?}")
        });
    }

    /// What is unproven has its tries counted, over boots and over exits.
    fn check_tries(&mut self, content: Content) {
        let passed = self.account.passed == Some(content);
        // What was proven before the present last known good is fallen back to when that cannot be read.
        let assigned = self.status.assigned.as_ref().is_some_and(|source| self.is_content_of(source, content));
        let fallback = self.account.proven.contains(&content) && !assigned;
        let pinned = self.account.pinned.is_some();
        let proven = self.is_own(content) || self.account.is_lkg(content) || fallback || pinned || passed;
        let unsure = self.disk_is_ailing() || self.store_lags() || self.account.blind || self.account.unread;
        let account = &mut self.account;
        account.deaths.take_if(|(of, _)| *of != content);
        if proven || unsure {
            account.boots = None;
            return;
        }
        let before = account.boots.take().filter(|(of, _)| *of == content).map_or(0, |(_, tries)| tries);
        let tries = if account.fresh { before + 1 } else { 1.max(before) };
        account.boots = Some((content, tries));
        account
            .check(Law::BootsCount, false, tries <= promised::BOOTS, || format!("{content:?} was tried {tries} times"));
        let deaths = account.deaths.map_or(0, |(_, deaths)| deaths);
        account.check(Law::ExitsCount, false, deaths < promised::EXITS, || {
            format!("{content:?} is started after {deaths} exits on trial")
        });
    }

    /// Law 5: what was stopped was stopped for another.
    fn check_restart(&mut self, content: Content) {
        let unsure = self.disk_is_ailing() || self.store_lags();
        let account = &mut self.account;
        let overruled = std::mem::take(&mut account.overruled);
        let Some((before, kubelet)) = account.stopped.take() else { return };
        let unread = account.last.as_ref().is_some_and(|last| last.unread);
        // That it was started may not be on record, and another worker goes on.
        let unrecorded = account.last.as_ref().is_some_and(|last| account.failed_last.1 >= last.started);
        // What it was stopped for may have been overtaken meanwhile.
        let since = account.last.as_ref().and_then(|last| last.stopping);
        let overtaken =
            account.told_last.zip(since).is_some_and(|(told, since)| told + Duration::from_secs(2) >= since);
        let excused = unsure
            || overruled
            || unread
            || unrecorded
            || overtaken
            || kubelet != account.known_kubelet
            || account.pinned.is_some();
        account
            .check(Law::EqualCostsNothing, excused, before != content, || format!("{before:?} was stopped for itself"));
    }

    /// What was good right before a switch.
    fn note_baseline(&mut self, content: Content) {
        let good_at_stop = self.account.good_at_stop.take();
        let account = &self.account;
        if account.ran == Some(content) || account.fresh && account.evidence.content == Some(content) {
            return; // the trial of this content goes on
        }
        let switched = account.ran.is_some();
        let good_now = good_at_stop.unwrap_or_else(|| self.good_now(account.last.as_ref()));
        let good = |signal: &Signal| switched && good_now.contains(signal);
        // What follows an unproven version is judged by what was good before that.
        let before = account.ran.filter(|ran| !account.is_lkg(*ran) && self.status.assigned.is_some());
        let before = before.and_then(|ran| account.baseline(ran));
        let good = |signal: &Signal| good(signal) && before.is_none_or(|before| before.contains(signal));
        let mut baseline: Baseline = Signal::ALL.into_iter().filter(good).collect();
        if !baseline.contains(&Signal::ApiServer) {
            baseline.remove(&Signal::NodeReady); // as it was heard of last, maybe long ago
        }
        // It was decided some time before, by what was good then: a disk may be slow, and so may a kubelet that ends.
        let long = |since: &Duration| self.now.saturating_sub(*since) >= RIGHT_BEFORE;
        baseline.retain(|signal| self.observations.good_since.get(signal).is_some_and(long));
        self.account.baselines.retain(|(of, _)| *of != content);
        self.account.baselines.push((content, baseline));
    }

    /// What is good with this process, which is up for long enough.
    pub(super) fn good_now(&self, process: Option<&Process>) -> Baseline {
        let settled = |ready: Duration| ready + Duration::from_secs(10);
        let began = process.and_then(|process| process.ready_at).map_or(self.now, settled);
        let within = RIGHT_BEFORE.min(self.now.saturating_sub(began));
        // One that never came up gives no signs: what was seen was the one's before.
        let up = process.is_none_or(|process| process.ready_at.is_some());
        let seen = |signal: &Signal| up || matches!(signal, Signal::ApiServer | Signal::Runtime | Signal::Pods);
        let good = |signal: &Signal| seen(signal) && self.observations.is_good(*signal, self.now, within);
        Signal::ALL.into_iter().filter(good).collect()
    }

    /// From then on a trial is judged: trouble excuses it, and some time after it.
    pub(super) fn trial_counts_from(&self) -> Duration {
        let until = self.trouble.until.map_or(Duration::ZERO, |until| until + crate::sim::kubelet::AFTERMATH);
        until + promised::GRACE + SLACK
    }
}
