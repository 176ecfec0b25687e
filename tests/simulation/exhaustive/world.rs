//! A world so small that each order of its events can be played: one ConfigMap that is edited once, one kubelet, one crash, one
//! outage of the API server, one time in which somebody does not answer.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use kubelet_config::assignment::Assignment;
use kubelet_config::digest::Digest;
use kubelet_config::source::{ConfigMapRef, Payload, Source};
use kubelet_supervisor::machine::evidence::NodeReadiness;
use kubelet_supervisor::machine::model::{Beginning, Exit, Moment, RunId};
use kubelet_supervisor::machine::records::{Phase, Records};
use kubelet_supervisor::machine::{Effect, Input, Settings, State};

/// How long a version has to live here.
pub const TRIAL: Duration = Duration::from_secs(60);
/// The boot clock when a supervisor begins: all moments are later, and no span of time is as long.
pub const BEGINS: Duration = Duration::from_secs(100_000);
/// Time that passes at once, if nothing happens: in a trial, and at other times.
const QUIET: [Duration; 2] = [Duration::from_secs(20), Duration::from_secs(60)];
/// Of each kubelet: the time of its start tells it from others.
pub const PID: u32 = 7;
/// The API server is asked every ten seconds, and its answer may take some.
const UNNOTICED: Duration = Duration::from_secs(15);

/// An outage that begins so soon after a start may be the version's doing.
const ATTRIBUTED: Duration = Duration::from_secs(60);

/// What a version holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Content {
    /// Two that work.
    Good,
    Better,
    /// Its kubelet dies two seconds after it was ready.
    Dies,
    /// The kubelet's own verdict is no.
    Refused,
}

impl Content {
    /// What has this digest.
    pub fn of(digest: &str) -> Option<Self> {
        [Self::Good, Self::Better, Self::Dies, Self::Refused].into_iter().find(|it| format!("{it:?}") == digest)
    }
}

/// Who does not answer for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Who {
    Store,
    Judge,
    Node,
}

/// What may happen next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Time passes, up to the next thing that anybody does.
    Pass,
    Edit(Content),
    Reset,
    KubeletDies,
    WorkerDies,
    PowerCut,
    Outage,
    Contact,
    Silence(Who),
    Answers,
}

#[derive(Clone, Debug)]
pub struct Process {
    pub started: Duration,
    pub content: Option<Content>,
    pub ready_at: Duration,
    pub ready: bool,
    pub dies_at: Option<Duration>,
    pub stops_at: Option<Duration>,
    /// The worker that started it is gone.
    pub left: bool,
}

/// What is left to happen.
#[derive(Clone, Debug, Default)]
pub struct Left {
    /// What the ConfigMap may become, the latest edit first.
    pub edits: Vec<&'static [Content]>,
    pub resets: u8,
    pub crashes: u8,
    pub outages: u8,
    pub silences: u8,
}

/// The machine and everything around it.
#[derive(Clone, Debug, Default)]
pub struct World {
    pub state: State,
    pub left: Left,
    pub now: Duration,
    pub boots: u128,
    pub generation: u64,
    pub records: Records,
    pub written: bool,
    pub checkpoints: BTreeSet<Source>,
    pub contents: BTreeSet<Digest>,
    /// What the ConfigMap held, version by version; and that nothing is assigned.
    pub versions: Vec<Content>,
    pub assigned: bool,
    pub process: Option<Process>,
    pub down_since: Duration,
    pub away_since: Option<Duration>,
    /// Of its Node and of its Lease, each time another one.
    pub posts: u8,
    pub renewals: u8,
    pub silent: Option<Who>,
    /// Nobody has answered of the node since then.
    pub unseen_since: Option<Duration>,
    pub unanswered: VecDeque<Effect>,
    /// Deaths of a content since it was last asked for, and of anything else since then.
    pub deaths: BTreeMap<Content, (u8, bool)>,
    /// Healthy for so long without a break, of each process in turn that had this content.
    pub lived: Option<(Content, Duration)>,
    /// What was healthy for a whole trial at some time.
    pub proven: BTreeSet<Content>,
    /// What was killed, or had an outage from its start on, since the last edit: it may be blamed for that.
    pub hurt: BTreeSet<Content>,
    /// The judge has not answered since it was asked about the latest edit, or had no chance to.
    pub unjudged: bool,
    pub violation: Option<String>,
    pub restarts: u32,
    /// What the machine said, if somebody wants to know.
    pub journal: Option<Vec<String>>,
}

