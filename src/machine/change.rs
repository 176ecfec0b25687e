//! A change, from being seen to the switch: checkpoint, render, compare, judge, wait at the gate, record.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::asks::Asker;
use super::io::{Effect, StoreRequest};
use super::model::{ConfigError, KubeletId, Moment, RenderError, Rendered, Verdict};
use super::proposal::Proposal;
use super::records::{Phase, Records, RunningConfig, Version};
use super::sync::Resolution;
use super::{Counter, Level, State, limits};
use kubelet_config::assignment::Assignment;
use kubelet_config::digest::Digest;
use kubelet_config::hazard;
use kubelet_config::hazard::HazardClass;
use kubelet_config::source::{Payload, Source};

use wait::Wait;
pub use wait::Waiting;

mod baseline;
mod candidate;
mod gate;
pub(super) mod impact;
mod spread;
mod wait;

/// A change on its way, up to the switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Change {
    /// The assigned version; none: the assignment is withdrawn, and the local configuration is to run.
    pub(super) source: Option<Source>,
    stage: Stage,
    /// When this node starts the change, if many nodes have the same one; `None`: now.
    starts_at: Option<Moment>,
    /// What ran when it was compared and weighed.
    against: Option<Digest>,
    /// It is refused for hazards of these classes.
    hazards: BTreeSet<HazardClass>,
}

/// Stages of a [`Change`].
#[derive(Clone, Debug, PartialEq, Eq)]
enum Stage {
    /// These bytes.
    Saving(Digest),
    Loading,
    /// Judged by this binary.
    Preflight(Box<Rendered>, KubeletId),
    /// Accepted; it waits.
    Gate(Box<Rendered>),
    /// The decision is being recorded.
    Recording,
}

/// What outlives a change that is begun anew.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ChangeTimes {
    /// The wait of the latest version. One that is switched to, or not asked for any more, waits anew if it is ever taken up again.
    wait: Option<Wait>,
    /// When the version that is being applied was first seen.
    applying_since: Option<Moment>,
}

impl Change {
    fn new(source: Option<Source>, stage: Stage) -> Self {
        Self { source, stage, starts_at: None, against: None, hazards: BTreeSet::new() }
    }

    /// The accepted configuration, before its switch is recorded.
    fn accepted_rendering(&self) -> Option<&Rendered> {
        match &self.stage {
            Stage::Gate(rendered) => Some(rendered),
            _ => None,
        }
    }
}

impl State {
    /// Begins the change that is due, if one is and now is the time, and goes on with the one under way.
    pub(super) fn tick_change(&mut self) {
        let held = self.is_held();
        if held {
            self.judge_change_anew();
        }
        if held || self.is_leaving() {
            return;
        }
        // A start goes first: there is one preflight at a time.
        let starting = self.process.run().is_none() && !self.launch.is_idle();
        if !self.writer.is_idle() || starting || !self.process.may_change(&self.clock) {
            return self.tell_of_store();
        }
        self.drop_unassigned();
        if self.launch.is_preflighting() {
            return; // it would be dropped for that, and begun anew without an end
        }
        self.tick_gate();
        if !self.writer.is_idle() {
            return;
        }
        match self.resolution() {
            None | Some(Resolution::Nothing) => {}
            Some(Resolution::Failed(error, why)) => self.sync.note_failed(error, why),
            Some(Resolution::Local) => self.reset(),
            Some(Resolution::Version(source, payload)) => self.consider(source, payload),
        }
    }

    /// A change that is not assigned any more is not made, however far it is.
    fn drop_unassigned(&mut self) {
        let is_gone = |change: &Change| match &change.source {
            Some(source) => self.sync.is_gone(source) || self.namespace.refusal().is_some(),
            None => *self.sync.assignment() != Assignment::Local,
        };
        if self.change.as_ref().is_some_and(is_gone) {
            self.change = None;
            self.pending.wait = None;
        }
    }

    /// Its time is kept: it is found again.
    pub(super) fn drop_change(&mut self) {
        self.change = None;
    }

