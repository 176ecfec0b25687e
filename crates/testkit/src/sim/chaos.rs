//! What administrators, API servers, disks, kubelets and power do to a node, by chance.

use std::time::Duration;

use kubelet_config::assignment::Assignment;
use kubelet_config::schema::UnknownFields;
use kubelet_supervisor::machine::command::{Command, Target};
use kubelet_supervisor::machine::{Input, Settings};

use super::Rng;
use super::account::SLACK;
use super::api::Mood;
use super::disk::{Fault, Plan};
use super::harness::Node;
use super::inputs::Inputs;
use super::laws::{Heed, Law};
use super::moments::COURTESY;
use super::needs::Need;
use super::policy::Policy;
use super::promised;
use super::records::{checkpoint, content_dir};
use super::silence::OneSide;
use super::world::{Behaviour, Coming, Outside, ms};

pub(super) const NAMES: [&str; 3] = ["blue", "green", "red"];

/// Good ones more often: a world of failures never gets to last known good.
const BEHAVIOURS: [Behaviour; 25] = [
    Behaviour::Good,
    Behaviour::Good,
    Behaviour::Good,
    Behaviour::Good,
    Behaviour::Good,
    Behaviour::Good,
    Behaviour::Mute,
    Behaviour::Hiccup,
    Behaviour::Stubborn,
    Behaviour::SlowToStop,
    Behaviour::CutsOff,
    Behaviour::LeavesLease,
    Behaviour::NotReady,
    Behaviour::LosesPods,
    Behaviour::SilentAfter(40),
    Behaviour::Unloadable,
    Behaviour::Invalid,
    Behaviour::DiesAtOnce,
    Behaviour::DiesAfter(5),
    Behaviour::DiesAfter(40),
    Behaviour::NeverReady,
    Behaviour::HalfReady,
    Behaviour::SickAfter(30),
    Behaviour::SickAfter(3),
    Behaviour::Flaps,
];

/// A world on its way.
#[derive(Debug)]
pub struct Chaos {
    pub node: Node,
    rng: Rng,
    pub(super) trial: Duration,
    /// Kubelets hang by chance.
    pub(super) hangs: bool,
    /// What old worlds did not have.
    pub(super) inputs: Inputs,
    /// What happens more often than by chance.
    pub(super) needs: Option<(Rng, &'static [Need])>,
}

impl Chaos {
    /// The world of a seed. Its twin without jumps of the wall clock is the same in all else.
    pub fn new(seed: u64, heed: Heed, wall_is_steady: bool) -> Self {
        let mut rng = Rng::new(seed ^ 0x5EED);
        // A local file that cannot be read at all is another matter: nothing is rendered beside it.
        let local = if rng.one_in(4) { rng.pick(&BEHAVIOURS[16..]) } else { Behaviour::Good };
        // Short trials, because every probe is simulated; most longer than the patience with healthz.
        let trial = Duration::from_secs(rng.pick(&[40, 90, 90, 240]));
        let confirm_within = rng.one_in(6).then(|| Duration::from_secs(rng.pick(&[60, 200])));
        // Drawn from the seed, so that the worlds without them stay what they were.
        let turns = Rng::new(seed ^ 0x7125).one_in(3);
        let spread = if turns { Duration::from_secs(120) } else { Duration::ZERO };
        let watchdog = seed.is_multiple_of(2).then_some(Duration::from_secs(30));
        let hangs = Rng::new(seed ^ 0x4875_6E67).one_in(3);
        let hung_after = if hangs { Duration::from_secs(60) } else { Duration::ZERO };
        let inputs = Inputs::new(seed);
        let settings = Settings {
            courtesy: if inputs.moments.is_some() { COURTESY } else { Duration::ZERO },
            trial_duration: trial,
            confirm_within,
            spread,
            watchdog,
            unknown_fields: UnknownFields::Refuse,
            hung_after,
            follow_local: Rng::new(seed ^ 0x4C6F_6361).one_in(3),
            ..Settings::default()
        };
        let node = Node::with(seed, local, settings, heed);
        {
            let mut outside = node.outside.borrow_mut();
            outside.wall_is_steady = wall_is_steady;
            outside.surroundings.modern = rng.one_in(3);
            outside.surroundings.no_lease = rng.one_in(8);
            outside.surroundings.refusal = Inputs::refusal(seed);
        }
        Self { node, rng, trial, hangs, inputs, needs: None }
    }

