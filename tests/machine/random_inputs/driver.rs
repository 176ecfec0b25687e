//! The machine, the world around it, and an independent account of what it may do.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use kubelet_config::assignment::Assignment;
use kubelet_config::digest::Digest;
use kubelet_config::pods::PodInventory;
use kubelet_config::policy::Admission;
use kubelet_config::source::Source;
use kubelet_supervisor::machine::evidence::{LeaseObservation, Query};
use kubelet_supervisor::machine::model::{
    Beginning, Exit, KubeletId, LoadTarget, Moment, RenderError, Rendered, RunId, StartedKubelet, StateFilesFound,
    Verification,
};
use kubelet_supervisor::machine::records::{RecordFile, Records, Stored, Version};
use kubelet_supervisor::machine::{Answer, Effect, Input, Settings, State, Ticket, limits};
use kubelet_supervisor::ports::StoreRequest;

use super::Op;
use super::inputs;
use super::values::{content, nth, payload, reference, rendered, versions};

pub const TRIAL: Duration = Duration::from_secs(60);
pub const TIMEOUT: Duration = Duration::from_secs(20);

pub struct Driver {
    state: State,
    settings: Settings,
    now: Duration,
    hostile: bool,
    /// The kinds of inputs that came, a bit for each.
    pub seen: u64,
    /// What the store held at first, until a record is written.
    found: Option<Stored>,
    /// The record that was written last, and the one before: the machine may not have heard yet.
    durable: Records,
    before: Records,
    configs: BTreeSet<Digest>,
    checkpoints: BTreeSet<Source>,
    /// Verified in this life.
    loaded: BTreeSet<Digest>,
    failures: u8,
    stalled: bool,
    waiting: VecDeque<StoreRequest>,
    preflights: Vec<Ticket>,
    probes: Vec<Ticket>,
    queries: Vec<(Ticket, Query)>,
    /// Of which ConfigMap.
    fetches: Vec<(Ticket, u8)>,
    sent: u64,
    kubelet: u8,
    /// The binary that the machine was last told of. Another one put in its place since is the next start's affair.
    told: KubeletId,
    commands: u64,
    /// What the process was started with, local included; there is none, or one.
    process: Option<Digest>,
    run: RunId,
    /// The worker that started it is gone.
    left: bool,
    deaf: bool,
    /// It was told to end, and is killed then.
    kill_at: Option<Duration>,
    ready: bool,
    /// How long each content was ready in all, and whether it was in contact meanwhile.
    healthy: BTreeMap<Digest, Duration>,
    in_contact: BTreeSet<Digest>,
    counted: Duration,
    /// The last known good content that was last to be written, and all those that once were.
    known_good: Option<Digest>,
    earned: BTreeSet<Digest>,
    told_local: bool,
    ending: bool,
    quit: bool,
}

impl Driver {
    pub fn new(settings: Settings, stored: Stored, lost: &[Digest], hostile: bool) -> Self {
        let (records, _) = stored.clone().into_records();
        let checkpoints: BTreeSet<Source> = versions(&records).map(|version| version.source.clone()).collect();
        let configs = checkpoints.iter().map(content).filter(|digest| !lost.contains(digest)).collect();
        let mut driver = Self {
            state: State::new(settings.clone()),
            settings,
            now: Duration::from_secs(100),
            hostile,
            seen: 0,
            found: Some(stored),
            durable: Records::default(),
            before: Records::default(),
            configs,
            checkpoints,
            loaded: BTreeSet::new(),
            failures: 0,
            stalled: false,
            waiting: VecDeque::new(),
            preflights: Vec::new(),
            probes: Vec::new(),
            queries: Vec::new(),
            fetches: Vec::new(),
            sent: 0,
            kubelet: 0,
            told: KubeletId::default(),
            commands: 0,
            process: None,
            run: RunId::default(),
            left: false,
            deaf: false,
            kill_at: None,
            ready: false,
            healthy: BTreeMap::new(),
            in_contact: BTreeSet::new(),
            counted: Duration::from_secs(100),
            known_good: None,
            earned: BTreeSet::new(),
            told_local: false,
            ending: false,
            quit: false,
        };
        driver.boot();
        driver
    }

