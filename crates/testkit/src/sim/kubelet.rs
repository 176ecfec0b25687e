//! The simulated kubelet: comes up, falls ill, dies, lingers, and leaves traces in the cluster.

use kubelet_config::status;
use std::collections::BTreeMap;
use std::time::Duration;

use kubelet_config::pods::{NodeSummary, PodInventory, PodSummary};
use kubelet_supervisor::machine::evidence::{Environment, LeaseObservation, Signal};
use kubelet_supervisor::machine::model::{Exit, RunId};
use kubelet_supervisor::machine::{Answer, Input, Ticket};

use super::account::{Evidence, UNSEEN};
use super::promised;
use super::world::{Behaviour, Coming, Content, Outside, ms};

/// A kubelet renews its Lease as often as this.
const RENEWAL: u64 = 10;

/// A kubelet pings its watchdog as often as this, and is asked for healthz as often.
pub const PING: Duration = Duration::from_secs(15);

/// The kubelet process.
#[derive(Clone, Debug, Default)]
pub struct Process {
    pub pid: u32,
    /// What it was given; `None` is its own file.
    pub path: Option<String>,
    /// Content of what it was given.
    pub content: Content,
    /// Its binary.
    pub kubelet: String,
    pub started: Duration,
    pub ready: bool,
    pub ready_at: Option<Duration>,
    pub sick: bool,
    /// SIGTERM came then.
    pub stopping: Option<Duration>,
    pub was_healthy: bool,
    /// Somebody asked it then, and was told so.
    pub was_heard: bool,
    /// It pinged its watchdog.
    pub pinged: bool,
    /// healthz fails since then without a break.
    pub sick_since: Option<Duration>,
    /// It was sick since the first of these, until the second.
    pub revived: Option<(Duration, Duration)>,
    /// Ready and healthy without a break since.
    pub well_since: Option<Duration>,
    /// Health in sum, as far as no break undid it that the node's trouble does not suspension.
    pub earned: Duration,
    /// It is in a break that nothing has excused so far.
    pub broken: bool,
    pub cuts_off: bool,
    /// The node was in trouble at some time of its life.
    pub hindered: bool,
    /// The supervisor was told, after it was ready, that it is in contact with the API server.
    pub in_contact: bool,
    /// What makes it fail in the eyes of the cluster has been so since.
    pub lost_since: Option<Duration>,
    /// Its Node was Ready, and its Lease renewed, and the supervisor heard it first then.
    pub node_ready: Option<Duration>,
    pub leased: Option<Duration>,
    /// It hangs by chance, and minds SIGKILL alone if that is true.
    pub hangs: Option<bool>,
    /// SIGQUIT came.
    pub dumped: bool,
    /// It was started without a word of the store, or its own file was edited while it was: nobody knows what it runs.
    pub unread: bool,
}

/// How an API server that answers no question says so.
#[derive(Clone, Copy, Debug, Default)]
pub enum Refusal {
    #[default]
    Unreachable,
    /// 429, or 503.
    Busy,
    /// It said so before, with `Retry-After`.
    HeldBack,
}

impl Refusal {
    fn observation(self) -> LeaseObservation {
        match self {
            Self::Unreachable => LeaseObservation::Unreachable("connection refused".to_owned()),
            Self::Busy => LeaseObservation::Busy("503 Service Unavailable".to_owned()),
            Self::HeldBack => LeaseObservation::HeldBack,
        }
    }
}

/// The node around the kubelet, and what its life leaves in the cluster.
#[derive(Clone, Debug, Default)]
pub struct Surroundings {
    /// The container runtime is away: a kubelet does not come up.
    pub runtime_down: bool,
    /// It then exits, instead of waiting.
    pub runtime_kills: bool,
    pub shutting_down: bool,
    pub refusal: Refusal,
    /// This kubelet pings the watchdog.
    pub modern: bool,
    /// Nobody may read the Lease here.
    pub no_lease: bool,
    /// The Lease's renewTime, and which renewal that was.
    renewed: ((u32, u64, u64), String),
    renewed_at: Duration,
    renewals: u64,
    /// What the API server shows of the Node: whether it is Ready, and since when; and whose word that is.
    posted: Option<(bool, Duration, u32)>,
    /// The wall clock jumped so often: a kubelet's clock is right again at its next renewal.
    pub jumps: u64,
}