    pub fn steps(&self) -> u64 {
        self.node.outside.borrow().account.steps
    }

    pub(super) fn note(&self, what: &str) {
        self.node.outside.borrow_mut().tell(what);
    }

    /// Lives through faults for so many steps of the machine, then through the peace after them.
    pub fn live(&mut self, steps: u64) {
        self.node.boot();
        self.node.outside.borrow_mut().put("blue", &Behaviour::Good.text(0));
        self.begin_directed();
        while self.steps() < steps {
            self.more_inputs();
            let what = self.act_directed().unwrap_or_else(|| self.act());
            self.note(&what);
            let pause = match self.rng.below(8) {
                0..=2 => Duration::from_millis(self.rng.below(500)),
                3 | 4 => Duration::from_secs(self.rng.below(10)),
                5 | 6 => Duration::from_secs(self.rng.below(60)),
                _ => self.trial + Duration::from_secs(self.rng.below(60)),
            };
            self.pass(pause);
            if self.node.outside.borrow().account.testing && self.rng.one_in(3) {
                self.note("last known good is killed");
                self.node.outside.borrow_mut().kill_kubelet();
                self.pass(Duration::from_secs(8));
            }
            if self.node.outside.borrow().account.cleared.is_some() && self.rng.one_in(3) {
                self.note("better times");
                self.mend();
                self.pass(Duration::from_secs(260));
            }
        }
        self.stand_still();
        self.finish();
    }

    /// Time passes. Power may go in the next life's first breath again, but each plan only once.
    pub(super) fn pass(&mut self, by: Duration) {
        while !self.node.advance(by) {
            self.note("the power comes back");
            self.node.power_cycle();
            self.node.outside.borrow_mut().surroundings.shutting_down = false;
            self.node.boot();
        }
    }

    fn act(&mut self) -> String {
        match self.rng.below(24) {
            0..=11 => administer(&mut self.node.outside.borrow_mut(), &mut self.rng),
            12 | 13 => disturb(&mut self.node.outside.borrow_mut(), &mut self.rng),
            14 => silence(&mut self.node.outside.borrow_mut(), &mut self.rng, self.hangs),
            15 | 16 => misinform(&mut self.node.outside.borrow_mut(), &mut self.rng),
            17 | 18 => self.spoil(),
            19 => self.interrupt(),
            21 if self.rng.one_in(2) => self.operate(),
            20 => {
                self.node.outside.borrow().disk.heal();
                "the disk works".to_owned()
            }
            23 if self.hangs => {
                let deaf = self.rng.one_in(2);
                let judged = self.inputs.hangs_on_trial();
                format!("the kubelet hangs: {}, stopped: {deaf}", self.node.outside.borrow_mut().hang(deaf, judged))
            }
            _ => "nothing".to_owned(),
        }
    }

    /// What goes wrong with the disk.
    fn spoil(&mut self) -> String {
        let (node, rng) = (&mut self.node, &mut self.rng);
        let disk = node.outside.borrow().disk.clone();
        let within = rng.pick(&[6, 60]);
        let at = disk.operations() + rng.below(within);
        match rng.below(8) {
            0 | 1 => {
                disk.plan(Plan { fault: Fault::PowerOff, at, once: true });
                format!("power off at operation {at}")
            }
            2..=6 => {
                let (fault, once) = (rng.pick(&[Fault::Full, Fault::Io, Fault::ReadOnly]), rng.one_in(2));
                disk.plan(Plan { fault, at, once });
                format!("{fault:?} at operation {at}, once: {once}")
            }
            _ => {
                rot(node, rng);
                "something on the disk rots".to_owned()
            }
        }
    }