    fn boot(&mut self) {
        self.state = State::new(self.settings.clone());
        self.loaded.clear();
        self.forget_questions();
        (self.process, self.ready, self.quit) = (None, false, false);
        self.known_good = self.on_disk().last_known_good.map(|version| content(&version.source));
        self.earned.extend(self.known_good.clone());
        self.input(Input::Boot(Beginning::Supervisor));
    }

    fn replace_worker(&mut self, asked: bool) {
        if asked {
            self.input(Input::Retire);
            assert!(self.hostile || self.quit, "it does not end: {:?}", self.state);
        }
        self.state = State::new(self.settings.clone());
        self.loaded.clear();
        self.forget_questions();
        (self.quit, self.left) = (false, self.process.is_some());
        let why = (!asked).then(|| "signal 9".to_owned());
        let running = self.process.is_some().then_some(self.run);
        self.input(Input::Boot(Beginning::Worker { running, why, generation: 2 }));
    }

    fn forget_questions(&mut self) {
        self.waiting.clear();
        self.preflights.clear();
        self.probes.clear();
        self.queries.clear();
        self.fetches.clear();
    }

    fn on_disk(&self) -> Records {
        self.found.as_ref().map_or_else(|| self.durable.clone(), |found| found.clone().into_records().0)
    }

    fn fails(&mut self) -> bool {
        let fails = self.failures > 0;
        self.failures = self.failures.saturating_sub(1);
        fails
    }

    /// An input through to its last effect, as the executor does it.
    fn input(&mut self, input: Input) {
        let mut inputs = VecDeque::from([input]);
        let mut steps = 0;
        while let Some(input) = inputs.pop_front() {
            if self.quit && !self.hostile {
                break;
            }
            self.note(&input);
            let moment = Moment { boot: self.now, wall_nanos: u64::from(self.now.subsec_nanos()) };
            let mut at_once = Vec::new();
            for effect in self.state.step(input, moment) {
                match self.run(effect) {
                    Some(answer @ (Input::Started(_) | Input::LogTail(_))) => at_once.push(answer),
                    answer => inputs.extend(answer),
                }
            }
            at_once.into_iter().rev().for_each(|answer| inputs.push_front(answer));
            steps += 1;
            assert!(steps < 300, "one input has no end: {:?}", self.state);
            if let Some(deadline) = self.state.deadline() {
                assert!(deadline > self.state.now().boot, "a deadline that has passed: {:?}", self.state);
            }
        }
    }

    /// What the input tells the account.
    fn note(&mut self, input: &Input) {
        self.seen |= 1 << inputs::kind(input);
        if let Some(process) = self.process.clone().filter(|_| self.ready) {
            *self.healthy.entry(process).or_default() += self.now.saturating_sub(self.counted);
        }
        self.counted = self.now;
        match input {
            Input::Exited(_) | Input::Started(Err(_)) => (self.process, self.ready) = (None, false),
            Input::Ready => self.ready = self.process.is_some(),
            Input::Node(Assignment::Local) => self.told_local = true,
            Input::Answer(_, Answer::Loaded(id, _) | Answer::RecordsRead(_, id)) => self.told = id.clone(),
            Input::Answer(
                _,
                Answer::LeaseObserved(LeaseObservation::Unreachable(_) | LeaseObservation::HeldBack)
                | Answer::PodsObserved(None),
            ) => {}
            Input::Answer(_, Answer::LeaseObserved(..) | Answer::PodsObserved(..)) | Input::NodeObserved(_) => {
                self.in_contact.extend(self.process.clone());
            }
            _ => {}
        }
    }

