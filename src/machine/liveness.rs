//! Liveness: a kubelet that gives no sign of life, and who minds that.
//!
//! | the kubelet | who acts on one that hangs | systemd's watchdog (`WatchdogSec=`) is fed by |
//! |---|---|---|
//! | is not there, or has not said READY=1 | its start's time-out | us, until its first ping |
//! | is judged by the sign that it would lack, and nothing suspends that | the trial, or the control test | us |
//! | pings (from v1.32 on) | we, after `--hung-after`; sooner systemd, where the unit has a watchdog | its pings, passed on by the monitor |
//! | never pinged, and has answered healthz | we, after `--hung-after` | us |
//! | did neither in its life | nobody: it cannot be told from one that nobody can reach | us |
//!
//! We dump its stacks, and restart it with the same configuration.
//!
//! - **What is observed.** A kubelet that has pinged is alive while it pings: its pings stand for its sync loop. One that never
//!   pinged is asked for healthz, four times in `--hung-after` and every 15 s at most.
//! - **How long.** It must have been unresponsive at each observation for the whole of `--hung-after`. A time in which nobody observed (sleep, a
//!   supervisor that stood still) begins that anew, and so does one that finds it alive.
//! - **Who is at fault.** When the time is over the store is asked for what would be started, and then the node is observed. The restart
//!   waits while [`NoRestart`] has a reason; and if the node was ill, for the whole time again.
//! - **How often.** Each restart doubles the time that the next one takes, up to an hour; an hour of life undoes that, and a change.
//! - **What it is not.** No failure, no exit, no try: nothing is held against any version.

use std::time::Duration;

use super::asks::{Asker, Observation};
use super::evidence::{Environment, Failure, Signal, Suspension};
use super::io::{Afterwards, Effect, StoreRequest};
use super::model::{Moment, RenderError, Rendered, Verdict};
use super::pause::Growth;
use super::records::Phase;
use super::versions::is_same;
use super::{Kubelet, Level, State, events, limits};
use kubelet_config::named;

/// What is seen of the kubelet's life, and what was done about it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Liveness {
    seen: Seen,
    /// Restarts, each within an hour of life of the one before.
    restarts: u32,
    /// Our own next ping is due.
    ping_at: Option<Moment>,
}

/// What is seen of one process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Seen {
    /// Its start.
    process: Option<Moment>,
    /// When it is observed next.
    next_observation: Option<Moment>,
    /// When it was observed last.
    last_observation: Option<Moment>,
    /// It was alive at some time of its life.
    was_alive: bool,
    /// Alive at each observation since then.
    alive_since: Option<Moment>,
    /// Unresponsive at each observation since then.
    unresponsive_since: Option<Moment>,
    /// Why it was not restarted; said once.
    not_restarted: Option<NoRestart>,
    /// What would be started was loaded, and need not be again while the kubelet gives no sign of life.
    is_loaded: bool,
    /// That is other content than what runs.
    is_edited: bool,
    /// The observation of the node is waited for until then: the kubelet is restarted, or not.
    observing: Option<Moment>,
}

named! {
    /// Why a kubelet that gives no sign of life is not restarted.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum NoRestart by message {
        /// How the node does could not be found out.
        Unobserved = "the node could not be observed",
        /// The container runtime's socket is named nowhere.
        UnknownRuntime = "nobody can tell whether the container runtime answers: name its socket by --container-runtime-endpoint or containerRuntimeEndpoint",
        /// Another configuration would have to be started.
        Damaged = "what it runs is damaged in the store, and another configuration would have to be started",
        /// The store does not give the next start's content.
        Unreadable = "what it runs cannot be loaded from the store, and another configuration would have to be started",
        /// The node's policy lets it not start again.
        Forbidden = "the node's policy does not let it start again, and another configuration would have to be started",
        /// The binary was replaced, and the new one does not take what runs.
        Refused = "the kubelet's binary was replaced, and the new one refuses what runs: another configuration would have to be started",
        /// The store does not answer.
        Stalled = "the store does not answer: the disk may stall, and the kubelet wait for it",
        /// The machine is short of memory.
        Memory = "the machine is short of memory",
        /// The machine is short of process ids.
        ProcessIds = "the machine is short of process ids",
        /// What suspends a trial, too.
        Runtime = Suspension::Runtime.message(),
        /// What suspends a trial, too.
        DiskFull = Suspension::DiskFull.message(),
        /// What suspends a trial, too.
        ShuttingDown = Suspension::ShuttingDown.message(),
    }
}

