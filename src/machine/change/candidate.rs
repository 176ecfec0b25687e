//! What a rendered version amounts to: another name for what runs, something known to be bad, or a candidate; and how each
//! decision is recorded.

use crate::machine::evidence::tells_of_contact;
use crate::machine::io::Effect;
use crate::machine::model::{ConfigError, Rendered};
use crate::machine::proposal::Proposal;
use crate::machine::records::{Attempt, BadReason, BadVersion, ConfirmationWait, Phase, Version};
use crate::machine::versions::is_same;
use crate::machine::{Counter, Level, State, events};
use kubelet_config::digest::Digest;
use kubelet_config::hazard::{Acknowledged, HazardClass};
use kubelet_config::pods::PodSummary;
use kubelet_config::source::Source;

impl State {
    /// What the version amounts to: a name, something known to be bad, or a candidate.
    pub(in crate::machine) fn compare(&mut self, source: Source, mut rendered: Rendered) {
        let version = Version { source, digest: Some(rendered.digest.clone()) };
        if version.source.is_local_files() {
            self.acknowledge_local_files(&mut rendered);
        }
        if self.refuse_by_policy(&version, &rendered) {
            return;
        }
        let confirm_within = self.confirm_within(&rendered.annotations);
        if self.is_current(&version, &rendered.digest) || self.awaits_retry(&version) {
            let confirm_within = confirm_within.unwrap_or_else(|why| {
                // Equal content is not refused for its annotation.
                self.log(Level::Warn, format!("{version}: {why}; what was asked for before holds"));
                self.records().phase.attempt().and_then(|attempt| attempt.confirm_within)
            });
            return self.adopt(&version, rendered, confirm_within);
        }
        if version.source.is_local_files() && self.are_local_files_unproven() {
            return self.end_change(&version.source); // they are compared again
        }
        if version.source.is_local_files() && self.are_local_files_unseen() {
            return self.give_up_change(
                "the local files were edited before they were seen as the kubelet was started with them, so nothing could be gone \
                 back to; they are taken up once the kubelet was restarted"
                    .to_owned(),
            );
        }
        if let Some(unusable) = self.versions.unusable(&version).filter(|unusable| unusable.next.lasts(&self.clock)) {
            let (why, until) = (unusable.why.clone(), unusable.next.at());
            self.drop_change(); // it could not be started a while ago: that is not tried again before its time
            return self.postpone_until(why, until.unwrap_or(self.clock.now));
        }
        if let Err(why) = confirm_within.and(self.courtesy(&rendered.annotations)) {
            return self.reject(&Version::named(version.source), ConfigError::Load, &why);
        }
        for note in &rendered.notes {
            self.log(Level::Info, format!("{version}: {note}"));
        }
        for field in &rendered.shadowed {
            self.log(Level::Info, format!("{version}: {field} has no effect, the command line wins"));
        }
        for known in [version.clone(), Version::named(version.source.clone())] {
            // Of a name alone, only what this content would cost: fields, hazards and annotations are looked at anew.
            let stands = |bad: &BadVersion| bad.digest.is_some() || bad.stood_for == version.digest;
            let holds = |bad: &&BadVersion| bad.digest == known.digest && !bad.by_policy && stands(bad);
            let bad = self.bad_version(&known).filter(holds).cloned();
            if let Some(bad) = bad {
                return self.reject_as(BadVersion { source: known.source, digest: known.digest, ..bad });
            }
        }
        if let Some((error, message)) = self.refused_late(&rendered.digest) {
            return self.reject(&version, error, &message);
        }
        if let Some(why) = self.refused_field_problems(&rendered) {
            // Not against its content, which is the same once a field stands no longer twice.
            return self.reject(&Version::named(version.source), ConfigError::Load, &why);
        }
        if let Some((classes, why)) = self.refused_hazards(&rendered) {
            return self.refuse(classes, &version.source, &rendered, None, &why);
        }
        if self.is_accepted(&rendered.digest) {
            self.accepted(rendered);
        } else {
            self.preflight_change(rendered);
        }
    }

    /// True if this content runs, or is what is to run. What has failed may still run until the way back is prepared.
    fn is_current(&self, version: &Version, digest: &Digest) -> bool {
        let runs = self.process.run().is_some() && self.running().digest.as_ref() == Some(digest);
        let runs = runs && self.bad_version(version).is_none();
        match self.desired() {
            Some(desired) => desired.has_content(digest) || runs && self.records().assigned.is_none(),
            None => runs,
        }
    }