/// How the node has fared.
#[derive(Clone, Copy, Debug, Default)]
pub struct Trouble {
    /// It is in some, since then.
    pub since: Option<Duration>,
    /// It was in some, until then.
    pub until: Option<Duration>,
    /// The API server is away since then.
    pub alone_since: Option<Duration>,
    /// Added up to here.
    accumulated_to: Duration,
}

/// What the supervisor was sent.
#[derive(Clone, Debug, Default)]
pub struct Observations {
    /// Of each signal: whether it was good, and when.
    pub signals: std::collections::BTreeMap<Signal, (bool, Duration)>,
    /// Since when it has been good.
    pub good_since: std::collections::BTreeMap<Signal, Duration>,
    /// Whether the node was in trouble then that no configuration made.
    pub environment: Option<(bool, Duration)>,
    /// When it asked how the node does. It hears an answer that is in time: the change, the judge and a request ask, each for itself.
    pub asked: std::collections::BTreeMap<Ticket, Duration>,
    /// The runtime has answered in this life.
    runtime_answered: bool,
}

/// An answer about the node is waited for so long.
const IN_TIME: Duration = Duration::from_secs(10);

impl Observations {
    /// This is asked of the node; what was asked before is forgotten once its time is over.
    pub fn ask(&mut self, ticket: Ticket, now: Duration) {
        self.asked.retain(|_, at| now.saturating_sub(*at) <= IN_TIME);
        self.asked.insert(ticket, now);
    }

    fn is_in_time(&self, ticket: Ticket, now: Duration) -> bool {
        self.asked.get(&ticket).is_some_and(|at| now.saturating_sub(*at) <= IN_TIME)
    }

    /// It knows of trouble that suspends any trial.
    pub fn has_trouble(&self, now: Duration) -> bool {
        self.environment.is_some_and(|(trouble, at)| trouble && now - at <= Duration::from_secs(30))
    }

    fn note(&mut self, signal: Signal, good: bool, now: Duration) {
        self.signals.insert(signal, (good, now));
        if good {
            self.good_since.entry(signal).or_insert(now);
        } else {
            self.good_since.remove(&signal);
        }
    }

    /// It was good when it was last observed, within this time.
    pub fn is_good(&self, signal: Signal, now: Duration, within: Duration) -> bool {
        self.signals.get(&signal).is_some_and(|(good, at)| *good && now.saturating_sub(*at) <= within)
    }
}

/// Trouble is known, and its end not yet, for at most so long: queries come every 10 s, hold for
/// 30 s, and some are never answered.
pub const AFTERMATH: Duration = Duration::from_secs(45);

impl Outside {
    pub fn process_of(&mut self, pid: u32) -> Option<&mut Process> {
        self.process.as_mut().filter(|process| process.pid == pid)
    }

    /// True if the node is in trouble, or was a moment ago.
    pub fn was_in_trouble(&self) -> bool {
        self.in_trouble() || self.trouble.until.is_some_and(|until| self.now.saturating_sub(until) <= AFTERMATH)
    }

