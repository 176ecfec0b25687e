//! How a change waits for a good moment, and what it does not wait for.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::Value;

use super::super::impact::refused_impact;
use super::super::{Change, Stage};
use super::{Cause, Inquiry, MomentTimes, Waiting};
use crate::machine::evidence::{Hold, NodePressure, Query};
use crate::machine::io::{Effect, log};
use crate::machine::model::{Moment, Rendered, later};
use crate::machine::{Level, Run, State, events, limits, parse_courtesy};
use kubelet_config::hazard::{self, HazardClass, Impact};
use kubelet_config::source::{ConfigAnnotations, Source};
use kubelet_config::status::{self, timestamp};

/// Fields by which the kubelet comes under pressure and out of it: a change of these may be what ends it.
const PRESSURE_FIELDS: [&str; 18] = [
    "cgroupRoot",
    "containerLogMaxFiles",
    "containerLogMaxSize",
    "enforceNodeAllocatable",
    "evictionHard",
    "evictionMaxPodGracePeriod",
    "evictionMinimumReclaim",
    "evictionPressureTransitionPeriod",
    "evictionSoft",
    "evictionSoftGracePeriod",
    "imageGCHighThresholdPercent",
    "imageGCLowThresholdPercent",
    "imageMaximumGCAge",
    "imageMinimumGCAge",
    "kubeReserved",
    "mergeDefaultEvictionSettings",
    "podPidsLimit",
    "systemReserved",
];

impl State {
    /// How long this ConfigMap's change waits for a good moment at the most.
    pub(in crate::machine) fn courtesy(&self, annotations: &ConfigAnnotations) -> Result<Duration, String> {
        let Some(text) = &annotations.courtesy else { return Ok(self.settings.courtesy) };
        let parsed = parse_courtesy(text);
        parsed.map(|courtesy| courtesy.0).map_err(|why| format!("annotation kubelet-supervisor.io/courtesy: {why}"))
    }

    /// Goes on with a change whose turn has come, once the moment is good or was waited for.
    pub(in crate::machine::change) fn await_good_moment(&mut self, fx: &mut Vec<Effect>) {
        let Some(Change { source, stage: Stage::GoodMoment(rendered, _), .. }) = &self.change else { return };
        let (source, rendered) = (source.clone(), rendered.clone());
        if self.is_urgent(&rendered) {
            return self.take_baseline(rendered, fx);
        }
        let impacts = self.impacts_of_change(&rendered);
        let (now, lasting) = (self.now, self.lasting_hold(source.as_ref(), &rendered, &impacts));
        let times = self.moment_times(source.as_ref());
        let since = times.since;
        if let Some(lasting) = lasting {
            times.since = now; // the courtesy begins once that is over
            if let (Hold::Pressure(_), Some(change)) = (&lasting, &mut self.change) {
                change.inventory = None; // nobody asks for the pods meanwhile
            }
            self.hold(lasting, None, fx);
            if self.inquiry_of_change().is_some_and(|inquiry| inquiry.is_for_pods()) {
                self.ask_for_pods(fx);
            }
            return;
        }
        if let Some(inquiry) = self.inquiry_of_change().filter(|inquiry| inquiry.until.is_none()) {
            inquiry.hold = None; // what lasted is over
        }
        // A reset has nobody's annotation, and is often meant to end something.
        let courtesy = self.courtesy(&rendered.annotations).ok().filter(|_| source.is_some());
        let until = later(since, courtesy.unwrap_or_default());
        if now < until && self.is_held_by_streams(until, fx) {
            return;
        }
        self.tell_unknown(source.as_ref(), fx);
        self.take_baseline(rendered, fx);
    }

    /// The way back, also to what was proven before, waits for nothing; nor does anything where there is no kubelet that could be disturbed.
    fn is_urgent(&self, rendered: &Rendered) -> bool {
        let is_proven = self.records().proven.iter().any(|version| version.has_content(&rendered.digest));
        let is_way_back = is_proven || self.fallback_content() == Some(&rendered.digest);
        is_way_back || !self.process.run().is_some_and(Run::is_ready)
    }

    /// What the Node is under, where a change is to wait for the end of that. It does not where the pressure may be the work
    /// of what runs, or of what it changes, or where somebody accepts the loss of pods. Conditions that are not known hold nothing.
    fn pressure_against(&self, rendered: &Rendered) -> BTreeSet<NodePressure> {
        let unproven = self.records().phase.trial().is_some_and(|attempt| self.is_judged_content(&attempt.version));
        let accepted = hazard::accepts_any_restart(rendered.annotations.acknowledge.as_deref());
        let before = &self.running().effective;
        let by_flag = self.running().ignores_eviction != rendered.ignores_eviction;
        if before.is_null() || unproven || accepted || by_flag || changes_pressure(before, &rendered.effective) {
            return BTreeSet::new();
        }
        self.health.pressure()
    }

    /// What it waits for however long that takes.
    fn lasting_hold(&self, source: Option<&Source>, rendered: &Rendered, impacts: &[Impact]) -> Option<Hold> {
        let pressure = self.pressure_against(rendered);
        if !pressure.is_empty() {
            return Some(Hold::Pressure(pressure));
        }
        pods_lost(source?, rendered, impacts)
    }

    /// True if there is such a thing, now that the baseline is known.
    pub(in crate::machine::change) fn has_lasting_hold(
        &self,
        source: Option<&Source>,
        rendered: &Rendered,
        impacts: &[Impact],
    ) -> bool {
        !self.is_urgent(rendered) && self.lasting_hold(source, rendered, impacts).is_some()
    }

