//! The bare machine with the world around it answering at once, for scenarios in a few lines.

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use kubelet_config::assignment::Assignment;
use kubelet_config::digest::Digest;
use kubelet_config::pods::PodInventory;
use kubelet_config::rendering::HealthzTarget;
use kubelet_config::source::{ConfigAnnotations, ConfigMapRef, Payload, Source};
use kubelet_supervisor::machine::command::Command;
use kubelet_supervisor::machine::evidence::{Environment, LeaseObservation, NodeReadiness, Query};
use kubelet_supervisor::machine::model::{Exit, KubeletId, Moment, Rendered, Verdict};
use kubelet_supervisor::machine::{
    EXIT_FOR_RESTART, Effect, Handover, Input, Kubelet, Purpose, Records, RestartBy, Settings, State, Stored,
};
use serde_json::{Value, json};

/// A node: every field is what the world would answer now.
pub struct Node {
    pub state: State,
    pub now: Duration,
    pub wall_nanos: u64,
    /// What is durable.
    pub disk: Records,
    /// The kubelet becomes ready so long after its start; `None`: never.
    pub ready_after: Option<u64>,
    pub healthz: Option<bool>,
    pub environment: Environment,
    /// `None`: nobody answers.
    pub queries_answered: bool,
    /// The next start fails.
    pub start_fails: bool,
    /// SIGTERM is not minded.
    pub is_deaf: bool,
    /// The API server answers this node.
    pub api: bool,
    /// The API server answers everything with 503.
    pub busy: bool,
    /// The kubelet renews its Lease and posts its Node.
    pub contact: bool,
    pub is_ready: bool,
    /// The kubelet pings its watchdog.
    pub pings: bool,
    pub inventory: PodInventory,
    pub log_tail: Vec<String>,
    /// Names that the preflight refuses.
    pub refused: Vec<String>,
    /// Names whose content is that of another.
    pub same_content: BTreeMap<String, String>,
    /// Configurations by name, as far as the machine looks into them.
    pub configurations: BTreeMap<String, (Value, ConfigAnnotations)>,
    /// Everything that came out, without the questions.
    pub effects: Vec<Effect>,
    /// Sources the kubelet was started with; empty is local.
    pub starts: Vec<String>,
    /// Stops of the kubelet.
    pub tickets: u64,
    pid: u32,
    ready_at: Option<Duration>,
    settings: Settings,
    mode: Mode,
}

pub fn reference(name: &str) -> ConfigMapRef {
    ConfigMapRef { namespace: "n".into(), name: name.into(), kubelet_config_key: "kubelet".into() }
}

pub fn source(name: &str) -> Source {
    Source { reference: reference(name), resource_version: "1".into(), uid: format!("uid-{name}") }
}

/// What the content of a version is called.
fn content(source: &Source) -> String {
    let Source { reference, resource_version, .. } = source;
    if resource_version == "1" { reference.name.clone() } else { format!("{}@{resource_version}", reference.name) }
}

/// What becomes of the supervisor while a scenario goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// It lives on.
    #[default]
    Plain,
    /// Another one takes over every seven seconds.
    Reloaded,
    /// `--restart-by exit`: each kubelet has a supervisor of its own.
    Restarted,
}

thread_local! {
    static MODE: Cell<Mode> = const { Cell::new(Mode::Plain) };
}

/// Runs a scenario; the nodes that it makes are of this mode.
pub fn in_mode(mode: Mode, scenario: fn()) {
    struct Reset;
    impl Drop for Reset {
        fn drop(&mut self) {
            MODE.set(Mode::Plain);
        }
    }
    let _reset = Reset;
    MODE.set(mode);
    scenario();
}

/// Makes three tests of each scenario, one for each [Mode]. One that is not named is dead code, which the compiler reports.
#[macro_export]
macro_rules! scenarios {
    ($($name:ident),+ $(,)?) => {
        $crate::scenarios!(@ plain Plain $($name)+);
        $crate::scenarios!(@ reloaded Reloaded $($name)+);
        $crate::scenarios!(@ restarted Restarted $($name)+);
    };
    (@ $module:ident $mode:ident $($name:ident)+) => {
        mod $module {
            $(
                #[test]
                fn $name() {
                    $crate::node::in_mode($crate::node::Mode::$mode, super::$name);
                }
            )+
        }
    };
}

impl Node {
    /// A node on its local configuration for a minute, all signals good.
    pub fn new() -> Self {
        Self::with(Settings::default())
    }

