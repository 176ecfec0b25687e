//! Everything outside the supervisor but the disk: time, API server, kubelet, judge.

use std::collections::BTreeMap;
use std::time::Duration;

use kubelet_config::assignment::Assignment;
use kubelet_config::source::{ConfigAnnotations, ConfigMapRef, Payload, Source};
use kubelet_config::status::NodeConfigStatus;
use kubelet_supervisor::machine::evidence::NodeReadiness;
use kubelet_supervisor::machine::model::{Exit, Moment, Verdict};
use kubelet_supervisor::machine::{Answer, Input, Ticket};

use super::Rng;
use super::account::Account;
use super::api::{Mood, Version};
use super::asked::Asked;
pub use super::behaviour::{Behaviour, Content};
use super::disk::SimDisk;
use super::kubelet::{Observations, Process, Surroundings, Trouble};
use super::moments::Moments;
use super::policy::Policies;
use super::silence::Silence;
use super::standby::StandbySlot;
use super::workers::Workers;

/// Where the store is.
pub const ROOT: &str = "/var/lib/kubelet/dynamic-config";
pub const NAMESPACE: &str = "kube-system";
pub const KEY: &str = "kubelet";

/// What will happen, addressed to whom it concerns.
#[derive(Clone, Debug)]
pub enum Coming {
    Node,
    Map,
    /// What the API server says whether it is true or not.
    Says(Input),
    /// Somebody else than the supervisor has written in the store.
    StoreTouched,
    /// Somebody has written the local file.
    LocalFileTouched,
    Ready(u32),
    Exit(u32, Exit),
    /// The Node as it was posted last.
    Posted,
    /// A start that waited for the end of another kubelet.
    Start,
    Healthz(u32, bool),
    Verdict(Ticket, Verdict),
    Probe(Ticket, u32),
    Watchdog(u32),
    /// One of its Node's heartbeats; the regular ones go on.
    Heartbeat(u32, bool),
    Lease(Ticket),
    Pods(Ticket),
    Environment(Ticket),
    Streams(Ticket),
    /// The Node is under pressure no more.
    Relief,
    Fetched(Ticket, ConfigMapRef),
    /// The Node's annotations ask for another try, or confirm.
    Annotations(Option<String>, Option<String>),
    /// What the Node is asked to judge.
    Request,
    /// The node's policy was written.
    Policy,
}

/// What of the world is due.
#[derive(Debug)]
pub enum Due {
    /// Nothing; then it is the machine's deadline.
    Nothing,
    /// Something that the supervisor cannot notice.
    Unnoticed,
    Heard(Input),
}

/// Time, API server and kubelet.
#[derive(Debug, Default)]
pub struct Outside {
    /// Since the world began, without the time in which the machine slept.
    pub now: Duration,
    /// When this machine booted: its boot clock counts from there.
    booted: Duration,
    /// It slept then, for so long: its boot clock goes on meanwhile, and nothing runs.
    slept: Vec<(Duration, Duration)>,
    /// The wall clock's error; it may jump.
    pub wall_skew: u64,
    /// The twin of a world with jumps of the wall clock has none.
    pub wall_is_steady: bool,
    pub disk: SimDisk,
    pub rng: Rng,
    /// Who does not answer.
    pub silence: Silence,
    pub api_up: bool,
    pub mood: Mood,
    pub desired: Assignment,
    pub maps: BTreeMap<String, Payload>,
    /// Those of the next version of a ConfigMap.
    pub(super) annotations: ConfigAnnotations,
    /// All that ever existed, by uid and resourceVersion.
    pub history: BTreeMap<String, BTreeMap<String, Version>>,
    pub process: Option<Process>,
    pub standby: StandbySlot,
    pub workers: Workers,
    pub down_since: Duration,
    pub surroundings: Surroundings,
    pub trouble: Trouble,
    pub observations: Observations,
    pub kubelet_id: String,
    /// The kubelet's own `--config` file.
    pub local: String,
    /// It was edited last then.
    pub local_edited: Option<Duration>,
    /// It cannot be read as a configuration: what it was before.
    pub torn_local: Option<String>,
    /// So many starts fail for want of memory.
    pub spawn_failures: u32,
    /// What a change waits for.
    pub moments: Moments,
    /// What the Node is asked to judge.
    pub(super) asked: Asked,
    pub(super) policies: Policies,
    pub events: Vec<String>,
    /// Answers to operators, by the number of the command.
    pub answers: BTreeMap<u64, Result<String, String>>,
    /// So often the machine itself has started.
    pub machine_boots: u128,
    /// ConfigMaps whose content kubelets were started with, the newest of that content; or `local`.
    pub starts: Vec<String>,
    pub status: NodeConfigStatus,
    /// What happened and what the supervisor said, if somebody wants to know.
    pub log: Option<Vec<String>>,
    /// The last assignment the supervisor was told of.
    pub known_assignment: Assignment,
    pub account: Account,
    pub versions: u64,
    pub pids: u32,
    pub watched: Option<ConfigMapRef>,
    pub queue: BTreeMap<(Duration, u64), Coming>,
    sequence: u64,
    /// When a wish last changed.
    pub changed_last: Duration,
}