fn source(version: usize) -> Source {
    Source { reference: reference(), resource_version: (version + 1).to_string(), uid: "u".to_owned() }
}

fn reference() -> ConfigMapRef {
    ConfigMapRef { namespace: "n".into(), name: "m".into(), kubelet_config_key: "kubelet".into() }
}

impl World {
    /// A node that runs on its own file for a minute, with this left to happen.
    pub fn new(left: Left) -> Self {
        let mut world = Self { left, now: BEGINS, down_since: BEGINS, generation: 1, ..Self::default() };
        world.begin(Beginning::Supervisor);
        world.pass_for(Duration::from_secs(60));
        world
    }

    pub fn pass_for(&mut self, time: Duration) {
        let until = self.now + time;
        while self.now < until {
            self.pass();
        }
    }

    /// A life of the supervisor, or of its worker, on what is durable.
    fn begin(&mut self, beginning: Beginning) {
        let settings = Settings { trial_duration: TRIAL, boot_id: self.boots, ..Settings::default() };
        self.state = State::new(settings);
        // One death need not be written down, and what the store did not serve is lost.
        let unserved = self.unanswered.iter().any(|effect| matches!(effect, Effect::Store(_)));
        self.deaths.retain(|_, (times, _)| *times > 1 && !unserved);
        self.unjudged |= unserved;
        self.unanswered.clear();
        self.take(Input::Boot(beginning));
        if self.away_since.is_none() {
            self.show();
        }
    }

    /// The API server shows what it has.
    fn show(&mut self) {
        let wanted = if self.assigned { Assignment::Map(reference()) } else { Assignment::Local };
        self.take(Input::Node(wanted));
        if let Some(payload) = self.payload().filter(|_| self.assigned) {
            self.take(Input::ConfigMap(payload));
        }
        self.post();
    }

    /// The kubelet tells of its Node.
    fn post(&mut self) {
        if self.away_since.is_none() && self.process.as_ref().is_some_and(|process| process.ready) {
            self.posts = (self.posts + 1) % 4;
            let heartbeat = self.posts.to_string();
            self.take(Input::NodeObserved(NodeReadiness { ready: true, heartbeat, ..NodeReadiness::default() }));
        }
    }

    pub fn payload(&self) -> Option<Arc<Payload>> {
        let source = source(self.versions.len().checked_sub(1)?);
        Some(Arc::new(Payload {
            namespace: source.reference.namespace.clone(),
            name: source.reference.name.clone(),
            uid: source.uid.clone(),
            resource_version: source.resource_version,
            data: BTreeMap::default(),
            binary_keys: BTreeSet::default(),
            annotations: kubelet_config::source::ConfigAnnotations::default(),
        }))
    }

    pub fn wanted(&self) -> Option<Content> {
        self.versions.last().copied().filter(|_| self.assigned)
    }

    /// All that may happen now.
    pub fn events(&self) -> Vec<Event> {
        let mut events = vec![Event::Pass];
        let Left { edits, resets, crashes, outages, silences } = &self.left;
        events.extend(edits.last().into_iter().flat_map(|stage| stage.iter()).map(|content| Event::Edit(*content)));
        if *resets > 0 && self.assigned {
            events.push(Event::Reset);
        }
        if *crashes > 0 {
            events.extend([Event::WorkerDies, Event::PowerCut]);
            events.extend(self.process.as_ref().filter(|it| it.stops_at.is_none()).map(|_| Event::KubeletDies));
        }
        if self.away_since.is_some() {
            events.push(Event::Contact);
        } else if *outages > 0 {
            events.push(Event::Outage);
        }
        if self.silent.is_some() {
            events.push(Event::Answers);
        } else if *silences > 0 {
            events.extend([Who::Store, Who::Judge, Who::Node].map(Event::Silence));
        }
        events
    }

