//! Canaries held against Nodes that have not changed, before a revision goes on. What was seen is in the pool's status, Node by
//! Node, so that a controller that takes over goes on with it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::evidence::{EProcess, Groups, MAX_GROUP, Test};
use super::node::PoolNode;
use super::report::rfc3339;
use super::signals::Signal;
use super::types::comparison::{CanaryComparison, CompareStrategy, ComparedNode, ComparedSignal, ComparisonOutcome};

/// The restart with the revision is of the change's making and not of the revision's: what comes within so long is not compared.
const SETTLE: SignedDuration = SignedDuration::from_mins(2);
/// Pods are listed so often.
pub(crate) const OBSERVE_EVERY: Duration = Duration::from_secs(60);
/// The unchanged Nodes are as many as the canaries, and so many at least: against two others, two canaries show nothing.
const MIN_CONTROLS: usize = 30;
/// As the schema has it.
const MAX_MINUTES: u32 = 1440;
/// Nodes that stay in the status when all is said.
const MAX_KEPT_NODES: usize = 20;

impl CompareStrategy {
    fn test(&self) -> Test {
        let kinds = u32::try_from(Signal::ALL.len()).unwrap_or(u32::MAX);
        Test { max_error_percent: self.max_error_percent, kinds }
    }
}

/// What the Pods of compared Nodes showed when they were last listed.
#[derive(Clone, Debug)]
pub(crate) struct PodObservation {
    /// [`CanaryComparison::started`] of the one that it is for.
    pub(crate) started: String,
    pub(crate) at: Timestamp,
    /// By Node; or why they could not be listed.
    pub(crate) seen: Result<BTreeMap<String, BTreeSet<Signal>>, String>,
}

impl CanaryComparison {
    /// Of the first of each, in the order of the draw.
    pub(crate) fn new(
        revision: String,
        asked: &CompareStrategy,
        canaries: &[&PoolNode],
        controls: &[&PoolNode],
        now: Timestamp,
    ) -> Self {
        let canaries = canaries.get(..MAX_GROUP).unwrap_or(canaries);
        let most = canaries.len().max(MIN_CONTROLS);
        let controls = controls.get(..most).unwrap_or(controls);
        let started = now.checked_add(SETTLE).unwrap_or(now);
        let (test, groups) = (asked.test(), Groups::new(canaries.len(), controls.len()));
        let smallest_harm_percent = test.smallest_harm_percent(groups, 0);
        let signals = Signal::ALL.map(|type_| ComparedSignal {
            type_,
            canaries: 0,
            controls: 0,
            sequence: String::new(),
            chance_percent: 100,
            smallest_harm_percent,
        });
        let row =
            |canary: bool| move |node: &&PoolNode| ComparedNode { name: node.name.clone(), canary, signals: vec![] };
        let can_show = smallest_harm_percent.is_some();
        let mut comparison = Self {
            revision,
            started: rfc3339(started),
            outcome: if can_show { ComparisonOutcome::Comparing } else { ComparisonOutcome::TooFewNodes },
            canaries: count(canaries.len()),
            controls: count(controls.len()),
            signals: signals.into(),
            nodes: canaries.iter().map(row(true)).chain(controls.iter().map(row(false))).collect(),
            message: String::new(),
        };
        comparison.close(asked);
        comparison
    }

    /// It is not over.
    pub(crate) fn is_open(&self) -> bool {
        self.outcome == ComparisonOutcome::Comparing
    }

    /// From when on events count; none: somebody wrote something else there.
    pub(crate) fn started(&self) -> Option<Timestamp> {
        self.started.parse().ok()
    }

    fn ends(&self, asked: &CompareStrategy) -> Option<Timestamp> {
        self.started()?.checked_add(SignedDuration::from_mins(asked.minutes.min(MAX_MINUTES).into())).ok()
    }

    /// When it has to be looked at again.
    pub(crate) fn next(&self) -> Option<Duration> {
        self.is_open().then_some(OBSERVE_EVERY)
    }

