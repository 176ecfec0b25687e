//! What the small world answers: its store, its judge, its kubelet, its API server.

use std::sync::Arc;
use std::time::Duration;

use kubelet_config::digest::Digest;
use kubelet_config::pods::PodInventory;
use kubelet_config::policy::Admission;
use kubelet_config::rendering::HealthzTarget;
use kubelet_config::source::Source;
use kubelet_supervisor::machine::evidence::{Environment, LeaseObservation, Query};
use kubelet_supervisor::machine::model::{
    KubeletId, LoadTarget, RenderError, Rendered, RunId, StartedKubelet, StateFilesFound, Verdict, Verification,
};
use kubelet_supervisor::machine::records::{RecordFile, Stored};
use kubelet_supervisor::machine::{Answer, Effect, Input, StoreRequest, Ticket};
use serde_json::json;

use super::world::{Content, PID, Process, Who, World};

impl World {
    pub fn is_silent(&self, effect: &Effect) -> bool {
        match effect {
            Effect::Store(_) => self.silent == Some(Who::Store),
            Effect::Preflight(..) => self.silent == Some(Who::Judge),
            Effect::Probe(..) | Effect::Query(..) => self.silent == Some(Who::Node),
            _ => false,
        }
    }

    pub fn carry_out(&mut self, effect: Effect) -> Option<Input> {
        match effect {
            Effect::Store(request) => self.serve(request),
            Effect::Watch(Some(_)) if self.away_since.is_none() => self.payload().map(Input::ConfigMap),
            Effect::Preflight(ticket, rendered, _) => {
                self.unjudged = false;
                let refused = rendered.digest.0 == format!("{:?}", Content::Refused);
                let verdict = if refused { Verdict::Validate("no".to_owned()) } else { Verdict::Valid(Vec::new()) };
                Some(Input::Answer(ticket, Answer::PreflightDone(verdict)))
            }
            Effect::Start(config) => Some(self.start(config.as_deref())),
            Effect::GoOn(run) => Some(Input::Started(self.go_on(run))),
            Effect::Stop | Effect::DumpStacks => {
                let at = self.now + Duration::from_millis(20);
                self.process.iter_mut().for_each(|process| process.stops_at = Some(at));
                None
            }
            Effect::Probe(ticket, _) => {
                Some(Input::Answer(ticket, Answer::Probed(self.process.as_ref().is_some_and(|it| it.ready))))
            }
            Effect::Query(ticket, query) => Some(self.observe(ticket, &query)),
            Effect::ReadLogTail => Some(Input::LogTail(Vec::new())),
            _ => None,
        }
    }

    fn observe(&mut self, ticket: Ticket, query: &Query) -> Input {
        match query {
            Query::Lease if self.away_since.is_some() => {
                Input::Answer(ticket, Answer::LeaseObserved(LeaseObservation::Unreachable("away".into())))
            }
            Query::Lease => {
                let renews = self.process.as_ref().is_some_and(|it| it.ready);
                self.renewals = (self.renewals + u8::from(renews)) % 4;
                let at = format!("2026-01-01T00:00:0{}Z", self.renewals);
                Input::Answer(ticket, Answer::LeaseObserved(LeaseObservation::Renewed(at)))
            }
            Query::Pods => {
                Input::Answer(ticket, Answer::PodsObserved(self.away_since.is_none().then(PodInventory::default)))
            }
            Query::Environment(_) => {
                let environment = Environment { runtime: Some(true), ..Environment::default() };
                Input::Answer(ticket, Answer::EnvironmentObserved(environment))
            }
            Query::Streams(..) => Input::Answer(ticket, Answer::StreamsObserved(Some(0))),
        }
    }

