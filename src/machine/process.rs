//! The kubelet's process: starts, exits, stops, and the pauses between.

use super::model::{KubeletId, Moment, RunId, later};
use super::records::{RunningConfig, Version};
use super::{Run, limits};
use kubelet_config::policy::Signed;

mod step;

/// The kubelet's process as the machine sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Kubelet {
    /// There was none yet: the records are being read.
    #[default]
    NotBegun,
    /// The start was asked for and has not been answered. An exit in this time is that of a kubelet that is ended for it.
    Starting,
    /// The process exists, ready or not.
    Running(Run),
    /// It is told to end, and killed if it does not: the port sees to that.
    Stopping,
    /// There is none; the next start is due at the moment given.
    Waiting {
        /// When it is started.
        until: Moment,
    },
    /// The supervisor ends, and starts no other.
    Gone,
}

/// The process, and what it was started with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Process {
    kubelet: Kubelet,
    running: RunningConfig,
    /// The binary that the next start runs.
    kubelet_id: KubeletId,
    /// The binary that was started last in this life.
    started: Option<KubeletId>,
    /// Kubelet starts so far.
    starts: u32,
    /// Exits in a row that the supervisor did not ask for.
    crashes: u32,
    /// The next start follows an exit that the supervisor did not ask for.
    exited: bool,
    /// The next start follows a hung kubelet.
    hung: bool,
    /// We are told to leave.
    leaving: bool,
    /// The kubelet that a worker before us left, until we go on with it or it ends.
    former: Option<RunId>,
    /// The start is given up then.
    answer_by: Option<Moment>,
}

impl Process {
    /// One that runs, for tests.
    #[cfg(test)]
    pub(super) fn running_one(run: Run, running: RunningConfig) -> Self {
        Self { kubelet: Kubelet::Running(run), running, starts: 1, ..Self::default() }
    }

    /// No process, but what would be started.
    pub(super) fn stopped(version: Option<Version>) -> Self {
        Self { running: RunningConfig { version, ..RunningConfig::default() }, starts: 1, ..Self::default() }
    }

    pub(super) fn kubelet(&self) -> &Kubelet {
        &self.kubelet
    }

    pub(super) fn run(&self) -> Option<&Run> {
        match &self.kubelet {
            Kubelet::Running(run) => Some(run),
            _ => None,
        }
    }

    /// The signs of health of the process that runs.
    pub(super) fn run_mut(&mut self) -> Option<&mut Run> {
        match &mut self.kubelet {
            Kubelet::Running(run) => Some(run),
            _ => None,
        }
    }

    /// The kubelet that a worker before us left, while it runs and we have not gone on with it.
    pub(super) fn former(&self) -> Option<RunId> {
        self.former
    }

    /// It runs.
    pub(super) fn note_former(&mut self, former: Option<RunId>) {
        self.former = former;
    }

    pub(super) fn running(&self) -> &RunningConfig {
        &self.running
    }

    pub(super) fn kubelet_id(&self) -> &KubeletId {
        &self.kubelet_id
    }

    pub(super) fn starts(&self) -> u32 {
        self.starts
    }

    pub(super) fn is_leaving(&self) -> bool {
        self.leaving
    }

    /// What runs, or would be started anew, if anything was started yet.
    pub(super) fn active(&self) -> Option<&Version> {
        self.running.version.as_ref().filter(|_| self.starts > 0)
    }

    /// It is called by another name now; the content is the same.
    pub(super) fn rename(&mut self, version: Option<Version>) {
        self.running.version = version;
    }

    /// The same content, signed anew.
    pub(super) fn set_signed(&mut self, signed: Option<Signed>) {
        self.running.signed = signed;
    }

    /// Fields of it that flags override.
    pub(super) fn set_shadowed(&mut self, shadowed: Vec<String>) {
        self.running.shadowed = shadowed;
    }

    /// The binary that the next start runs.
    pub(super) fn note_kubelet(&mut self, id: KubeletId) {
        if self.started == Some(KubeletId::default()) {
            self.started = Some(id.clone()); // it was started before the store said which it is
        }
        self.kubelet_id = id;
    }

    /// The binary that runs, or ran last; where none did, the one that is to.
    pub(super) fn started_kubelet(&self) -> &KubeletId {
        self.started.as_ref().unwrap_or(&self.kubelet_id)
    }

    /// The binary by which it is known what may run: the one that runs, while it does.
    pub(super) fn current_kubelet(&self) -> &KubeletId {
        match self.kubelet {
            Kubelet::Running(_) => self.started_kubelet(),
            _ => &self.kubelet_id,
        }
    }

    /// True once the next start is due, if it is to be.
    pub(super) fn is_start_due(&self, now: Moment) -> bool {
        matches!(self.kubelet, Kubelet::Waiting { until } if now >= until)
    }

    /// A pause before a start is over.
    pub(super) fn start_now(&mut self, now: Moment) {
        if let Kubelet::Waiting { until } = &mut self.kubelet {
            *until = now;
        }
    }

    /// The next start must not wait.
    pub(super) fn start_at_once(&mut self, now: Moment) {
        self.start_now(now);
        self.crashes = 0;
    }

    /// A kubelet that is being started or stopped is let be; one that was just started gets time to come up, so that a
    /// burst of changes does not cost a restart each, and somebody can tell what is good.
    pub(super) fn may_change(&self, now: Moment) -> bool {
        match &self.kubelet {
            Kubelet::Running(run) => run.is_ready() || now >= later(run.started, limits::START_UNDISTURBED),
            Kubelet::Waiting { .. } => self.starts > 0,
            Kubelet::NotBegun | Kubelet::Starting | Kubelet::Stopping | Kubelet::Gone => false,
        }
    }

    pub(super) fn deadlines(&self, due: &mut Vec<Moment>) {
        match &self.kubelet {
            Kubelet::Waiting { until } => due.push(*until),
            Kubelet::Running(run) if !run.is_ready() => due.push(later(run.started, limits::START_UNDISTURBED)),
            Kubelet::Starting => due.extend(self.answer_by),
            Kubelet::Running(_) | Kubelet::Stopping | Kubelet::NotBegun | Kubelet::Gone => {}
        }
    }
}
