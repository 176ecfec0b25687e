//! The laws of what takes too long.

use std::time::Duration;

use kubelet_supervisor::machine::model::KubeletId;
use kubelet_supervisor::machine::records::{BadVersion, Phase, Records};
use kubelet_supervisor::machine::{Kubelet, State};

use crate::sim::account::{Awaits, Failed, Pinned, SLACK};
use crate::sim::laws::Law;
use crate::sim::promised;
use crate::sim::records::checkpoint;
use crate::sim::world::{Behaviour, Outside};

/// No kubelet for longer than this breaks law 1: stop grace and restart back-off fit in it.
const DOWN_AT_MOST: Duration = Duration::from_secs(30);

/// What could not be read is tried again within this time.
const PATIENCE_WITH_READS: Duration = Duration::from_secs(660);

/// So long a preflight that never answers may hold up a change: its deadline, and what else a change waits for.
const GIVES_UP: Duration = Duration::from_secs(180);

/// Damage is put right within this time, where nothing else is under way.
const MENDED: Duration = Duration::from_secs(120);

impl Outside {
    /// What is due by now.
    pub fn check_deadlines(&mut self, state: &State, ended: bool) {
        self.check_runs(state, ended);
        if ended {
            return;
        }
        self.check_watchdog(state);
        self.check_hung();
        self.check_answers();
        self.check_remembered();
        self.check_tried_again(state);
        self.check_given_up();
        self.check_confirmed();
        self.check_pin();
        self.check_cleared_again();
        self.check_mended(state);
        self.check_local_file(state);
        self.check_answered();
        self.check_policy_is_told();
    }

    /// Damage behind the supervisor's back is put right while the kubelet runs.
    fn check_mended(&mut self, state: &State) {
        let now = self.now;
        let Some((dir, since)) = self.account.rotted.clone() else { return };
        let digest = dir.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let lkg =
            state.records().last_known_good.clone().filter(|lkg| lkg.digest.as_ref().is_some_and(|of| of.0 == digest));
        // What is needed no more is removed.
        let Some(lkg) = lkg else { return self.account.rotted = None };
        if !self.disk.is_rotten(&dir) {
            self.account.rotted = None;
            return self.account.check(Law::Mended, false, true, String::new);
        }
        // What its source renders to may be another content by now.
        let whole = !self.disk.is_rotten(&checkpoint(&lkg.source));
        let renders_to = self.content_of(Some(&lkg.source));
        let renderings = self.account.versions.get(&lkg.source);
        let same = renderings.is_some_and(|all| all.len() == 1 && all.first() == renders_to.as_ref());
        let unsettled =
            self.process.as_ref().is_none_or(|process| process.stopping.is_some() || process.ready_at.is_none());
        let excused = !whole
            || !same
            || unsettled
            || self.disk_is_ailing()
            || self.store_lags()
            || self.torn_local.is_some()
            || self.silence.waited_within(MENDED, now)
            || self.account.failed_last.1 + MENDED >= now
            || now < self.changed_last + MENDED
            || now < self.account.began + MENDED;
        if excused {
            self.account.rotted = Some((dir, now)); // it counts from then on
        } else if now > since + MENDED {
            self.account.check(Law::Mended, false, false, || format!("{} is damaged since {since:?}", dir.display()));
        }
    }

    /// Law 1, and its limits for a kubelet that fails or does not end.
    fn check_runs(&mut self, state: &State, ended: bool) {
        let now = self.now;
        let Some(process) = &self.process else {
            // Nothing is started while the system goes down.
            let leaving = ended || self.account.leaving || self.surroundings.shutting_down;
            let stalled = self.silence.waited_within(SLACK, now);
            let law = if stalled { Law::RunsInStall } else { Law::Runs };
            let down = now.saturating_sub(self.down_since);
            let most = if stalled { DOWN_AT_MOST + promised::STORE + SLACK } else { DOWN_AT_MOST };
            // A start may wait for a judge as long as a change does.
            let judged = self.account.withheld.is_some_and(|(_, at)| now <= at + promised::VERDICT + SLACK)
                || self.account.judged_again.is_some_and(|at| now <= at + SLACK);
            return self.account.check(law, leaving || judged, down <= most, || format!("no kubelet for {down:?}"));
        };
        let law = if self.silence.waits_for(now).is_some() { Law::RunsInStall } else { Law::Runs };
        if process.stopping.is_some() {
            return;
        }
        let (content, path) = (process.content, process.path.is_some());
        let fault = self.fault(state);
        self.account.check(law, false, true, String::new);
        let Some((since, patience)) = fault else { return };
        let since = since.max(self.trial_counts_from());
        let excused = !path
            || self.in_trouble()
            || self.account.was_proven(content)
            || self.is_own(content)
            || self.account.pinned.is_some()
            || self.store_lags()
            || self.mood != crate::sim::api::Mood::default()
            || self.disk_is_ailing();
        // What it goes back to may wait for the judge, where the binary is another one.
        let judges = self.silence.judge || self.account.withheld.is_some();
        let judge = if judges { promised::START_JUDGES } else { Duration::ZERO };
        // What a worker had not written down is seen once more.
        let fine = now.saturating_sub(since) <= patience + judge + SLACK + self.workers.unwatched;
        self.account.check(Law::SickEnds, excused, fine, || format!("{content:?} fails since {since:?}"));
    }

