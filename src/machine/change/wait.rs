//! The wait of a change at the gate: since when, what is known of the node meanwhile, and when it is asked again.

use std::collections::BTreeSet;

use crate::machine::asks::Observation;
use crate::machine::clock::Clock;
use crate::machine::evidence::{Baseline, Hold};
use crate::machine::limits;
use crate::machine::model::{Moment, later};
use kubelet_config::digest::Digest;
use kubelet_config::pods::PodInventory;
use kubelet_config::source::Source;

/// The wait of a content, which a kubelet that dies, an operator's freeze or another name does not begin anew.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Wait {
    pub(super) content: Digest,
    /// The turn of this node is counted from then.
    pub(super) first_seen: Moment,
    /// The API server was away when that turn came: it is counted anew once the server is back.
    pub(super) missed_turn: bool,
    /// Streams have been waited for since then. What is spent of the courtesy stays spent.
    pub(super) courtesy_since: Option<Moment>,
    /// It was told that it waits for these, by their labels.
    pub(super) told_of: BTreeSet<&'static str>,
    /// What is known of the node.
    pub(super) inquiry: Inquiry,
}

/// What is known of the node for a change whose turn has come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Inquiry {
    /// When the node was asked last; `None`: not yet.
    pub(super) asked_at: Option<Moment>,
    /// Answers are waited for until then.
    pub(super) answers_by: Option<Moment>,
    /// It was asked everything, and not only for what holds the change.
    pub(super) asked_everything: bool,
    pub(super) unanswered: BTreeSet<Observation>,
    /// Signals found good.
    pub(super) good: Baseline,
    /// So many streams run; `None`: nobody knows.
    pub(super) streams: Option<u32>,
    pub(super) inventory: Option<PodInventory>,
    /// What the change was last found to wait for ...
    pub(super) hold: Option<Hold>,
    /// ... until when at the most ...
    pub(super) until: Option<Moment>,
    /// ... and how often that was asked for again.
    pub(super) asked_again: u32,
}

impl Inquiry {
    /// True while answers are waited for.
    pub(super) fn is_open(&self, clock: &Clock) -> bool {
        let is_held = self.asked_everything || self.until.is_none_or(|until| !clock.reached(until));
        !self.unanswered.is_empty() && is_held && self.answers_by.is_some_and(|by| !clock.reached(by))
    }

    /// True if the answers are too old to switch by.
    pub(super) fn is_stale(&self, now: Moment) -> bool {
        self.asked_at.is_none_or(|asked_at| now.since(asked_at) > limits::QUERY_VALID)
    }

    /// When it is asked next for what holds the change.
    pub(super) fn next_question(&self) -> Option<Moment> {
        let pause = match self.hold.as_ref()? {
            Hold::Pressure(_) => return None,
            Hold::Streams(_) => limits::STREAMS_INTERVAL,
            Hold::PodsLost(..) | Hold::ApiServer => limits::HELD.after(self.asked_again),
        };
        Some(later(self.asked_at?, pause))
    }
}

/// A change that waits.
#[derive(Debug)]
pub struct Waiting<'a> {
    /// The version; none: the local configuration.
    pub source: Option<&'a Source>,
    /// What it waits for.
    pub hold: &'a Hold,
    /// It waits no longer than this; `None`: as long as it takes.
    pub until: Option<Moment>,
}
