//! The laws of verdicts: baselines, the control test, cleared versions, confirmations, operators' holds.

use kubelet_config::duration;
use std::time::Duration;

use kubelet_config::source::Source;
use kubelet_supervisor::machine::command::{Command, Target};
use kubelet_supervisor::machine::evidence::{Failure, Signal};
use kubelet_supervisor::machine::record::HistoryEntry;
use kubelet_supervisor::machine::{Records, Stored, limits};

use super::account::{PendingControlTest, Pinned, SLACK};
use super::behaviour::Outcome;
use super::kubelet::{AFTERMATH, Process};
use super::laws::Law;
use super::rules;
use super::world::Outside;

impl Outside {
    /// What is pinned runs, or what is left where that cannot run.
    pub(super) fn check_hold(&mut self, source: Option<&Source>, stored: &Stored) {
        // One that the disk has refused so far is not in force.
        if stored.local_state.as_ref().is_ok_and(|local_state| local_state.pin.is_none()) {
            return;
        }
        let ailing = self.disk_is_ailing();
        let Some(pinned) = &mut self.account.pinned else { return };
        let is_pin = pinned.source.as_ref() == source;
        // What was on its way comes up first, where no other record names what is pinned.
        let named = [&stored.assigned, &stored.last_known_good].iter().any(|it| it.as_ref() == Ok(&pinned.source));
        let excused = ailing || self.account.commanded || (self.account.overruled && !named && pinned.source.is_some());
        pinned.started |= is_pin;
        let fallback = source.is_none() || Ok(source) == stored.last_known_good.as_ref().map(Option::as_ref);
        self.account
            .check(Law::Held, is_pin || fallback || excused, || format!("{source:?} was started in spite of the pin"));
    }

    /// What stands to be written is nobody's whim.
    pub fn check_record(&mut self, records: &Records) {
        let (stored, now) = (self.records(&self.disk.seen()), self.now);
        let before = stored.local_state.as_ref().ok();
        let old = before.and_then(|local_state| local_state.attempt.as_ref());
        let reliable = !self.disk_is_ailing() && before.is_some();
        if records.assigned.is_none() {
            self.account.control_test = None; // a reset
        }
        if let Some(attempt) = &records.local_state.attempt
            && old.is_none_or(|old| old.source != attempt.source || old.baseline != attempt.baseline)
        {
            let inherited = old.and_then(|old| old.baseline.clone()).unwrap_or_default();
            let within = Duration::from_secs(75);
            let unknown = |signal: &&Signal| {
                !inherited.contains(signal)
                    && !self.observations.lately(
                        **signal,
                        now,
                        if **signal == Signal::NodeReady { Duration::MAX } else { within },
                    )
            };
            let wrong = attempt.baseline.iter().flatten().find(unknown).copied();
            self.account.check(Law::Baseline, wrong.is_none() || !reliable, || {
                format!("{wrong:?} was not good before {}, and is judged", attempt.source)
            });
            let content = self.content_of(Some(&attempt.source));
            let runs = self.process.as_ref();
            let blind = attempt.baseline.is_none() && old.is_none() && stored.assigned != Ok(records.assigned.clone());
            let blind =
                blind && runs.is_some_and(|it| it.ready && it.stopping.is_none() && Some(it.content) != content);
            self.account.check(Law::Baseline, !blind || !reliable, || {
                format!("nobody looked what was good before {}", attempt.source)
            });
            if let Some(content) = content {
                self.account.baselines.retain(|(of, _)| *of != content);
                self.account.baselines.push((content, attempt.baseline.clone()));
                let waits = attempt.confirm_within.is_some() && !attempt.confirmed;
                self.account.to_confirm = waits.then_some(content);
            }
        }
        let held = self.account.pinned.is_some() || self.account.frozen;
        if held && reliable && !self.account.commanded {
            let fine = stored.assigned.as_ref().is_ok_and(|it| *it == records.assigned)
                && records.local_state.frozen == self.account.frozen
                && records.local_state.pin.is_some() == self.account.pinned.is_some();
            self.account.check(Law::Held, fine, || format!("what is held changes to {:?}", records.assigned));
        }
        if let Some(old) = old.filter(|old| records.last_known_good.as_ref() == Some(&old.source))
            && records.local_state.attempt.is_none()
            && stored.last_known_good.as_ref().is_ok_and(|it| *it != records.last_known_good)
        {
            let waits = self.account.to_confirm.is_some_and(|of| Some(of) == self.content_of(Some(&old.source)));
            let fine = !waits || self.account.commanded || !reliable;
            self.account.check(Law::Confirms, fine, || format!("{} was not confirmed", old.source));
        }
    }

