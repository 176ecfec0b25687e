//! A sequential test of one kind of event in two groups of Nodes, of which chance chose the first.
//!
//! Each Node counts once, with its first event. If what the canaries have does no harm, the Node that is next to have an event
//! is any of those without one, whatever Nodes and events have to do with each other: it is a canary with the probability
//! `share`, the canaries' share of them. An assumed harm multiplies their odds by a ratio. The likelihood of what was observed
//! under that harm, divided by its likelihood without, is a martingale that begins at 1; so it ever comes to 1/p with a
//! probability of p at most (Ville 1939), however often it is looked at. With a ratio above 1 this holds as well if canaries
//! do better than others. Several ratios are averaged. (Safe logrank test: ter Schure, Pérez-Ortiz, Ly, Grünwald,
//! arXiv 2011.06931.)

/// Assumed harms: so many times the others' odds.
const RATIOS: [f64; 4] = [2.0, 5.0, 20.0, 100.0];
/// Nodes of one group.
pub(crate) const MAX_GROUP: usize = 100;
/// The smallest harm is one that is found as often as this.
const POWER: f64 = 0.8;

/// Two groups of Nodes, by how many they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Groups {
    canaries: u16,
    controls: u16,
}

impl Groups {
    /// [`MAX_GROUP`] each at the most.
    pub(crate) fn new(canaries: usize, controls: usize) -> Self {
        let bounded = |count: usize| u16::try_from(count.min(MAX_GROUP)).unwrap_or_default();
        Self { canaries: bounded(canaries), controls: bounded(controls) }
    }
}

/// The evidence of harm so far.
#[derive(Clone, Debug)]
pub(crate) struct EProcess {
    /// Nodes that had no event yet.
    canaries: u16,
    controls: u16,
    /// Logarithms, one for each ratio.
    ln: [f64; RATIOS.len()],
}

impl EProcess {
    pub(crate) fn new(Groups { canaries, controls }: Groups) -> Self {
        Self { canaries, controls, ln: [0.0; RATIOS.len()] }
    }

    /// A Node had its first event. More of a group than there are say nothing.
    pub(crate) fn observe(&mut self, is_canary: bool) {
        let (canaries, all) = (f64::from(self.canaries), f64::from(self.canaries) + f64::from(self.controls));
        let group = if is_canary { &mut self.canaries } else { &mut self.controls };
        let Some(left) = group.checked_sub(1) else { return };
        *group = left;
        let share = canaries / all;
        for (ln, ratio) in self.ln.iter_mut().zip(RATIOS) {
            *ln += if is_canary { ratio.ln() } else { 0.0 } - (1.0 + (ratio - 1.0) * share).ln();
        }
    }

    /// How many times more likely this is with a harm than without.
    pub(crate) fn value(&self) -> f64 {
        let sum: f64 = self.ln.iter().map(|ln| ln.exp()).sum();
        sum / f64::from(u8::try_from(RATIOS.len()).unwrap_or(u8::MAX))
    }
}

/// A test of several kinds of events, all of them together within one error. What one kind shows of Nodes may tell of another,
/// so their evidences are not averaged: each has its part of the error.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Test {
    /// That a change without harm is called harmful.
    pub(crate) max_error_percent: u32,
    pub(crate) kinds: u32,
}

impl Test {
    pub(crate) fn finds_harm(self, evidence: f64) -> bool {
        evidence * f64::from(self.max_error_percent) >= 100.0 * f64::from(self.kinds)
    }

    /// The probability, at most, that any of the kinds shows so much although there is no harm; rounded up.
    pub(crate) fn chance_percent(self, evidence: f64) -> u32 {
        let is_enough = |percent: &u32| f64::from(*percent) * evidence >= 100.0 * f64::from(self.kinds);
        (1..100).find(is_enough).unwrap_or(100)
    }

    /// The smallest share of canaries with an event, in percent, that is found to be harm in four cases of five, if as large a
    /// share of the others has one as `controls_hit` of them. None: no harm would be.
    pub(crate) fn smallest_harm_percent(self, groups: Groups, controls_hit: usize) -> Option<u32> {
        let needed = self.canaries_needed(groups);
        let hit = f64::from(Groups::new(0, controls_hit).controls);
        let base = if groups.controls == 0 { 0.0 } else { (hit / f64::from(groups.controls)).min(1.0) };
        let controls = binomial(groups.controls, base);
        let is_found = |percent: &u32| {
            let canaries = binomial(groups.canaries, f64::from(*percent) / 100.0);
            let at_least = |needed: usize| -> f64 { canaries.iter().skip(needed).sum() };
            let found = |(probability, needed): (&f64, &Option<usize>)| needed.map(|it| probability * at_least(it));
            controls.iter().zip(&needed).filter_map(found).sum::<f64>() >= POWER
        };
        (1..=100).find(is_found)
    }

    /// By how many controls had an event before: so many canaries are harm; none: not even all.
    fn canaries_needed(self, groups: Groups) -> Vec<Option<usize>> {
        let mut others = EProcess::new(groups);
        let mut needed = Vec::new();
        for _ in 0..=groups.controls {
            let mut evidence = others.clone();
            needed.push((1..=usize::from(groups.canaries)).find(|_| {
                evidence.observe(true);
                self.finds_harm(evidence.value())
            }));
            others.observe(false);
        }
        needed
    }
}

/// The probabilities of 0, 1, … of so many.
fn binomial(of: u16, probability: f64) -> Vec<f64> {
    let mut distribution = vec![1.0];
    for _ in 0..of {
        let mut next = vec![0.0; distribution.len() + 1];
        for (count, before) in distribution.iter().enumerate() {
            for (at, share) in [(count, 1.0 - probability), (count + 1, probability)] {
                if let Some(sum) = next.get_mut(at) {
                    *sum += before * share;
                }
            }
        }
        distribution = next;
    }
    distribution
}

#[cfg(test)]
mod tests;
