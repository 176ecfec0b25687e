//! Runs the real executor in the simulated world and checks the laws after every input.

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use kubelet_config::flags::KubeletArgs;
use kubelet_config::source::Source;
use kubelet_supervisor::daemon::exec::Executor;
use kubelet_supervisor::machine::command::Command;
use kubelet_supervisor::machine::model::Beginning;
use kubelet_supervisor::machine::records::Version;
use kubelet_supervisor::machine::status::node_status;
use kubelet_supervisor::machine::{Input, Settings, State};

use super::Rng;
use super::account::SLACK;
use super::laws::{self, Heed, Law};
use super::ports::World;
use super::promised;
use super::still::Activity;
use super::workers::Doom;
use super::world::{Behaviour, Content, Due, Outside, ROOT};

/// A node from its first boot on, through all its crashes.
#[derive(Debug)]
pub struct Node {
    pub outside: Rc<RefCell<Outside>>,
    /// One life of the supervisor.
    pub executor: Executor<World>,
    /// Named in every complaint.
    pub context: String,
    settings: Settings,
    commands: u64,
    /// The supervisor ended.
    ended: bool,
    /// The worker ends soon.
    doom: Option<Doom>,
}

/// Whose turn it is.
enum Turn {
    World,
    Store,
}

impl Node {
    /// A node that has not booted.
    pub fn new(seed: u64, local: Behaviour, settings: Settings) -> Self {
        Self::with(seed, local, settings, Heed::All)
    }

    /// A node where some laws alone count.
    pub fn with(seed: u64, local: Behaviour, settings: Settings, heed: Heed) -> Self {
        let mut outside = Outside::new(Rng::new(seed), local);
        (outside.account.heed, outside.account.confirm_within) = (heed, settings.confirm_within);
        (outside.account.trial, outside.account.hung_after) = (settings.trial_duration, settings.hung_after);
        let outside = Rc::new(RefCell::new(outside));
        let executor = Self::executor(&outside, settings.clone());
        Self { outside, executor, context: String::new(), settings, commands: 0, ended: false, doom: None }
    }

    fn executor(outside: &Rc<RefCell<Outside>>, settings: Settings) -> Executor<World> {
        let words = [
            "--kubeconfig=/etc/kubernetes/kubelet.conf",
            "--config=/etc/kubernetes/kubelet.yaml",
            "--container-runtime-endpoint=unix:///run/containerd/containerd.sock",
        ];
        let settings = Settings { boot_id: outside.borrow().machine_boots, ..settings };
        let args = KubeletArgs::parse(&words.map(str::to_owned));
        Executor::new(State::new(settings), World::new(outside, args))
    }

    /// Begins a life of the supervisor on the disk as it is.
    pub fn boot(&mut self) {
        self.outside.borrow_mut().forget_life();
        self.tidy();
        self.doom = None;
        self.executor = Self::executor(&self.outside, self.settings.clone());
        self.ended = false;
        self.begin(Beginning::Supervisor);
    }

    fn begin(&mut self, beginning: Beginning) {
        let (moment, faults) = {
            let outside = self.outside.borrow();
            (outside.moment(), outside.disk.read_faults())
        };
        self.executor.boot(moment, beginning);
        {
            let mut outside = self.outside.borrow_mut();
            outside.account.blind = outside.disk.read_faults() > faults;
        }
        self.check();
    }

    /// The worker ends like this, soon.
    pub fn doom_worker(&mut self, doom: Doom) {
        self.doom = Some(doom);
    }

    /// It ends, and another one takes over, with the kubelet that runs.
    fn replace_worker(&mut self, doom: Doom) {
        if self.ended || self.outside.borrow().account.leaving || self.outside.borrow().disk.is_off() {
            return;
        }
        self.outside.borrow_mut().note_left();
        if doom.asked {
            self.input(Input::Retire);
            if self.outside.borrow().disk.is_off() {
                return;
            }
            self.must(Law::Ends, self.ended, || "a worker does not end".to_owned());
        }
        {
            let mut outside = self.outside.borrow_mut();
            outside.tell(&format!("{doom:?}"));
            outside.note_crash();
            outside.disk.write_back();
            outside.check_survived();
            outside.forget_worker(doom);
        }
        self.complain();
        self.stay_away(doom.absent);
        self.executor = Self::executor(&self.outside, self.settings.clone());
        self.ended = false;
        let beginning = {
            let mut outside = self.outside.borrow_mut();
            outside.begin_worker();
            let why = (!doom.asked).then(|| "signal 9".to_owned());
            let (running, generation) = (outside.left_id(), outside.workers.generation);
            Beginning::Worker { running, why, generation }
        };
        self.begin(beginning);
    }

