//! The kubelet process: launch, stop, exits.

use super::evidence::Query;
use super::io::log;
use super::model::{Exit, KubeletId, RenderError, Rendered, RestartCause, StateFiles, Verdict, later};
use super::record::REJECTED;
use super::{Counter, Effect, Kubelet, Level, Purpose, RecordReason, Run, RunningConfig, Stage, State, Trial};
use super::{events, limits};
use kubelet_config::source::Source;
use kubelet_config::{duration, hazard, status};

impl State {
    /// Begins a start of `target`.
    pub(super) fn launch(&mut self, fx: &mut Vec<Effect>) {
        if !std::mem::take(&mut self.in_place) && self.exits_for_restarts() && self.exit_for_restart(fx) {
            return;
        }
        self.kubelet = Kubelet::Launching;
        self.launching = None;
        let waits = |change: &mut super::Change| {
            matches!(change.stage, Stage::Preflight(..) | Stage::Spread(_) | Stage::Baseline(_))
        };
        if let Some(change) = self.change.take_if(waits) {
            // There is one preflight at a time and the start goes first; and the candidate may be
            // what is started now. The change is found again by `tick_change`.
            self.applying_since.get_or_insert(change.seen);
        }
        fx.push(Effect::Render(Purpose::Launch, self.target.clone()));
    }

    pub(super) fn launch_rendered(
        &mut self,
        source: Option<Source>,
        id: KubeletId,
        result: Result<Rendered, RenderError>,
        fx: &mut Vec<Effect>,
    ) {
        if self.kubelet != Kubelet::Launching || source != self.target {
            return;
        }
        self.kubelet_id = id;
        match (source, result) {
            (None, Ok(rendered)) => {
                for note in &rendered.notes {
                    log(fx, Level::Info, format!("the local configuration: {note}"));
                }
                self.start(None, rendered, fx);
            }
            (None, Err(error)) => {
                // The kubelet judges its own file; we only cannot compare or probe.
                log(fx, Level::Warn, format!("the local configuration cannot be read: {error}"));
                self.running = RunningConfig::default();
                self.kubelet = Kubelet::Starting;
                fx.push(Effect::Start(None, None));
            }
            (Some(source), Ok(rendered)) => {
                // A failure in a trial of the same content does not take away what was earned.
                let earned = self.saved.last_known_good.as_ref() == Some(&source);
                let bad = self.bad_version(&source, Some(&rendered.digest));
                if let Some(bad) = bad.filter(|bad| !earned || bad.reason == REJECTED) {
                    let (error, detail) = (bad.error.clone(), bad.detail.clone());
                    self.fall_back(&source, error, detail, fx);
                } else if self.is_judged(&rendered) {
                    self.start(Some(source), rendered, fx);
                } else {
                    let ticket = self.next_ticket();
                    fx.push(Effect::Preflight(ticket, rendered.clone()));
                    self.launching = Some((ticket, rendered));
                }
            }
            (Some(source), Err(error)) => {
                let native = match &error {
                    RenderError::Load(_) | RenderError::Checkpoint(_) => status::LOAD_ERROR,
                    RenderError::Internal(_) => status::INTERNAL_ERROR,
                };
                if matches!(error, RenderError::Checkpoint(_)) && self.saved.assigned.as_ref() == Some(&source) {
                    self.download_again(fx);
                }
                self.fall_back(&source, native.to_owned(), error.to_string(), fx);
            }
        }
    }

    pub(super) fn launch_judged(&mut self, verdict: Verdict, rendered: Rendered, fx: &mut Vec<Effect>) {
        let Some(source) = self.target.clone() else { return };
        match verdict {
            Verdict::Load(message) => self.reject_version(&source, &rendered, status::LOAD_ERROR, message, fx),
            Verdict::Validate(message) => self.reject_version(&source, &rendered, status::VALIDATE_ERROR, message, fx),
            Verdict::Valid(_) => {
                self.remember_verdict(&rendered);
                self.start(Some(source), rendered, fx);
            }
            // Something has to be started; the trial, or the next rung, decides.
            Verdict::Inconclusive(why) | Verdict::NotItsFault(why) => {
                log(fx, Level::Warn, format!("the preflight of {source} gave no verdict: {why}"));
                self.start(Some(source), rendered, fx);
            }
        }
    }

    /// The kubelet (another binary than the one it was proven with) refuses it now.
    fn reject_version(
        &mut self,
        source: &Source,
        rendered: &Rendered,
        error: &str,
        message: String,
        fx: &mut Vec<Effect>,
    ) {
        self.remember_bad(source, Some(&rendered.digest), REJECTED, error, &message, fx);
        fx.push(Effect::Emit(events::rejected(source, &message)));
        self.fall_back(source, error.to_owned(), message, fx);
    }

