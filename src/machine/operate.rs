//! An operator's commands: what they change in the records, and what follows from it.

use super::command::{Command, Target};
use super::events::{self, EventReason};
use super::evidence::Failure;
use super::model::{Moment, RestartCause};
use super::record::{BadVersion, ConfirmationWait, LocalState, Pin};
use super::{Effect, Kubelet, Records, State, Stored, Trial};
use kubelet_config::assignment::Assignment;
use kubelet_config::source::Source;
use kubelet_config::status;

/// What a command may need to know beside the records.
struct Context {
    /// What runs, or would be started.
    active: Option<Source>,
    now: Moment,
    boot_id: String,
}

impl State {
    pub(super) fn operate(&mut self, ticket: u64, command: &Command, fx: &mut Vec<Effect>) {
        let result = self.execute(command, fx);
        fx.push(Effect::Answer(ticket, result));
    }

    fn execute(&mut self, command: &Command, fx: &mut Vec<Effect>) -> Result<String, String> {
        if self.leaving {
            return Err("the supervisor is on its way out".to_owned());
        }
        if *command == Command::Reload {
            return self.request_reload();
        }
        if self.unsaved.is_some() {
            return Err("the store cannot be written at the moment, so this would not last; see the log".to_owned());
        }
        if *command == (Command::Rollback { to: Target::Lkg }) {
            let (active, fallback) = (self.active.clone(), self.fallback());
            if self.records().local_state.pin.is_some() {
                return Err("what runs is pinned: unpin it first, or pin another version".to_owned());
            }
            if active == fallback {
                return Err(nothing_to_leave(fallback.as_ref()));
            }
            self.change = None;
            self.roll_back(Failure::Operator, "an operator asked for it", fx);
            return Ok(format!("going back to {}", status::name(fallback.as_ref())));
        }
        let context = Context { active: self.active.clone(), now: self.now, boot_id: self.settings.boot_id() };
        let (records, answer) = apply(self.records(), command, &context)?;
        self.remember(records, fx);
        let reason = match command {
            Command::Retry => EventReason::Retried,
            Command::Rollback { .. } | Command::Pin { .. } => EventReason::Pinned,
            Command::Unpin => EventReason::Unpinned,
            Command::Freeze => EventReason::Frozen,
            Command::Thaw => EventReason::Thawed,
            Command::Confirm { .. } => EventReason::Confirmed,
            Command::Reload => return Ok(answer),
        };
        let about = match command {
            Command::Rollback { .. } | Command::Pin { .. } => self.pinned().cloned().flatten(),
            _ => self.records().assigned.clone(),
        };
        fx.push(Effect::Emit(events::operated(reason, about.as_ref(), format!("By an operator: {answer}"))));
        match command {
            Command::Retry => {
                self.error = None;
                self.recovered = true;
                self.retry = None;
            }
            Command::Rollback { .. } | Command::Pin { .. } => {
                self.pin_tried = false;
                self.trial = None;
                self.pending_failure = None;
                self.change = None;
                // A start that is on its way must not come first. A version that only the pin names
                // waits until that is durable.
                let pinned = self.pinned().cloned().unwrap_or_default();
                if pinned != self.target && self.is_on_its_way() && self.is_named(pinned.as_ref()) {
                    self.pin_tried = true;
                    self.switch(pinned, RestartCause::Operator, fx);
                }
            }
            Command::Unpin => {
                self.resume_trial();
                // No record names it any more.
                let named = [&self.saved.assigned, &self.saved.last_known_good].contains(&&self.target);
                if !named && self.is_on_its_way() {
                    self.switch(self.fallback(), RestartCause::Operator, fx);
                }
            }
            Command::Freeze => self.change = None,
            Command::Thaw | Command::Confirm { .. } | Command::Reload => {}
        }
        Ok(answer)
    }

    /// True if `target` is yet to come up.
    fn is_on_its_way(&self) -> bool {
        matches!(self.kubelet, Kubelet::Stopping { .. } | Kubelet::Launching | Kubelet::Waiting { .. })
    }

    /// True if it is local, or the durable records of native name it.
    fn is_named(&self, source: Option<&Source>) -> bool {
        let named = [&self.saved.assigned, &self.saved.last_known_good];
        source.is_none() || named.into_iter().any(|it| it.as_ref() == source)
    }

