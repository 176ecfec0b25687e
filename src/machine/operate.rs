//! An operator's commands, and what the Node's annotations ask for. A command is answered when what it changes is durable.

use std::collections::BTreeSet;

use super::command::{Command, Target};
use super::events::{self, EventReason};
use super::evidence::Failure;
use super::io::Effect;
use super::model::Moment;
use super::proposal::{Execution, Proposal};
use super::records::{ConfirmationWait, Phase, Pin, Records, Stored, Version};
use super::sync::AskedFor;
use super::versions::is_same;
use super::{Kubelet, State};
use kubelet_config::assignment::Assignment;
use kubelet_config::source::Source;

type Executed = Result<(Records, Execution), String>;

impl State {
    /// Carries out what waits, one by one.
    pub(super) fn tick_commands(&mut self) {
        while let Some((number, command)) = self.commands.front().cloned() {
            let result = match self.unable() {
                Some(why) => Err(why),
                None if !self.writer.is_idle() || *self.kubelet() == Kubelet::NotBegun => return,
                None => self.execute(&command),
            };
            self.commands.pop_front();
            match result {
                Ok((records, execution)) => self.propose(records, Proposal::Command(Some(number), execution)),
                Err(why) => self.effects.push(Effect::Answer(number, Err(why))),
            }
        }
        self.tick_annotations();
    }

    /// Why no command can be taken now.
    fn unable(&self) -> Option<String> {
        if self.is_leaving() {
            return Some("the supervisor is on its way out".to_owned());
        }
        if self.settings.standalone {
            return Some(
                "nothing can be assigned to this node, and nothing is recorded: its kubelet has no --kubeconfig, and its supervisor \
                 no --follow-local (`kubelet-supervisor run --help`)"
                    .into(),
            );
        }
        if self.is_reading_late() {
            return Some("the record of this node has not been read yet, as the disk does not answer".to_owned());
        }
        if let Some(why) = self.writer.read_only() {
            return Some(format!("the record of this node cannot be read, so nothing is changed: {why}"));
        }
        let failing = self.writer.failure().is_some();
        failing.then(|| "the store cannot be written at the moment, so this would not last; see the log".to_owned())
    }

    fn execute(&self, command: &Command) -> Executed {
        if *command == (Command::Rollback { to: Target::Lkg }) {
            return self.roll_back_on_request();
        }
        let mut after = self.records().clone();
        let (reason, answer) = match command {
            Command::Retry => (EventReason::Retried, {
                let is_unusable = |version: &Version| self.versions.unusable(version).is_some();
                retry(&mut after, &self.sync.asked_for(), is_unusable)?
            }),
            Command::Acknowledge { class } => {
                let answer = self.acknowledge(&mut after, *class)?;
                if let Some(version) = after.assigned.clone() {
                    forget(&mut after, &version);
                }
                (EventReason::Retried, answer)
            }
            Command::Rollback { to } | Command::Pin { to: Some(to) } => {
                (EventReason::Pinned, self.pin(&mut after, to)?)
            }
            Command::Pin { to: None } => {
                // Before the first start: what is about to run.
                let version = if self.starts() > 0 { self.active().cloned() } else { self.desired() };
                let answer = format!("{} is pinned until unpin", Version::name(version.as_ref()));
                self.pin_to(&mut after, version);
                (EventReason::Pinned, answer)
            }
            Command::Unpin => {
                after.pin.take().ok_or("nothing is pinned")?;
                // What was on trial then is switched to like any change: in contact, and with a baseline of now.
                if after.phase.trial().is_some_and(|attempt| !self.judgement().runs(&attempt.version)) {
                    after.phase = Phase::Settled;
                }
                (EventReason::Unpinned, self.unpin(&mut after))
            }
            Command::Freeze if after.frozen => return Err("frozen already".to_owned()),
            Command::Freeze => {
                after.frozen = true;
                (EventReason::Frozen, "no change is taken up until thaw".to_owned())
            }
            Command::Thaw if !after.frozen => return Err("not frozen".to_owned()),
            Command::Thaw => {
                after.frozen = false;
                let then =
                    if after.pin.is_some() { "what runs is pinned until unpin" } else { "changes are taken up again" };
                (EventReason::Thawed, then.to_owned())
            }
            Command::Confirm { extend_seconds } => {
                let answer = self.confirm(&mut after.phase, *extend_seconds)?;
                if self.is_proven_by(&after.phase) {
                    self.promote(&mut after);
                }
                (EventReason::Confirmed, answer)
            }
        };
        let about = match command {
            Command::Rollback { .. } | Command::Pin { .. } => after.pin.as_ref().and_then(|pin| pin.version.clone()),
            _ => after.assigned.clone(),
        };
        let message = Some(format!("By an operator: {answer}"));
        Ok((after, Execution { reason, message, about, answer }))
    }

