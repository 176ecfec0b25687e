//! A change, from being seen to the switch: fetch, checkpoint, render, compare, judge, record.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{
    Because, Change, Counter, Durable, Effect, Kubelet, Level, MapState, Purpose, Stage, State, Trial, TrialEnd,
    Wanted, later, say,
};
use crate::core::model::{ConfigMapRef, Digest, KubeletId, Payload, RenderError, Rendered, Source, Verdict};
use crate::core::policy;
use crate::core::record::Attempt;
use crate::core::report::{self, SyncError};

impl State {
    /// The Node's assignment. Watching follows the object, not the key.
    pub(super) fn node(&mut self, wanted: Wanted, fx: &mut Vec<Effect>) {
        if wanted == Wanted::Unknown || wanted == self.wanted {
            return; // a Node that is gone asks for nothing: keep what is
        }
        let before = self.wanted_map().cloned();
        self.wanted = wanted;
        self.sync_error = None;
        self.retry = None;
        let after = self.wanted_map().cloned();
        let same_object = matches!((&before, &after), (Some(before), Some(after)) if before.same_object(after));
        if same_object {
            if matches!(self.map, MapState::Checkpointed(_)) {
                // The bytes are gone; the other key is in the same checkpoint, but only a fresh
                // look tells whether the version still stands.
                self.download_again(fx);
            }
        } else {
            self.map = MapState::Pending;
            fx.push(Effect::Watch(after));
        }
    }

    fn wanted_map(&self) -> Option<&ConfigMapRef> {
        match &self.wanted {
            Wanted::Map(reference) => Some(reference),
            _ => None,
        }
    }

    pub(super) fn map_seen(&mut self, payload: Arc<Payload>) {
        let Some(reference) = self.wanted_map() else { return };
        if payload.namespace != reference.namespace || payload.name != reference.name {
            return; // from a watch that has been replaced
        }
        let source = payload.resolve(reference);
        if matches!(self.sync_error, Some((SyncError::Download, _))) {
            self.sync_error = None;
        }
        if self.map == MapState::Checkpointed(source) && !self.damaged {
            return;
        }
        self.map = MapState::Present(payload);
        self.retry = None;
    }

    pub(super) fn map_failed(&mut self, why: String, definite: bool) {
        let seen = matches!(self.map, MapState::Present(_) | MapState::Checkpointed(_));
        if self.wanted_map().is_none() || (seen && !definite) {
            return;
        }
        let since = match &self.map {
            MapState::Failed { since, .. } => *since,
            _ => self.now,
        };
        self.map = MapState::Failed { why, since };
    }

    /// Forgets that the ConfigMap was seen and asks for it again.
    pub(super) fn download_again(&mut self, fx: &mut Vec<Effect>) {
        self.damaged = true;
        if let Some(reference) = self.wanted_map().cloned() {
            self.map = MapState::Pending;
            fx.push(Effect::Watch(Some(reference)));
        }
    }

    /// Begins the change that is due, if one is and now is the time.
    pub(super) fn tick_change(&mut self, fx: &mut Vec<Effect>) {
        if self.leaving || !self.may_change() {
            return;
        }
        match self.wanted.clone() {
            Wanted::Unknown => {}
            Wanted::AllNil => {
                self.sync_failed(SyncError::AllNil, "the Node's configSource names no source".to_owned(), fx);
            }
            Wanted::Local => self.consider_local(fx),
            Wanted::Map(reference) => match self.map.clone() {
                MapState::Pending => {}
                MapState::Failed { why, since } => {
                    if self.now >= later(since, policy::DOWNLOAD_PATIENCE) {
                        self.sync_failed(SyncError::Download, why, fx);
                    }
                }
                MapState::Present(payload) => self.consider(&payload.resolve(&reference), Some(payload), fx),
                MapState::Checkpointed(source) => self.consider(&source, None, fx),
            },
        }
    }

    /// A kubelet that is being started or stopped is let be; one that was just switched gets time
    /// to come up, so that a burst of changes does not cost a restart each.
    fn may_change(&self) -> bool {
        match &self.kubelet {
            Kubelet::Running(run) => !run.switched || run.ready || self.now >= later(run.started, policy::SETTLE),
            Kubelet::Waiting { .. } => true,
            Kubelet::Down | Kubelet::Launching | Kubelet::Starting | Kubelet::Stopping { .. } | Kubelet::Gone => false,
        }
    }

