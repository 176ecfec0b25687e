//! The laws of operators' commands: what was answered is durable, and what is held stays.

use std::time::Duration;

use kubelet_supervisor::machine::command::{Command, Target};
use kubelet_supervisor::machine::records::{Pin, Records};

use crate::sim::account::{Awaits, Pinned};
use crate::sim::laws::Law;
use crate::sim::world::{Content, Outside};

impl Outside {
    /// What is pinned runs, or what is left where that cannot run.
    pub(super) fn check_hold(&mut self, content: Content) {
        let unsure =
            self.disk_is_ailing() || self.store_lags() || self.account.blind || self.account.is_commanded(self.now);
        let own = self.content_of(None);
        let Some(pinned) = &mut self.account.pinned else { return };
        let wanted = pinned.content.or(own);
        let is_pin = wanted == Some(content);
        pinned.started |= is_pin;
        let account = &mut self.account;
        let fallback = own == Some(content) || account.was_proven(content);
        account
            .check(Law::Held, unsure, is_pin || fallback, || format!("{content:?} was started, {wanted:?} is pinned"));
    }

    /// An operator asks for something.
    pub fn note_question(&mut self, number: u64, command: &Command) {
        // What ends a hold may be on the disk, even where the answer says otherwise.
        self.account.unpin_requested |=
            matches!(command, Command::Unpin | Command::Pin { .. } | Command::Rollback { .. });
        self.account.thaw_requested |= *command == Command::Thaw;
        self.account.retry_requested |= *command == Command::Retry;
        self.account.asked.insert(number, (command.clone(), self.now));
    }

    /// An operator is answered.
    pub fn note_answer(&mut self, number: u64, result: &Result<String, String>) {
        self.answers.insert(number, result.clone());
        let Some((command, _)) = self.account.asked.remove(&number) else { return };
        if result.is_err() {
            return;
        }
        self.account.commanded_at = Some(self.now);
        let ailing = self.disk_is_ailing() || self.store_lags();
        let durable = self.records(&self.disk.durable());
        let durable = durable.as_deref().cloned().unwrap_or_default();
        let said = Self::is_obeyed(&command, &durable);
        self.account.check(Law::Obeys, ailing, said, || format!("{command:?} was answered {result:?}: {durable:?}"));
        self.note_command(&command, &durable);
    }

    /// The durable record says what the answer says.
    fn is_obeyed(command: &Command, records: &Records) -> bool {
        let pin = records.pin.as_ref().map(|pin| pin.version.as_ref().map(|version| &version.source));
        match command {
            Command::Retry | Command::Acknowledge { .. } => true,
            Command::Rollback { to: Target::Lkg } => true,
            Command::Rollback { to } | Command::Pin { to: Some(to) } => pin.is_some_and(|pin| match to {
                Target::Local => pin.is_none(),
                Target::Lkg => pin == records.last_known_good.as_ref().map(|version| &version.source),
                Target::Version { uid, resource_version } => {
                    pin.is_some_and(|pin| pin.uid == *uid && pin.resource_version == *resource_version)
                }
            }),
            Command::Pin { to: None } => pin.is_some(),
            Command::Unpin => pin.is_none(),
            Command::Freeze => records.frozen,
            Command::Thaw => !records.frozen,
            Command::Confirm { extend_seconds: Some(_) } => true,
            Command::Confirm { extend_seconds: None } => {
                let waits = records.phase.attempt().is_some_and(|attempt| attempt.confirm_within.is_some());
                !waits || records.phase.attempt().is_some_and(|attempt| attempt.confirmed)
            }
        }
    }

    /// What an operator changed.
    fn note_command(&mut self, command: &Command, records: &Records) {
        let now = self.now;
        let pin = records.pin.clone().map(|pin| self.pinned(&pin));
        let account = &mut self.account;
        match command {
            Command::Unpin => {
                account.pinned = None;
                // Its trial begins anew.
                self.trouble.until = Some(now);
            }
            Command::Freeze | Command::Thaw => account.frozen = *command == Command::Freeze,
            Command::Confirm { extend_seconds: Some(seconds) } => {
                let within = Duration::from_secs(*seconds);
                account.awaits = account.awaits.map(|awaits| Awaits::new(awaits.content, within, now));
            }
            Command::Confirm { extend_seconds: None } => {
                let awaits = account.awaits.take().map(|awaits| awaits.content);
                account.confirmed = awaits.or(account.on_trial);
            }
            _ => {}
        }
        let account = &mut self.account;
        if matches!(command, Command::Pin { .. } | Command::Rollback { to: Target::Local | Target::Version { .. } }) {
            account.pinned = pin;
        }
        if !matches!(command, Command::Freeze | Command::Thaw | Command::Confirm { .. }) {
            (account.boots, account.deaths, account.awaits, account.testing) = (None, None, None, false);
            account.overruled = true;
        }
    }

    fn pinned(&self, pin: &Pin) -> Pinned {
        let content = pin.version.as_ref().and_then(|version| self.content_of_record(version));
        let wanted = content.or(self.content_of(None));
        let started = self.process.as_ref().is_some_and(|it| {
            Some(it.content) == wanted || content.is_none() && (it.path.is_none() || self.is_own(it.content))
        });
        Pinned { content, since: self.now, started }
    }

    /// A life begins with the holds that are on disk.
    pub fn remember_holds(&mut self) {
        let records = self.records(&self.disk.seen());
        let (pinned, frozen) = (self.account.pinned.is_some(), self.account.frozen);
        let Some(records) = records else {
            (self.account.pinned, self.account.frozen) = (None, false);
            return;
        };
        let pin = records.pin.as_ref().map(|pin| self.pinned(pin));
        let may_end =
            (std::mem::take(&mut self.account.unpin_requested), std::mem::take(&mut self.account.thaw_requested));
        let before = self.account.pinned.as_ref().map(|pinned| pinned.content);
        let kept = before == pin.as_ref().map(|pinned| pinned.content);
        self.account.check(Law::Held, !pinned || may_end.0, kept, || format!("{before:?} was pinned, {pin:?} is"));
        self.account.check(Law::Held, !frozen || may_end.1, records.frozen, || "a freeze was lost".to_owned());
        self.account.frozen = records.frozen;
        self.account.pinned = pin;
    }

    /// While a node is held, what is assigned does not change what runs.
    pub fn check_frozen(&mut self, path: Option<&str>, content: Content) {
        let account = &mut self.account;
        let excused = !account.frozen
            || account.pinned.is_some()
            || account.fresh
            || path.is_none()
            || account.is_commanded(self.now)
            || account.commanded_at.is_some_and(|at| self.now <= at + Duration::from_secs(90))
            || account.was_proven(content)
            || account.ran == Some(content);
        // What was on trial comes back where it could not be read for a while.
        let new = account.on_trial != Some(content);
        account.check(Law::Held, excused, !new, || format!("{content:?} was started on a frozen node"));
    }
}