    fn serve(&mut self, request: StoreRequest) -> Option<Input> {
        let id = KubeletId("kubelet".to_owned());
        match request {
            StoreRequest::ReadRecords(ticket) => {
                let records = RecordFile::Read(Box::new(self.records.clone()));
                let state = if self.written { records } else { RecordFile::Absent };
                let stored = Stored { state, assigned: Ok(None), last_known_good: Ok(None), meta_changed: false };
                Some(Input::Answer(ticket, Answer::RecordsRead(Box::new(stored), id)))
            }
            StoreRequest::Record(ticket, records) => {
                self.check_proven(&records);
                (self.records, self.written) = (*records, true);
                Some(Input::Answer(ticket, Answer::Recorded(Ok(()))))
            }
            StoreRequest::Save(ticket, source, _) | StoreRequest::SaveAnew(ticket, source, _) => {
                self.checkpoints.insert(source);
                Some(Input::Answer(ticket, Answer::Saved(Ok(()))))
            }
            StoreRequest::Load(ticket, target) => {
                let loaded = self.load(&target);
                Some(Input::Answer(ticket, Answer::Loaded(id, loaded)))
            }
            StoreRequest::JudgeNamespace(ticket, _) => {
                Some(Input::Answer(ticket, Answer::NamespaceJudged(Ok(Admission::default()))))
            }
            StoreRequest::Verify(ticket, _) => Some(Input::Answer(ticket, Answer::Verified(Verification::default()))),
            StoreRequest::SwapStateFiles(ticket, _) => {
                Some(Input::Answer(ticket, Answer::StateFilesSwapped(Ok(StateFilesFound::InOrder))))
            }
            StoreRequest::Collect(sources, digests) => {
                self.checkpoints.retain(|source| sources.contains(source));
                self.contents.retain(|digest| digests.contains(digest));
                None
            }
            _ => None,
        }
    }

    fn load(&mut self, target: &LoadTarget) -> Result<Rendered, RenderError> {
        let of = |source: &Source| source.resource_version.parse().ok().and_then(|it: usize| self.versions.get(it - 1));
        let (content, kept) = match target {
            LoadTarget::Local | LoadTarget::DryRun(None) => (None, true),
            LoadTarget::Unassigned(source, _) => (of(source), true),
            LoadTarget::Source(source) | LoadTarget::DryRun(Some(source)) => {
                (of(source), self.checkpoints.contains(source))
            }
            LoadTarget::Content(digest, source) => (of(source), self.contents.contains(digest)),
        };
        if !kept {
            return Err(RenderError::Checkpoint("it is not there".to_owned()));
        }
        let digest = Digest(content.map_or("local".to_owned(), |it| format!("{it:?}")));
        let path = content.map(|it| format!("/{it:?}")).unwrap_or_default();
        if !matches!(target, LoadTarget::DryRun(_)) && content.is_some() {
            self.contents.insert(digest.clone());
        }
        Ok(Rendered {
            effective: Arc::new(json!({ "syncFrequency": digest.0 })),
            digest,
            path,
            healthz: Some(HealthzTarget { host: "127.0.0.1".into(), port: 10248 }),
            runtime: Some("unix:///run/runtime.sock".into()),
            ..Rendered::default()
        })
    }

    fn go_on(&mut self, run: RunId) -> Result<StartedKubelet, String> {
        let process = self.process.as_mut().filter(|process| process.started == run.started).ok_or("it has ended")?;
        process.left = false;
        let ready = process.ready.then_some(process.ready_at);
        Ok(StartedKubelet { id: run, adopted: true, ready })
    }

    fn start(&mut self, config: Option<&Rendered>) -> Input {
        let content = config.and_then(|config| Content::of(&config.digest.0));
        if let Some(process) = self.process.as_ref().filter(|it| it.content == content && it.stops_at.is_none()) {
            let run = RunId { pid: PID, started: process.started };
            return Input::Started(self.go_on(run));
        }
        self.check_start(content);
        let ready_at = self.now + Duration::from_millis(800);
        let dies_at = match content {
            Some(Content::Dies) => Some(ready_at + Duration::from_secs(2)),
            Some(Content::Refused) => Some(self.now + Duration::from_millis(300)),
            _ => None,
        };
        let started = self.now;
        self.lived = None;
        self.process = Some(Process { started, content, ready_at, ready: false, dies_at, stops_at: None, left: false });
        self.restarts += 1;
        Input::Started(Ok(StartedKubelet { id: RunId { pid: PID, started }, ..StartedKubelet::default() }))
    }
}
