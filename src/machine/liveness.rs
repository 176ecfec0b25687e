//! A hung kubelet outside a trial: its stacks are dumped, and it is restarted with the same configuration.
//!
//! systemd's watchdog sees to it where the unit has one and the kubelet pings (from v1.32 on): its time is the shorter one,
//! and it ends supervisor and kubelet. This is for all others, and for a unit without a watchdog.
//!
//! - **What is observed.** A kubelet that has pinged is alive while it pings: its pings stand for its sync loop. One that never
//!   pinged is asked for healthz, four times in `--hung-after` and every 15 s at most. One that did neither in its life
//!   cannot be told from one that nobody can reach, and is never called hung.
//! - **How long.** It must have been unresponsive at each observation for the whole of `--hung-after`. A time in which nobody observed (sleep, a
//!   supervisor that stood still) begins that anew, and so does one that finds it alive.
//! - **Who is at fault.** When the time is over the store is asked for what would be started, and then the node is observed. The restart
//!   waits while the machine is ill, the container runtime or the disk does not answer, or nobody can tell; and if it was so, for
//!   the whole time again.
//! - **How often.** Each restart doubles the time that the next one takes, up to an hour; an hour of life undoes that.
//! - **What it is not.** No failure, no exit, no try: nothing is held against any version. Where a trial or a control test comes
//!   to a verdict on a kubelet that hangs, that verdict stands alone.

use std::time::Duration;

use super::asks::Asker;
use super::evidence::{Environment, Failure, Query, Signal, Suspension};
use super::io::{Effect, StoreRequest};
use super::model::{Moment, RenderError, Rendered, later};
use super::records::{Phase, Version};
use super::{Level, State, events, limits};
use kubelet_config::duration;

/// What is seen of a kubelet that nobody judges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Hung {
    /// The process that is observed, by its start.
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
    /// Restarts, each within an hour of life of the one before.
    restarts: u32,
    /// What would be started was loaded, and need not be again while the kubelet gives no sign of life.
    is_loaded: bool,
    /// The observation of the node is waited for until then: the kubelet is restarted, or not.
    observing: Option<Moment>,
}

/// Why a kubelet that gives no sign of life is not restarted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NoRestart {
    /// How the node does could not be found out.
    Unobserved,
    /// The container runtime's socket is named nowhere.
    UnknownRuntime,
    /// Another configuration would have to be started.
    Damaged,
    /// The store does not give the next start's content.
    Unreadable,
    /// The node's policy lets it not start again.
    Forbidden,
    /// The store does not answer.
    Stalled,
    /// The machine is short of memory.
    Memory,
    /// The machine is short of process ids.
    ProcessIds,
    /// What also suspends a trial.
    Node(Suspension),
}

impl NoRestart {
    /// What is wrong with the node, if anything is.
    fn by(seen: &Environment) -> Option<Self> {
        let is_short_of = |supply: &str, least: u64| seen.supplies.get(supply).is_some_and(|it| it.available < least);
        match seen.runtime {
            _ if seen.shutting_down => Some(Self::Node(Suspension::ShuttingDown)),
            _ if seen.disk_full => Some(Self::Node(Suspension::DiskFull)),
            _ if is_short_of("memory.available", limits::HUNG_MIN_MEMORY) => Some(Self::Memory),
            _ if is_short_of("pid.available", limits::HUNG_MIN_PIDS) => Some(Self::ProcessIds),
            Some(false) => Some(Self::Node(Suspension::Runtime)),
            None => Some(Self::UnknownRuntime),
            Some(true) => None,
        }
    }

    fn message(self) -> &'static str {
        match self {
            Self::Unobserved => "the node could not be observed",
            Self::UnknownRuntime => {
                "nobody can tell whether the container runtime answers: name its socket by --container-runtime-endpoint or containerRuntimeEndpoint"
            }
            Self::Damaged => "what it runs is damaged in the store, and another configuration would have to be started",
            Self::Unreadable => {
                "what it runs cannot be loaded from the store, and another configuration would have to be started"
            }
            Self::Forbidden => {
                "the node's policy does not let it start again, and another configuration would have to be started"
            }
            Self::Stalled => "the store does not answer: the disk may stall, and the kubelet wait for it",
            Self::Memory => "the machine is short of memory",
            Self::ProcessIds => "the machine is short of process ids",
            Self::Node(suspension) => suspension.message(),
        }
    }
}

