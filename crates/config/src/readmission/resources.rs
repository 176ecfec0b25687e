//! Requests against what the node has (`fitsRequest`, pkg/scheduler/framework/plugins/noderesources/fit.go, by way of
//! GeneralPredicates in v1.20.2 and AdmissionCheck in v1.36).

use std::collections::BTreeSet;

use super::allocatable::Amounts;
use super::refusal::{Certainty, Reason};
use crate::pods::PodSummary;

/// What the kubelet looks at first; the first that is short is the reason it gives.
const FIRST: [&str; 4] = ["pods", "cpu", "memory", "ephemeral-storage"];

/// From this version on a kubelet has looked at its runtime, and so knows what is kept back of ephemeral storage, before it says
/// what its Node has (PR 124430; `Run`, pkg/kubelet/kubelet.go, v1.36).
const STORAGE_IS_KNOWN: u64 = 31;

/// What is left while pods are admitted one by one.
pub(super) struct Room {
    left: Amounts,
    keeps_storage: bool,
    /// Others were evicted for a critical pod, nobody knows which.
    preempted: bool,
}

impl Room {
    pub(super) fn new(left: Amounts, minor: Option<u64>) -> Self {
        Self { left, keeps_storage: minor.is_some_and(|minor| minor >= STORAGE_IS_KNOWN), preempted: false }
    }

    /// What the pod lacks here.
    pub(super) fn lacks(&self, pod: &PodSummary) -> Option<(Reason, Certainty)> {
        let (resource, certainty) = self.first_short(pod)?;
        if pod.is_critical {
            return Some((Reason::Preempting(resource.to_owned()), certainty));
        }
        let certainty = if self.preempted { Certainty::Unknown } else { certainty };
        Some((Reason::OutOf(resource.to_owned()), certainty))
    }

    /// Takes what the pod requests, if it is admitted.
    pub(super) fn admit(&mut self, pod: &PodSummary) {
        match self.first_short(pod) {
            Some((_, Certainty::Refused)) if !pod.is_critical => return,
            Some((_, Certainty::Refused)) => self.preempted = true,
            _ => {}
        }
        for (resource, amount) in requests(pod) {
            if let Some(left) = self.left.get_mut(resource) {
                *left = left.saturating_sub(amount);
            }
        }
    }

    fn first_short<'a>(&self, pod: &'a PodSummary) -> Option<(&'a str, Certainty)> {
        let short = |(resource, amount): (&'a str, u64)| Some((resource, self.is_short(resource, amount)?));
        requests(pod).filter_map(short).min_by_key(|(_, certainty)| *certainty)
    }

    /// `None` if there is enough.
    fn is_short(&self, resource: &str, amount: u64) -> Option<Certainty> {
        let is_extended = resource.contains('/');
        match self.left.get(resource) {
            Some(left) if amount <= *left => None,
            // Where devices were handed out the kubelet counts these as there (sanitizeNodeAllocatable,
            // pkg/kubelet/cm/devicemanager/manager.go, v1.20.2). Whether they were is not in the API.
            Some(_) if is_extended => Some(Certainty::Unknown),
            // What is kept back of it counts only once the container manager has started; before, the Node says that nothing is
            // (`GetNodeAllocatableReservation`, pkg/kubelet/cm/node_container_manager_linux.go, v1.20.2 and v1.36).
            Some(_) if resource == "ephemeral-storage" && !self.keeps_storage => Some(Certainty::Unknown),
            Some(_) => Some(Certainty::Refused),
            // What no Node has is no matter (removeMissingExtendedResources, pkg/kubelet/lifecycle/predicate.go, v1.20.2).
            // Of a Node that was not seen yet nothing but its places is known.
            None if is_extended || !self.left.contains_key("cpu") => None,
            None => Some(Certainty::Unknown),
        }
    }
}

/// From this version on what a pod does not ask for is no matter (PR 116408). Before, one that asks for anything is refused
/// for each of these that was promised beyond what there is (v1.20.2).
const ZERO_IS_NOTHING: u64 = 28;

/// Resources of which pods may hold more than the Node has: some were admitted by its old allocatable, and the new one came while
/// others were admitted. An old kubelet then refuses even pods that ask for none of it.
pub(super) struct Overcommitted {
    is_refused_for: bool,
    resources: BTreeSet<String>,
}

impl Overcommitted {
    pub(super) fn of(minor: Option<u64>) -> Self {
        let is_refused_for = minor.is_none_or(|minor| minor < ZERO_IS_NOTHING);
        Self { is_refused_for, resources: BTreeSet::new() }
    }

    /// What the pod lacks, of what it asks for or, maybe, does not.
    pub(super) fn note(&mut self, pod: &PodSummary, lack: Option<(Reason, Certainty)>) -> Option<(Reason, Certainty)> {
        if let Some((Reason::OutOf(resource) | Reason::Preempting(resource), _)) = &lack {
            self.resources.extend((self.is_refused_for && resource != "pods").then(|| resource.clone()));
            return lack;
        }
        let is_unasked =
            |resource: &&String| !pod.requests.contains_key(*resource) && FIRST.contains(&resource.as_str());
        let resource = self.resources.iter().find(is_unasked).filter(|_| !pod.requests.is_empty())?;
        Some((Reason::OutOf(resource.clone()), Certainty::Unknown))
    }
}

/// A place, and what the pod asks for, in the kubelet's order.
fn requests(pod: &PodSummary) -> impl Iterator<Item = (&str, u64)> {
    let amount = |name: &'static str| if name == "pods" { Some(1) } else { pod.requests.get(name).copied() };
    let first = FIRST.into_iter().filter_map(move |name| Some((name, amount(name)?)));
    let rest = pod.requests.iter().map(|(name, amount)| (name.as_str(), *amount));
    first.chain(rest.filter(|(name, _)| !FIRST.contains(name)))
}
