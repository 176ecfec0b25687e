//! The start itself: stop, state files, start.

use super::{Next, Stage};
use crate::machine::asks::Asker;
use crate::machine::io::{Effect, StoreRequest};
use crate::machine::model::{Rendered, RestartCause, StateFiles, StateFilesFound};
use crate::machine::records::Version;
use crate::machine::{Kubelet, Level, State, events, limits};
use kubelet_config::hazard;

impl State {
    /// What is desired is there: the kubelet is stopped or started for it, unless it runs that content already.
    pub(super) fn stop_or_start(&mut self, version: Option<Version>, rendered: Option<Box<Rendered>>) {
        let content = rendered.as_ref().map(|rendered| &rendered.digest);
        match self.kubelet() {
            Kubelet::Running(_) if content.is_some() && content == self.running().digest.as_ref() => {
                self.process.rename(version);
                if let Some(rendered) = rendered {
                    self.process.set_shadowed(rendered.shadowed);
                }
                self.launch.next = None;
            }
            Kubelet::Running(_) => {
                self.announce(&version);
                self.trial.forget_failure();
                self.stop();
            }
            Kubelet::Waiting { .. } => {
                // Local that cannot be read is no other one than it was.
                let running = self.running();
                let other = match content {
                    Some(content) => running.digest.as_ref() != Some(content),
                    None => running.version != version,
                };
                if other && self.starts() > 0 {
                    self.announce(&version);
                }
                self.swap_state_files(version, rendered);
            }
            _ => {}
        }
    }

    /// Native's event, when a restart really happens for a change.
    fn announce(&mut self, version: &Option<Version>) {
        let change = matches!(self.restart_cause(version), RestartCause::Config | RestartCause::Reset);
        let next = self.launch.next.as_mut();
        let is_news = next.is_some_and(|next| !std::mem::replace(&mut next.announced, true));
        if change && is_news {
            self.emit(events::changed(version.as_ref().map(|version| &version.source)));
        }
    }

    /// A new configuration begins with fresh state files of the kubelet; the way back finds its own again.
    fn swap_state_files(&mut self, version: Option<Version>, rendered: Option<Box<Rendered>>) {
        let known = rendered.as_ref().map(|rendered| &rendered.effective).filter(|effective| !effective.is_null());
        let policy = known.map(|effective| hazard::policy_key(effective));
        let Some(policy) = policy.filter(|policy| self.launch.policy.as_ref() != Some(policy)) else {
            return self.start_next(version, rendered);
        };
        let attempt = self.records().phase.trial().map(|attempt| &attempt.version);
        let restore = version.is_none() || version.as_ref() != attempt;
        // A kubelet that the monitor started by itself may run with them: that ends first, if they are another policy's.
        let look = self.process.former().is_some();
        let until = self.clock.after(self.asks.patience(Asker::StateFiles, limits::LOAD_DEADLINE)).boot;
        let state_files = StateFiles { policy: policy.clone(), restore, look, until };
        self.ask(Asker::StateFiles, limits::LOAD_DEADLINE, |ticket| {
            Effect::Store(StoreRequest::SwapStateFiles(ticket, state_files))
        });
        (self.launch.policy, self.launch.swapping) = (None, Some(policy));
        self.launch.set_stage(Stage::Swapping(rendered));
    }

    pub(in crate::machine) fn state_files_swapped(&mut self, result: Result<StateFilesFound, String>) {
        let policy = self.launch.swapping.take();
        self.launch.policy = policy.filter(|_| matches!(result, Ok(StateFilesFound::InOrder)));
        let Some(Next { version, stage: Stage::Swapping(rendered), .. }) = self.launch.next.clone() else { return };
        match result {
            Ok(StateFilesFound::InOrder) => {}
            Ok(StateFilesFound::PutAside(what)) => {
                self.log(Level::Warn, format!("state files of another policy: {what}"));
            }
            Ok(StateFilesFound::OfAnother) => {
                self.launch.set_stage(Stage::Ready(rendered));
                return self.stop();
            }
            // The kubelet refuses the files of another policy: a version on trial would be blamed for them.
            Err(why) if version.as_ref().is_some_and(|version| self.is_tried(version)) => {
                self.launch.next = None;
                self.not_to_blame(&format!("the kubelet's state files cannot be put in order: {why}"));
                return self.tick_launch();
            }
            Err(why) => self.log(Level::Warn, format!("the kubelet's state files stay as they are: {why}")),
        }
        self.launch.set_stage(Stage::Swapped(rendered));
        self.tick_launch(); // something else may have been decided meanwhile
    }

    pub(super) fn start_next(&mut self, version: Option<Version>, rendered: Option<Box<Rendered>>) {
        self.launch.next = None;
        if let Some((version, rendered)) = version.clone().zip(rendered.as_deref().cloned()) {
            self.versions.note_known(version, rendered);
        }
        if let Some(version) = &version {
            self.versions.forget_unusable(version);
        }
        self.start(version, rendered.map(|rendered| *rendered));
    }
}