    /// What an operator says on the node.
    fn operate(&mut self) -> String {
        let target = match self.rng.below(3) {
            0 => Target::Local,
            1 => Target::Lkg,
            _ => {
                let proven = self.node.executor.state.records().proven.last().map(|version| version.source.clone());
                proven.map_or(Target::Lkg, |it| Target::Version { uid: it.uid, resource_version: it.resource_version })
            }
        };
        let command = match self.rng.below(12) {
            0 | 1 => Command::Retry,
            2 => Command::Rollback { to: Target::Lkg },
            3 => Command::Pin { to: Some(target) },
            4 => Command::Pin { to: None },
            5 | 6 => Command::Unpin,
            7 => Command::Freeze,
            8 | 9 => Command::Thaw,
            10 => Command::Confirm { extend_seconds: Some(60 + self.rng.below(200)) },
            _ => Command::Confirm { extend_seconds: None },
        };
        let answer = self.node.operate(&command);
        format!("operator: {command:?}: {answer:?}")
    }

    /// What ends the supervisor's life.
    fn interrupt(&mut self) -> String {
        match self.rng.below(6) {
            0 | 1 => {
                self.node.power_cycle();
                self.node.boot();
                "power off now".to_owned()
            }
            2 => {
                self.node.kill_supervisor();
                self.node.boot();
                "kill the supervisor".to_owned()
            }
            3 => {
                // With or without power at its end.
                if !self.node.stop_supervisor() {
                    self.node.power_cycle();
                }
                self.node.boot();
                "restart the supervisor".to_owned()
            }
            4 => {
                self.node.outside.borrow_mut().surroundings.shutting_down = true;
                let pause = self.rng.pick(&[1, 1, 40, 90]);
                self.pass(Duration::from_secs(pause));
                if !self.node.stop_supervisor() {
                    self.node.power_cycle();
                }
                self.node.power_cycle();
                self.node.outside.borrow_mut().surroundings.shutting_down = false;
                self.node.boot();
                "reboot".to_owned()
            }
            _ => {
                let times = 2 + self.rng.below(4);
                for _ in 0..times {
                    let pause = Duration::from_secs(self.rng.below(20));
                    self.pass(pause);
                    self.node.power_cycle();
                    self.node.boot();
                }
                format!("{times} boots in a row")
            }
        }
    }

    /// A fault that does not heal; all that it does not touch goes on.
    fn endure(&mut self) {
        let what = self.break_for_good();
        self.note(&format!("from now on {what}"));
        {
            let mut outside = self.node.outside.borrow_mut();
            outside.spawn_failures = 0;
            outside.surroundings.shutting_down = false;
            if outside.surroundings.runtime_down {
                outside.set_runtime(true, false);
            }
        }
        self.pass(Duration::from_secs(200));
        // Something is to be written, whatever else happens.
        self.node.operate(&Command::Freeze);
        for _ in 0..2 {
            self.node.outside.borrow_mut().kill_kubelet();
            // A start may wait for a judge that does not answer.
            self.pass(Duration::from_secs(150));
            self.must_run(&what);
        }
        if self.node.stop_supervisor() {
            self.node.boot();
            self.pass(Duration::from_secs(150));
            self.must_run(&what);
        }
        self.node.operate(&Command::Freeze); // a life that begins writes nothing where nothing differs
        let spinning = self.steps();
        self.pass(Duration::from_secs(600));
        let steps = self.steps() - spinning;
        self.node.must(Law::LastingFaults, steps < 6000, || format!("{steps} steps in ten minutes, although {what}"));
    }

    fn must_run(&mut self, what: &str) {
        // A restart may have begun just now, and wait for a judge.
        let judged = self.node.outside.borrow().account.withheld.is_some();
        if self.node.running().is_none() {
            self.pass(if judged { promised::START_JUDGES + SLACK } else { SLACK });
        }
        let runs = self.node.running().is_some();
        let dies = self.node.outside.borrow().is_dying();
        self.node.must(Law::LastingFaults, runs || dies, || format!("no kubelet, although {what}"));
    }

    fn break_for_good(&mut self) -> String {
        let mut outside = self.node.outside.borrow_mut();
        let (now, disk) = (outside.now, outside.disk.clone());
        match self.rng.below(6) {
            0 | 1 => {
                let fault = self.rng.pick(&[Fault::Full, Fault::ReadOnly]);
                disk.plan(Plan { fault, at: disk.operations(), once: false });
                format!("every write fails with {fault:?}")
            }
            2 => {
                outside.silence.stall(now, now + Duration::from_secs(1 << 30));
                "the store does not answer".to_owned()
            }
            3 => {
                outside.silence.judge = true;
                "no preflight answers".to_owned()
            }
            4 => {
                outside.silence.one_side = Some(OneSide::Watches);
                "watches bring nothing".to_owned()
            }
            _ => {
                outside.silence.one_side = Some(OneSide::Queries);
                "what is asked is not answered".to_owned()
            }
        }
    }