    /// Time has passed: adds up health and trouble.
    pub fn accumulate(&mut self) {
        let (now, trouble, lately) = (self.now, self.in_trouble(), self.was_in_trouble());
        let since = std::mem::replace(&mut self.trouble.accumulated_to, now);
        if trouble {
            self.trouble.since.get_or_insert(since);
            self.trouble.until = Some(now);
        } else {
            // A break between two observations is none.
            let over = self.trouble.until.is_none_or(|until| now.saturating_sub(until) > Duration::from_secs(10));
            self.trouble.since.take_if(|_| over);
        }
        if self.reaches_api() {
            self.trouble.alone_since = None;
        } else {
            self.trouble.alone_since.get_or_insert(since);
        }
        if self.surroundings.shutting_down {
            self.down_since = now; // nothing is started then
        }
        // Trouble that is over takes nothing from health, whatever was heard of it last. Of which runtime it was nobody knows
        // where the kubelet's own file could not be read.
        let unread = self.process.as_ref().is_some_and(|process| process.unread);
        let excused = trouble && !unread && self.observations.has_trouble(now);
        let lossy = self.mood != super::api::Mood::default();
        let reaches = self.reaches_api();
        let Some(process) = &mut self.process else {
            self.account.suspend_break(lately);
            return;
        };
        process.hindered |= trouble || lossy;
        self.account.evidence.contact |= reaches && process.ready;
        if process.stopping.is_none() && process.well_since.is_some_and(|since| now - since >= Duration::from_secs(25))
        {
            self.account.testing = false; // it is well, for long enough or nearly so
        }
        if process.well_since.is_none() {
            process.broken &= !lately;
        } else if !excused {
            process.earned += now.saturating_sub(since);
            if process.earned + UNSEEN >= self.account.trial {
                // What is seen later may not have been known when it was proven.
                let known = self.account.healthy.filter(|(content, _)| *content == process.content);
                self.account.healthy = known.or(Some((process.content, self.account.evidence)));
            }
        }
    }

    /// A kubelet begins its life with this content.
    pub fn begin_process(&mut self, path: Option<String>, content: Content) -> RunId {
        self.pids += 1;
        let (pid, start) = (self.pids, ms(800));
        let behaviour = content.behaviour;
        match behaviour {
            Behaviour::DiesAtOnce | Behaviour::Invalid => self.schedule(start, Coming::Exit(pid, Exit::Code(1))),
            Behaviour::NeverReady => {}
            _ if self.surroundings.runtime_down && self.surroundings.runtime_kills => {
                self.schedule(start, Coming::Exit(pid, Exit::Code(1)));
            }
            _ if self.surroundings.runtime_down => {}
            _ => self.schedule(start, Coming::Ready(pid)),
        }
        let (earned, broken) = self.account.carried(content);
        let edited = self.local_edited.is_some_and(|at| self.now <= at + promised::START_LOADS + promised::STOP_GRACE);
        let unread = path.is_none() && (edited || self.store_lags());
        self.process = Some(Process {
            unread,
            pid,
            path: path.clone(),
            content,
            kubelet: self.account.known_kubelet.clone(),
            started: self.now,
            earned,
            broken,
            cuts_off: behaviour == Behaviour::CutsOff,
            hindered: self.in_trouble(),
            ..Process::default()
        });
        if self.account.evidence.content != Some(content) {
            self.account.evidence = Evidence { content: Some(content), ..Evidence::default() };
        }
        let name = path.map_or_else(|| "local".to_owned(), |_| self.name_of(content));
        self.starts.push(name);
        RunId { pid, started: self.moment().boot }
    }

    pub fn becomes_ready(&mut self, pid: u32) -> Option<Input> {
        let (now, modern) = (self.now, self.surroundings.modern);
        let process = self.process_of(pid)?;
        if process.ready {
            return None;
        }
        process.ready = true;
        process.ready_at = Some(now);
        let secs = Duration::from_secs;
        let behaviour = process.content.behaviour;
        if behaviour == Behaviour::HalfReady {
            process.sick = true;
        } else {
            process.recovers(now);
        }
        process.lost_since =
            (behaviour.is_seen_from_afar() && !matches!(behaviour, Behaviour::SilentAfter(_))).then_some(now);
        match behaviour {
            Behaviour::DiesAfter(after) => self.schedule(secs(after), Coming::Exit(pid, Exit::Code(255))),
            Behaviour::SickAfter(after) => self.schedule(secs(after), Coming::Healthz(pid, true)),
            Behaviour::Hiccup => {
                self.schedule(secs(20), Coming::Healthz(pid, true));
                self.schedule(secs(26), Coming::Healthz(pid, false));
            }
            Behaviour::Flaps => self.schedule(secs(20), Coming::Healthz(pid, true)),
            _ => {}
        }
        if modern {
            self.schedule(PING, Coming::Watchdog(pid));
        }
        self.deliver(secs(2), Coming::Heartbeat(pid, true));
        Some(Input::Ready)
    }