    /// It is found again, loaded and compared, unless it is decided.
    pub(super) fn judge_change_anew(&mut self) {
        self.change.take_if(|change| change.stage != Stage::Recording);
    }

    /// What was loaded for it is of no use, or the question got lost: our own trouble.
    pub(super) fn give_up_change(&mut self, why: String) {
        self.change = None;
        self.postpone(why);
    }

    /// True if an operator lets no change in.
    pub(super) fn is_held(&self) -> bool {
        self.records().pin.is_some() || self.records().frozen
    }

    /// True if nothing is assigned, the records do not say so yet but could, and no change is under way that will see to it.
    pub(super) fn is_reset_due(&self) -> bool {
        let is_due = !self.is_held() && matches!(self.resolution(), Some(Resolution::Local)) && !self.is_reset();
        is_due && self.change.is_none() && self.writer.obstacle().is_none()
    }

    pub(super) fn is_reset(&self) -> bool {
        let records = self.records();
        records.assigned.is_none() && records.last_known_good.is_none() && records.phase == Phase::Settled
    }

    /// The assignment is withdrawn. Where that restarts the kubelet it goes the way of a change, and nothing refuses it.
    fn reset(&mut self) {
        if self.change.as_ref().is_some_and(|change| change.source.is_none()) {
            return;
        }
        self.change = None;
        self.sync.handled(None);
        if self.is_reset() {
            return;
        }
        if self.active().is_none() {
            return self.record_reset();
        }
        self.ask_load(Asker::Change, None, limits::STORE_DEADLINE);
        self.change = Some(Change::new(None, Stage::Loading));
    }

    /// What is to be restarted into, by a reset. What cannot be loaded is the launch's trouble, once nothing is in the way.
    fn reset_loaded(&mut self, result: Result<Rendered, RenderError>) {
        match result {
            Ok(rendered) if self.running().digest.as_ref() != Some(&rendered.digest) => self.accepted(rendered),
            Ok(_) => self.record_reset(),
            // In the place of what cannot be loaded: no kubelet starts with it, so nothing of it ends a pressure.
            Err(_) => {
                let RunningConfig { effective, ignores_eviction, .. } = self.running();
                let (effective, ignores_eviction) = (effective.clone(), *ignores_eviction);
                self.accepted(Rendered { effective, ignores_eviction, ..Rendered::default() });
            }
        }
    }

    fn record_reset(&mut self) {
        let records = self.records().after_reset();
        self.propose_change(records, Proposal::Reset);
    }

    fn consider(&mut self, source: Source, payload: Option<Arc<Payload>>) {
        if self.sync.is_handled(&source) {
            self.change = None; // of a version that a stale cache gave meanwhile
            return;
        }
        let is_new = self.records().assigned.as_ref().is_none_or(|assigned| assigned.source != source);
        let waits = is_new && source.is_local_files() && self.are_local_files_unproven();
        if waits || self.change.as_ref().is_some_and(|change| change.source.as_ref() == Some(&source)) {
            return;
        }
        self.pending.applying_since.get_or_insert(self.clock.now);
        let stage = match payload {
            Some(payload) => {
                let (of, identity) = (source.clone(), payload.identity());
                let is_known = self.records().payload(&source).is_some();
                self.ask(Asker::Change, limits::STORE_DEADLINE, |ticket| {
                    Effect::Store(if is_known {
                        StoreRequest::SaveAnew(ticket, of, payload)
                    } else {
                        StoreRequest::Save(ticket, of, payload)
                    })
                });
                Stage::Saving(identity)
            }
            None => self.load_change(&source),
        };
        self.change = Some(Change::new(Some(source), stage));
    }

    fn load_change(&mut self, source: &Source) -> Stage {
        self.ask_load(Asker::Change, Some(Version::named(source.clone())), limits::STORE_DEADLINE);
        Stage::Loading
    }

    /// Has a decision about the change recorded. One write is under way at a time: while there is another, the change is
    /// dropped, and found again after it.
    pub(super) fn propose_change(&mut self, records: Records, proposal: Proposal) {
        if self.writer.is_idle() {
            self.set_change_stage(Stage::Recording);
            self.propose(records, proposal);
        } else {
            self.change = None;
            self.sync.reconsider();
        }
    }

