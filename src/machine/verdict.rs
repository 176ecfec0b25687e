//! The verdict: what the evidence says of the kubelet that runs. A pure function of a [`Judgement`]; `trial` acts on it.
//!
//! | observed as | verdict |
//! |---|---|
//! | any that can fail | [`Verdict::Failing`]: what was good before the change is bad for too long, or the start takes too long |
//! | on trial | [`Verdict::Passed`]: healthy for the whole of the trial's time, and watched |
//! | the same, once that was so | [`Verdict::Passed`]: somebody confirmed it, and it is healthy |
//! | in a control test | [`Verdict::ToBlame`] or [`Verdict::NotToBlame`], below |
//! | cleared | [`Verdict::Recovered`]: what runs was healthy for long enough |
//! | any | [`Verdict::Waiting`]: nobody can tell yet |
//!
//! While something around the kubelet is at fault nothing fails, but for a runtime that does not come back.
//!
//! **The control test.** What failed is remembered as bad, and last known good runs in its place. Does it fail alike?
//!
//! | what failed | the version is to blame once last known good | it is not, and is tried again later, if last known good |
//! |---|---|---|
//! | the process: exits, start, healthz, pings | lived well for 30 s, and for as long as the version lived, in contact or not | fails by its process as well |
//! | the same while the API server was away, for the version and at first for last known good, too | lived for as long while that was away | fails by its process; or the server is back sooner: nobody can tell |
//! | contact with the API server | was in contact from the first question on, and healthy for 30 s | was cut off at any time |
//! | the container runtime | had one from the first look on, and was healthy for 30 s | had none at any time |
//!
//! Like is compared with like: kubelets do end for want of an API server, after 23 s (v1.20) to 140 s (v1.36).

use std::time::Duration;

use super::clock::Clock;
use super::evidence::{FailedRun, Failure, FailureFamily, Signal};
use super::judgement::{Judgement, Role};
use super::model::Moment;
use super::records::{Attempt, Phase};
use super::{Run, limits};

/// What the evidence says.
pub(super) enum Verdict {
    /// Nothing yet.
    Waiting,
    /// This counts against what runs, and what to say of it: for last known good, a failure like that of the version that failed.
    Failing(Failure, String),
    /// It has lived well for the whole of its trial, or was confirmed after that.
    Passed,
    /// Last known good lives in what the version died of.
    ToBlame,
    /// It does not; or nobody can tell.
    NotToBlame(&'static str),
    /// Last known good was healthy for long enough to try again what was cleared.
    Recovered,
}

impl Judgement<'_> {
    /// The tables above. While a failure is looked into there is none.
    pub(super) fn verdict(&self, run: &Run) -> Verdict {
        if let Some((failure, detail)) = self.is_on_test().then(|| self.failing(run)).flatten() {
            return Verdict::Failing(failure, detail);
        }
        let found = match (self.role(), &self.records.phase) {
            (Role::Trial { .. }, Phase::Trial(attempt)) => self.has_lasted(run, attempt).then_some(Verdict::Passed),
            (Role::Trial { .. }, Phase::AwaitingConfirmation(attempt, _)) => {
                let is_confirmed = !self.must_be_confirmed(attempt);
                (is_confirmed && run.healthy_since.is_some()).then_some(Verdict::Passed)
            }
            (Role::ControlTest, Phase::ControlTest(attempt, failure)) => {
                finding(*failure, attempt.failed, run, self.settings.trial_duration, self.clock)
            }
            (Role::Recovery, Phase::RetryLater(attempt, _)) => {
                let is_healthy = run.healthy_since.is_some_and(|at| self.clock.lasted(at, attempt.retry_wait()));
                is_healthy.then_some(Verdict::Recovered)
            }
            _ => None,
        };
        found.unwrap_or(Verdict::Waiting)
    }

