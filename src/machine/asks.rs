//! Questions to the outside that have no answer yet, in one table: who asked, the ticket, until when the answer is waited for.
//!
//! | an answer | counts |
//! |---|---|
//! | in time | for the one who asked, once: [`State::step`](super::State::step) looks it up |
//! | not there at the deadline | as [`Effect::unanswered`] has it: slow, lost and failed are one path |
//! | after that, or to a question that another one of the same asker has replaced | for nobody |
//!
//! - Each asker has one question. After each answer that did not come in time the next one is waited for twice as long, up to
//!   eight times as long: a disk that always takes a second too long is a slow disk, and no broken one. That ends with an answer
//!   that needs no more than the usual time. What a start loads and has judged is no such question: the node waits for its kubelet.
//! - Nobody waits without an end. The record is asked for again when `Reading` says so, an observation when `Health` does; a
//!   change stops waiting for streams when its own patience is over.

use std::collections::BTreeMap;
use std::time::Duration;

use super::io::{Effect, Input, Ticket};
use super::model::{Moment, later};

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Asker {
    /// The first decision, for the records. A retry keeps the ticket, so that a late answer to the first try still counts.
    Records,
    /// The record's writer.
    Writer,
    /// The store is verified.
    Drift,
    /// What the policy says of what runs.
    Policy,
    /// What the local files say.
    LocalFiles,
    /// The content of what we would fall back to.
    Learning,
    /// The next start: its content, its verdict.
    Start,
    /// The next start, for the kubelet's state files.
    StateFiles,
    /// The change: its checkpoint, its content, its verdict.
    Change,
    /// The preflight on request: its ConfigMap, its content, its verdict, the node's free memory, disk and process ids.
    PreflightOnRequest,
    /// The preflight on request, for the node's pods.
    PodsOnRequest,
    /// A kubelet that hangs: what would be started in its place.
    HungLoad,
    /// Healthz outside a trial and a control test: whether the kubelet hangs.
    HungProbe,
    /// Health: one kind of observation.
    Observed(Observation),
}

/// What is observed of the kubelet, and of the node around it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Observation {
    Healthz,
    Environment,
    Lease,
    Pods,
    /// Asked for a change alone.
    Streams,
}

impl Observation {
    /// What is asked while the kubelet is judged.
    pub(super) const ALL: [Self; 4] = [Self::Healthz, Self::Environment, Self::Lease, Self::Pods];
}

/// So often the patience doubles.
const DOUBLINGS: u32 = 3;

/// A question.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Question {
    ticket: Ticket,
    /// `None`: it is asked anew by whoever asked.
    deadline: Option<Deadline>,
}

/// Until when an answer is waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Deadline {
    /// It is usually there by then.
    usually: Moment,
    until: Moment,
    /// What counts as the answer then.
    unanswered: Input,
}

/// All of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Asks {
    last: Ticket,
    open: BTreeMap<Asker, Question>,
    /// Answers in a row that did not come in time.
    late: BTreeMap<Asker, u32>,
}

impl Asks {
    /// A new question, and what is to be done for it.
    pub(super) fn ask(
        &mut self,
        asker: Asker,
        now: Moment,
        patience: Duration,
        request: impl FnOnce(Ticket) -> Effect,
    ) -> Effect {
        let (usually, patience) = (later(now, patience), self.patience(asker, patience));
        self.last += 1;
        let effect = request(self.last);
        let deadline = |unanswered| Deadline { usually, until: later(now, patience), unanswered };
        let deadline = effect.unanswered(patience).map(deadline);
        self.open.insert(asker, Question { ticket: self.last, deadline });
        effect
    }

    /// How long an answer is waited for that usually takes no longer than this.
    pub(super) fn patience(&self, asker: Asker, usually: Duration) -> Duration {
        let late = self.late.get(&asker).copied().unwrap_or_default().min(DOUBLINGS);
        usually.saturating_mul(1 << late)
    }

    /// One that whoever asks gives up.
    pub(super) fn ask_for_ever(&mut self, asker: Asker) -> Ticket {
        self.last += 1;
        self.open.insert(asker, Question { ticket: self.last, deadline: None });
        self.last
    }

    /// Who waits for this answer, and has it now.
    pub(super) fn answered(&mut self, ticket: Ticket, now: Moment) -> Option<Asker> {
        let asker = self.open.iter().find(|(_, question)| question.ticket == ticket).map(|(asker, _)| *asker)?;
        let question = self.open.remove(&asker)?;
        if question.deadline.is_some_and(|deadline| now <= deadline.usually) {
            self.late.remove(&asker);
        }
        Some(asker)
    }

    /// A question whose time is over, and what counts as its answer.
    pub(super) fn unanswered(&mut self, now: Moment) -> Option<(Asker, Input)> {
        let is_over = |question: &Question| question.deadline.as_ref().is_some_and(|deadline| now >= deadline.until);
        let asker = self.open.iter().find(|(_, question)| is_over(question)).map(|(asker, _)| *asker)?;
        let answer = self.open.remove(&asker)?.deadline?.unanswered;
        if !matches!(asker, Asker::Start | Asker::HungProbe) {
            let late = self.late.entry(asker).or_default();
            *late = late.saturating_add(1);
        }
        Some((asker, answer))
    }

    /// The answer is waited for no longer than this.
    pub(super) fn hurry(&mut self, asker: Asker, latest: Moment) {
        if let Some(deadline) = self.open.get_mut(&asker).and_then(|question| question.deadline.as_mut()) {
            deadline.until = latest.min(deadline.until);
        }
    }

    /// Its answer counts for nobody.
    pub(super) fn forget(&mut self, asker: Asker) {
        self.open.remove(&asker);
    }

    /// What is on its way tells of another process.
    pub(super) fn forget_process(&mut self) {
        self.open.retain(|asker, _| !matches!(asker, Asker::Observed(_) | Asker::HungProbe | Asker::HungLoad));
    }

    /// The ticket that waits for an answer.
    pub(super) fn ticket(&self, asker: Asker) -> Option<Ticket> {
        self.open.get(&asker).map(|question| question.ticket)
    }

    pub(super) fn is_open(&self, asker: Asker) -> bool {
        self.open.contains_key(&asker)
    }

    pub(super) fn deadlines(&self, due: &mut Vec<Moment>) {
        due.extend(self.open.values().filter_map(|question| question.deadline.as_ref()).map(|deadline| deadline.until));
    }
}