    fn start(&mut self, source: Option<Source>, rendered: Rendered, fx: &mut Vec<Effect>) {
        let config = source.is_some().then_some(rendered.path);
        // A new configuration begins with fresh state files; the way back finds its own again.
        let attempt = self.records().local_state.attempt.as_ref().map(|attempt| &attempt.source);
        let restore = source.is_none() || source.as_ref() != attempt;
        let policy = hazard::policy_key(&rendered.effective);
        let files = (!rendered.effective.is_null()).then(|| StateFiles { policy, restore, ..StateFiles::default() });
        if self.runtime.is_none() {
            self.runtime.clone_from(&rendered.runtime);
        }
        self.running = RunningConfig {
            source,
            digest: Some(rendered.digest),
            healthz: rendered.healthz,
            shadowed: rendered.shadowed,
            effective: rendered.effective,
            annotations: rendered.annotations,
            runtime: rendered.runtime,
        };
        self.kubelet = Kubelet::Starting;
        fx.push(Effect::Start(config, files));
    }

    /// One rung down the ladder assigned → last known good → local.
    fn fall_back(&mut self, from: &Source, error: String, detail: String, fx: &mut Vec<Effect>) {
        let fallback = self.fallback().filter(|lkg| lkg != from);
        self.lkg_unusable |= self.fallback().as_ref() == Some(from);
        log(
            fx,
            Level::Warn,
            format!("cannot use {from}: {detail}; falling back to {}", status::name(fallback.as_ref())),
        );
        self.error = Some((error, detail));
        self.trial = None;
        self.target = fallback;
        self.launch(fx);
    }

    pub(super) fn started(&mut self, result: Result<u32, String>, fx: &mut Vec<Effect>) {
        if self.kubelet != Kubelet::Starting {
            return;
        }
        match result {
            Ok(pid) => {
                let switched = self.active != self.running.source && self.starts > 0;
                self.starts += 1;
                self.active.clone_from(&self.running.source);
                self.lkg_unusable &= self.active.is_none();
                let attempt = self.records().local_state.attempt.as_ref();
                let exits = attempt.and_then(|it| it.snapshot.as_ref()).map_or(0, |snapshot| snapshot.exits);
                let (attempt, adopted) = (attempt.map(|it| &it.source), attempt.is_some_and(|it| it.adopted));
                if self.active.is_some() && self.active.as_ref() == attempt && self.pinned().is_none() {
                    self.trial.get_or_insert_with(|| Trial { exits, adopted, ..Trial::default() });
                } else {
                    self.trial = None;
                }
                self.lost_pods.clear();
                if self.active == self.records().assigned && !self.checkpoint_damaged {
                    self.error = None;
                }
                self.kubelet = Kubelet::Running(Run {
                    pid,
                    started: self.now,
                    start_timeout_from: self.now,
                    heartbeat: self.node.as_ref().map(|node| node.heartbeat.clone()).unwrap_or_default(),
                    lease: self.lease.clone(),
                    switched,
                    ..Run::default()
                });
                log(
                    fx,
                    Level::Info,
                    format!("kubelet started, pid {pid}, with {}", status::name(self.active.as_ref())),
                );
                self.collect(fx);
                if self.leaving || self.target != self.active {
                    self.stop(fx);
                }
            }
            Err(why) => {
                log(fx, Level::Warn, format!("the kubelet could not be started: {why}"));
                self.wait_for_restart(fx);
            }
        }
    }

    pub(super) fn ready(&mut self, fx: &mut Vec<Effect>) {
        let now = self.now;
        let observing = self.is_observing();
        let Kubelet::Running(run) = &mut self.kubelet else { return };
        if run.ready {
            return;
        }
        run.ready = true;
        run.ready_at = Some(now);
        if self.self_tested.as_ref() != Some(&self.kubelet_id) {
            self.self_tested = Some(self.kubelet_id.clone());
            fx.push(Effect::SelfTest);
        }
        if observing {
            run.await_signals(now);
        }
        if let Some(seen) = self.applying_since.take() {
            fx.push(Effect::Count(Counter::Applied(now.since(seen))));
        }
    }

    /// SIGTERM now, SIGKILL after the grace.
    pub(super) fn stop(&mut self, fx: &mut Vec<Effect>) {
        fx.push(Effect::Stop);
        self.kubelet = Kubelet::Stopping { kill_at: Some(later(self.now, limits::STOP_GRACE)) };
    }

    /// Makes `target` run, restarting the kubelet if there is one.
    pub(super) fn switch(&mut self, target: Option<Source>, cause: RestartCause, fx: &mut Vec<Effect>) {
        self.target = target;
        self.pending_failure = None;
        self.in_place = false;
        self.crashes = 0;
        fx.push(Effect::Count(Counter::Restart(cause)));
        match self.kubelet {
            Kubelet::Running(_) => self.stop(fx),
            Kubelet::Waiting { .. } | Kubelet::Launching => self.launch(fx),
            // It comes up with the new target, or is stopped again as soon as it is up.
            Kubelet::Down | Kubelet::Starting | Kubelet::Stopping { .. } | Kubelet::Gone => {}
        }
    }

