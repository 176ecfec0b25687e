//! The state machine under random inputs: the invariants at the top of `src/machine/mod.rs`.
//!
//! `faithful`: answers come as the executor gives them, those of the synchronous store and start
//! at once and in order; everything else may come late, twice, or never. All laws hold.
//! `hostile`: any input at any time, answers to nothing included. What must hold then is that the
//! machine neither panics, nor spins, nor asks for two processes.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use kubelet_config::assignment::Assignment;
use kubelet_config::digest::Digest;
use kubelet_config::rendering::HealthzTarget;
use kubelet_config::source::{ConfigMapRef, Payload, Source};
use kubelet_supervisor::machine::model::{Exit, KubeletId, Moment, RenderError, Rendered, Verdict};
use kubelet_supervisor::machine::record::LocalState;
use kubelet_supervisor::machine::{Effect, Input, Purpose, RecordReason, Records, Settings, State, Stored};
use proptest::prelude::*;

const TRIAL: Duration = Duration::from_secs(60);
const TIMEOUT: Duration = Duration::from_secs(20);

fn reference(map: u8) -> ConfigMapRef {
    ConfigMapRef { namespace: "n".to_owned(), name: format!("m{map}"), kubelet_config_key: "kubelet".to_owned() }
}

fn payload(map: u8, version: u8) -> Arc<Payload> {
    Arc::new(Payload {
        namespace: "n".to_owned(),
        name: format!("m{map}"),
        uid: format!("u{map}"),
        resource_version: version.to_string(),
        data: [("kubelet".to_owned(), String::new())].into(),
        annotations: kubelet_config::source::ConfigAnnotations::default(),
    })
}

fn source(map: u8, version: u8) -> Source {
    payload(map, version).resolve(&reference(map))
}

/// Versions 2k and 2k+1 of a map have the same content, as after a label edit.
fn rendered(source: Option<&Source>) -> Rendered {
    let content = source.map_or_else(
        || "local".to_owned(),
        |source| format!("{}-{}", source.uid, source.resource_version.parse::<u32>().unwrap() / 2),
    );
    Rendered {
        digest: Digest(content),
        path: source.map(|source| format!("{}/{}", source.uid, source.resource_version)).unwrap_or_default(),
        healthz: Some(HealthzTarget { host: "127.0.0.1".to_owned(), port: 10248 }),
        ..Rendered::default()
    }
}

/// What happens next.
#[derive(Clone, Debug)]
enum Op {
    Node(u8),
    Map(u8, u8),
    MapFailed(bool),
    /// The verdict of a preflight that was asked for, the latest or an earlier one.
    Judge(u8, bool),
    Ready,
    Exit,
    Probe(bool),
    /// The next so many store operations, renders or starts fail.
    Fail(u8),
    /// Time passes; negative is a clock that runs back.
    Pass(i32),
    /// To the next deadline.
    Deadline,
    Shutdown,
    /// Answers nobody asked for; only in the hostile world.
    Stray(u8, u8),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => (0..6_u8).prop_map(Op::Node),
        4 => (0..3_u8, 0..6_u8).prop_map(|(map, version)| Op::Map(map, version)),
        1 => any::<bool>().prop_map(Op::MapFailed),
        5 => (0..4_u8, prop::bool::weighted(0.8)).prop_map(|(which, valid)| Op::Judge(which, valid)),
        5 => Just(Op::Ready),
        2 => Just(Op::Exit),
        5 => prop::bool::weighted(0.8).prop_map(Op::Probe),
        1 => (1..4_u8).prop_map(Op::Fail),
        4 => (-2_000..70_000_i32).prop_map(Op::Pass),
        6 => Just(Op::Deadline),
        1 => (0..8_u8, 0..6_u8).prop_map(|(what, version)| Op::Stray(what, version)),
    ]
}

/// The machine and an independent account of what it may do.
struct Driver {
    state: State,
    now: Duration,
    hostile: bool,
    failures: u8,
    /// As of the last record that was written.
    durable: Records,
    /// A process was asked for and has not ended.
    process: bool,
    tickets: Vec<u64>,
    /// Ready and never seen to fail since.
    healthy_since: Option<Duration>,
    ready: bool,
    told: Assignment,
    quit: bool,
}

