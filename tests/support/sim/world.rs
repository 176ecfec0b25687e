//! Everything outside the supervisor but the disk: time, API server, kubelet, judge.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use kubelet_supervisor::adapters::store::FsStore;
use kubelet_supervisor::core::machine::{Counter, Input, Level, State, Wanted};
use kubelet_supervisor::core::model::{
    ConfigMapRef, Exit, HealthzTarget, KubeletId, Merge, Moment, Payload, Rendered, Source, Verdict,
};
use kubelet_supervisor::core::record::Entry;
use kubelet_supervisor::core::report::NodeConfigStatus;
use kubelet_supervisor::ports::{self, Store as _};

use super::Rng;
use super::disk::SimDisk;

/// Where the store is.
pub const ROOT: &str = "/var/lib/kubelet/dynamic-config";
pub const NAMESPACE: &str = "kube-system";
pub const KEY: &str = "kubelet";

/// What a configuration does to the kubelet that is given it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behaviour {
    Good,
    /// Works, but the preflight cannot tell.
    Mute,
    /// Not a KubeletConfiguration.
    Unloadable,
    /// The preflight refuses it, and so does the kubelet.
    Invalid,
    /// Passes the preflight and dies before it is ready.
    DiesAtOnce,
    /// Dies so many seconds after it is ready.
    DiesAfter(u64),
    NeverReady,
    /// healthz fails so many seconds after it is ready, for good.
    SickAfter(u64),
    /// healthz fails once, 20 s after it is ready, and recovers.
    Hiccup,
    /// Works, but does not mind SIGTERM.
    Stubborn,
}

impl Behaviour {
    /// A payload with this behaviour; `salt` makes contents differ.
    pub fn text(self, salt: u64) -> String {
        let kind = if self == Self::Unloadable { "Pod" } else { "KubeletConfiguration" };
        let word = match self {
            Self::DiesAfter(seconds) => format!("dies-{seconds}"),
            Self::SickAfter(seconds) => format!("sick-{seconds}"),
            other => format!("{other:?}"),
        };
        format!("kind: {kind}\napiVersion: kubelet.config.k8s.io/v1beta1\nbehaviour: {word}\nsalt: {salt}\n")
    }

    /// Reads it back from the text of a payload or a rendered configuration.
    pub fn of(text: &str) -> Self {
        let word = text.split("behaviour").nth(1).unwrap_or_default();
        let word: String = word
            .chars()
            .skip_while(|c| !c.is_alphanumeric())
            .take_while(|c| c.is_alphanumeric() || *c == '-')
            .collect();
        let number = || word.split('-').nth(1).unwrap().parse().unwrap();
        match word.as_str() {
            "Good" => Self::Good,
            "Mute" => Self::Mute,
            "Unloadable" => Self::Unloadable,
            "DiesAtOnce" => Self::DiesAtOnce,
            "NeverReady" => Self::NeverReady,
            "Hiccup" => Self::Hiccup,
            "Stubborn" => Self::Stubborn,
            word if word.starts_with("dies-") => Self::DiesAfter(number()),
            word if word.starts_with("sick-") => Self::SickAfter(number()),
            _ => Self::Invalid,
        }
    }

    /// True if it survives any trial.
    pub fn works(self) -> bool {
        matches!(self, Self::Good | Self::Mute | Self::Hiccup | Self::Stubborn)
    }
}

/// What will happen, addressed to whom it concerns.
#[derive(Clone, Debug)]
enum Coming {
    Node,
    Map,
    Ready(u32),
    Exit(u32, Exit),
    Healthz(u32, bool),
    Verdict(u64, Verdict),
    Probe(u32),
}

/// The kubelet process.
#[derive(Clone, Debug)]
pub struct Process {
    pub pid: u32,
    /// What it was given; `None` is its own file.
    pub source: Option<Source>,
    /// Content of what it was given.
    pub text: String,
    pub ready: bool,
    sick: bool,
    stopping: bool,
    /// Ready and healthy without a break since.
    pub healthy_since: Option<Duration>,
}