    pub(super) fn exited(&mut self, exit: Exit, fx: &mut Vec<Effect>) {
        match self.kubelet.clone() {
            Kubelet::Stopping { .. } if self.leaving => self.leave(fx),
            Kubelet::Stopping { .. } => self.launch(fx),
            Kubelet::Running(_) if self.leaving => self.leave(fx),
            Kubelet::Running(run) => {
                let ran = self.now.since(run.started);
                log(
                    fx,
                    Level::Warn,
                    format!("the kubelet (pid {}) ended by itself after {:.1} s: {exit}", run.pid, ran.as_secs_f64()),
                );
                if ran >= limits::BACKOFF_RESET {
                    self.crashes = 0;
                }
                self.kubelet = Kubelet::Waiting { until: self.now };
                // The health earned so far is kept, or lost by the verdict.
                if let (Some(trial), Some(since)) = (&mut self.trial, run.healthy_since) {
                    trial.health_before_pause += self.now.since(since);
                    trial.suspended = self.suspended.is_some();
                }
                if !self.note_exit(&run, exit, fx) {
                    self.wait_for_restart(fx);
                }
            }
            Kubelet::Down | Kubelet::Launching | Kubelet::Starting | Kubelet::Waiting { .. } | Kubelet::Gone => {}
        }
    }

    pub(super) fn wait_for_restart(&mut self, fx: &mut Vec<Effect>) {
        if self.leaving {
            return self.leave(fx);
        }
        // Where the system is going down nothing is started again: the answer comes within the pause.
        fx.push(Effect::Query(Query::Environment(self.runtime.clone())));
        fx.push(Effect::Count(Counter::Restart(RestartCause::Exit)));
        let quick = self.suspended.is_none() && self.trial.as_ref().is_some_and(|trial| !trial.adopted);
        self.in_place = self.now.since(self.began) < limits::RESTART_IN_PLACE || self.change.is_some();
        let pause = if self.exits_on_crash() && self.unsaved.is_none() {
            limits::QUERY_DEADLINE // RestartSec is systemd's own; this is for the observation alone
        } else if quick {
            limits::BACKOFF_TRIAL
        } else {
            duration::backoff(limits::BACKOFF_FIRST, limits::BACKOFF_MAX, self.crashes)
        };
        self.crashes = self.crashes.saturating_add(1);
        self.kubelet = Kubelet::Waiting { until: later(self.now, pause) };
    }

    pub(super) fn tick_process(&mut self, fx: &mut Vec<Effect>) {
        match self.kubelet {
            Kubelet::Stopping { kill_at: Some(at) } if self.now >= at => {
                log(fx, Level::Warn, "the kubelet does not stop, killing it");
                self.kubelet = Kubelet::Stopping { kill_at: None };
                fx.push(Effect::Kill);
            }
            Kubelet::Waiting { until } if self.now >= until && self.pending_failure.is_none() => {
                if self.is_going_down() {
                    // Its SIGTERM is on the way to us. If not, systemd says so at the next observation.
                    self.kubelet = Kubelet::Waiting { until: later(self.now, limits::QUERY_INTERVAL) };
                    fx.push(Effect::Query(Query::Environment(self.runtime.clone())));
                } else {
                    self.launch(fx);
                }
            }
            _ => {}
        }
    }

    /// True if the system was on its way down when it was last observed, a moment ago.
    pub(super) fn is_going_down(&self) -> bool {
        self.environment
            .as_ref()
            .is_some_and(|(seen, at)| seen.shutting_down && self.now.since(*at) <= limits::QUERY_VALID)
    }

    pub(super) fn shutdown(&mut self, fx: &mut Vec<Effect>) {
        if self.leaving {
            return;
        }
        self.leaving = true;
        // A clean stop gives the try back.
        let mut records = self.records().clone();
        if let Some(attempt) = &mut records.local_state.attempt {
            attempt.tries = attempt.tries.saturating_sub(1);
            if let Some(confirm) = &mut attempt.confirm {
                confirm.left = confirm.until.saturating_sub(self.now.boot.as_secs());
            }
            fx.push(Effect::Record(RecordReason::Memory, records));
        }
        match self.kubelet {
            Kubelet::Running(_) => self.stop(fx),
            Kubelet::Down | Kubelet::Waiting { .. } => self.leave(fx),
            Kubelet::Launching => self.leave(fx),
            // These end in `started` and `exited`, which leave.
            Kubelet::Starting | Kubelet::Stopping { .. } | Kubelet::Gone => {}
        }
    }

    pub(super) fn leave(&mut self, fx: &mut Vec<Effect>) {
        self.kubelet = Kubelet::Gone;
        fx.push(Effect::Quit);
    }
}
