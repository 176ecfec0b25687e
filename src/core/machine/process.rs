//! The kubelet process: launch, stop, exits.

use super::{Because, Counter, Effect, InForce, Kubelet, Level, Purpose, Run, State, Trial, later, say};
use crate::core::model::{Exit, KubeletId, RenderError, Rendered, Source, Verdict};
use crate::core::policy;
use crate::core::report;

impl State {
    /// Begins a start of `target`.
    pub(super) fn launch(&mut self, fx: &mut Vec<Effect>) {
        self.kubelet = Kubelet::Launching;
        self.launching = None;
        if let Some(change) = self.change.take_if(|change| matches!(change.stage, super::Stage::Judging(..))) {
            // There is one preflight at a time and the start goes first; the change is found
            // again by `tick_change`.
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
                self.start(None, rendered, fx);
            }
            (None, Err(error)) => {
                // The kubelet judges its own file; we only cannot compare or probe.
                say(fx, Level::Warn, format!("the local configuration cannot be read: {error}"));
                self.in_force = InForce::default();
                self.kubelet = Kubelet::Starting;
                fx.push(Effect::Start(None, None));
            }
            (Some(source), Ok(rendered)) => {
                if let Some(bad) = self.bad(&source, Some(&rendered.digest)) {
                    let (error, detail) = (bad.error.clone(), bad.detail.clone());
                    self.descend(&source, error, detail, fx);
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
                    RenderError::Load(_) | RenderError::Checkpoint(_) => report::LOAD_ERROR,
                    RenderError::Internal(_) => report::INTERNAL_ERROR,
                };
                if matches!(error, RenderError::Checkpoint(_)) && self.saved.assigned.as_ref() == Some(&source) {
                    self.download_again(fx);
                }
                self.descend(&source, native.to_owned(), error.to_string(), fx);
            }
        }
    }

    pub(super) fn launch_judged(&mut self, verdict: Verdict, rendered: Rendered, fx: &mut Vec<Effect>) {
        let Some(source) = self.target.clone() else { return };
        match verdict {
            Verdict::Load(words) => self.refuse(&source, &rendered, report::LOAD_ERROR, words, fx),
            Verdict::Validate(words) => self.refuse(&source, &rendered, report::VALIDATE_ERROR, words, fx),
            Verdict::Valid(_) => {
                self.remember_verdict(&rendered);
                self.start(Some(source), rendered, fx);
            }
            // Something has to be started; the trial, or the next rung, decides.
            Verdict::Inconclusive(why) | Verdict::NotItsFault(why) => {
                say(fx, Level::Warn, format!("the preflight of {source} gave no verdict: {why}"));
                self.start(Some(source), rendered, fx);
            }
        }
    }

    /// The kubelet (another binary than the one it was proven with) refuses it now.
    fn refuse(&mut self, source: &Source, rendered: &Rendered, error: &str, words: String, fx: &mut Vec<Effect>) {
        self.mark_bad(source, Some(&rendered.digest), error, &words, fx);
        fx.push(Effect::Emit(report::rejected(source, &words)));
        self.descend(source, error.to_owned(), words, fx);
    }

    fn start(&mut self, source: Option<Source>, rendered: Rendered, fx: &mut Vec<Effect>) {
        let config = source.is_some().then_some(rendered.path);
        self.in_force =
            InForce { source, digest: Some(rendered.digest), healthz: rendered.healthz, shadowed: rendered.shadowed };
        self.kubelet = Kubelet::Starting;
        fx.push(Effect::Start(config, None));
    }

    /// One rung down the ladder assigned → last known good → local.
    fn descend(&mut self, from: &Source, error: String, detail: String, fx: &mut Vec<Effect>) {
        let fallback = self.fallback().filter(|lkg| lkg != from);
        say(
            fx,
            Level::Warn,
            format!("cannot use {from}: {detail}; falling back to {}", report::name(fallback.as_ref())),
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
                let switched = self.active != self.in_force.source && self.starts > 0;
                self.starts += 1;
                self.active.clone_from(&self.in_force.source);
                let attempt = self.records().ledger.attempt.as_ref().map(|attempt| &attempt.source);
                if self.active.is_some() && self.active.as_ref() == attempt {
                    self.trial.get_or_insert(Trial { exits: 0, adopted: false });
                } else {
                    self.trial = None;
                }
                if self.active == self.records().assigned && !self.damaged {
                    self.error = None;
                }
                self.kubelet = Kubelet::Running(Run {
                    pid,
                    started: self.now,
                    ready: false,
                    healthy_since: None,
                    answered: None,
                    was_healthy: false,
                    failing_since: None,
                    probe_at: None,
                    switched,
                });
                say(
                    fx,
                    Level::Info,
                    format!("kubelet started, pid {pid}, with {}", report::name(self.active.as_ref())),
                );
                self.collect(fx);
                if self.leaving || self.target != self.active {
                    self.stop(fx);
                }
            }
            Err(why) => {
                say(fx, Level::Warn, format!("the kubelet could not be started: {why}"));
                self.wait_for_restart(fx);
            }
        }
    }

    pub(super) fn ready(&mut self, fx: &mut Vec<Effect>) {
        let now = self.now;
        let probed = self.trial.is_some() && self.in_force.healthz.is_some();
        let Kubelet::Running(run) = &mut self.kubelet else { return };
        if run.ready {
            return;
        }
        run.ready = true;
        if self.tested.as_ref() != Some(&self.kubelet_id) {
            self.tested = Some(self.kubelet_id.clone());
            fx.push(Effect::SelfTest);
        }
        if probed {
            run.probe_at = Some(now);
        } else {
            run.healthy_since = Some(now);
            run.was_healthy = true;
        }
        if let Some(seen) = self.applying_since.take() {
            fx.push(Effect::Count(Counter::Applied(now.since(seen))));
        }
    }

    /// SIGTERM now, SIGKILL after the grace.
    pub(super) fn stop(&mut self, fx: &mut Vec<Effect>) {
        fx.push(Effect::Stop);
        self.kubelet = Kubelet::Stopping { kill_at: Some(later(self.now, policy::STOP_GRACE)) };
    }

    /// Makes `target` run, restarting the kubelet if there is one.
    pub(super) fn switch(&mut self, target: Option<Source>, cause: &'static str, fx: &mut Vec<Effect>) {
        self.target = target;
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
                say(
                    fx,
                    Level::Warn,
                    format!("the kubelet (pid {}) ended by itself after {:.1} s: {exit}", run.pid, ran.as_secs_f64()),
                );
                if ran >= policy::BACKOFF_RESET {
                    self.crashes = 0;
                }
                self.kubelet = Kubelet::Waiting { until: self.now };
                if !self.exit_fails_trial(&run, exit, fx) {
                    fx.push(Effect::Count(Counter::Restart("exit")));
                    self.wait_for_restart(fx);
                }
            }
            Kubelet::Down | Kubelet::Launching | Kubelet::Starting | Kubelet::Waiting { .. } | Kubelet::Gone => {}
        }
    }

    fn wait_for_restart(&mut self, fx: &mut Vec<Effect>) {
        if self.leaving {
            return self.leave(fx);
        }
        let pause = if self.trial.as_ref().is_some_and(|trial| !trial.adopted) {
            policy::BACKOFF_TRIAL
        } else {
            policy::backoff(policy::BACKOFF_FIRST, policy::BACKOFF_MAX, self.crashes)
        };
        self.crashes = self.crashes.saturating_add(1);
        self.kubelet = Kubelet::Waiting { until: later(self.now, pause) };
    }

    pub(super) fn tick_process(&mut self, fx: &mut Vec<Effect>) {
        match self.kubelet {
            Kubelet::Stopping { kill_at: Some(at) } if self.now >= at => {
                say(fx, Level::Warn, "the kubelet does not stop, killing it");
                self.kubelet = Kubelet::Stopping { kill_at: None };
                fx.push(Effect::Kill);
            }
            Kubelet::Waiting { until } if self.now >= until => self.launch(fx),
            _ => {}
        }
    }

    pub(super) fn shutdown(&mut self, fx: &mut Vec<Effect>) {
        if self.leaving {
            return;
        }
        self.leaving = true;
        // A clean stop gives the try back.
        let mut records = self.records().clone();
        if let Some(attempt) = &mut records.ledger.attempt {
            attempt.tries = attempt.tries.saturating_sub(1);
            fx.push(Effect::Record(Because::Memory, records));
        }
        match self.kubelet {
            Kubelet::Running(_) => self.stop(fx),
            Kubelet::Down | Kubelet::Waiting { .. } => self.leave(fx),
            Kubelet::Launching => self.leave(fx),
            // These end in `started` and `exited`, which leave.
            Kubelet::Starting | Kubelet::Stopping { .. } | Kubelet::Gone => {}
        }
    }

    fn leave(&mut self, fx: &mut Vec<Effect>) {
        self.kubelet = Kubelet::Gone;
        fx.push(Effect::Quit);
    }
}
