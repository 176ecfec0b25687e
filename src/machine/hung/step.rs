//! A kubelet that nobody judges is observed, and the restart of one that hangs.

use super::{NoRestart, missing};
use crate::machine::asks::Asker;
use crate::machine::evidence::{Failure, Query, Signal};
use crate::machine::io::{Effect, StoreRequest, log};
use crate::machine::model::{Moment, RenderError, Rendered, later};
use crate::machine::records::{Phase, Version};
use crate::machine::{Level, State, events, limits};
use std::time::Duration;

impl State {
    /// How often it is observed.
    fn hung_interval(&self) -> Duration {
        (self.settings.hung_after / 4).clamp(limits::HUNG_INTERVAL_MIN, limits::HUNG_INTERVAL)
    }

    /// Observes the kubelet, if that is due and nobody else comes to a verdict on one that hangs.
    pub(in crate::machine) fn tick_hung(&mut self, fx: &mut Vec<Effect>) {
        let now = self.now;
        let applies = !self.settings.hung_after.is_zero() && !self.process.is_leaving() && !self.is_hang_judged();
        let Some(started) = self.process.run().filter(|run| applies && run.is_ready()).map(|run| run.started) else {
            self.asks.forget(Asker::HungProbe);
            self.asks.forget(Asker::HungLoad);
            return self.hung.stop_observing();
        };
        self.hung.observe_process(started, now);
        self.note_sign_of_life();
        if self.hung.observing.take_if(|until| now >= *until).is_some() {
            self.leave_running(NoRestart::Unobserved, fx);
        }
        if self.hung.next_observation.is_none_or(|at| now < at) {
            return;
        }
        // Right after READY=1 healthz may not answer yet, and one that never did is never called hung.
        let fresh = !self.hung.was_alive && now.since(started) < self.settings.start_timeout;
        let pace = if fresh { limits::HUNG_INTERVAL_MIN } else { self.hung_interval() };
        self.hung.next_observation = Some(later(now, pace));
        match self.last_ping() {
            Some(_) => self.note_observation(!self.is_watchdog_overdue(), fx),
            None => self.probe_liveness(fx),
        }
    }

    /// A worker goes on with it; this is what the one before saw.
    pub(in crate::machine) fn hung_resumed(&mut self, was_alive: bool) {
        if let Some(run) = self.process.run().filter(|_| was_alive) {
            self.hung.note_alive(run.started);
        }
    }

    /// The next worker has to know of the first one.
    fn note_sign_of_life(&mut self) {
        let known = self.records().started.as_ref().is_none_or(|started| started.alive);
        if self.hung.was_alive && !known {
            self.writer.learn(|records| records.started.iter_mut().for_each(|started| started.alive = true));
            self.writer.write_soon();
        }
    }

    /// True if a trial or a control test comes to a verdict on one that gives this very sign no more: it judges by that sign, or
    /// by the time that the start takes, and nothing suspends it. Else the kubelet is restarted by us, or by systemd's watchdog.
    pub(in crate::machine) fn is_hang_judged(&self) -> bool {
        let by = self.liveness_signal();
        let is_starting = self.process.run().is_some_and(|run| !run.was_up);
        let asks = match &self.records().phase {
            Phase::ControlTest(_, before) => Failure::Signal(by).is_like(*before),
            _ => true,
        };
        self.is_on_test() && self.suspended().is_none() && asks && (is_starting || self.is_required_signal(by))
    }

    /// False if it gives no sign of life, as far as anybody looks for one that it could give.
    pub(in crate::machine) fn lives(&self) -> bool {
        let is_looked_for = !self.settings.hung_after.is_zero() && self.running().healthz.is_some();
        !is_looked_for || self.hung.was_alive && !self.hung.is_unresponsive()
    }

    fn last_ping(&self) -> Option<Moment> {
        self.process.run().and_then(|run| run.good.get(&Signal::Watchdog)).copied()
    }

    /// A kubelet that pings does so twice in this time.
    fn is_watchdog_overdue(&self) -> bool {
        self.last_ping().is_some_and(|at| self.now.since(at) >= self.watchdog_interval())
    }

    /// Asks healthz, unless it is asked already; of others' questions the answers count here as well.
    fn probe_liveness(&mut self, fx: &mut Vec<Effect>) {
        let asks = self.asks.is_open(Asker::HungProbe) || self.is_observing() || self.is_asking_healthz();
        if let Some(target) = self.running().healthz.clone().filter(|_| !asks) {
            self.ask(Asker::HungProbe, 2 * limits::PROBE_TIMEOUT, fx, |ticket| Effect::Probe(ticket, target));
        }
    }

    /// Healthz was asked, by whomever. That it was alive while it was judged counts as well.
    pub(in crate::machine) fn healthz_observed(&mut self, alive: bool, fx: &mut Vec<Effect>) {
        if let Some(run) = self.process.run().filter(|run| alive && run.is_ready()) {
            self.hung.note_alive(run.started);
        }
        if self.hung.next_observation.is_some() && self.last_ping().is_none() {
            self.note_observation(alive, fx);
        }
    }

