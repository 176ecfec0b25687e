//! Runs the real executor in the simulated world and checks the laws after every input.

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use kubelet_supervisor::adapters::store::FsStore;
use kubelet_supervisor::core::flags::KubeletArgs;
use kubelet_supervisor::core::machine::{Input, Settings, State, Stored, Wanted};
use kubelet_supervisor::core::model::Source;
use kubelet_supervisor::daemon::exec::Executor;
use kubelet_supervisor::ports::Store as _;

use super::Rng;
use super::world::{Behaviour, Outside, ROOT, World};

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
    /// Last known good after the previous input.
    proven: Option<Source>,
    /// The records of this life could not be read for a fault: what it does not know it cannot
    /// keep.
    blind: bool,
    /// What was last known good when it went blind: still on disk, until a decision replaces it.
    unseen: Option<Source>,
}

impl Node {
    /// A node that has not booted.
    pub fn new(seed: u64, local: Behaviour, settings: Settings) -> Self {
        let outside = Rc::new(RefCell::new(Outside::new(Rng::new(seed), local)));
        let executor = Self::executor(&outside, settings);
        Self { outside, executor, context: format!("seed {seed}"), settings, proven: None, blind: false, unseen: None }
    }

    fn executor(outside: &Rc<RefCell<Outside>>, settings: Settings) -> Executor<World> {
        let words = ["--kubeconfig=/etc/kubernetes/kubelet.conf", "--config=/etc/kubernetes/kubelet.yaml"];
        let args = KubeletArgs::parse(&words.map(str::to_owned));
        Executor::new(State::new(settings), World::new(outside), args)
    }

    /// Begins a life of the supervisor on the disk as it is.
    pub fn boot(&mut self) {
        self.outside.borrow_mut().forget_life();
        self.executor = Self::executor(&self.outside, self.settings);
        let (moment, faults) = {
            let outside = self.outside.borrow();
            (outside.moment(), outside.disk.read_faults())
        };
        self.executor.boot(moment);
        self.blind = self.outside.borrow().disk.read_faults() > faults;
        if self.blind {
            self.unseen.clone_from(&self.proven);
            self.proven.clone_from(&self.executor.state.saved.last_known_good);
        }
        self.check();
    }

    /// The power went, by a fault or now, and comes back.
    pub fn power_cycle(&mut self) {
        let may_be = self.may_be_proven();
        {
            let mut outside = self.outside.borrow_mut();
            let mut rng = outside.rng.clone();
            outside.disk.crash(&mut rng);
            outside.rng = rng;
        }
        let stored = self.stored();
        let found = match stored.last_known_good {
            Ok(found) => found,
            Err(why) => panic!("{}: the record of last known good was lost: {why}", self.context),
        };
        assert!(
            may_be.contains(&found) || self.was_unseen(&found),
            "{}: {found:?} became last known good",
            self.context
        );
        self.proven = found;
    }

    /// The supervisor is killed, and the kubelet with it; what was written stays.
    pub fn kill_supervisor(&mut self) {
        let may_be = self.may_be_proven();
        self.outside.borrow().disk.write_back();
        let found = self.stored().last_known_good.unwrap();
        assert!(
            may_be.contains(&found) || self.was_unseen(&found),
            "{}: {found:?} became last known good",
            self.context
        );
        self.proven = found;
    }

    /// A decision was half written when the disk gave out, and what holds waits to be written back:
    /// what ran may then be started again, as its checkpoint is whole and it was on record before.
    fn is_held(&self, violation: &str) -> bool {
        let state = &self.executor.state;
        let held = [&state.saved.assigned, &state.saved.last_known_good];
        violation.contains("which no record names") && state.unsaved.is_some() && held.contains(&&state.target)
    }

    fn was_unseen(&self, found: &Option<Source>) -> bool {
        self.blind && *found == self.unseen
    }

    /// The records as a fresh supervisor would read them.
    pub fn stored(&self) -> Stored {
        FsStore::new(self.outside.borrow().disk.copy(), Path::new(ROOT)).load()
    }

    /// Time passes, unless the power goes. True if it did not.
    pub fn advance(&mut self, by: Duration) -> bool {
        let until = self.outside.borrow().now + by;
        // So many inputs in so little time would be a busy loop.
        let mut patience = 10_000 + 40 * by.as_secs();
        loop {
            if self.outside.borrow().disk.is_off() {
                return false;
            }
            let deadline = self.executor.state.deadline();
            let coming = self.outside.borrow().next_at();
            let Some(next) = deadline.into_iter().chain(coming).min().filter(|at| *at <= until) else {
                break;
            };
            {
                let mut outside = self.outside.borrow_mut();
                outside.now = outside.now.max(next);
            }
            self.check_running();
            let due = self.outside.borrow_mut().take_due();
            self.input(due.unwrap_or(Input::Tick));
            patience -= 1;
            assert!(patience > 0, "{}: a busy loop: {:?}", self.context, self.executor.state);
        }
        self.outside.borrow_mut().now = until;
        self.check_running();
        !self.outside.borrow().disk.is_off()
    }

    fn input(&mut self, input: Input) {
        let moment = self.outside.borrow().moment();
        self.executor.handle(input, moment);
        self.check();
    }

    /// Law 1.
    fn check_running(&self) {
        let outside = self.outside.borrow();
        let down = outside.now.saturating_sub(outside.down_since);
        assert!(
            outside.process.is_some() || down <= DOWN_AT_MOST,
            "{}: no kubelet for {down:?}: {:?}",
            self.context,
            self.executor.state
        );
    }

