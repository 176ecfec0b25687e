//! One node below its supervisor: kubelet, judge, disk and files, all played.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kubelet_config::digest::Digest;
use kubelet_config::flags::KubeletArgs;
use kubelet_config::own_files::DropIn;
use kubelet_config::policy::Admission;
use kubelet_config::rendering::HealthzTarget;
use kubelet_config::source::{Merge, Payload, Source};
use kubelet_supervisor::adapters::kube::KubeCluster;
use kubelet_supervisor::daemon::render::{self, configuration};
use kubelet_supervisor::machine::evidence::Environment;
use kubelet_supervisor::machine::history::HistoryEntry;
use kubelet_supervisor::machine::model::{
    Exit, KubeletId, LoadTarget, RenderError, Rendered, RunId, StartedKubelet, StateFilesFound, Verdict, Verification,
};
use kubelet_supervisor::machine::records::{RecordFile, Version};
use kubelet_supervisor::machine::{Answer, Counter, Input, Level, Records, State, Stored, Ticket};
use kubelet_supervisor::ports::{self, Checkpoint, LocalError, LocalPolicy, StoreRequest};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::watch;
use tokio::time::Instant;

use super::{Node, Outcome, Pace, Report};

/// A v1.20.2 exits within 20 ms of SIGTERM.
const STOPS: Duration = Duration::from_millis(20);

/// What will happen.
enum Coming {
    Ready(u32),
    Exit(u32, Exit),
    Judged(u64, Verdict),
}

struct Process {
    pid: u32,
    ready: bool,
    outcome: Outcome,
}

pub(super) struct StandIn {
    node: Arc<Node>,
    pace: Pace,
    cluster: KubeCluster,
    inputs: UnboundedSender<Input>,
    report: watch::Sender<Report>,
    agenda: BTreeMap<(Instant, u64), Coming>,
    counter: u64,
    process: Option<Process>,
    pids: u32,
    disk: Disk,
}

/// The store.
#[derive(Default)]
struct Disk {
    records: Records,
    checkpoints: BTreeMap<Source, Payload>,
    configurations: BTreeMap<Digest, Rendered>,
    history: Vec<HistoryEntry>,
    reported: u64,
}

impl StandIn {
    pub(super) fn new(
        node: Arc<Node>,
        pace: Pace,
        cluster: KubeCluster,
        inputs: UnboundedSender<Input>,
        report: watch::Sender<Report>,
        proven: Option<(Source, Payload)>,
    ) -> StandIn {
        let mut disk = Disk::default();
        if let Some((source, payload)) = proven {
            let version = Version::named(source.clone());
            disk.records.assigned = Some(version.clone());
            disk.records.last_known_good = Some(version);
            disk.checkpoints.insert(source, payload);
        }
        let agenda = BTreeMap::new();
        StandIn { node, pace, cluster, inputs, report, agenda, counter: 0, process: None, pids: 0, disk }
    }

    /// When something happens next.
    pub(super) fn next(&self) -> Option<Instant> {
        self.agenda.first_key_value().map(|((at, _), _)| *at)
    }

    /// The next thing that is due, if the supervisor hears of it.
    pub(super) fn happen(&mut self) -> Option<Input> {
        let due = self.agenda.first_entry().filter(|entry| entry.key().0 <= Instant::now())?;
        match due.remove() {
            Coming::Judged(ticket, verdict) => Some(Input::Answer(ticket, Answer::PreflightDone(verdict))),
            Coming::Ready(pid) => {
                let process = self.process.as_mut().filter(|process| process.pid == pid)?;
                process.ready = true;
                let outcome = process.outcome;
                self.report.send_modify(|report| *report = Report { up: true, start: u64::from(pid) });
                if outcome == Outcome::RollsBack {
                    self.schedule(self.pace.trouble, Coming::Exit(pid, Exit::Code(255)));
                }
                Some(Input::Ready)
            }
            Coming::Exit(pid, exit) => {
                self.process.take_if(|process| process.pid == pid)?;
                Some(Input::Exited(exit))
            }
        }
    }

    fn schedule(&mut self, after: Duration, coming: Coming) {
        self.counter += 1;
        self.agenda.insert((Instant::now() + after, self.counter), coming);
    }

    fn outcome(&self, path: &str) -> Outcome {
        let map = path.split('/').next().unwrap_or_default();
        self.node.control().outcomes.get(map).copied().unwrap_or_default()
    }