impl NoRestart {
    /// What is wrong with the node, if anything is.
    fn by(seen: &Environment) -> Option<Self> {
        let is_short_of = |supply: &str, least: u64| seen.supplies.get(supply).is_some_and(|it| it.available < least);
        match seen.runtime {
            _ if seen.shutting_down => Some(Self::ShuttingDown),
            _ if seen.disk_full => Some(Self::DiskFull),
            _ if is_short_of("memory.available", limits::HUNG_MIN_MEMORY) => Some(Self::Memory),
            _ if is_short_of("pid.available", limits::HUNG_MIN_PIDS) => Some(Self::ProcessIds),
            Some(false) => Some(Self::Runtime),
            None => Some(Self::UnknownRuntime),
            Some(true) => None,
        }
    }
}

impl Seen {
    /// An observation, `most` after the one before, or that one counts for nothing. True if an hour of life is full.
    fn note(&mut self, alive: bool, now: Moment, most: Duration) -> bool {
        if self.last_observation.replace(now).is_none_or(|before| now.since(before) > most) {
            (self.alive_since, self.unresponsive_since, self.is_loaded) = (None, None, false);
        }
        if alive {
            (self.was_alive, self.unresponsive_since, self.not_restarted) = (true, None, None);
            (self.observing, self.is_loaded) = (None, false);
            return now.since(*self.alive_since.get_or_insert(now)) >= limits::HUNG_BACKOFF_RESET;
        }
        self.alive_since = None;
        if self.was_alive {
            self.unresponsive_since.get_or_insert(now);
        }
        false
    }
}

impl Liveness {
    /// True if it gave no sign of life when it was observed last.
    pub(super) fn is_unresponsive(&self) -> bool {
        self.seen.unresponsive_since.is_some()
    }

    /// Another version is switched to: it need not hang as the one before.
    pub(super) fn forget_restarts(&mut self) {
        self.restarts = 0;
    }

    /// Nobody observes it now; what was seen says nothing of what comes.
    fn stop_observing(&mut self) {
        self.seen = Seen { process: self.seen.process, was_alive: self.seen.was_alive, ..Seen::default() };
    }

    /// What is seen of this process.
    fn seen_of(&mut self, process: Moment) -> &mut Seen {
        if self.seen.process != Some(process) {
            self.seen = Seen { process: Some(process), ..Seen::default() };
        }
        &mut self.seen
    }

    /// How long it must be unresponsive.
    fn patience(&self, hung_after: Duration) -> Duration {
        Growth { first: hung_after, most: limits::HUNG_BACKOFF_MAX.max(hung_after) }.after(self.restarts)
    }
}

/// What a kubelet that does not answer is missed by.
fn missing(signal: Signal) -> &'static str {
    if signal == Signal::Watchdog { "no WATCHDOG=1" } else { "no healthz" }
}

impl State {
    /// How often it is observed.
    pub(super) fn hung_interval(&self) -> Duration {
        (self.settings.hung_after / 4).clamp(limits::HUNG_INTERVAL_MIN, limits::HUNG_INTERVAL)
    }

    /// Observes the kubelet, if that is due and nobody else comes to a verdict on one that hangs.
    pub(super) fn tick_hung(&mut self) {
        let now = self.clock.now;
        let applies = !self.settings.hung_after.is_zero() && !self.is_leaving() && !self.is_hang_judged();
        let Some(started) = self.process.run().filter(|run| applies && run.is_ready()).map(|run| run.started) else {
            self.asks.forget(Asker::HungProbe);
            self.asks.forget(Asker::HungLoad);
            return self.liveness.stop_observing();
        };
        self.liveness.seen_of(started).next_observation.get_or_insert(now);
        self.note_sign_of_life();
        if self.liveness.seen.observing.take_if(|until| self.clock.reached(*until)).is_some() {
            self.leave_running(NoRestart::Unobserved);
        }
        if self.liveness.seen.next_observation.is_none_or(|at| !self.clock.reached(at)) {
            return;
        }
        // Right after READY=1 healthz may not answer yet, and one that never did is never called hung.
        let fresh = !self.liveness.seen.was_alive && now.since(started) < self.settings.start_timeout;
        let pace = if fresh { limits::HUNG_INTERVAL_MIN } else { self.hung_interval() };
        self.liveness.seen.next_observation = Some(self.clock.after(pace));
        match self.last_ping() {
            Some(_) => self.note_observation(!self.is_watchdog_overdue()),
            None => self.probe_liveness(),
        }
    }

    /// It was seen alive, by this worker or by the one before.
    pub(super) fn note_alive(&mut self, was_alive: bool) {
        if let Some(run) = self.process.run().filter(|_| was_alive) {
            self.liveness.seen_of(run.started).was_alive = true;
        }
    }

