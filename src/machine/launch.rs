//! The next start: what is desired is loaded and, where that is open, judged, while the kubelet still runs; it is stopped
//! only for content that is there and is another.

use super::asks::Asker;
use super::io::Afterwards;
use super::ladder::desired;
use super::model::{ConfigError, KubeletId, RenderError, Rendered, Verdict};
use super::records::{BadVersion, Records, Started, Version};
use super::{Counter, Kubelet, Level, State, events, limits};

mod start;

/// What is prepared for the next start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Launch {
    next: Option<Next>,
    /// The kubelet's state files are in order for this policy ...
    policy: Option<String>,
    /// ... or are being put in order for that one.
    swapping: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Next {
    version: Option<Version>,
    stage: Stage,
    /// The event for it is out.
    announced: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Stage {
    Loading,
    /// Judged by this binary.
    Preflight(Box<Rendered>, KubeletId),
    /// `None`: the local file cannot be read; the kubelet judges it by itself.
    Ready(Option<Box<Rendered>>),
    Swapping(Option<Box<Rendered>>),
    /// The kubelet's state files are in order, as far as they can be put in order now.
    Swapped(Option<Box<Rendered>>),
}

impl Launch {
    /// A kubelet ended before it was ready: it may be for its state files, which are looked at anew.
    pub(super) fn forget_state_files(&mut self) {
        self.policy = None;
    }

    /// What is about to be started: it must not be collected.
    pub(super) fn next(&self) -> Option<&Version> {
        self.next.as_ref().and_then(|next| next.version.as_ref())
    }

    /// True while the kubelet judges what is to be started.
    pub(super) fn is_preflighting(&self) -> bool {
        matches!(&self.next, Some(Next { stage: Stage::Preflight(..), .. }))
    }

    /// True if nothing is prepared.
    pub(super) fn is_idle(&self) -> bool {
        self.next.is_none()
    }

    fn set_stage(&mut self, stage: Stage) {
        if let Some(next) = &mut self.next {
            next.stage = stage;
        }
    }
}

impl State {
    /// What is to run now.
    pub(super) fn desired(&self) -> Option<Version> {
        self.desired_with(self.records())
    }

    /// What would run with these records.
    pub(super) fn desired_with(&self, records: &Records) -> Option<Version> {
        desired(records, self.process.current_kubelet(), &self.versions, &self.clock)
    }

    /// The kubelet that a worker before us left, where it is known what it was started with. It is gone on with first, whatever
    /// the store has of that by now. Whatever else is desired comes after that, as with any kubelet that runs.
    fn left_running(&self) -> Option<&Started> {
        let is_open = matches!(self.kubelet(), Kubelet::Waiting { .. }) && !self.is_leaving();
        let is_it = |started: &&Started| is_open && self.process.former() == Some(started.run);
        self.records().started.as_ref().filter(is_it)
    }

    /// Compares what is desired with what runs, and moves.
    pub(super) fn tick_launch(&mut self) {
        if let Some(started) = self.left_running().cloned() {
            return self.go_on(started);
        }
        let desired = self.desired();
        let due = match self.kubelet() {
            Kubelet::Running(_) => {
                let moves = !self.rename_if_equal(&desired) && !self.is_about_to_change();
                if !moves {
                    self.launch.next = None;
                }
                moves
            }
            Kubelet::Stopping => true,
            Kubelet::Waiting { .. } => self.may_start(),
            Kubelet::NotBegun | Kubelet::Starting | Kubelet::Gone => false,
        };
        if !due || self.is_leaving() {
            return;
        }
        if self.launch.next.as_ref().is_none_or(|next| next.version != desired) && !self.is_better_left(&desired) {
            self.load(desired);
        }
        match self.launch.next.clone() {
            Some(Next { version, stage: Stage::Ready(rendered), .. }) => self.stop_or_start(version, rendered),
            Some(Next { version, stage: Stage::Swapped(rendered), .. })
                if matches!(self.kubelet(), Kubelet::Waiting { .. }) =>
            {
                self.start_next(version, rendered);
            }
            _ => {}
        }
    }

    /// True if a change is decided within moments: what works is not restarted twice.
    fn is_about_to_change(&self) -> bool {
        let failed = self.active().is_some_and(|version| self.bad_version(version).is_some());
        (self.is_change_imminent() || self.is_reset_due()) && !failed
    }

    /// True if this runs already, maybe under another name of the same content, which is then changed.
    fn rename_if_equal(&mut self, desired: &Option<Version>) -> bool {
        let running = self.running();
        if running.version == *desired {
            return true;
        }
        let content = match desired {
            Some(version) => version.digest.as_ref(),
            None => self.fallback.local(),
        };
        let equal = content.is_some() && content == running.digest.as_ref();
        if equal {
            self.process.rename(desired.clone());
        }
        equal
    }

    /// True if a kubelet that is not there is to be started now.
    fn may_start(&self) -> bool {
        // What was decided is durable before it is started, unless the disk takes its time over it.
        self.process.is_start_due(&self.clock)
            && !self.writer.holds_start(&self.clock)
            && !self.is_try_open()
            && !self.is_former_kept()
            && !self.trial.is_failure_pending()
    }

    /// While there is no kubelet, the start that is prepared is not put off for a version that could not be used before.
    fn is_better_left(&self, desired: &Option<Version>) -> bool {
        let failed = desired.as_ref().is_some_and(|version| self.versions.unusable(version).is_some());
        failed && !self.launch.is_idle() && matches!(self.kubelet(), Kubelet::Waiting { .. })
    }

    fn load(&mut self, version: Option<Version>) {
        // While a kubelet runs there is time for a slow answer.
        let runs = self.process.run().is_some() || self.process.former().is_some();
        let patience = if runs { limits::STORE_DEADLINE } else { limits::LOAD_DEADLINE };
        self.ask_load(Asker::Start, version.clone(), patience);
        self.launch.next = Some(Next { version, stage: Stage::Loading, announced: false });
    }

    /// No kubelet runs any more: the next load is waited for no longer than at any other start.
    pub(super) fn hurry_next(&mut self) {
        if matches!(&self.launch.next, Some(Next { stage: Stage::Loading, .. })) {
            self.asks.hurry(Asker::Start, self.clock.after(limits::LOAD_DEADLINE));
        }
    }

    /// The store gave what nobody waits for any more: the next start need not wait for it.
    pub(super) fn loaded_late(&mut self, version: Version, rendered: Rendered) {
        self.learn_content(version.clone(), &rendered.digest);
        self.versions.note_readable(version, rendered, self.clock.now);
    }

    /// The same of the local files. What a start asked for is what the kubelet was started with.
    pub(super) fn local_loaded_late(&mut self, asker: Asker, rendered: Rendered) {
        self.fallback.note_local(rendered.digest.clone());
        if asker != Asker::Start {
            return;
        }
        match &mut self.launch.next {
            Some(Next { version: None, stage: Stage::Ready(unread @ None), .. }) => {
                *unread = Some(Box::new(rendered)); // it waits for its start
            }
            _ if self.process.learn(&rendered) => self.note_run(),
            _ => {}
        }
    }

    /// The answer to a load.
    pub(super) fn next_loaded(&mut self, result: Result<Rendered, RenderError>) {
        let Some(Next { version, stage: Stage::Loading, .. }) = self.launch.next.clone() else { return };
        // A store that gives no answer does not keep the kubelet down: of what was verified before in this life the path is known.
        let is_unanswered = matches!(result, Err(RenderError::NoAnswer(_)));
        let known = is_unanswered.then(|| self.versions.known(version.as_ref())).flatten();
        if known.is_some() {
            self.ask_policy(); // once it runs
        }
        match (version, known.map_or(result, Ok)) {
            (None, Ok(rendered)) => {
                for note in &rendered.notes {
                    self.log(Level::Info, format!("the local configuration: {note}"));
                }
                self.fallback.note_local(rendered.digest.clone());
                self.launch.set_stage(Stage::Ready(Some(Box::new(rendered))));
            }
            (None, Err(error)) => {
                // The kubelet judges its own file; we only cannot compare or probe.
                self.log(Level::Warn, format!("the local configuration cannot be read: {error}"));
                self.local_files_unusable(error);
                self.launch.set_stage(Stage::Ready(None));
            }
            (Some(version), Ok(rendered)) => {
                let version = self.learn_content(version, &rendered.digest);
                if let Some(why) = Self::forbids_start(&rendered) {
                    return self.cannot_use(&version, ConfigError::Validate, &why);
                }
                if self.is_tried(&version) && self.bad_version(&version).is_some() {
                    self.end_trial_without_verdict(); // the binary is one with which it failed before
                    self.launch.next = None;
                    return self.tick_launch();
                }
                if let Some(next) = &mut self.launch.next {
                    next.version = Some(version);
                }
                // What this binary ran before is not judged now: it is no news to it, and a start must not wait.
                let ran = self.running().digest.as_ref() == Some(&rendered.digest)
                    && self.process.started_kubelet() == self.process.kubelet_id();
                if ran || self.is_accepted(&rendered.digest) {
                    self.launch.set_stage(Stage::Ready(Some(Box::new(rendered))));
                } else if let Some((error, message)) = self.refused_late(&rendered.digest) {
                    self.next_refused(error, &message);
                } else {
                    self.preflight_next(rendered);
                }
            }
            (Some(version), Err(error)) => {
                let native = match &error {
                    RenderError::Load(_) | RenderError::Checkpoint(_) => ConfigError::Load,
                    RenderError::Internal(_) | RenderError::Unfinished(_) | RenderError::NoAnswer(_) => {
                        ConfigError::Internal
                    }
                    RenderError::Policy(_) => ConfigError::Validate,
                };
                let is_assigned = self.records().assigned.as_ref() == Some(&version);
                if is_assigned && matches!(error, RenderError::Checkpoint(_)) {
                    self.download_again();
                }
                self.cannot_use(&version, native, &error.to_string());
            }
        }
    }

    fn preflight_next(&mut self, rendered: Rendered) {
        // There is one preflight at a time and the start goes first; the change is found again.
        self.drop_change();
        self.ask_verdict(Asker::Start, &rendered, Afterwards::Ends, limits::LAUNCH_PREFLIGHT_DEADLINE);
        self.launch.set_stage(Stage::Preflight(Box::new(rendered), self.process.kubelet_id().clone()));
    }

    /// The verdict on what is to be started.
    pub(super) fn next_verdict(&mut self, verdict: Verdict) {
        let Some(Next { version, stage: Stage::Preflight(rendered, binary), .. }) = self.launch.next.clone() else {
            return;
        };
        if binary != *self.process.kubelet_id() {
            return self.preflight_next(*rendered); // it is not the one that is started
        }
        self.count(Counter::Preflight(verdict.result()));
        let Some(version) = version else { return };
        match verdict {
            Verdict::Load(message) => self.next_refused(ConfigError::Load, &message),
            Verdict::Validate(message) => self.next_refused(ConfigError::Validate, &message),
            Verdict::Valid(_) => {
                self.note_accepted(&rendered.digest);
                self.writer.write_soon(); // the next life need not ask again
                self.launch.set_stage(Stage::Ready(Some(rendered)));
            }
            // Something has to be started; the trial, or the next rung, decides.
            Verdict::Inconclusive(why) | Verdict::NotItsFault(why) => {
                self.log(Level::Warn, format!("the preflight of {version} gave no verdict: {why}"));
                self.note_unjudged(&rendered.digest);
                self.launch.set_stage(Stage::Ready(Some(rendered)));
            }
        }
    }

    /// The kubelet (another binary than the one it was proven with) refuses it now.
    fn next_refused(&mut self, error: ConfigError, message: &str) {
        let Some(version) = &self.launch.next().cloned() else { return };
        let is_known = |bad: &BadVersion| bad.detail == message;
        if !self.records().bad.refusal(version, self.process.kubelet_id()).is_some_and(is_known) {
            self.emit(events::rejected(&version.source, message));
            self.refuse_at_start(version, error, message);
        }
        if self.process.current_kubelet() != self.process.kubelet_id() {
            // The binary that runs takes it, and what is desired goes by that: without a pause it would be asked for again at once.
            return self.cannot_use(version, error, message);
        }
        self.launch.next = None;
        self.tick_launch();
    }

    /// One rung down, until a time.
    fn cannot_use(&mut self, version: &Version, error: ConfigError, why: &str) {
        let is_news = self.versions.cannot_use(version, error, why, &self.clock);
        self.launch.next = None;
        if self.is_former_kept() {
            return self.log(Level::Warn, format!("cannot use {version} yet: {why}; the kubelet goes on as it is"));
        }
        let off = self.is_tried(version) && !(self.process.run().is_some() && self.judgement().runs(version));
        if off {
            self.end_trial_without_verdict();
        }
        if is_news {
            let next = self.desired();
            let name = Version::name(next.as_ref());
            self.log(Level::Warn, format!("cannot use {version}: {why}; falling back to {name}"));
        }
        self.tick_launch();
    }

    /// True while a kubelet runs that a worker before us left, and what it is to run with cannot be read for now: it is not ended
    /// for that.
    fn is_former_kept(&self) -> bool {
        self.process.former().is_some() && self.versions.is_any_unread(&self.clock)
    }

    fn is_tried(&self, version: &Version) -> bool {
        let records = self.records();
        records.pin.is_none() && records.phase.trial().is_some_and(|attempt| attempt.version == *version)
    }
}
