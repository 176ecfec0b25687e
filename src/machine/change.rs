//! A change, from being seen to the switch: fetch, checkpoint, render, compare, judge, record.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::evidence::Baseline;
use super::io::log;
use super::model::{KubeletId, RenderError, Rendered, RestartCause, Verdict, later};
use super::record::{Attempt, ConfirmationWait, REJECTED};
use super::{
    Change, ConfigMapState, Counter, Effect, Kubelet, Level, Purpose, RecordReason, Records, Stage, State, Trial,
    TrialEnd,
};
use super::{events, limits};
use kubelet_config::assignment::Assignment;
use kubelet_config::digest::Digest;
use kubelet_config::pods::PodSummary;
use kubelet_config::source::{ConfigAnnotations, ConfigMapRef, Payload, Source};
use kubelet_config::source_dir;
use kubelet_config::status::{self, SyncError};

impl State {
    /// The Node's assignment. Watching follows the object, not the key.
    pub(super) fn node_assignment(&mut self, assignment: Assignment, fx: &mut Vec<Effect>) {
        let assignment = match (assignment, &self.settings.default_source) {
            (Assignment::Local, Some(default)) => Assignment::Default(default.clone()),
            (assignment, _) => assignment,
        };
        if assignment == Assignment::Unknown || assignment == self.assignment {
            return; // a Node that is gone asks for nothing: keep what is
        }
        let before = self.assigned_map().cloned();
        self.assignment = assignment;
        self.sync_error = None;
        self.retry = None;
        let after = self.assigned_map().cloned();
        let same_object = matches!((&before, &after), (Some(before), Some(after)) if before.same_object(after));
        if same_object {
            if matches!(self.config_map, ConfigMapState::Checkpointed(_)) {
                // The bytes are gone; the other key is in the same checkpoint, but only a fresh
                // download tells whether the version still stands.
                self.download_again(fx);
            }
        } else {
            self.config_map = ConfigMapState::Pending;
            fx.push(Effect::Watch(after));
        }
    }

    pub(super) fn assigned_map(&self) -> Option<&ConfigMapRef> {
        match &self.assignment {
            Assignment::Map(reference) | Assignment::Default(reference) => Some(reference),
            _ => None,
        }
    }

    pub(super) fn config_map_seen(&mut self, payload: Arc<Payload>) {
        let Some(reference) = self.assigned_map() else { return };
        if payload.namespace != reference.namespace || payload.name != reference.name {
            return; // from a watch that has been replaced
        }
        let source = payload.resolve(reference);
        if matches!(self.sync_error, Some((SyncError::Download, _))) {
            self.sync_error = None;
        }
        if self.config_map == ConfigMapState::Checkpointed(source) && !self.checkpoint_damaged {
            return;
        }
        self.config_map = ConfigMapState::Present(payload);
        self.retry = None;
    }

    pub(super) fn config_map_failed(&mut self, why: String, definite: bool) {
        let seen = matches!(self.config_map, ConfigMapState::Present(_) | ConfigMapState::Checkpointed(_));
        if self.assigned_map().is_none() || (seen && !definite) {
            return;
        }
        let since = match &self.config_map {
            ConfigMapState::Failed { since, .. } => *since,
            _ => self.now,
        };
        self.config_map = ConfigMapState::Failed { why, since };
    }

    /// Forgets that the ConfigMap was seen and asks for it again.
    pub(super) fn download_again(&mut self, fx: &mut Vec<Effect>) {
        self.checkpoint_damaged = true;
        if let Some(reference) = self.assigned_map().cloned() {
            self.config_map = ConfigMapState::Pending;
            fx.push(Effect::Watch(Some(reference)));
        }
    }