    /// Adds what is seen now, and whether that is the end of it.
    pub(crate) fn update(
        &mut self,
        asked: &CompareStrategy,
        observed: Option<&PodObservation>,
        nodes: &BTreeMap<String, PoolNode>,
        now: Timestamp,
    ) {
        let (Some(started), Some(ends)) = (self.started(), self.ends(asked)) else { return };
        if !self.is_open() || now < started {
            return;
        }
        let observed = observed.filter(|observed| observed.started == self.started);
        let seen = observed.and_then(|observed| observed.seen.as_ref().ok());
        let has = |name: &str, signal: Signal| match signal {
            Signal::NotReady => nodes.get(name).is_some_and(|node| node.was_unready_since(started)),
            _ => seen.and_then(|seen| seen.get(name)).is_some_and(|signals| signals.contains(&signal)),
        };
        let (test, groups) = (asked.test(), Groups::new(self.canaries as usize, self.controls as usize));
        let mut is_harm = false;
        for signal in &mut self.signals {
            let new = self.nodes.iter_mut().filter(|node| !node.signals.contains(&signal.type_));
            let (mut canaries, mut controls) = (String::new(), String::new());
            for node in new.filter(|node| has(&node.name, signal.type_)) {
                node.signals.push(signal.type_);
                if node.canary { canaries.push('c') } else { controls.push('o') }
            }
            is_harm |= signal.extend(&(controls + &canaries), test, groups);
        }
        if is_harm {
            self.outcome = ComparisonOutcome::HarmFound;
        } else if seen.is_some() && observed.is_some_and(|observed| observed.at >= ends) {
            self.outcome = ComparisonOutcome::NoHarmFound;
        }
        self.close(asked);
    }

    /// Why its Pods could not be seen.
    pub(crate) fn blocked_by<'a>(&self, observed: Option<&'a PodObservation>) -> Option<&'a String> {
        observed.filter(|observed| observed.started == self.started)?.seen.as_ref().err()
    }

    /// Canaries that had what was found to be harm, or something beside it, and what.
    pub(crate) fn harmed(&self) -> impl Iterator<Item = (String, String)> {
        self.nodes.iter().filter(|node| node.canary && !node.signals.is_empty()).map(|node| {
            let signals: Vec<&str> = node.signals.iter().map(|signal| signal.as_str()).collect();
            (node.name.clone(), signals.join(", "))
        })
    }

    fn close(&mut self, asked: &CompareStrategy) {
        if !self.is_open() {
            self.nodes.retain(|node| !node.signals.is_empty());
            self.nodes.truncate(MAX_KEPT_NODES);
        }
        self.message = self.told(asked);
    }

    fn told(&self, asked: &CompareStrategy) -> String {
        let Self { canaries, controls, .. } = self;
        let counts = self.listed(|it| Some(format!("{} {} and {}", it.type_.as_str(), it.canaries, it.controls)));
        match self.outcome {
            ComparisonOutcome::Comparing => {
                let ends = self.ends(asked).map(rfc3339);
                format!(
                    "until {}, {canaries} canaries are compared with {controls} unchanged Nodes; of them had {counts}",
                    ends.unwrap_or_default()
                )
            }
            ComparisonOutcome::NoHarmFound => {
                let smallest = self.listed(|it| {
                    let share = it.smallest_harm_percent.map(|percent| format!("{percent} %"));
                    Some(format!("{} {}", it.type_.as_str(), share.as_deref().unwrap_or("none")))
                });
                format!(
                    "no harm was found on {canaries} canaries against {controls} unchanged Nodes; of them had {counts}; \
                     harm to this share of canaries or more would have been found in four cases of five: {smallest}"
                )
            }
            ComparisonOutcome::HarmFound => {
                let test = asked.test();
                let found = self.listed(|it| {
                    let Self { canaries, controls, .. } = self;
                    let is_it = it.chance_percent <= test.max_error_percent;
                    is_it.then(|| {
                        format!(
                            "{} on {} of {canaries} canaries and {} of {controls} unchanged Nodes (by chance in {} % of cases at most)",
                            it.type_.as_str(), it.canaries, it.controls, it.chance_percent
                        )
                    })
                });
                format!("canaries are worse than Nodes that have not changed: {found}")
            }
            ComparisonOutcome::TooFewNodes => format!(
                "nothing is compared: {canaries} canaries and {controls} unchanged Nodes could not show any harm; raise \
                 spec.rollout.canaries, or let more Nodes match spec.rollout.canarySelector if there is one"
            ),
        }
    }

    fn listed(&self, tell: impl Fn(&ComparedSignal) -> Option<String>) -> String {
        self.signals.iter().filter_map(tell).collect::<Vec<_>>().join(", ")
    }
}

impl ComparedSignal {
    /// With those who had it now; whether that is harm.
    fn extend(&mut self, new: &str, test: Test, groups: Groups) -> bool {
        if new.is_empty() {
            return false;
        }
        self.sequence.push_str(new);
        let of = |wanted: char| self.sequence.chars().filter(|it| *it == wanted).count();
        let (canaries, controls) = (of('c'), of('o'));
        let mut evidence = EProcess::new(groups);
        self.sequence.chars().for_each(|it| evidence.observe(it == 'c'));
        (self.canaries, self.controls) = (count(canaries), count(controls));
        self.chance_percent = self.chance_percent.min(test.chance_percent(evidence.value()));
        self.smallest_harm_percent = test.smallest_harm_percent(groups, controls);
        test.finds_harm(evidence.value())
    }
}

fn count(of: usize) -> u32 {
    u32::try_from(of).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