    fn run(&mut self, effect: Effect) -> Option<Input> {
        match effect {
            Effect::Store(request) => {
                if let StoreRequest::Record(_, records) = &request {
                    self.check_record(records);
                }
                return self.submit(request);
            }
            Effect::Emit(_) => return self.submit(StoreRequest::Append(Box::default())),
            Effect::Send(_) => self.sent += 1,
            Effect::Preflight(ticket, ..) => self.preflights.push(ticket),
            Effect::Probe(ticket, _) => self.probes.push(ticket),
            Effect::Fetch(ticket, asked) => {
                let map = (0..3).find(|map| reference(*map) == asked);
                self.fetches.push((ticket, map.expect("one of this world's")));
            }
            // Asked seldom: the answer comes by itself.
            Effect::Query(ticket, Query::Streams(..)) => {
                let how = u8::try_from(ticket % 12).unwrap();
                return Some(Input::Answer(ticket, Answer::StreamsObserved(inputs::streams(how))));
            }
            Effect::Query(ticket, query) => self.queries.push((ticket, query)),
            Effect::ReadLogTail => return Some(Input::LogTail(Vec::new())),
            Effect::GoOn(run) => {
                assert!(std::mem::take(&mut self.left) && !self.quit, "{run:?} was not left");
                let ready = self.ready.then_some(self.run.started);
                let is_it = self.process.is_some() && run == self.run;
                let started = StartedKubelet { id: run, adopted: true, ready };
                return Some(Input::Started(is_it.then_some(started).ok_or_else(|| "it has ended".to_owned())));
            }
            Effect::Start(config) => {
                let left = std::mem::take(&mut self.left);
                assert!(left || self.process.is_none(), "a second kubelet is started: {:?}", self.state);
                assert!(!self.quit, "started after quitting");
                let digest = config.as_ref().map_or("local", |config| config.path.trim_start_matches('/'));
                let digest = Digest(digest.to_owned());
                if self.process.as_ref() == Some(&digest) {
                    return Some(Input::Started(Ok(StartedKubelet {
                        id: self.run,
                        adopted: true,
                        ready: self.ready.then_some(self.run.started),
                    })));
                }
                if config.is_some() && !self.hostile {
                    self.check_start(&digest);
                }
                self.process = Some(digest);
                self.ready = false;
                self.run = RunId { pid: self.run.pid + 1, started: self.now };
                let started = StartedKubelet { id: self.run, ..StartedKubelet::default() };
                return Some(Input::Started(if self.fails() { Err("fork".to_owned()) } else { Ok(started) }));
            }
            Effect::Stop | Effect::DumpStacks if self.deaf => self.kill_at = Some(self.now + limits::STOP_GRACE),
            Effect::Stop if self.process.is_some() && !self.hostile => {
                return Some(Input::Exited(Exit::Code(0)));
            }
            Effect::DumpStacks if self.process.is_some() && !self.hostile => {
                return Some(Input::Exited(Exit::Code(2)));
            }
            Effect::Quit => self.quit = true,
            _ => {}
        }
        None
    }

    fn submit(&mut self, request: StoreRequest) -> Option<Input> {
        if self.stalled {
            self.waiting.push_back(request);
            return None;
        }
        self.serve(request)
    }