    /// It was healthy for the whole of the trial's time, and somebody saw that. It may not be known yet whether a failure can be held
    /// against the version; but what fails is not proven.
    fn has_lasted(&self, run: &Run, attempt: &Attempt) -> bool {
        let watched = self.process.running().healthz.is_none() || run.is_watched(self.clock.now);
        let missing = self.settings.trial_duration.saturating_sub(attempt.earned);
        let is_well = watched && self.failing(run).is_none();
        is_well && run.healthy_since.is_some_and(|since| self.clock.lasted(since, missing))
    }

    /// The failure that counts now, and what to say of it: for last known good, one like that of the version that failed.
    pub(super) fn failing(&self, run: &Run) -> Option<(Failure, String)> {
        if self.health.suspended().is_some() {
            return self.runtime_given_up();
        }
        let counts = |failure: Failure| match &self.records.phase {
            Phase::ControlTest(_, before) => failure.is_like(*before),
            _ => true,
        };
        self.failures(run).into_iter().find(|(failure, _)| counts(*failure))
    }

    /// The runtime has been gone for so long that the version on trial is put to a control test for it, once.
    pub(super) fn runtime_given_up(&self) -> Option<(Failure, String)> {
        let first = self.records.phase.trial().is_some_and(|attempt| !attempt.runtime_tested);
        let is_given_up = first && self.is_judged() && self.health.is_runtime_gone(self.clock.now);
        is_given_up.then(|| (Failure::Signal(Signal::Runtime), "the container runtime does not come back".to_owned()))
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
        let breaks = self.records.phase.trial().map_or(0, |attempt| attempt.breaks);
        if self.is_on_trial() && breaks >= limits::TRIAL_BREAKS {
            let detail = format!("healthz or its pings failed {breaks} times within the trial, each time for a while");
            found.push((Failure::Signal(Signal::Healthz), detail));
        }
        let heard = run.hears_api_server(now);
        let bad = run.held_against().filter(|(signal, since)| {
            self.requires(*signal)
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

    /// The signals the trial under way judges by, and whether each is good.
    pub(super) fn trial_signals(&self) -> Vec<(Signal, bool)> {
        let Some(run) = self.process.run().filter(|_| self.is_on_trial()) else { return Vec::new() };
        let good = |signal| match signal {
            Signal::Healthz => run.is_good(signal),
            _ => !run.bad.contains_key(&signal),
        };
        Signal::ALL.into_iter().filter(|signal| self.requires(*signal)).map(|it| (it, good(it))).collect()
    }
    /// What has been bad for so long that the trial's clock stands still for it, whether or not the version can fail by that.
    pub(super) fn trial_lacks(&self) -> Vec<Signal> {
        let Some(run) = self.process.run().filter(|run| self.is_on_trial() && run.healthy_since.is_none()) else {
            return Vec::new();
        };
        let lasts = |since: &Moment| self.clock.now.since(*since) >= self.settings.start_timeout;
        run.bad.iter().filter(|(_, since)| lasts(since)).map(|(signal, _)| *signal).collect()
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
}

/// The table of the control test, but for last known good failing in the same way.
fn finding(failure: Failure, failed: FailedRun, run: &Run, trial: Duration, clock: &Clock) -> Option<Verdict> {
    let lived = |since: Option<Moment>| since.is_some_and(|since| clock.lasted(since, needed(failure, failed, trial)));
    if failure.family() == Some(FailureFamily::Process) {
        let in_outage = failed.in_outage || failed.lacked_contact && failed.control_lacked_it;
        if in_outage && run.is_good(Signal::ApiServer) {
            return Some(Verdict::NotToBlame(
                "the API server was away, and is back: nobody can tell what it would have done",
            ));
        }
        let is_alike = !in_outage || run.bad.contains_key(&Signal::ApiServer);
        return (is_alike && lived(run.well_since)).then_some(Verdict::ToBlame);
    }
    if !lived(run.healthy_since) {
        return None;
    }
    Some(match failure.family() {
        Some(FailureFamily::Contact) if failed.control_lacked_it => {
            Verdict::NotToBlame("the API server could not be reached with last known good either")
        }
        Some(FailureFamily::Runtime) if failed.control_lacked_it => {
            Verdict::NotToBlame("the container runtime did not answer with last known good either")
        }
        _ => Verdict::ToBlame,
    })
}

/// Last known good must live so long.
pub(super) fn needed(failure: Failure, failed: FailedRun, trial: Duration) -> Duration {
    let lived =
        if matches!(failure, Failure::Exits | Failure::ExitBeforeReady) { failed.lived } else { Duration::ZERO };
    (lived + limits::CONTROL_TEST).min(trial.max(limits::CONTROL_TEST))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRIAL: Duration = Duration::from_secs(600);

    fn at(seconds: u64) -> Moment {
        Moment { boot: Duration::from_secs(seconds), wall_nanos: 0 }
    }

    /// Last known good: up at 100 s, well and healthy since then; these signals are good, those are bad.
    fn control(good: &[Signal], bad: &[Signal]) -> Run {
        let up = Some(at(100));
        let since = |signals: &[Signal]| signals.iter().map(|signal| (*signal, at(100))).collect();
        Run { ready_at: up, healthy_since: up, well_since: up, good: since(good), bad: since(bad), ..Run::default() }
    }

    /// When the control test says something, and what: `blame`, `clear`, or nothing within ten minutes.
    fn said(failure: Failure, failed: FailedRun, run: &Run) -> (u64, &'static str) {
        let found = |second| finding(failure, failed, run, TRIAL, &Clock::at(at(second)));
        let first = (100..=700).find_map(|second| Some((second, found(second)?)));
        match first {
            Some((second, Verdict::ToBlame)) => (second - 100, "blame"),
            Some((second, Verdict::NotToBlame(_))) => (second - 100, "clear"),
            _ => (0, "nothing"),
        }
    }

    #[test]
    fn like_is_compared_with_like() {
        let (well, cut_off) = (control(&[Signal::ApiServer], &[]), control(&[], &[Signal::ApiServer]));
        let lived = |seconds| FailedRun { lived: Duration::from_secs(seconds), ..FailedRun::default() };
        let outage = FailedRun { in_outage: true, ..lived(140) };
        let both = FailedRun { lacked_contact: true, control_lacked_it: true, ..lived(140) };
        let alone = FailedRun { lacked_contact: true, ..lived(140) };
        let lacked = FailedRun { control_lacked_it: true, ..lived(0) };
        let (contact, runtime) = (Failure::Signal(Signal::Lease), Failure::Signal(Signal::Runtime));
        for (what, expected, failure, failed, run) in [
            ("it ended at once", (30, "blame"), Failure::ExitBeforeReady, lived(0), &well),
            ("it ended after two minutes", (170, "blame"), Failure::Exits, lived(140), &well),
            ("no test is longer than a trial", (600, "blame"), Failure::Exits, lived(9000), &well),
            ("it hung: how long it lived says nothing", (30, "blame"), Failure::StartTimeout, lived(140), &well),
            ("it ended while last known good has no contact", (170, "blame"), Failure::Exits, lived(140), &cut_off),
            ("it ended in an outage that goes on", (170, "blame"), Failure::Exits, outage, &cut_off),
            ("it ended in an outage that is over", (0, "clear"), Failure::Exits, outage, &well),
            ("it had no contact, nor had this at first", (0, "clear"), Failure::Exits, both, &well),
            ("it alone had no contact", (170, "blame"), Failure::Exits, alone, &well),
            ("cut off", (30, "blame"), contact, lived(0), &well),
            ("cut off, as this was", (30, "clear"), contact, lacked, &well),
            ("without a runtime", (30, "blame"), runtime, lived(0), &well),
            ("without a runtime, as this was", (30, "clear"), runtime, lacked, &well),
        ] {
            assert_eq!(said(failure, failed, run), expected, "{what}");
        }
        let sick = Run { well_since: None, healthy_since: None, ..well };
        assert_eq!(said(Failure::Exits, lived(0), &sick), (0, "nothing"), "it does not get well");
    }
}
