//! The node's policy: one place where a candidate is admitted, and what is known of the policy beside what runs.

use super::asks::Asker;
use super::model::{RenderError, Rendered};
use super::pause::Pause;
use super::records::{Records, Version};
use super::{Level, State, events, limits};
use kubelet_config::policy::{Admission, PolicyState, Signed};
use kubelet_config::source::Source;

/// What the node's policy says of what runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Policy {
    /// As it was read last.
    known: PolicyState,
    /// It was read in this life.
    is_read: bool,
    /// What it was held against: what runs, by its name.
    held_against: Option<Version>,
    /// It forbids that.
    forbids: Option<Violation>,
    /// When it is asked about what runs.
    next: Pause,
}

/// The policy forbids what runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Violation {
    pub(super) why: String,
    /// It starts all the same: fields that are pinned or denied bind changes.
    pub(super) starts: bool,
}

impl Violation {
    /// What the policy says of it, as it would of a change.
    fn of(admission: &Admission) -> Option<Self> {
        let refused = admission.refused.clone().map(|why| Self { why, starts: false });
        refused.or_else(|| Some(Self { why: admission.denied.clone()?, starts: true }))
    }

    /// What becomes of what runs.
    pub(super) fn then(&self) -> &'static str {
        if self.starts {
            "goes on, for it was taken up before, and is not taken up anew"
        } else {
            "runs until the next start of the kubelet, and not again"
        }
    }
}

impl Policy {
    /// Why the policy forbids what runs, if it does. It goes on until something else starts.
    #[must_use]
    pub(super) fn violation(&self) -> Option<&Violation> {
        self.forbids.as_ref()
    }
}

impl State {
    /// Whether there is a policy, as it was read last.
    #[must_use]
    pub fn policy(&self) -> &PolicyState {
        &self.policy.known
    }

    /// Root wrote it, or it may have been written: what is assigned and what runs are held against it.
    pub(super) fn policy_changed(&mut self) {
        self.ask_policy();
        self.namespace.forget_told();
        self.ask_namespace();
        self.judge_change_anew();
        self.sync.reconsider();
    }

    /// What was refused as expired may not be, by the clock as it is now.
    pub(super) fn clock_set(&mut self) {
        if self.is_refused_by_policy() {
            self.sync.reconsider();
        }
    }

    /// Nobody watched it for a while: what runs is held against it.
    pub(super) fn ask_policy(&mut self) {
        self.policy.next = Pause::until(self.clock.now);
    }

    /// The one place where a candidate is admitted: rendered, and not judged by the kubelet yet. True if it is not.
    pub(super) fn refuse_by_policy(&mut self, version: &Version, rendered: &Rendered) -> bool {
        self.note_policy(&rendered.admission.policy);
        // The same name may have other bytes: an API server can lie.
        if self.taken_up(&version.source).is_some_and(|known| known.has_content(&rendered.digest)) {
            return false;
        }
        if let Some(why) = rendered.admission.policy.admits_nothing() {
            self.give_up_change(why);
            return true;
        }
        let Some(why) = self.refusal_by_policy(rendered, self.sync.is_by_labels()) else { return false };
        self.reject_by_policy(&version.source, &why);
        true
    }

    /// The same of what was refused as it is, unread.
    pub(super) fn refuse_unread(&mut self, source: &Source, why: &str) {
        self.note_policy(&PolicyState::InForce);
        if self.taken_up(source).is_some() {
            return self.end_change(source);
        }
        self.reject_by_policy(source, why);
    }

    /// `by_label`: whoever asks for it could only have assigned it by a label.
    pub(super) fn refusal_by_policy(&self, rendered: &Rendered, by_label: bool) -> Option<String> {
        let Admission { refused_by_label, signed, .. } = &rendered.admission;
        let by_label = refused_by_label.clone().filter(|_| by_label);
        let refused = Violation::of(&rendered.admission).map(|violation| violation.why).or(by_label);
        refused.or_else(|| self.out_of_date(signed.as_ref()?, rendered))
    }

    /// What was taken up may expire. Older proven content is as any other: an API server that lies must not bring it back.
    fn out_of_date(&self, signed: &Signed, rendered: &Rendered) -> Option<String> {
        let records = self.records();
        let attempt = records.phase.attempt().map(|attempt| &attempt.version);
        let known = records.last_known_good.iter().chain(attempt);
        if known.into_iter().any(|version| version.has_content(&rendered.digest)) {
            return None;
        }
        signed.out_of_date(records.sequences.get(&signed.pool).copied(), self.clock.now.wall_seconds())
    }

    /// True if what is assigned is not taken up for the policy alone.
    pub(super) fn is_refused_by_policy(&self) -> bool {
        let assigned = self.records().assigned.as_ref();
        assigned.and_then(|assigned| self.bad_version(assigned)).is_some_and(|bad| bad.by_policy)
    }