    fn serve(&mut self, request: StoreRequest) -> Option<Input> {
        let result = if self.fails() { Err("input/output error".to_owned()) } else { Ok(()) };
        let id = KubeletId(format!("k{}", self.kubelet));
        Some(match request {
            StoreRequest::ReadRecords(ticket) => {
                let read = || {
                    let source = |version: &Option<Version>| Ok(version.as_ref().map(|it| it.source.clone()));
                    Stored {
                        state: RecordFile::Read(Box::new(self.durable.clone())),
                        assigned: source(&self.durable.assigned),
                        last_known_good: source(&self.durable.last_known_good),
                        meta_changed: false,
                    }
                };
                Input::Answer(ticket, Answer::RecordsRead(Box::new(self.found.clone().unwrap_or_else(read)), id))
            }
            StoreRequest::Record(ticket, records) => {
                if result.is_ok() {
                    let unreadable = matches!(&self.found, Some(Stored { state: RecordFile::Unreadable(_), .. }));
                    assert!(self.hostile || !unreadable, "a record that cannot be read is overwritten");
                    self.before = self.on_disk();
                    (self.found, self.durable) = (None, *records);
                }
                Input::Answer(ticket, Answer::Recorded(result))
            }
            StoreRequest::Save(ticket, ..) if result.is_err() && ticket.is_multiple_of(2) => {
                Input::Answer(ticket, Answer::OtherBytesSaved)
            }
            StoreRequest::Save(ticket, source, _) | StoreRequest::SaveAnew(ticket, source, _) => {
                if result.is_ok() {
                    self.checkpoints.insert(source);
                }
                Input::Answer(ticket, Answer::Saved(result))
            }
            StoreRequest::Load(ticket, target) => Input::Answer(ticket, Answer::Loaded(id, self.load(&target, result))),
            StoreRequest::JudgeNamespace(ticket, _) => {
                let refused = (ticket % 9 == 0).then(|| "the node's policy: its namespace".to_owned());
                let admission = Admission { refused, ..Admission::default() };
                Input::Answer(ticket, Answer::NamespaceJudged(result.map(|()| admission)))
            }
            StoreRequest::Verify(ticket, _) => Input::Answer(ticket, Answer::Verified(Verification::default())),
            StoreRequest::SwapStateFiles(ticket, _) => {
                Input::Answer(ticket, Answer::StateFilesSwapped(result.map(|()| StateFilesFound::InOrder)))
            }
            StoreRequest::Append(entry) => Input::Appended(entry, result),
            StoreRequest::Collect(sources, digests) => {
                self.checkpoints.retain(|source| sources.contains(source));
                self.configs.retain(|digest| digests.contains(digest));
                return None;
            }
            StoreRequest::Unreported | StoreRequest::Reported(_) | StoreRequest::ProbeDisk => return None,
        })
    }

    fn load(&mut self, target: &LoadTarget, result: Result<(), String>) -> Result<Rendered, RenderError> {
        result.map_err(RenderError::Internal)?;
        let source = match target {
            LoadTarget::Local | LoadTarget::DryRun(None) => return Ok(rendered(None)),
            LoadTarget::Unassigned(source, _) => source,
            LoadTarget::Content(digest, source) if self.configs.contains(digest) => {
                assert!(self.hostile || content(source) == *digest, "{source} has other content");
                source
            }
            LoadTarget::Content(_, source) | LoadTarget::Source(source) | LoadTarget::DryRun(Some(source))
                if self.checkpoints.contains(source) =>
            {
                source
            }
            LoadTarget::Content(..) | LoadTarget::Source(_) | LoadTarget::DryRun(_) => {
                return Err(RenderError::Checkpoint("it is gone".to_owned()));
            }
        };
        let rendered = rendered(Some(source));
        if !matches!(target, LoadTarget::DryRun(_)) {
            self.configs.insert(rendered.digest.clone());
            self.loaded.insert(rendered.digest.clone());
        }
        Ok(rendered)
    }

    /// What is started is on disk, was verified in this life, is named by the durable record, and is not bad by what counts:
    /// that record, or the one in force while the disk does not take it. A decision whose write was given up does not count,
    /// although the disk may hold it until it is written over.
    fn check_start(&self, digest: &Digest) {
        assert!(self.configs.contains(digest), "{digest} is started, and is not on disk");
        assert!(self.loaded.contains(digest), "{digest} is started, and was not verified");
        let records = self.on_disk();
        let named = versions(&records).chain(versions(&self.before)).any(|version| content(&version.source) == *digest);
        assert!(named, "{digest} is started, which no record names: {records:?}");
        let stalled = self.waiting.iter().any(|request| matches!(request, StoreRequest::Record(..)));
        let records = if stalled || self.state.is_unsaved() { self.state.records().clone() } else { records };
        let pinned = records.pin.as_ref().and_then(|pin| pin.version.as_ref());
        if pinned.is_some_and(|version| content(&version.source) == *digest) {
            return;
        }
        let bad = records.bad.iter().find(|bad| bad.kubelet == self.told && bad.digest.as_ref() == Some(digest));
        assert!(bad.is_none(), "{digest} is started, which is bad: {records:?}");
    }