    fn pin(&self, records: &mut Records, to: &Target) -> Result<String, String> {
        let version = match to {
            Target::Local => None,
            Target::Lkg => records.last_known_good.clone(),
            Target::Version { uid, resource_version } => {
                let known: Vec<&Version> = self.active().into_iter().chain(records.versions().rev()).collect();
                let is_meant =
                    |known: &Version| known.source.uid == *uid && known.source.resource_version == *resource_version;
                let Some(found) = known.iter().find(|known| is_meant(known)) else {
                    let name = |known: &&Version| format!("{}/{}", known.source.uid, known.source.resource_version);
                    let mut told = BTreeSet::new();
                    let names: Vec<String> = known.iter().map(name).filter(|name| told.insert(name.clone())).collect();
                    return Err(format!("there is no checkpoint of {to}; kept are: local, lkg, {}", names.join(", ")));
                };
                Some((*found).clone())
            }
        };
        // What the kubelet itself refuses cannot be made to run.
        let refused = version.as_ref().and_then(|version| records.bad.refusal(version, self.process.kubelet_id()));
        if let (Some(version), Some(bad)) = (&version, refused) {
            return Err(format!("{version} was refused, and would not start: {}", bad.detail));
        }
        let name = Version::name(version.as_ref());
        self.pin_to(records, version);
        Ok(format!("{name} is pinned until unpin"))
    }

    /// Whatever waits for a confirmation waits for longer: a pin stops that clock.
    fn pin_to(&self, records: &mut Records, version: Option<Version>) {
        records.pin = Some(Pin { version });
        if let Phase::AwaitingConfirmation(_, wait) = &mut records.phase {
            wait.stop(self.clock.now, &self.settings.boot_id());
        }
    }

    /// Nothing is pinned any more; what follows from that.
    fn unpin(&self, records: &mut Records) -> String {
        let then = if records.frozen { "no change is taken up until thaw" } else { "the assignment is followed again" };
        if let Phase::AwaitingConfirmation(attempt, wait) = &mut records.phase {
            *wait = ConfirmationWait::within(wait.left, self.clock.now, self.settings.boot_id());
            if attempt.needs_confirmation() {
                return format!("{then}; {} is to be confirmed within {} s", attempt.version, wait.left);
            }
        }
        then.to_owned()
    }

    fn confirm(&self, phase: &mut Phase, extend: Option<u64>) -> Result<String, String> {
        let (attempt, wait) = match phase {
            Phase::AwaitingConfirmation(attempt, wait) if attempt.confirm_within.is_some() => (attempt, Some(wait)),
            Phase::Trial(attempt) if attempt.confirm_within.is_some() => (attempt, None),
            _ => return Err("nothing waits for a confirmation".to_owned()),
        };
        let version = attempt.version.clone();
        if self.records().pin.is_some() && !self.judgement().runs(&version) {
            return Err(format!("{version} does not run while something else is pinned: unpin first"));
        }
        if attempt.confirmed && extend.is_some() {
            return Err(format!("{version} is confirmed: there is nothing to wait for"));
        }
        if let Some(left) = extend {
            let from = if let Some(wait) = wait {
                *wait = ConfirmationWait::within(left, self.clock.now, self.settings.boot_id());
                "from now"
            } else {
                attempt.extended = Some(left);
                "of the end of its trial"
            };
            return Ok(format!("{version} is to be confirmed within {left} s {from}"));
        }
        attempt.confirmed = true;
        Ok(format!("{version} is confirmed"))
    }