    /// systemd would kill a healthy kubelet.
    fn check_watchdog(&mut self, state: &State) {
        let Some(interval) = state.settings.watchdog else { return };
        let now = self.now;
        // One that pinged and hangs is missed, and is to be.
        let hangs = self.surroundings.modern
            && self.process.as_ref().is_some_and(|process| {
                process.sick
                    || process.stopping.is_some()
                    || matches!(process.content.behaviour, Behaviour::SilentAfter(_))
            });
        // For one that never pinged, and that the worker has not gone on with, the monitor pings.
        let is_left = !matches!(state.kubelet(), Kubelet::Running(_) | Kubelet::Stopping)
            && self.process.as_ref().is_some_and(|process| !process.pinged);
        if hangs || is_left {
            self.account.pinged = now;
        }
        let pause = now.saturating_sub(self.account.pinged);
        self.account.check(Law::Watchdog, hangs, pause <= interval, || format!("no ping for {pause:?}"));
    }

    fn check_answers(&mut self) {
        let (now, lags) = (self.now, self.store_lags() || self.disk_is_ailing());
        let Some((command, since)) = self.account.asked.first_key_value().map(|(_, asked)| asked.clone()) else {
            return;
        };
        let fine = now <= since + SLACK;
        self.account.check(Law::Obeys, lags, fine, || format!("no answer to {command:?} since {since:?}"));
    }

    /// A version that failed is on the disk as such.
    fn check_remembered(&mut self) {
        let now = self.now;
        let hindered = self.disk_is_ailing() || self.store_lags();
        let Some(at) = self.account.failed.iter().position(|failed| !failed.durable) else { return };
        let failed = self.account.failed[at].clone();
        let durable = self.records(&self.disk.durable()).is_some_and(|records| says_it_failed(&records, &failed));
        let Failed { source, since, .. } = failed;
        self.account.failed[at].durable = durable;
        let last = self.account.failed_last.1;
        let fine = durable || now <= since.max(last) + promised::WRITTEN_AGAIN + SLACK;
        self.account.check(Law::BadIsDurable, hindered || durable && now < since, fine, || {
            format!("{source} failed, and the disk does not know it")
        });
    }

    /// What failed and is on the disk as such, when a life begins.
    pub fn note_durable_failures(&mut self) {
        let Some(records) = self.records(&self.disk.seen()) else { return };
        // A clearance that the disk did not take is forgotten.
        self.account.cleared.take_if(|cleared| records.bad.iter().any(|bad| bad.source == cleared.source));
        // Another try may be on the disk, even where the answer says otherwise.
        let retried = std::mem::take(&mut self.account.retry_requested);
        let failed = self.account.failed.iter_mut();
        failed.for_each(|failed| failed.durable = failed.durable && !retried || says_it_failed(&records, failed));
    }

    fn check_tried_again(&mut self, state: &State) {
        let decided = |records: &Records| {
            let held = (records.pin.clone(), records.frozen);
            (records.assigned.clone(), records.last_known_good.clone(), records.bad.clone(), held)
        };
        if self.account.unread || decided(state.saved()) == decided(state.records()) {
            self.account.unsaved_since = None;
            return;
        }
        self.account.unsaved_since.get_or_insert(self.now);
        let (_, failed_at) = self.account.failed_last;
        let from = failed_at.max(self.account.unsaved_since.unwrap_or(self.now));
        let fine = self.now.saturating_sub(from) <= promised::WRITTEN_AGAIN + SLACK;
        let excused = self.store_lags();
        self.account.check(Law::TriesAgain, excused, fine, || format!("not written since {failed_at:?}"));
    }

    /// A question that never gets its answer holds nothing up for ever.
    fn check_given_up(&mut self) {
        let Some((content, since)) = self.account.withheld else { return };
        let desired = self.desired_source().and_then(|source| self.content_of(Some(&source)));
        let late = self.now.saturating_sub(since.max(self.changed_last)) > GIVES_UP;
        let excused = desired != Some(content)
            || self.known_assignment != self.desired
            || self.account.frozen
            || self.account.pinned.is_some()
            || self.was_in_trouble()
            || self.now < self.trial_counts_from()
            // It says what it cannot render: a local file that is torn.
            || self.status.error.as_ref().is_some_and(|error| error.starts_with("failed to sync"))
            || !self.hears_api()
            // What was cleared is tried again in its own time.
            || self.account.cleared.is_some()
            || self.mood != crate::sim::api::Mood::default()
            || self.disk_is_ailing()
            || self.store_lags()
            || self.account.has_failed(content)
            || self.is_refused_lately(content)
            || self.now < self.account.failed_last.1 + 2 * GIVES_UP
            || self.process.as_ref().is_none_or(|process| process.content == content || process.cuts_off);
        self.account.check(Law::GivesUp, excused, !late, || format!("the preflight of {content:?} never answered"));
    }

