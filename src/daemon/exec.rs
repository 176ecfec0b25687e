//! Effects to port calls, outcomes back to inputs.

use std::collections::VecDeque;

use crate::machine::events::Event;
use crate::machine::evidence::Query;
use crate::machine::history::HistoryEntry;
use crate::machine::model::{Beginning, Moment};
use crate::machine::status::node_status;
use crate::machine::{Afterwards, Effect, Input, Level, State};
use crate::ports::{ClusterQuery, ClusterRequest, Ports, StoreRequest};
use kubelet_config::status::NodeConfigStatus;

/// The machine together with its ports.
#[derive(Debug)]
pub struct Executor<P> {
    /// The machine.
    pub state: State,
    /// Its ports.
    pub ports: P,
    published: Option<NodeConfigStatus>,
    /// The time of the latest event.
    event_nanos: u64,
}

impl<P: Ports> Executor<P> {
    /// A machine that has not booted.
    pub fn new(state: State, ports: P) -> Self {
        Self { state, ports, published: None, event_nanos: 0 }
    }

    /// Has the records read, and the kubelet started or gone on with.
    ///
    /// What the API server may lack of the history goes before any event of ours: its share is a number up to which it has
    /// them all.
    pub fn boot(&mut self, now: Moment, beginning: Beginning) -> bool {
        let unreported = self.ports.store().submit(StoreRequest::Unreported);
        self.take([Input::Boot(beginning)].into_iter().chain(unreported).collect(), now)
    }

    /// Takes an input through to its last effect; false when the supervisor shall end.
    pub fn handle(&mut self, input: Input, now: Moment) -> bool {
        self.take(VecDeque::from([input]), now)
    }

    fn take(&mut self, mut inputs: VecDeque<Input>, now: Moment) -> bool {
        let mut go_on = true;
        while let Some(input) = inputs.pop_front() {
            for effect in self.state.step(input, now) {
                go_on &= effect != Effect::Quit;
                inputs.extend(self.run(effect));
            }
        }
        self.ports.notifier().publish(&self.state);
        // What is on record is told once it is known.
        if self.state.is_record_known() && self.state.is_status_due() {
            let status = node_status(&self.state);
            if self.published.as_ref() != Some(&status) {
                self.ports.cluster().submit(ClusterRequest::Publish(Box::new(status.clone())));
                self.published = Some(status);
            }
        }
        go_on
    }

    /// Gives the answers that are there at once.
    fn run(&mut self, effect: Effect) -> Vec<Input> {
        match effect {
            Effect::Store(request) => return self.ports.store().submit(request),
            Effect::Emit(event) => return self.emit(event),
            Effect::Start(config) => return self.ports.kubelet().start(config.as_deref()),
            Effect::GoOn(run) => return self.ports.kubelet().go_on(run),
            Effect::ReadLogTail => return vec![Input::LogTail(self.ports.kubelet().log_tail())],
            Effect::Watch(map) => self.ports.cluster().submit(ClusterRequest::Watch(map)),
            Effect::Preflight(ticket, candidate, Afterwards::Ends) => {
                self.ports.preflight().judge(ticket, &candidate);
            }
            Effect::Preflight(ticket, candidate, Afterwards::StandsBy) => {
                self.ports.preflight().judge_for_standby(ticket, &candidate);
            }
            Effect::DiscardStandby => self.ports.preflight().discard_standby(),
            Effect::SelfTest => self.ports.preflight().self_test(),
            Effect::Stop => self.ports.kubelet().stop(),
            Effect::DumpStacks => self.ports.kubelet().dump_stacks(),
            Effect::Probe(ticket, target) => self.ports.probe().probe(ticket, &target),
            Effect::Query(ticket, Query::Lease) => self.ask(ClusterQuery::Lease(ticket)),
            Effect::Query(ticket, Query::Pods) => self.ask(ClusterQuery::Pods(ticket)),
            Effect::Fetch(ticket, map) => self.ask(ClusterQuery::ConfigMap(ticket, map)),
            Effect::Query(ticket, Query::Environment(runtime)) => {
                self.ports.host().observe(ticket, runtime.as_deref());
            }
            Effect::Query(ticket, Query::Streams(pid, runtime)) => {
                self.ports.host().observe_streams(ticket, pid, runtime.as_deref());
            }
            Effect::Send(entry) => self.ports.cluster().submit(ClusterRequest::Emit(entry)),
            Effect::Answer(number, result) => self.ports.notifier().answer(number, &result),
            Effect::Log(level, line) => self.ports.notifier().log(level, &line),
            Effect::Count(counter) => self.ports.notifier().count(&counter),
            Effect::PingWatchdog => self.ports.notifier().ping_watchdog(),
            Effect::Quit => {}
        }
        Vec::new()
    }

    fn ask(&mut self, query: ClusterQuery) {
        self.ports.cluster().submit(ClusterRequest::Query(query));
    }

    /// An event is logged, and appended to the history, which gives it the number it is sent with.
    fn emit(&mut self, event: Event) -> Vec<Input> {
        let level = if event.warning { Level::Warn } else { Level::Info };
        self.ports.notifier().log(level, &format!("{}: {}", event.reason.as_str(), event.message));
        // Its name at the API server is made of its time, and a step may have two.
        let now = self.state.now().wall_nanos;
        let is_taken = (now..now.saturating_add(1000)).contains(&self.event_nanos);
        self.event_nanos = if is_taken { self.event_nanos.saturating_add(1) } else { now };
        let entry = HistoryEntry {
            number: 0,
            nanos: self.event_nanos,
            reason: event.reason.as_str().to_owned(),
            warning: event.warning,
            message: event.message,
            source: event.source,
            kubelet_version: self.state.kubelet_version().unwrap_or_default().to_owned(),
            log_tail: event.log_tail,
            local: event.local,
        };
        self.ports.store().submit(StoreRequest::Append(Box::new(entry)))
    }
}