    /// After a pin the trial of what still runs begins anew.
    fn resume_trial(&mut self) {
        let attempt = self.records().local_state.attempt.clone();
        if let Some(attempt) = attempt.filter(|attempt| self.active.as_ref() == Some(&attempt.source)) {
            self.trial = Some(Trial { adopted: attempt.adopted, ..Trial::default() });
            self.observe_at_once();
        }
    }

    /// What an operator pinned, if anything: the inner `None` is the local configuration.
    pub(super) fn pinned(&self) -> Option<&Option<Source>> {
        self.records().local_state.pin.as_ref().map(|pin| &pin.source)
    }

    /// Runs what an operator pinned.
    pub(super) fn go_to_pin(&mut self, pinned: Option<Source>, fx: &mut Vec<Effect>) {
        self.change = None;
        if self.active != pinned && self.target != pinned && !self.pin_tried {
            self.pin_tried = true;
            self.trial = None;
            self.switch(pinned, RestartCause::Operator, fx);
        }
    }

    /// The Node's annotations: the same as the commands, for one version, through the API server.
    pub(super) fn node_annotations(&mut self, retry: Option<&str>, confirm: Option<&str>, fx: &mut Vec<Effect>) {
        if matches!(self.assignment, Assignment::Unknown) || self.unsaved.is_some() || self.leaving {
            return;
        }
        let retried = self.records().local_state.retried.clone();
        if retry != retried.as_deref() {
            let mut records = self.records().clone();
            records.local_state.retried = retry.map(str::to_owned);
            let assigned = records.assigned.clone();
            if let (Some(version), Some(source)) = (retry, &assigned)
                && names(version, source)
                && forget(&mut records, source)
            {
                self.error = None;
                self.recovered = true;
                let message = format!("By annotation: {source} is tried again");
                fx.push(Effect::Emit(events::operated(EventReason::Retried, Some(source), message)));
            }
            return self.remember(records, fx); // a confirmation that came along is read again with the next version of the Node
        }
        let waiting = self.records().local_state.attempt.clone().filter(|attempt| !attempt.confirmed);
        if let (Some(version), Some(attempt)) = (confirm, waiting)
            && attempt.confirm_within.is_some()
            && names(version, &attempt.source)
        {
            let mut records = self.records().clone();
            if let Some(attempt) = &mut records.local_state.attempt {
                attempt.confirmed = true;
            }
            let message = format!("By annotation: {} is confirmed", attempt.source);
            fx.push(Effect::Emit(events::operated(EventReason::Confirmed, Some(&attempt.source), message)));
            self.remember(records, fx);
        }
    }
}

fn nothing_to_leave(fallback: Option<&Source>) -> String {
    let name = status::name(fallback);
    format!("what runs is last known good already ({name}); rollback --to local or --to UID/RESOURCEVERSION leaves it")
}

/// True if an annotation's value names this version: `UID/RESOURCEVERSION`, or the latter alone.
fn names(version: &str, source: &Source) -> bool {
    let version = version.trim();
    version == source.resource_version || version.split_once('/') == Some((&source.uid, &source.resource_version))
}

/// Forgets that a version failed; false if nothing was remembered.
fn forget(records: &mut Records, source: &Source) -> bool {
    let local_state = &mut records.local_state;
    let digests: Vec<_> =
        local_state.bad.iter().filter(|bad| bad.source == *source).filter_map(|bad| bad.digest.clone()).collect();
    let before = local_state.bad.len();
    // The same content may have failed under another name as well.
    local_state
        .bad
        .retain(|bad| bad.source != *source && bad.digest.as_ref().is_none_or(|digest| !digests.contains(digest)));
    let cleared = local_state.retry_later.take_if(|retry_later| retry_later.source == *source).is_some();
    local_state.control_test.take_if(|control_test| control_test.source == *source);
    local_state.bad.len() != before || cleared
}

