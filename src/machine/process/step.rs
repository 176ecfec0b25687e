//! Starts, exits and stops.

use super::{Kubelet, RunningConfig};
use crate::machine::evidence::Query;
use crate::machine::io::{Effect, log};
use crate::machine::model::{Exit, Rendered, RestartCause, later};
use crate::machine::records::Version;
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
        self.policy_at_start(rendered.as_ref().map(|rendered| &rendered.admission), fx);
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
        if switched {
            self.process.crashes = 0;
        }
        (self.process.exited, self.process.hung) = (false, false);
        self.forget_last_run();
        self.process.running = next;
        let another = self.process.started.replace(self.process.kubelet_id.clone());
        if another.is_some_and(|before| before != self.process.kubelet_id) {
            self.reconsider(); // what failed with the binary before may work with this one
        }
        self.process.kubelet = Kubelet::Starting;
        self.standby.forget();
        fx.push(Effect::Start(given));
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

    pub(in crate::machine) fn started(&mut self, result: Result<u32, String>, fx: &mut Vec<Effect>) {
        if self.process.kubelet != Kubelet::Starting {
            return;
        }
        match result {
            Ok(pid) => {
                self.process.starts += 1;
                self.process.kubelet = Kubelet::Running(self.new_run(pid));
                let name = Version::name(self.active());
                log(fx, Level::Info, format!("kubelet started, pid {pid}, with {name}"));
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
                self.wait_for_restart(fx);
            }
        }
    }

    /// SIGTERM now, SIGKILL after the grace.
    pub(in crate::machine) fn stop(&mut self, fx: &mut Vec<Effect>) {
        self.end_by(Effect::Stop, fx);
    }

    /// The same for one that hangs, by SIGQUIT.
    pub(in crate::machine) fn dump_and_stop(&mut self, fx: &mut Vec<Effect>) {
        self.process.hung = true;
        self.end_by(Effect::DumpStacks, fx);
    }

    fn end_by(&mut self, signal: Effect, fx: &mut Vec<Effect>) {
        fx.push(signal);
        self.process.kubelet = Kubelet::Stopping { kill_at: Some(later(self.now, limits::STOP_GRACE)) };
    }

    pub(in crate::machine) fn exited(&mut self, exit: Exit, fx: &mut Vec<Effect>) {
        let (leaving, now) = (self.process.leaving, self.now);
        match self.process.kubelet.clone() {
            Kubelet::Stopping { .. } | Kubelet::Running(_) if leaving => self.leave(fx),
            Kubelet::Stopping { .. } => self.process.kubelet = Kubelet::Waiting { until: now },
            Kubelet::Running(run) => {
                let ran = now.since(run.started);
                let seconds = ran.as_secs_f64();
                log(
                    fx,
                    Level::Warn,
                    format!("the kubelet (pid {}) ended by itself after {seconds:.1} s: {exit}", run.pid),
                );
                if ran >= limits::BACKOFF_RESET {
                    self.process.crashes = 0;
                }
                self.process.exited = true;
                self.process.kubelet = Kubelet::Waiting { until: now };
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
            Kubelet::Stopping { kill_at: Some(at) } if self.now >= at => {
                log(fx, Level::Warn, "the kubelet does not stop, killing it");
                self.process.kubelet = Kubelet::Stopping { kill_at: None };
                fx.push(Effect::Kill);
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
            Kubelet::NotBegun | Kubelet::Waiting { .. } => self.leave(fx),
            // These end in `started` and `exited`, which leave.
            Kubelet::Starting | Kubelet::Stopping { .. } | Kubelet::Gone => {}
        }
    }

    /// The supervisor ends.
    pub(in crate::machine) fn leave(&mut self, fx: &mut Vec<Effect>) {
        self.process.kubelet = Kubelet::Gone;
        let (ticket, now) = (self.next_ticket(), self.now);
        self.writer.flush(ticket, now, fx);
        fx.push(Effect::Quit);
    }
}
