//! The gate: what an accepted change waits for before it restarts the kubelet. The first of these that is so decides.
//!
//! | what is so | does not apply to | the change waits |
//! |---|---|---|
//! | the kubelet refuses it, and said so after its time | a reset | no longer: it is rejected |
//! | the turn of this node is still to come (`spread.rs`) | a reset | until then |
//! | the Node is under pressure | the way back; where what runs is unproven; a change of what may end it | for as long as that lasts |
//! | any restart would cost pods | the way back, a reset, local files; what is acknowledged | for as long as that lasts |
//! | the API server is away | a reset, local files | for as long as that lasts |
//! | the turn of this node came while the API server was away | a reset, local files | for another turn |
//! | streams of exec, attach and port-forward run | the way back, a reset | for the courtesy at the most |
//! | nothing of that | | no longer |
//!
//! - Pressure, pods and streams do not apply where no kubelet is ready: there is nothing to disturb.
//! - The node is asked everything at once, right before the switch. The answers are also the baseline of the trial. Who has not
//!   answered within six seconds holds nothing, except for the API server.
//! - While something holds the change, only that is asked for: streams each second, everything else with growing pauses.
//!   The kubelet tells of the end of a pressure by itself. Each kind of hold is told once for a version.
//! - A kubelet that starts under pressure has its first pass of the eviction manager before it admits the pods of the node, and
//!   turns nearly all of them away (pkg/kubelet/eviction/eviction_manager.go, `Admit`, v1.20.2 and v1.36.2).

use std::collections::BTreeSet;
use std::time::Duration;