    fn note_observation(&mut self, alive: bool, fx: &mut Vec<Effect>) {
        let (now, pace) = (self.now, self.hung_interval());
        self.hung.was_alive |= self.last_ping().is_some();
        // The next observation may be late by an answer that comes at its time-out.
        if self.hung.note(alive, now, pace + 2 * limits::PROBE_TIMEOUT) {
            self.hung.restarts = 0; // another hang begins anew
        }
        if alive {
            self.asks.forget(Asker::HungLoad);
        }
        let patience = self.hung.patience(self.settings.hung_after);
        let is_over = self.hung.unresponsive_since.is_some_and(|since| now.since(since) >= patience);
        let is_asked = self.hung.observing.is_some() || self.asks.is_open(Asker::HungLoad);
        if !is_over || is_asked || !self.may_restart_hung() {
            return;
        }
        if self.hung.is_loaded {
            self.observe_hung(fx);
        } else {
            fx.push(Effect::Store(StoreRequest::ProbeDisk));
            let target = Version::load_target(self.desired().as_ref());
            self.ask_load(Asker::HungLoad, target, limits::LOAD_DEADLINE, fx);
        }
    }

    /// False if it is gone or leaves, and while something is decided within moments that may restart it anyhow.
    fn may_restart_hung(&self) -> bool {
        let is_running = self.process.run().is_some() && !self.process.is_leaving();
        is_running && !self.is_change_imminent() && !self.is_reset_due()
    }

    /// What would be started was loaded; the node is observed next, so that how it does is known right before a restart.
    pub(in crate::machine) fn hung_loaded(&mut self, result: &Result<Rendered, RenderError>, fx: &mut Vec<Effect>) {
        let unread = self.desired().is_some().then_some(NoRestart::Unreadable);
        let why = match result {
            Err(RenderError::NoAnswer(_)) => Some(NoRestart::Stalled),
            Err(_) => unread,
            Ok(rendered) => Self::forbids_start(rendered).map(|_| NoRestart::Forbidden),
        };
        if let Some(why) = self.is_running_damaged().then_some(NoRestart::Damaged).or(why) {
            return self.leave_running(why, fx);
        }
        self.hung.is_loaded = true;
        self.observe_hung(fx);
    }

    fn observe_hung(&mut self, fx: &mut Vec<Effect>) {
        fx.push(Effect::ReadLogTail);
        self.query(Query::Environment(self.runtime_socket()), fx);
        self.hung.observing = Some(later(self.now, limits::QUERY_DEADLINE));
    }

    /// The node was observed: if it is well, the kubelet is restarted.
    pub(in crate::machine) fn decide_hung(&mut self, fx: &mut Vec<Effect>) {
        if self.hung.observing.take().is_none() {
            return;
        }
        match self.health.environment(self.now).map(NoRestart::by) {
            Some(Some(why)) => self.leave_running(why, fx),
            Some(None) if !self.has_pinged() && self.may_restart_hung() => self.restart_hung(fx),
            _ => {}
        }
    }

    fn has_pinged(&self) -> bool {
        self.last_ping().is_some() && !self.is_watchdog_overdue()
    }

    /// It is not restarted now. What it does without a runtime, memory or disk says nothing of what it does with them: it is
    /// looked at anew for the whole time. Where nobody could look at the node it is asked again.
    fn leave_running(&mut self, why: NoRestart, fx: &mut Vec<Effect>) {
        if why != NoRestart::Unobserved {
            (self.hung.unresponsive_since, self.hung.is_loaded) = (None, false);
        }
        if self.hung.not_restarted.replace(why) != Some(why) {
            let (missing, why) = (missing(self.liveness_signal()), why.message());
            log(fx, Level::Warn, format!("the kubelet gives {missing}, and is not restarted: {why}"));
        }
    }

    /// The sign of life that is waited for.
    fn liveness_signal(&self) -> Signal {
        if self.last_ping().is_some() { Signal::Watchdog } else { Signal::Healthz }
    }

    fn restart_hung(&mut self, fx: &mut Vec<Effect>) {
        let Some(since) = self.hung.unresponsive_since else { return };
        self.count_exit_after_reset(self.active().cloned().as_ref(), "as it hung", fx);
        if self.active().is_none() && self.desired().is_some() {
            return; // it is not restarted as it was
        }
        self.hung.unresponsive_since = None;
        let unresponsive_for = self.now.since(since);
        self.hung.restarts = self.hung.restarts.saturating_add(1);
        let next = self.hung.patience(self.settings.hung_after);
        let source = self.active().map(|version| version.source.clone());
        let mut event = events::hung(source.as_ref(), missing(self.liveness_signal()), unresponsive_for, next);
        event.log_tail = self.last_log_lines(usize::MAX);
        fx.push(Effect::Emit(event));
        self.dump_and_stop(fx);
    }
}