    /// True if nothing but the confirmation was missing.
    fn is_proven_by(&self, after: &Phase) -> bool {
        let waited = matches!(after, Phase::AwaitingConfirmation(attempt, _) if !attempt.needs_confirmation());
        waited && self.judgement().is_on_trial() && self.process.run().is_some_and(|run| run.healthy_since.is_some())
    }

    fn roll_back_on_request(&self) -> Executed {
        if self.records().pin.is_some() {
            return Err("what runs is pinned: unpin it first, or pin another version".to_owned());
        }
        let proven = self.records().last_known_good.as_ref();
        let Some((records, version)) = self.rolled_back(Failure::Operator, REQUESTED) else {
            let fallen = self.active() != proven && !is_same(self.active(), proven);
            let unusable = proven.filter(|_| fallen).and_then(|proven| self.versions.unusable(proven));
            if let Some(why) = self.local_failure() {
                return Err(format!("nothing is on trial: {why}"));
            }
            return Err(match unusable {
                Some(unusable) => format!(
                    "{} runs already, because what was proven last cannot be used: {}",
                    Version::name(self.active()),
                    unusable.why
                ),
                None => nothing_to_leave(proven),
            });
        };
        let answer = format!("going back to {}", Version::name(self.desired_with(&records).as_ref()));
        Ok((records, Execution { reason: EventReason::RolledBack, message: None, about: Some(version), answer }))
    }

    /// A command is durable, or could not be recorded.
    pub(super) fn command_recorded(&mut self, number: Option<u64>, execution: Execution, result: &Result<(), String>) {
        if let Some(number) = number {
            self.effects.push(Effect::Answer(number, result.clone().map(|()| execution.answer.clone())));
        }
        if result.is_err() {
            return; // an annotation is still there
        }
        if let Some(message) = execution.message {
            let about = execution.about.as_ref().map(|version| &version.source);
            self.emit(events::event(execution.reason, false, about, message));
        }
        match execution.reason {
            EventReason::Confirmed if self.records().phase == Phase::Settled => self.proven(),
            EventReason::RolledBack => {
                if let Some(version) = execution.about {
                    self.report_rollback(&version, Failure::Operator, REQUESTED);
                }
            }
            EventReason::Retried => {
                if let Some(version) = &execution.about {
                    self.versions.judge_anew(version.digest.as_ref());
                    self.versions.forget_unusable(version);
                }
                self.new_decision();
                self.sync.reconsider();
            }
            EventReason::Pinned | EventReason::Unpinned => {
                if let Some(version) = &execution.about {
                    self.versions.forget_unusable(version);
                }
                self.sync.reconsider();
                self.lose_health();
                self.new_decision();
                self.process.start_at_once(self.clock.now);
            }
            _ => {}
        }
    }

    /// The Node's annotations: the same as the commands, for one version, through the API server.
    fn tick_annotations(&mut self) {
        let known = *self.sync.assignment() != Assignment::Unknown && *self.kubelet() != Kubelet::NotBegun;
        if !known || !self.writer.is_idle() || self.is_leaving() {
            return;
        }
        let Some((retry, confirm)) = self.sync.annotations() else { return };
        let Some((records, proposal)) = self.annotated(retry, confirm) else { return };
        if matches!(&proposal, Proposal::Command(_, Execution { reason: EventReason::Retried, .. })) {
            if self.sync.next_retry().is_some_and(|at| !self.clock.reached(at)) {
                return; // it is obeyed then, if it is still there
            }
            self.sync.note_retry(self.clock.now);
        }
        self.propose(records, proposal);
    }

