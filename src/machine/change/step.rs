//! The change goes on, stage by stage.

use super::{Change, Inquiry, Stage};
use crate::machine::asks::Asker;
use crate::machine::evidence::Signal;
use crate::machine::io::{Effect, StoreRequest, log};
use crate::machine::model::{ConfigError, LoadTarget, Moment, RenderError, Rendered, Verdict, later};
use crate::machine::proposal::Proposal;
use crate::machine::records::{Phase, Records, Version};
use crate::machine::sync::Resolution;
use crate::machine::{Counter, Level, State, limits};
use kubelet_config::assignment::Assignment;
use kubelet_config::digest::Digest;
use kubelet_config::duration;
use kubelet_config::hazard;
use kubelet_config::source::{Payload, Source};
use kubelet_config::status;
use std::sync::Arc;

impl State {
    /// Begins the change that is due, if one is and now is the time, and goes on with the one under way.
    pub(in crate::machine) fn tick_change(&mut self, fx: &mut Vec<Effect>) {
        let held = self.is_held();
        if held && !self.is_change_recording() {
            self.change = None;
        }
        if held || self.process.is_leaving() {
            return;
        }
        // A start goes first: there is one preflight at a time.
        let starting = self.process.run().is_none() && !self.launch.is_idle();
        if !self.writer.is_idle() || starting || !self.process.may_change(self.now) {
            return self.tell_of_store();
        }
        self.drop_unassigned();
        if self.launch.is_preflighting() {
            return; // it would be dropped for that, and begun anew without an end
        }
        self.end_spread();
        self.await_good_moment(fx);
        self.await_baseline(fx);
        if !self.writer.is_idle() {
            return;
        }
        match self.resolution() {
            None | Some(Resolution::Nothing) => {}
            Some(Resolution::Failed(error, why)) => self.sync_failed(error, why),
            Some(Resolution::Local) => self.reset(fx),
            Some(Resolution::Version(source, payload)) => self.consider(source, payload, fx),
        }
    }

    fn is_change_recording(&self) -> bool {
        matches!(&self.change, Some(Change { stage: Stage::Recording, .. }))
    }

    /// A change that nobody asks for any more is not made, however far it is.
    fn drop_unassigned(&mut self) {
        let is_gone = |change: &Change| match &change.source {
            Some(source) => self.sync.is_gone(source),
            None => *self.sync.assignment() != Assignment::Local,
        };
        if self.change.as_ref().is_some_and(is_gone) {
            self.change = None;
            self.forget_good_moment();
        }
    }

    /// Its time is kept: it is found again.
    pub(in crate::machine) fn drop_change(&mut self) {
        self.change = None;
    }

    /// It is found again, loaded and compared, unless it is decided.
    pub(in crate::machine) fn judge_change_anew(&mut self) {
        if !self.is_change_recording() {
            self.change = None;
        }
    }

    /// What was loaded for it is of no use, or the question got lost: our own trouble.
    pub(in crate::machine) fn give_up_change(&mut self, why: String) {
        self.change = None;
        self.postpone(why);
    }

    /// It could not be started a while ago: that is not tried again before its time.
    pub(super) fn put_off_change(&mut self, why: String, until: Moment) {
        self.change = None;
        self.postpone_until(why, until);
    }

    /// True if an operator lets no change in.
    pub(in crate::machine) fn is_held(&self) -> bool {
        self.records().pin.is_some() || self.records().frozen
    }

    /// True if nothing is assigned, the records do not say so yet, and no change is under way that will see to it.
    pub(in crate::machine) fn is_reset_due(&self) -> bool {
        let is_due = !self.is_held() && matches!(self.resolution(), Some(Resolution::Local)) && !self.is_reset();
        is_due && self.change.is_none()
    }

    fn is_reset(&self) -> bool {
        let records = self.records();
        records.assigned.is_none() && records.last_known_good.is_none() && records.phase == Phase::Settled
    }

    /// The assignment is withdrawn. Where that restarts the kubelet it goes the way of a change, and nothing refuses it.
    fn reset(&mut self, fx: &mut Vec<Effect>) {
        if self.change.as_ref().is_some_and(|change| change.source.is_none()) {
            return;
        }
        self.change = None;
        self.handled(None);
        if self.is_reset() {
            return;
        }
        if self.active().is_none() {
            return self.record_reset(fx);
        }
        self.ask_load(Asker::Change, LoadTarget::Local, limits::STORE_DEADLINE, fx);
        self.change = Some(Change::new(None, Stage::Loading, None, self.now));
    }

