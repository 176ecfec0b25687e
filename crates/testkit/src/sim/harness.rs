//! Runs the real executor in the simulated world and checks the laws after every input.

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use kubelet_config::assignment::Assignment;
use kubelet_config::flags::KubeletArgs;
use kubelet_config::source::Source;
use kubelet_supervisor::adapters::store::FsStore;
use kubelet_supervisor::daemon::exec::Executor;
use kubelet_supervisor::machine::command::Command;
use kubelet_supervisor::machine::evidence::Signal;
use kubelet_supervisor::machine::record::LocalState;
use kubelet_supervisor::machine::{EXIT_FOR_RESTART, Handover, Input, Settings, State, Stored, limits};
use kubelet_supervisor::ports::Store as _;

use super::account::SLACK;
use super::kubelet::Process;
use super::laws::Law;
use super::ports::World;
use super::tamper::{HONEST, Tamper};
use super::world::{Behaviour, Content, Due, Outside, ROOT};
use super::{Rng, rules};

/// No kubelet for longer than this breaks law 1: stop grace and restart back-off fit in it.
const DOWN_AT_MOST: Duration = Duration::from_secs(30);

/// A node from its first boot on, through all its crashes.
#[derive(Debug)]
pub struct Node {
    pub outside: Rc<RefCell<Outside>>,
    /// One life of the supervisor.
    pub executor: Executor<World>,
    /// Named in every complaint.
    pub context: String,
    settings: Settings,
    tamper: &'static Tamper,
    /// Last known good after the previous input.
    proven: Option<Source>,
    /// The records of this life could not be read for a fault: what it does not know it cannot
    /// keep.
    blind: bool,
    /// What was last known good when it went blind: still on disk, until a decision replaces it.
    unseen: Option<Source>,
    /// Earned while the disk was ailing: its record may be half written.
    almost: Option<Source>,
    /// The disk as it was last looked at.
    looked_at: u64,
    /// The process whose status was last looked at.
    known_pid: Option<u32>,
    /// The supervisor ended.
    ended: bool,
}

impl Node {
    /// A node that has not booted.
    pub fn new(seed: u64, local: Behaviour, settings: Settings) -> Self {
        Self::with(seed, local, settings, &HONEST)
    }

    /// A node whose machine is tampered with.
    pub fn with(seed: u64, local: Behaviour, settings: Settings, tamper: &'static Tamper) -> Self {
        let outside = Rc::new(RefCell::new(Outside::new(Rng::new(seed), local, tamper)));
        let executor = Self::executor(&outside, settings.clone());
        Self {
            outside,
            executor,
            context: String::new(),
            settings,
            tamper,
            proven: None,
            blind: false,
            unseen: None,
            almost: None,
            looked_at: 0,
            known_pid: None,
            ended: false,
        }
    }

    fn executor(outside: &Rc<RefCell<Outside>>, settings: Settings) -> Executor<World> {
        let words = [
            "--kubeconfig=/etc/kubernetes/kubelet.conf",
            "--config=/etc/kubernetes/kubelet.yaml",
            "--container-runtime-endpoint=unix:///run/containerd/containerd.sock",
        ];
        let settings = Settings { boot_id: outside.borrow().machine_boots, ..settings };
        let args = KubeletArgs::parse(&words.map(str::to_owned));
        Executor::new(State::new(settings), World::new(outside), args)
    }

    /// Begins a life of the supervisor on the disk as it is.
    pub fn boot(&mut self) {
        self.outside.borrow_mut().forget_life();
        self.tidy();
        self.executor = Self::executor(&self.outside, self.settings.clone());
        self.ended = false;
        let (moment, faults) = {
            let outside = self.outside.borrow();
            (outside.moment(), outside.disk.read_faults())
        };
        self.executor.boot(moment);
        self.blind = self.outside.borrow().disk.read_faults() > faults;
        if self.blind {
            self.outside.borrow_mut().account.forget_records();
            self.unseen.clone_from(&self.proven);
            self.proven.clone_from(&self.executor.state.saved.last_known_good);
        }
        (self.tamper.after)(&mut self.executor.state);
        self.outside.borrow_mut().note_failures();
        self.check();
    }