    /// Equal content under a new name or version: nothing is restarted, tried again or judged anew.
    fn adopt(&mut self, version: &Version, rendered: Rendered, confirm_within: Option<u64>) {
        let mut records = self.records().clone();
        let proven = is_same(Some(version), records.last_known_good.as_ref());
        let (now, boot_id, waits) = (self.clock.now, self.settings.boot_id(), self.awaits_retry(version));
        let accepts_lost_pods = accepts_lost_pods(rendered.annotations.acknowledge.as_deref());
        let runs = self.process.run().is_some() && self.running().digest.as_ref() == Some(&rendered.digest);
        match &mut records.phase {
            Phase::Trial(attempt) | Phase::AwaitingConfirmation(attempt, _)
                if attempt.version.has_content(&rendered.digest) =>
            {
                let moved = attempt.confirm_within != confirm_within;
                attempt.version = version.clone();
                (attempt.confirm_within, attempt.accepts_lost_pods) = (confirm_within, accepts_lost_pods);
                attempt.signed.clone_from(&rendered.admission.signed);
                if moved {
                    attempt.extended = None;
                }
                if moved && let Phase::AwaitingConfirmation(attempt, wait) = &mut records.phase {
                    // A new confirm-within moves the deadline.
                    match confirm_within {
                        Some(left) => *wait = ConfirmationWait::within(left, now, boot_id),
                        None => records.phase = Phase::Trial(attempt.clone()),
                    }
                }
            }
            // What waits for better times goes on waiting.
            Phase::RetryLater(attempt, _) if waits && !runs => {
                attempt.version = version.clone();
                attempt.signed.clone_from(&rendered.admission.signed);
            }
            // Last known good is on test, under whatever name: that is about the version that failed.
            Phase::ControlTest(..) if proven => {}
            phase if proven => *phase = Phase::Settled,
            phase => {
                let (version, signed) = (version.clone(), rendered.admission.signed.clone());
                let known = Attempt { accepts_lost_pods, confirm_within, tries: 1, signed, ..Attempt::new(version) };
                *phase = Phase::Trial(known);
            }
        }
        if proven {
            records.raise_sequence(rendered.admission.signed.as_ref());
        }
        records.bad.admit(&version.source);
        records.assigned = Some(version.clone());
        if self.running().digest.as_ref() == Some(&rendered.digest) {
            self.process.set_shadowed(rendered.shadowed);
            self.process.set_signed(rendered.admission.signed);
        }
        if records == *self.records() {
            return self.end_change(&version.source);
        }
        self.propose_change(records, Proposal::Adopt);
    }

    pub(super) fn record_switch(&mut self, source: Source, rendered: &Rendered) {
        let version = Version { source, digest: Some(rendered.digest.clone()) };
        let mut records = self.records().clone();
        let proven = is_same(Some(&version), records.last_known_good.as_ref());
        let before = records.phase.attempt().filter(|_| !matches!(records.phase, Phase::ControlTest(..))).cloned();
        let retried = before.as_ref().filter(|before| before.version.has_content(&rendered.digest));
        let trying = before.as_ref().filter(|_| records.phase.trial().is_some() && self.judgement().is_on_trial());
        let had_contact = |it: &Attempt| it.contact_expected || it.baseline.as_ref().is_some_and(tells_of_contact);
        let mut contact_expected = retried.into_iter().chain(trying).any(had_contact);
        let pods = self.inventory_of_change().map(|inventory| inventory.pods.iter());
        let lost_anyway = self.lost_to_any_restart(rendered);
        let is_judged_by = |pod: &&PodSummary| pod.is_live() && !lost_anyway.contains(&pod.name);
        let pods = pods.into_iter().flatten().filter(is_judged_by).map(|pod| pod.uid.clone());
        let baseline = self.baseline_for_attempt(&mut contact_expected);
        // Whatever becomes of this attempt: what was good before it must be good again before a version is proven.
        records.good_signals.extend(baseline.iter().flatten());
        let attempt = Attempt {
            tries: 1,
            baseline,
            contact_expected,
            clearances: retried.map_or(0, |before| before.clearances),
            runtime_tested: retried.is_some_and(|before| before.runtime_tested),
            confirm_within: self.confirm_within(&rendered.annotations).unwrap_or_default(),
            accepts_lost_pods: accepts_lost_pods(rendered.annotations.acknowledge.as_deref()),
            pods: pods.collect(),
            runtime: trying.and_then(|attempt| attempt.runtime.clone()).or_else(|| self.running().runtime.clone()),
            runtime_answered: self.judgement().runtime_has_answered(),
            signed: rendered.admission.signed.clone(),
            ..Attempt::new(version.clone())
        };
        if proven {
            records.raise_sequence(rendered.admission.signed.as_ref());
        }
        records.bad.admit(&version.source);
        records.phase = if proven { Phase::Settled } else { Phase::Trial(attempt) };
        records.assigned = Some(version.clone());
        self.versions.note_known(version, rendered.clone()); // what was prepared is what starts
        self.propose_change(records, Proposal::Switch);
    }

