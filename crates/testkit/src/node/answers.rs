//! What the world answers: the kubelet's process, its judge, and the node around it.

use std::time::Duration;

use kubelet_config::assignment::Assignment;
use kubelet_supervisor::machine::evidence::{LeaseObservation, Query};
use kubelet_supervisor::machine::history::HistoryEntry;
use kubelet_supervisor::machine::model::{Exit, Rendered, RunId, StartedKubelet, Verdict};
use kubelet_supervisor::machine::{Answer, Effect, FetchError, Input, Ticket, limits};
use kubelet_supervisor::ports::StoreRequest;

use super::{Node, Process, REFUSAL};

impl Node {
    pub(super) fn answer(&mut self, effect: &Effect) -> Option<Input> {
        match effect {
            Effect::Store(request) => self.submit(request.clone()),
            Effect::Emit(event) => {
                self.history += 1;
                let entry = HistoryEntry {
                    number: self.history,
                    nanos: self.wall_nanos,
                    reason: event.reason.as_str().to_owned(),
                    warning: event.warning,
                    message: event.message.clone(),
                    source: event.source.clone(),
                    log_tail: event.log_tail.clone(),
                    local: event.local,
                    ..HistoryEntry::default()
                };
                self.submit(StoreRequest::Append(Box::new(entry)))
            }
            Effect::Send(entry) => self.api_answers().then_some(Input::Reported(entry.number)),
            Effect::Watch(Some(reference)) if self.api_answers() && self.wanted != Assignment::Unknown => {
                self.payload(&reference.name).map(Input::ConfigMap)
            }
            Effect::Preflight(ticket, rendered, _) => self.preflight(*ticket, rendered),
            Effect::Start(config) => {
                Some(Input::Started(self.start(config.as_deref().map(|config| config.path.as_str()))))
            }
            Effect::GoOn(run) => Some(Input::Started(self.go_on(*run))),
            Effect::Stop | Effect::DumpStacks if self.is_deaf => {
                self.kill_at = Some(self.now + limits::STOP_GRACE);
                None
            }
            Effect::Stop => self.end_process().then_some(Input::Exited(Exit::Code(0))),
            Effect::DumpStacks => self.end_process().then_some(Input::Exited(Exit::Code(2))),
            Effect::ReadLogTail => Some(Input::LogTail(self.log_tail.clone())),
            Effect::Probe(ticket, _) => {
                let answer = Input::Answer(*ticket, Answer::Probed(self.healthz?));
                self.hold_back(answer)
            }
            Effect::Fetch(ticket, map) => {
                let absent = |definite| Err(FetchError { why: "it is not to be had".to_owned(), definite });
                let fetched = match self.payload(&map.name) {
                    _ if !self.api_answers() => absent(false),
                    found => found.ok_or(()).or(absent(true)),
                };
                self.hold_back(Input::Answer(*ticket, Answer::ConfigMapFetched(fetched)))
            }
            Effect::Query(..) if !self.queries_answered => None,
            Effect::Query(ticket, query) => {
                let answer = self.observe(*ticket, query);
                self.hold_back(answer)
            }
            Effect::Quit => {
                self.quit = true;
                None
            }
            Effect::Log(_, line) => {
                self.journal.push(line.clone());
                None
            }
            Effect::Watch(_)
            | Effect::SelfTest
            | Effect::Answer(..)
            | Effect::Count(_)
            | Effect::DiscardStandby
            | Effect::PingWatchdog => None,
        }
    }

    fn go_on(&mut self, run: RunId) -> Result<StartedKubelet, String> {
        let process = self.process.as_mut().filter(|process| process.id == run).ok_or("it has ended")?;
        (process.left, process.told_ready) = (false, false);
        let ready = process.ready_at.filter(|at| *at <= self.now);
        Ok(StartedKubelet { id: run, adopted: true, ready })
    }

    fn start(&mut self, path: Option<&str>) -> Result<StartedKubelet, String> {
        let content = path.unwrap_or_default().trim_start_matches('/').to_owned();
        if let Some(process) = self.process.as_mut().filter(|process| process.content == content) {
            let run = process.id;
            return self.go_on(run);
        }
        let second = self.process.as_ref().is_some_and(|process| !process.left);
        assert!(!second, "a second kubelet is started");
        self.end_process();
        if let Some(path) = path {
            self.store.check_durable(path);
        }
        if std::mem::take(&mut self.start_fails) {
            return Err("fork: out of memory".to_owned());
        }
        self.pid += 1;
        self.starts.push(content.clone());
        if self.kills_runtime.contains(&content) {
            self.environment.runtime = Some(false);
        } else if !self.kills_runtime.is_empty() {
            self.environment.runtime = Some(true);
        }
        let ready_at = self.ready_after.map(|after| self.now + Duration::from_secs(after));
        let digest = if content.is_empty() { self.local_digest() } else { content.clone() };
        let id = RunId { pid: self.pid, started: self.now };
        self.process = Some(Process { id, content, digest, ready_at, told_ready: false, left: false });
        Ok(StartedKubelet { id, ..StartedKubelet::default() })
    }