    /// Another supervisor goes on in this one's place, if it can just now; what this one asked is
    /// answered to nobody.
    pub fn reload(&mut self) -> bool {
        if self.ended || self.outside.borrow().disk.is_off() {
            return false;
        }
        let Some(handover) = self.executor.state.hand_over() else { return false };
        let mut handover = Handover::decode(&handover.encode()).unwrap_or_else(|why| panic!("{why}"));
        (self.tamper.handover)(&mut handover);
        self.outside.borrow_mut().forget_questions();
        self.executor = Self::executor(&self.outside, self.settings.clone());
        let moment = self.outside.borrow().moment();
        self.executor.resume(handover, moment);
        (self.tamper.after)(&mut self.executor.state);
        self.outside.borrow_mut().note_failures();
        self.check();
        true
    }

    /// The power went, by a fault or now, and comes back.
    pub fn power_cycle(&mut self) {
        if self.is_held() {
            let mut outside = self.outside.borrow_mut();
            outside.account.violations.retain(|(law, _)| *law != Law::NamedByRecord);
        }
        let may_be = self.may_be_proven();
        {
            let mut outside = self.outside.borrow_mut();
            let mut rng = outside.rng.clone();
            outside.disk.crash(&mut rng);
            outside.rng = rng;
            outside.restart_machine();
        }
        self.check_survived(&may_be);
    }

    /// The supervisor is killed, and the kubelet with it; what was written stays.
    pub fn kill_supervisor(&mut self) {
        let may_be = self.may_be_proven();
        self.outside.borrow().disk.write_back();
        self.check_survived(&may_be);
    }

    /// `systemctl stop`. False if the power went before it ended.
    pub fn stop_supervisor(&mut self) -> bool {
        self.outside.borrow_mut().account.end_life_cleanly();
        self.input(Input::Shutdown);
        if !self.ended && !self.advance(limits::STOP_GRACE + SLACK) {
            return false;
        }
        let ended = self.ended && self.outside.borrow().process.is_none();
        self.must(Law::EndsOnRequest, ended, || "it does not end".to_owned());
        self.kill_supervisor();
        true
    }

    fn check_survived(&mut self, may_be: &[Option<Source>]) {
        if may_be.len() > 1 {
            // The ledger goes first: a trial that was passed may have been forgotten as passed.
            self.outside.borrow_mut().account.forget_tries();
        }
        let stored = self.stored();
        let attempt = stored.local_state.ok().and_then(|local_state| local_state.attempt).map(|attempt| attempt.source);
        if !rules::TORN_RECORDS && stored.assigned.is_ok_and(|assigned| assigned != attempt) {
            self.outside.borrow_mut().account.forget_tries();
        }
        let found = match stored.last_known_good {
            Ok(found) => found,
            Err(why) => panic!("{}: {:?}: its record was lost: {why}", self.context, Law::NothingLost),
        };
        let known = may_be.contains(&found) || self.was_unseen(&found);
        self.must(Law::NothingLost, known, || format!("{found:?} became last known good"));
        self.proven = found;
    }

    /// A decision was half written when the disk gave out, and what holds waits to be written back:
    /// what ran may then be started again, as its checkpoint is whole and it was on record before.
    fn is_held(&self) -> bool {
        let state = &self.executor.state;
        let held = [&state.saved.assigned, &state.saved.last_known_good];
        state.unsaved.is_some() && held.contains(&&state.target)
    }

    fn was_unseen(&self, found: &Option<Source>) -> bool {
        self.blind && *found == self.unseen
    }

    /// The records as a fresh supervisor would read them.
    pub fn stored(&self) -> Stored {
        FsStore::new(self.outside.borrow().disk.seen(), Path::new(ROOT)).load()
    }