impl Hung {
    /// True if it gave no sign of life when it was observed last.
    pub(super) fn is_unresponsive(&self) -> bool {
        self.unresponsive_since.is_some()
    }

    /// Nobody observes it now; what was seen says nothing of what comes.
    fn stop_observing(&mut self) {
        *self = Self { process: self.process, was_alive: self.was_alive, restarts: self.restarts, ..Self::default() };
    }

    /// It is this process that is observed.
    fn observe_process(&mut self, process: Moment, now: Moment) {
        self.reset_for(process);
        self.next_observation.get_or_insert(now);
    }

    /// This process gave a sign of life.
    fn note_alive(&mut self, process: Moment) {
        self.reset_for(process);
        self.was_alive = true;
    }

    fn reset_for(&mut self, process: Moment) {
        if self.process != Some(process) {
            *self = Self { process: Some(process), restarts: self.restarts, ..Self::default() };
        }
    }

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

    /// How long it must be unresponsive.
    fn patience(&self, hung_after: Duration) -> Duration {
        duration::backoff(hung_after, limits::HUNG_BACKOFF_MAX.max(hung_after), self.restarts)
    }

    pub(super) fn deadlines(&self, due: &mut Vec<Moment>) {
        due.extend(self.next_observation.into_iter().chain(self.observing));
    }
}

/// What a kubelet that does not answer is missed by.
fn missing(signal: Signal) -> &'static str {
    if signal == Signal::Watchdog { "no WATCHDOG=1" } else { "no healthz" }
}

impl State {
    /// How often it is observed.
    fn hung_interval(&self) -> Duration {
        (self.settings.hung_after / 4).clamp(limits::HUNG_INTERVAL_MIN, limits::HUNG_INTERVAL)
    }

