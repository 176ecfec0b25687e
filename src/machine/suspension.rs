//! Suspension: while the node around the kubelet is at fault, no configuration is judged.

use super::evidence::{Signal, Suspension};
use super::io::log;
use super::model::later;
use super::{Effect, Kubelet, Level, State, events, limits};

impl State {
    /// What is at fault for the kubelet's troubles, if it is not the configuration.
    fn suspension(&self) -> Option<Suspension> {
        if let Some((environment, at)) = &self.environment
            && self.now.since(*at) <= limits::QUERY_VALID
        {
            if environment.shutting_down {
                return Some(Suspension::ShuttingDown);
            }
            if environment.disk_full {
                return Some(Suspension::DiskFull);
            }
            // A socket that never answered may be a wrong guess of ours.
            if environment.runtime == Some(false) && self.runtime_answered {
                return Some(Suspension::Runtime);
            }
        }
        let Kubelet::Running(run) = &self.kubelet else { return None };
        let lost = run.bad.get(&Signal::ApiServer)?;
        // A node that got an answer, and be it that the server is overloaded, is not cut off.
        let elsewhere = self.is_required_signal(Signal::ApiServer) && (run.was_answered || !run.is_attributable(*lost));
        elsewhere.then_some(Suspension::ApiServer)
    }

    /// Stops or resumes judgement by what was last observed.
    pub(super) fn update_suspension(&mut self, fx: &mut Vec<Effect>) {
        let suspension = self.suspension().filter(|_| self.is_observing());
        if suspension == self.suspended {
            return;
        }
        match (suspension, self.suspended) {
            (Some(suspension), None) => {
                log(fx, Level::Warn, format!("{}: judgement is suspended, nobody is blamed", suspension.message()));
                if let Some(source) = self.active.as_ref().filter(|_| self.trial.is_some()) {
                    fx.push(Effect::Emit(events::suspended(source, suspension)));
                }
            }
            (None, Some(suspension)) => {
                log(fx, Level::Info, format!("no longer true that {}: judgement goes on", suspension.message()));
                // What was bad meanwhile gets its whole time again, and the kubelet some to notice.
                let from = later(self.now, limits::SUSPENSION_GRACE);
                if let Kubelet::Running(run) = &mut self.kubelet {
                    run.begin_anew(from);
                }
            }
            _ => {}
        }
        self.suspended = suspension;
    }

    /// Nothing was observed for a while: the machine was suspended, or we were stopped. The kubelet may
    /// have been as well, so that nothing is known of that time, neither good nor bad.
    pub(super) fn woke_up(&mut self) {
        let now = self.now;
        if !self.is_observing() {
            return;
        }
        if let Kubelet::Running(run) = &mut self.kubelet {
            run.begin_anew(now);
            run.good.values_mut().for_each(|at| *at = now);
        }
    }
}