    /// True if what is assigned was refused by its name, for fields, hazards or annotations.
    pub(super) fn is_refused_by_name(&self) -> bool {
        let assigned = self.records().assigned.as_ref().filter(|assigned| assigned.digest.is_none());
        let refused = assigned.and_then(|assigned| self.bad_version(assigned));
        refused.is_some_and(|bad| !bad.by_policy && bad.digest.is_none() && bad.stood_for.is_none())
    }

    /// What was admitted before under this assigned name, and is last known good or on trial: it goes on.
    fn taken_up(&self, source: &Source) -> Option<&Version> {
        let records = self.records();
        let is_it = |version: &&Version| version.source == *source;
        records.assigned.as_ref().filter(is_it)?;
        let tried = records.phase.trial().map(|attempt| &attempt.version);
        records.last_known_good.iter().chain(tried).find(is_it)
    }

    /// Why what was loaded is not started. What is on record was admitted once, so it takes a policy that can be read.
    pub(super) fn forbids_start(rendered: &Rendered) -> Option<String> {
        Violation::of(&rendered.admission).filter(|violation| !violation.starts).map(|violation| violation.why)
    }

    /// What the policy said of what is about to run.
    pub(super) fn policy_at_start(&mut self, version: Option<&Version>, admission: Option<&Admission>) {
        self.policy.held_against = version.cloned();
        if let Some(admission) = admission {
            self.note_policy(&admission.policy);
        }
        self.note_violation(version, admission.and_then(Violation::of));
    }

    fn note_violation(&mut self, version: Option<&Version>, forbids: Option<Violation>) {
        if let Some(violation) = forbids.as_ref().filter(|_| forbids != self.policy.forbids) {
            let source = version.map(|version| &version.source);
            self.emit(events::forbidden(source, &violation.why, violation.then()));
        }
        self.policy.forbids = forbids;
    }

    /// Asks what the policy says of what runs. Under another name, with the same content, it may be another namespace's.
    pub(super) fn tick_policy(&mut self) {
        if self.policy.held_against.as_ref() != self.active() {
            self.policy.held_against = self.active().cloned();
            self.asks.forget(Asker::Policy);
            self.ask_policy();
        }
        let due = self.is_time_to_ask(Asker::Policy, &self.policy.next);
        let now = !self.is_verified_soon() || !self.policy.is_read;
        let can = self.process.run().is_some() && !self.is_leaving() && now;
        if !due || !can {
            return;
        }
        self.policy.next.begin();
        self.ask_load(Asker::Policy, self.active().cloned(), limits::STORE_DEADLINE);
    }

    /// The answer to that.
    pub(super) fn policy_judged(&mut self, result: Result<Rendered, RenderError>) {
        let forbids = match result {
            Ok(rendered) => {
                self.note_policy(&rendered.admission.policy);
                // Local files that were edited are not what runs.
                if Some(&rendered.digest) != self.running().digest.as_ref() {
                    return;
                }
                Violation::of(&rendered.admission)
            }
            Err(RenderError::Policy(why)) => Some(Violation { why, starts: false }),
            // What a slow or failing disk does not give it may give later.
            Err(RenderError::NoAnswer(_) | RenderError::Internal(_)) => {
                return self.policy.next.grow(limits::POLICY_RETRY, &self.clock);
            }
            Err(_) => return,
        };
        self.policy.next.settle();
        let version = self.active().cloned();
        self.note_violation(version.as_ref(), forbids);
    }

    /// True until the policy was read for the first time: a kubelet that is gone on with was started by another worker.
    pub(super) fn is_policy_awaited(&self) -> bool {
        !self.policy.is_read && self.asks.is_open(Asker::Policy)
    }

    pub(super) fn note_policy(&mut self, policy: &PolicyState) {
        self.policy.is_read = true;
        if self.policy.known == *policy {
            return;
        }
        self.policy.known = policy.clone();
        let (level, line) = match policy {
            PolicyState::Unreadable(why) => {
                (Level::Warn, format!("the node's policy cannot be used, nothing new is taken up: {why}"))
            }
            PolicyState::AbsentUnguarded(why) => {
                (Level::Warn, format!("the node has no policy, and none could be used: {why}"))
            }
            PolicyState::InForce => (Level::Info, "the node's policy is in force".to_owned()),
            PolicyState::Absent => (Level::Info, "the node has no policy: what is assigned is taken up".to_owned()),
        };
        self.log(level, line);
    }
}

impl Records {
    /// A version was proven: no lower sequence of its pool is taken up from now on.
    pub(super) fn raise_sequence(&mut self, signed: Option<&Signed>) {
        let Some(Signed { pool, sequence, .. }) = signed else { return };
        let proven = self.sequences.entry(pool.clone()).or_default();
        *proven = (*proven).max(*sequence);
    }
}
