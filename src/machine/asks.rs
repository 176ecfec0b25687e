//! Questions to the outside that have no answer yet, in one table: who asked, the ticket, until when the answer is waited for.
//!
//! - Each asker has one question. The next one takes its place, and what answers the one before counts for nobody.
//! - An answer is looked up once, by [`State::step`](super::State::step), and goes to the one who asked.
//! - Nobody waits without an end. Most questions have a deadline here. The record is asked for again when `Reading` says so, an
//!   observation when `Health` does; a change stops waiting for streams when its own patience is over.

use std::collections::BTreeMap;
use std::time::Duration;

use super::io::Ticket;
use super::model::Moment;

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
    /// The next start: its content, its verdict, its state files.
    Start,
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

/// A question; with `None` it is not given up, but asked anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Question {
    ticket: Ticket,
    until: Option<Moment>,
}

/// All of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Asks {
    last: Ticket,
    open: BTreeMap<Asker, Question>,
}

impl Asks {
    /// The ticket of a new question.
    pub(super) fn ask(&mut self, asker: Asker, until: Option<Moment>) -> Ticket {
        self.last += 1;
        self.open.insert(asker, Question { ticket: self.last, until });
        self.last
    }

    /// Who waits for this answer, and has it now.
    pub(super) fn answered(&mut self, ticket: Ticket) -> Option<Asker> {
        let asker = self.open.iter().find(|(_, question)| question.ticket == ticket).map(|(asker, _)| *asker)?;
        self.open.remove(&asker);
        Some(asker)
    }

    /// The ticket of a question whose time is over: its answer counts for nobody.
    pub(super) fn give_up(&mut self, asker: Asker, now: Moment) -> Option<Ticket> {
        let until = self.open.get(&asker)?.until?;
        if now < until { None } else { self.open.remove(&asker).map(|question| question.ticket) }
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
        due.extend(self.open.values().filter_map(|question| question.until));
    }
}

/// What is told of one that was given up.
pub(super) fn no_answer(within: Duration) -> String {
    format!("no answer within {} s", within.as_secs())
}