    /// Nobody hears of what happens.
    fn stay_away(&self, by: Duration) {
        let until = self.outside.borrow().now + by;
        self.outside.borrow_mut().workers.absent = true;
        loop {
            let next = self.outside.borrow().next_at().filter(|at| *at <= until);
            let Some(next) = next else { break };
            self.pass_to(next);
            self.outside.borrow_mut().take_due();
        }
        self.pass_to(until);
        self.outside.borrow_mut().workers.absent = false;
    }

    /// The power went, by a fault or now, and comes back.
    pub fn power_cycle(&mut self) {
        {
            let mut outside = self.outside.borrow_mut();
            outside.note_crash();
            let mut rng = outside.rng.clone();
            outside.disk.crash(&mut rng);
            outside.rng = rng;
            outside.restart_machine();
            outside.check_survived();
        }
        self.complain();
    }

    /// The supervisor is killed, and the kubelet with it; what was written stays.
    pub fn kill_supervisor(&mut self) {
        {
            let mut outside = self.outside.borrow_mut();
            outside.note_crash();
            outside.disk.write_back();
            outside.check_survived();
        }
        self.complain();
    }

    /// `systemctl stop`. False if the power went before it ended.
    pub fn stop_supervisor(&mut self) -> bool {
        self.outside.borrow_mut().account.end_life_cleanly();
        self.input(Input::Shutdown);
        if !self.ended && !self.advance(promised::STOP_GRACE + SLACK) {
            return false;
        }
        {
            let mut outside = self.outside.borrow_mut();
            let ended = self.ended && outside.process.is_none();
            outside.account.check(Law::Ends, false, ended, || "it does not end".to_owned());
        }
        self.complain();
        self.kill_supervisor();
        true
    }

    /// Time passes, unless the power goes. True if it did not.
    pub fn advance(&mut self, by: Duration) -> bool {
        let until = self.outside.borrow().now + by;
        // So many inputs in so little time would be a busy loop.
        let mut patience = 2_000 + 40 * by.as_secs();
        while !self.ended {
            if self.outside.borrow().disk.is_off() {
                return false;
            }
            if let Some(doom) = self.doom.take_if(|doom| doom.inputs == 0) {
                self.replace_worker(doom);
                continue;
            }
            let Some((next, turn)) = self.next_turn(until) else { break };
            self.pass_to(next);
            self.check_deadlines();
            match turn {
                Turn::Store => self.serve(),
                Turn::World => {
                    let due = self.outside.borrow_mut().take_due();
                    match due {
                        Due::Heard(input) => self.input(input),
                        Due::Unnoticed => {}
                        Due::Nothing => self.input(Input::Tick),
                    }
                }
            }
            patience -= 1;
            if patience == 0 {
                self.must(Law::NoSpinning, false, || format!("a busy loop at {next:?}"));
                break;
            }
        }
        self.pass_to(until);
        self.must(Law::NoSpinning, true, String::new);
        self.check_deadlines();
        !self.outside.borrow().disk.is_off()
    }

    fn pass_to(&self, moment: Duration) {
        let mut outside = self.outside.borrow_mut();
        outside.now = outside.now.max(moment);
        outside.accumulate();
    }

    fn next_turn(&self, until: Duration) -> Option<(Duration, Turn)> {
        let outside = self.outside.borrow();
        let deadline = self.executor.state.deadline().map(|at| outside.at_boot_clock(at));
        let world = deadline.into_iter().chain(outside.next_at()).min().map(|at| (at, Turn::World));
        let store = self.executor.ports.store.next_at().map(|at| (at, Turn::Store));
        world.into_iter().chain(store).min_by_key(|(at, _)| *at).filter(|(at, _)| *at <= until)
    }

    /// The store has done something that it was asked for.
    fn serve(&mut self) {
        for answer in self.executor.ports.store.serve_next() {
            self.input(answer);
        }
        self.outside.borrow_mut().note_failures();
    }

    fn input(&mut self, input: Input) {
        if self.ended {
            return;
        }
        let moment = {
            let mut outside = self.outside.borrow_mut();
            outside.account.steps += 1;
            outside.account.requests = 0;
            let (steps, limit) = (outside.account.steps, outside.account.limit);
            assert!(limit == 0 || steps < limit, "no steps are left");
            outside.moment()
        };
        self.ended |= !self.executor.handle(input, moment);
        self.doom.iter_mut().for_each(|doom| doom.inputs = doom.inputs.saturating_sub(1));
        self.check();
    }

    /// An administrator removes a history that has grown.
    fn tidy(&self) {
        let outside = self.outside.borrow();
        for file in ["history.jsonl", "history.1.jsonl"] {
            outside.disk.tidy(&Path::new(ROOT).join("supervisor").join(file), 16);
        }
    }