pub fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

impl Outside {
    pub fn new(rng: Rng, local: Behaviour) -> Self {
        let began = Duration::from_secs(1000);
        Self {
            now: began,
            down_since: began,
            rng,
            api_up: true,
            desired: Assignment::Local,
            kubelet_id: "kubelet 1".to_owned(),
            local: local.local_text(0),
            versions: 100,
            ..Self::default()
        }
    }

    /// For who replays this world.
    pub fn tell(&mut self, line: &str) {
        let now = self.now;
        self.log.iter_mut().for_each(|log| log.push(format!("{now:?} {line}")));
    }

    pub fn moment(&self) -> Moment {
        let slept: Duration = self.slept.iter().map(|(_, time)| *time).sum();
        let wall = u64::try_from((self.now + slept).as_nanos()).unwrap();
        Moment { boot: self.boot_clock(self.now), wall_nanos: wall.wrapping_add(self.wall_skew) }
    }

    /// What the machine's boot clock showed then.
    pub fn boot_clock(&self, at: Duration) -> Duration {
        let slept = self.slept.iter().filter(|(since, _)| *since > self.booted && *since <= at);
        at.saturating_sub(self.booted) + slept.map(|(_, time)| *time).sum::<Duration>()
    }

    /// When the boot clock shows this, unless the machine sleeps by then.
    pub fn at_boot_clock(&self, boot: Duration) -> Duration {
        (self.now + boot).saturating_sub(self.boot_clock(self.now))
    }

    /// When it woke up last.
    pub(super) fn woke(&self) -> Option<Duration> {
        self.slept.last().map(|(at, _)| *at)
    }

    /// The machine sleeps, and everything on it; the API server does not wait.
    pub(super) fn sleep(&mut self, time: Duration) {
        self.now += ms(1);
        self.accumulate();
        self.slept.push((self.now, time));
        self.trouble.until = Some(self.now); // a trial begins anew
        if let Some(awaits) = &mut self.account.awaits {
            awaits.soonest = awaits.soonest.saturating_sub(time);
        }
        self.asked.hinder(self.now);
        self.hear();
    }

    pub fn schedule(&mut self, after: Duration, what: Coming) {
        self.sequence += 1;
        self.queue.insert((self.now + after, self.sequence), what);
    }

    pub fn next_at(&self) -> Option<Duration> {
        self.queue.first_key_value().map(|((at, _), _)| *at)
    }

    /// The next thing that is due, as the supervisor hears of it, if it does.
    pub fn take_due(&mut self) -> Due {
        match self.queue.first_entry().filter(|entry| entry.key().0 <= self.now) {
            Some(entry) => {
                let coming = entry.remove();
                self.happen(coming).map_or(Due::Unnoticed, Due::Heard)
            }
            None => Due::Nothing,
        }
    }