    /// An operator's word was taken.
    pub fn note_command(&mut self, command: &Command, held_back: Option<&Records>) {
        let (stored, now) = (self.records(&self.disk.seen()), self.now);
        // What the disk refused is in force, and is written later.
        let Some(local_state) = held_back.map(|it| &it.local_state).or(stored.local_state.as_ref().ok()) else {
            return;
        };
        let ailing = self.disk_is_ailing();
        let pin = local_state.pin.as_ref().map(|pin| pin.source.clone());
        let account = &mut self.account;
        match command {
            Command::Reload | Command::Retry | Command::Rollback { to: Target::Lkg } => {}
            Command::Rollback { to } | Command::Pin { to: Some(to) } => {
                let fits = pin.as_ref().is_some_and(|pin| match to {
                    Target::Local => pin.is_none(),
                    Target::Lkg => Ok(pin) == stored.last_known_good.as_ref(),
                    Target::Version { uid, resource_version } => {
                        pin.as_ref().is_some_and(|pin| pin.uid == *uid && pin.resource_version == *resource_version)
                    }
                });
                account.check(Law::Obeys, fits || ailing, || format!("{to} is to be pinned, and {pin:?} is"));
            }
            Command::Pin { to: None } => {
                account.check(Law::Obeys, pin.is_some() || ailing, || "nothing is pinned".to_owned());
            }
            Command::Unpin => {
                account.check(Law::Obeys, pin.is_none() || ailing, || "it stays pinned".to_owned());
                account.unpinned = account.pinned.take().and_then(|pinned| pinned.source);
                // Its trial begins anew.
                self.trouble.until = Some(now);
            }
            Command::Freeze | Command::Thaw => {
                account.frozen = *command == Command::Freeze;
                let fits = local_state.frozen == account.frozen;
                account.check(Law::Obeys, fits || ailing, || format!("frozen: {}", local_state.frozen));
            }
            Command::Confirm { extend_seconds: Some(seconds) } => {
                account.awaits.iter_mut().for_each(|(_, until)| *until = now + Duration::from_secs(*seconds));
            }
            Command::Confirm { extend_seconds: None } => (account.awaits, account.to_confirm) = (None, None),
        }
        let account = &mut self.account;
        if matches!(command, Command::Pin { .. } | Command::Rollback { to: Target::Local | Target::Version { .. } }) {
            account.pinned = pin.map(|source| Pinned { source, since: now, started: false });
        }
        if !matches!(command, Command::Freeze | Command::Thaw | Command::Confirm { .. }) {
            (account.boots, account.deaths, account.awaits, account.control_test) = (None, None, None, None);
            account.overruled = true;
        }
    }

    /// Its content is held to be bad, by whatever name.
    fn is_bad(&self, source: &Source) -> bool {
        let stored = self.records(&self.disk.seen());
        let content = self.content_of(Some(source));
        stored
            .local_state
            .as_ref()
            .is_ok_and(|it| it.bad.iter().any(|bad| self.content_of(Some(&bad.source)) == content))
    }

    /// A life begins with the holds that are on disk.
    pub fn remember_holds(&mut self) {
        let stored = self.records(&self.disk.seen());
        let local_state = stored.local_state.as_ref().ok();
        let pin = local_state.and_then(|local_state| local_state.pin.clone());
        self.account.frozen = local_state.is_some_and(|local_state| local_state.frozen);
        self.account.pinned = pin.map(|pin| Pinned { source: pin.source, since: self.now, started: false });
    }

    /// From then on it is judged: trouble excuses it, and some time after it.
    pub fn trial_counts_from(&self) -> Duration {
        self.trouble.until.map_or(Duration::ZERO, |until| until + AFTERMATH + limits::SUSPENSION_GRACE)
    }

    /// What is due by now.
    pub fn check_deadlines(&mut self) {
        let now = self.now;
        let ailing = self.disk_is_ailing();
        let Some(process) = self.process.clone().filter(|process| process.stopping.is_none()) else { return };
        let well_for = process.well_since.map_or(Duration::ZERO, |since| now - since);
        if let Some(control_test) = self.account.control_test.take() {
            let late = control_test.due.is_some_and(|due| now > due) && !ailing;
            self.account.check(Law::Clears, !late, || format!("{} is still held to be bad", control_test.source));
            self.account.control_test = Some(control_test);
        }
        if let Some((source, until)) = self.account.awaits.clone()
            && now > until
        {
            let fine = now <= until + SLACK
                || ailing
                || self.content_of(Some(&source)) != Some(process.content)
                || self.is_fallback(process.content);
            self.account.check(Law::Confirms, fine, || format!("nobody confirmed {source}, and it runs"));
        }
        if let Some(Pinned { source, since, started: false }) = &self.account.pinned {
            let fine = self.content_of(source.as_ref()) == Some(process.content)
                || now.saturating_sub(*since) <= 3 * SLACK
                || now.saturating_sub(process.started) <= SLACK
                || source.as_ref().is_some_and(|pin| self.is_rotten(pin) || self.is_bad(pin))
                || self.disk.failures() != self.account.failures_before
                || ailing;
            let pin = source.clone();
            self.account.check(Law::Obeys, fine, || format!("{pin:?} is pinned, and another runs"));
        }
        self.check_cleared(&process, well_for, ailing);
    }

