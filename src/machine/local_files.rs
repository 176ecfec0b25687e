//! The local files (`--config`, `--config-dir`) while a kubelet runs: what they say now is compared with what it was
//! started with. With `--follow-local` they are taken up, like any change; else it is told.

use std::collections::BTreeSet;

use super::asks::Asker;
use super::io::{Effect, StoreRequest};
use super::model::{LoadTarget, LocalFilesDifference, Moment, RenderError, Rendered, later};
use super::pause::Pause;
use super::records::{LocalHazards, Records, Version};
use super::{State, events, limits};
use kubelet_config::hazard::{self, Change, HazardClass, table};
use kubelet_config::policy::Admission;
use kubelet_config::source::{ConfigMapRef, Source};
use serde_json::Value;

/// What is known of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LocalFiles {
    /// They were taken up as this, by digest, or by what is wrong with them; the same is not taken up again each minute.
    taken_up: Option<String>,
    /// They are being written, since then.
    touched: Option<Moment>,
    /// When they are compared.
    next: Pause,
    /// Active at the latest comparison; another version is compared anew.
    compared_version: Option<Version>,
    /// It is told once.
    difference: Option<LocalFilesDifference>,
    /// What the node's policy said of them last.
    admission: Admission,
}

impl LocalFiles {
    fn compare_by(&mut self, due: Moment) {
        self.next.set_latest(due);
    }

    /// What runs next was decided: what was taken up may not be in it.
    pub(super) fn compare_anew(&mut self) {
        self.taken_up = None;
    }
}

impl State {
    /// How the local files differ from what runs; `None` if they do not, or that is not known.
    #[must_use]
    pub fn local_files_difference(&self) -> Option<&LocalFilesDifference> {
        self.local_files.difference.as_ref()
    }

    /// Somebody writes the local files: they are read once that is over, or has lasted.
    pub(super) fn local_files_touched(&mut self) {
        let since = *self.local_files.touched.get_or_insert(self.clock.now);
        let latest = later(since, limits::LOCAL_FILES_LATEST);
        self.local_files.next.set(self.clock.after(limits::LOCAL_FILES_DELAY).min(latest));
        self.asks.forget_late_local();
        self.forget_local();
        self.local_files.taken_up = None;
    }

    /// A kubelet begins: it has read its files, or was given what was made of them before. What was told holds until they
    /// are compared: a kubelet that ends over and over is not news each time.
    pub(super) fn local_files_started(&mut self) {
        self.asks.forget(Asker::LocalFiles);
        self.local_files.compare_by(self.clock.after(limits::LOCAL_FILES_DELAY));
    }

    /// Has them compared while a kubelet runs, and taken up if that is asked for.
    pub(super) fn tick_local_files(&mut self) {
        // Under another name the same content is compared with something else.
        if self.local_files.compared_version.as_ref() != self.active() {
            self.local_files.compared_version = self.active().cloned();
            self.local_files.compare_by(self.clock.after(limits::LOCAL_FILES_DELAY));
        }
        let due = self.is_time_to_ask(Asker::LocalFiles, &self.local_files.next);
        let at_rest = self.process.run().is_some() && self.writer.is_idle() && !self.is_leaving();
        if !due || !at_rest {
            return;
        }
        self.local_files.next.begin();
        if self.local_files.touched.take().is_some() {
            if self.is_refused_by_policy() {
                self.sync.reconsider(); // it may have been for what they said
            }
            self.try_local_again();
            self.ask_policy(); // denied fields are compared with them
        }
        let version = self.active().map(|version| version.source.clone());
        let target = LoadTarget::DryRun(version.filter(|source| !source.is_local_files()));
        self.ask(Asker::LocalFiles, limits::LOAD_DEADLINE, |ticket| Effect::Store(StoreRequest::Load(ticket, target)));
    }