    /// What is to be restarted into, by a reset. What cannot be loaded is the launch's trouble, once no pressure is in the way.
    fn reset_loaded(&mut self, result: Result<Rendered, RenderError>, fx: &mut Vec<Effect>) {
        match result {
            Ok(rendered) if self.running().digest.as_ref() != Some(&rendered.digest) => self.accepted(rendered, fx),
            Err(_) if self.has_lasting_hold(None, &self.unloadable(), &[]) => self.accepted(self.unloadable(), fx),
            _ => self.record_reset(fx),
        }
    }

    /// In the place of what cannot be loaded: no kubelet starts with it, so nothing of it ends a pressure.
    fn unloadable(&self) -> Rendered {
        let running = self.running();
        let (effective, ignores_eviction) = (running.effective.clone(), running.ignores_eviction);
        Rendered { effective, ignores_eviction, ..Rendered::default() }
    }

    fn record_reset(&mut self, fx: &mut Vec<Effect>) {
        let records = self.records().after_reset();
        self.propose_change(records, Proposal::Reset, fx);
    }

    fn consider(&mut self, source: Source, payload: Option<Arc<Payload>>, fx: &mut Vec<Effect>) {
        if self.sync.is_handled(&source) {
            return self.drop_change(); // of a version that a stale cache gave meanwhile
        }
        let is_new = self.records().assigned.as_ref().is_none_or(|assigned| assigned.source != source);
        let waits = is_new && source.is_local_files() && self.are_local_files_unproven();
        if waits || self.change.as_ref().is_some_and(|change| change.source.as_ref() == Some(&source)) {
            return;
        }
        self.pending.applying_since.get_or_insert(self.now);
        let stage = match payload {
            Some(payload) => {
                let of = source.clone();
                self.ask(Asker::Change, limits::STORE_DEADLINE, fx, |ticket| {
                    Effect::Store(StoreRequest::Save(ticket, of, payload))
                });
                Stage::Saving
            }
            None => self.load_change(&source, fx),
        };
        let starts_at = self.spread_start(&source);
        self.change = Some(Change::new(Some(source), stage, starts_at, self.now));
    }

    fn load_change(&mut self, source: &Source, fx: &mut Vec<Effect>) -> Stage {
        self.ask_load(Asker::Change, LoadTarget::Source(source.clone()), limits::STORE_DEADLINE, fx);
        Stage::Loading
    }

    /// Has a decision about the change recorded. One write is under way at a time: while there is another, the change is
    /// dropped, and found again after it.
    pub(in crate::machine) fn propose_change(&mut self, records: Records, proposal: Proposal, fx: &mut Vec<Effect>) {
        if self.writer.is_idle() {
            self.set_change_stage(Stage::Recording);
            self.propose(records, proposal, fx);
        } else {
            self.change = None;
            self.reconsider();
        }
    }

    /// The version is dealt with without a decision.
    pub(in crate::machine) fn end_change(&mut self, source: &Source) {
        self.change = None;
        self.pending.applying_since = None;
        self.handled(Some(source));
    }

    /// Has the kubelet judge a candidate.
    pub(super) fn preflight_change(&mut self, rendered: Rendered, fx: &mut Vec<Effect>) {
        let (afterwards, judged) = (self.afterwards(&rendered), rendered.clone());
        self.ask(Asker::Change, limits::PREFLIGHT_DEADLINE, fx, |ticket| Effect::Preflight(ticket, judged, afterwards));
        self.set_change_stage(Stage::Preflight(Box::new(rendered)));
    }

    fn set_change_stage(&mut self, stage: Stage) {
        if let Some(change) = &mut self.change {
            change.stage = stage;
        }
    }

    pub(in crate::machine) fn checkpoint_saved(&mut self, result: Result<(), String>, fx: &mut Vec<Effect>) {
        let Some(Change { source: Some(source), stage: Stage::Saving, .. }) = self.change.clone() else { return };
        match result {
            Ok(()) => {
                self.checkpointed(&source);
                let stage = self.load_change(&source, fx);
                self.set_change_stage(stage);
            }
            Err(why) => {
                fx.push(Effect::Count(Counter::StoreError));
                self.give_up_change(format!("the checkpoint cannot be written: {why}"));
            }
        }
    }

