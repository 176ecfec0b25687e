//! What the API server asks for, or the local files: the assignment and the ConfigMap it names.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::clock::Clock;
use super::model::{Moment, later};
use super::pause::Pause;
use super::{State, limits, payloads};
use kubelet_config::assignment::Assignment;
use kubelet_config::source::{ConfigMapRef, Payload, Source};
use kubelet_config::status::SyncError;

/// What is known of the assigned ConfigMap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ConfigMapState {
    /// Not heard of since the watch began.
    #[default]
    Pending,
    /// This version; the bytes are let go once they are checkpointed.
    Present(Arc<Payload>),
    /// Checkpointed; only the identity is kept.
    Checkpointed(Source),
    /// Not there, not allowed, or no connection.
    Failed {
        /// What the API server or the network said.
        why: String,
        /// Since when it has failed without a break.
        since: Moment,
    },
}

/// What is asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ConfigSync {
    /// The Node's name, once known: the spread is computed from it.
    node_name: String,
    assignment: Assignment,
    /// Labels assign, and no `configSource`.
    by_labels: bool,
    config_map: ConfigMapState,
    /// What the Node's annotations ask for: to retry, to confirm; none if this supervisor was not told yet. That there are none
    /// is something else: it ends what one asked for that was obeyed.
    annotations: Option<(Option<String>, Option<String>)>,
    /// The retry by annotation that was obeyed last in this life, and how many were before it without an hour between.
    retried: Option<(Moment, u32)>,
    /// Versions under which other bytes came, and that this was told of in this life.
    liars: BTreeSet<String>,
    /// What is said of the latest that came, if it was other bytes; until something else comes.
    lie: Option<Lie>,
    /// Error of synchronisation, which hides one of the configuration while it lasts.
    error: Option<(SyncError, String)>,
    /// This version was rendered and dealt with in this life.
    handled: Option<Source>,
    /// When to go on after a failure of our own.
    retry: Pause,
}

/// Other bytes came under a known version.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Lie {
    version: String,
    why: String,
    /// When the ConfigMap is asked for again.
    next: Pause,
}

/// The latest version that is asked for.
pub(super) enum AskedFor {
    /// Nobody said so far.
    Unknown,
    /// This one, if there is any.
    Version(Option<Source>),
}

/// What is to be done about the assignment.
pub(super) enum Resolution {
    /// It is not known yet.
    Nothing,
    /// The local configuration.
    Local,
    /// This version; with its bytes, if they are not checkpointed yet.
    Version(Source, Option<Arc<Payload>>),
    /// Nothing can be had, and why.
    Failed(SyncError, String),
}

impl ConfigSync {
    pub(super) fn node_name(&self) -> &str {
        &self.node_name
    }

    pub(super) fn annotations(&self) -> Option<(Option<&str>, Option<&str>)> {
        self.annotations.as_ref().map(|(retry, confirm)| (retry.as_deref(), confirm.as_deref()))
    }

    /// When the next retry by annotation may be obeyed: who writes one after the other must not restart the kubelet over and over.
    pub(super) fn next_retry(&self) -> Option<Moment> {
        let (at, before) = self.retried?;
        Some(later(at, limits::ANNOTATION_RETRY.after(before)))
    }

    /// One is obeyed.
    pub(super) fn note_retry(&mut self, now: Moment) {
        let lately = self.retried.filter(|(at, _)| now.since(*at) < limits::ANNOTATION_RETRY.most);
        self.retried = Some((now, lately.map_or(0, |(_, before)| before.saturating_add(1))));
    }

    /// Other bytes came under this version, of which this is said; true if that is news.
    pub(super) fn note_liar(&mut self, version: String, why: String, most: usize) -> bool {
        let next = self.lie.take().map(|before| before.next).unwrap_or_default();
        self.lie = Some(Lie { version: version.clone(), why, next });
        if self.liars.contains(&version) {
            return false;
        }
        if self.liars.len() >= most {
            self.liars.pop_first();
        }
        self.liars.insert(version)
    }

    pub(super) fn is_by_labels(&self) -> bool {
        self.by_labels
    }

    pub(super) fn assignment(&self) -> &Assignment {
        &self.assignment
    }

    /// The ConfigMap that is to be watched.
    pub(super) fn assigned_map(&self) -> Option<&ConfigMapRef> {
        match &self.assignment {
            Assignment::Map(reference) | Assignment::Default(reference) => Some(reference),
            _ => None,
        }
    }

    /// The latest version that was resolved.
    pub(super) fn resolved(&self) -> Option<Source> {
        let reference = self.assigned_map()?;
        match &self.config_map {
            ConfigMapState::Present(payload) => Some(payload.resolve(reference)),
            ConfigMapState::Checkpointed(source) => Some(source.clone()),
            ConfigMapState::Pending | ConfigMapState::Failed { .. } => None,
        }
    }