impl Driver {
    fn new(stored: Stored, hostile: bool) -> Self {
        let durable = Records {
            assigned: stored.assigned.clone().unwrap_or_default(),
            last_known_good: stored.last_known_good.clone().unwrap_or_default(),
            local_state: stored.local_state.clone().unwrap_or_default(),
        };
        let mut driver = Self {
            state: State::new(Settings { trial_duration: TRIAL, start_timeout: TIMEOUT, ..Settings::default() }),
            now: Duration::from_secs(100),
            hostile,
            failures: 0,
            durable,
            process: false,
            tickets: Vec::new(),
            healthy_since: None,
            ready: false,
            told: Assignment::Unknown,
            quit: false,
        };
        driver.input(Input::Boot(Box::new(stored), KubeletId("k".to_owned())));
        driver
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
            self.note(&input);
            let moment = Moment { boot: self.now, wall_nanos: u64::from(self.now.subsec_nanos()) };
            for effect in self.state.step(input, moment) {
                inputs.extend(self.run(effect));
            }
            steps += 1;
            assert!(steps < 100, "one input has no end: {:?}", self.state);
            if let Some(deadline) = self.state.deadline() {
                assert!(deadline > self.state.now().boot, "a deadline that has passed");
            }
        }
    }

    /// What the input tells the account.
    fn note(&mut self, input: &Input) {
        match input {
            Input::Exited(_) | Input::Started(Err(_)) => self.process = false,
            Input::Ready if self.process && !self.ready => {
                self.ready = true;
                self.healthy_since = Some(self.now);
            }
            Input::Probed(false) => self.healthy_since = None,
            Input::Probed(true) if self.ready => {
                self.healthy_since.get_or_insert(self.now);
            }
            Input::Node(wanted) if *wanted != Assignment::Unknown => self.told = wanted.clone(),
            Input::Recorded(_, Ok(durable)) => self.durable = durable.clone(),
            _ => {}
        }
        if !self.process {
            (self.ready, self.healthy_since) = (false, None);
        }
    }

    fn run(&mut self, effect: Effect) -> Option<Input> {
        assert!(!self.quit || !matches!(effect, Effect::Start(..)), "started after quitting");
        match effect {
            Effect::Start(config, _) => {
                assert!(!self.process, "a second kubelet is started: {:?}", self.state);
                self.process = true;
                if let Some(path) = config.filter(|_| !self.hostile) {
                    self.check_start(&path);
                }
                let result = if self.fails() { Err("fork".to_owned()) } else { Ok(7) };
                return Some(Input::Started(result));
            }
            Effect::Save(source, _) => {
                let result = if self.fails() { Err("ENOSPC".to_owned()) } else { Ok(()) };
                return Some(Input::Saved(source, result));
            }
            Effect::Render(purpose, source) => {
                let result = match (self.fails(), self.failures % 2) {
                    (false, _) => Ok(rendered(source.as_ref())),
                    (true, 0) => Err(RenderError::Checkpoint("torn".to_owned())),
                    (true, _) => Err(RenderError::Internal("EIO".to_owned())),
                };
                return Some(Input::Rendered(purpose, source, KubeletId("k".to_owned()), result));
            }
            Effect::Record(because, records) => {
                self.check_record(because, &records);
                let result = if self.fails() { Err("EROFS".to_owned()) } else { Ok(records) };
                return Some(Input::Recorded(because, result));
            }
            Effect::Preflight(ticket, _) => self.tickets.push(ticket),
            Effect::Quit => self.quit = true,
            _ => {}
        }
        None
    }

    fn check_start(&self, path: &str) {
        let durable = &self.durable;
        let known = [&durable.assigned, &durable.last_known_good];
        let source = known.into_iter().flatten().find(|source| rendered(Some(source)).path == path);
        let source = source.unwrap_or_else(|| panic!("{path} is started, but {durable:?} is durable"));
        let digest = rendered(Some(source)).digest;
        let is_bad = durable
            .local_state
            .bad
            .iter()
            .any(|bad| bad.source == *source && bad.digest.as_ref().is_none_or(|it| *it == digest));
        assert!(!is_bad, "{path} is started, which is bad");
    }

    fn check_record(&self, because: RecordReason, records: &Records) {
        let (old, new) = (&self.durable.last_known_good, &records.last_known_good);
        if self.hostile || old == new {
            return;
        }
        match new {
            None => assert!(
                because == RecordReason::Reset || self.told == Assignment::Local,
                "last known good is dropped: {because:?}"
            ),
            Some(new) => {
                let same = old.as_ref().is_some_and(|old| rendered(Some(old)).digest == rendered(Some(new)).digest);
                let earned = self.healthy_since.is_some_and(|since| self.now.saturating_sub(since) >= TRIAL);
                assert_eq!(self.state.active.as_ref(), Some(new), "last known good is not what runs");
                assert!(same || earned, "{new} is unproven: {because:?} {:?}", self.state);
            }
        }
    }

    fn apply(&mut self, op: &Op) {
        match *op {
            Op::Node(which) => self.input(Input::Node(match which {
                0 => Assignment::Unknown,
                1 => Assignment::Local,
                2 => Assignment::AllNil,
                map => Assignment::Map(reference(map - 3)),
            })),
            Op::Map(map, version) => self.input(Input::ConfigMap(payload(map, version))),
            Op::MapFailed(definite) => self.input(Input::ConfigMapFailed { why: "gone".to_owned(), definite }),
            Op::Judge(which, valid) => {
                let index = self.tickets.len().saturating_sub(1 + usize::from(which / 2));
                let Some(ticket) = self.tickets.get(index).copied() else { return };
                let verdict = if valid { Verdict::Valid(Vec::new()) } else { Verdict::Validate("no".to_owned()) };
                self.input(Input::Judged(ticket, verdict));
            }
            Op::Ready if self.process || self.hostile => self.input(Input::Ready),
            Op::Exit if self.process || self.hostile => self.input(Input::Exited(Exit::Code(1))),
            Op::Probe(ok) if self.process || self.hostile => self.input(Input::Probed(ok)),
            Op::Ready | Op::Exit | Op::Probe(_) => {}
            Op::Fail(times) => self.failures = times,
            Op::Pass(by) => {
                let by_millis = Duration::from_millis(u64::from(by.unsigned_abs()));
                if by >= 0 {
                    self.now += by_millis;
                    self.input(Input::Tick);
                } else {
                    // The machine goes by the latest moment it saw; so does the account.
                    let back = Moment { boot: self.now.saturating_sub(by_millis), wall_nanos: 0 };
                    let effects = self.state.step(Input::Tick, back);
                    let answers: Vec<Input> = effects.into_iter().filter_map(|effect| self.run(effect)).collect();
                    for answer in answers {
                        self.input(answer);
                    }
                }
            }
            Op::Deadline => {
                if let Some(deadline) = self.state.deadline() {
                    self.now = self.now.max(deadline);
                    self.input(Input::Tick);
                }
            }
            Op::Shutdown => self.input(Input::Shutdown),
            Op::Stray(what, version) if self.hostile => self.stray(what, version),
            Op::Stray(..) => {}
        }
    }

    fn stray(&mut self, what: u8, version: u8) {
        let other = source(version % 3, version);
        let id = KubeletId(format!("k{}", version % 2));
        self.input(match what {
            0 => Input::Saved(other, Ok(())),
            1 => Input::Rendered(Purpose::Launch, Some(other.clone()), id, Ok(rendered(Some(&other)))),
            2 => Input::Rendered(Purpose::Change, None, id, Ok(rendered(None))),
            3 => Input::Judged(u64::from(version), Verdict::Inconclusive("?".to_owned())),
            4 => Input::Recorded(RecordReason::Switch, Ok(Records { assigned: Some(other), ..Records::default() })),
            5 => Input::Recorded(RecordReason::Adopt, Err("late".to_owned())),
            6 => Input::Recorded(RecordReason::Proven, Ok(Records::default())),
            _ => Input::Boot(
                Box::new(Stored {
                    assigned: Err("x".to_owned()),
                    last_known_good: Ok(None),
                    local_state: Ok(LocalState::default()),
                }),
                id,
            ),
        });
    }

    /// With nothing else happening, a thousand ticks take their time, and then it can be ended.
    fn rest_and_quit(&mut self) {
        let begin = self.now;
        let mut ticks = 0;
        while ticks < 1000
            && let Some(deadline) = self.state.deadline()
        {
            self.now = self.now.max(deadline);
            self.input(Input::Tick);
            ticks += 1;
        }
        let took = self.now.saturating_sub(begin);
        assert!(
            ticks < 1000 || took >= Duration::from_millis(100) * ticks,
            "{ticks} ticks within {took:?}: {:?}",
            self.state
        );
        self.input(Input::Shutdown);
        for _ in 0..4 {
            if self.process {
                self.input(Input::Exited(Exit::Signal(15)));
            }
        }
        assert!(self.quit, "it does not quit: {:?}", self.state);
    }
}