    pub fn happen(&mut self, event: Event) {
        match event {
            Event::Pass => self.pass(),
            Event::Edit(content) => {
                self.left.edits.pop();
                self.versions.push(content);
                self.assigned = true;
                self.deaths.clear();
                (self.hurt, self.unjudged) = (BTreeSet::new(), self.silent == Some(Who::Judge));
                if self.away_since.is_none() {
                    self.show();
                }
            }
            Event::Reset => {
                self.left.resets -= 1;
                self.assigned = false;
                if self.away_since.is_none() {
                    self.show();
                }
            }
            Event::KubeletDies => {
                self.left.crashes -= 1;
                self.hurt.extend(self.process.as_ref().and_then(|process| process.content));
                self.ends(Exit::Signal(9));
            }
            Event::WorkerDies => {
                self.left.crashes -= 1;
                self.generation += 1;
                self.process.iter_mut().for_each(|process| process.left = true);
                let running = self.process.as_ref().filter(|process| process.stops_at.is_none());
                let running = running.map(|process| RunId { pid: PID, started: process.started });
                let why = Some("signal 9".to_owned());
                self.begin(Beginning::Worker { running, why, generation: self.generation });
            }
            Event::PowerCut => {
                self.left.crashes -= 1;
                (self.process, self.lived) = (None, None);
                (self.boots, self.now) = (self.boots + 1, BEGINS);
                self.down_since = self.now;
                self.begin(Beginning::Supervisor);
            }
            Event::Outage => {
                self.left.outages -= 1;
                self.away_since = Some(self.now);
            }
            Event::Contact => {
                self.away_since = None;
                self.show();
            }
            Event::Silence(who) => {
                self.left.silences -= 1;
                self.silent = Some(who);
                self.unseen_since = (who == Who::Node).then_some(self.now);
                self.unjudged |= who == Who::Judge;
            }
            Event::Answers => {
                if matches!(self.silent, Some(Who::Store | Who::Node)) {
                    self.deaths.values_mut().for_each(|(_, others)| *others = true);
                }
                (self.silent, self.unseen_since) = (None, None);
                let unjudged = self.unjudged;
                for effect in std::mem::take(&mut self.unanswered) {
                    let answer = self.carry_out(effect);
                    if let Some(answer) = answer {
                        self.take(answer);
                    }
                }
                self.unjudged |= unjudged; // what was waited for in vain may have been given up
            }
        }
        self.check();
    }

    /// To the next thing that anybody does.
    fn pass(&mut self) {
        let settled = self.state.records().phase == Phase::Settled && self.process.as_ref().is_some_and(|it| it.ready);
        let until = self.now + QUIET[usize::from(settled)];
        for _ in 0..500 {
            let process = self.process.as_ref();
            let ready = process.filter(|it| !it.ready).map(|it| it.ready_at);
            let ends = process.and_then(|it| it.stops_at.or(it.dies_at));
            let due = self.state.deadline().filter(|at| *at > self.now).unwrap_or(until);
            let next = [Some(until), Some(due), ready, ends].into_iter().flatten().min().unwrap_or(until);
            self.live_until(next.max(self.now));
            if ends.is_some_and(|at| at <= self.now) {
                let asked = self.process.as_ref().is_some_and(|it| it.stops_at.is_some());
                return self.ends(Exit::Code(i32::from(!asked)));
            }
            if ready.is_some_and(|at| at <= self.now) {
                self.process.iter_mut().for_each(|process| process.ready = true);
                self.take(Input::Ready);
                return self.post();
            }
            let before = self.restarts;
            let acts = self.take_one(Input::Tick);
            if acts || self.restarts != before || self.now >= until {
                return;
            }
        }
        self.violate("it spins");
    }