    /// Begins the change that is due, if one is and now is the time.
    pub(super) fn tick_change(&mut self, fx: &mut Vec<Effect>) {
        if self.leaving || !self.may_change() {
            return;
        }
        if let Some(pinned) = self.pinned().cloned() {
            return self.go_to_pin(pinned, fx);
        }
        if self.records().local_state.frozen {
            return;
        }
        self.drop_unassigned();
        self.end_spread_wait(fx);
        if let Some(Change { stage: Stage::Baseline(_), .. }) = self.change {
            self.await_baseline(fx);
            if self.change.is_none() || fx.iter().any(|effect| matches!(effect, Effect::Record(..))) {
                return;
            }
        }
        match self.assignment.clone() {
            Assignment::Unknown => {}
            Assignment::AllNil => {
                self.sync_failed(SyncError::AllNil, "the Node's configSource names no source".to_owned(), fx);
            }
            Assignment::Invalid(why) => self.sync_failed(SyncError::Download, why, fx),
            Assignment::Local => self.consider_local(fx),
            Assignment::Map(reference) | Assignment::Default(reference) => match self.config_map.clone() {
                ConfigMapState::Pending => {}
                ConfigMapState::Failed { why, since } => {
                    if self.now >= later(since, limits::DOWNLOAD_PATIENCE) {
                        self.sync_failed(SyncError::Download, why, fx);
                    }
                }
                ConfigMapState::Present(payload) => self.consider(&payload.resolve(&reference), Some(payload), fx),
                ConfigMapState::Checkpointed(source) => self.consider(&source, None, fx),
            },
        }
    }

    /// A change that nobody asks for any more is not made, however far it is: the Node names another object, or
    /// none that there is.
    pub(super) fn drop_unassigned(&mut self) {
        let (assigned, gone) = (self.assigned_map().cloned(), matches!(self.config_map, ConfigMapState::Failed { .. }));
        self.change.take_if(|change| {
            let open = matches!(change.stage, Stage::Preflight(..) | Stage::Spread(_) | Stage::Baseline(_));
            open && change.to.as_ref().is_some_and(|to| gone || assigned.as_ref() != Some(&to.reference))
        });
    }

    /// A kubelet that is being started or stopped is let be; one that was just switched gets time
    /// to come up, so that a burst of changes does not cost a restart each.
    fn may_change(&self) -> bool {
        match &self.kubelet {
            Kubelet::Running(run) => !run.switched || run.ready || self.now >= later(run.started, limits::SETTLE),
            Kubelet::Waiting { .. } => true,
            Kubelet::Down | Kubelet::Launching | Kubelet::Starting | Kubelet::Stopping { .. } | Kubelet::Gone => false,
        }
    }

    fn consider_local(&mut self, fx: &mut Vec<Effect>) {
        self.sync_error = None;
        let records = self.records();
        if records.assigned.is_none() && records.last_known_good.is_none() && self.active.is_none() {
            self.error = None;
            self.checkpoint_damaged = false;
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
            && !self.checkpoint_damaged
            && (self.active.as_ref() == Some(source)
                || self.bad_version(source, None).is_some()
                || self.awaits_retry(source));
        if settled {
            self.sync_error = None;
            self.change = None;
            self.config_map = ConfigMapState::Checkpointed(source.clone());
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
        let starts_at = to.as_ref().and_then(|source| self.spread_start(source));
        self.change = Some(Change {
            to,
            seen,
            stage: Stage::Preparing,
            baseline: Baseline::new(),
            unanswered: Baseline::new(),
            baseline_until: self.now,
            starts_at,
            inventory: None,
        });
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
                self.checkpoint_damaged = false;
                self.config_map = ConfigMapState::Checkpointed(source.clone());
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
                    result.is_ok_and(|rendered| self.running.digest == Some(rendered.digest)) && self.pid().is_some();
                self.reset(equal, fx);
            }
            (Some(source), Ok(rendered)) => {
                for note in &rendered.notes {
                    log(fx, Level::Info, format!("{source}: {note}"));
                }
                for field in &rendered.shadowed {
                    log(fx, Level::Info, format!("{source}: {field} has no effect, the command line wins"));
                }
                if self.running.digest.as_ref() == Some(&rendered.digest) && self.pid().is_some() {
                    self.adopt(source, &rendered.annotations, fx);
                } else if let Some(bad) = self.bad_version(source, Some(&rendered.digest)) {
                    let (error, detail) = (bad.error.clone(), bad.detail.clone());
                    self.reject(source, Some(&rendered), &error, &detail, fx);
                } else if let Err(why) = self.confirm_within(&rendered.annotations) {
                    self.reject(source, None, status::LOAD_ERROR, &why, fx);
                } else if let Some(why) = self.refused_hazards(source, &rendered) {
                    // Held against this version, not its content: an acknowledgement changes only the former.
                    self.reject(source, None, status::VALIDATE_ERROR, &why, fx);
                } else if self.is_judged(&rendered) {
                    self.accepted(rendered, fx);
                } else {
                    // Where there is no turn to wait for, both judges are asked at once.
                    if self.pending_start().is_none() {
                        self.query_baseline(fx);
                    }
                    let ticket = self.next_ticket();
                    fx.push(Effect::Preflight(ticket, rendered.clone()));
                    self.set_stage(Stage::Preflight(ticket, rendered));
                }
            }
            (Some(source), Err(RenderError::Load(message))) => {
                self.reject(source, None, status::LOAD_ERROR, &message, fx);
            }
            (Some(_), Err(RenderError::Checkpoint(why))) => {
                self.download_again(fx);
                self.postpone(&why, fx);
            }
            (Some(_), Err(RenderError::Internal(why))) => self.postpone(&why, fx),
        }
    }