    fn consider_local(&mut self, fx: &mut Vec<Effect>) {
        self.sync_error = None;
        let records = self.records();
        if records.assigned.is_none() && records.last_known_good.is_none() && self.active.is_none() {
            self.error = None;
            self.damaged = false;
            self.change = None;
        } else if self.change.as_ref().is_none_or(|change| change.to.is_some()) {
            self.begin(None);
            fx.push(Effect::Render(Purpose::Change, None));
        }
    }

    fn consider(&mut self, source: &Source, payload: Option<Arc<Payload>>, fx: &mut Vec<Effect>) {
        if self.change.as_ref().is_some_and(|change| change.to.as_ref() == Some(source)) {
            return; // under way
        }
        let settled = self.records().assigned.as_ref() == Some(source)
            && !self.damaged
            && (self.active.as_ref() == Some(source) || self.bad(source, None).is_some());
        if settled {
            self.sync_error = None;
            self.change = None;
            self.map = MapState::Checkpointed(source.clone());
            return;
        }
        self.begin(Some(source.clone()));
        match payload {
            Some(payload) => fx.push(Effect::Save(source.clone(), payload)),
            None => fx.push(Effect::Render(Purpose::Change, Some(source.clone()))),
        }
    }

    fn begin(&mut self, to: Option<Source>) {
        let seen = self.applying_since.take().unwrap_or(self.now);
        self.change = Some(Change { to, seen, stage: Stage::Preparing });
    }

    fn changing_to(&self, source: Option<&Source>) -> bool {
        self.change.as_ref().is_some_and(|change| change.to.as_ref() == source)
    }

    pub(super) fn saved_checkpoint(&mut self, source: &Source, result: Result<(), String>, fx: &mut Vec<Effect>) {
        if !self.changing_to(Some(source)) {
            return;
        }
        match result {
            Ok(()) => {
                self.damaged = false;
                self.map = MapState::Checkpointed(source.clone());
                fx.push(Effect::Render(Purpose::Change, Some(source.clone())));
            }
            Err(why) => {
                fx.push(Effect::Count(Counter::StoreError));
                self.postpone(&format!("the checkpoint cannot be written: {why}"), fx);
            }
        }
    }

    pub(super) fn change_rendered(
        &mut self,
        source: Option<&Source>,
        id: KubeletId,
        result: Result<Rendered, RenderError>,
        fx: &mut Vec<Effect>,
    ) {
        if !self.changing_to(source) {
            return;
        }
        self.kubelet_id = id;
        match (source, result) {
            (None, result) => {
                let equal =
                    result.is_ok_and(|rendered| self.in_force.digest == Some(rendered.digest)) && self.pid().is_some();
                self.reset(equal, fx);
            }
            (Some(source), Ok(rendered)) => {
                for note in &rendered.notes {
                    say(fx, Level::Info, format!("{source}: {note}"));
                }
                for field in &rendered.shadowed {
                    say(fx, Level::Info, format!("{source}: {field} has no effect, the command line wins"));
                }
                if self.in_force.digest.as_ref() == Some(&rendered.digest) && self.pid().is_some() {
                    self.adopt(source, fx);
                } else if let Some(bad) = self.bad(source, Some(&rendered.digest)) {
                    let (error, detail) = (bad.error.clone(), bad.detail.clone());
                    self.reject(source, Some(&rendered), &error, &detail, fx);
                } else if self.is_judged(&rendered) {
                    self.record_switch(source.clone(), rendered, fx);
                } else {
                    let ticket = self.next_ticket();
                    fx.push(Effect::Preflight(ticket, rendered.clone()));
                    self.set_stage(Stage::Judging(ticket, rendered));
                }
            }
            (Some(source), Err(RenderError::Load(words))) => self.reject(source, None, report::LOAD_ERROR, &words, fx),
            (Some(_), Err(RenderError::Checkpoint(why))) => {
                self.download_again(fx);
                self.postpone(&why, fx);
            }
            (Some(_), Err(RenderError::Internal(why))) => self.postpone(&why, fx),
        }
    }