    /// False if there was none.
    pub(super) fn end_process(&mut self) -> bool {
        let Some(process) = self.process.take() else { return false };
        self.kill_at = None;
        if self.cuts_contact.contains(&process.content) {
            self.cut_until = self.now + Duration::from_secs(self.contact_back_after);
        }
        true
    }

    fn preflight(&mut self, ticket: Ticket, rendered: &Rendered) -> Option<Input> {
        self.preflights.push(rendered.digest.0.clone());
        self.pending_preflights.clear(); // one that still runs is dropped
        if !self.preflight_answers {
            self.pending_preflights.push((ticket, rendered.clone()));
            return None;
        }
        Some(Input::Answer(ticket, Answer::PreflightDone(self.verdict(rendered))))
    }

    fn verdict(&self, rendered: &Rendered) -> Verdict {
        if self.inconclusive {
            Verdict::Inconclusive("it did not end".to_owned())
        } else {
            verdict_of(self.refused.contains(&rendered.digest.0))
        }
    }

    /// A preflight that was not answered ends after all.
    pub fn end_preflight(&mut self) -> &mut Self {
        for (ticket, rendered) in std::mem::take(&mut self.pending_preflights) {
            let verdict = self.verdict(&rendered);
            self.step(Input::Answer(ticket, Answer::PreflightDone(verdict)));
        }
        self
    }

    /// Answers to queries and probes are had now, and come when they are released.
    pub fn hold(&mut self) -> &mut Self {
        self.held = Some(Vec::new());
        self
    }

    /// What is held back so far; more is held back.
    pub fn take_held(&mut self) -> Vec<Input> {
        self.held.replace(Vec::new()).unwrap_or_default()
    }

    /// What was held back comes, in order, and nothing is held back any more.
    pub fn release(&mut self) -> &mut Self {
        for input in self.held.take().unwrap_or_default() {
            self.step(input);
        }
        self
    }

    fn hold_back(&mut self, answer: Input) -> Option<Input> {
        match &mut self.held {
            Some(held) => {
                held.push(answer);
                None
            }
            None => Some(answer),
        }
    }

    fn observe(&mut self, ticket: Ticket, query: &Query) -> Input {
        let answers = self.api_answers();
        match query {
            Query::Lease if self.asks_to_wait => {
                Input::Answer(ticket, Answer::LeaseObserved(LeaseObservation::HeldBack))
            }
            Query::Lease if self.busy => {
                Input::Answer(ticket, Answer::LeaseObserved(LeaseObservation::Busy("503".into())))
            }
            Query::Lease if !answers => {
                Input::Answer(ticket, Answer::LeaseObserved(LeaseObservation::Unreachable("refused".into())))
            }
            Query::Lease => {
                let alive = self.process.as_ref().and_then(|process| process.ready_at).is_some_and(|at| self.now >= at);
                if alive && self.in_contact() {
                    self.renewed = self.wall_nanos / 1_000_000_000;
                }
                let renewed = kubelet_config::status::timestamp(self.renewed.saturating_mul(1_000_000_000));
                Input::Answer(ticket, Answer::LeaseObserved(LeaseObservation::Renewed(renewed)))
            }
            Query::Pods => Input::Answer(
                ticket,
                Answer::PodsObserved(
                    (answers && !self.busy && !self.asks_to_wait && self.lists_pods).then(|| self.inventory.clone()),
                ),
            ),
            Query::Environment(_) => Input::Answer(ticket, Answer::EnvironmentObserved(self.environment.clone())),
            Query::Streams(..) => Input::Answer(ticket, Answer::StreamsObserved(self.streams)),
        }
    }

    fn is_cut(&self) -> bool {
        self.now < self.cut_until
            || self.process.as_ref().is_some_and(|process| self.cuts_contact.contains(&process.content))
    }

    /// The kubelet reaches the API server.
    pub(super) fn in_contact(&self) -> bool {
        self.contact && !self.is_cut()
    }

    /// The supervisor does.
    pub(super) fn api_answers(&self) -> bool {
        self.api && !(self.cuts_api && self.is_cut())
    }
}

fn verdict_of(is_refused: bool) -> Verdict {
    if is_refused { Verdict::Validate(REFUSAL.to_owned()) } else { Verdict::Valid(Vec::new()) }
}
