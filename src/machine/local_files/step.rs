//! They are compared, told or taken up.

use serde_json::Value;

use super::LocalFilesDifference;
use crate::machine::io::{Effect, StoreRequest, Ticket};
use crate::machine::model::{LoadTarget, RenderError, Rendered, later};
use crate::machine::{State, events, limits};
use kubelet_config::hazard::{self, Change};
use kubelet_config::source::ConfigMapRef;

impl State {
    /// How what the local files say differs from what runs; `None` if it does not, or nobody knows.
    #[must_use]
    pub fn local_files_difference(&self) -> Option<&LocalFilesDifference> {
        self.local_files.difference.as_ref()
    }

    /// Somebody writes the local files: they are read once that is over.
    pub(in crate::machine) fn local_files_touched(&mut self) {
        self.local_files.touched = true;
        self.local_files.compare_by(later(self.now, limits::LOCAL_FILES_DELAY));
    }

    /// A kubelet begins: it has read its files, or was given what was made of them before. What was told holds until they
    /// are compared: a kubelet that ends over and over is not news each time.
    pub(in crate::machine) fn local_files_started(&mut self) {
        self.local_files.asked = None;
        self.local_files.compare_by(later(self.now, limits::LOCAL_FILES_DELAY));
    }

    /// Has them compared while a kubelet runs, and taken up if that is asked for.
    pub(in crate::machine) fn tick_local_files(&mut self, fx: &mut Vec<Effect>) {
        if self.local_files.asked.is_some_and(|asked| asked.is_given_up(self.now)) {
            self.local_files.asked = None;
            self.local_files.due = Some(later(self.now, limits::LOCAL_FILES_RETRY));
        }
        // Under another name the same content is compared with something else.
        if self.local_files.compared_version.as_ref() != self.active() {
            self.local_files.compared_version = self.active().cloned();
            self.local_files.compare_by(later(self.now, limits::LOCAL_FILES_DELAY));
        }
        let due = self.local_files.asked.is_none() && self.local_files.due.is_some_and(|due| self.now >= due);
        let at_rest = self.process.run().is_some() && self.writer.is_idle() && !self.process.is_leaving();
        if !due || !at_rest {
            return;
        }
        self.local_files.due = None;
        if std::mem::take(&mut self.local_files.touched) && self.settings.follow_local {
            self.take_up_local_files(fx);
        }
        let version = self.active().map(|version| version.source.clone());
        let target = version.filter(|source| !source.is_local_files()).map_or(LoadTarget::Local, LoadTarget::DryRun);
        let asked = self.ask(limits::LOAD_DEADLINE);
        self.local_files.asked = Some(asked);
        fx.push(Effect::Store(StoreRequest::Load(asked.ticket, target)));
    }

    /// What is assigned is rendered once more, with the files as they are.
    fn take_up_local_files(&mut self, fx: &mut Vec<Effect>) {
        self.drop_change();
        if self.sync.assigned_map().is_some_and(ConfigMapRef::is_local_files) {
            self.download_again(fx);
        } else {
            self.reconsider();
        }
    }

    /// What they say now; false if it is not this question's answer.
    pub(in crate::machine) fn local_files_read(
        &mut self,
        ticket: Ticket,
        result: &Result<Rendered, RenderError>,
        fx: &mut Vec<Effect>,
    ) -> bool {
        if self.local_files.asked.is_none_or(|asked| asked.ticket != ticket) {
            return false;
        }
        self.local_files.asked = None;
        let difference = match result {
            Ok(rendered) => self.difference_from(rendered),
            // Without its checkpoint nobody can tell; that, and what the policy refuses, is told as what it is.
            Err(RenderError::Checkpoint(_) | RenderError::Policy(_)) => None,
            Err(RenderError::Load(why) | RenderError::Internal(why)) => {
                self.local_files.due = Some(later(self.now, limits::LOCAL_FILES_RETRY));
                Some(LocalFilesDifference::Unusable(why.clone()))
            }
        };
        if let Some(difference) = difference.as_ref().filter(|told| self.local_files.difference.as_ref() != Some(*told))
            && !self.settings.follow_local
        {
            let source = self.active().map(|version| version.source.clone());
            fx.push(Effect::Emit(events::local_files_differ(source.as_ref(), difference)));
        }
        self.local_files.difference = difference;
        true
    }

    /// The fields that the kubelet would go by with other values.
    fn difference_from(&self, rendered: &Rendered) -> Option<LocalFilesDifference> {
        let running = self.running();
        let digest = running.digest.as_ref().filter(|digest| **digest != rendered.digest)?;
        // A file of the payload lies below the digest, and is another only if its content is.
        let moved = |change: &Change| match (&change.old, &change.new) {
            (Value::String(old), Value::String(new)) => old.replace(&digest.0, &rendered.digest.0) == *new,
            _ => false,
        };
        let changes = hazard::diff(&running.effective, &rendered.effective).into_iter();
        let fields: Vec<String> = changes.filter(|change| !moved(change)).map(|change| change.field).collect();
        (!fields.is_empty()).then_some(LocalFilesDifference::Fields(fields))
    }
}
