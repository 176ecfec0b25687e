//! What is known of the kubelet that runs, read-only: who judges it, by which signals, and what is at fault around it.
//!
//! | the record says | and there runs | it is observed as |
//! |---|---|---|
//! | on trial, or awaits confirmation | that very content | [`Role::Trial`]; it can fail if there is something else to go back to |
//! | it failed | something else | [`Role::ControlTest`]: does that fail alike? |
//! | it was cleared | something else, not yet healthy for long enough | [`Role::Recovery`] |
//! | the assignment was withdrawn | the local files | [`Role::Reset`] |
//! | anything; or an operator pinned what runs | | [`Role::Nothing`] |
//!
//! - **By which signals.** Those that were good before the change; where that is not known, healthz.
//! - **What suspends judgement.** The node on its way down, a full disk, no runtime, no API server. The last two count as the change's doing
//!   for so long as it was not yet seen to live with them: then it is judged, and put to the control test.
//!
//! The verdict follows from this in [`super::verdict`].

use std::time::Duration;

use super::clock::Clock;
use super::evidence::{Baseline, Failure, Signal, Suspension, tells_of_contact};
use super::fallback::Fallback;
use super::health::Health;
use super::process::Process;
use super::records::{Attempt, Phase, Records, Version};
use super::versions::{Versions, is_same};
use super::{Run, RunningConfig, Settings, State, ladder, limits};
use kubelet_config::digest::Digest;

/// What a verdict goes by.
pub(super) struct Judgement<'a> {
    pub(super) records: &'a Records,
    pub(super) process: &'a Process,
    pub(super) health: &'a Health,
    pub(super) settings: &'a Settings,
    pub(super) clock: &'a Clock,
    versions: &'a Versions,
    fallback: &'a Fallback,
    /// What runs was healthy for long enough to try again what was cleared.
    has_recovered: bool,
}

/// What the kubelet that runs is observed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// The version that has to prove itself runs.
    Trial {
        /// There is something else to go back to.
        can_fail: bool,
    },
    /// Last known good, in the place of what failed.
    ControlTest,
    /// The same, until what was cleared is tried again.
    Recovery,
    /// The local files, after a reset.
    Reset,
    /// Nobody judges it.
    Nothing,
}

/// How the kubelet does.
pub(super) struct Signs {
    /// It is ready, and answers healthz if it is judged by that.
    pub(super) up: bool,
    /// All is well, and it can be told: this time is earned.
    pub(super) healthy: bool,
    /// The process gives the signs of health that it gave before, on a node that is not known to be ill.
    pub(super) well: bool,
    /// It has been in contact for so long that a later loss is not the version's doing.
    pub(super) settled: bool,
}

impl State {
    /// What is known of the kubelet that runs.
    pub(super) fn judgement(&self) -> Judgement<'_> {
        Judgement {
            records: self.records(),
            process: &self.process,
            health: &self.health,
            settings: &self.settings,
            clock: &self.clock,
            versions: &self.versions,
            fallback: &self.fallback,
            has_recovered: self.trial.has_recovered(),
        }
    }
}

impl<'a> Judgement<'a> {
    /// The table above.
    pub(super) fn role(&self) -> Role {
        let reset = if self.is_reset_tried() { Role::Reset } else { Role::Nothing };
        // What failed may still be there, until the way back is prepared.
        let in_place = |attempt: &Attempt, role| {
            let is_other = attempt.version.digest.is_none() || attempt.version.digest != self.running().digest;
            if is_other { role } else { Role::Nothing }
        };
        match &self.records.phase {
            // What is pinned is not what the test is about.
            Phase::ControlTest(..) | Phase::RetryLater(..) if self.records.pin.is_some() => Role::Nothing,
            Phase::RetryLater(..) if self.has_recovered => reset,
            Phase::ControlTest(attempt, _) => in_place(attempt, Role::ControlTest),
            Phase::RetryLater(attempt, _) => in_place(attempt, Role::Recovery),
            Phase::Trial(attempt) | Phase::AwaitingConfirmation(attempt, _)
                if self.records.pin.is_none() && self.runs(&attempt.version) =>
            {
                Role::Trial { can_fail: self.can_fail(&attempt.version) }
            }
            Phase::Trial(_) | Phase::AwaitingConfirmation(..) | Phase::Settled => reset,
        }
    }

    /// True while its health matters.
    pub(super) fn is_observing(&self) -> bool {
        self.role() != Role::Nothing
    }

