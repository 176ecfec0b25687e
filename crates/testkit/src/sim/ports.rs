//! The ports of one life of the supervisor, into the simulated world.

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use kubelet_config::flags::KubeletArgs;
use kubelet_config::own_files::DropIn;
use kubelet_config::rendering::HealthzTarget;
use kubelet_config::source::Merge;
use kubelet_config::status::NodeConfigStatus;
use kubelet_supervisor::machine::model::{KubeletId, Rendered, RunId, Verdict};
use kubelet_supervisor::machine::{Counter, Input, Level, State, Ticket};
use kubelet_supervisor::ports::{self, ClusterQuery, ClusterRequest, LocalError, LocalPolicy};

use super::standby::StandbySlot;
use super::store::SimStore;
use super::world::{Behaviour, Coming, Content, Outside, ms};

/// The ports.
#[derive(Debug)]
pub struct World {
    outside: Handle,
    pub(super) store: SimStore,
}

#[derive(Clone, Debug)]
pub(super) struct Handle(pub(super) Rc<RefCell<Outside>>);

/// What two worlds that differ in their wall clocks alone must call alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    Save,
    Record,
    Load,
    Start,
    Stop,
    Dump,
    Probe,
    Judge,
    Discard,
    Watch,
    Publish,
    Query,
    Ping,
}

impl World {
    pub fn new(outside: &Rc<RefCell<Outside>>, args: KubeletArgs) -> Self {
        let outside = Handle(outside.clone());
        Self { store: SimStore::new(outside.clone(), args), outside }
    }
}

impl Handle {
    pub(super) fn note(&self, call: Call) {
        let mut outside = self.0.borrow_mut();
        let now = outside.now;
        outside.account.trace(call as u64, now);
    }

    /// The machine did this.
    pub(super) fn did(&self, what: &'static str) {
        *self.0.borrow_mut().account.activity.entry(what).or_default() += 1;
    }
}

impl ports::Ports for World {
    fn store(&mut self) -> &mut dyn ports::Store {
        &mut self.store
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
    fn boot_time(&self) -> Duration {
        let outside = self.0.borrow();
        outside.boot_clock(outside.now)
    }
    fn config(&self) -> Result<Option<(String, String)>, LocalError> {
        Ok(Some((self.0.borrow().local.clone(), "/etc/kubernetes".to_owned())))
    }
    fn drop_ins(&self) -> Result<Vec<DropIn>, LocalError> {
        Ok(Vec::new())
    }
    fn kubelet_id(&self) -> KubeletId {
        let mut outside = self.0.borrow_mut();
        let id = outside.kubelet_id.clone();
        outside.account.note_kubelet(&id);
        KubeletId(id)
    }
    fn default_merge(&self) -> Merge {
        Merge::Replace
    }
    fn policy(&self) -> Result<LocalPolicy, String> {
        self.0.borrow().policies.now.read()
    }
}

impl ports::Kubelet for Handle {
    fn start(&mut self, config: Option<&Rendered>) -> Vec<Input> {
        self.note(Call::Start);
        self.did("starts");
        self.0.borrow_mut().start_or_go_on(config)
    }

    fn go_on(&mut self, run: RunId) -> Vec<Input> {
        self.note(Call::Start);
        self.0.borrow_mut().go_on(run)
    }

    fn stop(&mut self) {
        self.note(Call::Stop);
        let mut outside = self.0.borrow_mut();
        outside.check_stop();
        outside.terminate();
    }

    fn dump_stacks(&mut self) {
        self.note(Call::Dump);
        let mut outside = self.0.borrow_mut();
        outside.check_dump();
        outside.dump_stacks();
    }