    fn answer(&self, input: Input) {
        let _ = self.inputs.send(input);
    }
}

impl ports::Ports for StandIn {
    fn store(&mut self) -> &mut dyn ports::Store {
        &mut self.disk
    }
    fn kubelet(&mut self) -> &mut dyn ports::Kubelet {
        self
    }
    fn preflight(&mut self) -> &mut dyn ports::Preflight {
        self
    }
    fn probe(&mut self) -> &mut dyn ports::Probe {
        self
    }
    fn host(&mut self) -> &mut dyn ports::Host {
        self
    }
    fn cluster(&mut self) -> &mut dyn ports::Cluster {
        &mut self.cluster
    }
    fn notifier(&mut self) -> &mut dyn ports::Notifier {
        self
    }
}

impl ports::Store for Disk {
    fn submit(&mut self, request: StoreRequest) -> Vec<Input> {
        vec![match request {
            StoreRequest::ReadRecords(ticket) => {
                let state = RecordFile::Read(Box::new(self.records.clone()));
                Input::Answer(ticket, Answer::RecordsRead(Box::new(Stored { state, ..Stored::empty() }), kubelet_id()))
            }
            StoreRequest::Record(ticket, records) => {
                self.records = *records;
                Input::Answer(ticket, Answer::Recorded(Ok(())))
            }
            StoreRequest::Save(ticket, source, payload) | StoreRequest::SaveAnew(ticket, source, payload) => {
                self.checkpoints.insert(source, Payload::clone(&payload));
                Input::Answer(ticket, Answer::Saved(Ok(())))
            }
            StoreRequest::Load(ticket, target) => {
                Input::Answer(ticket, Answer::Loaded(kubelet_id(), self.load(&target)))
            }
            StoreRequest::JudgeNamespace(ticket, _) => {
                Input::Answer(ticket, Answer::NamespaceJudged(Ok(Admission::default())))
            }
            StoreRequest::Verify(ticket, _) => Input::Answer(ticket, Answer::Verified(Verification::default())),
            StoreRequest::SwapStateFiles(ticket, _) => {
                Input::Answer(ticket, Answer::StateFilesSwapped(Ok(StateFilesFound::InOrder)))
            }
            StoreRequest::Append(mut entry) => {
                entry.number = self.history.last().map_or(1, |last| last.number + 1);
                self.history.push(HistoryEntry::clone(&entry));
                Input::Appended(entry, Ok(()))
            }
            StoreRequest::Unreported => {
                let unreported = self.history.iter().filter(|entry| entry.number > self.reported && !entry.local);
                return unreported.map(|entry| Input::Appended(Box::new(entry.clone()), Ok(()))).collect();
            }
            StoreRequest::ProbeDisk => return Vec::new(),
            StoreRequest::Reported(number) => {
                self.reported = number;
                return Vec::new();
            }
            StoreRequest::Collect(sources, digests) => {
                self.checkpoints.retain(|source, _| sources.contains(source));
                self.configurations.retain(|digest, _| digests.contains(digest));
                return Vec::new();
            }
        }]
    }
}

impl Disk {
    fn load(&mut self, target: &LoadTarget) -> Result<Rendered, RenderError> {
        let source = match target {
            LoadTarget::Local | LoadTarget::DryRun(None) => return rendered(None),
            LoadTarget::Unassigned(source, payload) => {
                let rendered = rendered(Some((&checkpoint(payload), source)))?;
                self.configurations.insert(rendered.digest.clone(), rendered.clone());
                return Ok(rendered);
            }
            LoadTarget::Content(digest, source) => match self.configurations.get(digest) {
                Some(known) => return Ok(known.clone()),
                None => source,
            },
            LoadTarget::Source(source) | LoadTarget::DryRun(Some(source)) => source,
        };
        let payload = self.checkpoints.get(source);
        let payload = payload.ok_or_else(|| RenderError::Checkpoint(format!("there is no checkpoint of {source}")))?;
        let rendered = rendered(Some((&checkpoint(payload), source)))?;
        if !matches!(target, LoadTarget::DryRun(_)) {
            self.configurations.insert(rendered.digest.clone(), rendered.clone());
        }
        Ok(rendered)
    }
}

fn checkpoint(payload: &Payload) -> Checkpoint {
    Checkpoint {
        dir: "/played".to_owned(),
        binary_keys: [].into(),
        files: payload.data.clone(),
        annotations: payload.annotations.clone(),
    }
}

