//! What a trial fails by: signals that were good before and are bad for too long.

use std::time::Duration;

use crate::machine::evidence::{Failure, Signal};
use crate::machine::records::Phase;
use crate::machine::{Run, State, limits};

impl State {
    /// The failure that counts now, and what to say of it: for last known good, one like that of the version that failed.
    pub(in crate::machine) fn failing(&self, run: &Run) -> Option<(Failure, String)> {
        if self.suspended().is_some() {
            return self.runtime_given_up();
        }
        let counts = |failure: Failure| match &self.records().phase {
            Phase::ControlTest(_, before) => failure.is_like(*before),
            _ => true,
        };
        self.failures(run).into_iter().find(|(failure, _)| counts(*failure))
    }

    /// What has been bad for too long, and what to say of it.
    fn failures(&self, run: &Run) -> Vec<(Failure, String)> {
        let now = self.clock.now;
        let mut found = Vec::new();
        if !run.was_up && self.clock.lasted(run.start_timeout_from, self.settings.start_timeout) {
            let waited_for = if run.is_ready() { "healthz" } else { "READY=1" };
            let seconds = self.settings.start_timeout.as_secs();
            found.push((Failure::StartTimeout, format!("the kubelet gave no {waited_for} within {seconds} s")));
        }
        let breaks = self.records().phase.trial().map_or(0, |attempt| attempt.breaks);
        if self.is_on_trial() && breaks >= limits::TRIAL_BREAKS {
            let detail = format!("healthz or its pings failed {breaks} times within the trial, each time for a while");
            found.push((Failure::Signal(Signal::Healthz), detail));
        }
        let heard = run.hears_api_server(now);
        let bad = run.held_against().filter(|(signal, since)| {
            self.is_required_signal(*signal)
                // Until it was up the start's time-out counts.
                && (*signal != Signal::Healthz || run.was_up)
                // A runtime that never answered may be a wrong guess of ours, and one that nobody could look at may be back.
                && (*signal != Signal::Runtime || self.is_runtime_away())
                // Without a runtime no Node is Ready: that failure is the runtime's.
                && (*signal != Signal::NodeReady || !self.is_runtime_away())
                // Nobody can tell how the Node does while the API server does not answer.
                && (heard || !matches!(signal, Signal::NodeReady | Signal::Lease))
                && self.clock.lasted(*since, self.patience(*signal))
        });
        found.extend(bad.map(|(signal, since)| (Failure::Signal(signal), self.describe(signal, now.since(since)))));
        found
    }

    fn describe(&self, signal: Signal, lasted: Duration) -> String {
        let lasted = lasted.as_secs();
        match signal {
            Signal::Watchdog => format!("the kubelet sent no WATCHDOG=1 for {lasted} s"),
            Signal::NodeReady => {
                // A Node that still says Ready says so of the time before.
                let message = self.health.node_message().unwrap_or("no new heartbeat");
                format!("the Node has not been Ready for {lasted} s since the change: {message}")
            }
            Signal::Lease => format!("the Node's Lease was not renewed for {lasted} s"),
            Signal::ApiServer => {
                format!("the API server could not be reached from this node for {lasted} s since the change")
            }
            Signal::Pods => format!("admission turned running pods away: {}", self.health.lost_pods().join(", ")),
            Signal::Runtime => format!("the container runtime has not answered for {lasted} s since the change"),
            Signal::Healthz => format!("healthz failed for {lasted} s without a break"),
        }
    }

    /// The signals the trial under way judges by, and whether each is good.
    #[must_use]
    pub(crate) fn trial_signals(&self) -> Vec<(Signal, bool)> {
        let Some(run) = self.process.run().filter(|_| self.is_on_trial()) else { return Vec::new() };
        let good = |signal| match signal {
            Signal::Healthz => run.is_good(signal),
            _ => !run.bad.contains_key(&signal),
        };
        Signal::ALL.into_iter().filter(|signal| self.is_required_signal(*signal)).map(|it| (it, good(it))).collect()
    }
}