    /// The next worker has to know of the first one.
    fn note_sign_of_life(&mut self) {
        let known = self.records().started.as_ref().is_none_or(|started| started.alive);
        if self.liveness.seen.was_alive && !known {
            self.writer.learn(|records| records.started.iter_mut().for_each(|started| started.alive = true));
            self.writer.write_soon();
        }
    }

    /// True if a trial or a control test comes to a verdict on one that gives this very sign no more: it judges by that sign, or
    /// by the time that the start takes, and nothing suspends it. Else the kubelet is restarted by us, or by systemd's watchdog.
    pub(super) fn is_hang_judged(&self) -> bool {
        let by = self.liveness_signal();
        let is_starting = self.process.run().is_some_and(|run| !run.was_up);
        let asks = match &self.records().phase {
            Phase::ControlTest(_, before) => Failure::Signal(by).is_like(*before),
            _ => true,
        };
        let judgement = self.judgement();
        judgement.is_on_test() && self.suspended().is_none() && asks && (is_starting || judgement.requires(by))
    }

    fn last_ping(&self) -> Option<Moment> {
        self.process.run().and_then(|run| run.good.get(&Signal::Watchdog)).copied()
    }

    /// A kubelet that pings does so twice in this time.
    fn is_watchdog_overdue(&self) -> bool {
        self.last_ping().is_some_and(|at| self.clock.now.since(at) >= self.settings.watchdog_interval())
    }

    /// Asks healthz, unless it is asked already; of others' questions the answers count here as well.
    fn probe_liveness(&mut self) {
        let is_open = |asker| self.asks.is_open(asker);
        let asks = is_open(Asker::HungProbe)
            || self.judgement().is_observing()
            || is_open(Asker::Observed(Observation::Healthz));
        if let Some(target) = self.running().healthz.clone().filter(|_| !asks) {
            self.ask(Asker::HungProbe, 2 * limits::PROBE_TIMEOUT, |ticket| Effect::Probe(ticket, target));
        }
    }

    /// Healthz was asked, by whomever. That it was alive while it was judged counts as well.
    pub(super) fn healthz_observed(&mut self, alive: bool) {
        self.note_alive(alive && self.is_ready());
        if self.liveness.seen.next_observation.is_some() && self.last_ping().is_none() {
            self.note_observation(alive);
        }
    }

    fn note_observation(&mut self, alive: bool) {
        let (now, pace) = (self.clock.now, self.hung_interval());
        self.liveness.seen.was_alive |= self.last_ping().is_some();
        // The next observation may be late by an answer that comes at its time-out.
        if self.liveness.seen.note(alive, now, pace + 2 * limits::PROBE_TIMEOUT) {
            self.liveness.restarts = 0; // another hang begins anew
        }
        if alive {
            self.asks.forget(Asker::HungLoad);
        }
        let patience = self.liveness.patience(self.settings.hung_after);
        let is_over = self.liveness.seen.unresponsive_since.is_some_and(|since| now.since(since) >= patience);
        let is_asked = self.liveness.seen.observing.is_some() || self.asks.is_open(Asker::HungLoad);
        if !is_over || is_asked || !self.may_restart_hung() {
            return;
        }
        if self.liveness.seen.is_loaded {
            self.observe_hung();
        } else {
            self.effects.push(Effect::Store(StoreRequest::ProbeDisk));
            self.ask_load(Asker::HungLoad, self.desired(), limits::LOAD_DEADLINE);
        }
    }

    /// False if it is gone or leaves, and while something is decided within moments that may restart it anyhow.
    fn may_restart_hung(&self) -> bool {
        let is_running = self.process.run().is_some() && !self.is_leaving();
        is_running && !self.is_change_imminent() && !self.is_reset_due()
    }

    /// What would be started was loaded; the node is observed next, so that how it does is known right before a restart.
    pub(super) fn hung_loaded(&mut self, result: Result<Rendered, RenderError>) {
        let unread = self.desired().is_some().then_some(NoRestart::Unreadable);
        let why = match &result {
            Err(RenderError::NoAnswer(_)) => Some(NoRestart::Stalled),
            Err(_) => unread,
            Ok(rendered) => Self::forbids_start(rendered).map(|_| NoRestart::Forbidden),
        };
        if let Some(why) = self.is_running_damaged().then_some(NoRestart::Damaged).or(why) {
            return self.leave_running(why);
        }
        let content = result.as_ref().ok().map(|rendered| &rendered.digest);
        let is_edited = content.is_some() && content != self.running().digest.as_ref();
        (self.liveness.seen.is_loaded, self.liveness.seen.is_edited) = (true, is_edited);
        let is_same_binary = self.process.started_kubelet() == self.process.kubelet_id();
        let unjudged = |rendered: &Rendered| !is_same_binary && !self.is_accepted(&rendered.digest);
        match result.ok().filter(|rendered| self.active().is_some() && unjudged(rendered)) {
            Some(rendered) => {
                self.ask_verdict(Asker::HungLoad, &rendered, Afterwards::Ends, limits::LAUNCH_PREFLIGHT_DEADLINE);
            }
            None => self.observe_hung(),
        }
    }