    /// What the annotations change, if anything.
    fn annotated(&self, retry: Option<&str>, confirm: Option<&str>) -> Option<(Records, Proposal)> {
        let mut after = self.records().clone();
        let by_annotation = |reason, version: Version, what: &str| {
            let message = Some(format!("By annotation: {version} {what}"));
            Proposal::Command(None, Execution { reason, message, about: Some(version), answer: String::new() })
        };
        if retry != after.retried.as_deref() {
            after.retried = retry.map(str::to_owned);
            let wanted = |version: &Version| retry.is_some_and(|wanted| names(wanted, &version.source));
            let version = after.assigned.clone().filter(wanted).filter(|version| forget(&mut after, version));
            let then = tried_again(&after, &self.sync.asked_for());
            let proposal = version.map(|version| by_annotation(EventReason::Retried, version, then));
            return Some((after, proposal.unwrap_or(Proposal::Note)));
        }
        // What has failed meanwhile is not confirmed by that; its next trial may be.
        after.phase.trial()?;
        let attempt = after.phase.attempt_mut().filter(|attempt| attempt.needs_confirmation())?;
        if !names(confirm?, &attempt.version.source) {
            return None;
        }
        attempt.confirmed = true;
        let version = attempt.version.clone();
        Some((after, by_annotation(EventReason::Confirmed, version, "is confirmed")))
    }
}

const REQUESTED: &str = "an operator asked for it";

fn nothing_to_leave(proven: Option<&Version>) -> String {
    let name = Version::name(proven);
    format!("what runs is last known good already ({name}); rollback --to local or --to UID/RESOURCEVERSION leaves it")
}

/// True if an annotation's value names this version: `UID/RESOURCEVERSION`, or the latter alone.
fn names(version: &str, source: &Source) -> bool {
    let version = version.trim();
    version == source.resource_version || version.split_once('/') == Some((&source.uid, &source.resource_version))
}

/// Forgets that a version failed; false if nothing was remembered.
fn forget(records: &mut Records, version: &Version) -> bool {
    let was_bad = records.bad.forget(version);
    let waits = matches!(records.phase, Phase::RetryLater(..) | Phase::ControlTest(..));
    if waits {
        records.phase = Phase::Settled;
    }
    was_bad || waits
}

/// The records after a command for a supervisor that does not run: its next start obeys.
///
/// # Errors
/// Why the command cannot be taken, and what to do instead.
pub(crate) fn offline(stored: Stored, command: &Command, now: Moment) -> Result<(Records, String), String> {
    let (records, read_only) = stored.into_records();
    let state = State::stopped(records, read_only, now);
    if let Some(why) = state.unable() {
        return Err(why);
    }
    let (records, execution) = state.execute(command)?;
    let answer = match command {
        // It is looked at as any change: its policy, its hazards, the kubelet's verdict.
        Command::Retry => format!("{}, once the next supervisor has seen it", execution.answer),
        // The next supervisor reads the policy, and goes by it.
        Command::Acknowledge { .. } => {
            format!("{}, as far as the node's policy lets that be acknowledged", execution.answer)
        }
        _ => execution.answer,
    };
    Ok((records, answer))
}

fn retry(
    records: &mut Records,
    asked_for: &AskedFor,
    is_unusable: impl Fn(&Version) -> bool,
) -> Result<String, String> {
    if records.assigned.is_none() && records.try_local_again() {
        // A freeze lets no change in, and this is none.
        let then = if records.pin.is_some() { "can be tried again, once unpin lets it" } else { "is tried again" };
        return Ok(format!("the local configuration {then}"));
    }
    let Some(version) = records.assigned.clone() else {
        return Err("no ConfigMap is assigned: there is nothing to try again".to_owned());
    };
    if forget(records, &version) || is_unusable(&version) {
        Ok(format!("{version} {}", tried_again(records, asked_for)))
    } else {
        Err(format!("nothing is held against {version}: there is nothing to try again"))
    }
}