    fn ask_for_pods(&mut self, fx: &mut Vec<Effect>) {
        let now = self.now;
        if let Some(inquiry) = self.inquiry_of_change().filter(|inquiry| inquiry.pods_are_due(now)) {
            (inquiry.pods_asked_at, inquiry.awaits_pods) = (Some(now), true);
            self.query(Query::Pods, fx);
        }
    }

    /// True while streams run, or may. It is asked anew every second.
    fn is_held_by_streams(&mut self, until: Moment, fx: &mut Vec<Effect>) -> bool {
        let now = self.now;
        let Some(inquiry) = self.inquiry_of_change() else { return false };
        if let Some(asked_at) = inquiry.asked_at {
            if inquiry.is_open() && now < later(asked_at, limits::GOOD_MOMENT_PATIENCE) {
                return true;
            }
            // Who has not answered by now knows nothing that would hold the change.
            inquiry.awaits_pods = false;
            if std::mem::take(&mut inquiry.awaits_streams) {
                inquiry.streams = None;
            }
            let Some(count) = inquiry.streams.filter(|count| *count > 0) else { return false };
            self.hold(Hold::Streams(count), Some(until), fx);
            if now < later(asked_at, limits::GOOD_MOMENT_INTERVAL) {
                return true;
            }
        }
        self.ask_for_streams(fx);
        true
    }

    fn ask_for_streams(&mut self, fx: &mut Vec<Effect>) {
        let (now, pid, runtime) = (self.now, self.pid(), self.runtime_socket());
        let (Some(pid), Some(inquiry)) = (pid, self.inquiry_of_change()) else { return };
        (inquiry.asked_at, inquiry.awaits_streams) = (Some(now), true);
        self.ask_for_pods(fx);
        self.query(Query::Streams(pid, runtime), fx);
    }

    pub(in crate::machine) fn streams_observed(&mut self, streams: Option<u32>) {
        if let Some(inquiry) = self.inquiry_of_change() {
            (inquiry.awaits_streams, inquiry.streams) = (false, streams);
        }
    }

    /// The change waits for this, and that is told once.
    fn hold(&mut self, hold: Hold, until: Option<Moment>, fx: &mut Vec<Effect>) {
        let (why, cause) = (hold.to_string(), Cause::of(&hold));
        if let Some(inquiry) = self.inquiry_of_change() {
            let begins = !inquiry.is_holding();
            if until.is_none() {
                inquiry.forget_streams();
            }
            (inquiry.hold, inquiry.until) = (Some(hold), until);
            if begins {
                self.collect(fx); // what it has overtaken: the wait may be long
            }
        }
        let Some(MomentTimes { source, told_of, .. }) = &mut self.pending.good_moment else { return };
        if told_of.insert(cause) {
            let until = until.map(|at| timestamp(at.wall_nanos));
            fx.push(Effect::Emit(events::waiting(source.as_ref(), &why, until.as_deref())));
        }
    }

    /// What could not be known held nothing; that is said.
    fn tell_unknown(&mut self, source: Option<&Source>, fx: &mut Vec<Effect>) {
        let Some(Inquiry { asked_at: Some(_), streams: None, .. }) = self.inquiry_of_change() else { return };
        let what = "exec, attach or port-forward streams cannot be seen with this container runtime";
        log(fx, Level::Info, format!("{}: {what}, and were not waited for", status::name(source)));
    }

    fn inquiry_of_change(&mut self) -> Option<&mut Inquiry> {
        match &mut self.change.as_mut()?.stage {
            Stage::GoodMoment(_, inquiry) => Some(inquiry),
            _ => None,
        }
    }

    /// The wait of this version, which a kubelet that dies or an operator's freeze does not begin anew.
    fn moment_times(&mut self, source: Option<&Source>) -> &mut MomentTimes {
        let now = self.now;
        let times = &mut self.pending.good_moment;
        times.take_if(|times| times.source.as_ref() != source);
        times.get_or_insert_with(|| MomentTimes { source: source.cloned(), since: now, told_of: BTreeSet::new() })
    }

    /// The version is switched to, or not asked for any more: if it is ever taken up again, it waits anew.
    pub(in crate::machine::change) fn forget_good_moment(&mut self) {
        self.pending.good_moment = None;
    }

    /// The change that waits for a good moment. Once its time is over, the disk may be what it waits for.
    #[must_use]
    pub fn waiting(&self) -> Option<Waiting<'_>> {
        let Change { source, stage: Stage::GoodMoment(_, inquiry), .. } = self.change.as_ref()? else { return None };
        if inquiry.until.is_some_and(|until| self.now >= until) && !self.writer.is_idle() {
            return None;
        }
        Some(Waiting { source: source.as_ref(), hold: inquiry.hold.as_ref()?, until: inquiry.until })
    }
}

/// The pods that any restart would cost, unless that is accepted. A reset (no source) and the local files have nothing that
/// could accept it, and are told of alone. What the change would cost itself refuses it, and is looked at first.
fn pods_lost(source: &Source, rendered: &Rendered, impacts: &[Impact]) -> Option<Hold> {
    let pods: Vec<String> = hazard::lost_to_any_restart(impacts).into_iter().map(ToString::to_string).collect();
    let accepted = hazard::accepts_any_restart(rendered.annotations.acknowledge.as_deref());
    if pods.is_empty() || accepted || source.is_local_files() || refused_impact(impacts, rendered).is_some() {
        return None;
    }
    let how = "annotation kubelet-supervisor.io/acknowledge: pods";
    Some(Hold::PodsLost(pods, rendered.admission.lets_acknowledge(HazardClass::Pods).then_some(how)))
}

fn changes_pressure(before: &Value, after: &Value) -> bool {
    PRESSURE_FIELDS.iter().any(|field| before.get(field) != after.get(field))
}