    /// What is assigned is rendered once more, with the files as they were found; false if they are not followed now.
    fn take_up_local_files(&mut self, found: Option<String>) -> bool {
        if found.is_some() && self.local_files.taken_up == found {
            return true;
        }
        let Some(assigned) = self.sync.assigned_map().filter(|_| self.settings.follow_local && !self.is_held()) else {
            return false;
        };
        if !assigned.is_local_files() {
            self.drop_change();
            self.sync.reconsider();
        } else if self.are_local_files_unproven() {
            self.local_files.compare_by(self.clock.after(limits::LOCAL_FILES_RETRY));
            return true;
        } else {
            self.drop_change();
            self.download_again();
        }
        self.local_files.taken_up = found;
        true
    }

    /// They say what runs. True if before they could not be read, or what they said is under way, or was not taken up.
    fn is_edit_taken_back(&self) -> bool {
        let active = self.active().map(|version| &version.source);
        let runs = |source: &Source| active == Some(source);
        if self.sync.assigned_map().is_some_and(ConfigMapRef::is_local_files) {
            return self.sync_error().is_some() || self.sync.resolved().is_none_or(|source| !runs(&source));
        }
        let refused = |version: &Version| runs(&version.source) && version.digest != self.running().digest;
        self.change.as_ref().and_then(|change| change.source.as_ref()).is_some_and(runs)
            || self.records().assigned.as_ref().is_some_and(refused)
    }

    /// True if the local files run and have yet to become last known good: the way back from a change of them would lead to
    /// that very change.
    pub(super) fn are_local_files_unproven(&self) -> bool {
        let records = self.records();
        let assigned = records.assigned.as_ref().is_some_and(|assigned| assigned.source.is_local_files());
        assigned && records.last_known_good.is_none() && records.phase.attempt().is_some()
    }

    /// True if what the kubelet was started with is on no record, and the local files say something else by now: they were
    /// edited before anybody read them.
    pub(super) fn are_local_files_unseen(&self) -> bool {
        let records = self.records();
        let nothing = records.assigned.is_none() && records.last_known_good.is_none() && self.active().is_none();
        nothing && self.running().digest.is_some()
    }

    /// What an operator accepted of this very content stands for an annotation, as far as the policy lets it count.
    pub(super) fn acknowledge_local_files(&mut self, rendered: &mut Rendered) {
        self.local_files.admission = rendered.admission.clone();
        let known = self.records().local_hazards.as_ref().filter(|known| known.digest == rendered.digest);
        let accepted = known.map(|known| known.acknowledged.clone()).unwrap_or_default();
        let counts = accepted.into_iter().filter(|class| rendered.admission.lets_acknowledge(*class)).collect();
        rendered.annotations.acknowledge = Some(table::list(&counts)).filter(|text| !text.is_empty());
    }

    /// Written down with the refusal.
    pub(super) fn note_local_hazards(&mut self, source: &Source, rendered: &Rendered, refused: &BTreeSet<HazardClass>) {
        self.writer.learn(|records| {
            let known = records.local_hazards.take().filter(|known| known.digest == rendered.digest);
            records.local_hazards = Some(LocalHazards {
                source: source.clone(),
                digest: rendered.digest.clone(),
                refused: refused.clone(),
                acknowledged: known.map(|known| known.acknowledged).unwrap_or_default(),
            });
        });
    }

    /// An operator accepts this class of hazards for the content that is refused for it.
    ///
    /// # Errors
    /// Nothing waits for that, or the policy does not let it count.
    pub(super) fn acknowledge(&self, after: &mut Records, class: HazardClass) -> Result<String, String> {
        // One class of several may be accepted already, and nobody has judged the version since.
        let is_it = |version: &Version, known: &LocalHazards| {
            let refused = self.bad_version(version).is_some() || !known.acknowledged.is_empty();
            version.source == known.source && !known.refused.is_empty() && refused
        };
        let assigned = after.assigned.clone();
        let Some((version, known)) =
            assigned.zip(after.local_hazards.as_mut()).filter(|(version, known)| is_it(version, known))
        else {
            return Err("no hazard of the local files waits to be acknowledged (those of a ConfigMap are \
                        acknowledged by its annotation kubelet-supervisor.io/acknowledge)"
                .to_owned());
        };
        if !known.refused.contains(&class) {
            let waits = table::list(&known.refused);
            return Err(format!("{version} is not refused for hazards of class {class}: {waits} waits"));
        }
        if !self.local_files.admission.lets_acknowledge(class) {
            let allowed = self.local_files.admission.acknowledgeable.as_deref().unwrap_or_default();
            return Err(format!("the node's policy does not let {class} be acknowledged (acknowledgeable: {allowed})"));
        }
        known.refused.remove(&class);
        known.acknowledged.insert(class);
        Ok(format!("hazards of class {class} are accepted for {version}"))
    }

