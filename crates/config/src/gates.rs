//! Feature gates: which a kubelet of a version knows, what they are if nobody sets them, and what `AllAlpha` and `AllBeta` set.
//!
//! A group sets each gate of its stage that is not set by its name (`setUnsetAlphaGates`, `setUnsetBetaGates`,
//! k8s.io/component-base/featuregate/feature_gate.go, v1.20.2 and v1.36). `gates.txt` has the gates.

use serde_json::{Map, Value};

use crate::schema::{NEWEST, OLDEST_SUPERVISED};

static TABLE: &str = include_str!("gates.txt");

/// The groups, and the letter of their stage in the table.
const GROUPS: [(&str, char); 2] = [("AllAlpha", 'A'), ("AllBeta", 'B')];

/// A gate in one version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Gate {
    stage: char,
    default: bool,
}

/// True for a name that stands for many gates.
#[must_use]
pub fn is_group(gate: &str) -> bool {
    GROUPS.iter().any(|(name, _)| *name == gate)
}

/// True if it is known which gates a kubelet of this minor version has.
#[must_use]
pub fn are_known(minor: Option<u64>) -> bool {
    minor.is_some_and(|minor| (OLDEST_SUPERVISED..=NEWEST).contains(&minor))
}

/// True for a gate that a kubelet of this minor version has; of an unknown version, for any.
#[must_use]
pub fn is_known(gate: &str, minor: Option<u64>) -> bool {
    !are_known(minor) || is_group(gate) || known(minor).any(|(name, _)| name == gate)
}

/// The gates that groups among these set, each with its group. Empty where the version's gates are not known.
pub(crate) fn set_by_groups(gates: &Map<String, Value>, minor: Option<u64>) -> Vec<(&'static str, &'static str, bool)> {
    let given = |name: &str| gates.get(name).and_then(Value::as_bool);
    let groups: Vec<_> = GROUPS.iter().filter_map(|(name, stage)| Some((*name, *stage, given(name)?))).collect();
    if groups.is_empty() {
        return Vec::new();
    }
    let set = |(name, gate): (&'static str, Gate)| {
        let (group, _, on) = groups.iter().find(|(_, stage, _)| *stage == gate.stage)?;
        (!gates.contains_key(name) && !is_group(name)).then_some((name, *group, *on))
    };
    known(minor).filter_map(set).collect()
}

/// True if a kubelet of this minor version has this gate on, with these gates set.
pub(crate) fn is_on(gate: &str, gates: Option<&Value>, minor: Option<u64>) -> bool {
    let given = gates.and_then(|gates| gates.get(gate)).and_then(Value::as_bool);
    known(minor).find(|(name, _)| *name == gate).is_some_and(|(_, gate)| given.unwrap_or(gate.default))
}

/// What of these gates differs from what a kubelet of this minor version does by itself.
pub(crate) fn not_default(gates: &Map<String, Value>, minor: Option<u64>) -> Map<String, Value> {
    let mut left = gates.clone();
    if !left.is_empty() {
        // A group that is off sets all of its stage: for AllAlpha that is their default.
        let is_default = |name: &str, gate: Gate| left.get(name) == Some(&gate.default.into()) && name != "AllBeta";
        let same: Vec<&str> =
            known(minor).filter(|(name, gate)| is_default(name, *gate)).map(|(name, _)| name).collect();
        for name in same {
            left.remove(name);
        }
    }
    left
}

/// All gates of a version.
fn known(minor: Option<u64>) -> impl Iterator<Item = (&'static str, Gate)> {
    let minor = minor.filter(|minor| are_known(Some(*minor)));
    lines().filter_map(move |(name, spans)| Some((name, at(spans, minor?)?)))
}

fn lines() -> impl Iterator<Item = (&'static str, &'static str)> {
    TABLE.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once(' '))
}

/// The last span that has begun: `20A0`, or `24-` where the gate is gone.
fn at(spans: &str, minor: u64) -> Option<Gate> {
    let mut begun = spans
        .split(' ')
        .filter(|span| span.get(..2).and_then(|from| from.parse().ok()).is_some_and(|from: u64| from <= minor));
    let mut of = begun.next_back()?.chars().skip(2);
    let stage = of.next().filter(|stage| *stage != '-')?;
    Some(Gate { stage, default: of.next() == Some('1') })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn find(name: &str, minor: u64) -> Option<Gate> {
        known(Some(minor)).find(|(known, _)| *known == name).map(|(_, gate)| gate)
    }

    fn gates(of: &Value) -> Map<String, Value> {
        of.as_object().unwrap().clone()
    }

    #[test]
    fn the_table_can_be_read() {
        let mut last = "";
        for (name, spans) in lines() {
            assert!(last < name, "{name} stands once, in order");
            last = name;
            let mut since = 0;
            for span in spans.split(' ') {
                let (from, rest) = span.split_at(2);
                let from: u64 = from.parse().unwrap();
                assert!(from > since && (OLDEST_SUPERVISED..=NEWEST).contains(&from), "{name}: {span}");
                since = from;
                let of: Vec<char> = rest.chars().collect();
                assert!(
                    matches!(
                        of[..],
                        ['-'] | ['A' | 'B' | 'G' | 'D', '0' | '1'] | ['A' | 'B' | 'G' | 'D', '0' | '1', '!']
                    ),
                    "{name}: {span}"
                );
            }
        }
        assert!(lines().count() > 400);
    }

    #[test]
    fn gates_by_version() {
        let gate = |stage, default| Some(Gate { stage, default });
        for (name, minor, expected) in [
            ("CPUManager", 20, gate('B', true)),
            ("DynamicKubeletConfig", 20, gate('B', true)),
            ("DynamicKubeletConfig", 26, None),
            ("SeccompDefault", 22, gate('A', false)),
            ("SeccompDefault", 25, gate('B', true)),
            ("NodeSwap", 20, None),
            ("NodeSwap", 22, gate('A', false)),
            ("NodeSwap", 30, gate('B', true)),
            ("NoSuchGate", 30, None),
        ] {
            assert_eq!(find(name, minor), expected, "{name} 1.{minor}");
        }
    }

    #[test]
    fn a_group_sets_what_is_not_set() {
        let given = gates(&json!({"AllAlpha": true, "NodeSwap": false}));
        let set = set_by_groups(&given, Some(22));
        assert!(set.contains(&("SeccompDefault", "AllAlpha", true)), "{set:?}");
        assert!(set.iter().all(|(name, ..)| *name != "NodeSwap" && *name != "CPUManager"), "{set:?}");
        assert_eq!(set_by_groups(&given, None), []);
        assert_eq!(set_by_groups(&given, Some(NEWEST + 1)), []);
        assert_eq!(set_by_groups(&gates(&json!({"NodeSwap": true})), Some(22)), []);
        let off = set_by_groups(&gates(&json!({"AllBeta": false})), Some(20));
        assert!(off.contains(&("CPUManager", "AllBeta", false)), "{off:?}");
    }

    #[test]
    fn what_is_the_default_is_left_out() {
        let given =
            gates(&json!({"AllAlpha": false, "AllBeta": false, "CPUManager": true, "NodeSwap": true, "X": true}));
        assert_eq!(not_default(&given, Some(20)), gates(&json!({"AllBeta": false, "NodeSwap": true, "X": true})));
        assert_eq!(not_default(&given, Some(33)), gates(&json!({"AllBeta": false, "CPUManager": true, "X": true})));
        assert_eq!(not_default(&given, None), given);
    }
}