/// The records after a command for a supervisor that does not run: its next start obeys.
///
/// # Errors
/// Why the command cannot be taken, and what to do instead.
pub(crate) fn offline(stored: &Stored, command: &Command, now: Moment) -> Result<(Records, String), String> {
    let records = Records {
        assigned: stored.assigned.clone()?,
        last_known_good: stored.last_known_good.clone()?,
        local_state: stored.local_state.clone()?,
    };
    let context = Context { active: records.assigned.clone(), now, boot_id: String::new() };
    if *command == (Command::Rollback { to: Target::Lkg }) {
        let Some(source) = records.assigned.clone().filter(|source| Some(source) != records.last_known_good.as_ref())
        else {
            return Err(nothing_to_leave(records.last_known_good.as_ref()));
        };
        let mut after = records;
        after.local_state.attempt = None;
        after.local_state.bad.push(BadVersion {
            source,
            digest: None,
            kubelet: super::model::KubeletId::ANY,
            error: status::LOAD_ERROR.to_owned(),
            detail: "an operator asked for a rollback".to_owned(),
            reason: Failure::Operator.label().to_owned(),
            time: status::timestamp(now.wall_nanos),
            version: String::new(),
            log_tail: Vec::new(),
        });
        let answer = format!("the next start uses {}", status::name(after.last_known_good.as_ref()));
        return Ok((after, answer));
    }
    apply(&records, command, &context)
}

fn apply(records: &Records, command: &Command, context: &Context) -> Result<(Records, String), String> {
    let mut after = records.clone();
    let answer = match command {
        Command::Retry => retry(&mut after)?,
        Command::Rollback { to } => pin(&mut after, to, context)?,
        Command::Pin { to: Some(to) } => pin(&mut after, to, context)?,
        Command::Pin { to: None } => {
            after.local_state.pin = Some(Pin { source: context.active.clone() });
            format!("{} is pinned until unpin", status::name(context.active.as_ref()))
        }
        Command::Unpin => {
            after.local_state.pin.take().ok_or("nothing is pinned")?;
            "the assignment is followed again".to_owned()
        }
        Command::Freeze if after.local_state.frozen => return Err("frozen already".to_owned()),
        Command::Freeze => {
            after.local_state.frozen = true;
            "no change is taken up until thaw".to_owned()
        }
        Command::Thaw if !after.local_state.frozen => return Err("not frozen".to_owned()),
        Command::Thaw => {
            after.local_state.frozen = false;
            "changes are taken up again".to_owned()
        }
        Command::Reload => return Err("there is no supervisor to reload".to_owned()),
        Command::Confirm { extend_seconds } => confirm(&mut after.local_state, *extend_seconds, context)?,
    };
    Ok((after, answer))
}

fn retry(records: &mut Records) -> Result<String, String> {
    let Some(source) = records.assigned.clone() else {
        return Err("no ConfigMap is assigned: there is nothing to try again".to_owned());
    };
    if forget(records, &source) {
        Ok(format!("{source} is tried again"))
    } else {
        Err(format!("nothing is held against {source}: there is nothing to try again"))
    }
}

fn pin(records: &mut Records, to: &Target, context: &Context) -> Result<String, String> {
    let source = match to {
        Target::Local => None,
        Target::Lkg => records.last_known_good.clone(),
        Target::Version { uid, resource_version } => {
            let known = records.local_state.proven.iter().chain(&records.assigned).chain(&records.last_known_good);
            let mut known: Vec<&Source> = known.chain(&context.active).collect();
            known.reverse();
            let found = known.iter().find(|known| known.uid == *uid && known.resource_version == *resource_version);
            let Some(found) = found else {
                let mut names: Vec<String> =
                    known.iter().map(|known| format!("{}/{}", known.uid, known.resource_version)).collect();
                names.dedup();
                return Err(format!("there is no checkpoint of {to}; kept are: local, lkg, {}", names.join(", ")));
            };
            Some((*found).clone())
        }
    };
    let name = status::name(source.as_ref());
    records.local_state.control_test = None; // what runs now is no longer a control test
    records.local_state.pin = Some(Pin { source });
    Ok(format!("{name} is pinned until unpin"))
}

fn confirm(local_state: &mut LocalState, extend: Option<u64>, context: &Context) -> Result<String, String> {
    let Some(attempt) = local_state.attempt.as_mut().filter(|attempt| attempt.confirm_within.is_some()) else {
        return Err("nothing waits for a confirmation".to_owned());
    };
    let source = attempt.source.clone();
    if let Some(left) = extend {
        if attempt.confirm.is_none() {
            attempt.confirm_within = Some(left);
        } else {
            attempt.confirm = Some(ConfirmationWait::within(left, context.now, context.boot_id.clone()));
        }
        return Ok(format!("{source} is to be confirmed within {left} s from now"));
    }
    attempt.confirmed = true;
    Ok(format!("{source} is confirmed"))
}