    pub fn becomes_sick(&mut self, pid: u32, sick: bool) {
        let (now, lately) = (self.now, self.was_in_trouble());
        let since = self.process_of(pid).and_then(|process| process.sick_since);
        let is_unseen = since.is_some_and(|since| self.is_unwatched_since(since));
        let Some(process) = self.process_of(pid) else { return };
        process.sick = sick;
        process.broken &= !is_unseen;
        if sick {
            process.broken = !lately;
            process.well_since = None;
            process.sick_since.get_or_insert(now);
        } else {
            process.recovers(now);
        }
        if process.content.behaviour == Behaviour::Flaps {
            let next = if sick { 10 } else { 20 };
            self.schedule(Duration::from_secs(next), Coming::Healthz(pid, !sick));
        }
    }

    pub fn exits(&mut self, pid: u32, exit: Exit) -> Option<Input> {
        let process = self.process_of(pid)?.clone();
        self.process = None;
        self.down_since = self.now;
        let lately = self.was_in_trouble();
        self.account.note_exit(&process, lately, self.now);
        if process.cuts_off {
            self.hear();
        }
        Some(Input::Exited(exit))
    }

    /// What runs, or is started again and again, dies by itself.
    pub fn is_dying(&self) -> bool {
        use Behaviour::{DiesAfter, DiesAtOnce, Invalid, Unloadable};
        let dies = |content: Content| matches!(content.behaviour, DiesAfter(_) | DiesAtOnce | Invalid | Unloadable);
        self.content_of(None).is_some_and(dies) || self.account.last.as_ref().is_some_and(|it| dies(it.content))
    }

    /// SIGTERM comes.
    pub fn terminate(&mut self) {
        let now = self.now;
        let Some(process) = &mut self.process else { return };
        process.stopping.get_or_insert(now);
        let (pid, behaviour, deaf) = (process.pid, process.content.behaviour, process.hangs == Some(true));
        self.schedule(promised::STOP_GRACE, Coming::Exit(pid, Exit::Signal(9)));
        match behaviour {
            Behaviour::Stubborn => {}
            _ if deaf => {}
            Behaviour::SlowToStop => self.schedule(ms(9000), Coming::Exit(pid, Exit::Code(0))),
            _ => self.schedule(ms(20), Coming::Exit(pid, Exit::Code(0))),
        }
    }

    /// SIGQUIT comes: it writes its stacks and ends, unless it is stopped.
    pub fn dump_stacks(&mut self) {
        let now = self.now;
        let Some(process) = &mut self.process else { return };
        process.stopping.get_or_insert(now);
        process.dumped = true;
        let (pid, deaf) = (process.pid, process.hangs == Some(true));
        let is_stubborn = process.content.behaviour == Behaviour::Stubborn;
        self.schedule(promised::STOP_GRACE, Coming::Exit(pid, Exit::Signal(9)));
        if !deaf && !is_stubborn {
            self.schedule(ms(300), Coming::Exit(pid, Exit::Code(2)));
        }
    }

    /// A kubelet that works hangs until there is another; one on which somebody is to come to a verdict, if that is wanted.
    pub fn hang(&mut self, deaf: bool, judged: bool) -> bool {
        let account = &self.account;
        let settled = |it: &Process| (it.path.is_none() || account.is_lkg(it.content)) && !account.testing;
        let fits = |it: &Process| it.well_since.is_some() && it.content.behaviour.works() && (judged || settled(it));
        let Some(pid) = self.process.as_ref().filter(|it| fits(it)).map(|it| it.pid) else {
            return false;
        };
        self.process.iter_mut().for_each(|it| (it.hindered, it.hangs) = (true, Some(deaf)));
        self.becomes_sick(pid, true);
        true
    }

    /// One that hung by chance goes on.
    pub fn end_hang(&mut self) {
        if let Some(process) = self.process.as_mut().filter(|it| it.hangs.is_some()) {
            process.hangs = None;
            let pid = process.pid;
            self.becomes_sick(pid, false);
        }
    }