/// Time, API server and kubelet.
#[derive(Debug)]
pub struct Outside {
    pub now: Duration,
    /// The wall clock's error; it may jump.
    pub wall_skew: u64,
    pub disk: SimDisk,
    pub rng: Rng,
    pub api_up: bool,
    pub wanted: Wanted,
    pub maps: BTreeMap<String, Payload>,
    /// All that ever existed, by uid and resourceVersion.
    pub history: BTreeMap<(String, String), String>,
    /// Checkpoints that were spoiled, maybe between their verification and the start.
    pub rotten: BTreeSet<(String, String)>,
    pub process: Option<Process>,
    pub down_since: Duration,
    pub kubelet_id: String,
    pub local: String,
    /// So many starts fail for want of memory.
    pub spawn_failures: u32,
    /// What broke a law, found where it happened.
    pub violations: Vec<String>,
    pub events: Vec<String>,
    pub starts: Vec<Option<Source>>,
    pub status: NodeConfigStatus,
    /// The last assignment the supervisor was told of.
    pub told: Wanted,
    versions: u64,
    pids: u32,
    watched: Option<ConfigMapRef>,
    queue: Vec<(Duration, u64, Coming)>,
    sequence: u64,
}

const fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

impl Outside {
    pub fn new(rng: Rng, local: Behaviour) -> Self {
        Self {
            now: Duration::from_secs(1000),
            wall_skew: 0,
            disk: SimDisk::default(),
            rng,
            api_up: true,
            wanted: Wanted::Local,
            maps: BTreeMap::new(),
            history: BTreeMap::new(),
            rotten: BTreeSet::new(),
            process: None,
            down_since: Duration::from_secs(1000),
            kubelet_id: "kubelet 1".to_owned(),
            local: local.text(0),
            spawn_failures: 0,
            violations: Vec::new(),
            events: Vec::new(),
            starts: Vec::new(),
            status: NodeConfigStatus::default(),
            told: Wanted::Unknown,
            versions: 100,
            pids: 0,
            watched: None,
            queue: Vec::new(),
            sequence: 0,
        }
    }

    pub fn moment(&self) -> Moment {
        let wall = u64::try_from(self.now.as_nanos()).unwrap();
        Moment { boot: self.now, wall_nanos: wall.wrapping_add(self.wall_skew) }
    }

    fn schedule(&mut self, after: Duration, what: Coming) {
        self.sequence += 1;
        self.queue.push((self.now + after, self.sequence, what));
    }

    pub fn next_at(&self) -> Option<Duration> {
        self.queue.iter().map(|(at, ..)| *at).min()
    }

    /// The next thing that is due, as the supervisor hears of it.
    pub fn take_due(&mut self) -> Option<Input> {
        let (index, _) = self.queue.iter().enumerate().min_by_key(|(_, (at, number, _))| (*at, *number))?;
        if self.queue[index].0 > self.now {
            return None;
        }
        let (_, _, coming) = self.queue.swap_remove(index);
        Some(self.happen(coming).unwrap_or(Input::Tick))
    }

    fn happen(&mut self, coming: Coming) -> Option<Input> {
        let now = self.now;
        match coming {
            Coming::Node => self.api_up.then(|| {
                if self.wanted != Wanted::Unknown {
                    self.told = self.wanted.clone();
                }
                Input::Node(self.wanted.clone())
            }),
            Coming::Map => self.map_input(),
            Coming::Verdict(ticket, verdict) => Some(Input::Judged(ticket, verdict)),
            Coming::Ready(pid) => {
                let process = self.process_of(pid)?;
                process.ready = true;
                process.healthy_since = Some(now);
                Some(Input::Ready)
            }
            Coming::Healthz(pid, sick) => {
                let process = self.process_of(pid)?;
                process.sick = sick;
                process.healthy_since = (!sick).then_some(now);
                None
            }
            Coming::Exit(pid, exit) => {
                self.process_of(pid)?;
                self.process = None;
                self.down_since = now;
                Some(Input::Exited(exit))
            }
            Coming::Probe(pid) => {
                Some(Input::Probed(self.process_of(pid).is_some_and(|process| process.ready && !process.sick)))
            }
        }
    }