    fn check_confirmed(&mut self) {
        let now = self.now;
        let ailing = self.disk_is_ailing() || self.store_lags();
        let Some(Awaits { content, latest: until, .. }) = self.account.awaits else { return };
        // Something else was taken up since: what waits is on the disk.
        let waits = |records: &Records| matches!(records.phase, Phase::AwaitingConfirmation(..));
        if now > until && self.records(&self.disk.durable()).is_some_and(|records| !waits(&records)) {
            self.account.awaits = None;
            return;
        }
        let Some(process) = self.process.as_ref().filter(|process| process.stopping.is_none()) else { return };
        let excused = now <= until
            || ailing
            || content != process.content
            || self.account.confirmed == Some(content)
            || self.account.is_lkg(content)
            || self.account.pinned.is_some()
            || self.is_own(content);
        let fine = now <= until + SLACK;
        self.account.check(Law::Confirms, excused, fine, || format!("nobody confirmed {content:?}, and it runs"));
    }

    fn check_pin(&mut self) {
        let now = self.now;
        let Some(process) = self.process.as_ref().filter(|process| process.stopping.is_none()) else { return };
        let Some(Pinned { content, since, started: false }) = &self.account.pinned else { return };
        let wanted = (*content).or(self.content_of(None));
        let excused = self.disk.failures() != self.account.failures_before
            || self.disk_is_ailing()
            || self.silence.waited_within(PATIENCE_WITH_READS, now)
            || self.account.read_failed_last.1.is_some_and(|at| now <= at + PATIENCE_WITH_READS)
            || now.saturating_sub(process.started) <= SLACK
            || self.disk.is_rotten(std::path::Path::new(crate::sim::world::ROOT))
            || wanted.is_none_or(|content| {
                self.account.has_failed(content) || !content.behaviour.works() || self.is_forbidden_lately()
            });
        let fine = wanted == Some(process.content) || now.saturating_sub(*since) <= 3 * SLACK;
        self.account.check(Law::Held, excused, fine, || format!("{wanted:?} is pinned, and another runs"));
    }

    /// In better times a version that was not to blame has another try.
    fn check_cleared_again(&mut self) {
        let ailing = self.disk_is_ailing() || self.store_lags();
        let Some(process) = self.process.as_ref().filter(|process| process.stopping.is_none()) else { return };
        let Some(desired) = self.desired_source() else { return };
        let Some(cleared) = self.account.cleared.clone().filter(|cleared| cleared.source == desired) else { return };
        let (source, content) = (cleared.source, self.content_of_version(&desired));
        let patience = promised::retried_after(cleared.times);
        // The cluster may have heard of it later.
        let well_since = process.well_since.max(process.node_ready).max(process.leased);
        let well_for =
            well_since.filter(|_| process.well_since.is_some()).map_or(Duration::ZERO, |since| self.now - since);
        let excused = well_for < patience + SLACK
            || cleared.overtaken
            || ailing
            || self.account.pinned.is_some()
            || self.account.frozen
            || self.known_assignment != self.desired
            || self.mood != crate::sim::api::Mood::default()
            || self.now < self.trial_counts_from() + SLACK
            || self.now < self.account.began + patience + SLACK
            || self.now < self.account.failed_last.1 + 3 * SLACK
            || self.now < self.changed_last + patience + 2 * SLACK
            || process.cuts_off
            || process.lost_since.is_some()
            || process.node_ready.is_none()
            || process.leased.is_none()
            || self.silence.judge
            || self.torn_local.is_some()
            || self.account.is_commanded(self.now.saturating_sub(SLACK))
            || self.account.withheld.is_some()
            || content.is_some_and(|it| self.account.has_failed(it) || self.is_refused_lately(it));
        let fine = content == Some(process.content);
        self.account
            .check(Law::RetryLater, excused, fine, || format!("{source} was not to blame, and is not tried again"));
    }
}

fn says_it_failed(records: &Records, failed: &Failed) -> bool {
    let tested = match &records.phase {
        Phase::ControlTest(attempt, _) | Phase::RetryLater(attempt, _) => attempt.version.source == failed.source,
        _ => false,
    };
    // The same name may have failed before with another content.
    let is_it = |bad: &BadVersion| {
        bad.source == failed.source
            && failed
                .kubelet
                .as_ref()
                .filter(|_| !failed.replaced)
                .is_none_or(|id| bad.kubelet.0 == *id || bad.kubelet == KubeletId::ANY)
            && bad.digest.as_ref().zip(failed.digest.as_ref()).is_none_or(|(bad, failed)| bad.0 == *failed)
    };
    tested || records.bad.iter().any(is_it)
}
