//! Starts, exits and stops.

use super::Kubelet;
use crate::machine::evidence::Query;
use crate::machine::io::{Effect, log, no_answer};
use crate::machine::model::{Exit, Rendered, RestartCause, RunId, StartedKubelet, later};
use crate::machine::records::{RunningConfig, Started, Version};
use crate::machine::{Counter, Level, State, limits};
use kubelet_config::duration;

impl State {
    /// The first start is due now.
    pub(in crate::machine) fn begin(&mut self) {
        self.process.kubelet = Kubelet::Waiting { until: self.now };
    }

    /// Starts the kubelet with this.
    pub(in crate::machine) fn start(
        &mut self,
        version: Option<Version>,
        rendered: Option<Rendered>,
        fx: &mut Vec<Effect>,
    ) {
        self.policy_at_start(version.as_ref(), rendered.as_ref().map(|rendered| &rendered.admission), fx);
        let before = (&self.process.running.version, &self.process.running.digest);
        let given = rendered.clone().filter(|_| version.is_some()).map(Box::new);
        let next = rendered.map_or_else(RunningConfig::default, |rendered| RunningConfig::new(version, rendered));
        let switched = before != (&next.version, &next.digest) && self.process.starts > 0;
        if self.process.starts > 0 {
            let cause = match (self.process.hung, self.process.exited) {
                (true, _) if !switched => RestartCause::Hung,
                (_, true) if !switched => RestartCause::Exit,
                _ => self.restart_cause(&next.version),
            };
            fx.push(Effect::Count(Counter::Restart(cause)));
        }
        if switched && !self.process.exited {
            self.process.crashes = 0; // what takes the place of one that ended may end for the same reason
        }
        (self.process.exited, self.process.hung) = (false, false);
        self.forget_last_run();
        self.process.running = next;
        let another = self.process.started.replace(self.process.kubelet_id.clone());
        if another.is_some_and(|before| before != self.process.kubelet_id) {
            self.reconsider(); // what failed with the binary before may work with this one
        }
        self.await_start();
        self.standby.forget();
        fx.push(Effect::Start(given));
    }

    /// Goes on with the kubelet that a worker before us left.
    pub(in crate::machine) fn go_on(&mut self, started: Started, fx: &mut Vec<Effect>) {
        self.forget_last_run();
        (self.process.running, self.process.started) = (started.config, Some(started.kubelet));
        self.await_start();
        fx.push(Effect::GoOn(started.run));
    }

    fn await_start(&mut self) {
        self.process.kubelet = Kubelet::Starting;
        self.process.former = None; // from now on it is the port's
        self.process.answer_by = Some(later(self.now, limits::START_DEADLINE));
    }