    /// Time passes; what it proves of the content that runs.
    fn live_until(&mut self, at: Duration) {
        // Nobody notices at once that the API server is away.
        let contact = self.away_since.is_none_or(|since| self.now < since + UNNOTICED);
        let healthy = self.process.as_ref().filter(|it| it.ready && contact);
        if let Some(content) = healthy.and_then(|it| it.content) {
            let lived = self.lived.take().filter(|(of, _)| *of == content).map_or(Duration::ZERO, |(_, lived)| lived);
            self.lived = Some((content, lived + at.saturating_sub(self.now)));
        }
        self.now = at;
        // Nobody can tell an outage that begins with a version, and ends with it, from what that version did.
        let cut = self.away_since.into_iter().chain(self.unseen_since).min();
        let young =
            |it: &&Process| cut.is_some_and(|since| since < it.started + ATTRIBUTED && at >= since + ATTRIBUTED);
        self.hurt.extend(self.process.as_ref().filter(young).and_then(|it| it.content));
    }

    fn ends(&mut self, exit: Exit) {
        let Some(process) = self.process.take() else { return };
        (self.down_since, self.lived) = (self.now, None);
        if process.stops_at.is_none() {
            for (content, (_, others)) in &mut self.deaths {
                *others |= Some(*content) != process.content;
            }
            if let Some(content) = process.content {
                let (times, others) = self.deaths.entry(content).or_default();
                (*times, *others) = (times.saturating_add(1), *others && *times > 0);
            }
        }
        self.take(Input::Exited(exit));
    }

    fn take(&mut self, input: Input) {
        self.take_one(input);
    }

    /// One input through to its last effect; true if the machine did more than look.
    fn take_one(&mut self, input: Input) -> bool {
        let mut inputs = VecDeque::from([input]);
        let mut acts = false;
        for _ in 0..1000 {
            let Some(input) = inputs.pop_front() else { return acts };
            let now = Moment { boot: self.now, wall_nanos: 0 };
            let mut at_once = Vec::new();
            for effect in self.state.step(input, now) {
                acts |= !matches!(
                    effect,
                    Effect::Probe(..) | Effect::Query(..) | Effect::Log(..) | Effect::Count(_) | Effect::PingWatchdog
                );
                let said = match &effect {
                    Effect::Log(_, line) => Some(line),
                    Effect::Emit(event) => Some(&event.message),
                    _ => None,
                };
                if let Some((journal, line)) = self.journal.as_mut().zip(said) {
                    journal.push(format!("{:?}: {line}", self.now.saturating_sub(BEGINS)));
                }
                if self.is_silent(&effect) {
                    self.unanswered.push_back(effect);
                    continue;
                }
                match self.carry_out(effect) {
                    Some(answer @ (Input::LogTail(_) | Input::Started(_))) => at_once.push(answer),
                    answer => inputs.extend(answer),
                }
            }
            at_once.into_iter().rev().for_each(|answer| inputs.push_front(answer));
        }
        self.violate("one input has no end");
        acts
    }

    /// All that tells this world from others but when it is: two that differ by their clocks alone go on alike.
    pub fn fingerprint(&self, text: &mut String) {
        text.clear();
        let lived = self.lived.map(|(of, lived)| (of, lived.min(TRIAL)));
        let around = (&self.left, &self.process, &self.versions, self.assigned, &self.checkpoints, &self.contents);
        let who = (
            self.away_since,
            self.unseen_since,
            self.silent,
            self.renewals,
            self.posts,
            self.now.saturating_sub(self.down_since),
        );
        let facts = (&self.deaths, lived, &self.hurt, self.unjudged, &self.proven);
        let _ = write!(text, "{:?} {around:?} {who:?} {facts:?} {:?}", self.state, self.unanswered);
        if self.records != *self.state.saved() {
            let _ = write!(text, "{:?}", self.records);
        }
    }
}
