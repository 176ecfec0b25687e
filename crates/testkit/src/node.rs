//! The bare machine with the world around it answering at once, or late, or never, for scenarios in a few lines.

mod answers;
mod store;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use kubelet_config::assignment::Assignment;
use kubelet_config::pods::PodInventory;
use kubelet_config::source::{ConfigAnnotations, ConfigMapRef, Payload, Source};
use kubelet_config::status::{NodeConfigStatus, PreflightAnswer};
use kubelet_supervisor::machine::command::Command;
use kubelet_supervisor::machine::evidence::{Environment, NodePressure, NodeReadiness};
use kubelet_supervisor::machine::model::{Beginning, Exit, Moment, Rendered, RunId};
use kubelet_supervisor::machine::records::{Phase, Records};
use kubelet_supervisor::machine::status::node_status;
use kubelet_supervisor::machine::{Effect, Input, Settings, State, Ticket};
use serde_json::{Value, json};

pub use store::{Store, torn};

/// A configuration, as far as the machine looks into it.
#[derive(Clone, Debug)]
pub struct Definition {
    pub fields: Value,
    pub annotations: ConfigAnnotations,
    /// Laid over the local file: its content is another when that changes.
    pub overlay: bool,
}

/// The kubelet's process.
#[derive(Clone, Debug)]
struct Process {
    id: RunId,
    /// What it was started with; empty is local.
    content: String,
    /// Tells that from others.
    digest: String,
    ready_at: Option<Duration>,
    /// The worker that is there was told so.
    told_ready: bool,
    /// The worker that started it is gone.
    left: bool,
}

/// A node: every field is what the world would answer now.
#[derive(Default)]
pub struct Node {
    pub state: State,
    pub now: Duration,
    pub wall_nanos: u64,
    /// The disk, and what is wrong with it.
    pub store: Store,
    /// The kubelet becomes ready so long after its start; `None`: never.
    pub ready_after: Option<u64>,
    pub healthz: Option<bool>,
    pub environment: Environment,
    /// The streams through the kubelet, and what the Node is under.
    pub streams: Option<u32>,
    pub pressure: BTreeSet<NodePressure>,
    /// False: nobody answers.
    pub queries_answered: bool,
    /// Answers that are under way, while they are held back.
    held: Option<Vec<Input>>,
    /// The next start fails.
    pub start_fails: bool,
    /// SIGTERM is not minded.
    pub is_deaf: bool,
    /// The API server answers this node.
    pub api: bool,
    /// The API server answers everything with 503.
    pub busy: bool,
    /// It has answered with `Retry-After`, and nothing is sent.
    pub asks_to_wait: bool,
    /// The kubelet renews its Lease and posts its Node.
    pub contact: bool,
    pub is_ready: bool,
    /// The Node stays as it was written with this heartbeat, by this kubelet or by the one before.
    pub same_heartbeat: Option<String>,
    /// The kubelet pings its watchdog.
    pub pings: bool,
    pub inventory: PodInventory,
    /// Its pods can be listed.
    pub lists_pods: bool,
    /// What the journal has.
    pub journal: Vec<String>,
    pub log_tail: Vec<String>,
    /// The kubelet binary.
    pub kubelet: String,
    /// Contents that the preflight refuses, with [`REFUSAL`].
    pub refused: Vec<String>,
    /// The preflight ends.
    pub preflight_answers: bool,
    /// It can tell nothing.
    pub inconclusive: bool,
    /// Contents that it was asked about.
    pub preflights: Vec<String>,
    pending_preflights: Vec<(Ticket, Rendered)>,
    /// Names whose content is that of another.
    pub same_content: BTreeMap<String, String>,
    /// Configurations by name.
    pub configurations: BTreeMap<String, Definition>,
    /// Contents with which a kubelet finds no API server, ...
    pub cuts_contact: BTreeSet<String>,
    /// ... nor does anybody else on the node, ...
    pub cuts_api: bool,
    /// ... and the next kubelet needs so many seconds until it finds it again.
    pub contact_back_after: u64,
    cut_until: Duration,
    /// Contents with which the kubelet takes the container runtime down; it is back with another.
    pub kills_runtime: BTreeSet<String>,
    /// Everything that came out.
    pub effects: Vec<Effect>,
    /// What the API server was told, one after the other.
    pub published: Vec<NodeConfigStatus>,
    /// Contents the kubelet was started with; empty is local.
    pub starts: Vec<String>,
    /// What the API server has: the assignment, and the ConfigMaps' versions.
    wanted: Assignment,
    /// Of the Node: to retry, to confirm.
    annotations: (Option<String>, Option<String>),
    versions: BTreeMap<String, String>,
    /// What the Node is asked to judge, and the answer that it shows.
    pub preflight: (Option<String>, Option<String>),
    /// This supervisor has heard of it.
    told: bool,
    process: Option<Process>,
    /// Seconds since 1970.
    renewed: u64,
    quit: bool,
    commands: u64,
    history: u64,
    pid: u32,
    /// The kubelet was told to end, and is killed then.
    kill_at: Option<Duration>,
    /// Workers so far.
    generation: u64,
    settings: Settings,
}