    fn happen(&mut self, coming: Coming) -> Option<Input> {
        match coming {
            Coming::Node => self.node_input(),
            Coming::Map => self.map_input(),
            Coming::StoreTouched => Some(Input::StoreTouched),
            Coming::LocalFileTouched => Some(Input::LocalFilesTouched),
            Coming::Says(input) => self.hears_api().then(|| {
                self.note_input(&input);
                self.account.misled = true;
                input
            }),
            Coming::Verdict(ticket, verdict) => {
                self.park_standby(ticket, &verdict);
                Some(Input::Answer(ticket, Answer::PreflightDone(verdict)))
            }
            Coming::Ready(pid) => self.becomes_ready(pid),
            Coming::Healthz(pid, sick) => {
                self.becomes_sick(pid, sick);
                None
            }
            Coming::Exit(pid, exit) => self.exits(pid, exit).filter(|_| !self.goes_on_starting()),
            Coming::Posted => self.show_node(),
            Coming::Start => self.start_at_last(),
            Coming::Probe(ticket, pid) => Some(self.probed(ticket, pid)),
            Coming::Watchdog(pid) => self.pings(pid),
            Coming::Heartbeat(pid, again) => self.heartbeat(pid, again),
            Coming::Lease(ticket) => Some(Input::Answer(ticket, Answer::LeaseObserved(self.lease()))),
            Coming::Fetched(ticket, map) => Some(Input::Answer(ticket, Answer::ConfigMapFetched(self.fetched(&map)))),
            Coming::Pods(ticket) => Some(Input::Answer(ticket, Answer::PodsObserved(self.pods(ticket)))),
            Coming::Relief => self.relieve(),
            Coming::Annotations(retry, confirm) => self.hear_annotations(retry, confirm),
            Coming::Request => self.hear_request(),
            Coming::Policy => self.hear_policy(),
            Coming::Streams(ticket) => Some(Input::Answer(ticket, Answer::StreamsObserved(Some(self.moments.streams)))),
            Coming::Environment(ticket) => {
                Some(Input::Answer(ticket, Answer::EnvironmentObserved(self.environment(ticket))))
            }
        }
    }

    /// The node lost power, or its supervisor died and took the kubelet along.
    pub fn forget_life(&mut self) {
        self.queue.clear();
        self.process = None;
        self.down_since = self.now;
        self.forget_known();
        self.forget_workers();
        self.account.begin_life(self.disk.failures(), self.now);
        self.remember_holds();
        self.hear();
    }

    /// What a worker knew and had asked.
    pub(super) fn forget_known(&mut self) {
        (self.watched, self.standby) = (None, StandbySlot::default());
        self.known_assignment = Assignment::Unknown;
        (self.observations, self.moments) = (Observations::default(), Moments::default());
        self.silence.forget_life();
        self.asked.forget_life();
        if self.disk_is_ailing() {
            self.account.cleared = None; // nobody knows whether that is on the disk
        }
        self.note_durable_failures();
    }

    /// The machine itself starts afresh, and so does its boot clock.
    pub fn restart_machine(&mut self) {
        self.booted = self.now.saturating_sub(ms(4000));
        self.machine_boots += 1;
    }

    /// True if the whole node is in trouble that no configuration made.
    pub fn in_trouble(&self) -> bool {
        let contact = self.api_up && !self.silence.is_one_sided();
        self.surroundings.runtime_down || self.surroundings.shutting_down || !contact || self.disk.is_full()
    }

    /// When the disk failed last.
    pub fn note_failures(&mut self) {
        let failures = self.disk.failures();
        if self.account.failed_last.0 != failures {
            self.account.failed_last = (failures, self.now);
            self.asked.hinder(self.now);
        }
        let reads = self.disk.read_faults();
        if self.account.read_failed_last.0 != reads {
            self.account.read_failed_last = (reads, Some(self.now));
            self.asked.hinder(self.now);
        }
    }

    /// Operations of the disk failed since it was last found in order.
    pub fn disk_is_ailing(&self) -> bool {
        self.disk.failures() != self.account.failures_seen
    }

    /// What the store does takes time, or did a moment ago.
    pub fn store_lags(&self) -> bool {
        self.silence.waited_within(Duration::from_secs(60), self.now)
    }

    pub fn node_readiness(&mut self, ready: bool, posted: Duration) -> NodeReadiness {
        let pressure = self.moments.tell_pressure(self.now);
        NodeReadiness { ready, heartbeat: posted.as_secs().to_string(), pressure, ..NodeReadiness::default() }
    }

    /// What a version holds, or held when it was last rendered.
    pub fn content_of_version(&self, source: &Source) -> Option<Content> {
        let rendered = self.account.versions.get(source).and_then(|all| all.last().copied());
        rendered.or_else(|| self.content_of(Some(source)))
    }
}