    pub(super) fn verdict(&mut self, ticket: u64, verdict: Verdict, fx: &mut Vec<Effect>) {
        let counted = Effect::Count(Counter::Preflight(verdict.result()));
        if let Some((_, rendered)) = self.launching.take_if(|(expected, _)| *expected == ticket) {
            fx.push(counted);
            return self.launch_judged(verdict, rendered, fx);
        }
        let Some(Change { to: Some(source), stage: Stage::Preflight(expected, rendered), .. }) = self.change.clone()
        else {
            return;
        };
        if expected != ticket {
            return; // of a candidate that has been overtaken
        }
        fx.push(counted);
        match verdict {
            Verdict::Load(message) => self.reject(&source, Some(&rendered), status::LOAD_ERROR, &message, fx),
            Verdict::Validate(message) => self.reject(&source, Some(&rendered), status::VALIDATE_ERROR, &message, fx),
            Verdict::Valid(remarks) => {
                for remark in remarks {
                    log(fx, Level::Warn, format!("{source} is accepted, but: {remark}"));
                }
                self.remember_verdict(&rendered);
                self.accepted(rendered, fx);
            }
            Verdict::Inconclusive(why) => {
                log(fx, Level::Warn, format!("the preflight of {source} gave no verdict, the trial decides: {why}"));
                self.tried_without_verdict = Some((rendered.digest.clone(), self.kubelet_id.clone()));
                self.accepted(rendered, fx);
            }
            Verdict::NotItsFault(why) => self.postpone(&why, fx),
        }
    }

    pub(super) fn record_switch(&mut self, source: Source, rendered: Rendered, fx: &mut Vec<Effect>) {
        let mut records = self.records().clone();
        records.assigned = Some(source.clone());
        let proven = records.last_known_good.as_ref() == Some(&source);
        records.local_state.control_test = None;
        records.local_state.retry_later.take_if(|retry_later| retry_later.source != source);
        // The same content under a new name does not begin its trial anew by dying.
        let before =
            records.local_state.attempt.take().filter(|_| self.running.digest.as_ref() == Some(&rendered.digest));
        records.local_state.attempt = (!proven).then(|| Attempt {
            baseline: self.baseline_for_attempt(),
            confirm_within: self.confirm_within(&rendered.annotations).unwrap_or_default(),
            tries: before.as_ref().map_or(1, |before| before.tries),
            adopted: before.is_some_and(|before| before.adopted),
            ..Attempt::new(source)
        });
        records.local_state.accepted_digests.clone_from(&self.accepted_digests);
        self.set_stage(Stage::Recording(rendered));
        fx.push(Effect::Record(RecordReason::Switch, records));
    }