/// What the kubelet says of a content that it refuses.
pub const REFUSAL: &str = "maxPods must not be negative";

pub fn reference(name: &str) -> ConfigMapRef {
    ConfigMapRef { namespace: "n".into(), name: name.into(), kubelet_config_key: "kubelet".into() }
}

pub fn source(name: &str) -> Source {
    Source { reference: reference(name), resource_version: "1".into(), uid: format!("uid-{name}") }
}

/// What the content of a version is called.
fn name_of(source: &Source) -> String {
    let Source { reference, resource_version, .. } = source;
    if resource_version == "1" { reference.name.clone() } else { format!("{}@{resource_version}", reference.name) }
}

impl Node {
    /// A node on its local configuration for a minute, all signals good.
    pub fn new() -> Self {
        Self::with(Settings::default())
    }

    pub fn with(settings: Settings) -> Self {
        let mut node = Self {
            state: State::new(settings.clone()),
            now: Duration::from_secs(1000),
            wall_nanos: 1_700_000_000_000_000_000,
            ready_after: Some(1),
            healthz: Some(true),
            environment: Environment { runtime: Some(true), ..Environment::default() },
            streams: Some(0),
            queries_answered: true,
            api: true,
            contact: true,
            is_ready: true,
            pings: true,
            lists_pods: true,
            kubelet: "kubelet".to_owned(),
            preflight_answers: true,
            told: true,
            renewed: 1_600_000_000,
            generation: 1,
            settings,
            ..Self::default()
        };
        node.boot();
        node.pass(60);
        node
    }

    /// A life of the supervisor begins on what is durable; a kubelet of an earlier one is gone with it.
    pub fn boot(&mut self) -> &mut Self {
        self.state = State::new(self.settings.clone());
        self.end_process();
        self.forget_questions();
        (self.quit, self.told) = (false, false);
        self.step(Input::Boot(Beginning::Supervisor));
        self.hear();
        self
    }

    /// The worker ends, for this reason or because it was asked to, and another goes on with the kubelet that runs.
    pub fn replace_worker(&mut self, why: Option<&str>) -> &mut Self {
        if why.is_none() {
            self.step(Input::Retire);
            assert!(self.quit, "it does not end");
        }
        self.state = State::new(self.settings.clone());
        self.forget_questions();
        (self.quit, self.told) = (false, false);
        self.generation += 1;
        self.process.iter_mut().for_each(|process| process.left = true);
        let (running, why) = (self.process.as_ref().map(|process| process.id), why.map(str::to_owned));
        self.step(Input::Boot(Beginning::Worker { running, why, generation: self.generation }));
        self.hear();
        self
    }

    /// The kubelet ends, and no worker is there to hear of it.
    pub fn exit_unseen(&mut self) -> &mut Self {
        assert!(self.end_process(), "no kubelet runs that could end: {:?}", self.starts);
        self
    }

