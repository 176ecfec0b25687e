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
mod tests {
    use super::*;

    const FIVE: Test = Test { max_error_percent: 5, kinds: 4 };

    fn evidence(groups: (usize, usize), events: &str) -> f64 {
        let mut process = EProcess::new(Groups::new(groups.0, groups.1));
        events.chars().for_each(|event| process.observe(event == 'c'));
        process.value()
    }

    struct Random(u64);

    impl Random {
        fn unit(&mut self) -> f64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            f64::from(u32::try_from(self.0 >> 32).unwrap()) / 4_294_967_296.0
        }

        /// So many canaries of all, by chance.
        fn draw(&mut self, canaries: u32, all: u32) -> Vec<bool> {
            let mut left = canaries;
            let draws = (0..all).map(|node| {
                let is_canary = self.unit() * f64::from(all - node) < f64::from(left);
                left -= u32::from(is_canary);
                is_canary
            });
            draws.collect()
        }
    }

    /// All ways in which chance may choose three canaries of eight Nodes, which have their events in one order.
    #[test]
    fn over_all_choices_of_canaries_the_evidence_is_one_and_seldom_large() {
        for events in 1..=8 {
            let (mut sum, mut ways, mut large) = (0.0, 0_u32, [0_u32; 3]);
            for choice in (0_u32..256).filter(|choice| choice.count_ones() == 3) {
                let mut process = EProcess::new(Groups::new(3, 5));
                let mut most = 1.0_f64;
                for node in 0..events {
                    process.observe(choice & (1 << node) != 0);
                    most = most.max(process.value());
                }
                sum += process.value();
                ways += 1;
                for (large, error) in large.iter_mut().zip([0.5, 0.2, 0.05]) {
                    *large += u32::from(most >= 1.0 / error);
                }
            }
            let mean = sum / f64::from(ways);
            assert!((mean - 1.0).abs() < 1e-9, "after {events} events: {mean}");
            for (large, error) in large.into_iter().zip([0.5, 0.2, 0.05]) {
                assert!(f64::from(large) <= error * f64::from(ways), "{large} of {ways} at {error}");
            }
        }
    }

    /// Nodes differ, some always have trouble, kinds come together, and each minute somebody looks: within the error.
    #[test]
    fn false_alarms_are_as_seldom_as_promised() {
        let mut random = Random(7);
        for (canaries, controls) in [(3, 30), (10, 30), (50, 50)] {
            let (mut alarms, runs) = (0_u32, 1500_u32);
            for _ in 0..runs {
                let labels = random.draw(canaries, canaries + controls);
                let groups = Groups::new(canaries as usize, controls as usize);
                let mut processes = vec![EProcess::new(groups); 4];
                let mut had = vec![[false; 4]; labels.len()];
                let mut is_alarm = false;
                for minute in 0..30 {
                    let storm = minute == 11;
                    for (node, is_canary) in labels.iter().enumerate() {
                        let rate = [0.001, 0.01, 0.3][node % 3] + if storm { 0.2 } else { 0.0 };
                        let first = random.unit() < rate;
                        for kind in 0..4 {
                            let event = first && (kind == 0 || random.unit() < 0.8);
                            if event && !had[node][kind] {
                                had[node][kind] = true;
                                processes[kind].observe(*is_canary);
                            }
                        }
                    }
                    is_alarm |= processes.iter().any(|process| FIVE.finds_harm(process.value()));
                }
                alarms += u32::from(is_alarm);
            }
            let (alarms, runs) = (f64::from(alarms), f64::from(runs));
            let spread = 3.0 * (runs * 0.05 * 0.95).sqrt();
            assert!(alarms <= runs * 0.05 + spread, "{alarms} of {runs} with {canaries} and {controls}");
        }
    }

    fn share(hit: usize, of: usize) -> f64 {
        let [hit, of] = [hit, of].map(|it| f64::from(u32::try_from(it).unwrap()));
        hit / of
    }

    #[test]
    fn a_stated_harm_is_found_as_often_as_stated() {
        let mut random = Random(11);
        for (canaries, controls, hit) in [(5, 30, 0), (10, 30, 3), (50, 50, 10)] {
            let groups = Groups::new(canaries, controls);
            let harm = FIVE.smallest_harm_percent(groups, hit).unwrap();
            let mut found_at = |percent: u32| {
                let runs = 2000_u32;
                let found = (0..runs).filter(|_| {
                    let base = share(hit, controls);
                    let others = (0..controls).filter(|_| random.unit() < base).count();
                    let hurt = (0..canaries).filter(|_| random.unit() < f64::from(percent) / 100.0).count();
                    let events = "o".repeat(others) + &"c".repeat(hurt);
                    FIVE.finds_harm(evidence((canaries, controls), &events))
                });
                f64::from(u32::try_from(found.count()).unwrap()) / f64::from(runs)
            };
            let (found, below) = (found_at(harm), found_at(harm / 2));
            assert!(found > 0.77, "{harm} % of {canaries}: found in {found}");
            assert!(below < 0.7, "half of it: {below}");
        }
    }

    #[test]
    fn canaries_add_to_the_evidence_and_others_take_from_it() {
        for events in ["", "c", "o", "cco", "oooooo", "coco"] {
            let now = evidence((6, 9), events);
            assert!(evidence((6, 9), &format!("{events}c")) > now, "{events}");
            assert!(evidence((6, 9), &format!("{events}o")) < now, "{events}");
        }
        // At one look nobody knows who was first: others first claims the least.
        assert!(evidence((6, 9), "occ") < evidence((6, 9), "coc").min(evidence((6, 9), "cco")));
        // Trouble on all alike is none of the canaries', nor is it if others alone have it.
        assert!(evidence((5, 30), &"oooooocoooooo".repeat(3)) < 1.0);
        assert!(evidence((10, 100), &"o".repeat(100)) < 1.0);
    }

    #[test]
    fn what_so_few_can_show() {
        let smallest = |canaries, controls, hit| FIVE.smallest_harm_percent(Groups::new(canaries, controls), hit);
        assert_eq!((smallest(1, 100, 0), smallest(2, 10, 0)), (None, None));
        // The table in docs/usage/pools.md, and what follows it.
        let shown = [1, 2, 3, 5, 10, 25, 50, 100].map(|canaries| smallest(canaries, canaries.max(30), 0));
        assert_eq!(shown, [None, Some(90), Some(93), Some(68), Some(49), Some(35), Some(20), Some(11)]);
        assert_eq!([25, 10, 5].map(|canaries| smallest(canaries, 30, 5)), [Some(78), Some(97), None]);
        assert_eq!(smallest(50, 50, 50), None, "where all others have it");
    }

    #[test]
    fn numbers_may_be_extreme() {
        for groups in [(0, 0), (0, 5), (5, 0), (usize::MAX, usize::MAX)] {
            for events in ["c".repeat(200), "o".repeat(200), "co".repeat(200)] {
                let value = evidence(groups, &events);
                assert!(value.is_finite() && value >= 0.0, "{groups:?}: {value}");
                assert!((1..=100).contains(&FIVE.chance_percent(value)));
            }
            let _ = FIVE.smallest_harm_percent(Groups::new(groups.0, groups.1), usize::MAX);
        }
        let never = Test { max_error_percent: 0, kinds: 4 };
        assert!(!never.finds_harm(f64::MAX / 1e3));
        assert_eq!(FIVE.chance_percent(80.0), 5);
        assert_eq!((FIVE.chance_percent(0.0), FIVE.chance_percent(f64::INFINITY)), (100, 1));
    }
}