    /// The version that is asked for now.
    pub(super) fn asked_for(&self) -> AskedFor {
        match (&self.assignment, &self.config_map) {
            (Assignment::Unknown, _) => AskedFor::Unknown,
            (Assignment::Map(_) | Assignment::Default(_), ConfigMapState::Pending) => AskedFor::Unknown,
            _ => AskedFor::Version(self.resolved()),
        }
    }

    /// True if the assignment names no ConfigMap that there is, or another than this.
    pub(super) fn is_gone(&self, source: &Source) -> bool {
        matches!(self.config_map, ConfigMapState::Failed { .. }) || self.assigned_map() != Some(&source.reference)
    }

    pub(super) fn is_handled(&self, source: &Source) -> bool {
        self.handled.as_ref() == Some(source)
    }

    /// What was said of it is over.
    pub(super) fn forget_error(&mut self) {
        self.error = None;
    }

    /// It is not looked at any more.
    pub(super) fn forget_config_map(&mut self) {
        (self.config_map, self.handled, self.lie) = (ConfigMapState::Pending, None, None);
    }

    fn resolution(&self, clock: &Clock) -> Resolution {
        match &self.assignment {
            Assignment::Unknown => Resolution::Nothing,
            Assignment::AllNil => {
                Resolution::Failed(SyncError::AllNil, "the Node's configSource names no source".to_owned())
            }
            Assignment::Invalid(why) => Resolution::Failed(SyncError::Download, why.clone()),
            Assignment::Local => Resolution::Local,
            Assignment::Map(reference) | Assignment::Default(reference) => match &self.config_map {
                ConfigMapState::Failed { why, since } if clock.lasted(*since, limits::DOWNLOAD_PATIENCE) => {
                    Resolution::Failed(SyncError::Download, why.clone())
                }
                ConfigMapState::Pending | ConfigMapState::Failed { .. } => Resolution::Nothing,
                ConfigMapState::Present(payload) => {
                    Resolution::Version(payload.resolve(reference), Some(payload.clone()))
                }
                ConfigMapState::Checkpointed(source) => Resolution::Version(source.clone(), None),
            },
        }
    }

    /// Who may write a Node's annotations may write its labels, and not its `spec.configSource`.
    pub(super) fn is_request_by_label(&self, reference: &ConfigMapRef) -> bool {
        self.is_by_labels() || self.assigned_map() != Some(reference)
    }

    /// The store has other bytes under this version than what was seen: that is let go.
    pub(super) fn checkpoint_unseen(&mut self, source: &Source) {
        if self.resolved().as_ref() == Some(source) {
            self.config_map = ConfigMapState::Pending;
        }
    }

    /// Its bytes are on the disk. By now something else may be assigned.
    pub(super) fn checkpointed(&mut self, source: &Source) {
        if self.resolved().as_ref() == Some(source) {
            self.config_map = ConfigMapState::Checkpointed(source.clone());
            self.lie = None;
        }
    }

    /// The version is dealt with: nothing is due until something changes.
    pub(super) fn handled(&mut self, source: Option<&Source>) {
        self.handled = source.cloned();
        (self.error, self.retry) = (None, Pause::default());
    }

    pub(super) fn node_annotations(&mut self, retry: Option<String>, confirm: Option<String>) {
        self.annotations = Some((retry, confirm));
    }

    pub(super) fn node_named(&mut self, name: String) {
        self.node_name = name;
    }

    /// The assigned version is to be looked at once more.
    pub(super) fn reconsider(&mut self) {
        (self.handled, self.retry) = (None, Pause::default());
    }

    pub(super) fn note_failed(&mut self, error: SyncError, why: String) {
        self.error = Some((error, why));
    }

    /// What came is none that can be taken up. What was seen before it stands.
    pub(super) fn unsee_config_map(&mut self) {
        if matches!(self.config_map, ConfigMapState::Failed { .. }) {
            self.config_map = ConfigMapState::Pending;
        }
    }
}

impl State {
    /// Error of synchronisation, with the reason.
    #[must_use]
    pub fn sync_error(&self) -> Option<(SyncError, &str)> {
        let error = self.sync.error.as_ref().map(|(error, why)| (*error, why.as_str()));
        error.or_else(|| Some((SyncError::Download, self.sync.lie.as_ref()?.why.as_str())))
    }