/// What becomes of a version that nothing is held against any more.
fn tried_again(records: &Records, asked_for: &AskedFor) -> &'static str {
    let assigned = records.assigned.as_ref().map(|version| &version.source);
    match (&records.pin, records.frozen, asked_for) {
        (.., AskedFor::Version(latest)) if latest.as_ref() != assigned => {
            "can be tried again, but is not what is assigned by now"
        }
        (Some(_), ..) => "can be tried again, once unpin lets the assignment be followed",
        (None, true, _) => "can be tried again, once thaw lets changes in",
        (None, false, _) => "is tried again",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::model::{ConfigError, KubeletId};
    use crate::machine::records::{Attempt, BadReason, LocalHazards, RecordFile};
    use kubelet_config::digest::Digest;
    use kubelet_config::hazard::HazardClass;
    use kubelet_config::source::ConfigMapRef;

    fn version(name: &str) -> Version {
        let reference = ConfigMapRef { namespace: "n".into(), name: name.into(), kubelet_config_key: "k".into() };
        let source = Source { reference, resource_version: "1".into(), uid: name.into() };
        Version { source, digest: Some(Digest(name.into())) }
    }

    fn told(records: &Records, command: &Command) -> Result<(Records, String), String> {
        let state = RecordFile::Read(Box::new(records.clone()));
        offline(Stored { state, ..Stored::empty() }, command, Moment::default())
    }

    #[test]
    fn without_a_supervisor_a_pin_holds_what_the_next_one_would_start() {
        let (good, bad) = (version("good"), version("bad"));
        let tried = Records {
            assigned: Some(bad.clone()),
            last_known_good: Some(good.clone()),
            phase: Phase::Trial(Attempt::new(bad.clone())),
            ..Records::default()
        };
        let pinned = |records: &Records| told(records, &Command::Pin { to: None }).unwrap().0.pin;
        assert_eq!(pinned(&tried), Some(Pin { version: Some(bad) }));
        let (failed, answer) = told(&tried, &Command::Rollback { to: Target::Lkg }).unwrap();
        assert!(answer.starts_with("going back to") && failed.phase == Phase::Settled, "{answer}");
        let [mark] = &failed.bad[..] else { unreachable!("{:?}", failed.bad) };
        assert_eq!((&mark.kubelet, mark.error), (&KubeletId::ANY, ConfigError::Load));
        assert_eq!(mark.reason, BadReason::Failed(Failure::Operator));
        assert_eq!(pinned(&failed), Some(Pin { version: Some(good) }));
    }

    /// One command after the other, as `status` says it.
    #[test]
    fn without_a_supervisor_each_class_of_hazards_is_accepted() {
        let version = Version { digest: None, ..version("x") };
        let state = State::stopped(Records::default(), None, Moment::default());
        let refused = BTreeSet::from([HazardClass::Reboot, HazardClass::Forbidden]);
        let hazards = LocalHazards {
            source: version.source.clone(),
            digest: Digest("x".into()),
            refused: refused.clone(),
            acknowledged: BTreeSet::new(),
        };
        let mut records = Records {
            bad: vec![state.bad(&version, BadReason::Rejected, ConfigError::Validate, "")].into(),
            assigned: Some(version),
            local_hazards: Some(hazards),
            ..Records::default()
        };
        for class in refused.clone() {
            records = told(&records, &Command::Acknowledge { class }).unwrap().0;
        }
        assert_eq!(records.local_hazards.as_ref().unwrap().acknowledged, refused);
        assert!(told(&records, &Command::Acknowledge { class: HazardClass::Forbidden }).is_err());
    }

    /// What was refused is looked at as any change by the next supervisor, and not put on trial by a command.
    #[test]
    fn without_a_supervisor_a_retry_admits_nothing() {
        let version = version("x");
        let state = State::stopped(Records::default(), None, Moment::default());
        let bad = vec![state.bad(&version, BadReason::Rejected, ConfigError::Validate, "")];
        let refused = Records { bad: bad.into(), assigned: Some(version), ..Records::default() };
        let (after, answer) = told(&refused, &Command::Retry).unwrap();
        assert!(after.bad.is_empty() && after.phase == Phase::Settled, "{after:?}");
        assert!(answer.ends_with("is tried again, once the next supervisor has seen it"), "{answer}");
    }

    #[test]
    fn without_a_supervisor_a_pin_is_not_left_by_a_rollback() {
        let version = version("x");
        let phase = Phase::Trial(Attempt::new(version.clone()));
        let pin = Some(Pin { version: None });
        let pinned = Records { assigned: Some(version), phase, pin, ..Records::default() };
        let refused = told(&pinned, &Command::Rollback { to: Target::Lkg }).unwrap_err();
        assert!(refused.contains("unpin it first"), "{refused}");
    }
}