    pub(in crate::machine) fn change_loaded(&mut self, result: Result<Rendered, RenderError>, fx: &mut Vec<Effect>) {
        let Some(Change { source, stage: Stage::Loading, .. }) = self.change.clone() else { return };
        let Some(source) = source else { return self.reset_loaded(result, fx) };
        match result {
            Ok(rendered) => self.compare(source, rendered, fx),
            Err(RenderError::Load(message)) => self.reject(&Version::named(source), ConfigError::Load, &message, fx),
            Err(RenderError::Checkpoint(why)) => {
                self.download_again(fx);
                self.give_up_change(why);
            }
            Err(RenderError::Internal(why) | RenderError::Unfinished(why) | RenderError::NoAnswer(why)) => {
                self.give_up_change(why);
            }
            Err(RenderError::Policy(why)) => self.refuse_unread(&source, &why, fx),
        }
    }

    /// The verdict on a candidate.
    pub(in crate::machine) fn change_verdict(&mut self, verdict: Verdict, fx: &mut Vec<Effect>) {
        let Some(Change { source: Some(source), stage: Stage::Preflight(rendered), .. }) = self.change.clone() else {
            return;
        };
        fx.push(Effect::Count(Counter::Preflight(verdict.result())));
        let version = Version { source, digest: Some(rendered.digest.clone()) };
        match verdict {
            Verdict::Load(message) => self.reject(&version, ConfigError::Load, &message, fx),
            Verdict::Validate(message) => self.reject(&version, ConfigError::Validate, &message, fx),
            Verdict::Valid(remarks) => {
                for remark in remarks {
                    log(fx, Level::Warn, format!("{version} is accepted, but: {remark}"));
                }
                self.note_accepted(&rendered.digest);
                self.accepted(*rendered, fx);
            }
            Verdict::Inconclusive(why) => {
                log(fx, Level::Warn, format!("the preflight of {version} gave no verdict, the trial decides: {why}"));
                self.note_inconclusive(&rendered.digest);
                self.accepted(*rendered, fx);
            }
            Verdict::NotItsFault(why) => self.give_up_change(why),
        }
    }

    /// The candidate may run: next come the spread and the baseline.
    pub(in crate::machine) fn accepted(&mut self, rendered: Rendered, fx: &mut Vec<Effect>) {
        self.set_change_stage(Stage::Spread(Box::new(rendered)));
        if self.pending_start().is_some() {
            self.collect(fx); // what it has overtaken
        }
    }

    /// Goes on with an accepted change when its turn has come.
    fn end_spread(&mut self) {
        if let Some(Change { stage: Stage::Spread(rendered), .. }) = self.change.clone()
            && self.pending_start().is_none()
        {
            self.set_change_stage(Stage::GoodMoment(rendered, Inquiry::default()));
        }
    }

    /// Takes the baseline of an accepted change only now: it is to say what was good right before the switch.
    pub(super) fn take_baseline(&mut self, rendered: Box<Rendered>, fx: &mut Vec<Effect>) {
        self.query_baseline(fx);
        self.set_change_stage(Stage::Baseline(rendered));
    }

    /// What was asked of another kubelet says nothing of the next one.
    pub(in crate::machine) fn forget_baseline(&mut self) {
        if let Some(change) = &mut self.change
            && let Stage::Baseline(rendered) | Stage::GoodMoment(rendered, _) = &change.stage
        {
            change.stage = Stage::Spread(rendered.clone());
            change.baseline_waits = false;
        }
    }

    /// Goes on with an accepted change as soon as the baseline is known, or was waited for.
    fn await_baseline(&mut self, fx: &mut Vec<Effect>) {
        let Some(change) = &self.change else { return };
        let Stage::Baseline(rendered) = &change.stage else { return };
        if !change.unanswered.is_empty() && self.now < change.baseline_until {
            return;
        }
        let (source, rendered) = (change.source.clone(), rendered.clone());
        let Some(source) = source else { return self.finish_reset(rendered, fx) };
        // What the API server assigned is not switched to while that server is away: nobody could take it back.
        if !source.is_local_files() && self.settings.api_server && !change.baseline.contains(&Signal::ApiServer) {
            if self.now >= change.baseline_until {
                self.await_contact(fx);
            }
            return;
        }
        if self.restart_missed_turn(&source) {
            return self.accepted(*rendered, fx);
        }
        let impacts = self.impacts_of_change(&rendered);
        if self.refuse_impact(&source, &rendered, &impacts, fx) {
            return;
        }
        if self.has_lasting_hold(Some(&source), &rendered, &impacts) {
            return self.accepted(*rendered, fx);
        }
        // Right after a boot the kubelet's version was not known when the change was taken up.
        if let Some(why) = self.refused_field_problems(&rendered) {
            return self.reject(&Version::named(source), ConfigError::Load, &why, fx);
        }
        for line in self.field_problems(&rendered) {
            log(fx, Level::Warn, format!("{source}: {line}"));
        }
        self.tell_cost(Some(&source), hazard::told_impact(&impacts), &rendered, fx);
        self.record_switch(source, &rendered, fx);
    }