    pub(super) fn verdict(&mut self, ticket: u64, verdict: Verdict, fx: &mut Vec<Effect>) {
        let counted = Effect::Count(Counter::Preflight(verdict.label()));
        if let Some((_, rendered)) = self.launching.take_if(|(expected, _)| *expected == ticket) {
            fx.push(counted);
            return self.launch_judged(verdict, rendered, fx);
        }
        let Some(Change { to: Some(source), stage: Stage::Judging(expected, rendered), .. }) = self.change.clone()
        else {
            return;
        };
        if expected != ticket {
            return; // of a candidate that has been overtaken
        }
        fx.push(counted);
        match verdict {
            Verdict::Load(words) => self.reject(&source, Some(&rendered), report::LOAD_ERROR, &words, fx),
            Verdict::Validate(words) => self.reject(&source, Some(&rendered), report::VALIDATE_ERROR, &words, fx),
            Verdict::Valid(remarks) => {
                for remark in remarks {
                    say(fx, Level::Warn, format!("{source} is accepted, but: {remark}"));
                }
                self.remember_verdict(&rendered);
                self.record_switch(source, rendered, fx);
            }
            Verdict::Inconclusive(why) => {
                say(fx, Level::Warn, format!("the preflight of {source} gave no verdict, the trial decides: {why}"));
                self.waived = Some((rendered.digest.clone(), self.kubelet_id.clone()));
                self.record_switch(source, rendered, fx);
            }
            Verdict::NotItsFault(why) => self.postpone(&why, fx),
        }
    }

    fn record_switch(&mut self, source: Source, rendered: Rendered, fx: &mut Vec<Effect>) {
        let mut records = self.records().clone();
        records.assigned = Some(source.clone());
        let proven = records.last_known_good.as_ref() == Some(&source);
        records.ledger.attempt = (!proven).then_some(Attempt { source, tries: 1 });
        records.ledger.judged.clone_from(&self.judged);
        self.set_stage(Stage::Recording(rendered));
        fx.push(Effect::Record(Because::Switch, records));
    }

    fn set_stage(&mut self, stage: Stage) {
        if let Some(change) = &mut self.change {
            change.stage = stage;
        }
    }

    pub(super) fn recorded(&mut self, because: Because, result: Result<Durable, String>, fx: &mut Vec<Effect>) {
        let durable = match result {
            Ok(durable) => durable,
            Err(why) => {
                if matches!(because, Because::Switch | Because::Adopt | Because::Reset) {
                    fx.push(Effect::Count(Counter::StoreError));
                    // Some of it may be on disk. What holds is written back, lest the next start
                    // goes by an assignment that nobody wants any more.
                    self.unsaved.get_or_insert_with(|| self.saved.clone());
                    self.postpone(&format!("the store cannot be written: {why}"), fx);
                } else {
                    self.record_failed(&why, fx);
                }
                return;
            }
        };
        self.saved = durable;
        self.unsaved = None;
        self.retry = None;
        match because {
            Because::Memory => {}
            Because::Proven => self.proven(fx),
            Because::Switch => self.recorded_switch(fx),
            Because::Adopt => self.recorded_adoption(fx),
            Because::Reset => self.recorded_reset(fx),
        }
    }

    fn recorded_switch(&mut self, fx: &mut Vec<Effect>) {
        let Some(Change { to: Some(source), seen, .. }) = self.change.take() else { return };
        self.applying_since = Some(seen);
        self.sync_error = None;
        self.trial = None;
        fx.push(Effect::Emit(report::changed(Some(&source))));
        self.switch(Some(source), "config", fx);
    }

    /// Equal content under a new name or version: no restart, and the standing is kept.
    fn adopt(&mut self, source: &Source, fx: &mut Vec<Effect>) {
        let mut records = self.records().clone();
        records.assigned = Some(source.clone());
        let proven = records.last_known_good.as_ref() == Some(source);
        let tries = records.ledger.attempt.as_ref().map_or(1, |attempt| attempt.tries);
        records.ledger.attempt = (!proven).then(|| Attempt { source: source.clone(), tries });
        fx.push(Effect::Record(Because::Adopt, records));
    }

    fn recorded_adoption(&mut self, fx: &mut Vec<Effect>) {
        let Some(Change { to: Some(source), .. }) = self.change.take() else { return };
        self.sync_error = None;
        self.error = None;
        if self.active.as_ref() != Some(&source) {
            fx.push(Effect::Emit(report::adopted(&source)));
        }
        self.active = Some(source.clone());
        self.target = Some(source);
        if self.saved.ledger.attempt.is_none() {
            self.trial = None;
        } else if self.trial.is_none() {
            // What ran was last known good, and outside a trial nobody asks healthz: where there
            // is one, the clock begins with its next answer.
            self.trial = Some(Trial { exits: 0, adopted: true });
            let (now, probed) = (self.now, self.in_force.healthz.is_some());
            if let Kubelet::Running(run) = &mut self.kubelet
                && probed
                && run.ready
            {
                run.healthy_since = None;
                run.probe_at = Some(now);
            }
        }
        self.collect(fx);
    }