    /// Time passes, unless the power goes. True if it did not.
    pub fn advance(&mut self, by: Duration) -> bool {
        let until = self.outside.borrow().now + by;
        // So many inputs in so little time would be a busy loop.
        let mut patience = 2_000 + 40 * by.as_secs();
        while !self.ended {
            let (next, due) = {
                let mut outside = self.outside.borrow_mut();
                if outside.disk.is_off() {
                    return false;
                }
                let deadline = self.executor.state.deadline().map(|at| at.saturating_add(outside.booted));
                let next = deadline.into_iter().chain(outside.next_at()).min().filter(|at| *at <= until);
                let Some(next) = next else { break };
                outside.now = outside.now.max(next);
                outside.accumulate();
                (next, outside.take_due())
            };
            self.check_running();
            match due {
                Due::Heard(input) => self.input(input),
                Due::Unnoticed => {}
                Due::Nothing => self.input(Input::Tick),
            }
            patience -= 1;
            if patience == 0 {
                self.fail(Law::NoSpinning, &format!("a busy loop at {next:?}"));
            }
        }
        {
            let mut outside = self.outside.borrow_mut();
            outside.now = until;
            outside.accumulate();
        }
        self.tally(Law::NoSpinning);
        self.check_running();
        !self.outside.borrow().disk.is_off()
    }

    fn input(&mut self, input: Input) {
        let Some(input) = (self.tamper.input)(&mut self.executor.state, input) else { return };
        let moment = {
            let mut outside = self.outside.borrow_mut();
            outside.account.steps += 1;
            outside.moment()
        };
        self.ended |= !self.executor.handle(input, moment);
        if self.ended && self.executor.state.exit_code() == EXIT_FOR_RESTART && !self.outside.borrow().disk.is_off() {
            return self.restart();
        }
        (self.tamper.after)(&mut self.executor.state);
        self.outside.borrow_mut().note_failures();
        self.check();
    }

    /// The supervisor left a restart to systemd, which does not take long.
    fn restart(&mut self) {
        self.check();
        let gone = self.outside.borrow().process.is_none();
        self.must(Law::OneKubelet, gone, || "it ends before its kubelet".to_owned());
        self.outside.borrow_mut().account.end_for_restart();
        self.kill_supervisor();
        self.boot();
    }

    /// An administrator removes a history that has grown.
    fn tidy(&self) {
        let outside = self.outside.borrow();
        for file in ["history.jsonl", "history.1.jsonl"] {
            outside.disk.tidy(&Path::new(ROOT).join("supervisor").join(file), 16);
        }
    }

    /// An operator says something; gives the answer.
    pub fn operate(&mut self, command: Command) -> Result<String, String> {
        if self.ended || self.outside.borrow().disk.is_off() {
            return Err("nobody is there".to_owned());
        }
        let before = self.outside.borrow().answers.len();
        self.outside.borrow_mut().account.commanded = true;
        self.input(Input::Operator(before as u64, command.clone()));
        self.outside.borrow_mut().account.commanded = false;
        let answer = {
            let mut outside = self.outside.borrow_mut();
            let answer = outside.answers.get(before).cloned();
            if let Some(Ok(_)) = answer {
                outside.note_command(&command, self.executor.state.unsaved.as_ref());
            }
            answer
        };
        self.must(Law::Obeys, answer.is_some() || self.outside.borrow().disk.is_off(), || {
            format!("no answer to {command:?}")
        });
        answer.unwrap_or_else(|| Err("no answer".to_owned()))
    }

    fn tally(&self, law: Law) {
        self.outside.borrow_mut().account.tally.check(law);
    }

    /// Counts a check; ends the world if it fails.
    pub fn must(&self, law: Law, holds: bool, why: impl FnOnce() -> String) {
        self.tally(law);
        if !holds {
            self.fail(law, &why());
        }
    }

    /// Ends the world.
    fn fail(&self, law: Law, why: &str) -> ! {
        panic!("{}: {law:?}: {why}\n  {}", self.context, self.explain());
    }