    /// Somebody kills the kubelet.
    pub fn kill_kubelet(&mut self) {
        self.process.iter_mut().for_each(|process| process.hindered = true);
        if let Some(pid) = self.process.as_ref().map(|process| process.pid) {
            self.schedule(ms(1), Coming::Exit(pid, Exit::Signal(9)));
        }
    }

    pub fn probed(&mut self, ticket: Ticket, pid: u32) -> Input {
        let ok = self.process_of(pid).is_some_and(|process| {
            let ok = process.ready && !process.sick;
            process.was_heard |= ok;
            ok
        });
        self.observations.note(Signal::Healthz, ok, self.now);
        Input::Answer(ticket, Answer::Probed(ok))
    }

    pub fn pings(&mut self, pid: u32) -> Option<Input> {
        let now = self.now;
        let process = self.process_of(pid)?;
        if matches!(process.content.behaviour, Behaviour::SilentAfter(after) if now - process.started > Duration::from_secs(after))
        {
            process.lost_since.get_or_insert(now);
            return None;
        }
        let healthy = !process.sick;
        process.pinged |= healthy;
        self.schedule(PING, Coming::Watchdog(pid));
        if healthy {
            self.account.pinged = now; // the monitor passes it on
        }
        if healthy && !self.workers.absent {
            self.observations.note(Signal::Watchdog, true, now);
        }
        healthy.then_some(Input::Watchdog)
    }

    /// The kubelet tells the API server about its Node, and the supervisor hears of it.
    pub fn heartbeat(&mut self, pid: u32, again: bool) -> Option<Input> {
        let (fit, now) = (!self.surroundings.runtime_down, self.now);
        let process = self.process_of(pid)?;
        let ready = fit && process.ready && process.content.behaviour != Behaviour::NotReady;
        if again {
            self.schedule(Duration::from_secs(300), Coming::Heartbeat(pid, true));
        }
        if self.reaches_api() {
            self.surroundings.posted = Some((ready, now, pid));
        }
        self.hears_api().then(|| self.hear_of_node(ready, now, pid))
    }

    fn hear_of_node(&mut self, ready: bool, posted: Duration, pid: u32) -> Input {
        let now = self.now;
        self.observations.note(Signal::NodeReady, ready, now);
        if let Some(process) = self.process_of(pid) {
            process.in_contact |= ready;
            process.node_ready = process.node_ready.or(ready.then_some(now));
            self.account.evidence.node_ready |= ready;
        }
        Input::NodeObserved(self.node_readiness(ready, posted))
    }

    /// A worker that comes is shown the Node as it is.
    pub fn show_node(&mut self) -> Option<Input> {
        let (ready, posted, pid) = self.surroundings.posted.filter(|_| self.hears_api())?;
        Some(self.hear_of_node(ready, posted, pid))
    }

    pub fn lease(&mut self) -> LeaseObservation {
        let now = self.now;
        self.observations.note(Signal::ApiServer, self.answers_queries(), now);
        if !self.answers_queries() {
            self.observations.note(Signal::Lease, false, now);
            let cut_off = self.process.as_ref().is_some_and(|it| it.cuts_off);
            return if cut_off { Refusal::Unreachable } else { self.surroundings.refusal }.observation();
        }
        if self.surroundings.no_lease {
            self.observations.note(Signal::Lease, false, now);
            return LeaseObservation::Absent;
        }
        self.renew();
        let fresh = now.saturating_sub(self.surroundings.renewed_at) <= Duration::from_secs(40);
        self.observations.note(Signal::Lease, fresh, now);
        LeaseObservation::Renewed(self.surroundings.renewed.1.clone())
    }

    fn renews(&self) -> bool {
        let renews = |it: &Process| it.ready && it.content.behaviour != Behaviour::LeavesLease;
        self.reaches_api() && self.process.as_ref().is_some_and(renews)
    }

