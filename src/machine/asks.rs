//! Questions to the outside that have no answer yet, in one table: who asked, the ticket, until when the answer is waited for.
//!
//! | an answer | counts |
//! |---|---|
//! | in time | for the one who asked, once: [`State::step`](super::State::step) looks it up |
//! | not there at the deadline | as [`Effect::unanswered`] has it: slow, lost and failed are one path |
//! | after that | for nobody; but what it says of a version is a fact, whoever asked ([`About`]) |
//! | to a question that another one of the same asker has replaced | for nobody |
//!
//! - Each asker has one question. After each answer that did not come in time the next one is waited for twice as long, up to
//!   eight times as long: a disk that always takes a second too long is a slow disk, and no broken one. That ends with an answer
//!   that needs no more than the usual time. What a start loads and has judged is no such question: the node waits for its kubelet.
//! - Nobody waits without an end. The record is asked for again when `Reading` says so, an observation when `Health` does; a
//!   change stops waiting for streams when its own patience is over.

use std::collections::BTreeMap;
use std::time::Duration;

use super::clock::Clock;
use super::io::{Answer, Effect, Ticket};
use super::model::{KubeletId, Moment, later};
use super::versions::Version;
use super::{State, limits};
use kubelet_config::digest::Digest;

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
    /// The content of what would be gone back to.
    Fallback,
    /// The next start: its content, its verdict.
    Start,
    /// The next start, for the kubelet's state files.
    StateFiles,
    /// The change: its checkpoint, its content, its verdict.
    Change,
    /// Whether the policy lets the assigned ConfigMap be looked at.
    Namespace,
    /// The preflight on request: its namespace, its ConfigMap, its content, its verdict, the node's free memory, disk and process ids.
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

/// The version that a question is about: what the answer says of it counts even after its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum About {
    /// It is loaded; none is the local configuration.
    Content(Option<Version>),
    /// This content is judged by this binary.
    Verdict(Digest, KubeletId),
}

/// Whose an answer is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answered {
    /// Of the one who asked.
    InTime(Asker, Option<About>),
    /// Nobody waits for it any more: who asked, and about what.
    Late(Asker, About),
    /// It was not asked for, or is forgotten.
    Unknown,
}

/// So often the patience doubles.
const DOUBLINGS: u32 = 3;

/// A question.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Question {
    ticket: Ticket,
    about: Option<About>,
    /// `None`: it is asked anew by whoever asked.
    deadline: Option<Deadline>,
}

/// A question about a version that was given up.
#[derive(Clone, Debug, PartialEq, Eq)]
struct GivenUp {
    ticket: Ticket,
    asker: Asker,
    about: About,
    since: Moment,
}

/// Until when an answer is waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Deadline {
    /// It is usually there by then.
    usually: Moment,
    until: Moment,
    /// What counts as the answer then.
    unanswered: Answer,
}

/// All of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Asks {
    last: Ticket,
    open: BTreeMap<Asker, Question>,
    /// Answers in a row that did not come in time.
    late: BTreeMap<Asker, u32>,
    /// Questions about versions that were given up, the latest first.
    given_up: Vec<GivenUp>,
}

impl Asks {
    /// What the open question of this asker is about.
    pub(super) fn note_about(&mut self, asker: Asker, about: About) {
        if matches!(about, About::Verdict(..)) {
            // There is one judge: what it was asked before is dropped.
            self.forget_about(|about| matches!(about, About::Verdict(..)));
        }
        if let Some(question) = self.open.get_mut(&asker) {
            question.about = Some(about);
        }
    }

    /// True while the one judge that there is may still be busy with what was given up.
    pub(super) fn is_verdict_late(&self, clock: &Clock) -> bool {
        let late = self.given_up.iter().find(|late| matches!(late.about, About::Verdict(..)));
        late.is_some_and(|late| !clock.lasted(late.since, limits::PREFLIGHT_DEADLINE))
    }

    /// The local files are written: what comes late of them may be of before or after that.
    pub(super) fn forget_late_local(&mut self) {
        self.forget_about(|about| *about == About::Content(None));
    }

    /// What comes late about this counts for nobody.
    fn forget_about(&mut self, is_it: impl Fn(&About) -> bool) {
        self.given_up.retain(|late| !is_it(&late.about));
        for question in self.open.values_mut() {
            question.about.take_if(|about| is_it(about));
        }
    }

    /// How long an answer is waited for that usually takes no longer than this.
    pub(super) fn patience(&self, asker: Asker, usually: Duration) -> Duration {
        let late = self.late.get(&asker).copied().unwrap_or_default().min(DOUBLINGS);
        usually.saturating_mul(1 << late)
    }

    /// One that whoever asks gives up.
    pub(super) fn ask_for_ever(&mut self, asker: Asker) -> Ticket {
        self.last += 1;
        self.open.insert(asker, Question { ticket: self.last, about: None, deadline: None });
        self.last
    }

    /// Who waits for this answer, and has it now.
    pub(super) fn answered(&mut self, ticket: Ticket, now: Moment) -> Answered {
        let asker = self.open.iter().find(|(_, question)| question.ticket == ticket).map(|(asker, _)| *asker);
        if let Some((asker, question)) = asker.and_then(|asker| self.open.remove_entry(&asker)) {
            if question.deadline.is_some_and(|deadline| now <= deadline.usually) {
                self.late.remove(&asker);
            }
            return Answered::InTime(asker, question.about);
        }
        let late = self.given_up.iter().position(|late| late.ticket == ticket);
        let late = late.map(|late| self.given_up.remove(late));
        late.map_or(Answered::Unknown, |late| Answered::Late(late.asker, late.about))
    }

    /// A question whose time is over, and what counts as its answer.
    pub(super) fn unanswered(&mut self, clock: &Clock) -> Option<(Asker, Answer)> {
        let is_over =
            |question: &Question| question.deadline.as_ref().is_some_and(|deadline| clock.reached(deadline.until));
        let asker = self.open.iter().find(|(_, question)| is_over(question)).map(|(asker, _)| *asker)?;
        let Question { ticket, about, deadline } = self.open.remove(&asker)?;
        let answer = deadline?.unanswered;
        if let Some(about) = about {
            self.given_up.retain(|late| (late.asker, &late.about) != (asker, &about));
            self.given_up.insert(0, GivenUp { ticket, asker, about, since: clock.now });
            self.given_up.truncate(limits::UNUSABLE_KEPT);
        }
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
}

impl State {
    /// Asks; the answer counts if it comes within that time.
    pub(super) fn ask(&mut self, asker: Asker, patience: Duration, request: impl FnOnce(Ticket) -> Effect) {
        let (usually, patience) = (later(self.clock.now, patience), self.asks.patience(asker, patience));
        self.asks.last += 1;
        let effect = request(self.asks.last);
        let deadline = |unanswered| Deadline { usually, until: self.clock.after(patience), unanswered };
        let deadline = effect.unanswered(patience).map(deadline);
        self.asks.open.insert(asker, Question { ticket: self.asks.last, about: None, deadline });
        self.effects.push(effect);
    }
}