    /// Laws of what takes too long.
    fn check_running(&self) {
        let mut outside = self.outside.borrow_mut();
        let now = outside.now;
        outside.check_deadlines();
        let (law, fine) = match &outside.process {
            None => {
                // Nothing is started while the system goes down.
                let leaving = self.ended || outside.surroundings.shutting_down;
                (Law::Runs, leaving || now.saturating_sub(outside.down_since) <= DOWN_AT_MOST)
            }
            Some(process) => match process.stopping {
                Some(since) => (Law::StopEnds, now - since <= limits::STOP_GRACE + SLACK),
                None => match self.fault(&outside, process) {
                    None => (Law::Runs, true),
                    Some((since, patience)) => {
                        let since = since.max(outside.trial_counts_from());
                        let fine = now.saturating_sub(since) <= patience + SLACK
                            || process.source.is_none()
                            || outside.in_trouble()
                            || outside.is_fallback(process.content)
                            || outside.account.pinned.is_some()
                            || outside.disk_is_ailing();
                        (Law::SickEnds, fine)
                    }
                },
            },
        };
        let (_, failed_at) = outside.account.failed_last;
        let due = outside.account.violations.first().cloned();
        drop(outside);
        if let Some((law, why)) = due {
            self.fail(law, &why);
        }
        self.must(law, fine, || "for too long".to_owned());
        if self.executor.state.unsaved.is_some() && !self.ended {
            let soon = now.saturating_sub(failed_at) <= limits::RETRY_MAX + SLACK;
            self.must(Law::TriesAgain, soon, || format!("not since {failed_at:?}"));
        }
    }

    /// What a trial of this process must fail by, since when, and how long it may take.
    fn fault(&self, outside: &Outside, process: &Process) -> Option<(Duration, Duration)> {
        let judged = |signal| outside.account.is_judged(process.content, signal);
        if !process.was_healthy {
            // Without healthz READY=1 is all that is asked for.
            let up = process.ready && !judged(Signal::Healthz);
            return (!up).then_some((process.started, self.settings.start_timeout));
        }
        if let Some(since) = process.sick_since.filter(|_| judged(Signal::Healthz)) {
            return Some((since, limits::HEALTHZ_PATIENCE));
        }
        let signal = process.content.behaviour.betrayed_by()?;
        let patience = signal.patience(self.settings.isolation);
        process.lost_since.filter(|_| judged(signal)).map(|since| (since, patience))
    }

    /// Laws 2 to 6, after an input.
    fn check(&mut self) {
        if self.outside.borrow().disk.is_off() {
            return; // this life is over; what it left behind is checked when the power is back
        }
        let violations = std::mem::take(&mut self.outside.borrow_mut().account.violations);
        for (law, violation) in violations {
            let excused = match law {
                Law::BadStaysBad | Law::LocalOnlyIfNothingElse | Law::BootsCount => self.blind,
                Law::NamedByRecord => self.is_held(),
                _ => false,
            };
            if !excused {
                self.fail(law, &violation);
            }
        }
        if self.executor.state.saved.last_known_good != self.proven {
            let new = self.executor.state.saved.last_known_good.clone();
            let outside = self.outside.borrow();
            let fine = match &new {
                None => outside.known_assignment == Assignment::Local,
                Some(new) => self.earned(&outside, new),
            };
            drop(outside);
            self.must(Law::Earned, fine, || format!("{new:?} became last known good"));
            self.proven = new;
        }
        self.check_process();
        self.check_disk();
    }

    /// The machine knows its process, and the status says what that runs.
    fn check_process(&mut self) {
        let (pid, known, said, runs) = {
            let outside = self.outside.borrow();
            let (Some(pid), Some(process)) = (self.executor.state.pid(), &outside.process) else { return };
            if self.known_pid == Some(pid) && outside.account.status_is_known {
                return;
            }
            (pid, process.pid, outside.content_of(outside.status.active.as_ref()), process.content)
        };
        self.must(Law::OneKubelet, pid == known, || "the machine's process is another".to_owned());
        self.must(Law::StatusIsTrue, said == Some(runs), || format!("{:?}", self.outside.borrow().status));
        self.outside.borrow_mut().account.status_is_known = true;
        self.known_pid = Some(pid);
    }