    fn renew(&mut self) {
        // First when it is ready, and then at its pace.
        let Some(ready) = self.process.as_ref().and_then(|it| it.ready_at) else { return };
        let now = self.now;
        let number = (self.pids, self.surroundings.jumps, (now - ready).as_secs() / RENEWAL);
        if self.surroundings.renewed.0 != number && self.renews() {
            if let Some(process) = &mut self.process {
                (process.in_contact, process.leased) = (true, process.leased.or(Some(now)));
            }
            self.account.evidence.leased = true;
            // The API server keeps microseconds: no two renewals are alike.
            self.surroundings.renewals += 1;
            let seconds = status::timestamp(self.moment().wall_nanos);
            let time = format!("{}.{:06}Z", seconds.trim_end_matches('Z'), self.surroundings.renewals % 1_000_000);
            self.surroundings.renewed = (number, time);
            self.surroundings.renewed_at = self.now;
        }
    }

    /// The wall clock jumps, by anything; a kubelet renews its Lease then. Where nobody does, a
    /// Lease that looks older or younger than it is would be all that a jump changes.
    pub fn jump_wall_clock(&mut self) {
        let to = self.rng.next();
        let young = self.now.saturating_sub(self.surroundings.renewed_at) <= Duration::from_secs(61);
        if young && !self.renews() {
            return;
        }
        self.surroundings.jumps += 1;
        if !self.wall_is_steady {
            self.wall_skew = to;
        }
        self.renew();
    }

    pub fn pods(&mut self, ticket: Ticket) -> Option<PodInventory> {
        self.observations.note(Signal::Pods, self.answers_queries(), self.now);
        let process = self.process.as_ref();
        let loses = process.is_some_and(|process| process.ready && process.content.behaviour == Behaviour::LosesPods);
        let pod = |name: &str, fails: bool| PodSummary {
            uid: name.to_owned(),
            name: format!("default/{name}"),
            phase: if fails { "Failed" } else { "Running" }.to_owned(),
            reason: if fails { "OutOfpods" } else { "" }.to_owned(),
            ..PodSummary::default()
        };
        let pods = vec![pod("one", false), pod("two", loses)];
        if !self.answers_queries() {
            self.asked.hinder(self.now);
        }
        self.answers_queries().then(|| {
            let stray = self.moments.tell_stray(ticket, self.now);
            let node = NodeSummary { labels: Some(BTreeMap::new()), ..NodeSummary::default() };
            PodInventory { pods: pods.into_iter().chain(stray).collect(), node }
        })
    }

    pub fn environment(&mut self, ticket: Ticket) -> Environment {
        let (up, now) = (!self.surroundings.runtime_down, self.now);
        let (disk_full, shutting_down) = (self.disk.is_full(), self.surroundings.shutting_down);
        // A socket that never answered may be a wrong guess.
        let trouble = disk_full || shutting_down || (!up && self.observations.runtime_answered);
        self.observations.runtime_answered |= up;
        if self.observations.is_in_time(ticket, now) {
            self.observations.environment = Some((trouble, now));
            self.observations.note(Signal::Runtime, up, now);
        }
        Environment { runtime: Some(up), disk_full, shutting_down, ..Environment::default() }
    }

    /// The container runtime goes, or comes back; kubelets that waited for it come up then.
    pub fn set_runtime(&mut self, up: bool, kills: bool) {
        self.surroundings.runtime_down = !up;
        self.surroundings.runtime_kills = kills;
        if let Some(process) = &mut self.process {
            process.hindered |= !up;
        }
        let Some((pid, behaviour)) = self.process.as_ref().map(|it| (it.pid, it.content.behaviour)) else { return };
        let never = matches!(behaviour, Behaviour::NeverReady | Behaviour::DiesAtOnce | Behaviour::Invalid);
        if up && !never {
            self.schedule(ms(500), Coming::Ready(pid));
        }
        self.deliver(ms(10_000), Coming::Heartbeat(pid, false));
    }
}

impl Process {
    fn recovers(&mut self, now: Duration) {
        if std::mem::take(&mut self.broken) {
            self.earned = Duration::ZERO;
        }
        if let Some(since) = self.sick_since.take() {
            self.revived = Some((since, now));
        }
        (self.well_since, self.was_healthy) = (Some(now), true);
    }
}
