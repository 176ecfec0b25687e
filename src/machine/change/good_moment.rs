//! A good moment: a restart cuts streams short, has images downloaded again and start-up probes begun anew or skipped. A change
//! that is not urgent waits a while for them to end (the courtesy). And while the Node is under pressure it waits for as long
//! as that lasts: a kubelet that starts has its first pass of the eviction manager before it admits the pods of the node, and
//! turns nearly all of them away (pkg/kubelet/eviction/eviction_manager.go, `Admit`, v1.20.2 and v1.36.2). A change also waits
//! while any restart would cost pods, unless that is acknowledged.

use std::collections::BTreeSet;

use crate::machine::evidence::{Activity, Hold};
use crate::machine::limits;
use crate::machine::model::{Moment, later};
use kubelet_config::pods::{PodInventory, PodSummary};
use kubelet_config::source::Source;
use kubelet_config::status;

mod step;

/// What is known of the node while a change waits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Inquiry {
    /// When it was asked last; `None`: not yet.
    asked_at: Option<Moment>,
    /// When the pods were.
    pods_asked_at: Option<Moment>,
    awaits_activity: bool,
    awaits_pods: bool,
    activity: Activity,
    /// Pods in their start-up probe.
    starting: Vec<String>,
    /// What the change was last found to wait for.
    holds: Vec<Hold>,
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
    fn of(holds: &[Hold]) -> Self {
        match holds {
            [Hold::Pressure(_), ..] => Self::Pressure,
            [Hold::PodsLost(..), ..] => Self::PodsLost,
            _ => Self::Courtesy,
        }
    }
}

/// A change that waits for a good moment.
#[derive(Debug)]
pub struct Waiting<'a> {
    /// The version; none: the local configuration.
    pub source: Option<&'a Source>,
    /// What it waits for.
    pub holds: &'a [Hold],
    /// It waits no longer than this; `None`: as long as it takes.
    pub until: Option<Moment>,
}

impl Waiting<'_> {
    /// What waits, as people are told.
    #[must_use]
    pub fn name(&self) -> String {
        status::name(self.source)
    }

    /// What it waits for, in a sentence.
    #[must_use]
    pub fn message(&self) -> String {
        message(self.holds)
    }
}

fn message(holds: &[Hold]) -> String {
    holds.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

impl Inquiry {
    pub(super) fn is_holding(&self) -> bool {
        !self.holds.is_empty()
    }

    /// Any restart would cost pods.
    pub(super) fn is_for_pods(&self) -> bool {
        Cause::of(&self.holds) == Cause::PodsLost
    }

    fn is_open(&self) -> bool {
        self.awaits_activity || self.awaits_pods
    }

    pub(super) fn deadlines(&self, due: &mut Vec<Moment>) {
        let pause = if self.is_open() { limits::GOOD_MOMENT_PATIENCE } else { limits::GOOD_MOMENT_INTERVAL };
        due.extend(self.asked_at.map(|at| later(at, pause)));
        due.extend(self.pods_asked_at.filter(|_| self.is_for_pods()).map(|at| later(at, limits::LOST_PODS_INTERVAL)));
        due.extend(self.until);
    }

    pub(super) fn note_pods(&mut self, inventory: Option<&PodInventory>) {
        self.awaits_pods = false;
        let pods = inventory.into_iter().flat_map(|inventory| &inventory.pods);
        let starting = pods.filter(|pod| pod.is_starting && pod.is_live() && !pod.is_terminating);
        self.starting = starting.map(|pod: &PodSummary| pod.name.clone()).collect();
    }

    /// True if it is time to ask for the pods.
    fn pods_are_due(&self, now: Moment) -> bool {
        let interval = if self.is_for_pods() { limits::LOST_PODS_INTERVAL } else { limits::GOOD_MOMENT_POD_INTERVAL };
        self.pods_asked_at.is_none_or(|at| now >= later(at, interval))
    }

    /// It is asked anew what runs.
    fn forget_activity(&mut self) {
        (self.asked_at, self.awaits_activity, self.activity) = (None, false, Activity::default());
    }

    /// Who has not answered by now knows nothing that would hold the change.
    fn give_up(&mut self) {
        if self.awaits_activity {
            (self.awaits_activity, self.activity) = (false, Activity::default());
        }
        if self.awaits_pods {
            self.note_pods(None);
        }
    }

    fn found(&self) -> Vec<Hold> {
        let count = |count: Option<u32>| count.filter(|count| *count > 0);
        let streams = count(self.activity.streams).map(Hold::Streams);
        let pulls = count(self.activity.image_pulls).map(Hold::ImagePulls);
        let starting = (!self.starting.is_empty()).then(|| Hold::StartupProbes(self.starting.clone()));
        streams.into_iter().chain(pulls).chain(starting).collect()
    }
}