    fn log_tail(&self) -> Vec<String> {
        self.0.borrow_mut().account.steps += 1;
        Vec::new()
    }
}

impl ports::Preflight for Handle {
    fn judge(&mut self, ticket: Ticket, candidate: &Rendered) {
        self.note(Call::Judge);
        self.did("judged");
        let mut outside = self.0.borrow_mut();
        let content = Content::of(&outside.disk.peek(Path::new(&candidate.path)).unwrap_or_default());
        let verdict = match content.behaviour {
            Behaviour::Invalid => Verdict::Validate("invalid configuration: behaviour".to_owned()),
            Behaviour::Mute => Verdict::Inconclusive("no words".to_owned()),
            _ => Verdict::Valid(Vec::new()),
        };
        // An earlier run is dropped.
        outside.queue.retain(|_, coming| !matches!(coming, Coming::Verdict(..)));
        let delay = ms(100 + outside.rng.below(900));
        let withheld = outside.rng.one_in(40) || outside.silence.judge;
        let now = outside.now;
        if outside.asked.is_candidate(&candidate.path) {
            if withheld {
                outside.asked.hinder(now);
            } else {
                outside.schedule(delay, Coming::Verdict(ticket, verdict));
            }
            return;
        }
        if outside.account.withheld.is_some() {
            outside.account.judged_again = Some(now);
        }
        if withheld {
            let kubelet = outside.account.known_kubelet.clone();
            outside.account.unjudged.push((content, kubelet));
            outside.account.withheld = Some((content, now));
        } else {
            outside.account.withheld = None;
            outside.schedule(delay, Coming::Verdict(ticket, verdict));
        }
    }
    fn judge_for_standby(&mut self, ticket: Ticket, candidate: &Rendered) {
        self.0.borrow_mut().asked.forget_candidate();
        self.judge(ticket, candidate);
        self.0.borrow_mut().expect_standby(ticket, candidate);
    }
    fn discard_standby(&mut self) {
        self.note(Call::Discard);
        self.0.borrow_mut().standby = StandbySlot::default();
    }
    fn self_test(&mut self) {}
}

impl ports::Probe for Handle {
    fn probe(&mut self, ticket: Ticket, _target: &HealthzTarget) {
        self.note(Call::Probe);
        self.did("looked");
        let mut outside = self.0.borrow_mut();
        if let Some(pid) = outside.process.as_ref().map(|process| process.pid) {
            outside.schedule(ms(5), Coming::Probe(ticket, pid));
        }
    }
}

impl ports::Cluster for Handle {
    fn submit(&mut self, request: ClusterRequest) {
        match request {
            ClusterRequest::Watch(map) => {
                self.note(Call::Watch);
                self.did("asked");
                let mut outside = self.0.borrow_mut();
                outside.watched = map;
                let delay = ms(5 + outside.rng.below(20));
                outside.deliver(delay, Coming::Map);
            }
            ClusterRequest::Publish(status) => self.publish(&status),
            ClusterRequest::Emit(entry) => {
                self.did("events");
                self.0.borrow_mut().events.push(entry.reason);
            }
            ClusterRequest::Query(query) => {
                self.did("asked");
                let mut outside = self.0.borrow_mut();
                let answer = match query {
                    ClusterQuery::Lease(ticket) => Coming::Lease(ticket),
                    ClusterQuery::Pods(ticket) => {
                        outside.moments.ask_for_pods(ticket);
                        Coming::Pods(ticket)
                    }
                    ClusterQuery::ConfigMap(ticket, map) => Coming::Fetched(ticket, map),
                };
                outside.schedule_answer(answer);
            }
        }
    }
}

impl Handle {
    fn publish(&self, status: &NodeConfigStatus) {
        self.note(Call::Publish);
        self.did("published");
        let mut outside = self.0.borrow_mut();
        outside.check_error(status);
        outside.check_answer(status);
        outside.check_traces([&status.assigned, &status.active, &status.last_known_good].into_iter().flatten());
        outside.status = status.clone();
        outside.account.status_is_known = false;
    }
}

impl Outside {
    /// One answer in forty never comes, and another takes its time.
    fn schedule_answer(&mut self, what: Coming) {
        let delay = match self.rng.below(40) {
            0 => return self.asked.hinder(self.now),
            _ if self.silence.queries => return self.asked.hinder(self.now),
            1 => ms(5 + self.rng.below(4000)),
            _ => ms(5 + self.rng.below(200)),
        };
        self.schedule(delay, what);
    }
}

impl ports::Host for Handle {
    fn observe(&mut self, ticket: Ticket, _runtime: Option<&str>) {
        self.note(Call::Query);
        self.did("looked");
        let mut outside = self.0.borrow_mut();
        let now = outside.now;
        outside.observations.ask(ticket, now);
        outside.schedule_answer(Coming::Environment(ticket));
    }
    fn observe_streams(&mut self, ticket: Ticket, _pid: u32, _runtime: Option<&str>) {
        self.note(Call::Query);
        self.did("looked");
        self.0.borrow_mut().schedule_answer(Coming::Streams(ticket));
    }
}

impl ports::Notifier for Handle {
    fn publish(&mut self, state: &State) {
        let waiting = state.waiting().filter(|waiting| waiting.until.is_some());
        self.0.borrow_mut().check_courtesy(waiting.and_then(|waiting| waiting.source));
    }
    fn count(&mut self, _counter: &Counter) {}
    fn answer(&mut self, number: u64, result: &Result<String, String>) {
        self.0.borrow_mut().note_answer(number, result);
    }
    fn ping_watchdog(&mut self) {
        self.note(Call::Ping);
        let mut outside = self.0.borrow_mut();
        outside.account.pinged = outside.now;
    }
    fn log(&mut self, _level: Level, line: &str) {
        self.did("lines");
        let mut outside = self.0.borrow_mut();
        outside.note_error(line);
        outside.tell(line);
    }
}