    /// The candidate will not run. Costs no restart, unless what runs was itself unproven.
    pub(super) fn reject(&mut self, version: &Version, error: ConfigError, detail: &str) {
        self.reject_as(self.bad(version, BadReason::Rejected, error, detail));
    }

    /// Held against the name, and for as long as the policy says so.
    pub(in crate::machine) fn reject_by_policy(&mut self, source: &Source, why: &str) {
        let version = Version::named(source.clone());
        let bad = self.bad(&version, BadReason::Rejected, ConfigError::Validate, why);
        self.reject_as(BadVersion { by_policy: true, ..bad });
    }

    /// What is known to be bad is so under another name as well.
    pub(super) fn reject_as(&mut self, bad: BadVersion) {
        let version = Version { source: bad.source.clone(), digest: bad.digest.clone() };
        let assigned = self.records().assigned.as_ref().map(|assigned| &assigned.source);
        // It was cleared with another binary, and this one it failed with: it is not tried again after all.
        let waits = matches!(self.records().phase, Phase::RetryLater(..));
        // Of a name it is news if the reason is another one by now.
        let is_known = |known: &BadVersion| bad.digest.is_some() || known.detail == bad.detail;
        if self.bad_version(&version).is_some_and(is_known) && assigned == Some(&version.source) && !waits {
            return self.end_change(&version.source);
        }
        let mut records = self.records().clone();
        records.bad.add(bad);
        records.assigned = Some(version.clone());
        let is_tested = matches!(records.phase, Phase::ControlTest(..));
        match records.phase.attempt_mut().filter(|attempt| is_same(Some(&attempt.version), Some(&version))) {
            Some(attempt) if !waits => attempt.version = version,
            _ if is_tested => {} // the test is about another version, and goes on
            _ => records.phase = Phase::Settled,
        }
        self.propose_change(records, Proposal::Reject);
    }

    /// A decision about the change is durable, or could not be recorded.
    pub(in crate::machine) fn change_recorded(&mut self, proposal: &Proposal, result: Result<(), String>) {
        let change = self.change.take();
        if let Err(why) = result {
            return self.postpone(why);
        }
        self.local_files.compare_anew();
        let records = self.records().clone();
        let assigned = records.assigned.as_ref();
        self.sync.handled(assigned.map(|version| &version.source));
        match (proposal, assigned) {
            (Proposal::Reject, Some(version)) => {
                self.pending.applying_since = None;
                if let Some(bad) = self.bad_version(version).cloned() {
                    self.emit(events::rejected(&version.source, &bad.detail));
                    self.effects.extend(bad.by_policy.then_some(Effect::Count(Counter::PolicyRefused)));
                }
                let hazards = change.into_iter().flat_map(|change| change.hazards);
                self.effects.extend(hazards.map(|class| Effect::Count(Counter::HazardRefused(class))));
            }
            (Proposal::Adopt, Some(version)) => {
                self.pending.applying_since = None;
                if self.active() != Some(version) && !matches!(records.phase, Phase::RetryLater(..)) {
                    self.emit(events::adopted(&version.source));
                    self.count(Counter::Adoption);
                }
            }
            (Proposal::Switch, _) => {
                self.pending.wait = None;
                if records.phase.attempt().is_none_or(|attempt| attempt.clearances == 0) {
                    self.liveness.forget_restarts();
                }
                // The way back may lead there: a file that says the same as the version is nothing to go back to.
                self.forget_local();
            }
            (Proposal::Reset, _) => self.pending.wait = None,
            _ => {}
        }
        if *proposal != Proposal::Adopt {
            self.new_decision();
        }
        self.collect();
    }
}

/// The ConfigMap says that pods may go.
pub(super) fn accepts_lost_pods(acknowledge: Option<&str>) -> bool {
    let accepted = Acknowledged::parse(acknowledge);
    [
        "maxPods",
        "podsPerCore",
        "kubeReserved",
        "systemReserved",
        "reservedSystemCPUs",
        "evictionHard",
        "evictionSoft",
        "allowedUnsafeSysctls",
        "featureGates",
    ]
    .iter()
    .any(|field| accepted.covers(field, HazardClass::Pods))
}