    /// The Node's assignment. Watching follows the object, not the key.
    pub(super) fn node_assignment(&mut self, assignment: Assignment) {
        let assignment = match (assignment, &self.settings.default_source) {
            (Assignment::Local, Some(default)) => Assignment::Default(default.clone()),
            (assignment, _) => assignment,
        };
        if assignment == Assignment::Unknown || assignment == self.sync.assignment {
            return; // a Node that is gone asks for nothing: keep what is
        }
        let before = self.sync.assigned_map().cloned();
        self.sync.assignment = assignment;
        (self.sync.error, self.sync.handled, self.sync.lie) = (None, None, None);
        self.sync.retry = Pause::default();
        let after = self.sync.assigned_map().cloned();
        let same_object = matches!((&before, &after), (Some(before), Some(after)) if before.same_object(after));
        if !same_object {
            self.sync.config_map = ConfigMapState::Pending;
            self.seek_config_map(after);
        } else if matches!(self.sync.config_map, ConfigMapState::Checkpointed(_)) {
            // The bytes are gone; only a fresh download tells whether the version still stands.
            self.download_again();
        }
    }

    pub(super) fn assigned_by_labels(&mut self, by_labels: bool) {
        if std::mem::replace(&mut self.sync.by_labels, by_labels) != by_labels {
            self.ask_namespace();
            self.judge_change_anew();
            self.sync.reconsider();
        }
    }

    pub(super) fn config_map_seen(&mut self, payload: Arc<Payload>) {
        let Some(reference) = self.sync.assigned_map() else { return };
        if payload.namespace != reference.namespace || payload.name != reference.name {
            return; // from a watch that has been replaced
        }
        if !self.namespace.is_granted() {
            return; // from one that the policy has ended
        }
        let source = payload.resolve(reference);
        if self.has_other_bytes(&source, &payload) {
            self.sync.unsee_config_map();
            return self.refuse_other_bytes(&source);
        }
        // What is not known yet the store may refuse. Another version is something else.
        let is_other = |lie: &Lie| lie.version != payloads::key(&source);
        if self.records().payload(&source).is_some() || self.sync.lie.as_ref().is_some_and(is_other) {
            self.sync.lie = None;
        }
        if matches!(self.sync.error, Some((SyncError::Download, _))) {
            self.sync.error = None;
        }
        if self.sync.config_map == ConfigMapState::Checkpointed(source.clone()) {
            return;
        }
        // What was asked for once more after a failure of ours, or is seen once more, waits for its time.
        let is_new = self.sync.resolved().is_some_and(|before| before != source);
        if is_new || matches!(self.sync.config_map, ConfigMapState::Failed { .. }) {
            self.sync.retry = Pause::default();
        }
        self.sync.config_map = ConfigMapState::Present(payload);
    }

    /// Whoever gave other bytes is asked again: a watch tells of no change that never was.
    pub(super) fn tick_lie(&mut self) {
        let Some(lie) = self.sync.lie.as_mut().filter(|lie| !lie.next.lasts(&self.clock)) else { return };
        let is_due = lie.next.is_due(&self.clock);
        lie.next.grow(limits::RUNG_RETRY, &self.clock);
        if is_due {
            self.seek_again();
        }
    }

    pub(super) fn config_map_failed(&mut self, why: String, definite: bool) {
        let seen = matches!(self.sync.config_map, ConfigMapState::Present(_) | ConfigMapState::Checkpointed(_));
        if self.sync.assigned_map().is_none() || (seen && !definite) || !self.namespace.is_granted() {
            return;
        }
        let since = match &self.sync.config_map {
            ConfigMapState::Failed { since, .. } => *since,
            _ => self.clock.now,
        };
        self.sync.config_map = ConfigMapState::Failed { why, since };
    }

    /// What is to be done now; `None` while a failure of ours is not to be repeated yet.
    pub(super) fn resolution(&self) -> Option<Resolution> {
        if let Some(refused) = self.refused_resolution() {
            return Some(refused);
        }
        (!self.sync.retry.lasts(&self.clock)).then(|| self.sync.resolution(&self.clock))
    }

    /// Forgets that the ConfigMap was seen and asks for it again.
    pub(super) fn download_again(&mut self) {
        self.sync.handled = None;
        if self.sync.assigned_map().is_some() {
            self.sync.config_map = ConfigMapState::Pending;
            self.seek_again();
        }
    }

    /// A change that waits for a store that cannot be written does not wait in silence.
    pub(super) fn tell_of_store(&mut self) {
        let Some(why) = self.writer.obstacle().map(str::to_owned) else { return };
        let waits = match self.resolution() {
            Some(Resolution::Version(source, _)) => !self.sync.is_handled(&source),
            Some(Resolution::Local) => !self.is_reset(),
            _ => false,
        };
        if waits {
            self.sync.note_failed(SyncError::Internal, why);
        }
    }

    /// Our own trouble: it is said, and tried again after a pause.
    pub(super) fn postpone(&mut self, why: String) {
        self.sync.note_failed(SyncError::Internal, why);
        self.sync.retry.grow(limits::RETRY, &self.clock);
    }

    /// The same, until that time.
    pub(super) fn postpone_until(&mut self, why: String, until: Moment) {
        self.sync.note_failed(SyncError::Internal, why);
        self.sync.retry.put_off(until);
    }
}