    fn check_cleared(&mut self, process: &Process, well_for: Duration, ailing: bool) {
        let Some(desired) = self.desired_source() else { return };
        let Some((source, times)) = self.account.cleared.iter().find(|(of, _)| *of == desired).cloned() else { return };
        let patience = duration::backoff(limits::RETRY_LATER_FIRST, limits::RETRY_LATER_MAX, times);
        if well_for < patience + SLACK {
            return;
        }
        let held = self.account.pinned.is_some() || self.account.frozen || self.known_assignment != self.desired;
        let fine = held
            || ailing
            || self.mood != super::api::Mood::default()
            || self.now < self.trial_counts_from() + SLACK
            || self.now < self.account.failed_last.1 + 3 * SLACK
            || self.now < self.changed_last + patience + 2 * SLACK
            || self.content_of(Some(&source)) == Some(process.content)
            || self.is_bad(&source);
        self.account.check(Law::RetryLater, fine, || format!("{source} was not to blame, and is not tried again"));
    }

    /// What is said to have failed did fail, by itself, and is remembered.
    pub fn check_event(&mut self, entry: &HistoryEntry) {
        self.events.push(entry.reason.clone());
        if !std::mem::take(&mut self.account.is_new_event) {
            self.sent_again.push(entry.reason.clone());
            return; // of a former life
        }
        let now = self.now;
        if let Some(source) = &entry.source
            && rules::CLEARS.contains(&&*entry.reason)
        {
            let content = self.content_of(Some(source));
            let equal: Vec<Source> = self.account.failed.iter().map(|failed| failed.source.clone()).collect();
            let equal: Vec<Source> =
                equal.into_iter().filter(|it| it == source || self.content_of(Some(it)) == content).collect();
            self.account.failed.retain(|failed| !equal.contains(&failed.source));
        }
        match (&*entry.reason, &entry.source) {
            ("KubeletConfigNotBlamed", Some(source)) => return self.check_clearance(source),
            ("KubeletConfigAwaitsConfirmation", Some(source)) => {
                let stored = self.records(&self.disk.seen());
                let attempt = stored.local_state.as_ref().ok().and_then(|local_state| local_state.attempt.clone());
                let within = attempt.and_then(|attempt| attempt.confirm_within).unwrap_or_default();
                self.account.awaits = Some((source.clone(), now + Duration::from_secs(within)));
            }
            ("KubeletConfigRetried", Some(source)) => {
                self.account.cleared.retain(|(of, _)| of != source);
                self.account.control_test = None;
            }
            ("KubeletConfigChanged", source) => {
                self.account.cleared.retain(|(of, _)| Some(of) == source.as_ref());
                (self.account.control_test, self.account.awaits) = (None, None);
            }
            ("KubeletConfigAdopted", _) => {
                self.account.control_test = None;
                // Its new name brings its own time to be confirmed.
                let stored = self.records(&self.disk.seen());
                let attempt = stored.local_state.as_ref().ok().and_then(|local_state| local_state.attempt.clone());
                let left = attempt.and_then(|attempt| attempt.confirm).map_or(0, |confirm| confirm.left);
                let until = now + Duration::from_secs(left);
                self.account.awaits.iter_mut().for_each(|(_, of)| *of = until.max(*of));
            }
            ("KubeletConfigProven", _) => self.account.cleared.clear(),
            _ => {}
        }
        let rolled_back = entry.reason == "KubeletConfigRolledBack";
        let (Some(source), true) = (&entry.source, rolled_back || entry.reason == "KubeletConfigRejected") else {
            return;
        };
        self.account.awaits = None;
        if rolled_back {
            self.account.forget_tries(); // what follows, with another binary, is another trial
        }
        let stored = self.records(&self.disk.durable());
        let bad_versions = stored.local_state.as_ref().map(|local_state| local_state.bad.clone()).unwrap_or_default();
        let bad_version = bad_versions.iter().rev().find(|bad| bad.source == *source);
        let durable = bad_version.map(|bad| bad.kubelet.0.clone());
        let failure = bad_version.and_then(|bad| Failure::all().find(|failure| failure.label() == bad.reason));
        let ailing = self.disk_is_ailing();
        self.account.check(Law::BadVersionsAreDurable, durable.is_some() || ailing, || {
            format!("{source} failed ({}: {}), and the disk does not know it", entry.reason, entry.message)
        });
        if let Some(failure) = failure.filter(|_| rolled_back && !ailing) {
            self.check_verdict(source, failure);
        }
        let lives = self.process.as_ref().or(self.account.last.as_ref());
        let hindered = lives.is_none_or(|it| it.hindered);
        let content = self.content_of(Some(source));
        let baseline = content.and_then(|content| self.account.baseline(content));
        if content.is_some_and(|content| content.behaviour.outcome(baseline) == Outcome::Passes) {
            let fair = if rolled_back {
                // Its third boot, or somebody killed it, or it had no runtime.
                self.account.fresh
                    || hindered
                    || self.account.deaths.is_some_and(|(of, _)| Some(of) == content)
                    || matches!(failure, Some(Failure::Operator | Failure::Unconfirmed))
            } else {
                // The same content was unlucky before, or it has no such key.
                source.reference.kubelet_config_key == "absent"
                    || self.account.unlucky.iter().any(|of| Some(*of) == content)
            };
            self.account.unlucky.extend(content.filter(|_| rolled_back));
            self.account.check(Law::GoodIsKept, fair || ailing, || format!("{source} works, but {}", entry.message));
        } else if content.is_some_and(|content| content.behaviour.is_seen_from_afar()) {
            self.account.unlucky.extend(content.filter(|_| rolled_back));
        }
        self.account.note_failed(source, durable);
    }

