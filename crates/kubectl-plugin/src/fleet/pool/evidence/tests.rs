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
