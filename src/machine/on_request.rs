//! Preflight on request: an annotation of the Node names a ConfigMap, and the node says what would become of it. It goes the
//! way of a change up to where that would be decided, and changes nothing: neither the record, nor checkpoints, nor what is
//! known of versions, nor the kubelet.

use std::sync::Arc;

use super::asks::Asker;
use super::change::impact::refused_impact;
use super::evidence::{Environment, Query};
use super::io::{Afterwards, Effect, FetchError, StoreRequest};
use super::model::{LoadTarget, RenderError, Rendered, Verdict};
use super::pause::Pause;
use super::records::{Phase, Version};
use super::{Level, Run, State, limits, payloads};
use kubelet_config::hazard;
use kubelet_config::pods::PodInventory;
use kubelet_config::policy::Admission;
use kubelet_config::preflight::{PreflightRequest, PreflightResult, PreflightStatus};
use kubelet_config::readmission::Supplies;
use kubelet_config::source::{Payload, Source};
use kubelet_config::status::PreflightAnswer;

/// What the Node is asked to judge, and its answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct OnRequest {
    /// The Node's annotations were seen.
    known: bool,
    /// The request, verbatim.
    request: Option<String>,
    /// The answer to it.
    answer: Option<PreflightStatus>,
    /// What is known of it, while it is judged.
    inquiry: Option<Inquiry>,
    /// What an inquiry was rendered to may lie on the disk.
    leaves_content: bool,
    /// When the next try is begun. What comes to nothing through no fault of the request is tried again.
    next: Pause,
}

/// A request on its way to an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Inquiry {
    stage: Stage,
    source: Source,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Stage {
    /// The policy is asked for its namespace.
    Asking(PreflightRequest),
    Fetching(PreflightRequest),
    Loading,
    Judging(Box<Rendered>),
    /// The kubelet has judged it. What runs here, and what there is left of what runs out.
    Observing(Box<Rendered>, Observed),
}

/// What is known of a candidate that the kubelet accepts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Observed {
    /// What the kubelet said of it.
    remarks: String,
    pods: Option<PodInventory>,
    supplies: Option<Supplies>,
}

impl OnRequest {
    /// True if its content lies on the disk, or may soon, and no record names it.
    pub(super) fn is_under_way(&self) -> bool {
        self.inquiry.is_some()
    }

    /// True while its content may lie on the disk.
    pub(super) fn note_content(&mut self, is_left: bool) {
        self.leaves_content = is_left;
    }

    /// What the Node is to say of what it is asked to judge.
    pub(super) fn preflight_answer(&self) -> PreflightAnswer {
        let OnRequest { known, request, answer, .. } = self;
        match (request, answer) {
            (_, Some(answer)) => PreflightAnswer::Said(Box::new(answer.clone())),
            (None, None) if *known => PreflightAnswer::None,
            _ => PreflightAnswer::AsItIs,
        }
    }

    /// The Node's annotations: what it is asked, and what it has said. The latest request counts.
    pub(super) fn preflight_requested(&mut self, request: Option<String>, shown: Option<&str>) {
        if self.known && self.request == request {
            return;
        }
        let answer = shown.and_then(PreflightStatus::parse);
        (self.known, self.inquiry) = (true, None);
        self.next.settle();
        self.answer = answer.filter(|answer| request.as_ref().is_some_and(|request| answer.answers(request)));
        self.request = request;
    }
}

impl State {
    /// Takes a request up, if there is one without an answer and nothing is more urgent.
    pub(super) fn tick_on_request(&mut self) {
        if self.is_more_urgent() {
            self.on_request.inquiry = None; // it is begun anew
            return;
        }
        if self.on_request.inquiry.is_some() {
            return;
        }
        if self.on_request.leaves_content {
            self.collect();
            if self.on_request.leaves_content {
                return; // a change has its own content there; more would pile up
            }
        }
        let is_due = !self.on_request.next.lasts(&self.clock);
        let Some(request) = self.unanswered().filter(|_| is_due) else { return };
        self.on_request.next.set(self.clock.after(limits::PREFLIGHT_REQUEST_PAUSE));
        match PreflightRequest::parse(&request) {
            Err(why) => self.answer_request(PreflightResult::Inconclusive, &format!("the request: {why}")),
            // What it is rendered to could not be removed again.
            Ok(_) if !self.is_collecting() => {
                let why = "what this node has on its disk is not known, so nothing is added to it";
                self.answer_request(PreflightResult::Inconclusive, why);
            }
            Ok(request) => {
                let namespace = request.reference.namespace.clone();
                self.ask(Asker::PreflightOnRequest, limits::STORE_DEADLINE, |ticket| {
                    Effect::Store(StoreRequest::JudgeNamespace(ticket, namespace))
                });
                let (source, stage) = (Source::default(), Stage::Asking(request));
                self.on_request.inquiry = Some(Inquiry { stage, source });
            }
        }
    }