    /// The version is dealt with without a decision.
    pub(super) fn end_change(&mut self, source: &Source) {
        self.change = None;
        self.pending.applying_since = None;
        self.sync.handled(Some(source));
    }

    /// Has the kubelet judge a candidate.
    fn preflight_change(&mut self, rendered: Rendered) {
        let afterwards = self.afterwards(&rendered);
        self.ask_verdict(Asker::Change, &rendered, afterwards, limits::PREFLIGHT_DEADLINE);
        self.set_change_stage(Stage::Preflight(Box::new(rendered), self.process.kubelet_id().clone()));
    }

    fn set_change_stage(&mut self, stage: Stage) {
        if let Some(change) = &mut self.change {
            change.stage = stage;
        }
    }

    pub(super) fn checkpoint_saved(&mut self, result: Result<(), String>) {
        let Some(Change { source: Some(source), stage: Stage::Saving(identity), .. }) = self.change.clone() else {
            return;
        };
        match result {
            Ok(()) => {
                self.note_payload(&source, &identity);
                self.sync.checkpointed(&source);
                let stage = self.load_change(&source);
                self.set_change_stage(stage);
            }
            Err(why) => {
                self.count(Counter::StoreError);
                self.give_up_change(format!("the checkpoint cannot be written: {why}"));
            }
        }
    }

    /// Another life saved other bytes under this version, and what it decided about them may not be on record.
    pub(super) fn checkpoint_refused(&mut self) {
        let Some(Change { source: Some(source), stage: Stage::Saving(_), .. }) = self.change.take() else { return };
        self.sync.checkpoint_unseen(&source);
        self.refuse_other_bytes(&source);
    }

    pub(super) fn change_loaded(&mut self, result: Result<Rendered, RenderError>) {
        let against = self.running().digest.clone();
        let Some(change) = self.change.as_mut().filter(|change| change.stage == Stage::Loading) else { return };
        change.against = against;
        let source = change.source.clone();
        let Some(source) = source else { return self.reset_loaded(result) };
        match result {
            Ok(rendered) => {
                self.versions.note_whole(&rendered.digest, self.clock.now);
                let starts_at = self.spread_start(&source, &rendered.digest);
                if let Some(change) = &mut self.change {
                    change.starts_at = starts_at;
                }
                self.compare(source, rendered);
            }
            Err(RenderError::Load(message)) => self.reject(&Version::named(source), ConfigError::Load, &message),
            Err(RenderError::Checkpoint(why)) => {
                self.download_again();
                self.give_up_change(why);
            }
            Err(RenderError::Internal(why) | RenderError::Unfinished(why) | RenderError::NoAnswer(why)) => {
                self.give_up_change(why);
            }
            Err(RenderError::Policy(why)) => self.refuse_unread(&source, &why),
        }
    }

    /// The verdict on a candidate.
    pub(super) fn change_verdict(&mut self, verdict: Verdict) {
        let Some(Change { source: Some(source), stage: Stage::Preflight(rendered, binary), .. }) = self.change.clone()
        else {
            return;
        };
        if binary != *self.process.kubelet_id() {
            return self.preflight_change(*rendered); // the one that is started next is another one by now
        }
        self.count(Counter::Preflight(verdict.result()));
        let version = Version { source, digest: Some(rendered.digest.clone()) };
        match verdict {
            Verdict::Load(message) => self.reject(&version, ConfigError::Load, &message),
            Verdict::Validate(message) => self.reject(&version, ConfigError::Validate, &message),
            Verdict::Valid(remarks) => {
                for remark in remarks {
                    self.log(Level::Warn, format!("{version} is accepted, but: {remark}"));
                }
                self.note_accepted(&rendered.digest);
                self.accepted(*rendered);
            }
            Verdict::Inconclusive(why) => {
                self.log(Level::Warn, format!("the preflight of {version} gave no verdict, the trial decides: {why}"));
                self.note_unjudged(&rendered.digest);
                self.accepted(*rendered);
            }
            Verdict::NotItsFault(why) => self.give_up_change(why),
        }
    }