fn rendered(checkpoint: Option<(&Checkpoint, &Source)>) -> Result<Rendered, RenderError> {
    let policy = Ok(LocalPolicy::default());
    let given = checkpoint.map(|(checkpoint, source)| render::Payload { checkpoint, source, policy: &policy });
    let out = configuration(given, None, &KubeletArgs::parse(&[]), &Files)?;
    // Nobody reads it: whose it is, the path says.
    let path = checkpoint.map(|(_, source)| format!("{}/{}", source.reference.name, source.resource_version));
    Ok(Rendered {
        digest: out.digest,
        path: path.unwrap_or_default(),
        healthz: out.healthz,
        effective: Arc::new(out.effective),
        problems: out.problems,
        annotations: checkpoint.map(|(checkpoint, _)| checkpoint.annotations.clone()).unwrap_or_default(),
        ..Rendered::default()
    })
}

fn kubelet_id() -> KubeletId {
    KubeletId("played".to_owned())
}

/// The local files.
struct Files;

impl ports::Local for Files {
    fn config(&self) -> Result<Option<(String, String)>, LocalError> {
        let text = "kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\n";
        Ok(Some((text.to_owned(), "/played".to_owned())))
    }
    fn drop_ins(&self) -> Result<Vec<DropIn>, LocalError> {
        Ok(Vec::new())
    }
    fn kubelet_id(&self) -> KubeletId {
        kubelet_id()
    }
    fn default_merge(&self) -> Merge {
        Merge::Replace
    }
}

impl ports::Kubelet for StandIn {
    fn start(&mut self, config: Option<&Rendered>) -> Vec<Input> {
        assert!(self.process.is_none(), "one kubelet at a time");
        self.pids += 1;
        let (pid, outcome) = (self.pids, config.map_or(Outcome::Good, |config| self.outcome(&config.path)));
        self.process = Some(Process { pid, ready: false, outcome });
        self.schedule(self.pace.ready, Coming::Ready(pid));
        let id = RunId { pid, started: Duration::ZERO };
        vec![Input::Started(Ok(StartedKubelet { id, ..StartedKubelet::default() }))]
    }
    fn go_on(&mut self, _run: RunId) -> Vec<Input> {
        unreachable!("no worker is replaced here")
    }
    fn stop(&mut self) {
        if let Some(Process { pid, .. }) = self.process {
            self.schedule(STOPS, Coming::Exit(pid, Exit::Code(0)));
        }
    }
    fn dump_stacks(&mut self) {
        if let Some(Process { pid, .. }) = self.process {
            self.schedule(STOPS, Coming::Exit(pid, Exit::Code(2)));
        }
    }
    fn log_tail(&self) -> Vec<String> {
        vec!["F0101 00:00:00.000000       1 server.go:1] in my words".to_owned()]
    }
}

impl ports::Preflight for StandIn {
    fn judge(&mut self, ticket: u64, candidate: &Rendered) {
        let verdict = match self.outcome(&candidate.path) {
            Outcome::Rejects => Verdict::Validate("in my words".to_owned()),
            _ => Verdict::Valid(Vec::new()),
        };
        self.agenda.retain(|_, coming| !matches!(coming, Coming::Judged(..)));
        self.schedule(self.pace.preflight, Coming::Judged(ticket, verdict));
    }
    fn self_test(&mut self) {
        self.answer(Input::KubeletVersion("v1.20.2".to_owned()));
    }
}

impl ports::Probe for StandIn {
    fn probe(&mut self, ticket: Ticket, _target: &HealthzTarget) {
        self.answer(Input::Answer(ticket, Answer::Probed(self.process.as_ref().is_some_and(|process| process.ready))));
    }
}

impl ports::Host for StandIn {
    fn observe(&mut self, ticket: Ticket, _runtime: Option<&str>) {
        self.answer(Input::Answer(ticket, Answer::EnvironmentObserved(Environment::default())));
    }
    fn observe_streams(&mut self, ticket: Ticket, _pid: u32, _runtime: Option<&str>) {
        self.answer(Input::Answer(ticket, Answer::StreamsObserved(None)));
    }
}

impl ports::Notifier for StandIn {
    fn publish(&mut self, _state: &State) {}
    fn count(&mut self, _counter: &Counter) {}
    fn answer(&mut self, _ticket: u64, _result: &Result<String, String>) {}
    fn ping_watchdog(&mut self) {}
    fn log(&mut self, _level: Level, _line: &str) {}
}