    pub fn with(mut settings: Settings) -> Self {
        let mode = MODE.get();
        if mode == Mode::Restarted {
            settings.restart_by = RestartBy::Exit;
        }
        let mut node = Self {
            state: State::new(settings.clone()),
            now: Duration::from_secs(1000),
            wall_nanos: 1_700_000_000_000_000_000,
            disk: Records::default(),
            ready_after: Some(1),
            healthz: Some(true),
            environment: Environment { runtime: Some(true), ..Environment::default() },
            queries_answered: true,
            start_fails: false,
            is_deaf: false,
            api: true,
            busy: false,
            contact: true,
            is_ready: true,
            pings: true,
            inventory: PodInventory::default(),
            log_tail: Vec::new(),
            refused: Vec::new(),
            same_content: BTreeMap::new(),
            configurations: BTreeMap::new(),
            effects: Vec::new(),
            starts: Vec::new(),
            tickets: 0,
            pid: 0,
            ready_at: None,
            settings,
            mode,
        };
        node.boot();
        node.pass(60);
        node
    }

    /// A life of the supervisor begins on what is durable.
    pub fn boot(&mut self) {
        self.state = State::new(self.settings.clone());
        let stored = Stored {
            assigned: Ok(self.disk.assigned.clone()),
            last_known_good: Ok(self.disk.last_known_good.clone()),
            local_state: Ok(self.disk.local_state.clone()),
        };
        self.ready_at = None;
        self.step(Input::Boot(Box::new(stored), KubeletId("kubelet".into())));
        if let Some(assigned) = self.disk.assigned.clone() {
            self.step(Input::Node(Assignment::Map(assigned.reference.clone())));
            self.map(&assigned.reference.name);
        }
    }

    /// Another supervisor goes on in this one's place, if it can just now.
    pub fn reload(&mut self) -> bool {
        let Some(handover) = self.state.hand_over() else { return false };
        let before = self.state.clone();
        self.state = State::new(self.settings.clone());
        let handover = Handover::decode(&handover.encode()).unwrap();
        self.step(Input::Resume(Box::new(handover)));
        self.hear(self.state.assignment.clone());
        assert_eq!(self.state.pid(), before.pid());
        true
    }

    /// The API server shows what it has to whoever comes.
    fn hear(&mut self, wanted: Assignment) {
        self.step(Input::Node(wanted.clone()));
        if let Assignment::Map(reference) = wanted {
            self.map(&reference.name);
        }
    }

    /// The supervisor ended for a restart: systemd starts another.
    fn restart(&mut self) {
        if self.state.exit_code() == EXIT_FOR_RESTART {
            let wanted = self.state.assignment.clone();
            self.boot();
            self.hear(wanted);
        }
    }

    /// The machine loses power and comes up again, its clock near zero.
    pub fn reboot(&mut self) {
        self.now = Duration::from_secs(5);
        self.settings.boot_id += 1;
        self.boot();
    }

    /// A configuration of this name, different in content from all others.
    pub fn define(&mut self, name: &str, fields: Value, annotations: ConfigAnnotations) {
        self.configurations.insert(name.to_owned(), (fields, annotations));
    }

    /// Assigns it; one that is not defined yet has nothing special.
    pub fn assign(&mut self, name: &str) {
        self.configurations.entry(name.to_owned()).or_insert((json!({}), ConfigAnnotations::default()));
        self.step(Input::Node(Assignment::Map(reference(name))));
        self.map(name);
    }

    fn map(&mut self, name: &str) {
        self.edit(name, "1");
    }

    /// The watched ConfigMap has this version now; its content is called `NAME@VERSION`.
    pub fn edit(&mut self, name: &str, version: &str) {
        self.step(Input::ConfigMap(Arc::new(Payload {
            namespace: "n".into(),
            name: name.into(),
            uid: format!("uid-{name}"),
            resource_version: version.into(),
            data: BTreeMap::default(),
            annotations: ConfigAnnotations::default(),
        })));
    }

    fn rendered(&self, source: Option<&Source>) -> Rendered {
        let name = &source.map(content).unwrap_or_default();
        let (mut fields, annotations) =
            self.configurations.get(name).cloned().unwrap_or((json!({}), ConfigAnnotations::default()));
        // Differs, and nobody minds.
        fields["syncFrequency"] = json!(name);
        Rendered {
            digest: Digest(self.same_content.get(name).unwrap_or(name).clone()),
            path: format!("/{name}"),
            healthz: self.healthz.map(|_| HealthzTarget { host: "127.0.0.1".into(), port: 10248 }),
            effective: Arc::new(fields),
            annotations,
            runtime: Some("unix:///run/runtime.sock".into()),
            ..Rendered::default()
        }
    }

    pub fn exit(&mut self, code: i32) {
        self.ready_at = None;
        self.step(Input::Exited(Exit::Code(code)));
    }

    /// Gives the answer.
    pub fn operate(&mut self, command: Command) -> Result<String, String> {
        self.tickets += 1;
        let ticket = self.tickets;
        self.step(Input::Operator(ticket, command));
        let answer = self.effects.iter().rev().find_map(|effect| match effect {
            Effect::Answer(of, result) if *of == ticket => Some(result.clone()),
            _ => None,
        });
        answer.unwrap()
    }