    /// Why another version comes to run.
    pub(in crate::machine) fn restart_cause(&self, version: &Option<Version>) -> RestartCause {
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

    pub(in crate::machine) fn started(&mut self, result: Result<StartedKubelet, String>, fx: &mut Vec<Effect>) {
        if self.process.kubelet != Kubelet::Starting {
            return;
        }
        self.process.answer_by = None;
        match result {
            Ok(StartedKubelet { id, adopted, ready }) => {
                self.process.starts += 1;
                self.process.kubelet =
                    Kubelet::Running(if adopted { self.resumed_run(id, ready) } else { self.new_run(id) });
                self.note_started(id, adopted);
                self.begin_progress();
                let what = if adopted { "the kubelet goes on" } else { "kubelet started" };
                let name = Version::name(self.active());
                log(fx, Level::Info, format!("{what}, pid {}, with {name}", id.pid));
                if self.is_observing() {
                    self.query(Query::Lease, fx);
                }
                self.collect(fx);
                self.local_files_started();
                if self.process.leaving {
                    self.stop(fx);
                }
            }
            Err(why) => {
                log(fx, Level::Warn, format!("the kubelet could not be started: {why}"));
                self.process.starts = self.process.starts.max(1);
                self.miss_former(fx);
                self.wait_for_restart(fx);
            }
        }
    }

    /// For the worker that goes on with it.
    fn note_started(&mut self, run: RunId, adopted: bool) {
        let known = self.records().started.clone().filter(|started| started.run == run);
        if adopted {
            self.ask_policy(); // it may be one with which nothing is started any more
        }
        match known {
            Some(known) => self.hung_resumed(known.alive),
            None => self.note_run(),
        }
    }

    /// What runs goes on record.
    pub(in crate::machine) fn note_run(&mut self) {
        let Some(run) = self.process.run().map(|run| run.id) else { return };
        let (config, kubelet) = (self.process.running.clone(), self.process.started_kubelet().clone());
        let started = Started { run, config, kubelet, alive: false };
        self.writer.learn(|records| records.started = Some(started.clone()));
        self.writer.write_soon();
    }

    /// SIGTERM now; the port kills it after [`limits::STOP_GRACE`].
    pub(in crate::machine) fn stop(&mut self, fx: &mut Vec<Effect>) {
        self.end_by(Effect::Stop, fx);
    }

    /// The same for one that hangs, by SIGQUIT.
    pub(in crate::machine) fn dump_and_stop(&mut self, fx: &mut Vec<Effect>) {
        self.process.hung = true;
        self.end_by(Effect::DumpStacks, fx);
    }

    fn end_by(&mut self, signal: Effect, fx: &mut Vec<Effect>) {
        // Whom we end does not end by itself, and is not gone on with.
        let known = self.records().started.is_some();
        self.writer.learn(|records| records.started = None);
        if self.forget_progress() || known {
            self.writer.write_soon();
        }
        fx.push(signal);
        self.process.kubelet = Kubelet::Stopping;
    }

    pub(in crate::machine) fn exited(&mut self, exit: Exit, fx: &mut Vec<Effect>) {
        let (leaving, now) = (self.process.leaving, self.now);
        self.hurry_next();
        if self.process.former.take().is_some() {
            log(fx, Level::Warn, format!("the kubelet ended before it was gone on with: {exit}"));
            self.miss_former(fx);
            self.begin_without_former();
        }
        match self.process.kubelet.clone() {
            Kubelet::Stopping | Kubelet::Running(_) if leaving => self.leave(fx),
            Kubelet::Stopping => self.process.kubelet = Kubelet::Waiting { until: now },
            Kubelet::Running(run) => {
                let ran = now.since(run.started);
                let seconds = ran.as_secs_f64();
                log(
                    fx,
                    Level::Warn,
                    format!("the kubelet (pid {}) ended by itself after {seconds:.1} s: {exit}", run.id.pid),
                );
                if ran >= limits::BACKOFF_RESET {
                    self.process.crashes = 0;
                }
                self.process.exited = true;
                self.process.kubelet = Kubelet::Waiting { until: now };
                if !run.is_ready() {
                    self.launch.forget_state_files();
                }
                if !self.note_exit(&run, exit, fx) {
                    self.wait_for_restart(fx);
                }
            }
            Kubelet::NotBegun | Kubelet::Starting | Kubelet::Waiting { .. } | Kubelet::Gone => {}
        }
    }

    /// The pause before the next start.
    pub(in crate::machine) fn wait_for_restart(&mut self, fx: &mut Vec<Effect>) {
        if self.process.leaving {
            return self.leave(fx);
        }
        // Where the system is going down nothing is started again: the answer comes within the pause.
        self.query(Query::Environment(self.runtime_socket()), fx);
        let quick = self.suspended().is_none() && self.is_judged();
        let pause = if quick {
            limits::BACKOFF_TRIAL
        } else {
            duration::backoff(limits::BACKOFF_FIRST, limits::BACKOFF_MAX, self.process.crashes)
        };
        self.process.crashes = self.process.crashes.saturating_add(1);
        self.process.kubelet = Kubelet::Waiting { until: later(self.now, pause) };
    }

    pub(in crate::machine) fn tick_process(&mut self, fx: &mut Vec<Effect>) {
        match self.process.kubelet {
            Kubelet::Starting if self.process.answer_by.is_some_and(|at| self.now >= at) => {
                self.started(Err(no_answer(limits::START_DEADLINE)), fx);
            }
            Kubelet::Waiting { until } if self.now >= until && self.is_going_down() => {
                // Its SIGTERM is on the way to us. If not, systemd says so at the next observation.
                self.process.kubelet = Kubelet::Waiting { until: later(self.now, limits::QUERY_INTERVAL) };
                self.query(Query::Environment(self.runtime_socket()), fx);
            }
            _ => {}
        }
    }

    pub(in crate::machine) fn shutdown(&mut self, fx: &mut Vec<Effect>) {
        if self.process.leaving {
            return;
        }
        self.process.leaving = true;
        self.give_try_back();
        match self.process.kubelet {
            Kubelet::Running(_) => self.stop(fx),
            Kubelet::NotBegun | Kubelet::Waiting { .. } if self.process.former.is_some() => self.stop(fx),
            Kubelet::NotBegun | Kubelet::Waiting { .. } => self.leave(fx),
            // These end in `started` and `exited`, which leave.
            Kubelet::Starting | Kubelet::Stopping | Kubelet::Gone => {}
        }
    }

    /// Another worker takes over: the kubelet is not touched, and what was seen of it is kept. One that is told to leave does
    /// that.
    pub(in crate::machine) fn retire(&mut self, fx: &mut Vec<Effect>) {
        if !self.process.leaving {
            self.note_progress();
            self.process.leaving = true;
            self.leave(fx);
        }
    }

    /// The supervisor ends.
    pub(in crate::machine) fn leave(&mut self, fx: &mut Vec<Effect>) {
        self.process.kubelet = Kubelet::Gone;
        self.writer.flush(&mut self.asks, self.now, fx);
        fx.push(Effect::Quit);
    }
}
