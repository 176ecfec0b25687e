//! The state, one step of it, and what is read off it.

use std::time::Duration;

use super::asks::{About, Answered, Asker, Asks};
use super::boot::Reading;
use super::change::{Change, ChangeTimes};
use super::clock::Clock;
use super::drift::Drift;
use super::fallback::Fallback;
use super::health::Health;
use super::io::{Afterwards, Answer, Effect, Input, StoreRequest, Ticket};
use super::launch::Launch;
use super::liveness::Liveness;
use super::local_files::LocalFiles;
use super::model::{ConfigError, KubeletId, LoadTarget, Moment, Rendered};
use super::namespace::Namespace;
use super::on_request::OnRequest;
use super::pause::Pause;
use super::policy::Policy;
use super::process::Process;
use super::proposal::{Commands, Proposal};
use super::record_writer::RecordWriter;
use super::records::{Phase, Records, Version};
use super::standby::Standby;
use super::sync::ConfigSync;
use super::trial::Trial;
use super::versions::{Versions, is_same};
use super::{Counter, Kubelet, Level, Run, Settings, events, limits};
use kubelet_config::assignment::Assignment;

/// Everything the machine knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// The operator's choices.
    pub settings: Settings,
    /// The durable record.
    pub(super) writer: RecordWriter,
    /// What is known of versions, beside the record.
    pub(super) versions: Versions,
    /// What would be gone back to.
    pub(super) fallback: Fallback,
    pub(super) reading: Reading,
    /// What the API server asks for, or the local files.
    pub(super) sync: ConfigSync,
    /// What the policy says of where that is.
    pub(super) namespace: Namespace,
    /// The change under way. Where it is dropped its time is kept: it is found again.
    pub(super) change: Option<Change>,
    pub(super) pending: ChangeTimes,
    /// What changed in the store behind our back.
    pub(super) drift: Drift,
    /// What the node's policy says of what runs.
    pub(super) policy: Policy,
    /// What the Node is asked to judge.
    pub(super) on_request: OnRequest,
    pub(super) local_files: LocalFiles,
    /// What is prepared for the next start.
    pub(super) launch: Launch,
    /// The kubelet's process.
    pub(super) process: Process,
    /// What is known of its health, and of the node's.
    pub(super) health: Health,
    /// Whether the kubelet gives signs of life.
    pub(super) liveness: Liveness,
    /// What is seen on the way to a verdict.
    pub(super) trial: Trial,
    /// Commands that were not carried out yet.
    pub(super) commands: Commands,
    /// Version of the kubelet binary.
    pub(super) kubelet_version: Option<String>,
    pub(super) self_tested: Option<KubeletId>,
    /// A record was unreadable at boot: no checkpoint is removed, as what it names is unknown.
    pub(super) keep_all: bool,
    /// Questions without an answer.
    pub(super) asks: Asks,
    pub(super) clock: Clock,
    /// What the journal was last told that stands in `status.config.error`, with the reason.
    pub(super) logged_error: Option<(&'static str, String)>,
    /// The kubelet that waits to be the next one.
    pub(super) standby: Standby,
    /// Something is under way since then that ends within moments.
    pub(super) moving_since: Option<Moment>,
    /// Which worker of the supervisor this is; 0: none has begun.
    pub(super) worker: u64,
    /// What this step asks for.
    pub(super) effects: Vec<Effect>,
}