    /// Observes the kubelet, if that is due and nobody else comes to a verdict on one that hangs.
    pub(super) fn tick_hung(&mut self) {
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
            self.leave_running(NoRestart::Unobserved);
        }
        if self.hung.next_observation.is_none_or(|at| now < at) {
            return;
        }
        // Right after READY=1 healthz may not answer yet, and one that never did is never called hung.
        let fresh = !self.hung.was_alive && now.since(started) < self.settings.start_timeout;
        let pace = if fresh { limits::HUNG_INTERVAL_MIN } else { self.hung_interval() };
        self.hung.next_observation = Some(later(now, pace));
        match self.last_ping() {
            Some(_) => self.note_observation(!self.is_watchdog_overdue()),
            None => self.probe_liveness(),
        }
    }

    /// A worker goes on with it; this is what the one before saw.
    pub(super) fn hung_resumed(&mut self, was_alive: bool) {
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
    pub(super) fn is_hang_judged(&self) -> bool {
        let by = self.liveness_signal();
        let is_starting = self.process.run().is_some_and(|run| !run.was_up);
        let asks = match &self.records().phase {
            Phase::ControlTest(_, before) => Failure::Signal(by).is_like(*before),
            _ => true,
        };
        self.is_on_test() && self.suspended().is_none() && asks && (is_starting || self.is_required_signal(by))
    }

    /// False if it gives no sign of life, as far as anybody looks for one that it could give.
    pub(super) fn lives(&self) -> bool {
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
    fn probe_liveness(&mut self) {
        let asks = self.asks.is_open(Asker::HungProbe) || self.is_observing() || self.is_asking_healthz();
        if let Some(target) = self.running().healthz.clone().filter(|_| !asks) {
            self.ask(Asker::HungProbe, 2 * limits::PROBE_TIMEOUT, |ticket| Effect::Probe(ticket, target));
        }
    }

    /// Healthz was asked, by whomever. That it was alive while it was judged counts as well.
    pub(super) fn healthz_observed(&mut self, alive: bool) {
        if let Some(run) = self.process.run().filter(|run| alive && run.is_ready()) {
            self.hung.note_alive(run.started);
        }
        if self.hung.next_observation.is_some() && self.last_ping().is_none() {
            self.note_observation(alive);
        }
    }

    fn note_observation(&mut self, alive: bool) {
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
            self.observe_hung();
        } else {
            self.effects.push(Effect::Store(StoreRequest::ProbeDisk));
            let target = Version::load_target(self.desired().as_ref());
            self.ask_load(Asker::HungLoad, target, limits::LOAD_DEADLINE);
        }
    }

    /// False if it is gone or leaves, and while something is decided within moments that may restart it anyhow.
    fn may_restart_hung(&self) -> bool {
        let is_running = self.process.run().is_some() && !self.process.is_leaving();
        is_running && !self.is_change_imminent() && !self.is_reset_due()
    }

    /// What would be started was loaded; the node is observed next, so that how it does is known right before a restart.
    pub(super) fn hung_loaded(&mut self, result: &Result<Rendered, RenderError>) {
        let unread = self.desired().is_some().then_some(NoRestart::Unreadable);
        let why = match result {
            Err(RenderError::NoAnswer(_)) => Some(NoRestart::Stalled),
            Err(_) => unread,
            Ok(rendered) => Self::forbids_start(rendered).map(|_| NoRestart::Forbidden),
        };
        if let Some(why) = self.is_running_damaged().then_some(NoRestart::Damaged).or(why) {
            return self.leave_running(why);
        }
        self.hung.is_loaded = true;
        self.observe_hung();
    }

    fn observe_hung(&mut self) {
        self.effects.push(Effect::ReadLogTail);
        self.query(Query::Environment(self.runtime_socket()));
        self.hung.observing = Some(later(self.now, limits::QUERY_DEADLINE));
    }

    /// The node was observed: if it is well, the kubelet is restarted.
    pub(super) fn decide_hung(&mut self) {
        if self.hung.observing.take().is_none() {
            return;
        }
        match self.health.environment(self.now).map(NoRestart::by) {
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
            (self.hung.unresponsive_since, self.hung.is_loaded) = (None, false);
        }
        if self.hung.not_restarted.replace(why) != Some(why) {
            let (missing, why) = (missing(self.liveness_signal()), why.message());
            self.log(Level::Warn, format!("the kubelet gives {missing}, and is not restarted: {why}"));
        }
    }

    /// The sign of life that is waited for.
    fn liveness_signal(&self) -> Signal {
        if self.last_ping().is_some() { Signal::Watchdog } else { Signal::Healthz }
    }

    fn restart_hung(&mut self) {
        let Some(since) = self.hung.unresponsive_since else { return };
        self.count_exit_after_reset(self.active().cloned().as_ref(), "as it hung");
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
        self.emit(event);
        self.dump_and_stop();
    }
}

/// Our own pings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Watchdog {
    /// The next one is due.
    ping_at: Option<Moment>,
}

impl Watchdog {
    pub(super) fn deadline(&self) -> Option<Moment> {
        self.ping_at
    }
}

impl State {
    /// What the kubelet is told as `WATCHDOG_USEC`.
    pub(super) fn watchdog_interval(&self) -> Duration {
        self.settings.watchdog.unwrap_or(limits::WATCHDOG_INTERVAL)
    }

    /// True while nobody else is to ping: a verdict comes on a kubelet that hangs, or it has never pinged.
    fn pings_itself(&self) -> bool {
        let Some(run) = self.process.run() else { return true };
        !run.good.contains_key(&Signal::Watchdog) || self.is_hang_judged()
    }