    /// The kubelet ended while no worker was there, and the monitor started one with this content by itself.
    pub fn start_unseen(&mut self, content: &str) -> &mut Self {
        self.exit_unseen();
        self.pid += 1;
        let id = RunId { pid: self.pid, started: self.now };
        let (content, digest, ready_at) = (content.to_owned(), content.to_owned(), Some(self.now));
        self.process = Some(Process { id, content, digest, ready_at, told_ready: false, left: true });
        self
    }

    /// Nobody is left to hear the answers.
    fn forget_questions(&mut self) {
        self.store.forget_requests();
        self.pending_preflights.clear();
        if let Some(held) = &mut self.held {
            held.clear();
        }
    }

    /// The API server shows what it has to whoever comes.
    fn hear(&mut self) {
        if !self.api_answers() || self.told {
            return;
        }
        self.told = true;
        let wanted = self.wanted.clone();
        self.step(Input::Node(wanted.clone()));
        let (retry, confirm) = self.annotations.clone();
        self.step(Input::NodeAnnotations { retry, confirm });
        self.show_preflight();
        if let Assignment::Map(reference) | Assignment::Default(reference) = wanted
            && let Some(payload) = self.payload(&reference.name)
        {
            self.step(Input::ConfigMap(payload));
        }
    }

    /// The machine loses power and comes up again, its clock near zero.
    pub fn reboot(&mut self) -> &mut Self {
        self.now = Duration::from_secs(5);
        self.cut_until = Duration::ZERO;
        self.settings.boot_id += 1;
        self.boot()
    }

    /// A configuration of this name, different in content from all others.
    pub fn define(&mut self, name: &str, fields: Value, annotations: ConfigAnnotations) -> &mut Self {
        self.configurations.insert(name.to_owned(), Definition { fields, annotations, overlay: false });
        self
    }

    /// The same, laid over the local file.
    pub fn define_overlay(&mut self, name: &str) -> &mut Self {
        let annotations = ConfigAnnotations { merge: Some("overlay".to_owned()), ..ConfigAnnotations::default() };
        self.configurations.insert(name.to_owned(), Definition { fields: json!({}), annotations, overlay: true });
        self
    }

    /// Assigns it; one that is not defined yet has nothing special.
    pub fn assign(&mut self, name: &str) -> &mut Self {
        let nothing = Definition { fields: json!({}), annotations: ConfigAnnotations::default(), overlay: false };
        self.configurations.entry(name.to_owned()).or_insert(nothing);
        self.versions.entry(name.to_owned()).or_insert_with(|| "1".to_owned());
        self.wanted = Assignment::Map(reference(name));
        self.told = false;
        self.hear();
        self
    }

    /// The content of this name is that of another.
    pub fn alias(&mut self, name: &str, other: &str) -> &mut Self {
        self.same_content.insert(name.to_owned(), other.to_owned());
        self
    }

    /// The preflight refuses this content.
    pub fn refuse(&mut self, name: &str) -> &mut Self {
        self.refused.push(name.to_owned());
        self
    }

    /// Annotates the Node.
    pub fn request(&mut self, request: Option<&str>) -> &mut Self {
        self.preflight.0 = request.map(str::to_owned);
        self.show_preflight()
    }

    pub fn show_preflight(&mut self) -> &mut Self {
        let (request, answer) = self.preflight.clone();
        self.step(Input::PreflightRequested { request, answer })
    }

    /// The API server has this ConfigMap, assigned or not.
    pub fn create(&mut self, name: &str, fields: Value, annotations: ConfigAnnotations) -> &mut Self {
        self.define(name, fields, annotations);
        self.versions.insert(name.to_owned(), "1".to_owned());
        self
    }

    /// The ConfigMap has this version now; its content is called `NAME@VERSION`.
    pub fn edit(&mut self, name: &str, version: &str) -> &mut Self {
        self.versions.insert(name.to_owned(), version.to_owned());
        if self.api_answers() {
            let payload = self.payload(name).unwrap();
            self.step(Input::ConfigMap(payload));
        } else {
            self.told = false;
        }
        self
    }

