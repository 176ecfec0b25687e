//! The kubelet's process: starts, exits, stops, and the pauses between.

use super::asks::Observation;
use super::clock::Clock;
use super::evidence::Failure;
use super::io::{Effect, no_answer};
use super::model::{Exit, KubeletId, Moment, Rendered, RestartCause, RunId, StartedKubelet};
use super::records::{Phase, RunningConfig, Started, Version};
use super::standby::Standby;
use super::{Counter, Level, Run, State, limits};
use kubelet_config::policy::Signed;

/// What the kernel, or an operator, ends a process with that is not asked.
const SIGKILL: i32 = 9;

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
    /// The kernel ended the kubelet that ran last: it had no last words.
    pub(super) killed: bool,
    /// Why the next start is due, where no decision asks for it: an exit that the supervisor did not ask for, or a hung kubelet.
    ended: Option<RestartCause>,
    /// The latest start failed.
    unstarted: bool,
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

    /// What it was started with.
    pub(super) fn running(&self) -> &RunningConfig {
        &self.running
    }

    /// What runs, or ran last; or would be started anew, if anything was started yet. `None` is the local configuration.
    pub(super) fn active(&self) -> Option<&Version> {
        self.running.version.as_ref().filter(|_| self.starts > 0)
    }

    /// Kubelet starts so far.
    pub(super) fn starts(&self) -> u32 {
        self.starts
    }

    pub(super) fn kubelet_id(&self) -> &KubeletId {
        &self.kubelet_id
    }

    /// It is called by another name now; the content is the same.
    pub(super) fn rename(&mut self, version: Option<Version>) {
        self.running.version = version;
    }

    /// Fields of it that flags override.
    pub(super) fn set_shadowed(&mut self, shadowed: Vec<String>) {
        self.running.shadowed = shadowed;
    }

    /// The same content, signed anew.
    pub(super) fn set_signed(&mut self, signed: Option<Signed>) {
        self.running.signed = signed;
    }

    /// What runs with local files that could not be read in time runs with these; false if it does not.
    pub(super) fn learn(&mut self, local: &Rendered) -> bool {
        let is_it = matches!(self.kubelet, Kubelet::Starting | Kubelet::Running(_));
        let unknown = is_it && self.running.version.is_none() && self.running.digest.is_none();
        if unknown {
            self.running = RunningConfig::new(None, local.clone());
        }
        unknown
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
    pub(super) fn is_start_due(&self, clock: &Clock) -> bool {
        matches!(self.kubelet, Kubelet::Waiting { until } if clock.reached(until))
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
    pub(super) fn may_change(&self, clock: &Clock) -> bool {
        match &self.kubelet {
            Kubelet::Running(run) => run.is_ready() || clock.lasted(run.started, limits::START_UNDISTURBED),
            Kubelet::Waiting { .. } => self.starts > 0,
            Kubelet::NotBegun | Kubelet::Starting | Kubelet::Stopping | Kubelet::Gone => false,
        }
    }
}

impl State {
    /// The kubelet's process.
    #[must_use]
    pub fn kubelet(&self) -> &Kubelet {
        &self.process.kubelet
    }

    /// What runs, or ran last; or would be started anew, if anything was started yet. `None` is the local configuration.
    #[must_use]
    pub fn active(&self) -> Option<&Version> {
        self.process.active()
    }

    /// What the process was started with.
    #[must_use]
    pub fn running(&self) -> &RunningConfig {
        &self.process.running
    }

    /// True once we are told to leave.
    #[must_use]
    pub fn is_leaving(&self) -> bool {
        self.process.leaving
    }

    /// Kubelet starts so far.
    #[must_use]
    pub fn starts(&self) -> u32 {
        self.process.starts
    }

    /// The first start is due now.
    pub(super) fn begin(&mut self) {
        self.process.kubelet = Kubelet::Waiting { until: self.clock.now };
    }

    /// Starts the kubelet with this.
    pub(super) fn start(&mut self, version: Option<Version>, rendered: Option<Rendered>) {
        self.policy_at_start(version.as_ref(), rendered.as_ref().map(|rendered| &rendered.admission));
        let before = (&self.process.running.version, &self.process.running.digest);
        let given = rendered.clone().filter(|_| version.is_some()).map(Box::new);
        let next = rendered.map_or_else(RunningConfig::default, |rendered| RunningConfig::new(version, rendered));
        let switched = before != (&next.version, &next.digest) && self.process.starts > 0;
        let ended = self.process.ended.take();
        if self.process.starts > 0 {
            let cause = ended.filter(|_| !switched).unwrap_or_else(|| self.restart_cause(&next.version));
            self.count(Counter::Restart(cause));
        }
        if switched && ended != Some(RestartCause::Exit) {
            self.process.crashes = 0; // what takes the place of one that ended may end for the same reason
        }
        if next.digest != self.process.running.digest && self.is_refused_by_name() {
            self.sync.reconsider(); // hazards are weighed against what runs
        }
        self.forget_last_run();
        self.process.running = next;
        let another = self.process.started.replace(self.process.kubelet_id.clone());
        if another.is_some_and(|before| before != self.process.kubelet_id) {
            self.sync.reconsider(); // what failed with the binary before may work with this one
        }
        self.await_start();
        self.standby = Standby::default(); // it becomes the kubelet, or ends
        self.effects.push(Effect::Start(given));
    }

    /// Goes on with the kubelet that a worker before us left.
    pub(super) fn go_on(&mut self, started: Started) {
        self.forget_last_run();
        (self.process.running, self.process.started) = (started.config, Some(started.kubelet));
        self.await_start();
        self.effects.push(Effect::GoOn(started.run));
    }

    fn await_start(&mut self) {
        self.process.kubelet = Kubelet::Starting;
        self.process.former = None; // from now on it is the port's
        self.process.answer_by = Some(self.clock.after(limits::START_DEADLINE));
    }

    /// Why another version comes to run.
    pub(super) fn restart_cause(&self, version: &Option<Version>) -> RestartCause {
        let records = self.records();
        if records.pin.is_some() {
            RestartCause::Operator
        } else if version.is_none() && records.assigned.is_none() {
            RestartCause::Reset
        } else if version.is_some() && *version == records.assigned {
            RestartCause::Config
        } else {
            RestartCause::Rollback
        }
    }

    pub(super) fn started(&mut self, result: Result<StartedKubelet, String>) {
        if self.process.kubelet != Kubelet::Starting {
            return;
        }
        self.process.answer_by = None;
        match result {
            Ok(StartedKubelet { id, adopted, ready }) => {
                self.process.starts += 1;
                self.process.unstarted = false;
                self.process.kubelet =
                    Kubelet::Running(if adopted { self.resumed_run(id, ready) } else { self.new_run(id) });
                self.note_started(id, adopted);
                self.begin_progress();
                let what = if adopted { "the kubelet goes on" } else { "kubelet started" };
                let name = Version::name(self.active());
                self.log(Level::Info, format!("{what}, pid {}, with {name}", id.pid));
                if self.judgement().is_contact_observed() {
                    self.observe(Observation::Lease);
                }
                self.collect();
                self.local_files_started();
                if self.process.leaving {
                    self.stop();
                }
            }
            Err(why) => self.start_failed(&why, true),
        }
    }

    /// It could not be started. Where the answer alone is missing, that counts for nothing.
    fn start_failed(&mut self, why: &str, counts: bool) {
        self.log(Level::Warn, format!("the kubelet could not be started: {why}"));
        self.process.starts = self.process.starts.max(1);
        (self.process.kubelet, self.process.unstarted) = (Kubelet::Waiting { until: self.clock.now }, counts);
        self.process.killed = false;
        if self.process.leaving {
            return self.leave();
        }
        let lost_former = self.records().started.is_some(); // it was to be gone on with, and is missed as an exit
        self.miss_former();
        // Last known good fails alike only if the version could not be started either.
        let is_like = match &self.records().phase {
            Phase::ControlTest(attempt, _) => attempt.failed.unstarted,
            _ => true,
        };
        let counts = counts && !lost_former && is_like;
        if !counts || !self.note_exit(None, Failure::Exits, format!("a start that failed: {why}")) {
            self.wait_for_restart();
        }
    }

    /// For the worker that goes on with it.
    fn note_started(&mut self, run: RunId, adopted: bool) {
        let known = self.records().started.clone().filter(|started| started.run == run);
        if adopted {
            self.ask_policy(); // it may be one with which nothing is started any more
        }
        match known {
            Some(known) => self.note_alive(known.alive),
            None => self.note_run(),
        }
    }

    /// What runs goes on record.
    pub(super) fn note_run(&mut self) {
        let Some(run) = self.process.run().map(|run| run.id) else { return };
        let (config, kubelet) = (self.process.running.clone(), self.process.started_kubelet().clone());
        let started = Started { run, config, kubelet, alive: false };
        self.writer.learn(|records| records.started = Some(started.clone()));
        self.writer.write_soon();
    }

    /// SIGTERM now; the port kills it after [`limits::STOP_GRACE`].
    pub(super) fn stop(&mut self) {
        self.end_by(Effect::Stop);
    }

    /// The same for one that hangs, by SIGQUIT.
    pub(super) fn dump_and_stop(&mut self) {
        self.process.ended = Some(RestartCause::Hung);
        self.end_by(Effect::DumpStacks);
    }

    fn end_by(&mut self, signal: Effect) {
        // Whom we end does not end by itself, and is not gone on with.
        let known = self.records().started.is_some();
        self.writer.learn(|records| records.started = None);
        if self.forget_progress() || known {
            self.writer.write_soon();
        }
        self.effects.push(signal);
        self.process.kubelet = Kubelet::Stopping;
    }

    pub(super) fn exited(&mut self, exit: Exit) {
        let (leaving, now) = (self.process.leaving, self.clock.now);
        self.hurry_next();
        if self.process.former.take().is_some() {
            self.log(Level::Warn, format!("the kubelet ended before it was gone on with: {exit}"));
            self.miss_former();
            self.begin_without_former();
        }
        match self.process.kubelet.clone() {
            Kubelet::Stopping | Kubelet::Running(_) if leaving => self.leave(),
            Kubelet::Stopping => self.process.kubelet = Kubelet::Waiting { until: now },
            Kubelet::Running(run) => {
                let ran = now.since(run.started);
                let (pid, seconds) = (run.id.pid, ran.as_secs_f64());
                self.log(Level::Warn, format!("the kubelet (pid {pid}) ended by itself after {seconds:.1} s: {exit}"));
                if ran >= limits::BACKOFF_RESET {
                    self.process.crashes = 0;
                }
                self.process.ended = Some(RestartCause::Exit);
                self.process.killed = exit == Exit::Signal(SIGKILL);
                self.process.kubelet = Kubelet::Waiting { until: now };
                if !run.is_ready() {
                    self.launch.forget_state_files();
                }
                let (failure, detail) = if run.was_up {
                    (Failure::Exits, exit.to_string())
                } else {
                    (Failure::ExitBeforeReady, format!("the kubelet ended before it was ready: {exit}"))
                };
                if !self.note_exit(Some(&run), failure, detail) {
                    self.wait_for_restart();
                }
            }
            Kubelet::NotBegun | Kubelet::Starting | Kubelet::Waiting { .. } | Kubelet::Gone => {}
        }
    }

    /// The pause before the next start.
    pub(super) fn wait_for_restart(&mut self) {
        if self.process.leaving {
            return self.leave();
        }
        // Where the system is going down nothing is started again: the answer comes within the pause.
        self.observe(Observation::Environment);
        let quick = self.suspended().is_none() && self.judgement().is_judged();
        let grown = limits::CRASH.after(self.process.crashes);
        let pause = match quick {
            // What keeps a process from being started may be over in a moment: twice at once is no two failures.
            _ if self.process.unstarted && (quick || self.judgement().is_reset_tried()) => limits::CRASH.most,
            true => limits::BACKOFF_TRIAL,
            false => grown,
        };
        self.process.crashes = self.process.crashes.saturating_add(1);
        self.process.kubelet = Kubelet::Waiting { until: self.clock.after(pause) };
    }

    pub(super) fn tick_process(&mut self) {
        match self.process.kubelet {
            Kubelet::Starting if self.process.answer_by.is_some_and(|at| self.clock.reached(at)) => {
                self.process.answer_by = None;
                self.start_failed(&no_answer(limits::START_DEADLINE), false);
            }
            Kubelet::Waiting { until } if self.clock.reached(until) && self.is_going_down() => {
                // Its SIGTERM is on the way to us. If not, systemd says so at the next observation.
                self.process.kubelet = Kubelet::Waiting { until: self.clock.after(limits::QUERY_INTERVAL) };
                self.observe(Observation::Environment);
            }
            _ => {}
        }
    }

    pub(super) fn shutdown(&mut self) {
        if self.process.leaving {
            return;
        }
        self.process.leaving = true;
        self.give_try_back();
        match self.process.kubelet {
            Kubelet::Running(_) => self.stop(),
            Kubelet::NotBegun | Kubelet::Waiting { .. } if self.process.former.is_some() => self.stop(),
            Kubelet::NotBegun | Kubelet::Waiting { .. } => self.leave(),
            // These end in `started` and `exited`, which leave.
            Kubelet::Starting | Kubelet::Stopping | Kubelet::Gone => {}
        }
    }

    /// Another worker takes over: the kubelet is not touched, and what was seen of it is kept. One that is told to leave does
    /// that.
    pub(super) fn retire(&mut self) {
        if !self.process.leaving {
            self.note_progress();
            self.process.leaving = true;
            self.leave();
        }
    }

    /// The supervisor ends.
    pub(super) fn leave(&mut self) {
        self.process.kubelet = Kubelet::Gone;
        self.flush();
        self.effects.push(Effect::Quit);
    }
}