    /// The disk says what the machine believes, and holds what it names.
    fn check_disk(&mut self) {
        let outside = self.outside.borrow();
        let changes = outside.disk.changes();
        if changes == self.looked_at {
            return;
        }
        self.looked_at = changes;
        let state = &self.executor.state;
        let stored = outside.records(&outside.disk.seen());
        let (saved, local_state) = (&state.saved, &state.saved.local_state);
        let agree = (stored.assigned.as_ref(), stored.last_known_good.as_ref())
            == (Ok(&saved.assigned), Ok(&saved.last_known_good))
            && stored.local_state.as_ref().is_ok_and(|it| is_same(it, local_state));
        let mut store = FsStore::new(outside.disk.durable(), Path::new(ROOT));
        let mut named = [&saved.assigned, &saved.last_known_good].into_iter().flatten();
        let whole = named.all(|source| outside.is_rotten(source) || store.open(source).is_ok());
        // A decision that the disk refused is tried again; what was read wrongly is not known.
        let unreadable = stored.assigned.is_err() || stored.last_known_good.is_err();
        let excused = outside.disk_is_ailing() || self.blind || state.unsaved.is_some() || unreadable;
        drop(outside);
        self.must(Law::RecordsHold, agree || excused, || format!("{stored:?}"));
        self.must(Law::CheckpointsHold, whole || excused || state.checkpoint_damaged, || {
            "a checkpoint is missing".to_owned()
        });
        if agree && whole {
            let mut outside = self.outside.borrow_mut();
            outside.account.failures_seen = outside.disk.failures();
            outside.account.reset_requested = outside.known_assignment == Assignment::Local;
            self.almost = None;
        } else {
            let outside = self.outside.borrow();
            let active = self.executor.state.active.clone();
            self.almost = active.filter(|active| self.earned(&outside, active)).or(self.almost.take());
        }
    }

    /// Law 4: its very content ran in good health for the whole trial.
    fn earned(&self, outside: &Outside, source: &Source) -> bool {
        // The content of last known good under another name is as good as it was; it is not
        // probed between its own trial and the adoption.
        let content = outside.content_of(Some(source));
        if self.proven.is_some() && outside.content_of(self.proven.as_ref()) == content {
            return true;
        }
        let Some(process) = &outside.process else { return false };
        let signal = process.content.behaviour.betrayed_by();
        let judged = signal.is_some_and(|signal| outside.account.is_judged(process.content, signal));
        let lost = process.lost_since.is_some_and(|since| outside.now - since > limits::WATCHDOG_INTERVAL);
        process.earned >= self.settings.trial_duration && content == Some(process.content) && !(judged && lost)
    }

    /// What may be last known good on a disk that lost power now.
    fn may_be_proven(&self) -> Vec<Option<Source>> {
        let state = &self.executor.state;
        let outside = self.outside.borrow();
        let mut may_be = vec![self.proven.clone()];
        if outside.account.reset_requested {
            may_be.push(None);
        }
        may_be.extend(state.active.clone().filter(|active| self.earned(&outside, active)).map(Some));
        may_be.extend(self.almost.clone().map(Some));
        may_be
    }

    /// Content that runs now.
    pub fn running(&self) -> Option<Content> {
        self.outside.borrow().process.as_ref().map(|process| process.content)
    }
}

/// All that is on record beside its format.
fn is_same(one: &LocalState, other: &LocalState) -> bool {
    (&one.attempt, &one.bad, &one.control_test, &one.retry_later)
        == (&other.attempt, &other.bad, &other.control_test, &other.retry_later)
        && (&one.pin, one.frozen, &one.proven, &one.retried)
            == (&other.pin, other.frozen, &other.proven, &other.retried)
}