    fn payload(&self, name: &str) -> Option<Arc<Payload>> {
        let version = self.versions.get(name)?;
        let own = name == "local-files"; // the local files
        let annotations = self.configurations.get(name).map(|it| it.annotations.clone()).unwrap_or_default();
        Some(Arc::new(Payload {
            namespace: if own { "local".into() } else { "n".into() },
            name: name.into(),
            uid: if own { name.into() } else { format!("uid-{name}") },
            resource_version: version.clone(),
            data: BTreeMap::default(),
            binary_keys: BTreeSet::default(),
            annotations,
        }))
    }

    /// The kubelet ends by itself.
    pub fn exit(&mut self, code: i32) -> &mut Self {
        self.end(Exit::Code(code))
    }

    /// Something ends the kubelet.
    pub fn kill(&mut self, signal: i32) -> &mut Self {
        self.end(Exit::Signal(signal))
    }

    fn end(&mut self, exit: Exit) -> &mut Self {
        assert!(self.process.is_some(), "no kubelet runs that could end: {:?}", self.starts);
        self.end_process();
        self.step(Input::Exited(exit))
    }

    /// Gives the number of the answer.
    pub fn ask(&mut self, command: Command) -> u64 {
        self.commands += 1;
        let number = self.commands;
        self.step(Input::Operator(number, command));
        number
    }

    /// The answer, if it came.
    pub fn answer_to(&self, number: u64) -> Option<Result<String, String>> {
        self.effects.iter().rev().find_map(|effect| match effect {
            Effect::Answer(of, result) if *of == number => Some(result.clone()),
            _ => None,
        })
    }

    /// Gives the answer.
    pub fn operate(&mut self, command: Command) -> Result<String, String> {
        let number = self.ask(command);
        self.answer_to(number).unwrap()
    }

    /// It is done; whatever is refused fails the test.
    pub fn obey(&mut self, command: Command) -> &mut Self {
        self.operate(command).unwrap();
        self
    }

    pub fn step(&mut self, input: Input) -> &mut Self {
        match &input {
            Input::Node(wanted) if *wanted != Assignment::Unknown => self.wanted = wanted.clone(),
            Input::NodeAnnotations { retry, confirm } => self.annotations = (retry.clone(), confirm.clone()),
            Input::ConfigMapFailed { definite: true, .. } => {
                if let Assignment::Map(reference) = &self.wanted {
                    self.versions.remove(&reference.name);
                }
            }
            _ => {}
        }
        let mut inputs = VecDeque::from([input]);
        let mut steps = 0;
        while let Some(input) = inputs.pop_front() {
            if self.quit {
                break;
            }
            steps += 1;
            assert!(steps < 1000, "one input has no end: {input:?}");
            let now = Moment { boot: self.now, wall_nanos: self.wall_nanos };
            let mut at_once = Vec::new();
            for effect in self.state.step(input, now) {
                match self.answer(&effect) {
                    Some(answer @ (Input::LogTail(_) | Input::Started(_))) => at_once.push(answer),
                    answer => inputs.extend(answer),
                }
                self.effects.push(effect);
            }
            if at_once.is_empty() {
                self.publish();
            }
            for answer in at_once.into_iter().rev() {
                inputs.push_front(answer);
            }
        }
        self
    }

    /// As the executor does.
    fn publish(&mut self) {
        if self.state.is_record_known() && self.state.is_status_due() {
            let mut status = node_status(&self.state);
            match &status.preflight {
                // Of the Node's annotation this says nothing new.
                PreflightAnswer::AsItIs => {
                    let before = self.published.last().map(|status| status.preflight.clone());
                    status.preflight = before.unwrap_or(PreflightAnswer::None);
                }
                PreflightAnswer::None => self.preflight.1 = None,
                PreflightAnswer::Said(answer) => self.preflight.1 = Some(answer.annotation()),
            }
            if self.published.last() != Some(&status) {
                self.published.push(status);
            }
        }
    }