    fn reset(&mut self, equal: bool, fx: &mut Vec<Effect>) {
        let mut records = self.records().clone();
        records.assigned = None;
        records.last_known_good = None;
        records.ledger.attempt = None;
        if equal {
            self.in_force.source = None;
        }
        fx.push(Effect::Record(Because::Reset, records));
    }

    fn recorded_reset(&mut self, fx: &mut Vec<Effect>) {
        let Some(Change { to: None, seen, .. }) = self.change.take() else { return };
        self.error = None;
        self.trial = None;
        self.trial_end = TrialEnd::None;
        self.damaged = false;
        let same_content = self.in_force.source.is_none();
        if same_content {
            self.active = None;
            self.target = None;
            self.collect(fx);
        } else {
            self.applying_since = Some(seen);
            fx.push(Effect::Emit(report::changed(None)));
            self.switch(None, "reset", fx);
        }
    }

    /// The candidate will not run. Costs no restart, unless what runs was itself unproven.
    fn reject(
        &mut self,
        source: &Source,
        rendered: Option<&Rendered>,
        error: &str,
        detail: &str,
        fx: &mut Vec<Effect>,
    ) {
        self.change = None;
        let digest = rendered.map(|rendered| &rendered.digest);
        let known = self.bad(source, digest).is_some() && self.records().assigned.as_ref() == Some(source);
        let mut records = self.with_mark(source, digest, error, detail);
        records.assigned = Some(source.clone());
        records.ledger.attempt = None;
        self.sync_error = None;
        self.error = Some((error.to_owned(), detail.to_owned()));
        self.remember(records, fx);
        if !known {
            fx.push(Effect::Emit(report::rejected(source, detail)));
        }
        let fallback = self.fallback();
        // `target` differs from `active` where a start failed and is to be repeated.
        if self.active != fallback || self.target != fallback {
            self.trial = None;
            say(
                fx,
                Level::Warn,
                format!(
                    "what runs is unproven and no longer assigned; going back to {}",
                    report::name(fallback.as_ref())
                ),
            );
            self.switch(fallback, "rollback", fx);
        }
    }

    /// Our own trouble: keep what runs, say so, try again.
    fn postpone(&mut self, why: &str, fx: &mut Vec<Effect>) {
        if let Some(change) = self.change.take() {
            self.applying_since = Some(change.seen);
        }
        self.sync_failed(SyncError::Internal, why.to_owned(), fx);
        self.back_off();
    }

    fn sync_failed(&mut self, error: SyncError, why: String, fx: &mut Vec<Effect>) {
        let now = Some((error, why));
        if self.sync_error != now {
            if let Some((error, why)) = &now {
                say(fx, Level::Warn, format!("{}: {why}", error.text()));
            }
            self.sync_error = now;
        }
    }

    pub(super) fn is_judged(&self, rendered: &Rendered) -> bool {
        let known = |(digest, id): &(Digest, KubeletId)| *digest == rendered.digest && *id == self.kubelet_id;
        self.judged.iter().any(known) || self.waived.as_ref().is_some_and(known)
    }

    pub(super) fn remember_verdict(&mut self, rendered: &Rendered) {
        // Two configurations matter at a time; a few more serve a toggling administrator.
        if self.judged.len() >= 8 {
            self.judged.remove(0);
        }
        self.judged.push((rendered.digest.clone(), self.kubelet_id.clone()));
    }

    /// Has checkpoints removed that nothing refers to.
    pub(super) fn collect(&mut self, fx: &mut Vec<Effect>) {
        if self.keep_all {
            return;
        }
        let records = self.records();
        let changing = self.change.as_ref().and_then(|change| change.to.as_ref());
        let keep: BTreeSet<Source> =
            [&self.active, &self.target, &self.in_force.source, &records.assigned, &records.last_known_good]
                .into_iter()
                .chain([&self.saved.assigned, &self.saved.last_known_good])
                .filter_map(Option::as_ref)
                .chain(changing)
                .cloned()
                .collect();
        fx.push(Effect::Collect(keep));
    }
}