    /// What they say now.
    pub(super) fn local_files_read(&mut self, result: Result<Rendered, RenderError>) {
        let (found, difference) = match result {
            Ok(rendered) => (rendered.digest.0.clone(), self.difference_from(&rendered)),
            // Nobody can tell yet. A checkpoint that is damaged, or a policy that is not there, is told as what it is.
            Err(RenderError::Checkpoint(_) | RenderError::Policy(_) | RenderError::NoAnswer(_)) => {
                return self.local_files.compare_by(self.clock.after(limits::LOCAL_FILES_RETRY));
            }
            Err(RenderError::Unfinished(_)) => {
                if !self.take_up_local_files(None) {
                    self.local_files.compare_by(self.clock.after(limits::LOCAL_FILES_RETRY));
                }
                return; // whoever takes them up waits for their writer
            }
            Err(RenderError::Load(why) | RenderError::Internal(why)) => {
                self.local_files.compare_by(self.clock.after(limits::LOCAL_FILES_RETRY));
                (why.clone(), Some(LocalFilesDifference::Unusable(why)))
            }
        };
        let is_news = difference.is_some() || self.is_edit_taken_back();
        let followed = is_news && self.take_up_local_files(Some(found));
        if difference.is_some() && self.settings.follow_local && !followed {
            self.local_files.compare_by(self.clock.after(limits::LOCAL_FILES_RETRY)); // an operator may let go
        }
        if let Some(difference) = difference.as_ref().filter(|told| self.local_files.difference.as_ref() != Some(*told))
            && !followed
        {
            let source = self.active().map(|version| version.source.clone());
            self.emit(events::local_files_differ(source.as_ref(), difference));
        }
        self.local_files.difference = difference;
    }

    /// A kubelet begins with them all the same: it is theirs. Why it will not start is told before it ends of it.
    pub(super) fn local_files_unusable(&mut self, error: RenderError) {
        let (RenderError::Load(why) | RenderError::Internal(why)) = error else { return };
        let difference = LocalFilesDifference::Unusable(why);
        if self.local_files.difference.as_ref() != Some(&difference) {
            self.emit(events::local_files_differ(None, &difference));
        }
        self.local_files.difference = Some(difference);
    }

    /// The fields that the kubelet would go by with other values.
    fn difference_from(&self, rendered: &Rendered) -> Option<LocalFilesDifference> {
        let running = self.running();
        let digest = running.digest.as_ref().filter(|digest| **digest != rendered.digest)?;
        if running.effective.is_null() {
            return Some(LocalFilesDifference::Fields(Vec::new()));
        }
        // A file of the payload lies below the digest, and is another only if its content is.
        let (from, to) = (format!("/{}/", digest.0), format!("/{}/", rendered.digest.0));
        let moved = |change: &Change| match (&change.old, &change.new) {
            (Value::String(old), Value::String(new)) => old.replace(&from, &to) == *new,
            _ => false,
        };
        let changes = hazard::diff(&running.effective, &rendered.effective).into_iter();
        let fields: Vec<String> = changes.filter(|change| !moved(change)).map(|change| change.field).collect();
        (!fields.is_empty()).then_some(LocalFilesDifference::Fields(fields))
    }
}