    /// Pings, if that is due.
    pub(super) fn tick_watchdog(&mut self) {
        let Some(interval) = self.settings.watchdog else { return };
        if !self.pings_itself() {
            self.watchdog.ping_at = None; // at once, when it is our turn again
        } else if self.watchdog.ping_at.is_none_or(|at| self.now >= at) {
            self.watchdog.ping_at = Some(later(self.now, interval / 2));
            self.effects.push(Effect::PingWatchdog);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::RunningConfig;
    use crate::machine::evidence::{Baseline, Suspension};
    use crate::machine::model::Moment;
    use crate::machine::process::Process;
    use crate::machine::record_writer::RecordWriter;
    use crate::machine::records::{Attempt, Phase, Records, Version};
    use crate::machine::{Input, Run, Settings};
    use kubelet_config::source::{ConfigMapRef, Source};

    const INTERVAL: u64 = 20;

    fn running() -> State {
        let watchdog = Some(Duration::from_secs(INTERVAL));
        let mut state = State::new(Settings { watchdog, ..Settings::default() });
        run_with(&mut state, RunningConfig::default());
        state
    }

    fn run_with(state: &mut State, running: RunningConfig) {
        let run = Run { ready_at: Some(Moment::default()), ..Run::default() };
        state.process = Process::running_one(run, running);
    }

    /// Seconds at which systemd hears of us, from one to the other.
    fn pings_seen(state: &mut State, seconds: std::ops::Range<u64>, pings: bool) -> Vec<u64> {
        let mut heard = Vec::new();
        for second in seconds {
            let now = Moment { boot: Duration::from_secs(second), wall_nanos: 0 };
            let input = if pings && second % 10 == 5 { Input::Watchdog } else { Input::Tick };
            let effects = state.step(input, now);
            heard.extend(effects.iter().filter(|effect| **effect == Effect::PingWatchdog).map(|_| second));
        }
        heard
    }

    #[test]
    fn a_kubelet_that_never_pings_is_covered() {
        let mut state = running();
        assert_eq!(pings_seen(&mut state, 1..40, false), [1, 11, 21, 31]);
        assert_eq!(state.deadline(), Some(Duration::from_secs(41)), "the loop wakes up for it");
    }

    #[test]
    fn one_that_pings_is_left_to_it_and_missed_when_it_hangs() {
        let mut state = running();
        assert_eq!(pings_seen(&mut state, 1..40, true), [1], "before the kubelet's first one");
        assert_eq!(pings_seen(&mut state, 40..400, false), [0; 0], "systemd restarts it after 20 s");
        assert_eq!(state.deadline(), None);
    }

    #[test]
    fn a_stop_is_covered_at_once() {
        let mut state = running();
        pings_seen(&mut state, 1..30, true);
        let effects = state.step(Input::Shutdown, Moment { boot: Duration::from_secs(34), wall_nanos: 0 });
        assert!(effects.contains(&Effect::PingWatchdog), "{effects:?}");
        assert_eq!(pings_seen(&mut state, 35..60, false), [44, 54]);
    }

    #[test]
    fn a_trial_judges_for_itself() {
        let mut state = running();
        let reference = ConfigMapRef { namespace: "n".into(), name: "m".into(), kubelet_config_key: "k".into() };
        let version = Version::named(Source { reference, uid: "u".to_owned(), resource_version: "1".to_owned() });
        let baseline = Some(Baseline::from([Signal::Watchdog]));
        let phase = Phase::Trial(Attempt { baseline, ..Attempt::new(version.clone()) });
        let assigned = Some(version.clone());
        state.writer = RecordWriter::new(Records { assigned, phase, ..Records::default() }, None);
        run_with(&mut state, RunningConfig { version: Some(version), ..RunningConfig::default() });
        pings_seen(&mut state, 1..10, true);
        assert!(state.pings_itself());
        state.health.set_suspended(Some(Suspension::DiskFull), state.now);
        assert!(!state.pings_itself(), "nobody is judged now: systemd minds a kubelet that hangs");
        state.health.set_suspended(None, state.now);
        pings_seen(&mut state, 10..30, true);
        let heard = pings_seen(&mut state, 30..60, false);
        assert_eq!(heard.len(), 3, "{heard:?}");
    }

    #[test]
    fn without_a_watchdog_nothing_is_said() {
        let mut state = running();
        state.settings.watchdog = None;
        assert_eq!(pings_seen(&mut state, 1..60, true), [0; 0]);
        assert_eq!(state.watchdog_interval(), limits::WATCHDOG_INTERVAL);
        state.settings.watchdog = Some(Duration::from_secs(120));
        assert_eq!(state.patience(Signal::Watchdog), Duration::from_secs(240));
    }
}