impl State {
    /// A machine that waits for `Input::Boot`.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self { settings, ..Self::default() }
    }

    /// One that does not run: what is on record, and what the next one would start.
    pub(super) fn stopped(records: Records, read_only: Option<String>, now: Moment) -> Self {
        let mut state = Self {
            writer: RecordWriter::new(records, read_only),
            fallback: Fallback::offline(),
            clock: Clock::at(now),
            ..Self::default()
        };
        state.process = Process::stopped(state.desired());
        state
    }

    /// Takes one step.
    pub fn step(&mut self, input: Input, now: Moment) -> Vec<Effect> {
        self.advance(now);
        if let Input::Answer(_, Answer::Loaded(id, _)) = &input {
            self.process.note_kubelet(id.clone());
        }
        self.note(input);
        while let Some((asker, answer)) = self.asks.unanswered(&self.clock) {
            self.answer(asker, answer);
        }
        self.count_trial(); // as the input left it: it may be over within this step
        self.reconcile();
        self.count_trial();
        self.log_error();
        std::mem::take(&mut self.effects)
    }

    /// What happened.
    fn note(&mut self, input: Input) {
        match input {
            Input::Answer(ticket, answer) => self.answered(ticket, answer),
            Input::Boot(beginning) => self.boot(beginning),
            Input::NodeName(name) => self.sync.node_named(name),
            Input::PolicyChanged => self.policy_changed(),
            Input::ClockSet => self.clock_set(),
            Input::AssignedByLabels(by_labels) => self.assigned_by_labels(by_labels),
            Input::Node(assignment) => self.node_assignment(assignment),
            Input::ConfigMap(payload) => self.config_map_seen(payload),
            Input::ConfigMapFailed { why, definite } => self.config_map_failed(why, definite),
            Input::StoreTouched => self.store_touched(),
            Input::LocalFilesTouched => self.local_files_touched(),
            Input::Started(result) => self.started(result),
            Input::Ready => self.ready(),
            Input::Exited(exit) => self.exited(exit),
            Input::Watchdog => self.watchdog_pinged(),
            Input::NodeObserved(readiness) => self.node_observed(readiness),
            Input::NodeAnnotations { retry, confirm } => self.sync.node_annotations(retry, confirm),
            Input::PreflightRequested { request, answer } => {
                self.on_request.preflight_requested(request, answer.as_deref());
            }
            Input::LogTail(lines) => self.trial.log_tail_read(&lines, self.process.killed),
            Input::KubeletVersion(version) => self.kubelet_version = Some(version),
            Input::Operator(number, command) => self.commands.push_back((number, command)),
            Input::Appended(entry, result) => {
                if let Err(why) = result {
                    self.log(Level::Warn, format!("the history cannot be written: {why}"));
                }
                if !entry.local {
                    self.effects.push(Effect::Send(entry));
                }
            }
            Input::Reported(number) => self.effects.push(Effect::Store(StoreRequest::Reported(number))),
            Input::Shutdown => self.shutdown(),
            Input::Retire => self.retire(),
            Input::Tick => {}
        }
    }

    fn answered(&mut self, ticket: Ticket, answer: Answer) {
        match self.asks.answered(ticket, self.clock.now) {
            Answered::InTime(asker, about) => {
                self.note_load(about.as_ref(), &answer);
                self.answer(asker, answer);
            }
            Answered::Late(asker, about) => {
                self.note_load(Some(&about), &answer);
                self.learn_late(asker, about, answer);
            }
            Answered::Unknown => {}
        }
    }

    /// The store's word on a version, whoever asked for it.
    fn note_load(&mut self, about: Option<&About>, answer: &Answer) {
        if let (Some(About::Content(Some(version))), Answer::Loaded(_, result)) = (about, answer) {
            self.versions.note_load(version, result);
        }
    }

    /// An answer, to the one who asked.
    fn answer(&mut self, asker: Asker, answer: Answer) {
        match (asker, answer) {
            (Asker::Records, Answer::RecordsRead(stored, id)) => self.records_read(*stored, id),
            (Asker::Writer, Answer::Recorded(result)) => self.written(result),
            (Asker::Drift, Answer::Verified(found)) => self.verified(found),
            (Asker::Policy, Answer::Loaded(_, result)) => self.policy_judged(result),
            (Asker::LocalFiles, Answer::Loaded(_, result)) => self.local_files_read(result),
            (Asker::Fallback, Answer::Loaded(_, result)) => self.fallback_loaded(result),
            (Asker::Start, Answer::Loaded(_, result)) => self.next_loaded(result),
            (Asker::Start, Answer::PreflightDone(verdict)) => self.next_verdict(verdict),
            (Asker::StateFiles, Answer::StateFilesSwapped(result)) => self.state_files_swapped(result),
            (Asker::Change, Answer::Saved(result)) => self.checkpoint_saved(result),
            (Asker::Change, Answer::OtherBytesSaved) => self.checkpoint_refused(),
            (Asker::Change, Answer::Loaded(_, result)) => self.change_loaded(result),
            (Asker::Change, Answer::PreflightDone(verdict)) => self.change_verdict(verdict),
            (Asker::Namespace, Answer::NamespaceJudged(result)) => self.namespace_judged(result),
            (Asker::PreflightOnRequest, Answer::NamespaceJudged(result)) => self.unassigned_permitted(result),
            (Asker::PreflightOnRequest, Answer::ConfigMapFetched(result)) => self.config_map_fetched(result),
            (Asker::PreflightOnRequest, Answer::Loaded(_, result)) => self.unassigned_loaded(result),
            (Asker::PreflightOnRequest, Answer::PreflightDone(verdict)) => self.unassigned_judged(verdict),
            (Asker::PreflightOnRequest, Answer::EnvironmentObserved(found)) => self.unassigned_environment(found),
            (Asker::PodsOnRequest, Answer::PodsObserved(found)) => self.unassigned_pods(found),
            (Asker::HungLoad, Answer::Loaded(_, result)) => self.hung_loaded(result),
            (Asker::HungLoad, Answer::PreflightDone(verdict)) => self.hung_judged(&verdict),
            (Asker::HungProbe, Answer::Probed(is_ok)) => self.healthz_observed(is_ok),
            (Asker::Observed(_), Answer::Probed(is_ok)) => self.probed(is_ok),
            (Asker::Observed(_), Answer::LeaseObserved(lease)) => self.lease_observed(&lease),
            (Asker::Observed(_), Answer::PodsObserved(found)) => self.pods_observed(found),
            (Asker::Observed(_), Answer::EnvironmentObserved(found)) => self.environment_observed(found),
            (Asker::Observed(_), Answer::StreamsObserved(streams)) => self.streams_observed(streams),
            _ => {} // not what was asked for
        }
    }

    /// An answer after its deadline: it is a fact about a version.
    fn learn_late(&mut self, asker: Asker, about: About, answer: Answer) {
        match (about, answer) {
            (About::Content(Some(version)), Answer::Loaded(_, Ok(rendered))) => self.loaded_late(version, rendered),
            (About::Content(None), Answer::Loaded(_, Ok(rendered))) => self.local_loaded_late(asker, rendered),
            (About::Verdict(content, kubelet), Answer::PreflightDone(verdict)) => {
                self.judged_late(content, kubelet, verdict);
            }
            _ => {}
        }
    }

    /// A clock that stands still or runs back must not undo what was decided.
    pub(super) fn advance(&mut self, now: Moment) {
        let before = self.clock.now;
        let quiet = now.since(before) > limits::QUERY_VALID;
        let due = self.deadline().filter(|_| quiet);
        self.clock = Clock::at(Moment { boot: now.boot.max(before.boot), wall_nanos: now.wall_nanos });
        if due.is_some_and(|due| self.clock.now.boot.saturating_sub(due) > limits::QUERY_VALID) {
            self.woke_up(now.since(before));
        }
    }

    /// Starts everything that is due now.
    fn reconcile(&mut self) {
        self.tick_reading();
        self.tick_process();
        self.tick_trial();
        self.tick_reset();
        self.tick_hung();
        self.tick_commands();
        self.tick_namespace();
        self.tick_lie();
        self.tick_change();
        self.tick_fallback();
        self.tick_tries();
        self.tick_launch();
        self.tick_writer();
        self.tick_drift();
        self.tick_local_files(); // an edit has the policy asked
        self.tick_policy();
        self.tick_on_request();
        self.tick_standby();
        self.tick_watchdog();
        self.note_motion();
    }

    /// When the next [`Input::Tick`] is needed; `None` if only an input can change anything.
    ///
    /// What is due now was done by the step that made it due, or waits for an answer; so only later moments count, and
    /// the loop cannot spin. They are those that the latest step asked its [`Clock`] for.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        self.clock.wake()
    }

    fn tick_writer(&mut self) {
        // What is on record is not known before.
        if *self.kubelet() != Kubelet::NotBegun {
            self.write();
        }
    }

    /// A proposal is durable, or could not be recorded.
    pub(super) fn recorded(&mut self, proposal: Proposal, result: Result<(), String>) {
        match proposal {
            Proposal::Switch | Proposal::Adopt | Proposal::Reset | Proposal::Reject => {
                self.change_recorded(&proposal, result);
            }
            Proposal::Command(number, execution) => self.command_recorded(number, execution, &result),
            Proposal::Prove if result.is_ok() => self.proven(),
            Proposal::AwaitConfirmation if result.is_ok() => self.awaits_confirmation(),
            Proposal::Prove | Proposal::AwaitConfirmation | Proposal::Note => {}
        }
    }

    /// Told as an event of the Node, in the journal and in the history.
    pub(super) fn emit(&mut self, event: events::Event) {
        self.effects.push(Effect::Emit(event));
    }

    /// The same, with the kubelet's last lines.
    pub(super) fn emit_with_log(&mut self, event: events::Event) {
        let log_tail = self.trial.last_log_lines(usize::MAX);
        self.emit(events::Event { log_tail, ..event });
    }

    /// For the metrics.
    pub(super) fn count(&mut self, counter: Counter) {
        self.effects.push(Effect::Count(counter));
    }

    /// A line for the journal.
    pub(super) fn log(&mut self, level: Level, text: impl Into<String>) {
        self.effects.push(Effect::Log(level, text.into()));
    }

    /// Has the store load what can be started; without a version, the local configuration.
    pub(super) fn ask_load(&mut self, asker: Asker, version: Option<Version>, patience: Duration) {
        let target = match version.clone() {
            None => LoadTarget::Local,
            Some(Version { source, digest: Some(digest) }) => LoadTarget::Content(digest, source),
            Some(Version { source, digest: None }) => LoadTarget::Source(source),
        };
        self.ask(asker, patience, |ticket| Effect::Store(StoreRequest::Load(ticket, target)));
        self.asks.note_about(asker, About::Content(version));
    }

    /// Has the kubelet judge this.
    pub(super) fn ask_verdict(&mut self, asker: Asker, judged: &Rendered, afterwards: Afterwards, patience: Duration) {
        let about = About::Verdict(judged.digest.clone(), self.process.kubelet_id().clone());
        let judged = judged.clone();
        self.ask(asker, patience, |ticket| Effect::Preflight(ticket, judged, afterwards));
        self.asks.note_about(asker, about);
    }

    /// True if the time has come to ask, and the question before is answered.
    pub(super) fn is_time_to_ask(&self, asker: Asker, next: &Pause) -> bool {
        !self.asks.is_open(asker) && next.is_due(&self.clock)
    }

    /// Finds out whether this kubelet binary can be a judge, while there is time.
    pub(super) fn self_test(&mut self) {
        if self.self_tested.as_ref() != Some(self.process.kubelet_id()) {
            self.self_tested = Some(self.process.kubelet_id().clone());
            self.effects.push(Effect::SelfTest);
        }
    }

    /// True once the record was read. Until then the assigned and the proven versions are not known.
    #[must_use]
    pub fn is_record_known(&self) -> bool {
        self.writer.read_only().is_none() && *self.kubelet() != Kubelet::NotBegun
    }

    /// Version of the kubelet binary, once it is known.
    #[must_use]
    pub fn kubelet_version(&self) -> Option<&str> {
        self.kubelet_version.as_deref()
    }

    /// Error of the configuration that the status shows as assigned, or of what is to run in its place, with the reason. Of a
    /// recorded assignment nothing is said while another is held back: it would be read as the other's.
    #[must_use]
    pub fn config_error(&self) -> Option<(ConfigError, String)> {
        if let Some(why) = self.writer.read_only() {
            return Some((ConfigError::Load, format!("the record of this node cannot be read: {why}")));
        }
        let records = self.records();
        let pinned = records.pin.as_ref().and_then(|pin| pin.version.as_ref());
        let cannot_run = |version: &Version| {
            let refused = records.bad.refusal(version, self.process.kubelet_id());
            let refused = refused.map(|bad| (bad.error, bad.detail.clone()));
            refused.or_else(|| self.versions.unusable(version).map(|it| (it.error, it.why.clone())))
        };
        if let Some(error) = pinned.and_then(cannot_run) {
            return Some(error);
        }
        if let Some(why) = self.local_failure() {
            return Some((ConfigError::Load, why));
        }
        let assigned = records.assigned.as_ref()?;
        let proven = records.last_known_good.as_ref();
        if !self.shows_recorded() {
            return proven.and_then(cannot_run);
        }
        if let Some(error) = cannot_run(assigned).or_else(|| cannot_run(proven?)) {
            return Some(error);
        }
        if let Phase::RetryLater(_, why) = &records.phase {
            return Some((ConfigError::Load, format!("not to blame, will be tried again: {why}")));
        }
        if records.phase.trial().is_some() || is_same(Some(assigned), proven) && self.judgement().runs(assigned) {
            return None;
        }
        self.bad_version(assigned).map(|bad| (bad.error, bad.detail.clone()))
    }

    /// True once the kubelet said READY=1 and runs.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.process.run().is_some_and(Run::is_ready)
    }

    /// The kubelet's process id, while there is one.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.process.run().map(|run| run.id.pid)
    }

    /// Which worker of the supervisor this is; 1 is the first.
    #[must_use]
    pub fn worker(&self) -> u64 {
        self.worker
    }

    /// The moment of the latest step.
    #[must_use]
    pub fn now(&self) -> Moment {
        self.clock.now
    }

    /// True if the status shows the recorded assignment as assigned, and no other that is held back.
    pub(super) fn shows_recorded(&self) -> bool {
        self.assigned_in_status().as_ref() == self.records().assigned.as_ref().map(|version| &version.source)
    }

    /// The assigned version as the status tells it: the latest that was resolved, while that is held back.
    pub(super) fn assigned_in_status(&self) -> Option<kubelet_config::source::Source> {
        let recorded = self.saved().assigned.as_ref().map(|version| version.source.clone());
        let held = self.is_change_accepted() || self.records().frozen || self.records().pin.is_some();
        match self.sync.assignment() {
            Assignment::Local if held => None,
            _ if held => self.sync.resolved().or(recorded),
            _ => recorded,
        }
    }
}