    fn process_of(&mut self, pid: u32) -> Option<&mut Process> {
        self.process.as_mut().filter(|process| process.pid == pid)
    }

    fn map_input(&self) -> Option<Input> {
        let watched = self.watched.as_ref()?;
        if !self.api_up {
            return Some(Input::MapFailed { why: "connection refused".to_owned(), definite: false });
        }
        Some(match self.maps.get(&watched.name) {
            Some(map) => Input::Map(Arc::new(map.clone())),
            None => Input::MapFailed { why: "not found".to_owned(), definite: true },
        })
    }

    /// The node lost power, or its supervisor died and took the kubelet along.
    pub fn forget_life(&mut self) {
        self.queue.clear();
        self.watched = None;
        self.process = None;
        self.down_since = self.now;
        self.told = Wanted::Unknown;
        self.hear();
    }

    /// The API server's news are on their way, if it is up.
    pub fn hear(&mut self) {
        let delay = ms(5 + self.rng.below(20));
        self.schedule(delay, Coming::Node);
        self.schedule(delay + ms(1), Coming::Map);
    }

    pub fn set_api(&mut self, up: bool) {
        self.api_up = up;
        self.hear();
    }

    pub fn want(&mut self, wanted: Wanted) {
        self.wanted = wanted;
        self.hear();
    }

    pub fn reference(name: &str, key: &str) -> ConfigMapRef {
        ConfigMapRef { namespace: NAMESPACE.to_owned(), name: name.to_owned(), kubelet_config_key: key.to_owned() }
    }

    pub fn assign(&mut self, name: &str) {
        self.want(Wanted::Map(Self::reference(name, KEY)));
    }

    /// Creates or replaces a ConfigMap.
    pub fn put(&mut self, name: &str, text: &str) {
        let data = [(KEY, text), ("other", text)].map(|(key, text)| (key.to_owned(), text.to_owned()));
        self.versions += 1;
        let uid = self.maps.get(name).map_or_else(|| format!("uid-{}", self.versions), |map| map.uid.clone());
        let payload = Payload {
            namespace: NAMESPACE.to_owned(),
            name: name.to_owned(),
            uid: uid.clone(),
            resource_version: self.versions.to_string(),
            data: data.into(),
            wishes: kubelet_supervisor::core::model::Wishes::default(),
        };
        self.history.insert((uid, payload.resource_version.clone()), text.to_owned());
        self.maps.insert(name.to_owned(), payload);
        self.hear();
    }

    /// A label edit: a new resourceVersion of the same content.
    pub fn touch(&mut self, name: &str) {
        if let Some(text) = self.maps.get(name).map(|map| map.data[KEY].clone()) {
            self.put(name, &text);
        }
    }

    pub fn delete(&mut self, name: &str) {
        self.maps.remove(name);
        self.hear();
    }

    /// The version the Node wants, if there is one.
    pub fn wanted_source(&self) -> Option<Source> {
        let Wanted::Map(reference) = &self.wanted else { return None };
        Some(self.maps.get(&reference.name)?.resolve(reference))
    }

    pub fn text_of(&self, source: &Source) -> Option<&String> {
        self.history.get(&(source.uid.clone(), source.resource_version.clone()))
    }

    /// Somebody kills the kubelet.
    pub fn kill_kubelet(&mut self) {
        if let Some(pid) = self.process.as_ref().map(|process| process.pid) {
            self.schedule(ms(1), Coming::Exit(pid, Exit::Signal(9)));
        }
    }