    /// True while it matters whether the API server sees the node: after a reset the process alone is tried.
    pub(super) fn is_contact_observed(&self) -> bool {
        self.attempt().is_some() && self.is_observing()
    }

    /// True while the version that has to prove itself runs.
    pub(super) fn is_on_trial(&self) -> bool {
        matches!(self.role(), Role::Trial { .. })
    }

    /// True if what runs is on trial, and can fail.
    pub(super) fn is_judged(&self) -> bool {
        self.role() == Role::Trial { can_fail: true }
    }

    /// True while what runs can fail: on trial, or in a control test.
    pub(super) fn is_on_test(&self) -> bool {
        matches!(self.role(), Role::Trial { can_fail: true } | Role::ControlTest)
    }

    /// True while the local files are tried, under whatever name.
    pub(super) fn is_reset_tried(&self) -> bool {
        let reset = self.records.reset.as_ref().filter(|_| self.records.pin.is_none());
        let is_open = reset.is_some_and(|reset| reset.failed.is_none());
        is_open && self.process.starts() > 0 && self.fallback.is_local(self.running())
    }

    /// True if this version or its content runs, or ran last.
    pub(super) fn runs(&self, version: &Version) -> bool {
        let running = self.running();
        is_same(Some(version), self.process.active()) || running.digest.is_some() && version.digest == running.digest
    }

    /// True if failures can be held against this version: there is something else to go back to, as far as that can be
    /// known.
    pub(super) fn can_fail(&self, version: &Version) -> bool {
        let content = self.way_back_content();
        let known = content.is_some() || !self.is_way_back_awaited();
        known && (version.digest.is_none() || content != version.digest.as_ref())
    }