    /// What the binary that would be started says of what runs, being another one.
    pub(super) fn hung_judged(&mut self, verdict: &Verdict) {
        match verdict {
            Verdict::Load(_) | Verdict::Validate(_) => self.leave_running(NoRestart::Refused),
            Verdict::Valid(_) | Verdict::Inconclusive(_) | Verdict::NotItsFault(_) => self.observe_hung(),
        }
    }

    fn observe_hung(&mut self) {
        self.effects.push(Effect::ReadLogTail);
        self.observe(Observation::Environment);
        self.liveness.seen.observing = Some(self.clock.after(limits::QUERY_DEADLINE));
    }

    /// The node was observed: if it is well, the kubelet is restarted.
    pub(super) fn decide_hung(&mut self) {
        if self.liveness.seen.observing.take().is_none() {
            return;
        }
        match self.health.environment(&self.clock).map(NoRestart::by) {
            Some(Some(why)) => self.leave_running(why),
            Some(None) if !self.has_pinged() && self.may_restart_hung() => self.restart_hung(),
            _ => {}
        }
    }

    fn has_pinged(&self) -> bool {
        self.last_ping().is_some() && !self.is_watchdog_overdue()
    }

    /// It is not restarted now. What it does without a runtime, memory or disk says nothing of what it does with them: it is
    /// looked at anew for the whole time. Where nobody could look at the node it is asked again.
    fn leave_running(&mut self, why: NoRestart) {
        if why != NoRestart::Unobserved {
            (self.liveness.seen.unresponsive_since, self.liveness.seen.is_loaded) = (None, false);
        }
        if self.liveness.seen.not_restarted.replace(why) != Some(why) {
            let (missing, why) = (missing(self.liveness_signal()), why.message());
            self.log(Level::Warn, format!("the kubelet gives {missing}, and is not restarted: {why}"));
        }
    }

    /// The sign of life that is waited for.
    fn liveness_signal(&self) -> Signal {
        if self.last_ping().is_some() { Signal::Watchdog } else { Signal::Healthz }
    }

    fn restart_hung(&mut self) {
        let Some(since) = self.liveness.seen.unresponsive_since else { return };
        self.count_exit_after_reset(&self.running().clone(), "it hung");
        if !is_same(self.desired().as_ref(), self.active()) {
            return; // it is not restarted as it was
        }
        self.liveness.seen.unresponsive_since = None;
        let unresponsive_for = self.clock.now.since(since);
        self.liveness.restarts = self.liveness.restarts.saturating_add(1);
        let next = self.liveness.patience(self.settings.hung_after);
        let source = self.active().map(|version| version.source.clone());
        let with = if self.liveness.seen.is_edited { "its files as they are now" } else { "the same configuration" };
        let missing = missing(self.liveness_signal());
        self.emit_with_log(events::hung(source.as_ref(), missing, unresponsive_for, with, next));
        self.dump_and_stop();
    }

    /// True while nobody else is to ping: a verdict comes on a kubelet that hangs, or it has never pinged. For one that a worker before
    /// us left, and that is not gone on with, the monitor does.
    fn pings_itself(&self) -> bool {
        let Some(run) = self.process.run() else { return self.process.former().is_none() };
        !run.good.contains_key(&Signal::Watchdog) || self.is_hang_judged()
    }

    /// Pings, if that is due.
    pub(super) fn tick_watchdog(&mut self) {
        let Some(interval) = self.settings.watchdog.filter(|_| *self.kubelet() != Kubelet::Gone) else {
            return;
        };
        if !self.pings_itself() {
            self.liveness.ping_at = None; // at once, when it is our turn again
        } else if self.liveness.ping_at.is_none_or(|at| self.clock.reached(at)) {
            self.liveness.ping_at = Some(self.clock.after(interval / 2));
            self.effects.push(Effect::PingWatchdog);
        }
    }
}

#[cfg(test)]
mod tests;
