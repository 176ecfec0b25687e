//! A good moment: a restart cuts streams of exec, attach and port-forward short. A change that is not urgent waits a while for
//! them to end (the courtesy). And while the Node is under pressure it waits for as long as that lasts: a kubelet that starts has its first pass of the eviction manager before it admits the pods of the node, and
//! turns nearly all of them away (pkg/kubelet/eviction/eviction_manager.go, `Admit`, v1.20.2 and v1.36.2). A change also waits
//! while any restart would cost pods, unless that is acknowledged.

use std::collections::BTreeSet;

use crate::machine::evidence::Hold;
use crate::machine::limits;
use crate::machine::model::{Moment, later};
use kubelet_config::source::Source;
use kubelet_config::status;

mod step;

/// What is known of the node while a change waits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Inquiry {
    /// When the streams were asked for last; `None`: not yet.
    asked_at: Option<Moment>,
    /// When the pods were.
    pods_asked_at: Option<Moment>,
    awaits_streams: bool,
    awaits_pods: bool,
    /// So many run; `None`: nobody knows.
    streams: Option<u32>,
    /// What the change was last found to wait for.
    hold: Option<Hold>,
    /// And until when at the most.
    until: Option<Moment>,
}

/// The wait of a version for a good moment. It outlives the change, which may be begun anew.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MomentTimes {
    /// None: the local configuration.
    source: Option<Source>,
    /// The courtesy is counted from then.
    since: Moment,
    /// It was told that it waits for this.
    told_of: BTreeSet<Cause>,
}

/// Why a change waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Cause {
    /// Something that ends by itself: no longer than the courtesy.
    Courtesy,
    Pressure,
    PodsLost,
}

impl Cause {
    fn of(hold: &Hold) -> Self {
        match hold {
            Hold::Streams(_) => Self::Courtesy,
            Hold::Pressure(_) => Self::Pressure,
            Hold::PodsLost(..) => Self::PodsLost,
        }
    }
}

/// A change that waits for a good moment.
#[derive(Debug)]
pub struct Waiting<'a> {
    /// The version; none: the local configuration.
    pub source: Option<&'a Source>,
    /// What it waits for.
    pub hold: &'a Hold,
    /// It waits no longer than this; `None`: as long as it takes.
    pub until: Option<Moment>,
}

impl Waiting<'_> {
    /// What waits, as people are told.
    #[must_use]
    pub fn name(&self) -> String {
        status::name(self.source)
    }
}

impl Inquiry {
    pub(super) fn is_holding(&self) -> bool {
        self.hold.is_some()
    }

    /// Any restart would cost pods.
    pub(super) fn is_for_pods(&self) -> bool {
        matches!(self.hold, Some(Hold::PodsLost(..)))
    }

    pub(super) fn deadlines(&self, due: &mut Vec<Moment>) {
        let pause = if self.is_open() { limits::GOOD_MOMENT_PATIENCE } else { limits::GOOD_MOMENT_INTERVAL };
        due.extend(self.asked_at.map(|at| later(at, pause)));
        due.extend(self.pods_asked_at.filter(|_| self.is_for_pods()).map(|at| later(at, limits::LOST_PODS_INTERVAL)));
        due.extend(self.until);
    }

    fn is_open(&self) -> bool {
        self.awaits_streams || self.awaits_pods
    }

    pub(super) fn pods_answered(&mut self) {
        self.awaits_pods = false;
    }

    /// True if it is time to ask for the pods: those that any restart would cost may have come, or gone.
    fn pods_are_due(&self, now: Moment) -> bool {
        self.pods_asked_at.is_none_or(|at| now >= later(at, limits::LOST_PODS_INTERVAL))
    }

    /// It is asked anew what runs.
    fn forget_streams(&mut self) {
        (self.asked_at, self.awaits_streams, self.streams) = (None, false, None);
    }
}