    /// Laws 2 and 3, at the moment of the start and as if the power went now.
    fn check_start(&mut self, source: &Source) {
        for (view, disk) in [("seen", self.disk.copy()), ("durable", self.disk.worst())] {
            let mut store = FsStore::new(disk, Path::new(ROOT));
            let stored = store.load();
            let named = [&stored.assigned, &stored.last_known_good]
                .iter()
                .any(|it| it.as_ref().ok() == Some(&Some(source.clone())));
            if !named {
                self.violations.push(format!("started {source}, but the {view} records are {stored:?}"));
            }
            let rotten = self.rotten.contains(&(source.uid.clone(), source.resource_version.clone()));
            if let (Err(why), false) = (store.open(source), rotten) {
                self.violations.push(format!("started {source} with a {view} checkpoint that is broken: {why}"));
            }
            let marks = stored.ledger.map(|ledger| ledger.bad).unwrap_or_default();
            if marks.iter().any(|bad| bad.source == *source && bad.kubelet.0 == self.kubelet_id) {
                self.violations.push(format!("started {source}, which is marked bad on the {view} disk"));
            }
        }
    }
}

/// `/…/rendered/<uid>/<resourceVersion>/<key>` back to what it was rendered from.
fn source_of(outside: &Outside, path: &str) -> Option<Source> {
    let mut parts = path.rsplit('/');
    let (key, resource_version, uid) = (parts.next()?, parts.next()?, parts.next()?);
    let stored = FsStore::new(outside.disk.copy(), Path::new(ROOT)).load();
    let known = [stored.assigned.ok().flatten(), stored.last_known_good.ok().flatten()];
    known.into_iter().flatten().find(|source| {
        source.uid == uid && source.resource_version == resource_version && source.reference.kubelet_config_key == key
    })
}

/// The ports of one life of the supervisor.
#[derive(Debug)]
pub struct World {
    outside: Handle,
    store: FsStore<SimDisk>,
}

#[derive(Clone, Debug)]
struct Handle(Rc<RefCell<Outside>>);

impl World {
    pub fn new(outside: &Rc<RefCell<Outside>>) -> Self {
        let disk = outside.borrow().disk.clone();
        Self { outside: Handle(outside.clone()), store: FsStore::new(disk, Path::new(ROOT)) }
    }
}

impl ports::Ports for World {
    fn store(&mut self) -> &mut dyn ports::Store {
        &mut self.store
    }
    fn local(&self) -> &dyn ports::Local {
        &self.outside
    }
    fn kubelet(&mut self) -> &mut dyn ports::Kubelet {
        &mut self.outside
    }
    fn preflight(&mut self) -> &mut dyn ports::Preflight {
        &mut self.outside
    }
    fn probe(&mut self) -> &mut dyn ports::Probe {
        &mut self.outside
    }
    fn cluster(&mut self) -> &mut dyn ports::Cluster {
        &mut self.outside
    }
    fn host(&mut self) -> &mut dyn ports::Host {
        &mut self.outside
    }
    fn notifier(&mut self) -> &mut dyn ports::Notifier {
        &mut self.outside
    }
}

impl ports::Local for Handle {
    fn config(&self) -> Result<Option<(String, String)>, String> {
        Ok(Some((self.0.borrow().local.clone(), "/etc/kubernetes".to_owned())))
    }
    fn drop_ins(&self) -> Vec<String> {
        Vec::new()
    }
    fn kubelet_id(&self) -> KubeletId {
        KubeletId(self.0.borrow().kubelet_id.clone())
    }
    fn default_merge(&self) -> Merge {
        Merge::Replace
    }
}

