//! What a write of the record is proposed for.

use std::collections::VecDeque;

use super::command::Command;
use super::events::EventReason;
use super::records::Version;

/// What a write was proposed for: it says what follows once it is durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Proposal {
    /// A version is to be switched to.
    Switch,
    /// Equal content under another name.
    Adopt,
    /// The local configuration is assigned.
    Reset,
    /// A version was refused.
    Reject,
    /// The trial was passed.
    Prove,
    /// The trial was passed, and an operator has to confirm the version.
    AwaitConfirmation,
    /// An operator's command, by the number of its answer; the Node's annotations get none.
    Command(Option<u64>, Execution),
    /// Something to be remembered that nothing waits for.
    Note,
}

/// What follows from a command once it is durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Execution {
    pub(super) reason: EventReason,
    /// `None`: a version that runs is left, which has an event of its own.
    pub(super) message: Option<String>,
    pub(super) about: Option<Version>,
    pub(super) answer: String,
}

/// Commands that were not carried out yet, with the numbers of their answers.
pub(super) type Commands = VecDeque<(u64, Command)>;