    /// Last known good is earned, or dropped by whoever assigns.
    fn check_record(&mut self, records: &Records) {
        let new = records.last_known_good.as_ref().map(|version| content(&version.source));
        let before = std::mem::replace(&mut self.known_good, new.clone());
        if self.hostile || before == new || new.as_ref().is_some_and(|new| self.earned.contains(new)) {
            return; // also what was not written after all
        }
        let Some(new) = new else {
            return assert!(self.told_local, "last known good is dropped: {records:?}");
        };
        assert_eq!(self.process.as_ref(), Some(&new), "last known good is not what runs");
        let earned = self.healthy.get(&new).copied().unwrap_or_default();
        assert!(earned >= TRIAL, "{new} was ready for {earned:?}: {:?}", self.state);
        let contact = !self.settings.api_server || self.in_contact.contains(&new);
        assert!(contact, "{new} was never in contact: {:?}", self.state);
        let bad = records.bad.iter().find(|bad| bad.digest.as_ref() == Some(&new));
        assert!(bad.is_none(), "last known good is bad: {records:?}");
        self.earned.insert(new);
    }

    pub fn apply(&mut self, op: &Op) {
        let runs = self.process.is_some() || self.hostile;
        match *op {
            Op::Node(which) => self.input(Input::Node(inputs::assignment(which))),
            Op::Map(map, version) => self.input(Input::ConfigMap(payload(map, version))),
            Op::MapFailed(definite) => self.input(Input::ConfigMapFailed { why: "gone".to_owned(), definite }),
            Op::Judge(which, verdict) => {
                if let Some(ticket) = nth(&self.preflights, which) {
                    self.input(Input::Answer(ticket, Answer::PreflightDone(inputs::verdict(verdict))));
                }
            }
            Op::Probe(which, good) => {
                if let Some(ticket) = nth(&self.probes, which) {
                    self.input(Input::Answer(ticket, Answer::Probed(good)));
                }
            }
            Op::Observe(which, how) => self.observe(which, how),
            Op::NodeReady(ready) => self.input(Input::NodeObserved(inputs::readiness(ready, self.now.as_secs()))),
            Op::Ready if runs => self.input(Input::Ready),
            Op::Exit if runs => self.input(Input::Exited(Exit::Code(1))),
            Op::Watchdog if runs => self.input(Input::Watchdog),
            Op::Ready | Op::Exit | Op::Watchdog => {}
            Op::Operator(which) => {
                self.commands += 1;
                self.input(Input::Operator(self.commands, inputs::command(which)));
            }
            Op::Annotate(retry, confirm) => self.input(inputs::annotations(retry, confirm)),
            Op::Ask(which) => self.input(inputs::preflight(which)),
            Op::Fetched(which, how) => {
                if let Some((ticket, map)) = nth(&self.fetches, which) {
                    self.input(inputs::fetched(ticket, map, how));
                }
            }
            Op::Fail(times) => self.failures = times,
            Op::Stall(stalled) => self.stall(stalled),
            Op::Deaf(deaf) => self.deaf = deaf,
            Op::TouchStore => self.input(Input::StoreTouched),
            Op::Policy => self.input(Input::PolicyChanged),
            Op::SetClock => self.input(Input::ClockSet),
            Op::ByLabels(by_labels) => self.input(Input::AssignedByLabels(by_labels)),
            Op::TouchLocalFiles => self.input(Input::LocalFilesTouched),
            Op::NodeName => self.input(Input::NodeName("n1".to_owned())),
            Op::Reported => self.input(Input::Reported(self.sent)),
            Op::Version => self.input(Input::KubeletVersion(format!("v1.{}", self.kubelet))),
            Op::Binary(kubelet) => self.kubelet = kubelet,
            Op::Pass(by) => self.pass(by),
            Op::Deadline => self.go_to_deadline(),
            Op::PowerCut => {
                (self.now, self.counted) = (Duration::from_secs(5), Duration::from_secs(5));
                self.settings.boot_id += 1;
                self.boot();
            }
            Op::Worker(asked) => self.replace_worker(asked),
            Op::Stray(kind, seed) if self.hostile => self.input(inputs::make(kind, seed)),
            Op::Stray(..) => {}
        }
    }