    /// The request, unless it was answered with this kubelet.
    fn unanswered(&self) -> Option<String> {
        let OnRequest { request, answer, .. } = &self.on_request;
        let stands = |answer: &PreflightStatus| {
            let known = self.kubelet_version().filter(|_| !answer.kubelet_version.is_empty());
            known.is_none_or(|version| version == answer.kubelet_version)
        };
        request.clone().filter(|_| !answer.as_ref().is_some_and(stands))
    }

    /// True while the node has better things to do, or its kubelet is judged itself.
    fn is_more_urgent(&self) -> bool {
        let records = self.records();
        let judged = matches!(records.phase, Phase::Trial(_) | Phase::ControlTest(..)) && records.pin.is_none();
        judged
            || !self.process.run().is_some_and(Run::is_ready)
            || self.is_leaving()
            || self.trial.is_failure_pending()
            || self.is_change_imminent()
            || self.asks.is_verdict_late(&self.clock)
            || !self.launch.is_idle()
            || self.is_unsaved() && self.writer.obstacle().is_none()
    }

    /// Nothing of a ConfigMap is fetched that the policy does not let be looked at.
    pub(super) fn unassigned_permitted(&mut self, result: Result<Admission, String>) {
        let Some(Inquiry { stage: Stage::Asking(request), source }) = self.on_request.inquiry.clone() else { return };
        let admission = match result {
            Ok(admission) => admission,
            Err(why) => return self.put_off(&why),
        };
        if let Some(why) = self.unreadable_policy(&admission) {
            return self.answer_request(PreflightResult::Inconclusive, &why);
        }
        if let Some(why) = Self::namespace_refusal(admission, self.sync.is_request_by_label(&request.reference)) {
            return self.answer_request(PreflightResult::PolicyRefused, &why);
        }
        let reference = request.reference.clone();
        self.ask(Asker::PreflightOnRequest, limits::FETCH_DEADLINE, |ticket| Effect::Fetch(ticket, reference));
        self.on_request.inquiry = Some(Inquiry { stage: Stage::Fetching(request), source });
    }

    pub(super) fn config_map_fetched(&mut self, result: Result<Arc<Payload>, FetchError>) {
        let Some(Inquiry { stage: Stage::Fetching(request), .. }) = self.on_request.inquiry.clone() else { return };
        match result {
            Ok(payload) => {
                let source = payload.resolve(&request.reference);
                if !request.is_for(&source) {
                    let why = format!("what is there is another version: {source}");
                    return self.answer_request(PreflightResult::Inconclusive, &why);
                }
                if self.has_other_bytes(&source, &payload) {
                    return self.answer_request(PreflightResult::Inconclusive, &payloads::told(&source));
                }
                let target = LoadTarget::Unassigned(source.clone(), payload);
                let load = |ticket| Effect::Store(StoreRequest::Load(ticket, target));
                self.ask(Asker::PreflightOnRequest, limits::STORE_DEADLINE, load);
                self.on_request.leaves_content = true;
                self.on_request.inquiry = Some(Inquiry { stage: Stage::Loading, source });
            }
            Err(FetchError { why, definite: true }) => self.answer_request(PreflightResult::Inconclusive, &why),
            Err(FetchError { why, definite: false }) => self.put_off(&why),
        }
    }

    /// It was rendered, or could not be.
    pub(super) fn unassigned_loaded(&mut self, result: Result<Rendered, RenderError>) {
        let Some(Inquiry { stage: Stage::Loading, source }) = self.on_request.inquiry.clone() else { return };
        match result {
            Ok(rendered) => {
                let refused = self.refused_unjudged(source.clone(), &rendered);
                self.on_request.inquiry = Some(Inquiry { stage: Stage::Judging(Box::new(rendered.clone())), source });
                if let Some((result, why)) = refused {
                    return self.answer_request(result, &why);
                }
                self.ask_verdict(Asker::PreflightOnRequest, &rendered, Afterwards::Ends, limits::PREFLIGHT_DEADLINE);
            }
            Err(RenderError::NoAnswer(why)) => self.put_off(&why),
            Err(RenderError::Load(why)) => self.answer_request(PreflightResult::Invalid, &why),
            Err(RenderError::Policy(why)) => self.answer_request(PreflightResult::PolicyRefused, &why),
            Err(RenderError::Checkpoint(why) | RenderError::Internal(why) | RenderError::Unfinished(why)) => {
                self.answer_request(PreflightResult::Inconclusive, &why);
            }
        }
    }

    /// Why it would be refused before a kubelet sees it.
    fn refused_unjudged(&self, source: Source, rendered: &Rendered) -> Option<(PreflightResult, String)> {
        if let Some(why) = rendered.admission.policy.admits_nothing() {
            return Some((PreflightResult::Inconclusive, why));
        }
        if let Some(why) = self.refusal_by_policy(rendered, self.sync.is_request_by_label(&source.reference)) {
            return Some((PreflightResult::PolicyRefused, why));
        }
        let version = Version { source, digest: Some(rendered.digest.clone()) };
        let failed = self.bad_version(&version).filter(|bad| bad.digest == version.digest && !bad.by_policy);
        let asked = self.confirm_within(&rendered.annotations).and(self.courtesy(&rendered.annotations));
        let why = asked.err().or_else(|| self.refused_field_problems(rendered));
        let why = why.or_else(|| failed.map(|bad| format!("it failed on this node before: {}", bad.detail)));
        why.map(|why| (PreflightResult::Invalid, why))
    }