impl ports::Kubelet for Handle {
    fn start(&mut self, config: Option<&str>) -> Result<u32, String> {
        let mut outside = self.0.borrow_mut();
        if outside.disk.is_off() {
            return Err("power is off".to_owned());
        }
        if outside.process.is_some() {
            outside.violations.push("a second kubelet was started".to_owned());
        }
        if outside.spawn_failures > 0 {
            outside.spawn_failures -= 1;
            return Err("fork: out of memory".to_owned());
        }
        let mut source = None;
        let mut text = outside.local.clone();
        if let Some(path) = config {
            text = outside.disk.peek(Path::new(path)).unwrap_or_default();
            source = source_of(&outside, path);
            match source.clone() {
                Some(source) => outside.check_start(&source),
                None => {
                    let stored = FsStore::new(outside.disk.copy(), Path::new(ROOT)).load();
                    outside.violations.push(format!("started {path}, which no record names: {stored:?}"));
                }
            }
        }
        outside.pids += 1;
        let pid = outside.pids;
        let behaviour = Behaviour::of(&text);
        let (start, ready) = (ms(800), !matches!(behaviour, Behaviour::DiesAtOnce | Behaviour::Invalid));
        if !ready {
            outside.schedule(start, Coming::Exit(pid, Exit::Code(1)));
        } else if behaviour != Behaviour::NeverReady {
            outside.schedule(start, Coming::Ready(pid));
        }
        match behaviour {
            Behaviour::DiesAfter(seconds) => {
                outside.schedule(start + Duration::from_secs(seconds), Coming::Exit(pid, Exit::Code(255)));
            }
            Behaviour::SickAfter(seconds) => {
                outside.schedule(start + Duration::from_secs(seconds), Coming::Healthz(pid, true));
            }
            Behaviour::Hiccup => {
                outside.schedule(ms(20_000), Coming::Healthz(pid, true));
                outside.schedule(ms(26_000), Coming::Healthz(pid, false));
            }
            _ => {}
        }
        outside.starts.push(source.clone());
        outside.process =
            Some(Process { pid, source, text, ready: false, sick: false, stopping: false, healthy_since: None });
        Ok(pid)
    }

    fn stop(&mut self) {
        let mut outside = self.0.borrow_mut();
        let Some(process) = &mut outside.process else { return };
        let (pid, stubborn) = (process.pid, Behaviour::of(&process.text) == Behaviour::Stubborn);
        process.stopping = true;
        if !stubborn {
            outside.schedule(ms(20), Coming::Exit(pid, Exit::Code(0)));
        }
    }

    fn kill(&mut self) {
        let mut outside = self.0.borrow_mut();
        if let Some(pid) = outside.process.as_ref().map(|process| process.pid) {
            outside.schedule(ms(1), Coming::Exit(pid, Exit::Signal(9)));
        }
    }

    fn last_words(&self) -> Vec<String> {
        Vec::new()
    }
}

impl ports::Preflight for Handle {
    fn judge(&mut self, ticket: u64, candidate: &Rendered) {
        let mut outside = self.0.borrow_mut();
        let verdict = match Behaviour::of(&outside.disk.peek(Path::new(&candidate.path)).unwrap_or_default()) {
            Behaviour::Invalid => Verdict::Validate("invalid configuration: behaviour".to_owned()),
            Behaviour::Mute => Verdict::Inconclusive("no words".to_owned()),
            _ => Verdict::Valid(Vec::new()),
        };
        // An earlier run is dropped.
        outside.queue.retain(|(_, _, coming)| !matches!(coming, Coming::Verdict(..)));
        let delay = ms(100 + outside.rng.below(900));
        outside.schedule(delay, Coming::Verdict(ticket, verdict));
    }
    fn self_test(&mut self) {}
}

impl ports::Probe for Handle {
    fn probe(&mut self, _target: &HealthzTarget) {
        let mut outside = self.0.borrow_mut();
        if let Some(pid) = outside.process.as_ref().map(|process| process.pid) {
            outside.schedule(ms(5), Coming::Probe(pid));
        }
    }
}

impl ports::Cluster for Handle {
    fn watch(&mut self, map: Option<&ConfigMapRef>) {
        let mut outside = self.0.borrow_mut();
        outside.watched = map.cloned();
        let delay = ms(5 + outside.rng.below(20));
        outside.schedule(delay, Coming::Map);
    }
    fn publish(&mut self, status: &NodeConfigStatus) {
        self.0.borrow_mut().status = status.clone();
    }
    fn emit(&mut self, entry: &Entry) {
        self.0.borrow_mut().events.push(entry.reason.clone());
    }
    fn look_lease(&mut self) {}
    fn look_pods(&mut self) {}
}

impl ports::Host for Handle {
    fn look(&mut self, _runtime: Option<&str>) {}
}

impl ports::Notifier for Handle {
    fn observe(&mut self, _state: &State) {}
    fn count(&mut self, _counter: &Counter) {}
    fn answer(&mut self, _ticket: u64, _result: &Result<String, String>) {}
    fn say(&mut self, _level: Level, _line: &str) {}
}