    /// No version is bad while the surroundings fail.
    fn check_verdict(&mut self, source: &Source, failure: Failure) {
        let now = self.now;
        let Some(family) = failure.family() else {
            self.account.control_test = None;
            if failure == Failure::Signal(Signal::Pods) {
                let trouble = self.observations.has_trouble(now);
                self.account.check(Law::NotBlamed, !trouble, || format!("{source} is bad for the node's trouble"));
            }
            return;
        };
        let trouble = self.observations.has_trouble(now);
        self.account.check(Law::NotBlamed, !trouble, || format!("{source} is bad for the node's trouble"));
        let observed =
            self.observations.asked.is_some_and(|at| now - at <= limits::QUERY_DEADLINE + Duration::from_secs(1));
        self.account
            .check(Law::ObservesNodeFirst, observed, || format!("{source} is bad, and nobody observed the node"));
        if let (Failure::Signal(Signal::ApiServer), Some(process)) = (failure, &self.process) {
            let later = process.ready_at.zip(self.trouble.alone_since);
            let later = later.is_some_and(|(ready, lost)| lost >= ready + limits::ATTRIBUTION) && process.in_contact;
            self.account.check(Law::NotBlamed, !later, || format!("{source} is bad for the API server's trouble"));
        }
        self.account.control_test = Some(PendingControlTest { source: source.clone(), family, due: None });
    }

    /// A version is cleared if last known good was seen to fail alike.
    fn check_clearance(&mut self, source: &Source) {
        let now = self.now;
        self.account.control_test = None;
        let other = |it: &Process| it.source.as_ref() != Some(source);
        let minutes = |since: Duration, seconds: u64| now.saturating_sub(since) >= Duration::from_secs(seconds);
        let fails = match &self.process {
            None => self.account.last.as_ref().is_some_and(|it| other(it) && it.stopping.is_none()),
            Some(it) => {
                let far = it.hindered || it.content.behaviour.is_seen_from_afar();
                other(it)
                    && (far
                        || it.sick_since.is_some_and(|since| minutes(since, 25))
                        || !it.was_healthy && minutes(it.started, 100)
                        // As long as a kubelet's watchdog is waited for.
                        || !it.was_healthy && it.ready_at.is_some_and(|at| minutes(at, 60)))
            }
        };
        // A proof that was half written may have made the version its own last known good.
        let own = self.records(&self.disk.seen()).last_known_good.as_ref() == Ok(&Some(source.clone()));
        self.account.check(Law::ClearedVersion, fails || own, || {
            format!("{source} is not to blame, it is said; but nothing failed")
        });
        let before = self.account.cleared.iter().find(|(of, _)| of == source).map(|(_, times)| times + 1);
        self.account.cleared = vec![(source.clone(), before.unwrap_or_default())];
    }
}