    /// The candidate may run.
    pub(super) fn accepted(&mut self, rendered: Rendered) {
        self.wait_of(&rendered.digest);
        self.set_change_stage(Stage::Gate(Box::new(rendered)));
        let source = self.change.as_ref().and_then(|change| change.source.clone());
        let is_held = |source: &&Source| self.records().bad.iter().any(|bad| bad.is_of_name(source));
        if let Some(source) = source.as_ref().filter(is_held) {
            self.writer.learn(|records| records.bad.admit(source));
            self.writer.write_soon(); // it is told so meanwhile
        }
        self.forget_answers();
        if self.pending_start().is_some() {
            self.collect(); // what it has overtaken
        }
    }

    /// Nothing holds the change any more. It may still be refused for what it would cost, by what is known now.
    ///
    /// A reset needs no acknowledgement: an administrator may have no other way to get rid of an assignment.
    fn switch(&mut self, source: Option<Source>, rendered: &Rendered) {
        let impacts = self.impacts_of_change(rendered);
        let Some(source) = source else {
            self.tell_cost(None, hazard::whole_impact(&impacts), rendered);
            return self.record_reset();
        };
        if let Some((_, why)) = impact::refused_impact(&impacts, rendered) {
            // Once refused it is not weighed again: its pods may go at any time.
            let stood_for = Some(rendered.digest.clone());
            return self.refuse(BTreeSet::from([HazardClass::Pods]), &source, rendered, stood_for, &why);
        }
        // Right after a boot the kubelet's version was not known when the change was taken up.
        if let Some(why) = self.refused_field_problems(rendered) {
            return self.reject(&Version::named(source), ConfigError::Load, &why);
        }
        for line in self.field_problems(rendered) {
            self.log(Level::Warn, format!("{source}: {line}"));
        }
        self.tell_cost(Some(&source), hazard::told_impact(&impacts), rendered);
        self.record_switch(source, rendered);
    }

    /// True while a change to this content is switched to as soon as it is accepted, written and known to be in contact.
    pub(super) fn is_change_soon(&self, digest: &Digest) -> bool {
        let Some(change) = &self.change else { return false };
        let is_it = |rendered: &Rendered| rendered.digest == *digest && self.pending_start().is_none();
        match &change.stage {
            Stage::Saving(_) | Stage::Loading => false,
            Stage::Preflight(rendered, _) => is_it(rendered),
            Stage::Gate(rendered) => is_it(rendered) && self.waiting_for().is_none(),
            Stage::Recording => true,
        }
    }

    /// When the version that is being applied was seen, once its kubelet is ready.
    pub(super) fn take_applying_since(&mut self) -> Option<Moment> {
        self.pending.applying_since.take_if(|_| self.change.is_none())
    }

    /// True if it is decided within moments what is to run next.
    pub(super) fn is_change_imminent(&self) -> bool {
        self.change.is_some() && !self.is_change_held_back()
    }

    /// True while a stage lasts that ends within milliseconds, unless the disk or the API server is slow.
    pub(super) fn is_change_brief(&self) -> bool {
        self.is_change_imminent() && !matches!(&self.change, Some(Change { stage: Stage::Preflight(..), .. }))
    }

    /// True from the verdict on, until the switch is being recorded.
    pub(super) fn is_change_accepted(&self) -> bool {
        self.change.as_ref().is_some_and(|change| change.accepted_rendering().is_some())
    }

    /// True while it waits for its turn, is held, or no record can be written: that may take long.
    fn is_change_held_back(&self) -> bool {
        // Nothing is switched to while nothing can be written.
        let is_stuck = self.writer.obstacle().is_some();
        self.is_change_accepted() && (is_stuck || self.waiting_for().is_some() || self.pending_start().is_some())
    }

    /// The version that is held back, and its content.
    pub(super) fn change_held_back(&self) -> Option<(Option<&Source>, &Digest)> {
        let change = self.change.as_ref().filter(|_| self.is_change_held_back())?;
        Some((change.source.as_ref(), &change.accepted_rendering()?.digest))
    }
}