    pub fn step(&mut self, input: Input) {
        let mut inputs = VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            if self.state.kubelet == Kubelet::Gone {
                break;
            }
            let now = Moment { boot: self.now, wall_nanos: self.wall_nanos };
            for effect in self.state.step(input, now) {
                // Words are had at once; looks take their time.
                match self.answer(&effect) {
                    Some(words @ Input::LogTail(_)) => inputs.push_front(words),
                    answer => inputs.extend(answer),
                }
                self.effects.push(effect);
            }
        }
        self.restart();
    }

    fn answer(&mut self, effect: &Effect) -> Option<Input> {
        match effect {
            Effect::Save(source, _) => Some(Input::Saved(source.clone(), Ok(()))),
            Effect::Render(purpose, source) => {
                let rendered = self.rendered(source.as_ref());
                let id = KubeletId("kubelet".into());
                assert!(*purpose == Purpose::Launch || *purpose == Purpose::Change);
                Some(Input::Rendered(*purpose, source.clone(), id, Ok(rendered)))
            }
            Effect::Preflight(ticket, rendered) => {
                let refused = self.refused.contains(&rendered.digest.0);
                let verdict = if refused { Verdict::Validate("no".into()) } else { Verdict::Valid(Vec::new()) };
                Some(Input::Judged(*ticket, verdict))
            }
            Effect::Record(because, records) => {
                self.disk = records.clone();
                Some(Input::Recorded(*because, Ok(records.clone())))
            }
            Effect::Start(..) if std::mem::take(&mut self.start_fails) => {
                Some(Input::Started(Err("fork: out of memory".to_owned())))
            }
            Effect::Start(config, _) => {
                self.pid += 1;
                self.starts.push(config.clone().unwrap_or_default().trim_start_matches('/').to_owned());
                self.ready_at = self.ready_after.map(|after| self.now + Duration::from_secs(after));
                Some(Input::Started(Ok(self.pid)))
            }
            Effect::Stop if self.is_deaf => None,
            Effect::Stop | Effect::Kill => {
                self.ready_at = None;
                Some(Input::Exited(Exit::Code(0)))
            }
            Effect::Probe(_) => self.healthz.map(Input::Probed),
            Effect::ReadLogTail => Some(Input::LogTail(self.log_tail.clone())),
            Effect::Query(_) if !self.queries_answered => None,
            Effect::Query(Query::Lease) if self.busy => {
                Some(Input::LeaseObserved(LeaseObservation::Busy("503".into())))
            }
            Effect::Query(Query::Lease) if !self.api => {
                Some(Input::LeaseObserved(LeaseObservation::Unreachable("refused".into())))
            }
            Effect::Query(Query::Lease) => Some(Input::LeaseObserved(LeaseObservation::Renewed(self.renewed()))),
            Effect::Query(Query::Pods) => Some(Input::PodsObserved(self.api.then(|| self.inventory.clone()))),
            Effect::Query(Query::Environment(_)) => Some(Input::EnvironmentObserved(self.environment.clone())),
            _ => None,
        }
    }

    /// The Lease's renew time: a kubelet in contact renewed it this second.
    fn renewed(&self) -> String {
        let alive = self.contact && self.ready_at.is_some_and(|at| self.now >= at);
        let seconds = self.wall_nanos / 1_000_000_000;
        let at = if alive { seconds } else { 1_600_000_000 };
        kubelet_config::status::timestamp(at * 1_000_000_000)
    }

    /// Time passes, second by second.
    pub fn pass(&mut self, seconds: u64) {
        for _ in 0..seconds {
            self.now += Duration::from_secs(1);
            self.wall_nanos = self.wall_nanos.wrapping_add(1_000_000_000);
            let running = matches!(&self.state.kubelet, Kubelet::Running(_));
            if running && self.ready_at == Some(self.now) {
                self.step(Input::Ready);
            }
            let ready = running && self.ready_at.is_some_and(|at| self.now >= at);
            if ready && self.now.as_secs().is_multiple_of(10) {
                if self.api {
                    // Without contact the control plane says Unknown, and the heartbeat stands still.
                    let ready = self.is_ready && self.contact;
                    let heartbeat = if self.contact { self.now.as_secs().to_string() } else { "before".to_owned() };
                    let message = if ready { String::new() } else { "PLEG is not healthy".to_owned() };
                    self.step(Input::NodeObserved(NodeReadiness { ready, heartbeat, message }));
                }
                if self.pings {
                    self.step(Input::Watchdog);
                }
            }
            self.step(Input::Tick);
            if self.mode == Mode::Reloaded && self.now.as_secs().is_multiple_of(7) {
                self.reload();
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

    pub fn active(&self) -> &str {
        self.state.active.as_ref().map_or("", |source| &source.reference.name)
    }

    pub fn last_known_good(&self) -> &str {
        self.disk.last_known_good.as_ref().map_or("", |source| &source.reference.name)
    }

    /// True if a version of this name is bad on disk.
    pub fn is_bad(&self, name: &str) -> bool {
        self.disk.local_state.bad.iter().any(|bad| bad.source.reference.name == name)
    }
}