use super::impact::pods_lost;
use super::wait::{Inquiry, Wait, Waiting};
use super::{Change, Stage};
use crate::machine::asks::Observation;
use crate::machine::evidence::{Baseline, Hold, NodePressure, Signal};
use crate::machine::model::{Moment, Rendered, later};
use crate::machine::records::Version;
use crate::machine::{Level, Run, State, events, limits, parse_courtesy};
use kubelet_config::digest::Digest;
use kubelet_config::hazard;
use kubelet_config::pods::PodInventory;
use kubelet_config::source::ConfigAnnotations;
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
    /// How long this ConfigMap's change waits for streams at the most.
    pub(in crate::machine) fn courtesy(&self, annotations: &ConfigAnnotations) -> Result<Duration, String> {
        let Some(text) = &annotations.courtesy else { return Ok(self.settings.courtesy) };
        let parsed = parse_courtesy(text);
        parsed.map(|courtesy| courtesy.0).map_err(|why| format!("annotation kubelet-supervisor.io/courtesy: {why}"))
    }

    /// Goes on with an accepted change, by the table above.
    pub(super) fn tick_gate(&mut self) {
        let Some(Change { source, stage: Stage::Gate(rendered), against, .. }) = &self.change else { return };
        if *against != self.running().digest {
            return self.judge_change_anew(); // it was weighed against something else
        }
        if let Some((source, (error, message))) = source.clone().zip(self.refused_late(&rendered.digest)) {
            let version = Version { source, digest: Some(rendered.digest.clone()) };
            return self.reject(&version, error, &message);
        }
        let Some(inquiry) = self.inquiry_of_change().filter(|_| self.pending_start().is_none()) else { return };
        let is_urgent = self.is_urgent(rendered);
        let pressure = self.pressure_against(rendered);
        if !is_urgent && !pressure.is_empty() {
            return self.hold(&Hold::Pressure(pressure), None);
        }
        if inquiry.is_open(&self.clock) && (inquiry.asked_everything || !is_urgent) {
            return;
        }
        let until = self.courtesy_until();
        let lost = source.as_ref().and_then(|source| pods_lost(source, rendered, &self.impacts_of_change(rendered)));
        let is_from_server = source.as_ref().is_some_and(|source| !source.is_local_files()) && self.settings.api_server;
        let is_away = is_from_server && !inquiry.good.contains(&Signal::ApiServer);
        let (asked_everything, is_stale, streams) =
            (inquiry.asked_everything, inquiry.is_stale(self.clock.now), inquiry.streams);
        let (source, rendered) = (source.clone(), rendered.clone());
        match (lost.filter(|_| !is_urgent), until, streams) {
            (Some(lost), ..) => self.hold(&lost, None),
            // What the API server assigned is not switched to while that server is away: nobody could take it back.
            _ if is_away && asked_everything => self.hold(&Hold::ApiServer, None),
            _ if asked_everything
                && source.as_ref().is_some_and(|it| self.restart_missed_turn(it, &rendered.digest)) => {}
            (None, Some(until), Some(count @ 1..)) => self.hold(&Hold::Streams(count), Some(until)),
            // A record that was on its way may have held it up since the node was asked.
            _ if !asked_everything || is_stale => self.ask_everything(),
            _ => {
                if until.is_some() && streams.is_none() {
                    let what = "exec, attach or port-forward streams cannot be seen with this container runtime";
                    let name = status::name(source.as_ref());
                    self.log(Level::Info, format!("{name}: {what}, and were not waited for"));
                }
                self.switch(source, &rendered);
            }
        }
    }

    /// True for the way back, also to what was proven before, and where no kubelet is ready that could be disturbed.
    fn is_urgent(&self, rendered: &Rendered) -> bool {
        let is_proven = self.records().proven.iter().any(|version| version.has_content(&rendered.digest));
        let is_way_back = is_proven || self.judgement().way_back_content() == Some(&rendered.digest);
        is_way_back || !self.process.run().is_some_and(Run::is_ready)
    }

    /// What the Node is under, where a change is to wait for the end of that. It does not where the pressure may be the work
    /// of what runs, or of what it changes, or where somebody accepts the loss of pods. Conditions that are not known hold nothing.
    fn pressure_against(&self, rendered: &Rendered) -> BTreeSet<NodePressure> {
        let unproven = self.records().phase.trial().is_some_and(|attempt| self.judgement().can_fail(&attempt.version));
        let accepted = hazard::accepts_any_restart(rendered.annotations.acknowledge.as_deref());
        let before = &self.running().effective;
        // Of a local file that cannot be read, nobody knows that it would change anything.
        let is_unknown = before.is_null() && !rendered.effective.is_null();
        let by_flag = self.running().ignores_eviction != rendered.ignores_eviction;
        let changes = hazard::diff(before, &rendered.effective);
        let by_field = changes.iter().any(|change| PRESSURE_FIELDS.contains(&change.top()));
        if is_unknown || unproven || accepted || by_flag || by_field {
            return BTreeSet::new();
        }
        self.health.pressure()
    }

    /// Until when streams are waited for, if they still are. A reset has nobody's annotation, and is often meant to end something.
    fn courtesy_until(&self) -> Option<Moment> {
        let Change { source: Some(_), stage: Stage::Gate(rendered), .. } = self.change.as_ref()? else { return None };
        let courtesy = self.courtesy(&rendered.annotations).ok().filter(|_| !self.is_urgent(rendered))?;
        let since = self.pending.wait.as_ref().and_then(|wait| wait.courtesy_since);
        let until = later(since.unwrap_or(self.clock.now), courtesy);
        // One that has not begun has no end to wake for.
        let is_over = since.map_or(courtesy.is_zero(), |_| self.clock.reached(until));
        (!is_over).then_some(until)
    }

    /// Asks for all that is to be known right before a switch.
    fn ask_everything(&mut self) {
        let streams = self.courtesy_until().map(|_| Observation::Streams);
        let all: Vec<Observation> = Observation::ALL.into_iter().chain(streams).collect();
        self.ask_node(&all);
        if let Some(inquiry) = self.inquiry_mut() {
            (inquiry.asked_everything, inquiry.good) = (true, Baseline::new());
        }
    }

    fn ask_node(&mut self, wanted: &[Observation]) {
        let is_ready = self.is_ready();
        let wanted = wanted.iter().copied().filter(|it| *it != Observation::Healthz || is_ready);
        let asked = wanted.filter(|observation| self.observe(*observation)).collect();
        let (now, answers_by) = (self.clock.now, self.clock.after(limits::BASELINE));
        if let Some(inquiry) = self.inquiry_mut() {
            (inquiry.asked_at, inquiry.unanswered, inquiry.asked_everything) = (Some(now), asked, false);
            (inquiry.answers_by, inquiry.streams) = (Some(answers_by), None);
        }
    }

    /// An answer, and what it shows to be good. A question that has none by its time has no good answer.
    pub(in crate::machine) fn note_baseline(&mut self, observation: Observation, signals: &[(Signal, bool)]) {
        if let Some(inquiry) = self.inquiry_mut()
            && inquiry.unanswered.remove(&observation)
        {
            inquiry.good.extend(signals.iter().filter(|(_, good)| *good).map(|(signal, _)| *signal));
        }
    }

    /// A list that fails does not say that pods which hold the change are gone.
    pub(in crate::machine) fn note_pods(&mut self, inventory: Option<&PodInventory>) {
        if let Some(inquiry) = self.inquiry_mut()
            && (inventory.is_some() || !matches!(inquiry.hold, Some(Hold::PodsLost(..))))
        {
            inquiry.inventory = inventory.cloned();
        }
    }

    pub(in crate::machine) fn streams_observed(&mut self, streams: Option<u32>) {
        if let Some(inquiry) = self.inquiry_mut()
            && inquiry.unanswered.remove(&Observation::Streams)
        {
            inquiry.streams = streams;
        }
    }

    /// The change waits for this, which is told once, and asked for when that is due.
    fn hold(&mut self, hold: &Hold, until: Option<Moment>) {
        let now = self.clock.now;
        let Some(Change { source, stage: Stage::Gate(rendered), .. }) = self.change.clone() else { return };
        let Wait { inquiry, missed_turn, courtesy_since, told_of, .. } = self.wait_of(&rendered.digest);
        if inquiry.hold.as_ref().is_none_or(|before| before.label() != hold.label()) {
            inquiry.asked_again = 0;
        }
        match hold {
            Hold::Streams(_) => *courtesy_since = courtesy_since.or(Some(now)),
            Hold::ApiServer => *missed_turn = true,
            Hold::Pressure(_) | Hold::PodsLost(..) => *courtesy_since = None, // it begins once that is over
        }
        if matches!(hold, Hold::Pressure(_)) {
            *inquiry = Inquiry::default(); // the kubelet tells of its end, and then everything is asked
        }
        (inquiry.hold, inquiry.until) = (Some(hold.clone()), until);
        let (next, is_news) = (inquiry.next_question(), told_of.insert(hold.label()));
        let is_due = next.is_some_and(|at| self.clock.reached(at));
        if let Some(inquiry) = self.inquiry_mut() {
            inquiry.asked_again += u32::from(is_due);
        }
        if is_news {
            let until = until.map(|at| timestamp(at.wall_nanos));
            self.emit(events::waiting(source.as_ref(), &hold.to_string(), until.as_deref()));
            self.collect(); // what it has overtaken: the wait may be long
        }
        match hold {
            Hold::Pressure(_) => {}
            _ if !is_due => {}
            Hold::Streams(_) => self.ask_node(&[Observation::Streams]),
            Hold::PodsLost(..) => self.ask_node(&[Observation::Pods]),
            Hold::ApiServer => self.ask_everything(),
        }
    }

    /// The wait of this content.
    pub(super) fn wait_of(&mut self, content: &Digest) -> &mut Wait {
        let first_seen = self.clock.now;
        self.pending.wait.take_if(|wait| wait.content != *content);
        self.pending.wait.get_or_insert_with(|| Wait { content: content.clone(), first_seen, ..Wait::default() })
    }

    /// What is known of the node for the change that is at the gate.
    pub(super) fn inquiry_of_change(&self) -> Option<&Inquiry> {
        self.change.as_ref()?.accepted_rendering()?;
        self.pending.wait.as_ref().map(|wait| &wait.inquiry)
    }

    fn inquiry_mut(&mut self) -> Option<&mut Inquiry> {
        self.change.as_ref()?.accepted_rendering()?;
        self.pending.wait.as_mut().map(|wait| &mut wait.inquiry)
    }

    /// What the change at the gate was last found to wait for, beside its turn.
    pub(super) fn waiting_for(&self) -> Option<&Hold> {
        self.inquiry_of_change()?.hold.as_ref()
    }

    /// What was asked of another kubelet says nothing of the next one. What holds the change does so until that is known.
    pub(in crate::machine) fn forget_answers(&mut self) {
        let Some(inquiry) = self.inquiry_mut() else { return };
        let before = std::mem::take(inquiry);
        *inquiry = match before.hold {
            Some(Hold::ApiServer) => Inquiry { unanswered: BTreeSet::new(), good: Baseline::new(), ..before },
            Some(Hold::PodsLost(..)) => Inquiry { unanswered: BTreeSet::new(), asked_everything: false, ..before },
            hold => Inquiry { hold, ..Inquiry::default() },
        };
    }

    /// The change that is held. Once the courtesy is over, the disk may be what it waits for.
    #[must_use]
    pub fn waiting(&self) -> Option<Waiting<'_>> {
        let (source, inquiry) = (&self.change.as_ref()?.source, self.inquiry_of_change()?);
        if inquiry.until.is_some_and(|until| self.clock.now >= until) && !self.writer.is_idle() {
            return None;
        }
        Some(Waiting { source: source.as_ref(), hold: inquiry.hold.as_ref()?, until: inquiry.until })
    }
}