    /// Laws 2 to 4, after an input.
    fn check(&mut self) {
        if self.outside.borrow().disk.is_off() {
            return; // this life is over; what it left behind is checked when the power is back
        }
        let context = &self.context;
        let violations = std::mem::take(&mut self.outside.borrow_mut().violations);
        for violation in violations {
            assert!(
                self.blind && violation.contains("marked bad") || self.is_held(&violation),
                "{context}: {violation}\n{:?}",
                self.executor.state
            );
        }
        let state = &self.executor.state;
        if state.saved.last_known_good != self.proven {
            let new = state.saved.last_known_good.clone();
            let outside = self.outside.borrow();
            match &new {
                None => assert_eq!(outside.told, Wanted::Local, "{context}: last known good was dropped"),
                Some(new) => assert!(
                    self.earned(&outside, new),
                    "{context}: {new} became last known good unproven, beside {:?}",
                    outside.process
                ),
            }
            drop(outside);
            self.proven = new;
        }
        if let (Some(pid), Some(process)) = (state.pid(), &self.outside.borrow().process) {
            assert_eq!(pid, process.pid, "{context}: the machine's process is another");
        }
    }

    /// Law 4: its very content ran in good health for the whole trial.
    fn earned(&self, outside: &Outside, source: &Source) -> bool {
        // The content of last known good under another name is as good as it was; it is not
        // probed between its own trial and the adoption.
        let text = |source: &Source| outside.text_of(source).map(|text| (Behaviour::of(text), salt(text)));
        if self.proven.as_ref().is_some_and(|proven| text(proven) == text(source)) {
            return true;
        }
        let Some(process) = &outside.process else { return false };
        let long = process.healthy_since.is_some_and(|since| outside.now - since >= self.settings.trial_duration);
        long && text(source) == Some((Behaviour::of(&process.text), salt(&process.text)))
    }

    /// What may be last known good on a disk that lost power now.
    fn may_be_proven(&self) -> Vec<Option<Source>> {
        let state = &self.executor.state;
        let outside = self.outside.borrow();
        let mut may_be = vec![self.proven.clone()];
        if outside.told == Wanted::Local {
            may_be.push(None);
        }
        may_be.extend(state.active.clone().filter(|active| self.earned(&outside, active)).map(Some));
        may_be
    }

    /// What the node must come to, once it is left in peace with a working disk and API server.
    pub fn check_converged(&self) {
        let outside = self.outside.borrow();
        let (state, context) = (&self.executor.state, &self.context);
        let status = &outside.status;
        let detail = || {
            let (wanted, marks) = (&outside.wanted, state.saved.ledger.bad.last());
            let (error, sync, run) = (&state.error, &state.sync_error, &state.kubelet);
            format!(
                "{context}: {wanted:?}\n{status:?}\n{marks:?}\n{error:?} {sync:?} {run:?} {:?} {:?}",
                state.change, state.retry
            )
        };
        let stored = self.stored();
        assert_eq!(stored.assigned, Ok(status.assigned.clone()), "{}", detail());
        assert_eq!(stored.last_known_good, Ok(status.last_known_good.clone()), "{}", detail());
        let wanted = outside.wanted_source();
        match &outside.wanted {
            Wanted::Local => {
                assert_eq!(
                    (&status.assigned, &status.active, &status.last_known_good),
                    (&None, &None, &None),
                    "{}",
                    detail()
                );
                assert_eq!(status.error, None, "{}", detail());
            }
            Wanted::Unknown => {}
            _ if wanted.is_none() => {
                assert!(status.error.as_ref().is_some_and(|error| error.starts_with("failed to sync")), "{}", detail());
            }
            _ => {
                assert_eq!(status.assigned, wanted, "{}", detail());
                if outside.text_of(wanted.as_ref().unwrap()) == Some(&outside.local) {
                    return; // what we would fall back to is the same; good or bad, it runs
                }
                let works = Behaviour::of(outside.text_of(wanted.as_ref().unwrap()).unwrap()).works();
                if status.active == wanted {
                    assert!(works, "{}", detail());
                    assert_eq!(status.last_known_good, wanted, "{}", detail());
                    assert_eq!(status.error, None, "{}", detail());
                } else {
                    // Refused, or unlucky in its trial; either way it is said.
                    if status.active != status.last_known_good {
                        assert!(status.active.is_none() && self.lost_last_known_good(), "{}", detail());
                    }
                    assert!(status.error.is_some(), "{}", detail());
                    assert!(!state.saved.ledger.bad.is_empty(), "{}", detail());
                }
            }
        }
    }
}

impl Node {
    /// Last known good cannot run: its checkpoint rotted, or another kubelet binary refuses it.
    fn lost_last_known_good(&self) -> bool {
        let state = &self.executor.state;
        let Some(source) = &state.saved.last_known_good else { return false };
        let marked = state.saved.ledger.bad.iter().any(|bad| bad.source == *source);
        marked || FsStore::new(self.outside.borrow().disk.copy(), Path::new(ROOT)).open(source).is_err()
    }
}

/// What tells two contents of one behaviour apart.
fn salt(text: &str) -> String {
    let after = text.split("salt").nth(1).unwrap_or_default();
    after.chars().filter(char::is_ascii_digit).collect()
}