    /// Seconds until the kubelet is started again, if it is within so many.
    pub fn until_start(&mut self, limit: u64) -> Option<u64> {
        let before = self.starts.len();
        (0..limit).find(|_| {
            self.pass(1);
            self.starts.len() > before
        })
    }

    /// Time passes, second by second.
    pub fn pass(&mut self, seconds: u64) -> &mut Self {
        for _ in 0..seconds {
            self.now += Duration::from_secs(1);
            self.wall_nanos = self.wall_nanos.wrapping_add(1_000_000_000);
            self.hear();
            self.serve_slow();
            if self.kill_at.is_some_and(|at| self.now >= at) && self.end_process() {
                self.step(Input::Exited(Exit::Signal(9)));
            }
            let now = self.now;
            let process = self.process.as_mut().filter(|process| process.ready_at.is_some_and(|at| now >= at));
            let ready = process.is_some();
            if process.is_some_and(|process| !std::mem::replace(&mut process.told_ready, true)) {
                self.step(Input::Ready);
            }
            if ready && self.in_contact() {
                self.renewed = self.wall_nanos / 1_000_000_000;
            }
            if ready && self.now.as_secs().is_multiple_of(10) {
                if self.api_answers() {
                    // Without contact the control plane says Unknown, and the heartbeat stands still.
                    let contact = self.in_contact();
                    let said = contact || self.same_heartbeat.is_some();
                    let ready = self.is_ready && said && self.environment.runtime != Some(false);
                    let heartbeat = if contact { self.now.as_secs().to_string() } else { "before".to_owned() };
                    let heartbeat = self.same_heartbeat.clone().unwrap_or(heartbeat);
                    let message = if ready { String::new() } else { "PLEG is not healthy".to_owned() };
                    let pressure = self.pressure.clone();
                    self.step(Input::NodeObserved(NodeReadiness { ready, heartbeat, message, pressure }));
                }
                if self.pings {
                    self.step(Input::Watchdog);
                }
            }
            self.step(Input::Tick);
            self.check_active();
        }
        self
    }

    /// What is said to run is what runs.
    fn check_active(&self) {
        let Some(process) = self.process.as_ref().filter(|_| self.state.pid().is_some()) else { return };
        match self.state.active() {
            None => assert!(process.digest.starts_with("local"), "{} runs, and local is said to", process.content),
            Some(version) => {
                if let Some(digest) = &version.digest {
                    assert_eq!(digest.0, process.digest, "{version} is said to run");
                }
            }
        }
    }

    pub fn events(&self) -> Vec<&'static str> {
        let emitted = self.effects.iter().filter_map(|effect| match effect {
            Effect::Emit(event) => Some(event.reason.as_str()),
            _ => None,
        });
        emitted.collect()
    }

    /// The message of the last event with this reason.
    pub fn message(&self, reason: &str) -> String {
        let found = self.effects.iter().rev().find_map(|effect| match effect {
            Effect::Emit(event) if event.reason.as_str() == reason => Some(event.message.clone()),
            _ => None,
        });
        found.unwrap_or_else(|| panic!("no {reason} among {:?}", self.events()))
    }

    /// What is durable.
    pub fn disk(&self) -> &Records {
        &self.store.records
    }

    pub fn active(&self) -> &str {
        self.state.active().map_or("", |version| &version.source.reference.name)
    }

    /// The content of the kubelet that runs, empty for local; `None` if there is no kubelet.
    pub fn running(&self) -> Option<&str> {
        self.process.as_ref().map(|process| process.content.as_str())
    }

    pub fn last_known_good(&self) -> &str {
        self.disk().last_known_good.as_ref().map_or("", |version| &version.source.reference.name)
    }

    /// True if a failure is held against a version of this name, on disk.
    pub fn is_bad(&self, name: &str) -> bool {
        let tested = matches!(&self.disk().phase, Phase::ControlTest(attempt, _) if attempt.version.source.reference.name == name);
        tested || self.disk().bad.iter().any(|bad| bad.source.reference.name == name)
    }

    /// True if the supervisor has ended.
    pub fn has_quit(&self) -> bool {
        self.quit
    }
}