    /// Everything works again.
    pub(super) fn mend(&mut self) {
        let mut outside = self.node.outside.borrow_mut();
        outside.disk.heal();
        let now = outside.now;
        outside.silence.end(now);
        if outside.torn_local.is_some() {
            outside.edit_local(false);
        }
        outside.surroundings.shutting_down = false;
        outside.spawn_failures = 0;
        outside.mood = Mood::default();
        outside.end_hang();
        if outside.surroundings.runtime_down {
            outside.set_runtime(true, false);
        }
        if outside.policies.now == Policy::Torn {
            outside.set_policy(Policy::Gone);
        }
        outside.set_api(true);
    }

    /// The last wish is fulfilled once everything works again.
    fn finish(&mut self) {
        if self.rng.one_in(4) {
            self.endure();
        }
        self.mend();
        {
            let (mut outside, rng) = (self.node.outside.borrow_mut(), &mut self.rng);
            if rng.one_in(3) {
                outside.set_desired(Assignment::Local);
            } else {
                let name = rng.pick(&NAMES);
                if rng.one_in(2) {
                    outside.put_as(name, &rng.pick(&BEHAVIOURS).text(rng.below(3)), rng.one_in(3));
                }
                outside.assign(name);
            }
        }
        self.node.outside.borrow_mut().disturb_node(0, None, Duration::ZERO);
        let peace = format!("peace: {:?}", self.node.outside.borrow().desired);
        self.note(&peace);
        // The disk may have to be found to work again before a command is taken.
        for _ in 0..12 {
            assert!(self.node.advance(Duration::from_secs(60)), "the power goes in peace");
            let answer = self.node.operate(&Command::Unpin);
            if !matches!(answer, Some(Err(why)) if why.contains("cannot be")) {
                break;
            }
        }
        self.node.operate(&Command::Thaw);
        // Start timeouts, and retries that had backed off for long.
        let peace = Duration::from_secs(700) + self.trial;
        assert!(self.node.advance(peace), "the power goes in peace");
        self.node.check_converged();
    }
}

/// What a ConfigMap may hold. Few salts, so that equal contents meet again under other names.
pub(super) fn any_content(rng: &mut Rng) -> (Behaviour, u64) {
    let (behaviour, salt) = (rng.pick(&BEHAVIOURS), rng.below(3));
    let behaviour = match behaviour {
        Behaviour::Unloadable if salt > 0 => Behaviour::Misspelt,
        Behaviour::Invalid if salt > 0 => Behaviour::Forbidden,
        other => other,
    };
    (behaviour, salt)
}

/// What somebody does to the API server's objects.
fn administer(outside: &mut Outside, rng: &mut Rng) -> String {
    let name = rng.pick(&NAMES);
    match rng.below(12) {
        0..=2 => {
            outside.assign(name);
            format!("assign {name}")
        }
        3..=5 => {
            let (behaviour, salt) = any_content(rng);
            outside.put_as(name, &behaviour.text(salt), rng.one_in(3));
            format!("{name} becomes {behaviour:?}")
        }
        6 | 7 => {
            outside.touch(name);
            format!("label {name}")
        }
        8 => {
            outside.delete(name);
            format!("delete {name}")
        }
        9 => {
            outside
                .set_desired(Assignment::Map(Outside::reference(name, if rng.one_in(2) { "other" } else { "absent" })));
            format!("assign another key of {name}")
        }
        10 => {
            outside.set_desired(Assignment::Local);
            "reset".to_owned()
        }
        _ => {
            let desired = if rng.one_in(2) { Assignment::AllNil } else { Assignment::Unknown };
            outside.set_desired(desired.clone());
            format!("the Node says {desired:?}")
        }
    }
}

/// A bit flips in the assigned checkpoint, or in the content of last known good.
pub(super) fn rot(node: &Node, rng: &mut Rng) {
    let disk = node.outside.borrow().disk.clone();
    let (assigned, proven) = {
        let outside = node.outside.borrow();
        let proven = outside.account.lkg.as_ref().and_then(|lkg| lkg.path().map(str::to_owned));
        (outside.status.assigned.clone(), proven)
    };
    if let Some(path) = proven.filter(|_| rng.one_in(2)) {
        let dir = content_dir(&path);
        if disk.rot(&dir.join("kubelet.json")) {
            let mut outside = node.outside.borrow_mut();
            let now = outside.now;
            outside.account.rotted = Some((dir.to_owned(), now));
            outside.schedule(ms(rng.below(900)), Coming::StoreTouched);
        }
    } else if let Some(source) = assigned {
        disk.rot(&checkpoint(&source).join("other"));
    }
}

/// Who no longer answers.
fn silence(outside: &mut Outside, rng: &mut Rng, hangs: bool) -> String {
    let now = outside.now;
    match rng.below(8) {
        0..=2 => {
            let pause = Duration::from_secs(rng.pick(&[3, 20, 90, 300]));
            outside.silence.stall(now, now + pause);
            let hangs = hangs && pause >= Duration::from_secs(90) && outside.hang(false, false);
            format!("the disk stalls for {pause:?}, and the kubelet hangs for that: {hangs}")
        }
        3 => {
            outside.silence.slow = Duration::from_millis(rng.pick(&[30, 700, 3000]));
            format!("the disk takes {:?} for everything", outside.silence.slow)
        }
        4 => {
            outside.silence.judge = true;
            "no preflight answers".to_owned()
        }
        5 => {
            outside.silence.queries = true;
            "nobody answers a question about the node".to_owned()
        }
        6 => {
            outside.silence.one_side = Some(rng.pick(&[OneSide::Queries, OneSide::Watches]));
            format!("one side of the network is lost: {:?}", outside.silence.one_side)
        }
        _ => {
            outside.silence.end(now);
            outside.hear();
            "everybody answers".to_owned()
        }
    }
}

/// What happens to the node and its kubelet.
fn disturb(outside: &mut Outside, rng: &mut Rng) -> String {
    match rng.below(10) {
        9 => {
            let tear = rng.one_in(2);
            outside.edit_local(tear);
            format!("the local file is edited, torn: {}", outside.torn_local.is_some())
        }
        0 | 1 => {
            let up = rng.below(3) > 0;
            outside.set_api(up);
            format!("API server up: {up}")
        }
        2 => {
            outside.kill_kubelet();
            "the kubelet is killed".to_owned()
        }
        3 | 4 => {
            outside.jump_wall_clock();
            "the wall clock jumps".to_owned()
        }
        5 => {
            outside.kubelet_id = format!("kubelet {}", rng.below(3));
            format!("upgrade to {}", outside.kubelet_id)
        }
        6 => {
            outside.spawn_failures = 1;
            "the next start fails".to_owned()
        }
        _ => {
            let (up, kills) = (outside.surroundings.runtime_down || rng.one_in(3), rng.one_in(2));
            outside.set_runtime(up, kills);
            format!("runtime up: {up}, kubelets exit without it: {kills}")
        }
    }
}

/// What the API server gets wrong.
fn misinform(outside: &mut Outside, rng: &mut Rng) -> String {
    let name = rng.pick(&NAMES);
    match rng.below(8) {
        0..=2 => {
            outside.mood = Mood { late: rng.one_in(2), lossy: rng.one_in(3), twice: rng.one_in(3) };
            format!("API server in {:?}", outside.mood)
        }
        3 | 4 => {
            // Of the map that is watched: a stale cache. Of another: a watch that has been replaced.
            let Some(payload) = outside.old_version(name) else { return "nothing".to_owned() };
            outside.lie(Input::ConfigMap(payload));
            format!("some version of {name} is delivered")
        }
        5 => {
            outside.lie(Input::ConfigMapFailed { why: "not found".to_owned(), definite: true });
            "a ConfigMap is said to be gone".to_owned()
        }
        6 => {
            outside.lie(Input::Node(Assignment::Unknown));
            "the Node is said to be gone".to_owned()
        }
        _ => {
            let desired = if rng.one_in(3) {
                Assignment::Local
            } else {
                Assignment::Map(Outside::reference(name, super::world::KEY))
            };
            outside.lie(Input::Node(desired.clone()));
            format!("an old Node is delivered: {desired:?}")
        }
    }
}