    /// An operator says something; gives the answer, if it is there at once.
    pub fn operate(&mut self, command: &Command) -> Option<Result<String, String>> {
        if self.ended || self.outside.borrow().disk.is_off() {
            return None;
        }
        self.commands += 1;
        let number = self.commands;
        self.outside.borrow_mut().note_question(number, command);
        self.input(Input::Operator(number, command.clone()));
        self.outside.borrow().answers.get(&number).cloned()
    }

    fn check_deadlines(&self) {
        {
            let mut outside = self.outside.borrow_mut();
            outside.note_failures();
            outside.check_deadlines(&self.executor.state, self.ended);
        }
        self.complain();
    }

    fn check(&mut self) {
        {
            let mut outside = self.outside.borrow_mut();
            outside.note_failures();
            if outside.disk.is_off() {
                // This life is over; what it left behind is checked when the power is back.
                outside.account.violations.clear();
                return;
            }
            outside.check_claims(&self.executor.state);
            outside.check_standby();
        }
        self.complain();
    }

    /// Counts a check; ends the world if it fails.
    pub fn must(&self, law: Law, holds: bool, why: impl FnOnce() -> String) {
        self.outside.borrow_mut().account.check(law, false, holds, why);
        self.complain();
    }

    /// The machine did this in an hour in which nothing happened.
    pub fn check_rest(&self, done: &Activity) {
        self.outside.borrow_mut().check_rest(&self.executor.state, done);
        self.complain();
    }

    /// The last point: everything works, and what is wanted is there, or why not is said.
    pub fn check_converged(&self) {
        self.outside.borrow_mut().check_converged(&self.executor.state);
        self.complain();
    }

    /// Ends the world, if a law that counts was broken.
    fn complain(&self) {
        let violations = std::mem::take(&mut self.outside.borrow_mut().account.violations);
        let heed = self.outside.borrow().account.heed;
        if let Some((law, why)) = violations.into_iter().find(|(law, _)| heed.heeds(*law)) {
            let context = if self.context.is_empty() { String::new() } else { format!("{}: ", self.context) };
            laws::broken(law, &format!("{context}{why}\n  {}", self.explain()));
        }
    }

    /// All that matters, short enough to be read.
    pub fn explain(&self) -> String {
        let outside = self.outside.borrow();
        let state = &self.executor.state;
        let records = state.records();
        let account = &outside.account;
        let source = |source: &Source| {
            let (reference, version) = (&source.reference, &source.resource_version);
            format!("{}[{}]@{version}", reference.name, reference.kubelet_config_key)
        };
        let name = |version: Option<&Version>| {
            let content = |version: &Version| outside.content_of_record(version);
            version.map_or("local".to_owned(), |it| format!("{} {:?}", source(&it.source), content(it)))
        };
        let status = &outside.status;
        let said = |it: &Option<Source>| it.as_ref().map_or("local".to_owned(), &source);
        let lines = [
            format!("now:             {:?}, life began {:?}", outside.now, account.began),
            format!("desired:         {:?}, known {:?}", outside.desired, outside.known_assignment),
            format!(
                "status:          assigned {}, active {}, last known good {}, error {:?}",
                said(&status.assigned),
                said(&status.active),
                said(&status.last_known_good),
                status.error
            ),
            format!(
                "records:         assigned {}, last known good {}",
                name(records.assigned.as_ref()),
                name(records.last_known_good.as_ref())
            ),
            format!("phase:           {:?}", records.phase),
            format!(
                "last known good: {:?} of {:?}, {:?}",
                account.lkg.as_ref().map(|it| it.content),
                account.lkg.as_ref().map(|it| source(&it.source)),
                account.lkg.as_ref().map(|it| it.evidence)
            ),
            format!("held:            pin {:?}, frozen {}", records.pin, records.frozen),
            format!("process:         {:?}", outside.process),
            format!("evidence:        {:?}", account.evidence),
            format!("baselines:       {:?}", account.baselines),
            format!("trouble:         {:?}", outside.trouble),
            format!("observations:    {:?}", outside.observations),
            format!("silence:         {:?}, ailing disk: {}", outside.silence, outside.disk_is_ailing()),
            format!("machine:         {:?}, suspended {:?}", state.kubelet(), state.suspended()),
            format!(
                "keeper:          {}",
                format!("{state:?}").split("dirty:").nth(1).unwrap_or_default().chars().take(900).collect::<String>()
            ),
            format!("condition:       {:?}", node_status(state).condition),
            format!("asked:           {:?}", account.asked),
            format!("kubelet:         {}, known {}", outside.kubelet_id, account.known_kubelet),
            format!("failed:          {:?}", account.failed),
            format!("bad:             {:?}", records.bad),
        ];
        lines.join("\n  ")
    }

    /// Content that runs now.
    pub fn running(&self) -> Option<Content> {
        self.outside.borrow().process.as_ref().map(|process| process.content)
    }
}
