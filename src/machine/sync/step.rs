//! What the API server says.

use super::{ConfigMapState, Resolution};
use crate::machine::State;
use crate::machine::io::Effect;
use crate::machine::limits;
use crate::machine::model::{Moment, later};
use kubelet_config::assignment::Assignment;
use kubelet_config::source::{Payload, Source};
use kubelet_config::status::SyncError;
use std::sync::Arc;

impl State {
    pub(in crate::machine) fn node_named(&mut self, name: String) {
        self.sync.node_name = name;
    }

    /// The Node's assignment. Watching follows the object, not the key.
    pub(in crate::machine) fn node_assignment(&mut self, assignment: Assignment, fx: &mut Vec<Effect>) {
        let assignment = match (assignment, &self.settings.default_source) {
            (Assignment::Local, Some(default)) => Assignment::Default(default.clone()),
            (assignment, _) => assignment,
        };
        if assignment == Assignment::Unknown || assignment == self.sync.assignment {
            return; // a Node that is gone asks for nothing: keep what is
        }
        let before = self.sync.assigned_map().cloned();
        self.sync.assignment = assignment;
        (self.sync.error, self.sync.retry, self.sync.handled) = (None, None, None);
        let after = self.sync.assigned_map().cloned();
        let same_object = matches!((&before, &after), (Some(before), Some(after)) if before.same_object(after));
        if !same_object {
            self.sync.config_map = ConfigMapState::Pending;
            fx.push(Effect::Watch(after));
        } else if matches!(self.sync.config_map, ConfigMapState::Checkpointed(_)) {
            // The bytes are gone; only a fresh download tells whether the version still stands.
            self.download_again(fx);
        }
    }

    pub(in crate::machine) fn assigned_by_labels(&mut self, by_labels: bool) {
        if std::mem::replace(&mut self.sync.by_labels, by_labels) != by_labels {
            self.judge_change_anew();
            self.reconsider();
        }
    }

    pub(in crate::machine) fn node_annotations(&mut self, retry: Option<String>, confirm: Option<String>) {
        self.sync.annotations = Some((retry, confirm));
    }

    pub(in crate::machine) fn config_map_seen(&mut self, payload: Arc<Payload>) {
        let Some(reference) = self.sync.assigned_map() else { return };
        if payload.namespace != reference.namespace || payload.name != reference.name {
            return; // from a watch that has been replaced
        }
        let source = payload.resolve(reference);
        if matches!(self.sync.error, Some((SyncError::Download, _))) {
            self.sync.error = None;
        }
        if self.sync.config_map == ConfigMapState::Checkpointed(source) {
            return;
        }
        // What was asked for once more after a failure of ours waits for its time.
        if !matches!(self.sync.config_map, ConfigMapState::Pending) {
            self.sync.retry = None;
        }
        self.sync.config_map = ConfigMapState::Present(payload);
    }

    pub(in crate::machine) fn config_map_failed(&mut self, why: String, definite: bool) {
        let seen = matches!(self.sync.config_map, ConfigMapState::Present(_) | ConfigMapState::Checkpointed(_));
        if self.sync.assigned_map().is_none() || (seen && !definite) {
            return;
        }
        let since = match &self.sync.config_map {
            ConfigMapState::Failed { since, .. } => *since,
            _ => self.now,
        };
        self.sync.config_map = ConfigMapState::Failed { why, since };
    }

    /// What is to be done now; `None` while a failure of ours is not to be repeated yet.
    pub(in crate::machine) fn resolution(&self) -> Option<Resolution> {
        self.sync.retry.is_none_or(|(_, at)| self.now >= at).then(|| self.sync.resolution(self.now))
    }

    /// Forgets that the ConfigMap was seen and asks for it again.
    pub(in crate::machine) fn download_again(&mut self, fx: &mut Vec<Effect>) {
        self.sync.handled = None;
        if let Some(reference) = self.sync.assigned_map().cloned() {
            self.sync.config_map = ConfigMapState::Pending;
            fx.push(Effect::Watch(Some(reference)));
        }
    }

    /// Its bytes are on the disk. By now something else may be assigned.
    pub(in crate::machine) fn checkpointed(&mut self, source: &Source) {
        if self.sync.resolved().as_ref() == Some(source) {
            self.sync.config_map = ConfigMapState::Checkpointed(source.clone());
        }
    }

    /// The version is dealt with: nothing is due until something changes.
    pub(in crate::machine) fn handled(&mut self, source: Option<&Source>) {
        self.sync.handled = source.cloned();
        (self.sync.error, self.sync.retry) = (None, None);
    }

    /// The assigned version is to be looked at once more.
    pub(in crate::machine) fn reconsider(&mut self) {
        (self.sync.handled, self.sync.retry) = (None, None);
    }

    pub(in crate::machine) fn sync_failed(&mut self, error: SyncError, why: String) {
        self.sync.error = Some((error, why));
    }

    /// A change that waits for a store that cannot be written does not wait in silence.
    pub(in crate::machine) fn tell_of_store(&mut self) {
        let Some(why) = self.writer.failure().map(str::to_owned) else { return };
        if matches!(self.resolution(), Some(Resolution::Version(source, _)) if !self.sync.is_handled(&source)) {
            self.sync_failed(SyncError::Internal, why);
        }
    }

    /// Our own trouble: it is said, and tried again after a pause.
    pub(in crate::machine) fn postpone(&mut self, why: String) {
        let pause = kubelet_config::duration::backoff(limits::RETRY_FIRST, limits::RETRY_MAX, self.sync.next_failure());
        self.postpone_until(why, later(self.now, pause));
    }

    /// The same, until that time.
    pub(in crate::machine) fn postpone_until(&mut self, why: String, until: Moment) {
        self.sync_failed(SyncError::Internal, why);
        self.sync.retry = Some((self.sync.next_failure(), until));
    }
}
