//! systemd's watchdog (`WatchdogSec=`), as it would be without us: a kubelet that pings is relayed, so
//! that one that hangs is restarted by systemd. What pings on its own is this loop: while there is no
//! kubelet, before its first ping (kubelets before v1.32 never send one), and in a trial, which comes
//! to its own verdict on a kubelet that hangs.

use std::time::Duration;

use super::evidence::Signal;
use super::limits;
use super::model::{Moment, later};
use super::{Effect, Kubelet, State};

impl State {
    /// What the kubelet is told as `WATCHDOG_USEC`.
    pub(super) fn watchdog_interval(&self) -> Duration {
        self.settings.watchdog.unwrap_or(limits::WATCHDOG_INTERVAL)
    }

    /// How long a signal may be bad without a break.
    pub(super) fn patience(&self, signal: Signal) -> Duration {
        let patience = signal.patience(self.settings.isolation);
        // A busy node may be late with one ping, whatever the interval.
        if signal == Signal::Watchdog { patience.max(2 * self.watchdog_interval()) } else { patience }
    }

    /// True while nobody else is to ping.
    fn pings_itself(&self) -> bool {
        let Kubelet::Running(run) = &self.kubelet else { return true };
        let on_trial = self.trial.as_ref().is_some_and(|trial| !trial.adopted);
        on_trial || !run.good.contains_key(&Signal::Watchdog)
    }

    /// The kubelet pinged.
    pub(super) fn relay_ping(&self, fx: &mut Vec<Effect>) {
        if self.settings.watchdog.is_some() && matches!(self.kubelet, Kubelet::Running(_)) {
            fx.push(Effect::PingWatchdog);
        }
    }

    /// Pings, if that is due.
    pub(super) fn tick_watchdog(&mut self, fx: &mut Vec<Effect>) {
        let Some(interval) = self.settings.watchdog else { return };
        if !self.pings_itself() {
            self.ping_at = None; // at once, when it is our turn again
        } else if self.ping_at.is_none_or(|at| self.now >= at) {
            self.ping_at = Some(later(self.now, interval / 2));
            fx.push(Effect::PingWatchdog);
        }
    }

    pub(super) fn watchdog_deadline(&self) -> Option<Moment> {
        self.ping_at.filter(|_| self.kubelet != Kubelet::Gone)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Input, Run, Settings, Trial};
    use super::*;

    const INTERVAL: u64 = 20;

    fn running() -> State {
        let watchdog = Some(Duration::from_secs(INTERVAL));
        let mut state = State::new(Settings { watchdog, ..Settings::default() });
        state.kubelet = Kubelet::Running(Run { pid: 1, ready: true, ..Run::default() });
        state
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
    fn one_that_pings_is_relayed_and_missed_when_it_hangs() {
        let mut state = running();
        assert_eq!(pings_seen(&mut state, 1..40, true), [1, 5, 15, 25, 35], "its own first ping, then the kubelet's");
        assert_eq!(pings_seen(&mut state, 40..400, false), [0; 0], "systemd restarts it after 20 s");
        assert_eq!(state.deadline(), None);
    }

    #[test]
    fn a_stop_is_covered_at_once() {
        let mut state = running();
        pings_seen(&mut state, 1..30, true);
        state.kubelet = Kubelet::Stopping { kill_at: None };
        assert_eq!(pings_seen(&mut state, 34..60, false), [34, 44, 54]);
    }

    #[test]
    fn a_trial_judges_for_itself() {
        let mut state = running();
        state.trial = Some(Trial::default());
        pings_seen(&mut state, 1..30, true);
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