    /// A reset needs neither the API server nor anybody's acknowledgement: who withdraws an assignment may have no other way to
    /// get rid of it. All that it costs is told.
    fn finish_reset(&mut self, rendered: Box<Rendered>, fx: &mut Vec<Effect>) {
        if self.has_lasting_hold(None, &rendered, &[]) {
            return self.accepted(*rendered, fx);
        }
        self.tell_cost(None, hazard::whole_impact(&self.impacts_of_change(&rendered)), &rendered, fx);
        self.record_reset(fx);
    }

    /// Asks once more after a pause that grows; where an answer may just have been lost, at once. That it waits is told once.
    fn await_contact(&mut self, fx: &mut Vec<Effect>) {
        let Some(change) = &mut self.change else { return };
        let was_asked = !std::mem::replace(&mut change.baseline_waits, false);
        let is_lost = !change.unanswered.is_empty() && !change.awaits_contact;
        change.awaits_contact = true;
        if !was_asked || is_lost {
            return self.query_baseline(fx);
        }
        let pause = duration::backoff(limits::QUERY_INTERVAL, limits::CONTACT_RETRY_MAX, change.waits);
        change.baseline_until = later(self.now, pause);
        (change.baseline_waits, change.missed_turn) = (true, true);
        change.waits += 1;
        if change.waits == 1 {
            let name = status::name(change.source.as_ref());
            log(fx, Level::Info, format!("{name} waits: the API server is not reachable"));
        }
    }

    /// Nothing is being applied.
    pub(super) fn forget_applying(&mut self) {
        self.pending.applying_since = None;
    }

    /// True while a change to this content is switched to as soon as it is accepted, written and known to be in contact.
    pub(in crate::machine) fn is_change_soon(&self, digest: &Digest) -> bool {
        let Some(change) = &self.change else { return false };
        match &change.stage {
            Stage::Saving | Stage::Loading => false,
            Stage::Preflight(rendered) | Stage::Spread(rendered) => {
                rendered.digest == *digest && self.pending_start().is_none()
            }
            Stage::GoodMoment(rendered, inquiry) => rendered.digest == *digest && !inquiry.is_holding(),
            Stage::Baseline(rendered) => rendered.digest == *digest && !change.awaits_contact,
            Stage::Recording => true,
        }
    }

    /// When the version that is being applied was seen, once its kubelet is ready.
    pub(in crate::machine) fn take_applying_since(&mut self) -> Option<Moment> {
        self.pending.applying_since.take_if(|_| self.change.is_none())
    }

    /// True if it is decided within moments what is to run next.
    pub(in crate::machine) fn is_change_imminent(&self) -> bool {
        self.change.as_ref().is_some_and(|change| !change.is_held_back())
    }

    /// True while a stage lasts that ends within milliseconds, unless the disk or the API server is slow.
    pub(in crate::machine) fn is_change_brief(&self) -> bool {
        self.is_change_imminent() && !matches!(&self.change, Some(Change { stage: Stage::Preflight(..), .. }))
    }

    /// True from the verdict on, until the switch is being recorded.
    pub(in crate::machine) fn is_change_accepted(&self) -> bool {
        self.change.as_ref().is_some_and(|change| change.accepted_rendering().is_some())
    }

    /// The version that is held back, and its content.
    pub(in crate::machine) fn change_held_back(&self) -> Option<(Option<&Source>, &Digest)> {
        let change = self.change.as_ref().filter(|change| change.is_held_back())?;
        Some((change.source.as_ref(), &change.accepted_rendering()?.digest))
    }
}