fn stored() -> impl Strategy<Value = Stored> {
    let record = prop_oneof![
        Just(Ok(None)),
        (0..3_u8, 0..6_u8).prop_map(|(map, version)| Ok(Some(source(map, version)))),
        Just(Err("torn".to_owned())),
    ];
    let local_state = prop_oneof![4 => Just(Ok(LocalState::default())), 1 => Just(Err("torn".to_owned()))];
    (record.clone(), record, local_state).prop_map(|(assigned, last_known_good, local_state)| Stored {
        assigned,
        last_known_good,
        local_state,
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn faithful(stored in stored(), ops in prop::collection::vec(op(), 1..120)) {
        let mut driver = Driver::new(stored, false);
        for op in ops {
            driver.apply(&op);
        }
        driver.rest_and_quit();
    }

    #[test]
    fn hostile(stored in stored(), ops in prop::collection::vec(op(), 1..120)) {
        let mut driver = Driver::new(stored, true);
        for op in ops {
            driver.apply(&op);
        }
    }

    #[test]
    fn ends_whenever_it_is_asked_to(stored in stored(), ops in prop::collection::vec(op(), 1..40)) {
        let mut driver = Driver::new(stored, false);
        for op in ops {
            driver.apply(&op);
        }
        driver.apply(&Op::Shutdown);
        driver.rest_and_quit();
    }
}