    fn observe(&mut self, which: u8, how: u8) {
        let Some((ticket, query)) = nth(&self.queries, which) else { return };
        self.input(match query {
            Query::Lease => Input::Answer(ticket, Answer::LeaseObserved(inputs::lease(how, self.now))),
            Query::Pods => Input::Answer(ticket, Answer::PodsObserved((how > 0).then(PodInventory::default))),
            Query::Environment(_) => Input::Answer(ticket, Answer::EnvironmentObserved(inputs::environment(how))),
            Query::Streams(..) => Input::Answer(ticket, Answer::StreamsObserved(inputs::streams(how))),
        });
    }

    fn stall(&mut self, stalled: bool) {
        self.stalled = stalled;
        while !self.stalled
            && let Some(request) = self.waiting.pop_front()
        {
            if let Some(answer) = self.serve(request) {
                self.input(answer);
            }
        }
    }

    fn pass(&mut self, by: i32) {
        let by_millis = Duration::from_millis(u64::from(by.unsigned_abs()));
        if by >= 0 {
            self.now += by_millis;
            return self.tick();
        }
        // The machine goes by the latest moment it saw; so does the account.
        let back = Moment { boot: self.now.saturating_sub(by_millis), wall_nanos: 0 };
        let effects = self.state.step(Input::Tick, back);
        let answers: Vec<Input> = effects.into_iter().filter_map(|effect| self.run(effect)).collect();
        for answer in answers {
            self.input(answer);
        }
    }

    fn tick(&mut self) {
        if self.kill_at.take_if(|at| self.now >= *at).is_some() && self.process.is_some() && !self.hostile {
            self.input(Input::Exited(Exit::Signal(9)));
        }
        self.input(Input::Tick);
    }

    /// When something is due by itself.
    fn deadline(&self) -> Option<Duration> {
        self.state.deadline().into_iter().chain(self.kill_at).min()
    }

    fn go_to_deadline(&mut self) {
        if let Some(deadline) = self.deadline() {
            self.now = self.now.max(deadline);
            self.tick();
        }
    }

    /// With nothing else happening, a thousand ticks take their time.
    pub fn rest(&mut self) {
        let begin = self.now;
        let mut ticks = 0;
        while ticks < 1000 && self.deadline().is_some() {
            self.go_to_deadline();
            ticks += 1;
        }
        let took = self.now.saturating_sub(begin);
        assert!(
            ticks < 1000 || took >= Duration::from_millis(100) * ticks,
            "{ticks} ticks within {took:?}: {:?}",
            self.state
        );
    }

    fn shut_down(&mut self) {
        self.ending = true;
        self.input(Input::Shutdown);
    }

    /// It ends, within the time that a kubelet is given.
    pub fn quit(&mut self) {
        let begin = self.now;
        self.shut_down();
        for _ in 0..50 {
            if self.quit {
                break;
            }
            assert!(self.deadline().is_some(), "it waits for ever: {:?}", self.state);
            self.go_to_deadline();
        }
        assert!(self.quit && self.process.is_none(), "it does not end: {:?}", self.state);
        let took = self.now.saturating_sub(begin);
        assert!(took <= Duration::from_secs(60), "it took {took:?}");
    }

    /// Nobody answers any more, and SIGTERM is not minded either. A kubelet runs all the same, and goes on.
    pub fn fall_silent(&mut self) {
        if self.quit {
            return;
        }
        (self.stalled, self.deaf, self.failures) = (true, true, 0);
        let end = self.now + Duration::from_secs(900);
        let mut ticks = 0;
        while self.now < end && ticks < 5000 && self.deadline().is_some() {
            self.go_to_deadline();
            ticks += 1;
        }
        for _ in 0..20 {
            if self.process.is_some() || self.deadline().is_none() {
                break;
            }
            self.go_to_deadline();
        }
        assert!(self.process.is_some(), "no kubelet runs: {:?}", self.state);
    }
}