    /// The kubelet's verdict.
    pub(super) fn unassigned_judged(&mut self, verdict: Verdict) {
        let Some(Inquiry { stage: Stage::Judging(rendered), .. }) = self.on_request.inquiry.clone() else { return };
        match verdict {
            Verdict::Load(why) | Verdict::Validate(why) => self.answer_request(PreflightResult::Invalid, &why),
            Verdict::Inconclusive(why) | Verdict::NotItsFault(why) => {
                self.answer_request(PreflightResult::Inconclusive, &why);
            }
            Verdict::Valid(remarks) => self.weigh_cost(&rendered, remarks.join("; ")),
        }
    }

    /// What a kubelet accepts may still be refused: for hazards, or, once pods and supplies are known, for what it would cost.
    fn weigh_cost(&mut self, rendered: &Rendered, remarks: String) {
        if let Some((classes, why)) = self.refused_hazards(rendered) {
            let hazards = classes.into_iter().map(|class| class.label().to_owned()).collect();
            let status = PreflightStatus { hazards, ..self.finding(PreflightResult::Hazard, &why) };
            return self.say(status);
        }
        if self.running().digest.as_ref() == Some(&rendered.digest) {
            return self.answer_request(PreflightResult::Valid, &remarks);
        }
        for (asker, query) in [
            (Asker::PodsOnRequest, Query::Pods),
            (Asker::PreflightOnRequest, Query::Environment(self.judgement().runtime_socket().cloned())),
        ] {
            self.ask(asker, limits::FETCH_DEADLINE, |ticket| Effect::Query(ticket, query));
        }
        if let Some(inquiry) = &mut self.on_request.inquiry {
            inquiry.stage = Stage::Observing(Box::new(rendered.clone()), Observed { remarks, ..Observed::default() });
        }
    }

    /// The pods of this node.
    pub(super) fn unassigned_pods(&mut self, found: Option<PodInventory>) {
        let Some(Inquiry { stage: Stage::Observing(_, observed), .. }) = &mut self.on_request.inquiry else { return };
        if found.is_none() {
            return self.put_off("the pods of this node cannot be listed");
        }
        observed.pods = found;
        self.answer_by_pods();
    }

    /// The node around the kubelet.
    pub(super) fn unassigned_environment(&mut self, found: Environment) {
        let Some(Inquiry { stage: Stage::Observing(_, observed), .. }) = &mut self.on_request.inquiry else { return };
        observed.supplies = Some(found.supplies);
        self.answer_by_pods();
    }

    fn answer_by_pods(&mut self) {
        let Some(Inquiry { stage: Stage::Observing(rendered, observed), .. }) = &self.on_request.inquiry else {
            return;
        };
        let Observed { remarks, pods: Some(pods), supplies: Some(supplies) } = observed else { return };
        let impacts = self.impacts(rendered, Some(pods), supplies);
        let status = match refused_impact(&impacts, rendered) {
            None => {
                let told = hazard::told_impact(&impacts);
                let said: Vec<String> = told.into_iter().chain([remarks.clone()]).filter(|it| !it.is_empty()).collect();
                self.finding(PreflightResult::Valid, &said.join("; "))
            }
            Some((pods, why)) => PreflightStatus {
                pods_lost: pods.len(),
                pods: pods.into_iter().collect(),
                ..self.finding(PreflightResult::PodsLost, &why)
            },
        };
        self.say(status);
    }

    /// Nobody could tell, for a reason that may pass.
    fn put_off(&mut self, why: &str) {
        if self.on_request.next.failures() >= limits::PREFLIGHT_REQUEST_TRIES {
            return self.answer_request(PreflightResult::Inconclusive, why);
        }
        self.on_request.next.grow(limits::RETRY, &self.clock);
        self.on_request.inquiry = None;
    }

    fn answer_request(&mut self, result: PreflightResult, why: &str) {
        let status = self.finding(result, why);
        self.say(status);
    }

    /// An answer, with what is known of what was judged.
    fn finding(&self, result: PreflightResult, why: &str) -> PreflightStatus {
        let request = self.on_request.request.as_deref().unwrap_or_default();
        let mut status = PreflightStatus::new(request, result, why);
        self.kubelet_version().unwrap_or_default().clone_into(&mut status.kubelet_version);
        let Some(Inquiry { source, stage, .. }) = &self.on_request.inquiry else { return status };
        if !source.uid.is_empty() {
            status.version = format!("{}/{}", source.uid, source.resource_version);
        }
        if let Stage::Judging(rendered) | Stage::Observing(rendered, ..) = stage {
            status.digest.clone_from(&rendered.digest.0);
        }
        status
    }

    fn say(&mut self, status: PreflightStatus) {
        let (request, result) = (&status.request, status.result.as_str());
        self.log(Level::Info, format!("asked to judge {request}: {result}"));
        (self.on_request.answer, self.on_request.inquiry) = (Some(status), None);
        self.on_request.next.settle();
    }
}