    pub(super) fn set_stage(&mut self, stage: Stage) {
        if let Some(change) = &mut self.change {
            change.stage = stage;
        }
    }

    pub(super) fn recorded(&mut self, because: RecordReason, result: Result<Records, String>, fx: &mut Vec<Effect>) {
        let durable = match result {
            Ok(durable) => durable,
            Err(why) => {
                if matches!(because, RecordReason::Switch | RecordReason::Adopt | RecordReason::Reset) {
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
            RecordReason::Memory => {}
            RecordReason::Proven => self.proven(fx),
            RecordReason::Switch => self.recorded_switch(fx),
            RecordReason::Adopt => self.recorded_adoption(fx),
            RecordReason::Reset => self.recorded_reset(fx),
        }
    }

    fn recorded_switch(&mut self, fx: &mut Vec<Effect>) {
        let Some(Change { to: Some(source), seen, inventory, stage, .. }) = self.change.take() else { return };
        let equal =
            matches!(&stage, Stage::Recording(rendered) if self.running.digest.as_ref() == Some(&rendered.digest));
        self.applying_since = Some(seen);
        let pods = inventory.unwrap_or_default().pods.into_iter();
        self.pods_before = pods.filter(PodSummary::is_live).map(|pod| pod.uid).collect();
        self.sync_error = None;
        if !equal {
            self.trial = None;
        }
        self.recovered = false;
        self.runtime = self.running.runtime.take().or(self.runtime.take());
        fx.push(Effect::Emit(events::changed(Some(&source))));
        self.switch(Some(source), RestartCause::Config, fx);
    }

    /// Equal content under a new name or version: no restart, and the standing is kept.
    fn adopt(&mut self, source: &Source, annotations: &ConfigAnnotations, fx: &mut Vec<Effect>) {
        let mut records = self.records().clone();
        records.assigned = Some(source.clone());
        let proven = records.last_known_good.as_ref() == Some(source);
        let before = records.local_state.attempt.take();
        let within = self.confirm_within(annotations).ok().flatten().filter(|_| before.is_some());
        let adopted = self.active == records.last_known_good;
        let before = before.unwrap_or_else(|| Attempt { adopted, ..Attempt::new(source.clone()) });
        // A new confirm-within moves the deadline.
        let moved = |confirm: ConfirmationWait| {
            let left = within?;
            let same = before.confirm_within == within;
            Some(if same { confirm } else { ConfirmationWait::within(left, self.now, confirm.boot_id) })
        };
        let confirm = before.confirm.clone().and_then(moved);
        let attempt = Attempt { source: source.clone(), confirm_within: within, confirm, ..before };
        records.local_state.attempt = (!proven).then_some(attempt);
        fx.push(Effect::Record(RecordReason::Adopt, records));
    }

    fn recorded_adoption(&mut self, fx: &mut Vec<Effect>) {
        let Some(Change { to: Some(source), .. }) = self.change.take() else { return };
        self.sync_error = None;
        self.error = None;
        if self.active.as_ref() != Some(&source) {
            fx.push(Effect::Emit(events::adopted(&source)));
        }
        self.active = Some(source.clone());
        self.target = Some(source);
        match self.saved.local_state.attempt.as_ref().map(|attempt| attempt.adopted) {
            None => self.trial = None,
            // Outside a trial nobody asks healthz: where there is one, the clock begins with its
            // next answer.
            Some(adopted) if self.trial.is_none() => {
                self.trial = Some(Trial { adopted, ..Trial::default() });
                self.observe_at_once();
            }
            Some(_) => {}
        }
        self.collect(fx);
    }

    fn reset(&mut self, equal: bool, fx: &mut Vec<Effect>) {
        let mut records = self.records().clone();
        records.assigned = None;
        records.last_known_good = None;
        records.local_state.attempt = None;
        records.local_state.control_test = None;
        records.local_state.retry_later = None;
        if equal {
            self.running.source = None;
        }
        fx.push(Effect::Record(RecordReason::Reset, records));
    }

    fn recorded_reset(&mut self, fx: &mut Vec<Effect>) {
        let Some(Change { to: None, seen, .. }) = self.change.take() else { return };
        self.error = None;
        self.trial = None;
        self.trial_end = TrialEnd::None;
        self.checkpoint_damaged = false;
        let same_content = self.running.source.is_none();
        if same_content {
            self.active = None;
            self.target = None;
            self.collect(fx);
        } else {
            self.applying_since = Some(seen);
            fx.push(Effect::Emit(events::changed(None)));
            self.switch(None, RestartCause::Reset, fx);
        }
    }

    /// The candidate will not run. Costs no restart, unless what runs was itself unproven.
    pub(super) fn reject(
        &mut self,
        source: &Source,
        rendered: Option<&Rendered>,
        error: &str,
        detail: &str,
        fx: &mut Vec<Effect>,
    ) {
        let in_files = source.is_source_dir().then(|| source_dir::in_files(detail));
        let detail = in_files.as_deref().unwrap_or(detail);
        self.change = None;
        let digest = rendered.map(|rendered| &rendered.digest);
        let known = self.bad_version(source, digest).is_some() && self.records().assigned.as_ref() == Some(source);
        let mut records = self.with_bad_version(source, digest, REJECTED, error, detail);
        records.assigned = Some(source.clone());
        records.local_state.attempt = None;
        self.sync_error = None;
        self.error = Some((error.to_owned(), detail.to_owned()));
        self.remember(records, fx);
        if !known {
            fx.push(Effect::Emit(events::rejected(source, detail)));
        }
        let fallback = self.fallback();
        if self.trial.take_if(|trial| trial.adopted).is_some() {
            // What runs is the content of last known good, and is called by that name again.
            self.active.clone_from(&fallback);
            self.target.clone_from(&fallback);
            return;
        }
        // Last known good could not run, which is why local does: it still cannot.
        let lkg_unusable = self.lkg_unusable && self.active.is_none() && self.target.is_none();
        // `target` differs from `active` where a start failed and is to be repeated.
        if !lkg_unusable && (self.active != fallback || self.target != fallback) {
            self.trial = None;
            log(
                fx,
                Level::Warn,
                format!(
                    "what runs is unproven and no longer assigned; going back to {}",
                    status::name(fallback.as_ref())
                ),
            );
            self.switch(fallback, RestartCause::Rollback, fx);
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

    pub(super) fn sync_failed(&mut self, error: SyncError, why: String, fx: &mut Vec<Effect>) {
        let now = Some((error, why));
        if self.sync_error != now {
            if let Some((error, why)) = &now {
                log(fx, Level::Warn, format!("{}: {why}", error.text()));
            }
            self.sync_error = now;
        }
    }

    pub(super) fn is_judged(&self, rendered: &Rendered) -> bool {
        let known = |(digest, id): &(Digest, KubeletId)| *digest == rendered.digest && *id == self.kubelet_id;
        self.accepted_digests.iter().any(known) || self.tried_without_verdict.as_ref().is_some_and(known)
    }

    pub(super) fn remember_verdict(&mut self, rendered: &Rendered) {
        // Two configurations matter at a time; a few more serve a toggling administrator.
        if self.accepted_digests.len() >= 8 {
            self.accepted_digests.remove(0);
        }
        self.accepted_digests.push((rendered.digest.clone(), self.kubelet_id.clone()));
    }

    /// Has checkpoints removed that nothing refers to.
    pub(super) fn collect(&mut self, fx: &mut Vec<Effect>) {
        if self.keep_all {
            return;
        }
        let records = self.records();
        let changing = self.change.as_ref().and_then(|change| change.to.as_ref());
        let keep: BTreeSet<Source> =
            [&self.active, &self.target, &self.running.source, &records.assigned, &records.last_known_good]
                .into_iter()
                .chain([&self.saved.assigned, &self.saved.last_known_good])
                .chain(self.pinned())
                .filter_map(Option::as_ref)
                .chain(changing)
                .chain(&records.local_state.proven)
                .cloned()
                .collect();
        fx.push(Effect::Collect(keep));
    }
}