    /// What would be gone back to; `None` is the local configuration.
    pub(super) fn way_back(&self) -> Option<&'a Version> {
        ladder::way_back(self.records, self.process.current_kubelet(), self.versions, self.clock)
    }

    /// The content of that, if it is known.
    pub(super) fn way_back_content(&self) -> Option<&'a Digest> {
        match self.way_back() {
            Some(version) => version.digest.as_ref(),
            None => self.fallback.local(),
        }
    }

    /// True if that is not known yet, and will be within moments.
    pub(super) fn is_way_back_awaited(&self) -> bool {
        self.is_way_back_unknown() && self.fallback.is_awaited(self.way_back())
    }

    /// True if that is not known, and it matters.
    pub(super) fn is_way_back_unknown(&self) -> bool {
        let matters = self.way_back().is_some() || self.attempt().is_some();
        matters && self.way_back_content().is_none()
    }

    /// True unless it is known that there is nothing else to go back to.
    pub(super) fn must_be_confirmed(&self, attempt: &Attempt) -> bool {
        attempt.needs_confirmation() && (self.is_judged() || self.is_way_back_awaited())
    }

    fn attempt(&self) -> Option<&'a Attempt> {
        self.records.phase.attempt()
    }

    fn running(&self) -> &'a RunningConfig {
        self.process.running()
    }

    /// True if this signal was good before the change; of healthz also where that is not known.
    pub(super) fn requires(&self, signal: Signal) -> bool {
        let here = signal != Signal::Healthz || self.running().healthz.is_some();
        let baseline: Option<&Baseline> = self.attempt().and_then(|attempt| attempt.baseline.as_ref());
        here && baseline.map_or(signal == Signal::Healthz, |baseline| baseline.contains(&signal))
    }

    /// How long a signal may be bad without a break.
    pub(super) fn patience(&self, signal: Signal) -> Duration {
        let patience = signal.patience(self.settings.isolation);
        // A busy node may be late with one ping, at any interval.
        if signal == Signal::Watchdog { patience.max(2 * self.settings.watchdog_interval()) } else { patience }
    }

    /// The runtime's socket of the configuration before the change.
    pub(super) fn runtime_socket(&self) -> Option<&'a String> {
        self.attempt().and_then(|attempt| attempt.runtime.as_ref()).or(self.running().runtime.as_ref())
    }

    /// True if it is known to be the right one.
    pub(super) fn runtime_has_answered(&self) -> bool {
        let noted = self.attempt().is_some_and(|attempt| attempt.runtime_answered);
        let answered = self.health.answered_runtime();
        noted || answered.is_some() && answered == self.runtime_socket()
    }

    /// True if the container runtime did not answer a moment ago. A socket that never answered may be a wrong guess of ours.
    pub(super) fn is_runtime_away(&self) -> bool {
        let seen = self.health.environment(self.clock);
        seen.is_some_and(|seen| seen.runtime == Some(false)) && self.runtime_has_answered()
    }

    /// True while last known good shows whether it has a runtime.
    pub(super) fn is_tested_for_runtime(&self) -> bool {
        matches!(self.records.phase, Phase::ControlTest(_, Failure::Signal(Signal::Runtime)))
    }

    /// How the kubelet does, now.
    pub(super) fn signs(&self, run: &Run) -> Signs {
        let answers = run.is_good(Signal::Healthz);
        let is_asked = self.running().healthz.is_some();
        let is_bad = |signal: Signal| self.requires(signal) && run.bad.contains_key(&signal);
        let up = run.is_ready() && (!self.requires(Signal::Healthz) || answers);
        // What was bad before is not held against the change, but earns nothing either.
        let healthy = up
            && (!is_asked || answers)
            && self.health.suspended().is_none()
            && !run.bad.keys().any(|signal| self.requires(*signal))
            && self.is_in_contact(run);
        let by_node = self.health.suspended().is_some_and(|it| it != Suspension::ApiServer) || self.is_runtime_away();
        let process_is_bad = is_bad(Signal::Healthz) || is_bad(Signal::Watchdog);
        let around = [Signal::ApiServer, Signal::Runtime];
        let settled = run.has_contact()
            && around.iter().all(|signal| !run.bad.contains_key(signal))
            && run.watched_since().is_some_and(|since| self.clock.lasted(since, limits::ATTRIBUTION));
        let well = !by_node && run.is_ready() && (!is_asked || answers) && !process_is_bad;
        Signs { up, healthy, well, settled }
    }

    /// True if the API server is known to see this node, as far as it did when the node was last proven or before the
    /// change. What was good then must have been good again before a version is proven.
    fn is_in_contact(&self, run: &Run) -> bool {
        let Some(attempt) = self.attempt().filter(|_| self.settings.api_server) else { return true };
        let good_signals = &self.records.good_signals;
        let unknown = attempt.baseline.is_none() && self.is_judged();
        let seen =
            attempt.contact_expected || unknown || attempt.baseline.iter().chain([good_signals]).any(tells_of_contact);
        // A Node that is seen not to be Ready is none, if it was when the node was last proven.
        let lost = good_signals.contains(&Signal::NodeReady) && self.health.is_node_known_unready();
        run.is_good(Signal::ApiServer) && !lost && (!seen || run.has_contact())
    }

    /// What is at fault for the kubelet's troubles, if it is not the configuration.
    pub(super) fn suspension(&self) -> Option<Suspension> {
        if let Some(environment) = self.health.environment(self.clock) {
            if environment.shutting_down {
                return Some(Suspension::ShuttingDown);
            }
            if environment.disk_full {
                return Some(Suspension::DiskFull);
            }
        }
        if self.is_runtime_away() && !self.is_attributable(Signal::Runtime) && !self.is_tested_for_runtime() {
            return Some(Suspension::Runtime);
        }
        let Some(run) = self.process.run() else {
            // Nobody asks while no kubelet runs: it is as it was when that ended.
            return self.health.suspended().filter(|it| *it == Suspension::ApiServer);
        };
        run.bad.get(&Signal::ApiServer)?;
        // A node that got an answer, and be it that the server is overloaded, is not cut off.
        let elsewhere =
            self.requires(Signal::ApiServer) && (run.was_answered || !self.is_attributable(Signal::ApiServer));
        elsewhere.then_some(Suspension::ApiServer)
    }

    /// True if the loss of this can come of the change: the version was not yet seen to live with it for a while.
    fn is_attributable(&self, signal: Signal) -> bool {
        let boot_id = self.settings.boot_id();
        let settled = self.attempt().is_none_or(|attempt| attempt.contact_boot == boot_id);
        if settled || !self.requires(signal) {
            return false;
        }
        let Some(run) = self.process.run() else { return true };
        let lost = run.bad.get(&signal).copied().unwrap_or(self.clock.now);
        let seen = signal == Signal::Runtime
            || run.good.contains_key(&Signal::Lease)
            || run.good.contains_key(&Signal::NodeReady);
        !(seen && run.is_past_attribution(lost))
    }
}
